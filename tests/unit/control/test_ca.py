"""The authority: what it signs, what it refuses, how it is kept."""

import datetime
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa

from mesh.chassis.identity import new_key
from mesh.control import ca

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)
URI = "spiffe://chatmesh/gateway"


@pytest.fixture(scope="module")
def authority():
    return ca.create("test", NOW)


def request_der(key, algorithm=None) -> bytes:
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    signed = request.sign(key, algorithm or hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.DER)


def leaf(issued: ca.Issued) -> x509.Certificate:
    return x509.load_pem_x509_certificate(issued.certificate_chain_pem.encode())


def test_a_certificate_carries_exactly_the_identity(authority):
    key = ca.check_request(new_key()[1])
    certificate = leaf(authority.sign(key, NOW, HOUR, uri=URI))
    certificate.verify_directly_issued_by(authority.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.UniformResourceIdentifier(URI)]
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert not constraints.ca
    assert certificate.not_valid_after_utc == NOW + HOUR
    assert certificate.public_key() == key


def test_names_become_dns_names_or_addresses(authority):
    key = ca.check_request(new_key()[1])
    certificate = leaf(authority.sign(key, NOW, HOUR, uri=URI, names=("localhost", "127.0.0.1")))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]


@pytest.mark.parametrize("seconds", [2, 10, 3600])
def test_the_start_is_backdated_by_a_tenth_at_most(authority, seconds):
    lifetime = datetime.timedelta(seconds=seconds)
    issued = authority.sign(ca.check_request(new_key()[1]), NOW, lifetime, uri=URI)
    assert NOW - lifetime / 10 <= issued.not_before <= NOW
    assert NOW - issued.not_before <= ca.CLOCK_SKEW_MAX


def test_no_certificate_outlives_the_root(authority):
    late = NOW + ca.ROOT_LIFETIME - datetime.timedelta(minutes=1)
    issued = authority.sign(ca.check_request(new_key()[1]), late, HOUR, uri=URI)
    assert issued.not_after == authority.certificate.not_valid_after_utc


def test_a_request_with_a_wrong_signature_is_refused():
    der = bytearray(new_key()[1])
    der[-1] ^= 1
    with pytest.raises(ca.BadCertificateRequestError):
        ca.check_request(bytes(der))


@pytest.mark.parametrize("der", [b"", b"\x30", b"not DER", b"\x00" * 20_000])
def test_what_is_no_request_is_refused(der):
    with pytest.raises(ca.BadCertificateRequestError):
        ca.check_request(der)


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP192R1()),
        rsa.generate_private_key(65537, 1024),
        dsa.generate_private_key(2048),
    ],
    ids=["P-192", "RSA-1024", "DSA"],
)
def test_weak_keys_are_refused(key):
    with pytest.raises(ca.BadCertificateRequestError, match="use an EC P-256"):
        ca.check_request(request_der(key))


@pytest.mark.parametrize(
    "key",
    [ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048)],
    ids=["P-384", "RSA-2048"],
)
def test_strong_keys_are_accepted(key):
    assert ca.check_request(request_der(key)) == key.public_key()


def test_the_authority_is_made_once_and_kept_private(tmp_path):
    first = ca.load_or_create(tmp_path, "ca", "test", NOW)
    second = ca.load_or_create(tmp_path, "ca", "test", NOW)
    assert first.trust_bundle_pem == second.trust_bundle_pem
    assert stat.S_IMODE((tmp_path / "ca.key").stat().st_mode) == 0o600
    second.certificate.verify_directly_issued_by(first.certificate)


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    ca.load_or_create(tmp_path, "ca", "test", NOW)
    (tmp_path / "ca.key").write_text(ca.key_pem(ca.new_key()))
    with pytest.raises(ValueError, match="remove both"):
        ca.load_or_create(tmp_path, "ca", "test", NOW)
