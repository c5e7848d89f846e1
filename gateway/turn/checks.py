"""What a chat request must be, whichever face it came in by. Pure."""

import json
import re

from gateway.content import ROLES, TOOL_CHOICES
from gateway.errors import bad_parameter
from gateway.settings import TurnLimits
from gateway.turn.domain import CHOICE_COUNT_MAX, Ask, Message, ResponseFormat, ToolUse

MESSAGE_COUNT_MAX = 1024
# The store takes 256 messages at once, the answer among them.
STORED_MESSAGE_COUNT_MAX = 255
CONTENT_BYTES_MAX = 1 << 20
NAME_LENGTH_MAX = 64
STOP_COUNT_MAX = 4
STOP_BYTES_MAX = 256
TEMPERATURE_MAX = 2.0
PENALTY_MAX = 2.0
LOGIT_BIAS_COUNT_MAX = 300
LOGIT_BIAS_MAX = 100.0
TOP_LOGPROBS_MAX = 20
# Of a turn: each is some 25 bytes between services and in the journal (4 MB in all, half of what a
# message may have) and 75 as JSON.
LOGPROB_COUNT_MAX = 128 << 10
TOP_K_MAX = (1 << 32) - 1
SCHEMA_BYTES_MAX = 64 << 10
REGEX_BYTES_MAX = 4 << 10
CHOICE_TEXT_COUNT_MAX = 256
CHOICE_TEXT_BYTES_MAX = 1024
SEED_BITS = 64
TOKEN_ID_MAX = (1 << 32) - 1
TOOL_COUNT_MAX = 128
TOOL_SCHEMAS_BYTES_MAX = 256 << 10
TOOL_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
CALL_ID_LENGTH_MAX = 256


def check(ask: Ask, tier: str, limits: TurnLimits) -> None:
    """Raises MeshError INVALID_PARAMETER naming the first parameter that is wrong."""
    kept = ask.store or bool(ask.conversation_id)
    _within("messages", len(ask.messages), 1, MESSAGE_COUNT_MAX, "messages")
    if kept:
        _within("messages", len(ask.messages), 1, STORED_MESSAGE_COUNT_MAX, "new messages to keep")
    for index, message in enumerate(ask.messages):
        _check_message(f"messages[{index}]", message)
    _within("n", ask.n, 1, CHOICE_COUNT_MAX, "answers")
    if ask.max_tokens:
        limit = limits.answer_token_count_max[tier]
        _within(ask.max_tokens_param, ask.max_tokens, 1, limit, "tokens for your tier")
    _check_sampling(ask)
    _within("stop", len(ask.stop), 0, STOP_COUNT_MAX, "texts")
    for text in ask.stop:
        _within("stop", len(text.encode()), 1, STOP_BYTES_MAX, "bytes in each text")
    _within("top_logprobs", ask.top_logprobs, 0, TOP_LOGPROBS_MAX, "tokens")
    if ask.top_logprobs and not ask.logprobs:
        raise bad_parameter("top_logprobs", "top_logprobs needs logprobs to be true.")
    if ask.max_tokens > logprob_token_count_max(ask):
        raise bad_parameter(
            "logprobs",
            f"n × max_tokens × (1 + top_logprobs) must be at most {LOGPROB_COUNT_MAX} with "
            "logprobs: lower one of them.",
        )
    if ask.response_format:
        _check_format(ask.response_format)
    if ask.tool_use:
        _check_tools(ask, ask.tool_use)


def logprob_token_count_max(ask: Ask) -> int:
    """Most tokens of one answer whose log probabilities can be told."""
    if not ask.logprobs:
        return TOKEN_ID_MAX
    return LOGPROB_COUNT_MAX // (ask.n * (1 + ask.top_logprobs))


def _check_format(wanted: ResponseFormat) -> None:
    """Its size; whether it can be enforced is found out by the node."""
    size = len(wanted.text.encode())
    if wanted.kind == "json_schema":
        _within(wanted.param, size, 1, SCHEMA_BYTES_MAX, "bytes of JSON schema")
    elif wanted.kind == "regex":
        _within(wanted.param, size, 1, REGEX_BYTES_MAX, "bytes of regular expression")
    elif wanted.kind == "choice":
        _within(wanted.param, len(wanted.choices), 1, CHOICE_TEXT_COUNT_MAX, "texts")
        for text in wanted.choices:
            _within(wanted.param, len(text.encode()), 1, CHOICE_TEXT_BYTES_MAX, "bytes in each")


def _check_tools(ask: Ask, use: ToolUse) -> None:
    """Their names and sizes; whether the schemas can be enforced is found out by the node."""
    _within("tools", len(use.tools), 1, TOOL_COUNT_MAX, "tools")
    names = [tool.name for tool in use.tools]
    for index, tool in enumerate(use.tools):
        param = f"tools[{index}].function"
        _check_tool_name(f"{param}.name", tool.name)
        if tool.name in names[:index]:
            raise bad_parameter(f"{param}.name", f"Two tools have the name {tool.name}.")
        description = f"{param}.description"
        _within(description, len(tool.description.encode()), 0, SCHEMA_BYTES_MAX, "bytes")
    size = sum(len(tool.parameters.encode()) for tool in use.tools)
    _within("tools", size, 0, TOOL_SCHEMAS_BYTES_MAX, "bytes of schemas in all")
    if use.choice not in TOOL_CHOICES:
        raise bad_parameter("tool_choice", "tool_choice must be none, auto or required.")
    for name in use.allowed_names:
        if name not in names:
            raise bad_parameter(
                "tool_choice", f"tool_choice names {name[:64]!r}, which is no tool."
            )
    if ask.stop:
        raise bad_parameter("stop", "stop cannot be given beside tools: it could cut a call.")
    if ask.response_format and not ask.response_format.kind.startswith("json"):
        param = ask.response_format.param
        raise bad_parameter(param, f"{param} cannot be given beside tools; JSON formats can.")


def _check_tool_name(param: str, name: str) -> None:
    if not TOOL_NAME.fullmatch(name):
        raise bad_parameter(
            param, f"{param} must have 1 to 64 of the characters a-z, A-Z, 0-9, '_', '-' and '.'."
        )


def _check_calls(param: str, message: Message) -> None:
    if message.calls and message.role != "assistant":
        raise bad_parameter(f"{param}.tool_calls", f"{param}: only an assistant calls tools.")
    _within(f"{param}.tool_calls", len(message.calls), 0, TOOL_COUNT_MAX, "calls")
    for index, call in enumerate(message.calls):
        path = f"{param}.tool_calls[{index}]"
        _within(f"{path}.id", len(call.id), 1, CALL_ID_LENGTH_MAX, "characters")
        _check_tool_name(f"{path}.function.name", call.name)
        arguments = f"{path}.function.arguments"
        _within(arguments, len(call.arguments.encode()), 0, CONTENT_BYTES_MAX, "bytes")
        if not _is_object(call.arguments):
            raise bad_parameter(arguments, f"{arguments} must be a JSON object, as text.")
    if message.call_id and message.role != "tool":
        raise bad_parameter(f"{param}.tool_call_id", f"{param}: only a tool message has one.")
    call_id = f"{param}.tool_call_id"
    _within(call_id, len(message.call_id), 0, CALL_ID_LENGTH_MAX, "characters")


def _is_object(text: str) -> bool:
    """Whether it is a JSON object of text that can be written: an escape may stand for half of a
    character."""
    try:
        value = json.loads(text, parse_constant=_refuse)
        return isinstance(value, dict) and bool(json.dumps(value, ensure_ascii=False).encode())
    except (ValueError, RecursionError):
        return False


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _check_message(param: str, message: Message) -> None:
    if message.role not in ROLES:
        raise bad_parameter(
            f"{param}.role", f"{param}.role must be system, user, assistant or tool."
        )
    content = f"{param}.content"
    _within(content, len(message.content.encode()), 0, CONTENT_BYTES_MAX, "bytes")
    if "\0" in message.content:
        raise bad_parameter(content, f"{content} has a NUL character; remove it.")
    _within(f"{param}.name", len(message.name), 0, NAME_LENGTH_MAX, "characters")
    _check_calls(param, message)


def _check_sampling(ask: Ask) -> None:
    sampling = ask.sampling
    if sampling.temperature is not None:
        _within("temperature", sampling.temperature, 0, TEMPERATURE_MAX)
    if sampling.top_p is not None and not 0 < sampling.top_p <= 1:
        raise bad_parameter("top_p", "top_p must be above 0 and at most 1.")
    if sampling.seed is not None and abs(sampling.seed) >= 1 << SEED_BITS:
        raise bad_parameter("seed", f"seed must be an integer of at most {SEED_BITS} bits.")
    _within("presence_penalty", sampling.presence_penalty, -PENALTY_MAX, PENALTY_MAX)
    _within("frequency_penalty", sampling.frequency_penalty, -PENALTY_MAX, PENALTY_MAX)
    _within("repetition_penalty", sampling.repetition_penalty, 0.0, PENALTY_MAX)
    _within("top_k", sampling.top_k, 0, TOP_K_MAX, "tokens")
    _within("min_p", sampling.min_p, 0.0, 1.0)
    _within("logit_bias", len(sampling.logit_bias), 0, LOGIT_BIAS_COUNT_MAX, "entries")
    for token_id, bias in sampling.logit_bias.items():
        _within("logit_bias", token_id, 0, TOKEN_ID_MAX, "as a token id")
        _within("logit_bias", bias, -LOGIT_BIAS_MAX, LOGIT_BIAS_MAX, "for each token")


def _within(param: str, value: float, low: float, high: float, what: str = "") -> None:
    if not low <= value <= high:
        limits = f"between {low:g} and {high:g}" if isinstance(high, float) else f"{low} to {high}"
        raise bad_parameter(
            param, f"{param} must be {limits} {what}".rstrip() + f"; it is {value}."
        )
