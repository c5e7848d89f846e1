"""Deadlines are arithmetic."""

import contextvars

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.chassis import deadlines
from mesh.chassis.errors import MeshError


def in_call(remaining_s, *arguments):
    def enter_and_ask():
        deadlines.enter(remaining_s)
        return deadlines.timeout_for(*arguments)

    return contextvars.copy_context().run(enter_and_ask)


def test_outside_a_call_the_topology_decides():
    assert deadlines.timeout_for("m", None, 2.0) == 2.0


def test_a_tighter_wish_is_kept_and_a_looser_default_does_not_widen_it():
    assert deadlines.timeout_for("m", 0.5, 2.0) == 0.5


def test_an_unbounded_call_stays_unbounded():
    assert in_call(None, "m", None, None) is None


def test_a_slice_is_kept_back():
    assert in_call(1.0, "m", None, 30.0) == pytest.approx(0.95, abs=0.01)
    assert in_call(100.0, "m", None, 300.0) == pytest.approx(99.95, abs=0.01)


def test_too_little_is_refused_before_it_is_tried():
    with pytest.raises(MeshError) as caught:
        in_call(0.002, "m", None, 2.0)
    assert caught.value.reason == "DEADLINE_TOO_SHORT"


@given(
    remaining=st.floats(0.01, 1e4),
    wanted=st.none() | st.floats(0.01, 1e4),
    default=st.none() | st.floats(0.01, 1e4),
)
def test_never_longer_than_any_bound(remaining, wanted, default):
    try:
        timeout = in_call(remaining, "m", wanted, default)
    except MeshError:
        return
    assert timeout < remaining
    assert wanted is None or timeout <= wanted
    assert wanted is not None or default is None or timeout <= default
