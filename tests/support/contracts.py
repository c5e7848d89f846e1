"""Two versions of the contracts side by side: what became of each message, and random ones.

Descriptors are compared by numbers and types, never by names: a message that moved to another
package is the same one as long as its bytes are.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

OURS = "chatmesh/"
DEPTH_MAX = 4
# (enum, number) -> why the number may say something else now.
REDEFINED = {
    ("chatmesh.inference.v1.FinishReason", 3): "CANCELLED, which callers treat as every number but "
    "STOP and LENGTH: as an answer that was given up (tests/contract/test_gateway_nodes.py)",
}


class IncompatibleError(Exception):
    """Something of the older version is gone, or its bytes mean something else."""


Files = descriptor_pb2.FileDescriptorSet


def files_of(path: Path) -> Files:
    """The descriptor set of a .binpb file."""
    return Files.FromString(path.read_bytes())


def pool_of(files: Files) -> DescriptorPool:
    """A pool of its own, so that two versions of one name may exist."""
    pool = DescriptorPool()
    for file in files.file:
        pool.Add(file)  # type: ignore[no-untyped-call]
    return pool


def paired(files: Files, older: DescriptorPool, newer: DescriptorPool) -> dict[str, Descriptor]:
    """Full name of each of our older messages -> what it is in the newer version.

    Raises:
        IncompatibleError: a service, method, message, field or value is gone or has changed.
    """
    found: dict[str, Descriptor] = {}
    ours = [file for file in files.file if file.name.startswith(OURS)]
    for file in ours:
        for service in file.service:
            _pair_service(older, newer, f"{file.package}.{service.name}", found)
    names = [name for file in ours for name in _message_names(file.package, file.message_type)]
    for name in names:
        if name not in found:
            _pair(older.FindMessageTypeByName(name), _find(newer, name), found)
    return {name: found[name] for name in names}


def _find(pool: DescriptorPool, name: str) -> Descriptor:
    try:
        return pool.FindMessageTypeByName(name)
    except KeyError:
        raise IncompatibleError(f"{name} is gone, and no field or method has it now") from None


def _message_names(prefix: str, messages: Any) -> Iterator[str]:
    for message in messages:
        if not message.options.map_entry:
            yield f"{prefix}.{message.name}"
            yield from _message_names(f"{prefix}.{message.name}", message.nested_type)


def _pair_service(
    older: DescriptorPool, newer: DescriptorPool, name: str, found: dict[str, Descriptor]
) -> None:
    try:
        now = newer.FindServiceByName(name)
    except KeyError:
        raise IncompatibleError(f"the service {name} is gone") from None
    for method in older.FindServiceByName(name).methods:
        other = now.methods_by_name.get(method.name)
        if other is None:
            raise IncompatibleError(f"{name}/{method.name} is gone")
        shape = (method.client_streaming, method.server_streaming)
        if shape != (other.client_streaming, other.server_streaming):
            raise IncompatibleError(f"{name}/{method.name} streams otherwise")
        _pair(method.input_type, other.input_type, found)
        _pair(method.output_type, other.output_type, found)


def _pair(old: Descriptor, new: Descriptor, found: dict[str, Descriptor]) -> None:
    if old.full_name in found:
        return
    found[old.full_name] = new
    for field in old.fields:
        where = f"{old.full_name}.{field.name}"
        other = new.fields_by_number.get(field.number)
        if other is None:
            raise IncompatibleError(f"{where} ({field.number}) is gone from {new.full_name}")
        if _shape(field) != _shape(other):
            raise IncompatibleError(f"{where} has another type or presence in {new.full_name}")
        if field.message_type:
            _pair(field.message_type, other.message_type, found)
        if field.enum_type:
            _check_enum(field.enum_type, other.enum_type)


def _shape(field: FieldDescriptor) -> tuple[object, ...]:
    oneof = field.containing_oneof
    return field.type, field.is_repeated, field.has_presence, oneof.name if oneof else None


def _check_enum(old: EnumDescriptor, new: EnumDescriptor) -> None:
    for value in old.values:
        if (old.full_name, value.number) in REDEFINED:
            continue
        other = new.values_by_number.get(value.number)
        if other is None or other.name != value.name:
            raise IncompatibleError(f"{value.name} of {old.full_name} is not {value.number} now")


def filled(descriptor: Descriptor, rng: random.Random, depth: int = 0) -> Message:
    """A message with random values in about three of four fields."""
    message = message_factory.GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if rng.random() > 0.75 or (field.message_type and depth == DEPTH_MAX):
            continue
        count = rng.randint(1, 3) if field.is_repeated else 1
        for _ in range(count):
            _fill(message, field, rng, depth)
    return message


def _fill(message: Message, field: FieldDescriptor, rng: random.Random, depth: int) -> None:
    target = getattr(message, field.name)
    if field.message_type and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        key = _scalar(entry["key"], rng)
        if entry["value"].message_type:
            target[key].MergeFrom(filled(entry["value"].message_type, rng, depth + 1))
        else:
            target[key] = _scalar(entry["value"], rng)
    elif field.message_type:
        made = filled(field.message_type, rng, depth + 1)
        if field.is_repeated:
            target.append(made)
        else:
            target.SetInParent()
            target.MergeFrom(made)
    elif field.is_repeated:
        target.append(_scalar(field, rng))
    else:
        setattr(message, field.name, _scalar(field, rng))


def _scalar(field: FieldDescriptor, rng: random.Random) -> Any:
    kinds = FieldDescriptor
    if field.enum_type:
        return rng.choice(field.enum_type.values).number
    if field.cpp_type == kinds.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if field.type == kinds.TYPE_BYTES:
        return rng.randbytes(rng.randint(0, 9))
    if field.type == kinds.TYPE_STRING:
        return "".join(rng.choice("aZ9 é🙂\0\n") for _ in range(rng.randint(0, 9)))
    if field.cpp_type in (kinds.CPPTYPE_FLOAT, kinds.CPPTYPE_DOUBLE):
        return rng.randint(-1000, 1000) / 8  # exact in either width
    bits = 31 if field.cpp_type in (kinds.CPPTYPE_INT32, kinds.CPPTYPE_UINT32) else 63
    signed = field.cpp_type in (kinds.CPPTYPE_INT32, kinds.CPPTYPE_INT64)
    low = -(1 << bits) if signed else 0
    high = (1 << bits) - 1 if signed else (1 << (bits + 1)) - 1
    return rng.choice((low, high, rng.randint(low, high), rng.randint(0, 200)))


def difference(old: Message, new: Message) -> str:
    """Where two versions of one message differ in what the older one knows; "" nowhere."""
    for field in old.DESCRIPTOR.fields:
        other = new.DESCRIPTOR.fields_by_number[field.number]
        where = f"{old.DESCRIPTOR.full_name}.{field.name}"
        if field.has_presence and old.HasField(field.name) != new.HasField(other.name):
            return where
        ours, theirs = getattr(old, field.name), getattr(new, other.name)
        for one, another in _values(field, ours, theirs):
            if isinstance(one, Message):
                if deeper := difference(one, another):
                    return f"{where}: {deeper}"
            elif one != another:
                return where
    return ""


def _values(field: FieldDescriptor, ours: Any, theirs: Any) -> Iterator[tuple[Any, Any]]:
    if not field.is_repeated:
        yield ours, theirs
        return
    yield len(ours), len(theirs)
    if field.message_type and field.message_type.GetOptions().map_entry:
        yield sorted(ours), sorted(theirs)
        yield from ((ours[key], theirs[key]) for key in ours)
    else:
        yield from zip(ours, theirs, strict=True)
