"""What is tried: every technique with its seeds, and its harmless twins. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from safety_svc.redteam import seeds
from safety_svc.redteam.seeds import Seed
from safety_svc.redteam.techniques.base import Messages, Technique
from safety_svc.redteam.techniques.catalogue import TECHNIQUES


@dataclass(frozen=True, slots=True)
class Attempt:
    """A technique with a seed."""

    technique: Technique
    seed: Seed

    @property
    def messages(self) -> Messages:
        """What is sent."""
        return self.technique.build(self.seed.words)


def attacks(names: Sequence[str] = (), seed_count_max: int = 1_000) -> list[Attempt]:
    """Every technique, or those of these names, with its seeds."""
    return [
        Attempt(one, seed)
        for one in _chosen(names)
        for seed in seeds.attacks(one.goal)[:seed_count_max]
    ]


def twins(names: Sequence[str] = (), seed_count_max: int = 1_000) -> list[Attempt]:
    """The same frames with harmless requests: what must go through."""
    return [
        Attempt(one, seed)
        for one in _chosen(names)
        if one.is_innocent
        for seed in seeds.twins(one.goal)[:seed_count_max]
    ]


def _chosen(names: Sequence[str]) -> list[Technique]:
    known = {one.name for one in TECHNIQUES}
    unknown = sorted(set(names) - known)
    if unknown:
        raise ValueError(f"no such technique: {', '.join(unknown)}; known: {sorted(known)}")
    return [one for one in TECHNIQUES if not names or one.name in names]
