"""The edge's part of the snapshot: its settings and its public certificate become resources."""

import datetime
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path

import structlog

from mesh.chassis.files import write_private
from mesh.chassis.followed_file import FollowedFile
from mesh.control import ca, registry, render
from mesh.control.settings import EdgeSettings
from mesh.control.store import StateFolder
from mesh.edge.render import EdgeInputs, edge_resources
from mesh.topology import Retry, Topology
from mesh.xds import Resources

EDGE = "edge"
# Short enough that a copy of the key is worth little, long enough for a machine that is off for
# weeks; replaced at half of it.
WEB_CERTIFICATE_LIFETIME = datetime.timedelta(days=60)

log = structlog.get_logger()


class WebCertificate:
    """Certificate and key that strangers see: from files, or from an authority of our own."""

    def __init__(
        self, settings: EdgeSettings, folder: StateFolder, clock: Callable[[], datetime.datetime]
    ) -> None:
        """Raises:
        OSError: the files cannot be read.
        ValueError: they are not a certificate with its key.
        """
        self._settings, self._folder, self._clock = settings, folder, clock
        self._renew_at = datetime.datetime.max.replace(tzinfo=datetime.UTC)
        self._files: FollowedFile[tuple[str, str]] | None = None
        if settings.cert_file is not None and settings.key_file is not None:
            self._files = FollowedFile(
                settings.cert_file, settings.key_file, parse=_check_pair, refused=_refuse
            )
        self.chain_pem, self.key_pem = self._files.load() if self._files else self._make()

    def refresh(self) -> bool:
        """Takes up new files, or renews our own; True when something changed.

        Files that do not fit together (they may be between two writes) change nothing.
        """
        if self._files is None:
            if self._clock() < self._renew_at:
                return False
            self.chain_pem, self.key_pem = self._make()
            return True
        if not self._files.refresh():
            return False
        assert self._files.current is not None
        self.chain_pem, self.key_pem = self._files.current
        return True

    def _make(self) -> tuple[str, str]:
        now = self._clock()
        authority = ca.load_or_create(self._folder.path, "web-ca", "chatmesh web", now)
        key = ca.new_key()
        issued = authority.sign(
            key.public_key(), now, WEB_CERTIFICATE_LIFETIME, names=self._settings.names
        )
        self._renew_at = now + WEB_CERTIFICATE_LIFETIME / 2
        return issued.certificate_chain_pem, ca.key_pem(key)


class Edge:
    """Renders everything that Envoy gets; what strangers see is rendered once a change."""

    def __init__(
        self, settings: EdgeSettings, certificate: WebCertificate, trust_bundle_pem: str
    ) -> None:
        self._settings, self._certificate = settings, certificate
        self._trust_bundle_pem = trust_bundle_pem
        self._rendered: tuple[EdgeInputs, Resources] | None = None

    def resources(self, topology: Topology, instances: tuple[registry.Instance, ...]) -> Resources:
        """Listeners, routes, secrets, clusters and endpoints; nothing without an edge."""
        if EDGE not in topology.services:
            return {}
        inputs = self._inputs(topology)
        if self._rendered is None or self._rendered[0] != inputs:
            self._rendered = inputs, edge_resources(inputs)
        return {**self._rendered[1], **render.for_envoy(topology, instances, EDGE)}

    def _inputs(self, topology: Topology) -> EdgeInputs:
        called = topology.called_by(EDGE)
        return EdgeInputs(
            plain_port=self._settings.port,
            tls_port=self._settings.tls_port,
            tls_host=self._settings.host,
            web_certificate_pem=self._certificate.chain_pem,
            web_key_pem=self._certificate.key_pem,
            trust_bundle_pem=self._trust_bundle_pem,
            cors_origins=self._settings.cors_origins,
            repeatable_methods=frozenset(m.name for m in called if m.retry is Retry.REPEATABLE),
            joinable_methods=frozenset(m.name for m in called if m.retry is Retry.JOINABLE),
        )


def _refuse(error: OSError | ValueError) -> None:
    log.error("web_certificate_refused", problem=str(error))


def _check_pair(chain_pem: str, key_pem: str) -> tuple[str, str]:
    """Both; raises ValueError unless the key belongs to the certificate, as TLS sees it."""
    with tempfile.TemporaryDirectory() as scratch:
        chain, key = Path(scratch, "chain"), Path(scratch, "key")
        write_private(chain, chain_pem)
        write_private(key, key_pem)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key, "")
        except ssl.SSLError as error:
            raise ValueError(f"EDGE_CERT_FILE and EDGE_KEY_FILE do not fit: {error}") from error
    return chain_pem, key_pem
