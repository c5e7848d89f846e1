"""The kernels against the decoder in float64, and against themselves in other batches, bit by bit.

Every instruction-set level of this machine is tested. test_backends.py compares the kernels with
`transformers` and with the other back ends.
"""

import dataclasses
import itertools

import numpy as np
import pytest

from inference_svc.engine.torch.kernels.backend import KernelsBackend
from inference_svc.engine.torch.models.numbers import Kind
from tests.unit.inference.kernels_reference import (
    AVAILABLE,
    BLOCK,
    RandomWeights,
    Reference,
    Sequence,
    config_of,
    needs_kernels,
    step_of,
)

pytestmark = needs_kernels

KINDS: tuple[Kind, ...] = ("f32", "bf16", "int8")
BLOCK_COUNT = 64
LEVELS = AVAILABLE or ("none",)  # a name for the skipped test


def opened(weights: RandomWeights, kv_kind: Kind, *, threads: int = 1, level: str = ""):
    backend = KernelsBackend(weights, kv_kind, threads, level=level)
    backend.allocate(BLOCK_COUNT)
    return backend


def sequences(rng: np.random.Generator, lengths: tuple[int, ...]) -> list[Sequence]:
    """Random tokens in blocks of any order."""
    numbers = [int(n) for n in rng.permutation(BLOCK_COUNT)]
    return [
        Sequence(
            [int(t) for t in rng.integers(0, 117, length)],
            [numbers.pop() for _ in range(-(-length // BLOCK))],
        )
        for length in lengths
    ]


def run(backend: KernelsBackend, batches: list[list[tuple[Sequence, int]]]) -> dict[int, list]:
    """The logits of every token, by the sequence's id."""
    rows: dict[int, list[np.ndarray]] = {}
    for chunks in batches:
        step = step_of(chunks)
        result = backend.step(step)
        assert result.sound.all()
        assert (result.greedy_token_ids == result.logits.argmax(1)).all()
        for index, (sequence, _) in enumerate(chunks):
            begin, end = step.chunk_starts[index : index + 2]
            rows.setdefault(id(sequence), []).append(result.logits[begin:end].copy())
    return rows


def mixed(rng: np.random.Generator, live: list[Sequence], chunk_max: int) -> list:
    """Batches of random subsets with random chunks, until every sequence is done."""
    left = {id(s): len(s.token_ids) - s.done for s in live}
    batches = []
    while any(left.values()):
        chosen = [s for s in live if left[id(s)] and rng.random() < 0.8]
        rng.shuffle(chosen)
        chunks = [(s, int(rng.integers(1, min(chunk_max, left[id(s)]) + 1))) for s in chosen]
        for sequence, count in chunks:
            left[id(sequence)] -= count
        if chunks:
            batches.append(chunks)
    return batches


def logits_of(backend: KernelsBackend, batches: list, live: list[Sequence]) -> list[np.ndarray]:
    rows = run(backend, batches)
    return [np.concatenate(rows[id(s)]) for s in live]


# What rounding on another side of a tie may do, as a share of the largest logit. AMX splits the
# activations that meet bf16 weights into 16 bits.
def tolerance(level: str, kind: Kind, kv_kind: Kind) -> float:
    if kind == "int8":
        return 0.05
    if kv_kind != "f32":
        return 2e-3 if kv_kind == "bf16" else 3e-3
    return 3e-5 if kind == "bf16" and level == "amx" else 3e-6


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("kind", "kv_kind"), list(itertools.product(KINDS, KINDS)))
def test_mixed_batches_match_float64(level: str, kind: Kind, kv_kind: Kind) -> None:
    rng = np.random.default_rng(1)
    weights = RandomWeights(config_of(windows=(0, 37)), kind)
    live = sequences(rng, (1, 17, 290))
    backend = opened(weights, kv_kind, level=level)
    got = logits_of(backend, mixed(rng, live, 60), live)
    for sequence, logits in zip(live, got, strict=True):
        want = Reference(weights, kv_kind).logits(sequence.token_ids)
        error = np.abs(logits - want).max() / np.abs(want).max()
        assert error < tolerance(level, kind, kv_kind)
    backend.close()


SHAPES = {
    "smallest head": {"head_dim": 16, "num_attention_heads": 1, "num_key_value_heads": 1},
    "odd panels": {"head_dim": 48, "hidden_size": 33, "intermediate_size": 41, "vocab_size": 117},
    "one tile": {"head_dim": 64, "hidden_size": 128},
    "two tiles": {"head_dim": 128, "num_key_value_heads": 4},
    "largest head": {"head_dim": 256, "num_attention_heads": 2, "num_key_value_heads": 1},
    "more heads than a tile": {"num_attention_heads": 20, "num_key_value_heads": 1},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("level", LEVELS)
def test_shapes(level: str, shape: str) -> None:
    for kind, kv_kind in (("f32", "f32"), ("bf16", "bf16"), ("f32", "int8"), ("int8", "int8")):
        rng = np.random.default_rng(2)
        weights = RandomWeights(config_of(**SHAPES[shape]), kind)
        live = sequences(rng, (40, 3))
        backend = opened(weights, kv_kind, level=level)
        got = logits_of(backend, mixed(rng, live, 30), live)
        for sequence, logits in zip(live, got, strict=True):
            want = Reference(weights, kv_kind).logits(sequence.token_ids)
            assert np.abs(logits - want).max() / np.abs(want).max() < tolerance(
                level, kind, kv_kind
            )
        backend.close()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("kind", "kv_kind"), [("f32", "f32"), ("bf16", "bf16"), ("int8", "int8")])
def test_a_row_does_not_depend_on_its_company(level: str, kind: Kind, kv_kind: Kind) -> None:
    """Alone token by token, whole, in random mixes, other blocks, with other threads: the same."""
    weights = RandomWeights(config_of(head_dim=64, windows=(0, 50)), kind)
    lengths = (1, 16, 130, 300)
    reference: list[np.ndarray] = []
    ids = [s.token_ids for s in sequences(np.random.default_rng(0), lengths)]
    for seed, threads, chunk_max in ((1, 1, 1), (2, 1, 300), (3, 2, 300), (4, 3, 23)):
        backend = opened(weights, kv_kind, threads=threads, level=level)
        live = sequences(np.random.default_rng(seed), lengths)
        for sequence, token_ids in zip(live, ids, strict=True):
            sequence.token_ids = token_ids
        if chunk_max == 1:
            batches = [[(s, 1)] for s in live for _ in s.token_ids]
        else:
            batches = mixed(np.random.default_rng(seed), live, chunk_max)
        got = logits_of(backend, batches, live)
        reference = reference or got
        for one, other in zip(reference, got, strict=True):
            np.testing.assert_array_equal(one, other)
        backend.close()


@pytest.mark.parametrize("kv_kind", KINDS)
def test_splits_over_keys_change_nothing(kv_kind: Kind) -> None:
    """One KV head and four threads: a long sequence is cut by keys. One thread never cuts."""
    weights = RandomWeights(config_of(num_key_value_heads=1, windows=(0, 300)))
    results = []
    for threads in (1, 4):
        backend = opened(weights, kv_kind, threads=threads)
        live = sequences(np.random.default_rng(6), (800,))
        results += logits_of(backend, [[(live[0], 777)], *([[(live[0], 1)]] * 23)], live)
        backend.close()
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("kind", KINDS)
def test_not_a_number_stays_in_its_chunk_and_is_wiped(kind: Kind) -> None:
    rng = np.random.default_rng(7)
    weights = RandomWeights(config_of(), kind)
    sick_id = 5
    weights.embedding[sick_id] = np.nan if kind == "f32" else 0x7FC0
    backend = opened(weights, "int8" if kind == "int8" else kind)
    sick, well = sequences(rng, (20, 20))
    well.token_ids = [t if t != sick_id else 6 for t in well.token_ids]
    alone = logits_of(backend, [[(well, 20)]], [well])[0]
    sick.token_ids[11], well.done = sick_id, 0
    result = backend.step(step_of([(sick, 20), (well, 20)]))
    assert result.sound.tolist() == [False, True]
    np.testing.assert_array_equal(result.logits[20:], alone)
    backend.wipe(sick.blocks)
    heir = Sequence(well.token_ids, sick.blocks)
    np.testing.assert_array_equal(logits_of(backend, [[(heir, 20)]], [heir])[0], alone)
    backend.close()


@pytest.mark.parametrize("kv_kind", KINDS)
def test_copied_blocks_continue_alike(kv_kind: Kind) -> None:
    weights = RandomWeights(config_of())
    backend = opened(weights, kv_kind)
    (first,) = sequences(np.random.default_rng(8), (40,))
    whole = logits_of(backend, [[(first, 40)]], [first])[0]
    spare = [n for n in range(BLOCK_COUNT) if n not in first.blocks][:3]
    backend.copy_blocks(first.blocks, spare)
    backend.wipe(first.blocks)
    second = Sequence(first.token_ids, spare, done=35)
    np.testing.assert_array_equal(logits_of(backend, [[(second, 5)]], [second])[0], whole[35:])
    backend.close()


@pytest.mark.parametrize("level", LEVELS)
def test_of_equal_logits_the_smallest_id_is_greedy(level: str) -> None:
    weights = RandomWeights(config_of())
    values = np.repeat(weights.head.values[:13], 9, axis=0)
    weights.head = dataclasses.replace(weights.head, values=values)
    backend = opened(weights, "f32", level=level)
    live = sequences(np.random.default_rng(9), (60,))
    result = backend.step(step_of([(live[0], 60)]))
    assert (result.greedy_token_ids % 9 == 0).all()
    assert (result.greedy_token_ids == result.logits.argmax(1)).all()
    backend.close()


def test_a_step_may_want_no_logits() -> None:
    weights = RandomWeights(config_of())
    backend = opened(weights, "f32")
    (sequence,) = sequences(np.random.default_rng(10), (20,))
    whole = logits_of(backend, [[(sequence, 20)]], [sequence])[0]
    sequence.done = 0
    silent = dataclasses.replace(step_of([(sequence, 19)]), logit_rows=np.empty(0, np.int32))
    assert backend.step(silent).logits.shape == (0, 117)
    last = backend.step(step_of([(sequence, 1)], all_logits=False))
    np.testing.assert_array_equal(last.logits, whole[19:])
    backend.close()
