"""What stands behind the rules: a classifier, wherever it runs.

    Backend                     asked over asyncio; what the service sees
    ├── ThreadBackend(Model)    a model in this process: ours, or a Hugging Face folder
    └── GuardLlm                a guard model on an inference node

A model that gives no answer raises BackendError; what that means is the policy's to say.

    Exception
    └── BackendError            no answer
        └── OverloadedError     none in time: too many ask
"""

from collections.abc import Sequence
from typing import Protocol

from safety_svc.detectors.base import Audience, Finding, PromptFinding, Turn


class BackendError(Exception):
    """No answer: it is away, overloaded, too slow, or said nothing that can be read."""


class OverloadedError(BackendError):
    """It was not asked, or did not come to its turn in time: too many others ask."""


class Model(Protocol):
    """A classifier in this process. Called from worker threads, from several at once.

    Attributes:
        name: for metrics and the audit.
        digest: which weights, lower-case hex; for the audit.
        short_length: texts of so many characters in all take it a millisecond or two; 0: no text.
    """

    name: str
    digest: str
    short_length: int

    def clears(self, text: str, audience: Audience) -> bool:
        """True where `inspect_many` would find nothing and that shows within microseconds."""
        ...

    def clears_conversation(self, turns: Sequence[Turn]) -> bool:
        """True where `conversation` would find nothing and that shows within microseconds."""
        ...

    def inspect_many(self, texts: Sequence[str], audience: Audience) -> Sequence[Sequence[Finding]]:
        """What is in each text, spans in bytes of it; must be a pure function of each text."""
        ...

    def conversation(self, turns: Sequence[Turn]) -> Sequence[PromptFinding]:
        """What is in a conversation, oldest turn first."""
        ...


class Backend(Protocol):
    """A classifier behind asyncio.

    Attributes:
        name: for metrics and the audit.
        digest: which weights, lower-case hex; for the audit.
        stride_min: fewest characters of an answer between two looks, at least 1.
    """

    name: str
    digest: str
    stride_min: int

    def clears(self, text: str, audience: Audience) -> bool:
        """True where `inspect` would find nothing and that shows at once, where it is asked."""
        ...

    async def inspect(self, text: str, audience: Audience) -> Sequence[Finding]:
        """What is in a text, spans in bytes of it; raises BackendError."""
        ...

    async def conversation(self, turns: Sequence[Turn]) -> Sequence[PromptFinding]:
        """What is in a conversation, oldest turn first; raises BackendError."""
        ...

    async def close(self) -> None:
        """Ends it; nothing is on its way any more."""
        ...


def latest_first(turns: Sequence[Turn], length_max: int) -> list[tuple[int, str]]:
    """(index, text) of a conversation's turns, the latest first, up to `length_max` characters.

    For models that read one text at a time; the turn that passes the limit keeps its end.
    """
    result: list[tuple[int, str]] = []
    left = length_max
    for index in range(len(turns) - 1, -1, -1):
        if left <= 0:
            break
        text = turns[index].text[-left:]
        if text.strip():
            result.append((index, text))
        left -= len(text)
    return result
