"""The schedule of blows: seeded, fair, and never both of two twins at once."""

import itertools
from collections import Counter

import pytest

from tests.chaos.schedule import PAUSE_S, REST_S, kind_of, schedule

PROCESSES = {
    "gateway": ["gateway-1", "gateway-2"],
    "envoy": ["envoy"],
    "redis": ["redis"],
    "postgres": ["postgres"],
    "inference": ["inference-1", "inference-2"],
    "safety": ["safety-1"],
    "billing": ["billing-1"],
    "conversation": ["conversation-1"],
    "tokenizer": ["tokenizer-1"],
    "edge": ["edge-1"],
    "control": ["control-1"],
}
SEEDS = range(20)


def test_the_same_seed_gives_the_same_blows_and_another_seed_others():
    one = schedule(7, 120, 2, PROCESSES)
    assert one == schedule(7, 120, 2, dict(reversed(PROCESSES.items())))
    assert one != schedule(8, 120, 2, PROCESSES)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_kind_has_its_turn_at_about_the_interval(seed):
    blows = schedule(seed, 600, 2, PROCESSES)
    assert 270 <= len(blows) <= 330
    counts = Counter(blow.kind for blow in blows)
    assert set(counts) == set(PROCESSES)
    assert min(counts.values()) >= 0.8 * max(counts.values())
    assert {blow.process for blow in blows} == {
        name for all_ in PROCESSES.values() for name in all_
    }
    assert all(0 < blow.at_s < 600 for blow in blows)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_kind_has_time_to_come_back(seed):
    over_s: dict[str, float] = {}
    for blow in schedule(seed, 600, 2, PROCESSES):
        assert blow.at_s >= over_s.get(blow.kind, 0.0) - 0.01
        over_s[blow.kind] = blow.at_s + blow.pause_s + REST_S


def test_a_single_kind_is_struck_no_sooner_than_it_may():
    blows = schedule(1, 100, 2, {"gateway": ["gateway-1", "gateway-2"]}, pause_share=0)
    gaps = [b.at_s - a.at_s for a, b in itertools.pairwise(blows)]
    assert min(gaps) >= REST_S
    assert max(gaps) <= REST_S + 2 * 1.25 + 0.01


def test_the_share_of_pauses():
    blows = schedule(3, 6000, 2, PROCESSES, pause_share=0.25)
    pauses = [blow.pause_s for blow in blows if blow.how == "pause"]
    assert 0.2 < len(pauses) / len(blows) < 0.3
    assert min(pauses) >= PAUSE_S[0]
    assert max(pauses) <= PAUSE_S[1]
    assert not any(blow.pause_s for blow in schedule(3, 600, 2, PROCESSES, pause_share=0))


@pytest.mark.parametrize(
    ("process", "kind"), [("gateway-2", "gateway"), ("envoy", "envoy"), ("edge-1", "edge")]
)
def test_kinds(process, kind):
    assert kind_of(process) == kind
