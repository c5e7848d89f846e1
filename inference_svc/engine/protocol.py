"""What every engine is: token ids in, token ids out, cancel, load.

    request ──submit──> engine ──TokenDelta, …, the last with `finish`──> TokenStream

The service knows only this file. An engine is chosen by name in `inference_svc.engine.choose`;
the one that needs torch is imported only when it is chosen.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from inference_svc.engine.stream import TokenStream

BLOCK_TOKEN_COUNT = 16  # tokens of one KV-cache block, on every engine


class FinishReason(Enum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is drawn; ranges as in inference.proto, already checked.

    `seed` keys the counter-based generator: a token is a function of the logits, this seed and
    its position, and of nothing else.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class StopRule:
    """Where an answer ends: at one of these tokens, before one of these texts, or at the length.

    `max_token_count` counts the whole answer, tokens of earlier attempts included.
    """

    max_token_count: int
    token_ids: frozenset[int] = frozenset()
    strings: tuple[str, ...] = ()


class FormatKind(Enum):
    """What an answer can be held to."""

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    CALLS = "calls"


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How tool calls are written; see content.v1.CallSyntax."""

    before_calls: str
    before_name: str
    before_arguments: str
    after_arguments: str
    between_calls: str
    after_calls: str


@dataclass(frozen=True, slots=True)
class Tool:
    """What a call may name; `parameters` is the JSON schema of its arguments."""

    name: str
    parameters: str
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Calls:
    """Text, or text and whole tool calls behind it.

    Attributes:
        tools: those that can be called; none: only text.
        is_required: calls and no text.
        is_single: at most one.
    """

    syntax: CallSyntax
    tools: tuple[Tool, ...]
    is_required: bool = False
    is_single: bool = False


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """What the whole text of an answer must be; ranges as in inference.proto, already checked.

    Attributes:
        text: the JSON schema, or the regular expression; for CALLS the JSON schema of an answer
            without calls, or empty: any text. Empty for the other kinds.
        choices: the texts of which the answer is one, for CHOICE.
        calls: for CALLS.
    """

    kind: FormatKind
    text: str = ""
    choices: tuple[str, ...] = ()
    calls: Calls | None = None


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One answer to generate.

    Attributes:
        request_id: unique on this node while the request lives.
        prompt_token_ids: at least one.
        emitted_token_ids: output tokens that an earlier attempt emitted; generation goes on behind.
        priority: higher goes first.
        cache_salt: who may share cached prefixes; empty: nobody.
        logprobs: report the log probability of each token.
        top_logprob_count: alternatives to report with each token, [0, 20].
        group: the answers of one turn have the same; those with the same prompt share its blocks,
            whatever their salt. Empty: shares with nobody.
        response_format: what the text is held to; None: nothing.
        time_left_s: seconds after which nobody waits any more; None: no bound.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    stop: StopRule
    emitted_token_ids: Sequence[int] = ()
    sampling: Sampling = field(default_factory=Sampling)
    priority: int = 0
    cache_salt: str = ""
    logprobs: bool = False
    top_logprob_count: int = 0
    group: str = ""
    response_format: ResponseFormat | None = None
    time_left_s: float | None = None

    @property
    def token_count_max(self) -> int:
        """Tokens of prompt and answer together, at most."""
        return len(self.prompt_token_ids) + self.stop.max_token_count

    @property
    def block_count_max(self) -> int:
        """KV-cache blocks that the whole request can need."""
        return -(-self.token_count_max // BLOCK_TOKEN_COUNT)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log probabilities at one position: (token id, log probability)."""

    chosen: tuple[int, float]
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """How an answer ended.

    Attributes:
        reason: why.
        stop_string: the stop string that ended it, or empty.
        text: text that had been held back and is final now.
    """

    reason: FinishReason
    stop_string: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The load of an engine at one moment."""

    waiting_count: int
    running_count: int
    queue_depth_max: int
    kv_block_count: int
    kv_block_free_count: int
    cached_prefix_hashes: tuple[int, ...] = ()


class Engine(Protocol):
    """Generates tokens. All methods are called on the event loop's thread.

    Attributes:
        name: as in the settings and in ListModels.
        failed: set when the engine can serve nobody any more; the process is then to be restarted.
        draws_by_position: token ids of an answer depend on the request and its seed alone, on any
            node of the same `weights_digest` and `precision`: in any company, and however often
            it was interrupted and continued. As the two below, known once it was started.
        weights_digest: SHA-256 over the weights as they lie on disk, lower-case hex; empty when
            there are none.
        precision: all else that the drawn tokens depend on, bit for bit: first the kinds of
            numbers and what computes, for people, then a digest of the rest. To be compared whole.
        binds_calls: it holds answers to FormatKind.CALLS.
    """

    name: str
    failed: asyncio.Event
    draws_by_position: bool
    weights_digest: str
    precision: str
    binds_calls: bool

    async def start(self) -> None:
        """Gets ready to serve. Raises EngineError when the model cannot be served."""

    async def stop(self) -> None:
        """Cancels what runs and gives everything back."""

    def submit(self, request: EngineRequest) -> TokenStream:
        """Queues a request.

        Raises:
            QueueFullError: the queue is full; a later try may succeed.
            RequestTooLargeError: it needs more KV blocks than there are in all.
            DeadlineUnreachableError: its first token would come too late.
            BadFormatError: its response format is not one that this engine can hold an answer to
                (the stream may also end with it, when that is found out later).
        """

    def load(self) -> EngineLoad:
        """The load now."""


class EngineError(Exception):
    """EngineError: the engine cannot do it, or failed; the text says what to change.

    EngineError
    ├── QueueFullError             too many wait
    ├── RequestTooLargeError       more KV blocks than there are
    ├── DeadlineUnreachableError   the first token would come after the caller has left
    └── BadFormatError             an answer cannot be held to this format
    """


class QueueFullError(EngineError):
    """The bounded queue is full."""

    def __init__(self, queue_depth_max: int) -> None:
        super().__init__(f"{queue_depth_max} requests wait already; try again, or another node.")
        self.queue_depth_max = queue_depth_max


class RequestTooLargeError(EngineError):
    """The request can never fit into this node's KV cache."""

    def __init__(self, block_count: int, block_count_max: int) -> None:
        super().__init__(
            f"The request needs {block_count} KV blocks of {BLOCK_TOKEN_COUNT} tokens and this "
            f"node has {block_count_max}; send fewer tokens or lower max_tokens."
        )
        self.block_count, self.block_count_max = block_count, block_count_max


class DeadlineUnreachableError(EngineError):
    """At the measured rates the first token would come after the deadline."""

    def __init__(self, time_left_s: float, first_token_s: float) -> None:
        super().__init__(
            f"The first token is about {first_token_s:.1f} s away and the caller waits only "
            f"{time_left_s:.1f} s; try another node, try later, or allow more time."
        )
        self.time_left_s, self.first_token_s = time_left_s, first_token_s


class BadFormatError(EngineError):
    """The response format cannot be compiled, or not by this engine; the text says why."""
