"""The torch engine against transformers, and against itself: batched, preempted, continued."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from inference_svc.engine.protocol import (
    EngineError,
    EngineRequest,
    FinishReason,
    QueueFullError,
    RequestTooLargeError,
    Sampling,
    StopRule,
)
from inference_svc.engine.torch.engine import TorchEngine
from inference_svc.engine.torch.model_runner import ModelRunner
from inference_svc.engine.torch.models.invariant import Linear, padded, row_count_for
from inference_svc.engine.torch.scheduler import Chunk
from inference_svc.engine.torch.sequence import Sequence
from inference_svc.model_folder import ModelFolder, open_model
from tests.unit.inference.conftest import WORDS, write_model

VOCABULARY = 2 + 256 + len(WORDS)
CONTEXT = 512
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "eos_token_id": 0,
    "bos_token_id": None,
    "pad_token_id": 1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-one-group": ("llama", {"num_key_value_heads": 4, "hidden_size": 52, "head_dim": 18}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0,
                                                   "rope_theta": 10000.0}}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": 20}),
    "qwen2": ("qwen2", {}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 24,
                               "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 24}),
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_model(folder: Path, family: str, **config: object) -> ModelFolder:
    torch.manual_seed(7)
    reference = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(family, **(SHAPE | config)), dtype=torch.float32
    )
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            # Biases and norms start trivial, and small weights hide errors: make all of them count.
            spread = 0.3 if parameter.ndim == 1 else 2.0 * parameter.shape[-1] ** -0.5
            parameter.normal_(1.0 if "norm" in name else 0.0, spread)
    write_model(folder)
    reference.save_pretrained(folder)
    return open_model(str(folder))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelFolder]:
    root = tmp_path_factory.mktemp("families")
    return {name: make_model(root / name, kind, **c) for name, (kind, c) in FAMILIES.items()}


@pytest.fixture(scope="module")
def llama(folders) -> ModelFolder:
    return folders["llama"]


def prompt(seed: int, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (count,), generator=generator).tolist()


def logits_in_chunks(model: ModelFolder, ids: list[int], cuts: list[int]) -> torch.Tensor:
    """Logits at the last token, computed in chunks over scattered blocks."""
    runner = ModelRunner(model, 1 << 20, 40)
    sequence = Sequence(EngineRequest("x", ids, StopRule(8)), None, 0)
    sequence.blocks = [(7 + 3 * i) % 40 for i in range(-(-len(ids) // 16))]
    for begin, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        result = runner.step([Chunk(sequence, begin, end)])
    return torch.from_numpy(result.logits[0])


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_match_transformers(folders, name) -> None:
    model, ids = folders[name], prompt(1, 77)
    reference = AutoModelForCausalLM.from_pretrained(
        model.folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0, -1]
    for cuts in ([], [50, 70, 71, 72]):
        torch.testing.assert_close(logits_in_chunks(model, ids, cuts), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_do_not_depend_on_the_cuts(folders, name) -> None:
    ids = prompt(2, 70)
    whole = logits_in_chunks(folders[name], ids, [])
    for cuts in ([1], [33], [16, 32, 48], list(range(40, 70))):
        assert torch.equal(logits_in_chunks(folders[name], ids, cuts), whole)


@contextlib.asynccontextmanager
async def running(model: ModelFolder, **limits: int) -> AsyncIterator[TorchEngine]:
    base = {"kv_cache_bytes": 1 << 20, "queue_depth_max": 100, "running_count_max": 16}
    base |= {"step_token_count_max": 64, "thread_count": 1, "block_count": 100}
    engine = TorchEngine(model, **(base | limits))
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


@pytest.mark.parametrize(("threads", "count"), [(1, 9), (2, 3)])
async def test_logits_are_bitwise_the_same_alone_and_batched(wide, threads, count) -> None:
    """Answers of a small model agree by luck; log probabilities show the last bit."""
    requests = [
        request(n, 1 + 61 * n % 150, 4 + n % 5, logprobs=True, sampling=Sampling(seed=n))
        for n in range(count)
    ]
    async with running(wide, thread_count=threads) as engine:
        single = [await logprobs_of(engine, one) for one in requests]
        batched = await asyncio.gather(*[logprobs_of(engine, one) for one in requests])
    assert single == batched


def test_the_check_sees_a_matrix_product_that_depends_on_the_batch() -> None:
    """Without blocks of fixed rows the last bits differ: what the engine works around is real."""
    weight, rows = torch.randn(768, 256), torch.randn(40, 256)
    free = [torch.equal((rows[:n] @ weight.t())[0], (rows @ weight.t())[0]) for n in range(1, 40)]
    if all(free):
        pytest.skip("this machine's BLAS treats all batch sizes alike")
    linear = Linear(weight, None, row_count_for([weight]))
    fixed = [linear(padded_rows(rows[:n], 16))[0] for n in range(1, 40)]
    assert all(torch.equal(one, fixed[0]) for one in fixed)


def padded_rows(rows: torch.Tensor, multiple: int) -> torch.Tensor:
    out = torch.zeros(padded(len(rows), multiple), rows.shape[1])
    out[: len(rows)] = rows
    return out


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
    async with running(llama, block_count=12) as engine:
        assert await together(engine, requests) == expected
        assert engine._scheduler.preempted_total > 0
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
    async with running(open_model(str(broken)), block_count=30) as engine:
        stream = engine.submit(bad)
        assert await together(engine, good) == expected
        with pytest.raises(EngineError, match="NaN"):
            await read(stream)
        assert await together(engine, good) == expected  # the blocks that held NaN too
        assert engine.load().kv_block_free_count == 30


async def test_sharded_weights_load(llama, tmp_path) -> None:
    folder = write_model(tmp_path / "m", **json.loads((llama.folder / "config.json").read_text()))
    tensors = load_file(llama.folder / "model.safetensors")
    names = sorted(tensors)
    weight_map = {}
    for shard, part in enumerate((names[::2], names[1::2])):
        save_file({name: tensors[name] for name in part}, folder / f"part-{shard}.safetensors")
        weight_map |= dict.fromkeys(part, f"part-{shard}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    ids = prompt(1, 20)
    sharded = logits_in_chunks(open_model(str(folder)), ids, [])
    assert torch.equal(sharded, logits_in_chunks(llama, ids, []))


def test_old_rope_spelling_is_the_same(folders, tmp_path) -> None:
    new = folders["llama-llama3"]
    config = json.loads((new.folder / "config.json").read_text())
    scaling = config.pop("rope_parameters")
    config |= {"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}
    folder = write_model(tmp_path / "m", **config)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").symlink_to(new.folder / "model.safetensors")
    ids = prompt(1, 90)
    assert torch.equal(
        logits_in_chunks(open_model(str(folder)), ids, []), logits_in_chunks(new, ids, [])
    )


def copied(llama: ModelFolder, folder: Path, **config: object) -> Path:
    base = json.loads((llama.folder / "config.json").read_text())
    write_model(folder, **(base | config))
    (folder / "model.safetensors").write_bytes((llama.folder / "model.safetensors").read_bytes())
    return folder


BAD_CONFIGS = {
    "architecture": ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is not supported"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act"),
    "rope": ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
    "shape": ({"hidden_size": 128}, "do not belong together"),
    "layers": ({"num_hidden_layers": 3, "layer_types": None}, "lack the tensor"),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
}


@pytest.mark.parametrize("fault", BAD_CONFIGS)
async def test_a_model_that_cannot_be_served_says_why(llama, tmp_path, fault) -> None:
    config, message = BAD_CONFIGS[fault]
    model = open_model(str(copied(llama, tmp_path / "m", **config)))
    with pytest.raises(EngineError, match=message):
        async with running(model):
            pass


async def test_corrupt_weights_say_so(llama, tmp_path) -> None:
    folder = copied(llama, tmp_path / "m")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(EngineError, match="corrupt"):
        async with running(open_model(str(folder))):
            pass
    (folder / "model.safetensors").unlink()
    with pytest.raises(EngineError, match="safetensors"):
        async with running(open_model(str(folder))):
            pass


async def test_admission_is_bounded(llama) -> None:
    async with running(llama, queue_depth_max=2, running_count_max=1, block_count=20) as engine:
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
        compute = engine._runner.step
        engine._runner.step = lambda chunks: 1 / 0
        with pytest.raises(EngineError, match="the step failed"):
            await read(engine.submit(request(1)))
        engine._runner.step = compute
        assert (await read(engine.submit(request(1))))[0] == expected
        assert engine.load().kv_block_free_count == 100


async def test_a_dead_engine_lets_nobody_hang(llama) -> None:
    async with running(llama) as engine:
        engine._scheduler.plan = lambda: 1 / 0
        with pytest.raises(EngineError, match="the engine failed"):
            await read(engine.submit(request(1)))
        await asyncio.wait_for(engine.failed.wait(), 10)
        with pytest.raises(EngineError, match="restarted"):
            engine.submit(request(2))
