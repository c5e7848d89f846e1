"""What the gateway's adoption of a turn stands on: an answer that is generated again behind its
first k tokens goes on byte for byte, wherever k is, and one that was complete ends at once.

Through the service, so that "the text that was final at token k" is what its messages hold: the
messages of the same request with max_tokens k, whose held-back text comes with the end instead.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from chatmesh.content.v1 import content_pb2
from chatmesh.inference.v1 import inference_pb2 as pb
from inference_svc.engine.simulated import AnswerLength, SimulatedEngine, Timing
from inference_svc.engine.torch.engine import TorchEngine, TorchOptions
from inference_svc.model_folder import ModelFolder
from tests.support.backends import EXACT_CASES
from tests.support.inference_node import NodeUnderTest, output_ids, serving
from tests.support.toy_folder import EOS, ids_of
from tests.support.toy_models import prompt

pytestmark = pytest.mark.usefixtures("one_thread")

STOP, LENGTH = content_pb2.FINISH_REASON_STOP, content_pb2.FINISH_REASON_LENGTH
LIMIT = 26
RUNNING_COUNT_MAX = 16
BACKENDS = sorted({backend for backend, _ in EXACT_CASES})


@dataclass(frozen=True)
class Said:
    """One stream.

    Attributes:
        sent: (tokens of the answer that were sent by then, text of all messages by then), for the
            beginning and behind each message with tokens.
        rest: the text that came with the end.
    """

    ids: list[int]
    sent: list[tuple[int, str]]
    rest: str
    reason: int
    stop_string: str

    @property
    def text(self) -> str:
        return self.sent[-1][1] + self.rest

    @property
    def end(self) -> tuple[str, int, str]:
        return self.rest, self.reason, self.stop_string


def said(messages: list[pb.GenerateResponse], emitted_count: int = 0) -> Said:
    sent = [(emitted_count, "")]
    for tokens in (m.tokens for m in messages if m.HasField("tokens")):
        assert tokens.first_position == sent[-1][0]
        sent.append((tokens.first_position + len(tokens.token_ids), sent[-1][1] + tokens.text))
    end = messages[-1].finished
    return Said(output_ids(messages), sent, end.text, end.finish_reason, end.stop_string)


async def generated(node: NodeUnderTest, fields: dict, requests: list[dict]) -> list[Said]:
    """Variants of one request, each a generation of its own; as many at once as run at once."""
    limit = asyncio.Semaphore(RUNNING_COUNT_MAX)

    async def one(changed: dict) -> Said:
        async with limit:
            messages = await node.generate(**(fields | changed))
        return said(messages, len(changed.get("emitted_token_ids", ())))

    return await asyncio.gather(*map(one, requests))


async def check_every_cut(node: NodeUnderTest, fields: dict) -> Said:
    """Asserts that the answer goes on the same behind each of its tokens; returns it whole."""
    (whole,) = await generated(node, fields, [{}])
    count = len(whole.ids)
    shorter = await generated(node, fields, [{"max_tokens": cut} for cut in range(1, count)])
    final = ["", *(each.sent[-1][1] for each in shorter), whole.sent[-1][1]]
    assert [each.ids for each in shorter] == [whole.ids[:cut] for cut in range(1, count)]
    assert [text for _, text in whole.sent] == [final[cut] for cut, _ in whole.sent]
    cuts = range(count + 1)
    rests = await generated(
        node, fields, [{"attempt": 1, "emitted_token_ids": whole.ids[:cut]} for cut in cuts]
    )
    for cut, rest in zip(cuts, rests, strict=True):
        assert whole.ids[:cut] + rest.ids == whole.ids
        assert [final[cut] + text for _, text in rest.sent] == [final[at] for at, _ in rest.sent]
        assert final[cut] + rest.text == whole.text
        assert rest.end == whole.end
    assert rests[-1].sent == [(count, "")]  # ended at once, without a token
    return whole


# ---- the torch engine


ENGINES = [(b, *how) for b in BACKENDS for how in (("off", "f32"), ("ngram", "int8"))]


@pytest.fixture(scope="module", params=ENGINES, ids="-".join)
def engine_options(request) -> TorchOptions:
    backend, speculation, kind = request.param
    return TorchOptions(
        kv_cache_bytes=1 << 20,
        queue_depth_max=100,
        running_count_max=RUNNING_COUNT_MAX,
        kv_block_count=200,
        thread_count=1,
        backend=backend,
        weights=kind,
        kv=kind,
        speculation=speculation,
    )


@pytest.fixture
async def node(llama, engine_options, tmp_path) -> AsyncIterator[NodeUnderTest]:
    engine = TorchEngine(llama, engine_options)
    async with serving(llama, engine, tmp_path, flush_window_s=0.001) as served:
        yield served


def favouring(model: ModelFolder, text: str, bias: float = 40.0) -> dict[int, float]:
    """Answers in the bytes of `text` and the tokens "ST" and "OP": half characters and stops."""
    pieces = [i for i in range(model.vocabulary.size) if model.vocabulary.token_bytes(i) in PIECES]
    return dict.fromkeys([*ids_of(model, text), *pieces], bias)


PIECES = (b"ST", b"OP")
SAMPLINGS = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 1.0},
    "hot": {"temperature": 1.7, "top_k": 40, "top_p": 0.95, "min_p": 0.001},
    "penalties": {
        "temperature": 0.8,
        "presence_penalty": 0.6,
        "frequency_penalty": 0.4,
        "repetition_penalty": 1.2,
    },
}


def asked(kind: str, seed: int, **fields) -> dict:
    bias = fields.pop("logit_bias", None)
    sampling = content_pb2.Sampling(seed=seed, logit_bias=bias, **SAMPLINGS[kind])
    ids = prompt(seed, 6) * 4  # repetitive: there is something to look up
    return {"prompt_token_ids": ids, "max_tokens": LIMIT, "sampling": sampling, **fields}


@pytest.mark.parametrize("kind", SAMPLINGS)
async def test_any_sampling(node, kind) -> None:
    for seed in (1, 2):
        whole = await check_every_cut(node, asked(kind, seed))
        assert len(whole.ids) > LIMIT / 2
        assert "\ufffd" in whole.text  # random bytes: most are no characters


@pytest.mark.parametrize("kind", ["plain", "hot"])
async def test_stop_strings_and_half_characters(node, llama, kind) -> None:
    """Of eight seeds some answers end by a stop string, some in what may be the start of one."""
    bias = favouring(llama, "é€S")
    stop = pb.StopConditions(strings=["STOP", "OP€", "éé€S"])
    ends, held_count = set(), 0
    for seed in range(8):
        whole = await check_every_cut(node, asked(kind, seed, logit_bias=bias, stop=stop))
        ends.add(whole.stop_string)
        held_count += bool(whole.rest)
        assert whole.reason == (STOP if whole.stop_string else LENGTH)
        assert not any(text in whole.text for text in stop.strings)
    assert {"", "STOP"} <= ends
    assert held_count


async def test_the_end_of_sequence_releases_what_was_held(node, llama) -> None:
    bias = favouring(llama, "S€") | {EOS: 39.0}
    stop = pb.StopConditions(strings=["SSSSS", "STSTST"])
    ended, held_count = 0, 0
    for seed in range(6):
        whole = await check_every_cut(node, asked("plain", seed, logit_bias=bias, stop=stop))
        by_token = whole.reason == STOP and not whole.stop_string
        assert by_token == (whole.ids[-1] == EOS)
        ended += by_token
        held_count += by_token and bool(whole.rest)
    assert ended
    assert held_count


SCHEMA = {
    "type": "object",
    "properties": {
        "né": {"type": "string", "maxLength": 6},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["né", "n"],
    "additionalProperties": False,
}


async def test_a_response_format(node) -> None:
    wanted = content_pb2.ResponseFormat(json_schema=json.dumps(SCHEMA))
    ended = 0
    for kind, seed in (("greedy", 0), ("plain", 1), ("hot", 2)):
        fields = asked(kind, seed, response_format=wanted, max_tokens=48)
        whole = await check_every_cut(node, fields)
        if whole.reason == STOP:
            ended += 1
            assert set(json.loads(whole.text)) == {"né", "n"}
    assert ended


async def test_a_response_format_with_a_stop_string_inside(node) -> None:
    wanted = content_pb2.ResponseFormat(json_schema=json.dumps(SCHEMA))
    stop = pb.StopConditions(strings=['", "n": '])
    whole = await check_every_cut(
        node, asked("plain", 1, response_format=wanted, stop=stop, max_tokens=48)
    )
    assert (whole.reason, whole.stop_string) == (STOP, '", "n": ')
    assert whole.text.startswith('{"né": "')


# ---- the simulated engine


@pytest.mark.parametrize("timing", [Timing(batch_token_count=3), Timing(token_interval_ms=0.2)])
@pytest.mark.parametrize(
    ("strings", "expected"),
    [
        ([], {"", LENGTH}),
        (["café a", "ïve", "tower is", "lamp"], {"", "ïve", "café a"}),
        ([". ", "s the"], {". ", "s the"}),
    ],
)
async def test_the_simulated_engine(model, tmp_path, timing, strings, expected) -> None:
    engine = SimulatedEngine(
        model.vocabulary,
        model.eos_token_ids,
        timing=timing,
        length=AnswerLength(20, 130),
        block_count=1000,
        queue_depth_max=100,
        running_count_max=RUNNING_COUNT_MAX,
    )
    ends = set()
    async with serving(model, engine, tmp_path, flush_window_s=0.001) as node:
        for seed in range(8):
            fields = {
                "prompt_token_ids": prompt(seed, 20),
                "max_tokens": 80,
                "sampling": content_pb2.Sampling(seed=seed),
                "stop": pb.StopConditions(strings=strings),
            }
            whole = await check_every_cut(node, fields)
            ends.add(LENGTH if whole.reason == LENGTH else whole.stop_string)
    assert ends >= expected
