"""What a chat request must be, whichever face it came in by. Pure."""

from gateway.content import ROLES
from gateway.errors import bad_parameter
from gateway.settings import TurnLimits
from gateway.turn.domain import CHOICE_COUNT_MAX, Ask, Message, ResponseFormat

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
