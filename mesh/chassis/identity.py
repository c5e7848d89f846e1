"""The identity of a process: a key that never leaves it, and short-lived certificates.

`<state_dir>/identity` is a symbolic link to the newest of `<state_dir>/identity.d/<n>`, each with
`tls.key`, `tls.crt` and `ca.crt`. The link is replaced in one rename, so that a reader (gRPC's
file_watcher, Envoy's file SDS) never sees the key of one certificate with another.
"""

import asyncio
import datetime
import os
import random
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from chatmesh.mesh.v1 import mesh_pb2, mesh_pb2_grpc
from mesh.chassis.background import GiveUpError
from mesh.chassis.files import write_private

JOIN_TIMEOUT_S = 10.0
RENEW_RETRY_S = 1.0
# The wall clock, by which certificates end, is looked at this often: it jumps, and goes on while
# the machine sleeps, when no timer does.
CLOCK_INTERVAL_S = 1.0

log = structlog.get_logger()


class CertificateExpiredError(GiveUpError):
    """The certificate is not valid (any more): only a new join token helps."""


def utc_now() -> datetime.datetime:
    """The wall clock."""
    return datetime.datetime.now(datetime.UTC)


@dataclass(frozen=True)
class Identity:
    """Where the files of an identity are; their content changes with every renewal."""

    folder: Path

    @property
    def key(self) -> Path:
        """Private key (PEM, mode 0600)."""
        return self.folder / "tls.key"

    @property
    def certificate(self) -> Path:
        """Certificate and its chain (PEM)."""
        return self.folder / "tls.crt"

    @property
    def trust_bundle(self) -> Path:
        """Roots to trust (PEM)."""
        return self.folder / "ca.crt"

    def validity(self) -> tuple[datetime.datetime, datetime.datetime]:
        """When the present certificate begins and ends (UTC)."""
        certificate = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        return certificate.not_valid_before_utc, certificate.not_valid_after_utc

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """mTLS credentials of the present certificate, for the control plane only."""
        return grpc.ssl_channel_credentials(
            self.trust_bundle.read_bytes(), self.key.read_bytes(), self.certificate.read_bytes()
        )


def new_key() -> tuple[bytes, bytes]:
    """A fresh EC P-256 key: (private key PEM, certificate request DER)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "chatmesh")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return pem, request.public_bytes(serialization.Encoding.DER)


def publish(state_dir: Path, key: bytes, certificate_chain: str, trust_bundle: str) -> Identity:
    """Writes a new version of the identity and switches to it in one rename.

    Raises:
        OSError: it cannot be written; the version before stays in force, and nothing of this one.
    """
    versions = state_dir / "identity.d"
    versions.mkdir(mode=0o700, parents=True, exist_ok=True)
    taken = sorted(int(path.name) for path in versions.iterdir() if path.name.isdigit())
    version = versions / str(taken[-1] + 1 if taken else 1)
    link, scratch = state_dir / "identity", state_dir / "identity.new"
    try:
        version.mkdir(mode=0o700)
        write_private(version / "tls.key", key)
        (version / "tls.crt").write_text(certificate_chain)
        (version / "ca.crt").write_text(trust_bundle)
        scratch.unlink(missing_ok=True)
        scratch.symlink_to(Path("identity.d") / version.name)
        os.replace(scratch, link)
    except OSError:
        shutil.rmtree(version, ignore_errors=True)
        raise
    # The one before stays for readers that are between two files.
    for old in taken[:-1]:
        shutil.rmtree(versions / str(old), ignore_errors=True)
    return Identity(link)


async def join(address: str, join_token: str, trust_bundle: Path, state_dir: Path) -> Identity:
    """Gets the first certificate for the identity that the token stands for.

    Raises:
        grpc.aio.AioRpcError: PERMISSION_DENIED for a token that is unknown, expired or used;
            UNAVAILABLE or DEADLINE_EXCEEDED when no control plane answers within 10 s.
    """
    key, request = new_key()
    roots = await asyncio.to_thread(trust_bundle.read_bytes)
    credentials = grpc.ssl_channel_credentials(roots)
    async with grpc.aio.secure_channel(address, credentials) as channel:
        answer = await mesh_pb2_grpc.CertificateServiceStub(channel).IssueCertificate(
            mesh_pb2.IssueCertificateRequest(join_token=join_token, csr_der=request),
            timeout=JOIN_TIMEOUT_S,
            wait_for_ready=True,
        )
    return publish(state_dir, key, answer.certificate_chain_pem, answer.trust_bundle_pem)


async def renew(address: str, identity: Identity, state_dir: Path) -> None:
    """Gets the next certificate, with a new key, on the strength of the present one."""
    key, request = new_key()
    async with grpc.aio.secure_channel(address, identity.channel_credentials()) as channel:
        answer = await mesh_pb2_grpc.CertificateServiceStub(channel).RenewCertificate(
            mesh_pb2.RenewCertificateRequest(csr_der=request), timeout=JOIN_TIMEOUT_S
        )
    publish(state_dir, key, answer.certificate_chain_pem, answer.trust_bundle_pem)


async def keep_renewed(
    address: str,
    identity: Identity,
    state_dir: Path,
    *,
    now: Callable[[], datetime.datetime] = utc_now,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Renews at half of each lifetime (a little spread), for ever.

    A control plane that is away, and a disk that is full, are tried again every second.

    Args:
        address: host:port of the control plane.
        identity: to be renewed.
        state_dir: where the next version goes.
        now: the wall clock.
        sleep: waits seconds of a clock that may stand still while the wall clock goes on.

    Raises:
        CertificateExpiredError: the certificate has expired, for example while the machine slept,
            or the clock was set back to before it was issued. Only a new join token helps then, so
            the process must end and be started anew.
        OSError, ValueError: the certificate in force cannot be read.
    """
    while True:
        begin, end = identity.validity()
        spread = random.uniform(0.45, 0.55)  # noqa: S311 - spreads load, protects nothing
        due = begin + (end - begin) * spread
        while begin <= now() < due:
            await sleep(min((due - now()).total_seconds(), CLOCK_INTERVAL_S))
        while begin <= now() < end:
            try:
                await renew(address, identity, state_dir)
                log.info("certificate_renewed", expires=identity.validity()[1].isoformat())
                break
            except (grpc.RpcError, OSError, ValueError) as error:
                code = error.code().name if isinstance(error, grpc.RpcError) else ""
                log.warning("certificate_renewal_failed", error=type(error).__name__, code=code)
                await sleep(RENEW_RETRY_S)
        else:
            raise CertificateExpiredError(
                f"the certificate is valid from {begin.isoformat()} to {end.isoformat()} only"
            )
