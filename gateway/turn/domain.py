"""The words of a turn: what was asked, by whom, and what happens while it is answered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chatmesh.content.v1.content_pb2 import CallSyntax

FINISH_STOP = "stop"
FINISH_LENGTH = "length"
FINISH_CONTENT_FILTER = "content_filter"
# Stopped, or nobody read it, or a part of the system failed, before the end.
FINISH_CANCELLED = "cancelled"
# Only as readers are told it: for all else such an answer has stopped.
FINISH_TOOL_CALLS = "tool_calls"

CHOICE_COUNT_MAX = 4


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as admission found out."""

    account_id: str
    tier: str
    # ULID made at admission: the idempotency key of everything that the turn causes.
    turn_id: str
    # ISO 3166-1 alpha-2 country whose rules hold for the account; empty: the default ones.
    jurisdiction: str = ""
    # The API key that was used; empty: none.
    key_id: str = ""


@dataclass(frozen=True, slots=True)
class Bound:
    """The limit that left less than was asked for, and whose it is."""

    # "budget", "tokens_per_minute" or "parallel".
    limit: str
    # "account", "key" or "organisation".
    payer: str


@dataclass(frozen=True, slots=True)
class TokenAllowance:
    """What is left of a minute's tokens, of whoever has the fewest."""

    # Tokens a minute.
    limit: int
    remaining: int
    # Until all are there again.
    reset_s: float

    def headers(self) -> dict[str, str]:
        """The x-ratelimit headers, as OpenAI names and writes them."""
        return {
            "x-ratelimit-limit-tokens": str(self.limit),
            "x-ratelimit-remaining-tokens": str(self.remaining),
            "x-ratelimit-reset-tokens": f"{round(self.reset_s, 3):g}s",
        }


@dataclass(frozen=True, slots=True)
class Grant:
    """What is held for a turn."""

    # Output tokens of all answers.
    output_token_count: int
    # Why they are fewer than were asked for; None: they are not.
    bound: Bound | None = None
    tokens: TokenAllowance | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What an assistant wants called; the arguments are JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message; role is "system", "user", "assistant" or "tool"."""

    role: str
    content: str
    name: str = ""
    # Of an assistant, behind the text.
    calls: Sequence[ToolCall] = ()
    # The call whose result a "tool" message is; empty: it is a document.
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that may be called; ranges as in content.v1.Tool."""

    name: str
    description: str = ""
    # JSON schema of the arguments; empty: there are none.
    parameters: str = ""
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What an answer may call; ranges as in content.v1.ToolUse."""

    tools: Sequence[Tool]
    # "auto", "none" or "required".
    choice: str = "auto"
    # Empty: all.
    allowed_names: Sequence[str] = ()
    is_single: bool = False


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; ranges as in content.v1.Sampling."""

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 0.0
    top_k: int = 0
    min_p: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """What the text of an answer is held to; ranges as in content.v1.ResponseFormat."""

    # "json_object", "json_schema", "regex" or "choice".
    kind: str
    # The JSON schema, or the regular expression.
    text: str = ""
    choices: tuple[str, ...] = ()
    # What the client calls it, for errors.
    param: str = "response_format"


@dataclass(frozen=True, slots=True)
class Ask:
    """One chat request, checked."""

    model: str
    messages: Sequence[Message]
    conversation_id: str = ""
    store: bool = False
    # Tokens of one answer; 0: what the context leaves, at most the tier's limit.
    max_tokens: int = 0
    # What the client calls it, for errors.
    max_tokens_param: str = "max_tokens"
    n: int = 1
    sampling: Sampling = field(default_factory=Sampling)
    stop: Sequence[str] = ()
    logprobs: bool = False
    top_logprobs: int = 0
    response_format: ResponseFormat | None = None
    tool_use: ToolUse | None = None
    # Run to the end although nobody reads; None: as the conversation says.
    background: bool | None = None
    # The stream tells the usage at its end.
    include_usage: bool = False


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model that at least one node serves."""

    id: str
    context_token_count_max: int
    # Names tokenizer, weights and engine: only nodes that share it may draw the same tokens.
    fingerprint: str
    created_unix_s: int = 0
    # Another node draws the same tokens from the same request.
    draws_by_position: bool = False
    # Answers can be held to tool calls.
    binds_calls: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that fits the model."""

    token_ids: Sequence[int]
    # Tokens of one answer at most: asked for, or what context and tier leave.
    max_tokens: int
    dropped_message_count: int = 0
    # One count for each message that was not dropped.
    message_token_counts: Sequence[int] = ()
    # How the model writes tool calls, where it may.
    call_syntax: CallSyntax | None = None


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token with its log probability; text as bytes, for a token may be half a character."""

    text: bytes
    logprob: float
    top: Sequence["Logprob"] = ()


@dataclass(frozen=True, slots=True)
class Frame:
    """What a node sent at once: tokens, the text that became final with them, perhaps the end."""

    token_ids: Sequence[int] = ()
    text: str = ""
    logprobs: Sequence[Logprob] = ()
    # "stop" or "length" on the last frame, else empty.
    finish_reason: str = ""
    cached_token_count: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a turn."""

    prompt_token_count: int
    cached_token_count: int
    # Of all answers, withheld ones included.
    completion_token_count: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What of one part of the prompt the model did not read."""

    # Name of a rule of `context.parts`.
    part: str
    # Messages that are missing, or cut.
    message_count: int
    # None: they were not counted.
    token_count: int | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """First event: a node accepted the turn."""

    turn_id: str
    model: ModelInfo
    # Where the turn is kept; empty when it is not.
    conversation_id: str
    # The messages of `left_out`.
    dropped_message_count: int
    left_out: Sequence[LeftOut] = ()
    choice_count: int = 1
    created_unix_s: int = 0
    include_usage: bool = False
    # Whoever follows goes on although the process that runs the turn dies.
    journaled: bool = False


@dataclass(frozen=True, slots=True)
class CallDelta:
    """More of one tool call; its id and name when it begins."""

    call_index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More released text of one answer."""

    choice_index: int
    text: str
    # Tokens of the answer released so far.
    token_count: int
    logprobs: Sequence[Logprob] = ()
    # Only as readers are told it: for all else calls are text.
    calls: Sequence[CallDelta] = ()


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    """The end of one answer."""

    choice_index: int
    finish_reason: str
    # With "content_filter": the category that decided, and where the offending text of an answer
    # that was cut began, in bytes of what was generated.
    filter_category: str = ""
    filter_offset: int = 0
    # With "length" of an answer that was cut at the last token that is paid.
    bound: Bound | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """Last event of a turn that did not fail."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class Failed:
    """Last event of a turn that failed: the public reason, and what to do."""

    reason: str
    message: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_after_s: float | None = None


Event = Started | TextDelta | ChoiceFinished | Finished | Failed
