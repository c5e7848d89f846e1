"""Screens messages as ScreenPrompt does, without a mesh: the shipped policy, rules, classifier."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from safety_svc.detectors.base import Audience, PromptFinding, Turn
from safety_svc.policy import HALTING
from safety_svc.policy_source import Published, published
from safety_svc.prompt import screened
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
    """The part of `backends.base.Model` that prompts need."""

    def conversation(self, turns: Sequence[Turn]) -> Sequence[PromptFinding]:
        """What is in a conversation."""
        ...


class Screen:
    """The prompt screen.

    Args:
        policy: a checked policy with its detectors.
        classifier: None leaves the rules alone.
    """

    def __init__(self, policy: Published, classifier: Judge | None) -> None:
        self._policy, self._classifier = policy, classifier
        self._regime = policy.policy.regime(TIER)

    @classmethod
    def shipped(cls) -> "Screen":
        """With what ships: policy, rules, classifier."""
        from safety_svc.classifier.model import shipped

        return cls(published(POLICY.read_text(encoding="utf-8"), POLICY.name), shipped())

    def blocks(self, messages: Sequence[Mapping[str, str]]) -> bool:
        """Whether a chat request with these messages is refused."""
        turns = [Turn(_AUDIENCES[one["role"]], one["content"]) for one in messages]
        found = self._classifier.conversation(turns) if self._classifier else None
        judgement, _ = screened(self._regime, self._policy.detectors, turns, found).end()
        return judgement.action in HALTING
