"""Failures of fakes, as a test wants them."""

from dataclasses import dataclass, field

import grpc

from mesh.chassis.errors import MeshError


@dataclass
class Faults:
    """Errors to raise, by method name; a list is used up one by one."""

    by_method: dict[str, list[MeshError]] = field(default_factory=dict)

    def add(self, method: str, *errors: MeshError) -> None:
        self.by_method.setdefault(method, []).extend(errors)

    def check(self, method: str) -> None:
        if waiting := self.by_method.get(method):
            raise waiting.pop(0)


def failure(code: grpc.StatusCode, reason: str = "", **metadata: str) -> MeshError:
    return MeshError(code, reason, f"{reason or code.name} happened", metadata=metadata)
