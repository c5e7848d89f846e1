"""Which node works at an answer, and how another one goes on."""

import asyncio

import grpc
import pytest

from chatmesh.content.v1 import content_pb2
from chatmesh.inference.v1 import inference_pb2
from chatmesh.mesh.v1 import mesh_pb2
from gateway.turn import generation
from gateway.upstreams.inference import Inference
from gateway.upstreams.pool import Pool
from gateway.upstreams.watch import watch
from tests.support.fakes import FakeInference, Fakes, Script, failure
from tests.support.gateway_turns import TURN, identity, running_gateway
from tests.support.loopback import loopback

GONE = failure(grpc.StatusCode.UNAVAILABLE)
FULL = failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
WORDS = ["One", " two", " three", " four"]


def broken_after(count: int, error=GONE) -> Fakes:
    fakes = Fakes()
    fakes.inference.scripts = [Script(WORDS, break_after=count, error=error), Script(WORDS)]
    return fakes


@pytest.mark.parametrize("count", [0, 1, 3, 4])
async def test_a_broken_stream_goes_on_without_a_gap_or_a_double(count):
    fakes = broken_after(count)
    async with running_gateway(fakes) as gateway:
        gateway.pool.replace({"inference-1": "a", "inference-2": "b"})
        answer = await gateway.post({"stream": True})
    assert answer.text == "One two three four"
    assert answer.frames[-1][1] == "[DONE]"
    first, second = fakes.inference.requests
    assert (first.attempt, second.attempt) == (0, 1)
    assert list(second.emitted_token_ids) == [1000, 1001, 1002, 1003][:count]
    assert set(fakes.inference.pins) == {"inference-1", "inference-2"}
    assert fakes.billing.settled[TURN].output_token_count == 4


@pytest.mark.parametrize(
    ("tier", "priority"),
    [("free", "LOW"), ("pro", "NORMAL"), ("enterprise", "HIGH"), ("admin", "HIGH")],
)
async def test_the_tier_is_the_priority(tier, priority):
    fakes = Fakes()
    async with running_gateway(fakes) as gateway:
        await gateway.post({}, identity(tier=tier))
    (request,) = fakes.inference.requests
    assert inference_pb2.Priority.Name(request.priority) == f"PRIORITY_{priority}"


@pytest.mark.parametrize(
    "error",
    [failure(grpc.StatusCode.CANCELLED), failure(grpc.StatusCode.UNAVAILABLE, "DRAINING")],
)
async def test_other_breaks_that_move_an_answer(error):
    fakes = broken_after(2, error)
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({})
    assert answer.json["choices"][0]["message"]["content"] == "One two three four"


# What a node of the version before, and one of this version, say for CANCELLED.
@pytest.mark.parametrize("finish", [3, content_pb2.FINISH_REASON_CANCELLED, 99])
async def test_a_stream_without_an_end_is_a_broken_one(finish):
    fakes = Fakes()
    given_up = Script(WORDS[:2], finish=finish)
    fakes.inference.scripts = [given_up, Script(WORDS)]
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({})
    assert answer.json["choices"][0]["message"]["content"] == "One two three four"


async def test_the_same_node_is_tried_again_when_there_is_no_other():
    fakes = broken_after(1)
    async with running_gateway(fakes) as gateway:
        gateway.pool.replace({"inference-1": "a"})
        answer = await gateway.post({})
    assert answer.status == 200
    assert fakes.inference.pins == ["inference-1", "inference-1"]


async def test_attempts_are_bounded():
    fakes = Fakes()
    fakes.inference.scripts = [Script(WORDS, break_after=0, error=GONE)]
    async with running_gateway(fakes, node_attempt_count_max=3) as gateway:
        answer = await gateway.post({})
        await gateway.background.finish()
    assert (answer.status, answer.json["error"]["code"]) == (503, "service_unavailable")
    assert answer.json["error"]["metadata"] == {"service": "inference"}
    assert len(fakes.inference.requests) == 3
    # Settled, for each node may report more than came here.
    assert fakes.billing.settled[TURN].output_token_count == 0
    assert fakes.billing.released == []


async def test_a_full_node_sends_the_request_to_another():
    fakes = Fakes()
    fakes.inference.faults.add("Generate", FULL)
    async with running_gateway(fakes) as gateway:
        gateway.pool.replace({"inference-1": "a", "inference-2": "b"})
        answer = await gateway.post({})
    assert answer.status == 200
    assert sorted(fakes.inference.pins) == ["inference-1", "inference-2"]


async def test_when_all_are_full_the_client_is_told_at_once_when_to_come_back():
    fakes = Fakes()
    fakes.inference.faults.add("Generate", FULL, FULL, FULL)
    async with running_gateway(fakes) as gateway:
        gateway.pool.replace({"inference-1": "a", "inference-2": "b"})
        answer = await gateway.post({"stream": True})
    assert (answer.status, answer.json["error"]["code"]) == (503, "overloaded")
    assert int(answer.headers["retry-after"]) >= 1
    assert len(fakes.inference.requests) == 2


class Refusing(FakeInference):
    """Full for some choices, so many times."""

    def __init__(self, refusals: dict[int, int], error=FULL) -> None:
        super().__init__()
        self.refusals, self.error = refusals, error

    async def Generate(self, request, context):  # noqa: N802
        if self.refusals.get(request.choice_index):
            self.refusals[request.choice_index] -= 1
            raise self.error
        async for response in super().Generate(request, context):
            yield response


@pytest.fixture
def short_waits(monkeypatch):
    monkeypatch.setattr(generation, "FULL_WAIT_S", 0.01)


@pytest.mark.parametrize("reason", ["QUEUE_FULL", "DEADLINE_UNREACHABLE"])
async def test_what_is_refused_of_an_answer_of_several_waits_for_its_place(short_waits, reason):
    error = failure(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
    fakes = Fakes(inference=Refusing({3: 12, 1: 1}, error))
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"n": 4})
        await gateway.background.finish()
    texts = [each["message"]["content"] for each in answer.json["choices"]]
    assert texts == ["Hello wide world."] * 4
    # Each is generated once, under an attempt of its own.
    assert sorted(each.choice_index for each in fakes.inference.requests) == [0, 1, 2, 3]
    attempts = {each.choice_index: each.attempt for each in fakes.inference.requests}
    assert attempts == {0: 0, 1: 1, 2: 0, 3: 12}
    assert fakes.billing.settled[TURN].output_token_count == 4 * 4


async def test_the_first_of_several_answers_is_refused_for_all_and_nothing_is_generated():
    fakes = Fakes(inference=Refusing({0: 99}))
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"n": 4})
        await gateway.background.finish()
    assert (answer.status, answer.json["error"]["code"]) == (503, "overloaded")
    assert fakes.inference.requests == []
    assert fakes.billing.released == [TURN]


async def test_an_answer_that_was_begun_waits_for_the_other_node_to_have_room(short_waits):
    fakes = broken_after(2)
    broken, rest = fakes.inference.scripts
    full = Script(WORDS, break_after=0, error=FULL)
    fakes.inference.scripts = [broken, full, full, rest]
    async with running_gateway(fakes) as gateway:
        gateway.pool.replace({"inference-1": "a", "inference-2": "b"})
        answer = await gateway.post({})
    assert answer.json["choices"][0]["message"]["content"] == "One two three four"


async def test_the_wait_for_full_nodes_has_an_end(short_waits):
    fakes = Fakes(inference=Refusing({1: 999}))
    async with running_gateway(fakes, full_wait_s_max=0.05, node_attempt_count_max=1) as gateway:
        answer = await gateway.post({"n": 2})
        await gateway.background.finish()
    assert (answer.status, answer.json["error"]["code"]) == (503, "overloaded")


async def test_a_conversation_stays_with_its_node():
    async with running_gateway() as gateway:
        gateway.pool.replace({f"inference-{number}": "" for number in range(5)})
        for words in ("more", "even more"):
            later = [
                {"role": "user", "content": "The same first question"},
                {"role": "assistant", "content": "yes"},
                {"role": "user", "content": words},
            ]
            await gateway.post({"messages": later})
    assert len(set(gateway.fakes.inference.pins)) == 1


async def test_the_pool_follows_the_mesh_and_the_nodes_reports():
    fakes, pool = Fakes(), Pool()
    views: asyncio.Queue[tuple[mesh_pb2.Instance, ...]] = asyncio.Queue()

    async def instances():
        while True:
            yield await views.get()

    def instance(name: str, state=mesh_pb2.INSTANCE_STATE_SERVING) -> mesh_pb2.Instance:
        return mesh_pb2.Instance(service="inference", name=name, address="x", state=state)

    async def until(condition) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110  # the pool announces nothing
                await asyncio.sleep(0.001)

    async with loopback(fakes.registrations()) as channel:
        watching = asyncio.create_task(watch(pool, Inference(channel), instances()))
        draining = mesh_pb2.INSTANCE_STATE_DRAINING
        views.put_nowait((instance("inference-1"), instance("inference-2", draining)))
        await until(lambda: any(node.load.kv_block_count for node in pool.nodes))
        assert [node.name for node in pool.nodes] == ["inference-1"]
        assert pool.nodes[0].load.kv_block_free_count == 90
        views.put_nowait(())
        await until(lambda: not pool.nodes)
        watching.cancel()
        await asyncio.wait([watching])
