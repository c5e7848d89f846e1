"""What a node says of itself so that another can tell whether it draws the same tokens."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from chatmesh.inference.v1 import inference_pb2
from inference_svc.engine.simulated import AnswerLength, SimulatedEngine, Timing
from inference_svc.engine.torch.engine import TorchEngine, TorchOptions
from inference_svc.engine.torch.kernels.backend import LEVEL_VARIABLE
from inference_svc.engine.torch.machine import MAKER, MODEL, cpu_facts, parsed
from inference_svc.engine.torch.models.tensor_files import TensorFiles
from inference_svc.engine.torch.precision import precision_of
from inference_svc.model_folder import ModelFolder, open_model
from tests.support.backends import BACKENDS, CUDA_ON_CPU, EXACT_CASES, opened
from tests.support.inference_node import serving
from tests.support.toy_weights import copied
from tests.unit.inference.kernels_reference import AVAILABLE

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIONS = TorchOptions(
    kv_cache_bytes=1 << 20,
    queue_depth_max=4,
    running_count_max=4,
    thread_count=1,
    backend="torch",
    weights="f32",
    kv="f32",
)


async def started(model: ModelFolder, options: TorchOptions = OPTIONS) -> TorchEngine:
    """An engine that was started and stopped again: what it says of itself stays."""
    engine = TorchEngine(model, options)
    await engine.start()
    await engine.stop()
    return engine


def named(model: ModelFolder, backend: str, weights: str = "f32", kv: str = "f32") -> str:
    loaded = opened(model, backend, weights, kv, 4)
    name = precision_of(loaded, model)
    loaded.close()
    return name


# ---- weights


@pytest.mark.parametrize("kind", ["f32", "int8"])
async def test_the_engine_names_its_weights_in_any_kind(llama, kind) -> None:
    """There is no SHA256SUMS beside them: for f32 nobody else needs the digest."""
    engine = await started(llama, replace(OPTIONS, weights=kind))
    assert engine.weights_digest == TensorFiles(llama.folder).source_digest()
    assert len(bytes.fromhex(engine.weights_digest)) == 32


async def test_other_weights_have_another_name_and_copies_the_same(llama, tmp_path) -> None:
    whole, changed = copied(llama, tmp_path / "a"), copied(llama, tmp_path / "b")
    file = changed / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    first, same, other = [
        await started(open_model(str(folder))) for folder in (llama.folder, whole, changed)
    ]
    assert first.weights_digest == same.weights_digest != other.weights_digest
    assert first.precision == same.precision == other.precision


def test_who_asks_for_the_digest_meanwhile_waits_for_it(llama) -> None:
    class Counting(TensorFiles):
        count = 0
        begun = threading.Barrier(2, timeout=10)

        def _checked_digest(self) -> str:
            self.count += 1
            return super()._checked_digest()

    files = Counting(llama.folder)

    def ask(_: int) -> str:
        files.begun.wait()
        return files.source_digest()

    with ThreadPoolExecutor(2) as both:
        one, two = both.map(ask, range(2))
    assert (one, files.count) == (two, 1)


# ---- precision


@pytest.mark.parametrize(("backend", "kinds"), EXACT_CASES)
def test_it_names_the_kinds_and_what_computes(llama, backend, kinds) -> None:
    name = named(llama, backend, *kinds)
    numbers, code, digest = name.split()
    assert numbers == "/".join(kinds)
    assert code.split("-")[0] == backend
    assert len(bytes.fromhex(digest)) == 5
    assert named(llama, backend, *kinds) == name


def test_all_cases_have_names_of_their_own(llama) -> None:
    names = [named(llama, backend, *kinds) for backend, kinds in EXACT_CASES]
    assert len(set(names)) == len(names)


@pytest.mark.skipif(len(AVAILABLE) < 2, reason="the kernels are not built, or for one level only")
def test_each_instruction_set_has_its_own(llama, monkeypatch) -> None:
    """Their sums have other orders: decision 0008."""
    names = set()
    for level in AVAILABLE:
        monkeypatch.setenv(LEVEL_VARIABLE, level)
        names.add(named(llama, "kernels", "int8", "int8"))
    assert {name.split()[1] for name in names} == {f"kernels-{level}" for level in AVAILABLE}


def test_threads_count_only_where_they_share_sums_out(llama) -> None:
    from inference_svc.engine.torch.backends import open_backend

    def name(backend: str, threads: int) -> str:
        loaded = open_backend(llama, backend=backend, weights="f32", kv="f32", thread_count=threads)
        return precision_of(loaded, llama)

    assert name("torch", 1) != name("torch", 2)
    if "kernels" in BACKENDS:
        assert name("kernels", 1) == name("kernels", 2)


@pytest.mark.parametrize("field", ["rms_norm_eps", "eos_token_id"])
def test_what_config_json_changes_is_in_it(llama, tmp_path, field) -> None:
    folder = copied(llama, tmp_path / "m", **{field: 5})
    assert named(open_model(str(folder)), "torch") != named(llama, "torch")


def test_a_gpus_tokens_depend_on_the_company(llama) -> None:
    by_name = {backend: opened(llama, backend, "f32", "f32", 4) for backend in BACKENDS}
    promises = {name: loaded.is_batch_invariant for name, loaded in by_name.items()}
    assert promises == {name: not name.startswith("cuda") for name in BACKENDS}
    assert precision_of(by_name[CUDA_ON_CPU], llama).startswith("f32/f32 cuda-")


X86 = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R)
cpu MHz\t\t: 2700.1

processor\t: 1
vendor_id\t: GenuineIntel
"""
ARM = "processor\t: 0\nBogoMIPS\t: 243.7\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n\n"


def test_facts_of_the_cpu_are_those_of_its_kind_not_of_the_moment() -> None:
    assert parsed(X86, MAKER) == ["GenuineIntel"]
    assert parsed(X86, MAKER | MODEL) == ["GenuineIntel", "6", "143", "Intel(R) Xeon(R)"]
    assert parsed(ARM, MAKER | MODEL) == ["0x41", "0xd0c"]
    assert len(cpu_facts(MAKER).split()) >= 2


# ---- on the wire


async def test_list_models_tells_it(llama, tmp_path: Path) -> None:
    engine = TorchEngine(llama, OPTIONS)
    assert not engine.draws_by_position  # not known before it was started
    async with serving(llama, engine, tmp_path) as node:
        (found,) = (await node.stub.ListModels(inference_pb2.ListModelsRequest())).models
    assert found.draws_by_position
    assert found.weights_digest == TensorFiles(llama.folder).source_digest()
    assert found.precision == engine.precision
    assert found.precision.startswith("f32/f32 torch-")


# ---- the simulated engine


def simulated(model: ModelFolder, length: AnswerLength) -> str:
    engine = SimulatedEngine(
        model.vocabulary, model.eos_token_ids, timing=Timing(), length=length,
        block_count=4, queue_depth_max=1, running_count_max=1,
    )  # fmt: skip
    return engine.precision


def test_the_simulated_engine_names_its_script_and_lengths(model, shipped) -> None:
    names = [
        simulated(model, AnswerLength(10, 20)),
        simulated(model, AnswerLength(10, 30)),
        simulated(model, AnswerLength(ignore_eos=True)),
        simulated(shipped, AnswerLength(10, 20)),
    ]
    assert len(set(names)) == len(names)
    assert simulated(model, AnswerLength(10, 20)) == names[0]
