"""All attempts against the prompt screen alone, in this process: a version in a minute or two.

No model answers here, so that "caught" is all that can be said: the request was refused for the
harm in it (for planted instructions and extraction: refused). What passes may still be declined
by the model or cut while it streams; the running mesh shows that.
"""

import random
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from safety_svc.redteam import seeds
from safety_svc.redteam.attempts import Attempt
from safety_svc.redteam.screening import Screen
from safety_svc.redteam.search import CHANGES, FRAMES, search
from safety_svc.redteam.techniques.base import Goal, user

SEARCH = "adaptive_search"
BUDGET = 40
# How many changes at random the harmless twins of a search get.
_TWIN_CHANGE_COUNT = 3


@dataclass(slots=True)
class Tally:
    """Attempts of one technique: how many, refused for what they are after, refused at all."""

    tries: int = 0
    caught: int = 0
    refused: int = 0

    def add(self, *, caught: bool, refused: bool) -> None:
        """Counts one attempt."""
        self.tries += 1
        self.caught += caught
        self.refused += refused


def screened(screen: Screen, attempts: Iterable[Attempt]) -> dict[str, Tally]:
    """A tally for each technique."""
    found: dict[str, Tally] = {}
    for attempt in attempts:
        look = screen.look(attempt.messages)
        is_harmful = attempt.technique.goal is Goal.HARMFUL
        found.setdefault(attempt.technique.name, Tally()).add(
            caught=look.is_for_harm if is_harmful else look.is_refused, refused=look.is_refused
        )
    return found


def searched(screen: Screen, budget: int = BUDGET) -> tuple[Tally, Mapping[str, float]]:
    """Adaptive search for every harmful seed: the tally, and how many tries a success took."""
    tally, tries = Tally(), []

    def score(text: str) -> float | None:
        look = screen.look(user(text))
        return look.harm if look.is_refused else None

    for number, seed in enumerate(seeds.attacks(Goal.HARMFUL)):
        found = search(seed.words["en"], score, budget, random.Random(number))
        tally.add(caught=found.passed is None, refused=found.passed is None)
        if found.passed is not None:
            tries.append(found.tries)
    return tally, {"budget": budget, "median_tries": statistics.median(tries) if tries else 0}


def searched_twins(screen: Screen) -> Tally:
    """Harmless requests changed as a search changes them."""
    tally = Tally()
    for number, seed in enumerate(seeds.twins(Goal.HARMFUL)):
        rng = random.Random(number)
        for frame in FRAMES:
            text = seed.words["en"]
            for _ in range(_TWIN_CHANGE_COUNT):
                text = rng.choice(CHANGES)(text, rng)
            refused = screen.blocks(user(frame.format(text)))
            tally.add(caught=False, refused=refused)
    return tally
