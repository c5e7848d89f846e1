"""What of the contracts strangers may call, read from the descriptors themselves.

A method that is added to these protos is served by the edge with no further line.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from google.api import annotations_pb2, http_pb2
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor
from google.rpc import error_details_pb2, status_pb2

from chatmesh.chat.v1 import chat_pb2
from chatmesh.gateway.v1 import gateway_pb2

# Reached as HTTP/JSON only: the bodies are raw and mean nothing to a gRPC client.
TRANSCODED_FILE = gateway_pb2.DESCRIPTOR
# Reached as gRPC and gRPC-Web only.
NATIVE_FILE = chat_pb2.DESCRIPTOR
# How generic clients (grpcurl) find the contracts; needs a key as everything does.
REFLECTION = (
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)


@dataclass(frozen=True)
class HttpBinding:
    """One HTTP verb and path that stands for a method."""

    rpc: str  # "package.Service/Method"
    verb: str  # "POST"
    # "/v1/models/" when is_prefix (a variable follows), else the whole path.
    path: str
    is_prefix: bool


def transcoded_services() -> list[str]:
    """Full names of the services behind the transcoder."""
    return [service.full_name for service in TRANSCODED_FILE.services_by_name.values()]


def native_methods() -> list[str]:
    """ "package.Service/Method" of what gRPC clients may call."""
    return [_rpc(method) for method in _methods(NATIVE_FILE)]


def http_bindings() -> list[HttpBinding]:
    """All google.api.http rules, additional bindings included, whole paths before prefixes."""
    found = []
    for method in _methods(TRANSCODED_FILE):
        rule = method.GetOptions().Extensions[annotations_pb2.http]
        for binding in (rule, *rule.additional_bindings):
            found.append(_binding(_rpc(method), binding))
    return sorted(found, key=lambda each: (each.is_prefix, -len(each.path), each.path, each.verb))


def descriptor_set() -> bytes:
    """FileDescriptorSet of the transcoded file and all that may appear in its answers.

    The error details are among it: a status whose details the transcoder cannot name comes out as
    an empty body.
    """
    seen: dict[str, bytes] = {}
    for file in (TRANSCODED_FILE, error_details_pb2.DESCRIPTOR, status_pb2.DESCRIPTOR):
        _collect(file, seen)
    files = [descriptor_pb2.FileDescriptorProto.FromString(data) for data in seen.values()]
    return descriptor_pb2.FileDescriptorSet(file=files).SerializeToString(deterministic=True)


def _collect(file: FileDescriptor, seen: dict[str, bytes]) -> None:
    """Adds a file after those it imports."""
    if file.name not in seen:
        for dependency in file.dependencies:
            _collect(dependency, seen)
        seen[file.name] = file.serialized_pb


def _methods(file: FileDescriptor) -> Iterator[MethodDescriptor]:
    for service in file.services_by_name.values():
        yield from service.methods


def _rpc(method: MethodDescriptor) -> str:
    return f"{method.containing_service.full_name}/{method.name}"


def _binding(rpc: str, rule: http_pb2.HttpRule) -> HttpBinding:
    verb = rule.WhichOneof("pattern")
    template = getattr(rule, verb)
    path, brace, _ = template.partition("{")
    return HttpBinding(rpc, verb.upper(), path, is_prefix=bool(brace))
