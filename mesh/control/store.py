"""The state folder: what a restarted control plane needs to go on as if nothing had been."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import structlog

from mesh.chassis.files import write_private, write_public
from mesh.control import registry

log = structlog.get_logger()


class StateFolder:
    """Files of one control plane; every one is replaced whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def load_registry(self) -> tuple[tuple[registry.Instance, ...], int]:
        """Instances and snapshot version of the former life; nothing when there was none.

        A damaged file is reported and taken as none: instances take their leases again anyway.
        """
        file = self.path / "registry.json"
        try:
            return registry.parse(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return (), 0
        except ValueError as error:
            log.error("registry_file_damaged", file=file.name, problem=str(error))
            return (), 0

    def save_registry(self, instances: Iterable[registry.Instance], snapshot_version: int) -> None:
        """Keeps the instances and the snapshot's version."""
        write_private(self.path / "registry.json", registry.dump(instances, snapshot_version))

    def load_tokens(self) -> tuple[Mapping[str, tuple[str, float]], str]:
        """Outstanding join tokens (digests) and the digest of the operator token used last."""
        file = self.path / "tokens.json"
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            outstanding = {
                digest: (str(identity), float(expiry))
                for digest, (identity, expiry) in content["outstanding"].items()
            }
            return outstanding, str(content["operator_used"])
        except FileNotFoundError:
            return {}, ""
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # Unlike instances, a used token must not come back: refuse to guess.
            raise ValueError(f"{file} is damaged ({error!r}); remove it to start anew") from error

    def save_tokens(self, outstanding: Mapping[str, tuple[str, float]], operator_used: str) -> None:
        """Keeps the tokens' digests."""
        content = {"outstanding": outstanding, "operator_used": operator_used}
        write_private(self.path / "tokens.json", json.dumps(content))

    def load_address(self, name: str) -> str:
        """Where we served before; empty when never."""
        file = self.path / name
        return file.read_text(encoding="utf-8").strip() if file.exists() else ""

    def save_address(self, name: str, address: str) -> None:
        """Tells others where we serve."""
        write_public(self.path / name, f"{address}\n")
