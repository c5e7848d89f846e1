"""Leases: who holds a name, when it is lost, what survives."""

import dataclasses

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from mesh.control import registry
from mesh.control.registry import Instance, InstanceTakenError, Registry, State

TTL_S = 3.0


def instance(name="inference-1", pid=1, state=State.SERVING, **fields) -> Instance:
    service = name.rpartition("-")[0]
    return Instance(service, name, "127.0.0.1:1000", pid, state, **fields)


@pytest.fixture
def leases():
    return Registry(TTL_S)


def test_registration_keeps_its_time_over_renewals(leases):
    assert leases.renew(instance(), 1, 0.0, 100.0)
    assert not leases.renew(instance(), 1, 1.0, 101.0)
    assert leases.get("inference-1").register_time_s == 100.0


def test_a_changed_state_is_a_change(leases):
    leases.renew(instance(state=State.STARTING), 1, 0.0, 0.0)
    assert leases.renew(instance(state=State.SERVING), 1, 0.0, 0.0)


def test_an_instance_leaves_with_its_stream(leases):
    leases.renew(instance(), 1, 0.0, 0.0)
    assert leases.release("inference-1", 1)
    assert leases.instances() == ()


def test_the_end_of_a_replaced_stream_changes_nothing(leases):
    leases.renew(instance(), 1, 0.0, 0.0)
    leases.renew(instance(), 2, 0.0, 0.0)
    assert not leases.release("inference-1", 1)
    assert leases.holds("inference-1", 2)


def test_silence_ends_a_lease_exactly_at_its_time(leases):
    leases.renew(instance(), 1, 10.0, 0.0)
    assert leases.expire(10.0 + TTL_S - 0.001) == ()
    assert leases.expire(10.0 + TTL_S) == ("inference-1",)
    assert not leases.holds("inference-1", 1)


def test_another_process_cannot_take_a_live_name(leases):
    leases.renew(instance(pid=1), 1, 0.0, 0.0)
    with pytest.raises(InstanceTakenError, match="process 1 holds inference-1"):
        leases.renew(instance(pid=2), 2, 0.0, 0.0)
    leases.release("inference-1", 1)
    assert leases.renew(instance(pid=2), 2, 0.0, 0.0)


def test_another_service_cannot_take_a_name(leases):
    leases.restore([instance()], 5.0)
    with pytest.raises(InstanceTakenError):
        leases.renew(dataclasses.replace(instance(), service="gateway"), 2, 0.0, 0.0)


def test_restored_instances_stay_for_the_grace_period(leases):
    leases.restore([instance("inference-1"), instance("inference-2", pid=2)], 5.0)
    assert len(leases.instances()) == 2
    assert leases.renew(instance("inference-1"), 1, 4.0, 0.0) is False
    assert leases.expire(5.0) == ("inference-2",)
    assert leases.holds("inference-1", 1)


def test_a_successor_takes_over_from_a_restored_instance(leases):
    leases.restore([instance(pid=1)], 5.0)
    assert leases.renew(instance(pid=2), 1, 1.0, 0.0)
    assert leases.get("inference-1").pid == 2


def test_drain_shows_at_once_and_ends_with_the_process(leases):
    leases.renew(instance(), 1, 0.0, 0.0)
    assert leases.drain("inference-1")
    assert not leases.drain("inference-1")
    assert leases.get("inference-1").effective_state is State.DRAINING
    leases.renew(instance(), 1, 1.0, 0.0)
    assert leases.get("inference-1").effective_state is State.DRAINING
    leases.release("inference-1", 1)
    leases.renew(instance(pid=2), 2, 2.0, 0.0)
    assert leases.get("inference-1").effective_state is State.SERVING


def test_in_containers_every_process_is_number_one():
    """What tells them apart is drawn at random when each begins."""
    leases = Registry(TTL_S)
    first, second = (instance(pid=1, incarnation=word) for word in ("first", "second"))
    leases.renew(first, 1, 0.0, 10.0)
    leases.drain("inference-1")
    # The same process on a new stream: its lease, and that it is to drain, stay.
    leases.renew(first, 2, 0.1, 20.0)
    assert (leases.get("inference-1").drain, leases.get("inference-1").register_time_s) == (
        True,
        10,
    )
    # Another one does not get a lease that is held,
    with pytest.raises(InstanceTakenError):
        leases.renew(second, 3, 0.2, 30.0)
    # nor, when its time has come, what the operator asked of the one before.
    leases.release("inference-1", 2)
    leases.renew(second, 3, 0.3, 30.0)
    assert not leases.get("inference-1").drain
    # Also after a restart of the control plane, which remembers what was.
    again = Registry(TTL_S)
    again.restore(registry.parse(registry.dump(leases.instances(), 1))[0], 5.0)
    again.drain("inference-1")
    again.renew(instance(pid=1, incarnation="third"), 1, 1.0, 40.0)
    assert (again.get("inference-1").drain, again.get("inference-1").register_time_s) == (False, 40)


def test_a_process_of_an_older_version_is_known_by_its_pid():
    leases = Registry(TTL_S)
    leases.renew(instance(pid=1), 1, 0.0, 0.0)
    leases.renew(instance(pid=1), 2, 0.1, 0.0)
    with pytest.raises(InstanceTakenError):
        leases.renew(instance(pid=1, incarnation="new"), 3, 0.2, 0.0)


def test_drain_of_nobody_is_told(leases):
    with pytest.raises(KeyError):
        leases.drain("inference-9")


def test_a_draining_instance_that_starts_is_still_starting():
    assert instance(state=State.STARTING, drain=True).effective_state is State.STARTING


def test_the_number_of_instances_is_bounded(leases, monkeypatch):
    monkeypatch.setattr(registry, "INSTANCES_MAX", 1)
    leases.renew(instance("inference-1"), 1, 0.0, 0.0)
    leases.renew(instance("inference-1"), 1, 0.0, 0.0)
    with pytest.raises(registry.TooManyInstancesError):
        leases.renew(instance("inference-2"), 2, 0.0, 0.0)


def test_what_is_dumped_is_parsed():
    kept = (instance("inference-1", drain=True), instance("safety-1", state=State.DRAINING))
    assert registry.parse(registry.dump(kept, 7)) == (kept, 7)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"instances": [1], "snapshot_version": 1}',
             '{"instances": [{"state": "x"}], "snapshot_version": 1}']
)  # fmt: skip
def test_a_damaged_file_is_told(text):
    with pytest.raises(ValueError, match=r"."):
        registry.parse(text)


class LeaseMachine(RuleBasedStateMachine):
    """Any order of renewals, releases and silences, against a model of who must be there."""

    streams = Bundle("streams")

    def __init__(self):
        super().__init__()
        self.leases, self.now, self.next_holder = Registry(TTL_S), 0.0, 1
        self.model: dict[str, tuple[int, int, float]] = {}

    @rule(
        target=streams, name=st.sampled_from(["inference-1", "inference-2"]), pid=st.integers(1, 3)
    )
    def open(self, name, pid):
        holder, self.next_holder = self.next_holder, self.next_holder + 1
        self.renew((name, pid, holder))
        return name, pid, holder

    @rule(stream=streams)
    def renew(self, stream):
        name, pid, holder = stream
        held = self.model.get(name)
        if held is not None and held[0] != pid:
            with pytest.raises(InstanceTakenError):
                self.leases.renew(instance(name, pid), holder, self.now, 0.0)
        else:
            self.leases.renew(instance(name, pid), holder, self.now, 0.0)
            self.model[name] = pid, holder, self.now + TTL_S

    @rule(stream=streams)
    def release(self, stream):
        name, _, holder = stream
        if self.leases.release(name, holder):
            assert self.model.pop(name)[1] == holder

    @rule(seconds=st.sampled_from([0.5, 1.0, TTL_S]))
    def wait(self, seconds):
        self.now += seconds
        silent = {name for name, (_, _, expiry) in self.model.items() if expiry <= self.now}
        assert set(self.leases.expire(self.now)) == silent
        for name in silent:
            del self.model[name]

    @invariant()
    def as_the_model_says(self):
        assert {(one.name, one.pid) for one in self.leases.instances()} == {
            (name, pid) for name, (pid, _, _) in self.model.items()
        }
        assert all(self.leases.holds(name, held[1]) for name, held in self.model.items())


TestLeases = LeaseMachine.TestCase
