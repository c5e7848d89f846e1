"""The nodes, one at a time: token ids in, token ids and text out; what their failures mean."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import grpc

from chatmesh.content.v1 import content_pb2
from chatmesh.inference.v1 import inference_pb2 as pb
from chatmesh.inference.v1 import inference_pb2_grpc
from gateway.content import FINISH_WORDS
from gateway.turn.domain import (
    FINISH_LENGTH,
    FINISH_STOP,
    Ask,
    Caller,
    Frame,
    Logprob,
    ModelInfo,
    Prompt,
    ResponseFormat,
)
from gateway.upstreams.contents import tool_use_of
from gateway.upstreams.failures import translate
from mesh.chassis.cancellation import is_cancelled
from mesh.chassis.errors import MeshError

INSTANCE_KEY = "x-chatmesh-instance"
PRIORITIES = {
    # Cannot starve: a class in which somebody waits long gets every second place of a node.
    "free": pb.PRIORITY_LOW,
    "pro": pb.PRIORITY_NORMAL,
    "enterprise": pb.PRIORITY_HIGH,
    "admin": pb.PRIORITY_HIGH,
}
# Any other means that the node gave the answer up: see content.v1.FinishReason.
ENDS = {FINISH_STOP, FINISH_LENGTH}
UINT64_MASK = (1 << 64) - 1
FINGERPRINT_DIGITS = 10
LOAD_INTERVAL_MS = 50


# What another node may mend. INTERNAL without details is a transport that broke; with details it is
# the node's own failure, which would follow the request.
MOVABLE_CODES = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
# Refusals that no wait will mend: with no other node left, the client hears of them at once.
REFUSALS = {"QUEUE_FULL", "DEADLINE_UNREACHABLE", "MODEL_NOT_FOUND", "REQUEST_TOO_LARGE"}
# Of these, those that a wait may mend.
FULL = {"QUEUE_FULL", "DEADLINE_UNREACHABLE"}
MOVABLE_REASONS = {"DRAINING", *REFUSALS}


class NodeError(Exception):
    """A node failed at an answer."""

    def __init__(self, failure: MeshError) -> None:
        super().__init__(failure.message)
        self._failure = failure

    @property
    def reason(self) -> str:
        """In a word, for logs and metrics."""
        return self._failure.reason or self._failure.code.name

    @property
    def is_movable(self) -> bool:
        """Whether another node may go on."""
        if self._failure.reason:
            return self._failure.reason in MOVABLE_REASONS
        return self._failure.code in MOVABLE_CODES

    @property
    def is_refusal(self) -> bool:
        """Whether the same node will say the same in a moment."""
        return self._failure.reason in REFUSALS

    @property
    def is_full(self) -> bool:
        """Whether the same node may take it a while later."""
        return self._failure.reason in FULL

    @property
    def public(self) -> MeshError:
        """As the client hears it."""
        return translate("inference", self._failure)

    @classmethod
    def broken(cls, how: str) -> "NodeError":
        """A stream that ended without an end, or out of step: the answer may go on elsewhere."""
        return cls(MeshError(grpc.StatusCode.UNAVAILABLE, "", how))

    @classmethod
    def of(cls, error: grpc.aio.AioRpcError) -> "NodeError":
        """A call that failed."""
        failure = MeshError.from_rpc(error)
        has_details = "grpc-status-details-bin" in (error.trailing_metadata() or {})
        if failure.code is grpc.StatusCode.INTERNAL and not has_details:
            failure.code = grpc.StatusCode.UNAVAILABLE
        return cls(failure)


@dataclass(frozen=True, slots=True)
class Job:
    """One answer to generate, the same for every node that works at it."""

    request: pb.GenerateRequest
    # Requests of the same key find a warm cache at the same node.
    affinity: bytes

    @classmethod
    def of(cls, ask: Ask, caller: Caller, prompt: Prompt) -> "Job":
        """The job for the first of the n answers."""
        return cls(_request(ask, caller, prompt), affinity_key(ask, caller))

    def choice(self, index: int) -> "Job":
        """The job for another one: the same prompt, the next seed."""
        if not index:
            return self
        request = pb.GenerateRequest()
        request.CopyFrom(self.request)
        request.choice_index = index
        request.sampling.seed = (request.sampling.seed + index) & UINT64_MASK
        return Job(request, self.affinity)


class Inference:
    """Calls of single nodes; `instance` "" leaves the choice to the mesh."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = inference_pb2_grpc.InferenceServiceStub(channel)

    async def generate(
        self, job: Job, instance: str, attempt: int, emitted: Sequence[int]
    ) -> AsyncGenerator[Frame, None]:
        """Streams one node's work at an answer, behind the tokens in `emitted`.

        The first frame is empty: the node accepted. Closing the generator cancels the call.

        Raises:
            NodeError: the node or the way to it failed, or its stream skipped.
        """
        request = pb.GenerateRequest()
        request.CopyFrom(job.request)
        request.attempt = attempt
        request.emitted_token_ids.extend(emitted)
        call, position = None, len(emitted)
        try:
            call = self._stub.Generate(request, metadata=_pin(instance))
            async for response in call:
                frame = _frame(response, position)
                position += len(frame.token_ids)
                yield frame
                if frame.finish_reason:
                    return
            raise NodeError.broken("the stream ended before the answer did")
        except grpc.aio.AioRpcError as error:
            raise NodeError.of(error) from error
        except MeshError as error:  # the chassis refused to call: too little time is left
            raise NodeError(error) from error
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            raise NodeError.broken("the call was ended on this side") from error
        finally:
            if call is not None:  # a break out of the loop does not end the call
                call.cancel()

    async def list_models(self, instance: str) -> list[ModelInfo]:
        """The models of a node.

        Raises:
            grpc.aio.AioRpcError: the node does not answer.
        """
        response = await self._stub.ListModels(pb.ListModelsRequest(), metadata=_pin(instance))
        return [
            ModelInfo(
                id=model.id,
                context_token_count_max=model.context_token_count_max,
                fingerprint=_fingerprint(model),
                created_unix_s=model.created_unix_s,
                draws_by_position=model.draws_by_position,
                binds_calls=model.binds_calls,
            )
            for model in response.models
        ]

    def watch_load(self, instance: str) -> AsyncGenerator[pb.WatchLoadResponse, None]:
        """A node's reports, until its stream breaks (grpc.aio.AioRpcError)."""
        return self._watch_load(instance)

    async def _watch_load(self, instance: str) -> AsyncGenerator[pb.WatchLoadResponse, None]:
        request = pb.WatchLoadRequest(min_interval_ms=LOAD_INTERVAL_MS)
        call = self._stub.WatchLoad(request, metadata=_pin(instance))
        try:
            async for response in call:
                yield response
        finally:
            call.cancel()


def affinity_key(ask: Ask, caller: Caller) -> bytes:
    """Same tenant and same opening, same key: the stored conversation, or its first question."""
    digest = blake2b(caller.account_id.encode(), digest_size=16)
    if ask.conversation_id:
        digest.update(ask.conversation_id.encode())
        return digest.digest()
    for message in ask.messages:
        digest.update(message.content.encode())
        if message.role == "user":
            break
    return digest.digest()


def derived_seed(ask: Ask, caller: Caller) -> int:
    """The seed of the first answer: the client's, or one of the turn."""
    seed = ask.sampling.seed
    if seed is None:
        seed = int.from_bytes(blake2b(caller.turn_id.encode(), digest_size=8).digest(), "big")
    return seed & UINT64_MASK


def fingerprint_of(words: str) -> str:
    """A short name for what decides the tokens of an answer besides the request."""
    return "fp_" + blake2b(words.encode(), digest_size=16).hexdigest()[:FINGERPRINT_DIGITS]


def _request(ask: Ask, caller: Caller, prompt: Prompt) -> pb.GenerateRequest:
    sampling = ask.sampling
    return pb.GenerateRequest(
        turn_id=caller.turn_id,
        model=ask.model,
        prompt_token_ids=prompt.token_ids,
        max_tokens=prompt.max_tokens,
        sampling=content_pb2.Sampling(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=derived_seed(ask, caller),
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            logit_bias=sampling.logit_bias,
        ),
        stop=pb.StopConditions(strings=ask.stop),
        priority=PRIORITIES[caller.tier],
        # Opaque to the node: it must not learn who asks.
        cache_salt=blake2b(caller.account_id.encode(), digest_size=16, person=b"salt").hexdigest(),
        logprobs=ask.logprobs,
        top_logprobs=ask.top_logprobs,
        response_format=_response_format(ask.response_format),
        calls=_calls(ask, prompt),
    )


def _calls(ask: Ask, prompt: Prompt) -> pb.CallFormat | None:
    if ask.tool_use is None:
        return None
    use = tool_use_of(ask.tool_use)
    for tool in use.tools:
        tool.description = ""  # the prompt has it
    return pb.CallFormat(tool_use=use, syntax=prompt.call_syntax)


def _response_format(wanted: ResponseFormat | None) -> content_pb2.ResponseFormat | None:
    if wanted is None:
        return None
    if wanted.kind == "json_object":
        return content_pb2.ResponseFormat(json_object=True)
    if wanted.kind == "json_schema":
        return content_pb2.ResponseFormat(json_schema=wanted.text)
    if wanted.kind == "regex":
        return content_pb2.ResponseFormat(regex=wanted.text)
    return content_pb2.ResponseFormat(choice=content_pb2.ChoiceList(texts=wanted.choices))


def _pin(instance: str) -> tuple[tuple[str, str], ...]:
    return ((INSTANCE_KEY, instance),) if instance else ()


def _fingerprint(model: pb.Model) -> str:
    numbers = str(model.created_unix_s)  # of a node of yesterday, which tells neither
    if model.weights_digest or model.precision:  # whenever, and on whichever machine, they lie
        numbers = f"{model.weights_digest} {model.precision}"
    return fingerprint_of(f"{model.id} {model.tokenizer_digest} {model.engine} {numbers}")


def _frame(response: pb.GenerateResponse, position: int) -> Frame:
    event = response.WhichOneof("event")
    if event == "tokens":
        tokens = response.tokens
        if tokens.first_position != position:
            raise NodeError.broken("the node is out of step")
        logprobs = [_position(each) for each in tokens.logprobs] if tokens.logprobs else ()
        return Frame(tuple(tokens.token_ids), tokens.text, logprobs)
    if event == "finished":
        finished = response.finished
        reason = FINISH_WORDS.get(finished.finish_reason)
        if reason not in ENDS:
            raise NodeError.broken("the node gave the answer up")
        return Frame(
            text=finished.text,
            finish_reason=reason,
            cached_token_count=finished.usage.cached_token_count,
        )
    return Frame()


def _position(position: pb.PositionLogprobs) -> Logprob:
    def one(token: pb.TokenLogprob, top: Sequence[Logprob] = ()) -> Logprob:
        return Logprob(token.text, token.logprob, top)

    return one(position.chosen, [one(token) for token in position.top])
