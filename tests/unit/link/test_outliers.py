"""Instances that fail nearly all calls are left alone for a while, never more than half of them."""

import contextlib

import grpc
import pytest

from mesh.chassis.errors import MeshError
from mesh.chassis.link.outliers import CALL_COUNT_MIN, EJECTION_S, INTERVAL_S, Outliers
from tests.support.control_plane import until
from tests.support.linked import method, toy_channel


def interval(outliers, begin, **ok_of):
    for name, is_ok in ok_of.items():
        for _ in range(CALL_COUNT_MIN):
            outliers.note(name, is_ok, begin)


def test_a_failing_instance_is_left_out_and_comes_back():
    outliers = Outliers()
    interval(outliers, 1.0, a=True, b=False, c=True)
    assert outliers.usable(["a", "b", "c"]) == ["a", "b", "c"]
    after = 1.0 + INTERVAL_S
    outliers.note("a", True, after)
    assert outliers.usable(["a", "b", "c"]) == ["a", "c"]
    outliers.note("a", True, after + EJECTION_S)
    assert outliers.usable(["a", "b", "c"]) == ["a", "b", "c"]


def test_the_second_time_it_is_left_out_longer():
    outliers = Outliers()
    interval(outliers, 0.0, a=True, b=False)
    interval(outliers, INTERVAL_S, a=True, b=False)
    twice = 2 * INTERVAL_S
    outliers.note("a", True, twice)
    outliers.note("a", True, twice + EJECTION_S + 0.1)
    assert outliers.usable(["a", "b"]) == ["a"]
    outliers.note("a", True, twice + 2 * EJECTION_S)
    assert outliers.usable(["a", "b"]) == ["a", "b"]


def test_half_of_them_stay_whatever_happens():
    outliers = Outliers()
    interval(outliers, 0.0, a=False, b=False, c=False, d=False)
    outliers.note("a", False, INTERVAL_S)
    assert outliers.usable(["a", "b", "c", "d"]) == ["c", "d"]
    assert outliers.usable(["a"]) == ["a"]


def test_few_calls_and_lone_instances_say_nothing():
    few = Outliers()
    for _ in range(CALL_COUNT_MIN - 1):
        few.note("a", False, 0.0)
        few.note("b", True, 0.0)
    few.note("b", True, INTERVAL_S)
    assert few.usable(["a", "b"]) == ["a", "b"]
    lone = Outliers()
    interval(lone, 0.0, a=False)
    lone.note("a", False, INTERVAL_S)
    assert lone.usable(["a"]) == ["a"]


@pytest.mark.parametrize(
    ("code", "is_ok"),
    [
        (grpc.StatusCode.NOT_FOUND, True),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, True),
        (grpc.StatusCode.INTERNAL, False),
        (grpc.StatusCode.UNAVAILABLE, False),
    ],
)
async def test_what_is_asked_for_in_vain_is_no_fault_of_the_instance(
    tmp_path, monkeypatch, code, is_ok
):
    """Or a flood of unknown keys would take the instances out that say so."""
    noted = []
    monkeypatch.setattr(Outliers, "note", lambda _, name, is_ok, now: noted.append(is_ok))

    async def refuse(request, context):
        raise MeshError(code, "NO", "No.")

    async with toy_channel("link", tmp_path, {"Ask": ("unary_unary", refuse)}) as (_, channel):

        async def is_noted():
            with contextlib.suppress(grpc.aio.AioRpcError):
                await method(channel, "unary_unary", "Ask")(b"")
            return noted

        await until(is_noted, "a call went over a link")
    assert set(noted) == {is_ok}
