"""Who is struck, when, and how. Pure: the same seed gives the same schedule."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

How = Literal["kill", "pause"]
# A second blow at the same kind comes no sooner: with both of two twins gone there is nobody left,
# and that is another experiment.
REST_S = 10.0
PAUSE_S = (1.0, 3.0)
JITTER = 0.25


@dataclass(frozen=True)
class Blow:
    """One process is killed (kill -9) or paused (SIGSTOP, later SIGCONT).

    Attributes:
        at_s: seconds since the beginning.
        kind: what dies, such as "gateway".
        process: which of them, such as "gateway-2".
        pause_s: how long it is paused; 0: killed.
    """

    at_s: float
    kind: str
    process: str
    pause_s: float = 0.0

    @property
    def how(self) -> How:
        """ "kill" or "pause"."""
        return "pause" if self.pause_s else "kill"


def kind_of(process: str) -> str:
    """ "gateway" for "gateway-2"."""
    name, dash, number = process.rpartition("-")
    return name if dash and number.isdigit() else process


def schedule(
    seed: int,
    seconds: float,
    interval_s: float,
    processes: Mapping[str, Sequence[str]],
    pause_share: float = 0.25,
) -> tuple[Blow, ...]:
    """Blows at about every interval_s until `seconds`.

    Kinds are drawn from a bag that is filled again when it is empty, so that every kind has its
    turn. Where every kind in it must rest, a blow is left out.

    Args:
        seed: decides everything.
        seconds: length of the experiment.
        interval_s: mean time between two blows.
        processes: names of the processes by kind, none of them empty.
        pause_share: share of the blows that only pause.
    """
    rng = random.Random(f"schedule {seed}")
    blows: list[Blow] = []
    bag: list[str] = []
    rested_at_s: dict[str, float] = {}
    at_s = interval_s
    while at_s < seconds:
        bag = bag or rng.sample(sorted(processes), len(processes))
        kind = next((kind for kind in bag if rested_at_s.get(kind, 0.0) <= at_s), None)
        if kind is not None:
            bag.remove(kind)
            process = rng.choice(sorted(processes[kind]))
            pause_s = rng.uniform(*PAUSE_S) if rng.random() < pause_share else 0.0
            blows.append(Blow(round(at_s, 3), kind, process, round(pause_s, 3)))
            rested_at_s[kind] = at_s + pause_s + REST_S
        at_s += interval_s * rng.uniform(1 - JITTER, 1 + JITTER)
    return tuple(blows)
