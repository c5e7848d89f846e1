"""The engine on tiny models: alone and in company, preempted, continued, cancelled, failing."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY
from safetensors.torch import load_file, save_file

from inference_svc.engine.protocol import (
    BadFormatError,
    DeadlineUnreachableError,
    EngineError,
    EngineRequest,
    FinishReason,
    FormatKind,
    QueueFullError,
    RequestTooLargeError,
    ResponseFormat,
    Sampling,
    StopRule,
)
from inference_svc.engine.torch.engine import TorchEngine, TorchOptions
from inference_svc.engine.torch.transcript import replay
from inference_svc.model_folder import ModelFolder, open_model
from tests.support.backends import EXACT_CASES
from tests.support.toy_folder import write_model
from tests.support.toy_models import FAMILIES, VOCABULARY, make_model, prompt

pytestmark = pytest.mark.usefixtures("one_thread")

BACKENDS = sorted({backend for backend, _ in EXACT_CASES})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelFolder]:
    root = tmp_path_factory.mktemp("families")
    return {
        name: make_model(root / name, FAMILIES[name][0], **FAMILIES[name][1])
        for name in ("llama", "qwen2-window")
    }


@pytest.fixture(scope="module")
def llama(folders) -> ModelFolder:
    return folders["llama"]


@contextlib.asynccontextmanager
async def running(model: ModelFolder, **limits: object) -> AsyncIterator[TorchEngine]:
    options = TorchOptions(
        kv_cache_bytes=1 << 20,
        queue_depth_max=100,
        running_count_max=16,
        step_token_count_max=64,
        kv_block_count=100,
        thread_count=1,
        backend="torch",
        weights="f32",
        kv="f32",
    )
    engine = TorchEngine(model, replace(options, **limits))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def read(stream) -> tuple[list[int], object]:
    ids: list[int] = []
    while True:
        delta = await stream.take()
        ids += delta.token_ids
        if delta.finish:
            return ids, delta.finish


def request(number: int, count: int = 30, limit: int = 24, **fields) -> EngineRequest:
    sampling = fields.pop("sampling", Sampling(temperature=0))
    return EngineRequest(
        str(number), prompt(number, count), StopRule(limit), sampling=sampling, **fields
    )


async def alone(engine: TorchEngine, requests: list[EngineRequest]) -> list[list[int]]:
    return [(await read(engine.submit(one)))[0] for one in requests]


async def together(engine: TorchEngine, requests: list[EngineRequest]) -> list[list[int]]:
    results = await asyncio.gather(*[read(engine.submit(one)) for one in requests])
    return [ids for ids, _ in results]


def mix(sampling) -> list[EngineRequest]:
    return [
        request(number, 1 + 37 * number % 120, 10 + number, sampling=sampling(number))
        for number in range(14)
    ]


SAMPLINGS = {
    "greedy": lambda n: Sampling(temperature=0),
    "plain": lambda n: Sampling(temperature=1.0, seed=n),
    "cut": lambda n: Sampling(temperature=1.3, top_k=40, top_p=0.9, min_p=0.01, seed=n),
    "penalties": lambda n: Sampling(
        temperature=0.7, seed=n, presence_penalty=0.5, frequency_penalty=0.3,
        repetition_penalty=1.1, logit_bias={5: 3.0, 6: -50.0},
    ),
}  # fmt: skip


async def logprobs_of(engine: TorchEngine, one: EngineRequest) -> list[float]:
    stream, found = engine.submit(one), []
    while True:
        delta = await stream.take()
        found += [entry.chosen[1] for entry in delta.logprobs]
        if delta.finish:
            return found


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """Large enough for a BLAS library to choose kernels by the number of rows."""
    shape = {"hidden_size": 256, "intermediate_size": 688, "head_dim": 32}
    return make_model(tmp_path_factory.mktemp("wide") / "m", "llama", **shape)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("threads", "count"), [(1, 9), (2, 3)])
async def test_logits_are_bitwise_the_same_alone_and_batched(wide, backend, threads, count) -> None:
    """Answers of a small model agree by luck; log probabilities show the last bit."""
    requests = [
        request(n, 1 + 61 * n % 150, 4 + n % 5, logprobs=True, sampling=Sampling(seed=n))
        for n in range(count)
    ]
    async with running(wide, backend=backend, thread_count=threads) as engine:
        single = [await logprobs_of(engine, one) for one in requests]
        batched = await asyncio.gather(*[logprobs_of(engine, one) for one in requests])
    assert single == batched


@pytest.mark.parametrize("kind", SAMPLINGS)
@pytest.mark.parametrize("name", ["llama", "qwen2-window"])
async def test_answers_are_the_same_alone_and_batched(folders, name, kind) -> None:
    requests = mix(SAMPLINGS[kind])
    async with running(folders[name]) as engine:
        assert await together(engine, requests) == await alone(engine, requests)
        assert engine.load().kv_block_free_count == 100


@pytest.mark.parametrize("kind", ["greedy", "plain"])
async def test_answers_are_the_same_when_preempted(llama, kind) -> None:
    requests = [request(n, 20, 60, sampling=SAMPLINGS[kind](n)) for n in range(6)]
    async with running(llama) as engine:
        expected = await alone(engine, requests)
    async with running(llama, kv_block_count=12) as engine:
        assert await together(engine, requests) == expected
        assert engine._core._scheduler.preempted_total > 0
        assert engine.load().kv_block_free_count == 12


@pytest.mark.parametrize("kind", SAMPLINGS)
async def test_answers_are_the_same_when_continued(llama, kind) -> None:
    first = request(3, 40, 30, sampling=SAMPLINGS[kind](3))
    async with running(llama) as engine:
        (whole,) = await alone(engine, [first])
        rests = [
            request(3, 40, 30, sampling=SAMPLINGS[kind](3), emitted_token_ids=whole[:cut])
            for cut in (1, 11, 29)
        ]
        assert await together(engine, rests) == [whole[1:], whole[11:], whole[29:]]


async def test_prefix_cache_changes_nothing_but_the_count(llama) -> None:
    async with running(llama) as engine:
        plain, _ = await read(engine.submit(request(5, 70)))
        one = engine.submit(request(5, 70, cache_salt="a"))
        assert (await read(one))[0] == plain
        two = engine.submit(request(5, 70, cache_salt="a"))
        assert (await read(two))[0] == plain
        assert (one.counts.cached, two.counts.cached) == (0, 64)
        assert (two.counts.prefilled, two.counts.output) == (70, 24)
        assert len(engine.load().cached_prefix_hashes) == 5


async def test_seed_decides(llama) -> None:
    async with running(llama) as engine:
        draws = [Sampling(temperature=1.0, seed=seed) for seed in (1, 1, 2)]
        a, b, c = await together(engine, [request(1, sampling=draw) for draw in draws])
    assert a == b != c


async def test_stop_string_is_found_across_tokens_and_in_a_continuation(llama) -> None:
    async with running(llama) as engine:
        ids, finish = await read(engine.submit(request(4, limit=40)))
        text = llama.vocabulary.join(ids).decode("utf-8", "replace")
        assert finish.reason is FinishReason.LENGTH
        printable = [i for i, c in enumerate(text) if c.isascii() and i > 3]
        stop = text[printable[0] : printable[0] + 2]
        rule = StopRule(40, strings=(stop,))
        fields = {"prompt_token_ids": prompt(4, 30), "sampling": Sampling(temperature=0)}
        cut, finish = await read(engine.submit(EngineRequest("s", stop=rule, **fields)))
        assert (finish.reason, finish.stop_string) == (FinishReason.STOP, stop)
        assert cut == ids[: len(cut)]
        again = EngineRequest("c", stop=rule, emitted_token_ids=cut[:-1], **fields)
        assert await read(engine.submit(again)) == (cut[-1:], finish)


async def test_logprobs_are_of_the_plain_distribution(llama) -> None:
    biased = Sampling(temperature=0, logit_bias={7: 100.0})
    async with running(llama) as engine:
        stream = engine.submit(
            request(1, limit=1, sampling=biased, logprobs=True, top_logprob_count=VOCABULARY)
        )
        entries = (await stream.take()).logprobs
        (entry,) = entries or (await stream.take()).logprobs
    assert entry.chosen[0] == 7
    assert sum(2.718281828459045**p for _, p in entry.top) == pytest.approx(1)
    assert entry.top == tuple(sorted(entry.top, key=lambda pair: -pair[1]))
    assert dict(entry.top)[7] == entry.chosen[1] < -1


async def test_cancel_at_any_moment_frees_the_blocks(llama) -> None:
    async with running(llama, running_count_max=4) as engine:
        streams = [engine.submit(request(n, 50, 400)) for n in range(12)]
        for index, stream in enumerate(streams):
            if index < 3:
                await stream.take()
            stream.cancel()
            stream.cancel()
        for stream in streams:
            await stream.ended()
            assert stream.finish.reason is FinishReason.CANCELLED
        load = engine.load()
        assert (load.kv_block_free_count, load.running_count, load.waiting_count) == (100, 0, 0)


async def test_nan_fails_one_request_and_spoils_nothing(llama, tmp_path) -> None:
    tensors = load_file(llama.folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][2] = float("nan")
    broken = write_model(
        tmp_path / "broken", **json.loads((llama.folder / "config.json").read_text())
    )
    save_file(tensors, broken / "model.safetensors")
    good = [request(n, 30, 20) for n in range(3, 6)]
    bad = EngineRequest("bad", [3] * 200 + [2], StopRule(5), sampling=Sampling(temperature=0))
    async with running(llama) as engine:
        expected = await together(engine, good)
    async with running(open_model(str(broken)), kv_block_count=30) as engine:
        stream = engine.submit(bad)
        assert await together(engine, good) == expected
        with pytest.raises(EngineError, match="NaN"):
            await read(stream)
        assert await together(engine, good) == expected  # the blocks that held NaN too
        assert engine.load().kv_block_free_count == 30


def repetitive(number: int, limit: int = 60, **fields) -> EngineRequest:
    ids = prompt(number, 6) * 5
    return EngineRequest(str(number), ids, StopRule(limit), **fields)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["greedy", "plain", "penalties"])
async def test_answers_are_the_same_when_speculated(llama, backend, kind) -> None:
    """A sure model, so that guesses come true: the bias makes it say one of a few tokens."""
    few = dict.fromkeys(range(20, 24), 30.0)
    requests = [
        repetitive(n, sampling=replace(SAMPLINGS[kind](n), logit_bias=few)) for n in range(4)
    ]
    async with running(llama, backend=backend) as engine:
        expected = await alone(engine, requests)
    async with running(llama, backend=backend, speculation="ngram") as engine:
        assert await alone(engine, requests) == expected
        assert await together(engine, requests) == expected
        assert engine.metrics.accepted_tokens > 0
        assert engine.load().kv_block_free_count == 100


@pytest.mark.parametrize("backend", BACKENDS)
async def test_answers_of_one_turn_share_its_prompt(llama, backend) -> None:
    """Without a salt too, and with a prompt that ends within a block."""
    requests = [request(5, 70, sampling=Sampling(seed=seed)) for seed in range(4)]
    async with running(llama, backend=backend) as engine:
        expected = await alone(engine, requests)
        forks = [replace(one, group="turn") for one in requests]
        streams = [engine.submit(one) for one in forks]
        assert [(await read(stream))[0] for stream in streams] == expected
        assert engine.metrics.copies == 3
        assert [stream.counts.cached for stream in streams] == [0, 0, 0, 0]
        assert engine.load().kv_block_free_count == 100


def constrained(number: int, text: str, **fields) -> EngineRequest:
    rule = StopRule(60, token_ids=frozenset({0}))
    wanted = ResponseFormat(FormatKind.REGEX, text)
    return EngineRequest(str(number), prompt(number, 20), rule, response_format=wanted, **fields)


async def test_a_constrained_answer_has_its_form_beside_free_ones(llama) -> None:
    draws = [Sampling(temperature=1.0, seed=n) for n in range(6)]
    requests = [constrained(n, r"[a-c]{5}-[0-9]{4}", sampling=draws[n]) for n in range(6)]
    async with running(llama, speculation="ngram") as engine:
        free, *answers = await together(engine, [request(9), *requests])
        assert free == (await alone(engine, [request(9)]))[0]
        texts = [llama.vocabulary.join(ids).decode() for ids in answers]
        rest = replace(requests[0], emitted_token_ids=answers[0][:4])
        assert (await alone(engine, [rest]))[0] == answers[0][4:]
    assert all(re.fullmatch(r"[a-c]{5}-[0-9]{4}", text) for text in texts)
    assert len(set(texts)) > 1


async def test_a_format_that_cannot_be_compiled_fails_alone(llama) -> None:
    async with running(llama) as engine:
        stream = engine.submit(constrained(1, "("))
        good = engine.submit(request(2))
        with pytest.raises(BadFormatError):
            await read(stream)
        assert len((await read(good))[0]) == 24


async def test_a_cancel_while_the_format_is_compiled_ends_the_stream(llama) -> None:
    async with running(llama) as engine:
        stream = engine.submit(constrained(1, "[a-z]{1,50}"))
        stream.cancel()
        await stream.ended()
        assert stream.finish.reason is FinishReason.CANCELLED
        assert not engine._compiling
        assert len((await read(engine.submit(request(2))))[0]) == 24


async def test_a_deadline_is_kept_by_what_was_measured(llama) -> None:
    async with running(llama) as engine:
        rushed = replace(request(1, 300), time_left_s=1e-6)
        assert len((await read(engine.submit(rushed)))[0]) == 24  # nothing is known yet
        with pytest.raises(DeadlineUnreachableError):
            engine.submit(rushed)
        assert len((await read(engine.submit(replace(rushed, time_left_s=600.0))))[0]) == 24


async def test_a_transcript_is_written_for_its_owner_only_and_replays(llama, tmp_path) -> None:
    file = tmp_path / "transcript.jsonl"
    for _ in range(2):  # two lives of the node
        async with running(
            llama, transcript_file=file, kv_block_count=12, speculation="ngram"
        ) as engine:
            streams = [engine.submit(repetitive(n, 60, cache_salt="a")) for n in range(5)]
            streams[0].cancel()
            for stream in streams[1:]:
                await read(stream)
    lines = file.read_text().splitlines()
    assert file.stat().st_mode & 0o777 == 0o600
    assert any('"preempted"' in line for line in lines)
    assert list(replay(lines)) == lines


async def test_a_transcript_ends_at_its_size(llama, tmp_path, monkeypatch) -> None:
    file = tmp_path / "transcript.jsonl"
    monkeypatch.setattr("inference_svc.engine.torch.transcript.TRANSCRIPT_BYTES_MAX", 2000)
    async with running(llama, transcript_file=file) as engine:
        await together(engine, [request(n) for n in range(5)])
    assert 1000 < file.stat().st_size <= 2000
    lines = file.read_text().splitlines()
    assert list(replay(lines)) == lines


async def test_metrics_are_there_while_it_runs(llama) -> None:
    def value(name: str) -> float | None:
        return REGISTRY.get_sample_value(name, {"model_name": llama.id})

    async with running(llama) as engine:
        await read(engine.submit(request(1)))
        assert value("vllm:generation_tokens_total") == 24
        assert value("vllm:prompt_tokens_total") == 30
        assert value("vllm:kv_cache_usage_perc") == 0
        assert value("vllm:time_to_first_token_seconds_count") == 1
    assert value("vllm:generation_tokens_total") is None


async def test_admission_is_bounded(llama) -> None:
    async with running(llama, queue_depth_max=2, running_count_max=1, kv_block_count=20) as engine:
        with pytest.raises(RequestTooLargeError):
            engine.submit(request(1, 30, 400))
        streams = [engine.submit(request(n, 30, 200)) for n in range(3)]
        with pytest.raises(QueueFullError):
            engine.submit(request(4, 30, 200))
        for stream in streams:
            stream.cancel()
            await stream.ended()
        assert len((await read(engine.submit(request(5))))[0]) == 24


async def test_a_failed_step_fails_its_requests_and_the_engine_goes_on(llama) -> None:
    async with running(llama) as engine:
        expected, _ = await read(engine.submit(request(1)))
        runner = engine._core._runner
        compute = runner.step
        runner.step = lambda chunks: 1 / 0
        with pytest.raises(EngineError, match="The step failed"):
            await read(engine.submit(request(1)))
        runner.step = compute
        assert (await read(engine.submit(request(1))))[0] == expected
        assert engine.load().kv_block_free_count == 100


async def test_a_dead_engine_lets_nobody_hang(llama) -> None:
    async with running(llama) as engine:
        engine._core._scheduler.plan = lambda now_s: 1 / 0
        with pytest.raises(EngineError, match="the engine failed"):
            await read(engine.submit(request(1)))
        await asyncio.wait_for(engine.failed.wait(), 10)
        with pytest.raises(EngineError, match="restarted"):
            engine.submit(request(2))
