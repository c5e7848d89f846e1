"""InferenceService over the wire, on the simulated engine and a real Redis."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import redis.asyncio as redis

from chatmesh.billing.v1 import billing_pb2
from chatmesh.content.v1 import content_pb2
from chatmesh.inference.v1 import inference_pb2
from inference_svc.engine.protocol import (
    BadFormatError,
    DeadlineUnreachableError,
    EngineError,
    EngineRequest,
    FormatKind,
    ResponseFormat,
)
from inference_svc.engine.simulated import AnswerLength, SimulatedEngine, Timing
from inference_svc.engine.stream import TokenStream
from inference_svc.model_folder import ModelFolder
from mesh.chassis.errors import MeshError
from tests.support.inference_node import (
    DEADLINE_S,
    NO_REDIS,
    TURN,
    NodeUnderTest,
    output_ids,
    serving,
    text_of,
)


@contextlib.asynccontextmanager
async def running(
    model: ModelFolder,
    tmp_path: Path,
    redis_url: str = NO_REDIS,
    *,
    timing: Timing | None = None,
    engine_type: type[SimulatedEngine] = SimulatedEngine,
    **limits: int,
) -> AsyncIterator[NodeUnderTest]:
    limits = {"block_count": 100, "queue_depth_max": 4, "running_count_max": 8} | limits
    engine = engine_type(
        model.vocabulary,
        model.eos_token_ids,
        timing=timing or Timing(),
        length=AnswerLength(12, 18),
        **limits,
    )
    async with serving(model, engine, tmp_path, redis_url) as node:
        yield node


async def failure(call: AsyncIterator) -> MeshError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    return MeshError.from_rpc(caught.value)


async def usage_events(url: str) -> list[billing_pb2.UsageEvent]:
    async with redis.Redis.from_url(url) as client:
        entries = await client.xrange("usage")
    return [billing_pb2.UsageEvent.FromString(fields[b"event"]) for _, fields in entries]


def ranges(events: list[billing_pb2.UsageEvent]) -> list[tuple[str, int, int]]:
    name = billing_pb2.UsageKind.Name
    return [
        (name(e.kind).removeprefix("USAGE_KIND_"), e.first_position, e.end_position) for e in events
    ]


NEVER_ENDING = Timing(token_interval_ms=3_600_000)


async def until_running(node: NodeUnderTest, count: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        async for load in node.stub.WatchLoad(inference_pb2.WatchLoadRequest(min_interval_ms=10)):
            if load.running_count + load.waiting_count == count:
                return


async def test_stream_has_started_tokens_finished(model, tmp_path) -> None:
    async with running(model, tmp_path) as node:
        messages = await node.generate()
    kinds = [m.WhichOneof("event") for m in messages]
    assert (kinds[0], set(kinds[1:-1]), kinds[-1]) == ("started", {"tokens"}, "finished")
    assert messages[0].started.instance == "inference-1"
    finished = messages[-1].finished
    assert finished.finish_reason == content_pb2.FINISH_REASON_STOP
    assert finished.usage.output_token_count == len(output_ids(messages))
    assert finished.usage.prompt_token_count == 40
    assert text_of(messages) == model.vocabulary.join(output_ids(messages)).decode()


async def test_max_tokens_ends_with_length(model, tmp_path) -> None:
    async with running(model, tmp_path) as node:
        messages = await node.generate(max_tokens=5)
    assert len(output_ids(messages)) == 5
    assert messages[-1].finished.finish_reason == content_pb2.FINISH_REASON_LENGTH


async def test_ignore_eos_runs_to_max_tokens(model, tmp_path) -> None:
    async with running(model, tmp_path) as node:
        stop = inference_pb2.StopConditions(ignore_eos=True)
        assert len(output_ids(await node.generate(max_tokens=90, stop=stop))) == 90


@pytest.mark.parametrize("timing", [Timing(), Timing(token_interval_ms=1)])
async def test_continuation_draws_the_same_rest(model, tmp_path, timing) -> None:
    async with running(model, tmp_path, timing=timing) as node:
        whole = await node.generate()
        ids = output_ids(whole)
        rest = await node.generate(attempt=1, emitted_token_ids=ids[:7])
    assert output_ids(rest) == ids[7:]
    assert next(m for m in rest if m.HasField("tokens")).tokens.first_position == 7
    assert rest[-1].finished.usage.output_token_count == len(ids)


async def test_continuation_of_a_finished_answer_ends_at_once(model, tmp_path) -> None:
    async with running(model, tmp_path) as node:
        ids = output_ids(await node.generate())
        rest = await node.generate(attempt=1, emitted_token_ids=ids)
    assert [m.WhichOneof("event") for m in rest] == ["started", "finished"]
    assert rest[-1].finished.finish_reason == content_pb2.FINISH_REASON_STOP


async def test_stop_string_cuts_the_text(model, tmp_path) -> None:
    async with running(model, tmp_path) as node:
        text = text_of(await node.generate())
        stop = text[6:10]
        messages = await node.generate(stop=inference_pb2.StopConditions(strings=[stop]))
    assert text_of(messages) == text[: text.index(stop)]
    assert messages[-1].finished.stop_string == stop


async def test_logprobs_are_reported_when_asked(model, tmp_path) -> None:
    async with running(model, tmp_path) as node:
        messages = await node.generate(logprobs=True)
    entries = [e for m in messages for e in m.tokens.logprobs]
    assert [e.chosen.token_id for e in entries] == output_ids(messages)


BAD = {
    "turn_id": {"turn_id": ""},
    "choice_index": {"choice_index": 4},
    "step": {"step": 128},
    "prompt_token_ids": {"prompt_token_ids": [2, 9999]},
    "max_tokens": {"max_tokens": 0},
    "emitted_token_ids": {"emitted_token_ids": range(2, 40)},
    "top_logprobs": {"top_logprobs": 21},
    "cache_salt": {"cache_salt": "x" * 257},
    "response_format": {"response_format": content_pb2.ResponseFormat(json_object=True)},
    "response_format.json_schema": {
        "response_format": content_pb2.ResponseFormat(json_schema="x" * 65_537)
    },
    "response_format.regex": {"response_format": content_pb2.ResponseFormat(regex="x" * 4097)},
    "response_format.choice": {
        "response_format": content_pb2.ResponseFormat(choice=content_pb2.ChoiceList())
    },
    "stop.ignore_eos": {
        "response_format": content_pb2.ResponseFormat(json_object=True),
        "stop": inference_pb2.StopConditions(ignore_eos=True),
    },
    "stop.strings": {"stop": inference_pb2.StopConditions(strings=[""])},
    "stop.token_ids": {"stop": inference_pb2.StopConditions(token_ids=[9999])},
    "sampling.temperature": {"sampling": content_pb2.Sampling(temperature=float("nan"))},
    "sampling.top_p": {"sampling": content_pb2.Sampling(top_p=0)},
    "sampling.top_k": {"sampling": content_pb2.Sampling(top_k=9999)},
    "sampling.logit_bias": {"sampling": content_pb2.Sampling(logit_bias={3: 101})},
}


@pytest.mark.parametrize("field", BAD)
async def test_bad_request_names_the_field(model, tmp_path, field) -> None:
    async with running(model, tmp_path) as node:
        error = await failure(node.stub.Generate(node.request(**BAD[field])))
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST")
    assert error.metadata["field"] == (field if "format." not in field else "response_format")


class AskedEngine(SimulatedEngine):
    """Notes what it is asked for, and has no time for impatient ones."""

    asked: EngineRequest

    def submit(self, request: EngineRequest) -> TokenStream:
        type(self).asked = request
        if request.time_left_s is not None and request.time_left_s < 5:
            raise DeadlineUnreachableError(request.time_left_s, 7.5)
        if request.response_format is None:
            return super().submit(request)
        stream = TokenStream(0, lambda: None)
        stream.fail(BadFormatError("This schema cannot be compiled; leave out patternProperties."))
        return stream


async def test_a_deadline_out_of_reach_is_refused_with_a_hint(model, tmp_path) -> None:
    async with running(model, tmp_path, engine_type=AskedEngine) as node:
        error = await failure(node.stub.Generate(node.request(), timeout=4))
        assert (error.code, error.reason) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED, "DEADLINE_UNREACHABLE"
        )  # fmt: skip
        assert 2.5 < error.retry_after_s < 5  # late by so much; the wire rounds deadlines
        assert (await node.generate())[-1].HasField("finished")
        assert 5 < AskedEngine.asked.time_left_s < 2 * DEADLINE_S
        assert AskedEngine.asked.group == TURN


FORMATS = {
    "object": ({"json_object": True}, ResponseFormat(FormatKind.JSON_OBJECT)),
    "schema": ({"json_schema": "{}"}, ResponseFormat(FormatKind.JSON_SCHEMA, "{}")),
    "regex": ({"regex": "a+"}, ResponseFormat(FormatKind.REGEX, "a+")),
    "choice": (
        {"choice": content_pb2.ChoiceList(texts=["a", "b"])},
        ResponseFormat(FormatKind.CHOICE, choices=("a", "b")),
    ),
}


@pytest.mark.parametrize("kind", FORMATS)
async def test_a_format_reaches_the_engine_and_its_fault_the_caller(model, tmp_path, kind) -> None:
    fields, expected = FORMATS[kind]
    async with running(model, tmp_path, engine_type=AskedEngine) as node:
        wanted = content_pb2.ResponseFormat(**fields)
        error = await failure(
            node.stub.Generate(node.request(response_format=wanted), timeout=DEADLINE_S)
        )
    assert AskedEngine.asked.response_format == expected
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST")
    assert error.metadata == {"field": "response_format"}
    assert "patternProperties" in error.message


async def test_prompt_too_long(model, tmp_path) -> None:
    async with running(model, tmp_path) as node:
        error = await failure(node.stub.Generate(node.request(max_tokens=500)))
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "PROMPT_TOO_LONG")
    assert error.metadata == {"limit": "512", "count": "540"}


async def test_model_not_found(model, tmp_path) -> None:
    async with running(model, tmp_path) as node:
        error = await failure(node.stub.Generate(node.request(model="other")))
    assert (error.code, error.reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
    assert error.metadata == {"model": "other"}


async def test_request_too_large(model, tmp_path) -> None:
    async with running(model, tmp_path, block_count=3) as node:
        error = await failure(node.stub.Generate(node.request()))
    assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "REQUEST_TOO_LARGE")
    assert error.retry_after_s is None


async def test_queue_full_has_a_retry_hint_and_the_others_go_on(model, tmp_path) -> None:
    async with running(
        model, tmp_path, timing=NEVER_ENDING, running_count_max=1, queue_depth_max=1
    ) as node:
        calls = [node.stub.Generate(node.request()) for _ in range(2)]
        for call in calls:
            await call.read()
        error = await failure(node.stub.Generate(node.request()))
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
        assert error.retry_after_s == 1.0
        load = node.engine.load()
        assert (load.running_count, load.waiting_count) == (1, 1)
        for call in calls:
            call.cancel()
        await asyncio.wait_for(node.generations.idle(), DEADLINE_S)


async def test_drain_refuses_new_and_finishes_running(model, tmp_path) -> None:
    async with running(model, tmp_path, timing=Timing(token_interval_ms=5)) as node:
        messages = aiter(node.stub.Generate(node.request()))
        await anext(messages)
        answer = await node.stub.Drain(inference_pb2.DrainRequest())
        assert answer.remaining_count == 1
        error = await failure(node.stub.Generate(node.request()))
        assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert [m async for m in messages][-1].HasField("finished")
        load = await anext(aiter(node.stub.WatchLoad(inference_pb2.WatchLoadRequest())))
        assert load.draining


class FailingEngine(SimulatedEngine):
    def submit(self, request: EngineRequest) -> TokenStream:
        stream = super().submit(request)
        if request.priority < 0:
            stream.cancel()
            stream.fail(EngineError("NaN logits"))
        return stream


async def test_engine_failure_hits_one_request_only(model, tmp_path) -> None:
    async with running(model, tmp_path, engine_type=FailingEngine) as node:
        low = node.request(priority=inference_pb2.PRIORITY_LOW)
        error = await failure(node.stub.Generate(low))
        assert (error.code, error.reason) == (grpc.StatusCode.INTERNAL, "ENGINE_FAILED")
        assert (await node.generate())[-1].HasField("finished")


async def test_cancel_frees_the_blocks(model, tmp_path) -> None:
    async with running(model, tmp_path, timing=NEVER_ENDING) as node:
        call = node.stub.Generate(node.request())
        await call.read()
        await until_running(node, 1)
        assert node.engine.load().kv_block_free_count < 100
        call.cancel()
        await asyncio.wait_for(node.generations.idle(), DEADLINE_S)
        load = node.engine.load()
        assert (load.kv_block_free_count, load.running_count) == (100, 0)


async def test_list_models(model, tmp_path) -> None:
    async with running(model, tmp_path) as node:
        (found,) = (await node.stub.ListModels(inference_pb2.ListModelsRequest())).models
    assert (found.id, found.context_token_count_max) == ("toy", 512)
    assert (found.engine, found.tokenizer_digest) == ("simulated", model.vocabulary.digest)
    assert (found.draws_by_position, found.weights_digest) == (True, "")
    assert found.precision == node.engine.precision
    assert found.precision.startswith("script 12-18 ")


async def test_watch_load_reports_at_once_and_on_change(model, tmp_path) -> None:
    async with running(model, tmp_path, timing=NEVER_ENDING) as node:
        watch = node.stub.WatchLoad(inference_pb2.WatchLoadRequest(min_interval_ms=10))
        first = await watch.read()
        assert (first.running_count, first.kv_block_count) == (0, 100)
        assert (first.kv_block_token_count, first.queue_depth_max) == (16, 4)
        call = node.stub.Generate(node.request())
        async with asyncio.timeout(DEADLINE_S):
            while (report := await watch.read()).running_count != 1:
                pass
        assert len(report.cached_prefix_hashes) == 2
        call.cancel()
        bad = node.stub.WatchLoad(inference_pb2.WatchLoadRequest(min_interval_ms=5))
        assert (await failure(bad)).metadata == {"field": "min_interval_ms"}


async def test_usage_of_a_finished_answer(model, tmp_path, redis_url) -> None:
    async with running(model, tmp_path, redis_url) as node:
        count = len(output_ids(await node.generate()))
        rest = output_ids(await node.generate(attempt=1, emitted_token_ids=[2, 3]))
        await node.generate(choice_index=1, max_tokens=3)
    events = await usage_events(redis_url)
    assert ranges(events) == [
        ("INPUT", 0, 40),
        ("OUTPUT", 0, count),
        ("CACHED_INPUT", 0, 32),
        ("INPUT", 32, 40),
        ("OUTPUT", 2, 2 + len(rest)),
        ("OUTPUT", 0, 3),
    ]
    assert {(e.turn_id, e.model, e.instance) for e in events} == {(TURN, "toy", "inference-1")}
    assert [e.attempt for e in events] == [0, 0, 1, 1, 1, 0]


async def test_a_further_step_is_metered_as_its_own_and_draws_its_own_tokens(
    model, tmp_path, redis_url
) -> None:
    async with running(model, tmp_path, redis_url) as node:
        first, further, again = [
            output_ids(await node.generate(step=step, max_tokens=3)) for step in (0, 2, 2)
        ]
    assert further == again
    assert further != first
    events = await usage_events(redis_url)
    assert {
        (e.step, e.end_position) for e in events if e.kind == billing_pb2.USAGE_KIND_OUTPUT
    } == {
        (0, 3),
        (2, 3),
    }


async def test_usage_of_a_cancelled_answer_is_what_was_generated(
    model, tmp_path, redis_url
) -> None:
    timing = Timing(token_interval_ms=5)
    async with running(model, tmp_path, redis_url, timing=timing) as node:
        stop = inference_pb2.StopConditions(ignore_eos=True)
        call = node.stub.Generate(node.request(max_tokens=400, stop=stop))
        while not (await call.read()).HasField("tokens"):
            pass
        call.cancel()
        await asyncio.wait_for(node.generations.idle(), DEADLINE_S)
    found = ranges(await usage_events(redis_url))
    assert found[0] == ("INPUT", 0, 40)
    begins, ends = [r[1] for r in found[1:]], [r[2] for r in found[1:]]
    assert begins == [0, *ends[:-1]]  # each position once, without a gap
    assert 0 < ends[-1] < 400


async def test_a_turn_that_is_cancelled_before_its_first_token_costs_nothing(
    model, tmp_path, redis_url
) -> None:
    timing = Timing(prefill_tokens_per_s=1e-3)
    async with running(model, tmp_path, redis_url, timing=timing) as node:
        call = node.stub.Generate(node.request())
        await until_running(node, 1)
        call.cancel()
        await asyncio.wait_for(node.generations.idle(), DEADLINE_S)
    assert await usage_events(redis_url) == []


async def test_what_nobody_is_charged_for_is_not_metered(model, tmp_path, redis_url) -> None:
    async with running(model, tmp_path, redis_url) as node:
        free = await node.generate(unmetered=True)
        await node.generate(turn_id="01JD0000000000000000000001")
    assert output_ids(free)
    events = await usage_events(redis_url)
    assert {each.turn_id for each in events} == {"01JD0000000000000000000001"}


async def test_usage_is_reported_while_it_runs(model, tmp_path, redis_url) -> None:
    async with running(model, tmp_path, redis_url, timing=Timing(token_interval_ms=5)) as node:
        stop = inference_pb2.StopConditions(ignore_eos=True)
        call = node.stub.Generate(node.request(max_tokens=400, stop=stop))
        async with redis.Redis.from_url(redis_url) as client:
            assert await client.xread({"usage": "0"}, block=DEADLINE_S * 1000)
        call.cancel()


async def test_redis_away_spools_and_the_next_life_replays(model, tmp_path, redis_url) -> None:
    async with running(model, tmp_path) as node:  # nobody listens on port 1
        count = len(output_ids(await node.generate()))
    assert (tmp_path / "usage.spool").stat().st_size > 0
    async with running(model, tmp_path, redis_url) as node:
        pass
    assert ranges(await usage_events(redis_url)) == [("INPUT", 0, 40), ("OUTPUT", 0, count)]
    assert (tmp_path / "usage.spool").stat().st_size == 0


async def test_a_node_that_cannot_account_refuses(model, tmp_path) -> None:
    async with running(model, tmp_path) as node:
        node.usage._spool.byte_count = 1 << 20
        error = await failure(node.stub.Generate(node.request()))
        node.usage._spool.byte_count = 0
    assert (error.reason, error.retry_after_s) == ("QUEUE_FULL", 5.0)
