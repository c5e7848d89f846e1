"""Who gets which certificate: tokens and identities in, certificates out."""

import datetime
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import structlog
from cryptography.hazmat.primitives.asymmetric import ec

from mesh.control import ca
from mesh.control.render import CONTROL
from mesh.control.store import StateFolder
from mesh.control.tokens import TOKEN_LENGTH_MAX, JoinTokens, digest, same
from mesh.topology import Topology

OPERATOR = "operator"

log = structlog.get_logger()


class BadJoinTokenError(ValueError):
    """The token is unknown, expired or was used."""


class Issuer:
    """Signs for those who hold a token, and again for those who hold a certificate."""

    def __init__(
        self,
        authority: ca.CertificateAuthority,
        topology: Callable[[], Topology],
        folder: StateFolder,
        lifetime: datetime.timedelta,
        operator_token_file: Path | None,
    ) -> None:
        self._authority, self._topology, self._folder = authority, topology, folder
        self._lifetime = lifetime
        self._operator_token_file = operator_token_file
        outstanding, self._operator_used = folder.load_tokens()
        self._tokens = JoinTokens(outstanding)

    @property
    def trust_bundle_pem(self) -> str:
        """Roots to trust."""
        return self._authority.trust_bundle_pem

    def create_token(self, name: str, lifetime_s: int, now: datetime.datetime) -> str:
        """A one-time token for a service or identity; see `JoinTokens.create` for the errors.

        Raises:
            KeyError: nobody of that name may join; the control plane itself may not.
        """
        if name == CONTROL or name not in self._topology().names():
            raise KeyError(name)
        token = self._tokens.create(name, lifetime_s, now.timestamp())
        self._save()
        return token

    def issue(
        self, join_token: str, csr_der: bytes, now: datetime.datetime
    ) -> tuple[ca.Issued, str]:
        """First certificate, with its SPIFFE id. The request is checked before the token is used.

        Raises:
            mesh.control.ca.BadCertificateRequestError: the request must not be signed.
            BadJoinTokenError: the token is no good.
        """
        public_key = ca.check_request(csr_der)
        name = self._redeem(join_token, now)
        if name is None or name not in self._topology().names():
            raise BadJoinTokenError(
                "the join token is unknown, expired or used; ask for a new one "
                "(mesh.ctl, or restart the process under its supervisor)"
            )
        log.info("certificate_issued", identity=name)
        return self._sign(public_key, name, now), self._topology().spiffe_id(name)

    def renew(self, name: str, csr_der: bytes, now: datetime.datetime) -> ca.Issued:
        """Next certificate of an identity.

        Raises:
            mesh.control.ca.BadCertificateRequestError: the request must not be signed.
        """
        return self._sign(ca.check_request(csr_der), name, now)

    def _sign(self, key: ca.PublicKey, name: str, now: datetime.datetime) -> ca.Issued:
        uri = self._topology().spiffe_id(name)
        return self._authority.sign(key, now, self._lifetime, uri=uri)

    def _redeem(self, token: str, now: datetime.datetime) -> str | None:
        if not 0 < len(token) <= TOKEN_LENGTH_MAX:
            return None
        name = self._redeem_operator(token) or self._tokens.redeem(token, now.timestamp())
        if name is not None:
            # Before the certificate leaves: a token that was used stays used after a crash.
            self._save()
        return name

    def _redeem_operator(self, token: str) -> str | None:
        """The supervisor, which starts before anybody could ask for a token, left its own."""
        file = self._operator_token_file
        if file is None or not file.exists():
            return None
        wanted, given = digest(file.read_text(encoding="utf-8").strip()), digest(token)
        if not same(wanted, given) or same(given, self._operator_used):
            return None
        self._operator_used = given
        return OPERATOR

    def _save(self) -> None:
        self._folder.save_tokens(self._tokens.outstanding, self._operator_used)


class OwnCertificate:
    """The control plane's server certificate, issued to itself; the key stays in memory.

    gRPC asks at every handshake, so that no timer is needed: past half of its life the
    certificate is replaced just before it is shown.
    """

    def __init__(
        self,
        authority: ca.CertificateAuthority,
        spiffe_id: str,
        names: tuple[str, ...],
        lifetime: datetime.timedelta,
        clock: Callable[[], datetime.datetime],
    ) -> None:
        self._authority, self._spiffe_id, self._names = authority, spiffe_id, names
        self._lifetime, self._clock = lifetime, clock
        self._lock = threading.Lock()  # handshakes run on gRPC's threads
        self._key: ec.EllipticCurvePrivateKey
        self._issued: ca.Issued
        self._replace()

    def credentials(self, *, require_client_certificate: bool) -> grpc.ServerCredentials:
        """Server credentials that always show the newest certificate."""
        shown = [self._issued]

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            with self._lock:
                if self._clock() >= self._half_life():
                    self._replace()
                if shown[0] is self._issued:
                    return None
                shown[0] = self._issued
                return self._configuration()

        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            fetch,  # type: ignore[arg-type]  # None: unchanged
            require_client_authentication=require_client_certificate,
        )

    def _half_life(self) -> datetime.datetime:
        return self._issued.not_before + (self._issued.not_after - self._issued.not_before) / 2

    def _replace(self) -> None:
        self._key = ca.new_key()
        self._issued = self._authority.sign(
            self._key.public_key(),
            self._clock(),
            self._lifetime,
            uri=self._spiffe_id,
            names=self._names,
        )

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pair = (ca.key_pem(self._key).encode(), self._issued.certificate_chain_pem.encode())
        return grpc.ssl_server_certificate_configuration(
            [pair], self._authority.trust_bundle_pem.encode()
        )
