"""What should go on as long as the process never ends in silence."""

import asyncio
import datetime

import pytest

from mesh.chassis import identity
from mesh.chassis.background import AGAIN_S_MAX, ENDS_MAX, SETTLED_AFTER_S, GiveUpError, kept
from mesh.chassis.identity import CertificateExpiredError, keep_renewed
from mesh.chassis.lease import Lease
from mesh.chassis.node import Node, chassis_work
from mesh.chassis.settings import NodeSettings
from tests.support.pki import TestMesh

HOUR = datetime.timedelta(hours=1)


class Clock:
    """A monotonic clock that stands still unless somebody sleeps, and a wall clock beside it."""

    def __init__(self, wall: datetime.datetime | None = None) -> None:
        self.now_s = 0.0
        self.wall = wall or identity.utc_now()
        self.slept: list[float] = []
        # Seconds of sleep after which the machine is suspended, and for how long.
        self.suspend_at_s: float | None = None
        self.suspended = datetime.timedelta()

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds
        self.wall += datetime.timedelta(seconds=seconds)
        if self.suspend_at_s is not None and self.now_s >= self.suspend_at_s:
            self.suspend_at_s = None
            self.wall += self.suspended
        await asyncio.sleep(0)


async def test_work_that_ends_is_begun_again_later_each_time():
    clock, begun = Clock(), 0

    async def work():
        nonlocal begun
        begun += 1
        if begun % 2:
            raise OSError(28, "No space left on device")

    with pytest.raises(GiveUpError, match="the_work ended 7 times in a row"):
        await kept("the_work", work, clock=clock, sleep=clock.sleep)
    assert begun == ENDS_MAX
    assert clock.slept == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2]


async def test_ends_that_lie_far_apart_are_borne_for_ever():
    clock, begun = Clock(), 0

    async def work():
        nonlocal begun
        begun += 1
        if begun == 5 * ENDS_MAX:
            raise GiveUpError("enough")
        clock.now_s += SETTLED_AFTER_S + 1
        raise RuntimeError

    with pytest.raises(GiveUpError, match="enough"):
        await kept("the_work", work, clock=clock, sleep=clock.sleep)
    assert set(clock.slept) == {0.1}


async def test_work_without_a_bound_is_never_given_up():
    clock, begun = Clock(), 0

    async def work():
        nonlocal begun
        begun += 1
        if begun == 10 * ENDS_MAX:
            raise asyncio.CancelledError
        raise OSError

    with pytest.raises(asyncio.CancelledError):
        await kept("the_work", work, ends_max=None, clock=clock, sleep=clock.sleep)
    assert clock.slept[-1] == AGAIN_S_MAX


def node_of(tmp_path):
    settings = NodeSettings(
        service="tokenizer",
        instance="tokenizer-1",
        control_address="127.0.0.1:1",
        join_token="",
        trust_bundle=tmp_path,
        state_dir=tmp_path,
        drain_grace_s=3600,
    )
    own = TestMesh(tmp_path / "mesh").identity("tokenizer")
    held = Lease(settings.control_address, own, None)
    return Node(settings, own, held), chassis_work(settings, own, held)


WORKS = ("lease", "renewal", "loop_lag")


def test_the_chassis_keeps_no_other_work(tmp_path):
    _, works = node_of(tmp_path)
    assert tuple(works) == WORKS, "name the new one in WORKS, so that its end is tested"


@pytest.mark.parametrize("name", WORKS)
@pytest.mark.parametrize("way", ["raises", "returns"])
async def test_a_process_whose_work_cannot_go_on_leaves_and_ends(tmp_path, monkeypatch, name, way):
    monkeypatch.setattr("mesh.chassis.background.AGAIN_S_MIN", 0)
    node, works = node_of(tmp_path)

    async def broken():
        if way == "raises":
            raise OSError(28, "No space left on device")

    async def well():
        await asyncio.Event().wait()

    async with node.keeping(**dict.fromkeys(works, well) | {name: broken}):
        await node.stopping.wait()
    assert node.draining.is_set(), "it must leave the balancing"
    assert name in node.failure


async def test_one_full_disk_does_not_end_renewal(tmp_path, monkeypatch):
    mesh = TestMesh(tmp_path)
    own, attempts = mesh.identity("tokenizer"), 0
    clock = Clock()

    async def renew(*_):
        nonlocal attempts
        attempts += 1
        if attempts <= 3:
            raise OSError(28, "No space left on device")
        if attempts > 4:
            raise asyncio.CancelledError
        mesh.identity("tokenizer")
        clock.wall = identity.utc_now()

    monkeypatch.setattr(identity, "renew", renew)
    with pytest.raises(asyncio.CancelledError):
        await keep_renewed("", own, tmp_path, now=lambda: clock.wall, sleep=clock.sleep)
    assert attempts == 5


def test_a_version_that_could_not_be_written_leaves_nothing(tmp_path, monkeypatch):
    mesh = TestMesh(tmp_path)
    own = mesh.identity("tokenizer")
    before = own.certificate.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(identity.os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        mesh.identity("tokenizer")
    monkeypatch.undo()
    assert own.certificate.read_bytes() == before
    assert [path.name for path in (tmp_path / "tokenizer" / "identity.d").iterdir()] == ["1"]


async def test_a_machine_that_slept_past_the_half_renews_when_it_wakes(tmp_path, monkeypatch):
    own = TestMesh(tmp_path).identity("tokenizer")
    begin, _ = own.validity()
    clock = Clock(begin)
    clock.suspend_at_s, clock.suspended = 10, 0.7 * HOUR
    renewed_at = []

    async def renew(*_):
        renewed_at.append(clock.wall - begin)
        raise asyncio.CancelledError

    monkeypatch.setattr(identity, "renew", renew)
    with pytest.raises(asyncio.CancelledError):
        await keep_renewed("", own, tmp_path, now=lambda: clock.wall, sleep=clock.sleep)
    # Longer asleep than half of the life, and no more than a few seconds after it.
    assert clock.now_s < 15
    assert renewed_at[0] < 0.71 * HOUR


@pytest.mark.parametrize("jump", [3 * HOUR, -3 * HOUR])
async def test_a_certificate_that_is_not_valid_any_more_ends_the_process(tmp_path, jump):
    own = TestMesh(tmp_path).identity("tokenizer")
    clock = Clock()
    clock.suspend_at_s, clock.suspended = 10, jump
    with pytest.raises(CertificateExpiredError):
        await keep_renewed("", own, tmp_path, now=lambda: clock.wall, sleep=clock.sleep)
    assert clock.now_s < 15
