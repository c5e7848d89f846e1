"""Keys, page tokens, and checks of fields."""

import datetime as dt
import hashlib
import re
from collections.abc import Callable

import pytest
from google.protobuf import duration_pb2

from billing_svc import accounts, checks, usage_events
from billing_svc.accounts import Account, Key
from billing_svc.usage_events import BadEventError
from chatmesh.billing.v1 import billing_pb2 as pb
from mesh.chassis.errors import MeshError

NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
ACCOUNT = Account("acc_1", "n", 2, -1, NOW)
KEY = Key("key_1", "acc_1", "cm-4fA9", ("chat",), "k", NOW)
TURN = "01JD7Z6Z7W0000000000000000"


def test_a_secret_is_256_random_bits_and_only_its_digest_is_kept() -> None:
    secret = accounts.mint_secret()
    assert re.fullmatch(r"cm-[A-Za-z0-9_-]{49}", secret)
    assert secret != accounts.mint_secret()
    assert accounts.digest_of(secret) == hashlib.sha256(secret.encode()).digest()
    assert accounts.mint_secret(bytes(32)) == "cm-" + "A" * 43 + "I1CAUw"


@pytest.mark.parametrize(
    ("key", "account", "reason"),
    [
        ({}, {}, None),
        ({"expire_time": NOW + dt.timedelta(seconds=1)}, {}, None),
        ({"expire_time": NOW}, {}, "KEY_EXPIRED"),
        ({"revoke_time": NOW}, {}, "KEY_REVOKED"),
        ({"revoke_time": NOW, "expire_time": NOW}, {"close_time": NOW}, "KEY_REVOKED"),
        ({}, {"close_time": NOW}, "ACCOUNT_CLOSED"),
    ],
)
def test_when_a_key_no_longer_speaks(
    key: dict[str, dt.datetime], account: dict[str, dt.datetime], reason: str | None
) -> None:
    import dataclasses

    made = dataclasses.replace(KEY, **key), dataclasses.replace(ACCOUNT, **account)
    assert accounts.refusal(*made, NOW) == reason


@pytest.mark.parametrize(
    "check",
    [
        lambda: checks.turn_id("not-a-ulid"),
        lambda: checks.turn_id("8ZZZZZZZZZZZZZZZZZZZZZZZZZ"),  # over 128 bits
        lambda: checks.text("name", "x" * 201, 200),
        lambda: checks.text("name", "a\0b", 200),
        lambda: checks.text("name", "", 200, required=True),
        lambda: checks.lifetime(duration_pb2.Duration(nanos=1)),
        lambda: checks.lifetime(duration_pb2.Duration(seconds=3601)),
        lambda: checks.lifetime(duration_pb2.Duration(seconds=2**62)),
        lambda: checks.key_lifetime(duration_pb2.Duration(seconds=-1)),
        lambda: checks.key_lifetime(duration_pb2.Duration(seconds=2**62)),
        lambda: checks.period("2026-13", NOW),
        lambda: checks.period("2026-1", NOW),
        lambda: checks.period("november", NOW),
    ],
)
def test_bad_fields_are_named(check: Callable[[], object]) -> None:
    with pytest.raises(MeshError) as caught:
        check()
    assert caught.value.reason == "BAD_REQUEST"
    assert caught.value.metadata["field"]


def test_periods() -> None:
    assert checks.period("", NOW) == dt.date(2026, 11, 1)
    assert checks.period("2025-02", NOW) == dt.date(2025, 2, 1)
    east = dt.timezone(dt.timedelta(hours=9))
    assert checks.period("", dt.datetime(2026, 12, 1, 3, tzinfo=east)) == dt.date(2026, 11, 1)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"turn_id": "x"}, "turn_id"),
        ({"kind": 0}, "kind"),
        ({"kind": 9}, "kind"),
        ({"choice_index": 16}, "choice_index"),
        ({"first_position": 5, "end_position": 5}, "end_position"),
        ({"end_position": 2**32 - 1}, "end_position"),
    ],
)
def test_events_that_can_never_be_charged(changes: dict[str, object], field: str) -> None:
    values: dict[str, object] = {"turn_id": TURN, "kind": 3, "end_position": 5, **changes}
    data = pb.UsageEvent(**values).SerializeToString()  # type: ignore[arg-type]
    with pytest.raises(BadEventError) as caught:
        usage_events.parse(data)
    assert caught.value.field == field


def test_bytes_that_are_no_event() -> None:
    with pytest.raises(BadEventError):
        usage_events.parse(b"\xff\xff\xff")
    report, event_time = usage_events.parse(
        pb.UsageEvent(turn_id=TURN, kind="USAGE_KIND_OUTPUT", end_position=5).SerializeToString()
    )
    assert (report.usage.end, event_time) == (5, 0.0)
