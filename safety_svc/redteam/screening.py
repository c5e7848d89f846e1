"""Screens messages as ScreenPrompt does, without a mesh: the shipped policy, rules, classifier."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from safety_svc.classifier.labels import ATTACKS
from safety_svc.detectors.base import Audience, Category, PromptFinding, Turn
from safety_svc.detectors.kinds import KINDS
from safety_svc.policy import HALTING
from safety_svc.policy_source import Published, published
from safety_svc.prompt import PromptScreener, screened
from safety_svc.settings import POLICY

# The tier of a stranger who pays: the shipped policy lets enterprises and administrators do more.
TIER = "pro"
_AUDIENCES = {
    "system": Audience.SYSTEM,
    "user": Audience.USER,
    "assistant": Audience.ASSISTANT,
    "tool": Audience.TOOL,
}


class Judge(Protocol):
    """The part of `backends.base.Model` that prompts need; `digest` is of the weights."""

    digest: str

    def conversation(self, turns: Sequence[Turn]) -> Sequence[PromptFinding]:
        """What is in a conversation."""
        ...


@dataclass(frozen=True, slots=True)
class Look:
    """What the screen said.

    Attributes:
        is_refused: the request is refused, for whatever reason.
        is_for_harm: it is refused for the harm in it, and not only for the attack around it.
        category: the one that decided; None when nothing was done.
        harm: highest score of a harm, 0 where none is reported, range [0, 1].
    """

    is_refused: bool
    is_for_harm: bool
    category: Category | None
    harm: float


class Screen:
    """The prompt screen.

    Args:
        policy: a checked policy with its detectors.
        classifier: None leaves the rules alone.
    """

    def __init__(self, policy: Published, classifier: Judge | None) -> None:
        self._policy, self._classifier = policy, classifier
        self._regime = policy.policy.regime(TIER)
        self.version = policy.policy.version
        self.digest = classifier.digest if classifier else ""

    @classmethod
    def shipped(cls, weights: Path | None = None) -> "Screen":
        """With what ships: policy, rules, classifier; or with the weights of another folder."""
        from safety_svc.classifier.model import load, shipped

        policy = published(POLICY.read_text(encoding="utf-8"), POLICY.name)
        return cls(policy, load(weights) if weights else shipped())

    def look(self, messages: Sequence[Mapping[str, str]]) -> Look:
        """What becomes of a chat request with these messages.

        What stands as a system message is the operator's prompt, which attacks are kept off.
        """
        turns = [Turn(_AUDIENCES[one["role"]], one["content"]) for one in messages]
        found = self._classifier.conversation(turns) if self._classifier else None
        guarded = any(turn.audience is Audience.SYSTEM for turn in turns)
        screener = screened(self._regime, self._policy.detectors, turns, found, guarded=guarded)
        judgement, _ = screener.end()
        harms = [one for one in screener.found if _is_harm(one)]
        is_refused = judgement.action in HALTING
        return Look(
            is_refused=is_refused,
            is_for_harm=is_refused and (judgement.category not in ATTACKS or self._halts(screener)),
            category=judgement.category,
            harm=max((one.finding.score for one in harms), default=0.0),
        )

    def blocks(self, messages: Sequence[Mapping[str, str]]) -> bool:
        """Whether a chat request with these messages is refused."""
        return self.look(messages).is_refused

    def _halts(self, screener: PromptScreener) -> bool:
        """Whether a harm alone would refuse, where an attack was named as the reason."""
        return any(
            self._regime.halts(screener.directions[one.message_index], one.finding)
            for one in screener.found
            if _is_harm(one)
        )


def _is_harm(found: PromptFinding) -> bool:
    finding = found.finding
    return finding.category not in ATTACKS and finding.detector not in KINDS
