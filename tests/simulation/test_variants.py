"""Broken on purpose, and caught: the simulation is known to see."""

import pytest

from tests.simulation.simulate import simulate
from tests.simulation.variants import VARIANTS

# Seeds within which each is caught.
SEED_COUNT_MAX = {
    "settle-before-append": 1000,
    "off-by-one": 800,
    "stop-not-remembered": 800,
    "adoption-without-compare": 600,
    "shown-before-journaled": 400,
    "end-not-held-back": 400,
    "no-fence": 400,
    "no-own-orphans": 300,
}
SEED_COUNT_MAX_DEFAULT = 150


@pytest.mark.parametrize("name", VARIANTS)
def test_a_broken_variant_is_caught(name):
    count = SEED_COUNT_MAX.get(name, SEED_COUNT_MAX_DEFAULT)
    for seed in range(count):
        if simulate(seed, VARIANTS[name], name=name).violations:
            return
    pytest.fail(f"{name} breaks no law within {count} seeds: the simulation is blind to it")


def test_there_are_enough_of_them():
    assert len(VARIANTS) >= 10
    assert set(SEED_COUNT_MAX) <= set(VARIANTS)
