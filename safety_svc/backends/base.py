"""What stands behind the rules: a classifier, wherever it runs.

    Backend                     asked over asyncio; what the service sees
    ├── ThreadBackend(Model)    a model in this process: ours, or a Hugging Face folder
    │   ├── ModelQueue          what waits for it, fair between accounts
    │   └── Conversations       a prompt in parts, and which of them were judged before
    └── GuardLlm                a guard model on an inference node

A model that gives no answer raises BackendError; what that means is the policy's to say.

    Exception
    └── BackendError            no answer
        └── OverloadedError     none in time: too many ask
"""

from collections.abc import Sequence
from typing import Protocol

from safety_svc.conversation import Found
from safety_svc.detectors.base import Audience, Finding, Turn


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

    def inspect_many(self, texts: Sequence[str], audience: Audience) -> Sequence[Sequence[Finding]]:
        """What is in each text, spans in bytes of it; must be a pure function of each text.

        All of a text is read, which may be as long as `conversation.LENGTH_MAX` and some more.
        """
        ...

    def lessened(self, finding: Finding, audience: Audience) -> Finding:
        """A finding in a text of `audience` as it counts in a message that weighs less."""
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

    async def inspect(self, text: str, audience: Audience, owner: str) -> Sequence[Finding]:
        """What is in a text, spans in bytes of it; raises BackendError.

        Args:
            text: a part of an answer.
            audience: who wrote it.
            owner: the account: what waits is fair between them.
        """
        ...

    async def conversation(self, turns: Sequence[Turn], owner: str) -> Found:
        """What is in a conversation, oldest turn first, and what of it was not read.

        Raises:
            BackendError: no answer; OverloadedError when too many ask.
        """
        ...

    async def close(self) -> None:
        """Ends it; nothing is on its way any more."""
        ...
