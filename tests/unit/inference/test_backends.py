"""Every back end against transformers, against the others, and against itself in other batches.

The same tests run on each back end that this machine has: torch always, the kernels where they were
built and the CPU can run them, cuda on its reference attention, and on a GPU where there is one.
"""

import functools
import itertools
import subprocess
import sys
from array import array
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from inference_svc.engine.protocol import EngineError
from inference_svc.engine.torch.backend import Backend
from inference_svc.engine.torch.model_runner import ModelRunner
from inference_svc.engine.torch.models.config import read_config
from inference_svc.model_folder import ModelFolder, open_model
from inference_svc.settings import MODEL_DEFAULT
from tests.support.backends import BACKENDS, CASES, EXACT_CASES, opened
from tests.support.toy_folder import write_model
from tests.support.toy_models import FAMILIES, make_model, prompt

pytestmark = pytest.mark.usefixtures("one_thread")

ROOT = Path(__file__).resolve().parents[3]
BLOCK_COUNT = 60
# Root mean square of the error against float32 logits, as a share of that of the logits. Random
# weights of this size amplify a rounding by about ten from layer to layer; trained ones do not.
TOLERANCE = {
    ("f32", "f32"): 2e-5,
    ("bf16", "bf16"): 0.12,
    ("int8", "f32"): 0.25,
    ("int8", "int8"): 0.25,
}


@dataclass(slots=True)
class Tokens:
    token_ids: array
    blocks: array


@dataclass(slots=True)
class Piece:
    sequence: Tokens
    begin: int
    end: int
    samples: bool = True
    draft_token_ids: tuple[int, ...] = field(default=())


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory):
    root = tmp_path_factory.mktemp("families")

    @functools.cache
    def model(name: str) -> ModelFolder:
        kind, config = FAMILIES[name]
        return make_model(root / name, kind, **config)

    return model


@pytest.fixture(scope="module")
def expected(models):
    """Logits of transformers at every position of a prompt, float32."""

    @functools.cache
    def logits(name: str, seed: int, count: int) -> np.ndarray:
        reference = AutoModelForCausalLM.from_pretrained(
            models(name).folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        with torch.no_grad():
            return reference(torch.tensor([prompt(seed, count)])).logits[0].numpy()

    return logits


def tokens(ids: list[int], first_block: int = 7) -> Tokens:
    """A sequence on scattered blocks."""
    blocks = [(first_block + 13 * i) % BLOCK_COUNT for i in range(-(-len(ids) // 16) + 1)]
    return Tokens(array("i", ids), array("i", blocks))


def in_chunks(runner: ModelRunner, sequence: Tokens, cuts: list[int]) -> np.ndarray:
    """Logits at the last token."""
    count = len(sequence.token_ids)
    for begin, end in zip([0, *cuts], [*cuts, count], strict=True):
        computed = runner.step([Piece(sequence, begin, end, end == count)])
    return computed.logits[0].copy()


def relative_error(logits: np.ndarray, reference: np.ndarray) -> float:
    """Root mean square of the difference, as a share of that of the reference."""
    return np.sqrt(np.square(logits - reference).mean() / np.square(reference).mean())


@pytest.mark.parametrize(("backend", "kinds"), CASES)
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_match_transformers(models, expected, backend, kinds, name) -> None:
    reference = expected(name, 1, 77)[-1]
    runner = ModelRunner(opened(models(name), backend, *kinds, BLOCK_COUNT))
    for cuts in ([], [50, 70, 71, 72]):
        logits = in_chunks(runner, tokens(prompt(1, 77)), cuts)
        assert relative_error(logits, reference) < TOLERANCE[kinds]
    runner.backend.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_draft_has_its_logits(models, expected, backend) -> None:
    reference = expected("llama", 1, 77)
    runner = ModelRunner(opened(models("llama"), backend, "f32", "f32", BLOCK_COUNT))
    ids = prompt(1, 77)
    drafted, other = tokens(ids[:70]), tokens(ids[:40], 30)
    computed = runner.step(
        [
            Piece(other, 0, 30, samples=False),
            Piece(drafted, 0, 70, draft_token_ids=tuple(ids[70:75])),
            Piece(tokens(ids[:9], 50), 0, 9),
        ]
    )
    assert computed.logit_starts == [0, 0, 6, 7]
    assert computed.sound.tolist() == [True, True, True]
    wanted = np.concatenate([reference[69:75], reference[8:9]])
    np.testing.assert_allclose(computed.logits, wanted, atol=1e-3)
    assert computed.greedy_token_ids.tolist() == wanted.argmax(1).tolist()
    # A rejected draft leaves nothing behind: the positions are computed again.
    wrong = ModelRunner(opened(models("llama"), backend, "f32", "f32", BLOCK_COUNT))
    wrong.step([Piece(tokens(ids[:70]), 0, 70, draft_token_ids=(5, 5, 5, 5))])
    again = wrong.step([Piece(tokens(ids), 70, 77)])
    np.testing.assert_allclose(again.logits[0], reference[76], atol=1e-3)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """Large enough for a BLAS library to choose kernels by the number of rows."""
    shape = {"hidden_size": 256, "intermediate_size": 688, "head_dim": 32, "num_attention_heads": 8}
    return make_model(tmp_path_factory.mktemp("wide") / "m", "llama", **shape)


@st.composite
def mixes(draw):
    """Sequences, each cut into chunks, and which of them share each step."""
    lengths = draw(st.lists(st.integers(1, 90), min_size=1, max_size=6))
    cuts = [
        sorted(draw(st.sets(st.integers(1, length - 1), max_size=4))) if length > 1 else []
        for length in lengths
    ]
    return lengths, cuts, draw(st.randoms(use_true_random=False))


def computed_together(runner: ModelRunner, mix) -> list[bytes]:
    """The last logits of every sequence of a mix, computed in shared steps."""
    lengths, cuts, random = mix
    last: dict[int, bytes] = {}
    pieces = []
    free = list(range(BLOCK_COUNT))
    random.shuffle(free)
    for index, length in enumerate(lengths):
        blocks = [free.pop() for _ in range(-(-length // 16))]
        sequence = Tokens(array("i", prompt(index, length)), array("i", blocks))
        bounds = [0, *cuts[index], length]
        pieces.append([Piece(sequence, a, b, b == length) for a, b in itertools.pairwise(bounds)])
    while any(pieces):
        ready = [index for index, rest in enumerate(pieces) if rest]
        chosen = random.sample(ready, random.randint(1, len(ready)))
        chunks = [pieces[index].pop(0) for index in chosen]
        computed = runner.step(chunks)
        for position, index in enumerate(chosen):
            if chunks[position].samples:
                last[index] = computed.logits[computed.logit_starts[position]].tobytes()
    return [last[index] for index in range(len(lengths))]


@pytest.mark.parametrize(("backend", "kinds"), EXACT_CASES)
def test_logits_are_bitwise_the_same_alone_and_in_any_mix(wide, backend, kinds) -> None:
    """Answers of a small model agree by luck; logits show the last bit."""
    runner = ModelRunner(opened(wide, backend, *kinds, BLOCK_COUNT))
    alone = functools.cache(
        lambda index, length: in_chunks(runner, tokens(prompt(index, length)), []).tobytes()
    )

    @settings(
        max_examples=12,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(mixes())
    def same(mix) -> None:
        together = computed_together(runner, mix)
        assert together == [alone(index, length) for index, length in enumerate(mix[0])]

    same()


@pytest.mark.parametrize(("backend", "kinds"), CASES)
def test_blocks_are_copied_whole(models, backend, kinds) -> None:
    runner = ModelRunner(opened(models("llama"), backend, *kinds, BLOCK_COUNT))
    original = tokens(prompt(3, 40))
    in_chunks(runner, original, [])
    copy = Tokens(array("i", [*original.token_ids, 9]), array("i", [3, 4, original.blocks[0]]))
    runner.backend.copy_blocks(original.blocks[:2], [4, 3])
    copy.blocks = array("i", [4, 3, 5])
    runner.backend.copy_blocks([original.blocks[2]], [5])
    original.token_ids.append(9)
    expected = runner.step([Piece(original, 40, 41)]).logits.copy()
    np.testing.assert_array_equal(runner.step([Piece(copy, 40, 41)]).logits, expected)


@pytest.mark.parametrize(("backend", "kinds"), CASES)
def test_nan_is_told_of_its_chunk_alone_and_wiped(models, tmp_path, backend, kinds) -> None:
    broken = with_nan(models("llama"), tmp_path / "broken")
    runner = ModelRunner(opened(broken, backend, *kinds, BLOCK_COUNT))
    bad, good = tokens([5, 6, 2, 7]), tokens(prompt(3, 30), 20)
    expected = in_chunks(runner, good, [])
    computed = runner.step([Piece(bad, 0, 4), Piece(good, 0, 30)])
    assert computed.sound.tolist() == [False, True]
    # Between batches of other sizes a GPU rounds otherwise; NaN is over any bound.
    bound = 1e-5 if (backend, kinds) in EXACT_CASES else TOLERANCE[kinds]
    assert relative_error(computed.logits[1], expected) < bound
    runner.backend.wipe(bad.blocks)
    next_owner = Tokens(good.token_ids, array("i", [*bad.blocks, 44]))
    assert relative_error(in_chunks(runner, next_owner, []), expected) < bound


def with_nan(model: ModelFolder, folder: Path) -> ModelFolder:
    """The model with an embedding of token 2 that is no number."""
    tensors = load_file(model.folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][2] = float("nan")
    write_model(folder)
    (folder / "config.json").write_bytes((model.folder / "config.json").read_bytes())
    save_file(tensors, folder / "model.safetensors")
    return open_model(str(folder))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cache_that_does_not_fit_is_told(models, backend) -> None:
    loaded = opened(models("llama"), backend, "f32", "f32", 1)
    with pytest.raises(EngineError, match="memory"):
        loaded.allocate(1 << 40)
    loaded.close()


@pytest.mark.parametrize(("backend", "kinds"), CASES)
def test_block_bytes_say_what_a_block_takes(models, backend, kinds) -> None:
    """The engine divides INFERENCE_KV_CACHE_BYTES by it."""
    model = models("llama")
    config = read_config(model.config)
    loaded: Backend = opened(model, backend, *kinds, 4)
    width = {"f32": 4, "bf16": 2, "int8": 1}[kinds[1]] * config.head_dim
    values = 2 * config.layer_count * config.kv_head_count * 16 * width
    assert values <= loaded.block_bytes <= values * 1.5
    assert loaded.block_count == 4


@pytest.mark.skipif("kernels" not in BACKENDS, reason="the kernels are not built")
def test_a_node_on_the_kernels_never_loads_torch() -> None:
    """It costs 200 MB and a second of every start."""
    code = (
        "import sys\n"
        "import inference_svc.engine.torch.engine\n"
        "from inference_svc.engine.torch.backends import open_backend\n"
        "from inference_svc.model_folder import open_model\n"
        f"backend = open_backend(open_model({str(MODEL_DEFAULT)!r}), backend='kernels')\n"
        "assert backend.name == 'kernels'\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100, cwd=ROOT)
