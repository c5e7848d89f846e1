"""Identities of a test mesh, on disk as the chassis keeps them."""

import datetime
from pathlib import Path

from mesh.chassis import identity
from mesh.control import ca

NOW = datetime.datetime.now(datetime.UTC)


class TestMesh:
    """A CA and the folder in which its identities live."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = ca.create("test mesh", NOW)

    def identity(
        self, service: str, *, lifetime_s: float = 3600, state_dir: Path | None = None
    ) -> identity.Identity:
        """Issues `spiffe://chatmesh/<service>`, valid for loopback too; again: a new version."""
        key, request = identity.new_key()
        issued = self.authority.sign(
            ca.check_request(request),
            datetime.datetime.now(datetime.UTC),
            datetime.timedelta(seconds=lifetime_s),
            uri=f"spiffe://chatmesh/{service}",
            names=["localhost", "127.0.0.1"],
        )
        folder = state_dir or self.folder / service
        return identity.publish(
            folder, key, issued.certificate_chain_pem, self.authority.trust_bundle_pem
        )
