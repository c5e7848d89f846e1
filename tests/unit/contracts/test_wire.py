"""Bytes of the released contracts, and of the version before, mean the same now, both ways.

`data/previous.binpb` has the contracts of the version before content.v1, made in its checkout:

    cd proto && python -m grpc_tools.protoc -I. -I"$(python -c
        'import sysconfig; print(sysconfig.get_path("purelib"))')" --include_imports
        --descriptor_set_out=previous.binpb $(find chatmesh -name '*.proto')
"""

import importlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pool import DescriptorPool

from tests.support.contracts import (
    Files,
    IncompatibleError,
    difference,
    files_of,
    filled,
    paired,
    pool_of,
)

ROOT = Path(__file__).resolve().parents[3]
OLDER = {
    "released": ROOT / "proto" / "released.binpb",
    "previous": Path(__file__).parent / "data" / "previous.binpb",
}
INSTANCE_COUNT = 20

older = pytest.mark.parametrize("path", OLDER.values(), ids=OLDER)


@pytest.fixture(scope="module")
def present() -> DescriptorPool:
    """The stubs as they are."""
    for path in (ROOT / "proto").glob("chatmesh/**/*.proto"):
        name = path.relative_to(ROOT / "proto").with_suffix("").as_posix().replace("/", ".")
        importlib.import_module(f"{name}_pb2")
    return descriptor_pool.Default()  # type: ignore[no-untyped-call]


@older
def test_bytes_of_the_older_version_are_read(path: Path, present: DescriptorPool) -> None:
    files = files_of(path)
    pool = pool_of(files)
    for name, descriptor in paired(files, pool, present).items():
        for number in range(INSTANCE_COUNT):
            rng = random.Random(f"{name}/{number}")
            old = filled(pool.FindMessageTypeByName(name), rng)
            new = message_factory.GetMessageClass(descriptor).FromString(old.SerializeToString())
            assert not difference(old, new)
            assert type(old).FromString(new.SerializeToString()) == old


@older
def test_the_older_version_reads_our_bytes(path: Path, present: DescriptorPool) -> None:
    files = files_of(path)
    pool = pool_of(files)
    for name, descriptor in paired(files, pool, present).items():
        for number in range(INSTANCE_COUNT):
            rng = random.Random(f"{name}/{number}")
            new = filled(descriptor, rng)
            old = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()
            old.ParseFromString(new.SerializeToString())
            assert not difference(old, new)


def _message(files: Files, package: str, name: str) -> Any:
    (file,) = [one for one in files.file if one.package == f"chatmesh.{package}.v1"]
    return next(one for one in file.message_type if one.name == name)


def _other_number(files: Files) -> None:
    _message(files, "tokenizer", "Message").field[1].number = 9


def _other_type(files: Files) -> None:
    field = _message(files, "inference", "Tokens").field[0]
    field.type = field.TYPE_STRING


def _other_presence(files: Files) -> None:
    field = _message(files, "inference", "SamplingParams").field[2]
    field.label = field.LABEL_REPEATED


def _a_message_more(files: Files) -> None:
    (file,) = [one for one in files.file if one.package == "chatmesh.safety.v1"]
    file.message_type.add(name="Halt")


def _a_method_more(files: Files) -> None:
    (file,) = [one for one in files.file if one.package == "chatmesh.tokenizer.v1"]
    file.service[0].method.add().CopyFrom(file.service[0].method[0])
    file.service[0].method[-1].name = "Guess"


def _another_value(files: Files) -> None:
    (file,) = [one for one in files.file if one.package == "chatmesh.billing.v1"]
    (tier,) = [one for one in file.enum_type if one.name == "Tier"]
    tier.value[1].number, tier.value[2].number = tier.value[2].number, tier.value[1].number


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_other_number, "tokenizer.v1.Message.content"),
        (_other_type, "inference.v1.Tokens.first_position"),
        (_other_presence, "inference.v1.SamplingParams.top_k"),
        (_a_message_more, "safety.v1.Halt is gone"),
        (_a_method_more, "TokenizerService/Guess is gone"),
        (_another_value, "TIER_FREE"),
    ],
)
def test_what_is_no_longer_readable_is_seen(
    change: Callable[[Files], None], told: str, present: DescriptorPool
) -> None:
    """Told by giving the older version something that the present one does not have."""
    files = files_of(OLDER["previous"])
    change(files)
    with pytest.raises(IncompatibleError, match=told):
        paired(files, pool_of(files), present)
