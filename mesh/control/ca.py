"""A certificate authority: one EC P-256 key that signs short-lived certificates.

Two are used: the mesh's (SPIFFE identities, X509-SVID) and, when no public certificate is
configured, the web's (the edge's own TLS certificate for localhost).
"""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mesh.chassis.files import write_private, write_public

ROOT_LIFETIME = datetime.timedelta(days=3650)
# Clocks of one mesh may differ by this much; never more than a tenth of a certificate's life, so
# that "half of its life" still means what renewal takes it for.
CLOCK_SKEW_MAX = datetime.timedelta(seconds=60)
CSR_BYTES_MAX = 16_384
EC_KEY_BITS_MIN = 256
RSA_KEY_BITS_MIN = 2048
RSA_KEY_BITS_MAX = 8192  # beyond, a request would cost more to check than it is worth

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey


class BadCertificateRequestError(ValueError):
    """A certificate request that must not be signed; the text says why and what to do."""


@dataclass(frozen=True)
class Issued:
    """A certificate as its owner gets it."""

    certificate_chain_pem: str
    not_before: datetime.datetime
    not_after: datetime.datetime


@dataclass(frozen=True)
class CertificateAuthority:
    """A root key and its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def trust_bundle_pem(self) -> str:
        """The root, for those who are to trust it."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    def sign(
        self,
        public_key: PublicKey,
        now: datetime.datetime,
        lifetime: datetime.timedelta,
        *,
        uri: str = "",
        names: Sequence[str] = (),
    ) -> Issued:
        """Signs a certificate for both ends of TLS.

        Args:
            public_key: of the owner.
            now: begin, less a little for clocks that differ.
            lifetime: from now.
            uri: the SPIFFE id; empty: none.
            names: DNS names and IP addresses that it is also valid for.
        """
        not_before = now - min(CLOCK_SKEW_MAX, lifetime / 10)
        not_after = min(now + lifetime, self.certificate.not_valid_after_utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_common_name(uri.rpartition("/")[2] or names[0]))
            .issuer_name(self.certificate.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(not_before)
            .not_valid_after(not_after)
            .add_extension(x509.SubjectAlternativeName(_general_names(uri, names)), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
        )
        certificate = builder.sign(self.key, hashes.SHA256())
        return Issued(
            certificate.public_bytes(serialization.Encoding.PEM).decode(), not_before, not_after
        )


def create(name: str, now: datetime.datetime) -> CertificateAuthority:
    """A new authority with a key of its own."""
    key = new_key()
    subject = _common_name(name)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW_MAX)
        .not_valid_after(now + ROOT_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(key_cert_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return CertificateAuthority(key, certificate)


def load_or_create(
    folder: Path, stem: str, name: str, now: datetime.datetime
) -> CertificateAuthority:
    """The authority of `<folder>/<stem>.key` (mode 0600) and `<stem>.crt`; made at first start.

    Raises:
        ValueError: the files are damaged, or do not belong together.
    """
    key_file, certificate_file = folder / f"{stem}.key", folder / f"{stem}.crt"
    if not (key_file.exists() and certificate_file.exists()):
        authority = create(name, now)
        write_private(key_file, key_pem(authority.key))
        write_public(certificate_file, authority.trust_bundle_pem)
        return authority
    key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != (
        certificate.public_key()
    ):
        raise ValueError(f"{key_file} and {certificate_file} do not belong together; remove both")
    return CertificateAuthority(key, certificate)


def check_request(csr_der: bytes) -> PublicKey:
    """The public key of a certificate request; everything else in it is ignored.

    Raises:
        BadCertificateRequestError: it does not parse, its signature is wrong or its key is weak.
    """
    if len(csr_der) > CSR_BYTES_MAX:
        raise BadCertificateRequestError(f"send at most {CSR_BYTES_MAX} bytes of PKCS#10 DER")
    try:
        request = x509.load_der_x509_csr(csr_der)
        key = request.public_key()
        signed = request.is_signature_valid
    except (ValueError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise BadCertificateRequestError("send a PKCS#10 request in DER") from error
    if not _is_strong(key):
        raise BadCertificateRequestError("use an EC P-256, Ed25519 or RSA 2048 to 8192 key")
    if not signed:
        raise BadCertificateRequestError("sign the request with the key that it names")
    assert isinstance(key, PublicKey)
    return key


def new_key() -> ec.EllipticCurvePrivateKey:
    """A fresh EC P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    """PKCS#8 PEM, not encrypted: for private files and for TLS."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def _is_strong(key: object) -> bool:
    if isinstance(key, ec.EllipticCurvePublicKey):
        return key.curve.key_size >= EC_KEY_BITS_MIN
    if isinstance(key, rsa.RSAPublicKey):
        return RSA_KEY_BITS_MIN <= key.key_size <= RSA_KEY_BITS_MAX
    return isinstance(key, ed25519.Ed25519PublicKey)


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _general_names(uri: str, names: Sequence[str]) -> list[x509.GeneralName]:
    result: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri)] if uri else []
    for name in names:
        try:
            result.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            result.append(x509.DNSName(name))
    return result


def _key_usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
