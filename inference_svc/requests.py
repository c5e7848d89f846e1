"""GenerateRequest to EngineRequest: every range of inference.proto is checked here, once."""

import hashlib
from collections.abc import Iterator

import grpc

from chatmesh.content.v1 import content_pb2
from chatmesh.inference.v1 import inference_pb2
from inference_svc.call_format import call_faults, call_format
from inference_svc.engine.protocol import (
    EngineRequest,
    FormatKind,
    ResponseFormat,
    Sampling,
    StopRule,
)
from inference_svc.model_folder import ModelFolder
from mesh.chassis.errors import MeshError

TURN_ID_LENGTH_MAX = 64
CHOICE_COUNT_MAX = 4
STEP_COUNT_MAX = 128
STOP_STRING_COUNT_MAX = 4
STOP_STRING_BYTES_MAX = 256
STOP_TOKEN_COUNT_MAX = 16
LOGIT_BIAS_COUNT_MAX = 300
TOP_LOGPROBS_MAX = 20
CACHE_SALT_LENGTH_MAX = 256
SCHEMA_BYTES_MAX = 64 << 10
REGEX_BYTES_MAX = 4 << 10
CHOICE_TEXT_COUNT_MAX = 256

_PRIORITIES = {
    inference_pb2.PRIORITY_LOW: -1,
    inference_pb2.PRIORITY_UNSPECIFIED: 0,
    inference_pb2.PRIORITY_NORMAL: 0,
    inference_pb2.PRIORITY_HIGH: 1,
}


def bad_request(field: str, message: str) -> MeshError:
    """The error for a field that is out of its range."""
    return MeshError(
        grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST", message, metadata={"field": field}
    )


def engine_request(
    request: inference_pb2.GenerateRequest,
    model: ModelFolder,
    request_id: str,
    *,
    time_left_s: float | None = None,
) -> EngineRequest:
    """The engine's form of a request for `model`, whose caller waits for `time_left_s`.

    Raises:
        MeshError: BAD_REQUEST (a field is out of its range), PROMPT_TOO_LONG.
    """
    for field, message in _faults(request, model):
        raise bad_request(field, message)
    _fits_context(request, model)
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=list(request.prompt_token_ids),
        emitted_token_ids=list(request.emitted_token_ids),
        stop=_stop_rule(request, model),
        sampling=_sampling(request),
        priority=_PRIORITIES[request.priority],
        cache_salt=request.cache_salt,
        logprobs=request.logprobs,
        top_logprob_count=request.top_logprobs,
        group=request.turn_id,
        response_format=_wanted_format(request),
        time_left_s=time_left_s,
    )


def _fits_context(request: inference_pb2.GenerateRequest, model: ModelFolder) -> None:
    count = len(request.prompt_token_ids) + request.max_tokens
    if count > model.context_token_count_max:
        raise MeshError(
            grpc.StatusCode.INVALID_ARGUMENT,
            "PROMPT_TOO_LONG",
            f"Prompt and max_tokens are {count} tokens and {model.id} takes at most "
            f"{model.context_token_count_max}; shorten the prompt or lower max_tokens.",
            metadata={"limit": str(model.context_token_count_max), "count": str(count)},
        )


def _stop_rule(request: inference_pb2.GenerateRequest, model: ModelFolder) -> StopRule:
    ends = frozenset() if request.stop.ignore_eos else model.eos_token_ids
    return StopRule(
        max_token_count=request.max_tokens,
        token_ids=ends | frozenset(request.stop.token_ids),
        strings=tuple(request.stop.strings),
    )


def _sampling(request: inference_pb2.GenerateRequest) -> Sampling:
    asked = request.sampling
    return Sampling(
        temperature=asked.temperature if asked.HasField("temperature") else 1.0,
        top_p=asked.top_p if asked.HasField("top_p") else 1.0,
        top_k=asked.top_k,
        min_p=asked.min_p,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        repetition_penalty=asked.repetition_penalty or 1.0,
        logit_bias=dict(asked.logit_bias),
        seed=_seed(request),
    )


def _wanted_format(request: inference_pb2.GenerateRequest) -> ResponseFormat | None:
    wanted = _response_format(request.response_format)
    return call_format(request.calls, wanted) if request.HasField("calls") else wanted


def _response_format(asked: content_pb2.ResponseFormat) -> ResponseFormat | None:
    match asked.WhichOneof("format"):
        case "json_object" if asked.json_object:
            return ResponseFormat(FormatKind.JSON_OBJECT)
        case "json_schema":
            return ResponseFormat(FormatKind.JSON_SCHEMA, asked.json_schema)
        case "regex":
            return ResponseFormat(FormatKind.REGEX, asked.regex)
        case "choice":
            return ResponseFormat(FormatKind.CHOICE, choices=tuple(asked.choice.texts))
    return None


def _seed(request: inference_pb2.GenerateRequest) -> int:
    """The key of the generator: the same on every node, another for each of the n answers."""
    given = request.sampling.seed if request.sampling.HasField("seed") else None
    if given is not None and request.choice_index == 0:
        return given
    root = request.turn_id if given is None else str(given)
    # Without a seed of its caller each step of a turn draws differently; step 0 as it always did.
    step = f"/{request.step}" if given is None and request.step else ""
    data = f"{root}/{request.choice_index}{step}".encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _faults(
    request: inference_pb2.GenerateRequest, model: ModelFolder
) -> Iterator[tuple[str, str]]:
    """(field, message) of everything that is out of its range."""
    if not 1 <= len(request.turn_id) <= TURN_ID_LENGTH_MAX:
        yield "turn_id", "turn_id must be the ULID of the turn."
    if request.choice_index >= CHOICE_COUNT_MAX:
        yield "choice_index", f"choice_index must be in [0, {CHOICE_COUNT_MAX - 1}]."
    if request.step >= STEP_COUNT_MAX:
        yield "step", f"step must be in [0, {STEP_COUNT_MAX - 1}]."
    if not request.prompt_token_ids:
        yield "prompt_token_ids", "prompt_token_ids must hold at least one token."
    for field in ("prompt_token_ids", "emitted_token_ids"):
        if max(getattr(request, field), default=0) >= model.vocabulary_size:
            yield field, f"A token of {field} is not of this model; is the tokenizer the same?"
    if request.max_tokens < 1:
        yield "max_tokens", "max_tokens must be at least 1."
    if len(request.emitted_token_ids) > request.max_tokens:
        yield "emitted_token_ids", "emitted_token_ids hold more than max_tokens tokens."
    if request.priority not in _PRIORITIES:
        yield "priority", "priority must be low, normal or high."
    if request.top_logprobs > TOP_LOGPROBS_MAX:
        yield "top_logprobs", f"top_logprobs must be in [0, {TOP_LOGPROBS_MAX}]."
    if len(request.cache_salt) > CACHE_SALT_LENGTH_MAX:
        yield "cache_salt", f"cache_salt must have at most {CACHE_SALT_LENGTH_MAX} characters."
    yield from _format_faults(request, model)
    yield from _stop_faults(request.stop, model)
    yield from _sampling_faults(request.sampling, model)


def _format_faults(
    request: inference_pb2.GenerateRequest, model: ModelFolder
) -> Iterator[tuple[str, str]]:
    asked = request.response_format
    if request.HasField("calls"):
        yield from call_faults(request)
    elif not asked.WhichOneof("format"):
        return
    if len(asked.json_schema.encode()) > SCHEMA_BYTES_MAX:
        yield "response_format", f"A JSON schema must have at most {SCHEMA_BYTES_MAX} bytes."
    if len(asked.regex.encode()) > REGEX_BYTES_MAX:
        yield "response_format", f"An expression must have at most {REGEX_BYTES_MAX} bytes."
    count = len(asked.choice.texts)
    if asked.HasField("choice") and not 1 <= count <= CHOICE_TEXT_COUNT_MAX:
        yield "response_format", f"A choice must have 1 to {CHOICE_TEXT_COUNT_MAX} texts."
    # A finished text can be followed by an end-of-sequence token and by nothing else.
    if request.stop.ignore_eos:
        yield "stop.ignore_eos", "An answer with a response_format must be allowed to end."
    if not model.eos_token_ids:
        yield "response_format", f"{model.id} has no end-of-sequence token; leave it out."


def _stop_faults(
    stop: inference_pb2.StopConditions, model: ModelFolder
) -> Iterator[tuple[str, str]]:
    if len(stop.strings) > STOP_STRING_COUNT_MAX:
        yield "stop.strings", f"At most {STOP_STRING_COUNT_MAX} stop strings."
    if any(not 1 <= len(text.encode()) <= STOP_STRING_BYTES_MAX for text in stop.strings):
        yield "stop.strings", f"A stop string must have 1 to {STOP_STRING_BYTES_MAX} bytes."
    if len(stop.token_ids) > STOP_TOKEN_COUNT_MAX:
        yield "stop.token_ids", f"At most {STOP_TOKEN_COUNT_MAX} stop tokens."
    if max(stop.token_ids, default=0) >= model.vocabulary_size:
        yield "stop.token_ids", "A stop token is not of this model."


def _sampling_faults(
    sampling: content_pb2.Sampling, model: ModelFolder
) -> Iterator[tuple[str, str]]:
    # Written so that NaN, which compares false with everything, is a fault too.
    top_p = sampling.top_p if sampling.HasField("top_p") else 1.0
    if not 0 < top_p <= 1:
        yield "sampling.top_p", "top_p must be in (0, 1]."
    for field, low, high in (
        ("temperature", 0, 2),
        ("min_p", 0, 1),
        ("presence_penalty", -2, 2),
        ("frequency_penalty", -2, 2),
        ("repetition_penalty", 0, 2),
    ):
        if not low <= getattr(sampling, field) <= high:
            yield f"sampling.{field}", f"{field} must be in [{low}, {high}]."
    if sampling.top_k > model.vocabulary_size:
        yield "sampling.top_k", f"top_k must be in [0, {model.vocabulary_size}]."
    bias = sampling.logit_bias
    if len(bias) > LOGIT_BIAS_COUNT_MAX or max(bias, default=0) >= model.vocabulary_size:
        yield "sampling.logit_bias", f"At most {LOGIT_BIAS_COUNT_MAX} tokens of this model."
    if any(not -100 <= value <= 100 for value in bias.values()):  # noqa: PLR2004  # the contract's range
        yield "sampling.logit_bias", "A logit bias must be in [-100, 100]."
