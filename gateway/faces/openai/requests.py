"""An HTTP body to an Ask: types as OpenAI documents them, each fault with the parameter's name.

Unknown fields are ignored, as OpenAI's own services do with newer clients. Fields that would
change the answer and are not built (audio, reasoning effort) are refused instead; `table.py` lists
what is done about each. Sampling parameters and
formats that OpenAI does not have are named as vLLM names them.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, FailFast, Field, ValidationError

from gateway import errors
from gateway.errors import bad_parameter, public
from gateway.faces.changes import checked_changes
from gateway.faces.openai.fields import NotSupported, Only, Strict, fault
from gateway.faces.openai.formats import FormatFields, wanted_format
from gateway.faces.openai.tools import (
    SHORT_LIST,
    CalledTool,
    ToolFields,
    called,
    wanted_tools,
)
from gateway.turn.checks import (
    LOGIT_BIAS_COUNT_MAX,
    LOGIT_BIAS_MAX,
    MESSAGE_COUNT_MAX,
    STOP_COUNT_MAX,
)
from gateway.turn.domain import CHOICE_COUNT_MAX, Ask, Message, Sampling
from gateway.upstreams.conversation import Changes
from mesh.chassis.errors import MeshError

PART_COUNT_MAX = 1024
TOKEN_ID_DIGITS_MAX = 10
# What pydantic calls a body that is no JSON object.
BODY_FAULTS = {"json_invalid", "json_type", "model_type", "model_attributes_type"}


def _text(content: Any) -> str:
    """Joins content parts; only text is understood."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list) or len(content) > PART_COUNT_MAX:
        raise fault("", f"must be a string or a list of at most {PART_COUNT_MAX} parts")
    return "".join(_part(f"[{index}]", part) for index, part in enumerate(content))


def _part(path: str, part: Any) -> str:
    if not isinstance(part, dict):
        raise fault(path, "must be an object")
    kind = part.get("type")
    if kind not in ("text", "refusal"):
        raise fault(f"{path}.type", "must be 'text': this system reads text only")
    text = part.get(kind)
    if not isinstance(text, str):
        raise fault(f"{path}.{kind}", "must be a string")
    return text


def _texts(stop: Any) -> tuple[str, ...]:
    texts = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(texts, list) or len(texts) > STOP_COUNT_MAX:
        raise fault("", f"must be a string or a list of at most {STOP_COUNT_MAX} strings")
    if not all(isinstance(text, str) for text in texts):
        raise fault("", "must be a string or a list of strings")
    return tuple(texts)


def _biases(biases: Any) -> dict[int, float]:
    if not isinstance(biases, dict | None):
        raise fault("", "must be an object of token ids and numbers")
    # Before any becomes a number: numbers can be chosen so that all meet in one place of a dict.
    if len(biases or {}) > LOGIT_BIAS_COUNT_MAX:
        raise fault("", f"must have at most {LOGIT_BIAS_COUNT_MAX} entries")
    result = {}
    for token_id, bias in (biases or {}).items():
        if len(token_id) > TOKEN_ID_DIGITS_MAX or not (token_id.isascii() and token_id.isdigit()):
            raise fault("", f"{token_id[:20]!r} is no token id")
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise fault(f".{token_id}", "must be a number")
        if not -LOGIT_BIAS_MAX <= bias <= LOGIT_BIAS_MAX:  # also what is too large for a float
            raise fault(f".{token_id}", f"must be from {-LOGIT_BIAS_MAX:g} to {LOGIT_BIAS_MAX:g}")
        result[int(token_id)] = float(bias)
    return result


class ChatMessage(Strict):
    """One of `messages`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_text)] = ""
    name: str | None = None
    tool_calls: Annotated[list[CalledTool], *SHORT_LIST] = Field(default_factory=list)
    tool_call_id: str | None = None
    refusal: str | None = None
    audio: NotSupported = None
    function_call: NotSupported = None


class StreamOptions(Strict):
    """`stream_options`."""

    include_usage: bool | None = None


class RefusedFields(Strict):
    """Fields of OpenAI and vLLM that would change the answer, and are not built."""

    audio: NotSupported = None
    function_call: NotSupported = None
    functions: NotSupported = None
    modalities: Annotated[None, Only(["text"])] = None
    moderation: NotSupported = None
    reasoning_effort: Annotated[None, Only("none")] = None
    verbosity: Annotated[None, Only("medium")] = None
    web_search_options: NotSupported = None
    # vLLM's.
    add_generation_prompt: Annotated[None, Only(True)] = None  # the value itself
    allowed_token_ids: NotSupported = None
    bad_words: NotSupported = None
    best_of: NotSupported = None
    chat_template: NotSupported = None
    chat_template_kwargs: NotSupported = None
    continue_final_message: NotSupported = None
    documents: NotSupported = None
    echo: NotSupported = None
    ignore_eos: NotSupported = None
    include_stop_str_in_output: NotSupported = None
    length_penalty: Annotated[None, Only(1)] = None
    logits_processors: NotSupported = None
    min_tokens: NotSupported = None
    prompt_logprobs: NotSupported = None
    stop_token_ids: NotSupported = None
    truncate_prompt_tokens: NotSupported = None
    use_beam_search: NotSupported = None


class Body(FormatFields, ToolFields, RefusedFields):
    """The body of a chat completion."""

    model: str = Field(min_length=1, max_length=200)
    # To the first fault: a body can hold a million messages, and each would be one.
    messages: Annotated[list[ChatMessage], FailFast()] = Field(
        min_length=1, max_length=MESSAGE_COUNT_MAX
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = Field(default=None, ge=1, le=CHOICE_COUNT_MAX)
    seed: int | None = None
    stop: Annotated[tuple[str, ...], BeforeValidator(_texts)] = ()
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[int, float], BeforeValidator(_biases)] = Field(default_factory=dict)
    logprobs: bool | None = None
    top_logprobs: int | None = None
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = None
    repetition_penalty: float | None = Field(default=None, gt=0)
    user: str | None = Field(default=None, max_length=256)
    conversation_id: str | None = Field(default=None, max_length=64)
    store: bool | None = None
    background: bool | None = None


class ChangesBody(Strict):
    """The body of a change of a conversation."""

    title: str | None = None
    background: bool | None = None


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """A checked request, and how its answer is to be sent."""

    ask: Ask
    stream: bool


def parse_chat_completion(body: bytes) -> ChatCompletion:
    """Reads a body.

    Raises:
        MeshError: INVALID_BODY; INVALID_PARAMETER with metadata "param".
    """
    try:
        parsed = Body.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(error) from None
    if parsed.stream_options and not parsed.stream:
        raise bad_parameter("stream_options", "stream_options needs stream to be true.")
    if parsed.max_tokens and parsed.max_completion_tokens:
        message = "Give max_completion_tokens or max_tokens, not both."
        raise bad_parameter("max_tokens", message)
    return ChatCompletion(_ask(parsed), bool(parsed.stream))


def parse_changes(body: bytes) -> Changes:
    """What is to change of a conversation.

    Raises:
        MeshError: INVALID_BODY; INVALID_PARAMETER with metadata "param".
    """
    try:
        parsed = ChangesBody.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(error) from None
    return checked_changes(Changes(parsed.title, parsed.background))


def _ask(body: Body) -> Ask:
    return Ask(
        model=body.model,
        messages=[
            Message(
                "system" if each.role == "developer" else each.role,
                each.content + (each.refusal or ""),
                each.name or "",
                called(each.tool_calls),
                each.tool_call_id or "",
            )
            for each in body.messages
        ],
        conversation_id=body.conversation_id or "",
        store=bool(body.store),
        max_tokens=body.max_completion_tokens or body.max_tokens or 0,
        max_tokens_param="max_completion_tokens" if body.max_completion_tokens else "max_tokens",
        n=body.n or 1,
        sampling=Sampling(
            temperature=body.temperature,
            top_p=body.top_p,
            seed=body.seed,
            presence_penalty=body.presence_penalty or 0.0,
            frequency_penalty=body.frequency_penalty or 0.0,
            repetition_penalty=body.repetition_penalty or 0.0,
            top_k=max(body.top_k or 0, 0),  # -1 is off, too
            min_p=body.min_p or 0.0,
            logit_bias=body.logit_bias,
        ),
        stop=body.stop,
        logprobs=bool(body.logprobs),
        top_logprobs=body.top_logprobs or 0,
        response_format=wanted_format(body),
        tool_use=wanted_tools(body),
        background=body.background,
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
    )


def _refusal(error: ValidationError) -> MeshError:
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] in BODY_FAULTS and not first["loc"]:
        message = "The body must be a JSON object in UTF-8: " + first["msg"]
        return public(errors.INVALID_BODY, message)
    param = _param(first["loc"]) + first.get("ctx", {}).get("path", "")
    if first["type"] == "missing":
        return bad_parameter(param, f"{param} is missing.")
    reason = first["msg"]
    return bad_parameter(param, f"{param}: {reason[:1].lower()}{reason[1:]}.")


def _param(location: tuple[int | str, ...]) -> str:
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    return path.removeprefix(".")
