"""How near the kernels come to the machine: `python -m inference_svc.engine.torch.kernels.limits`.

Decoding one sequence reads every weight once: its bound is the memory (or cache) that holds them.
A long prompt multiplies every weight with every token: its bound is the int8 product rate.
Both bounds are measured here with the same threads, then the steps. The last line is JSON.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from inference_svc.engine.torch.backend import Step
from inference_svc.engine.torch.backends import why_no_kernels
from inference_svc.engine.torch.kernels.backend import KernelsBackend
from inference_svc.engine.torch.models.config import ModelConfig, read_config
from inference_svc.engine.torch.models.numbers import Kind
from inference_svc.engine.torch.models.weight_cache import Checkpoints
from inference_svc.model_folder import open_model

BLOCK, PROMPT, REPEAT_COUNT = 16, 512, 15
_BYTES = {"f32": 4, "bf16": 2, "int8": 1}


def parameter_counts(config: ModelConfig) -> tuple[int, int]:
    """Weights of the layers' projections, and of the output matrix."""
    heads = (2 * config.head_count + 2 * config.kv_head_count) * config.head_dim
    layer = config.hidden_size * (heads + 3 * config.intermediate_size)
    return config.layer_count * layer, config.vocabulary_size * config.hidden_size


def best(work: Callable[[], object], repeat_count: int = REPEAT_COUNT) -> float:
    """Seconds of the fastest of some runs: what the machine does when nobody disturbs."""
    times = []
    for _ in range(repeat_count):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)


def decode_step(batch: int, context: int) -> Step:
    """One token of each of `batch` sequences that have `context` tokens."""
    width = -(-context // BLOCK)
    tables = np.arange(batch * width, dtype=np.int32).reshape(batch, width)
    rows = np.arange(batch, dtype=np.int32)
    begins = np.full(batch, context - 1, np.int32)
    return Step(rows + 1, np.arange(batch + 1, dtype=np.int32), begins, tables, rows)


def prefill_step(count: int) -> Step:
    """A prompt of `count` tokens; logits of the last."""
    ids = np.arange(count, dtype=np.int32) % 100
    starts, begins = np.array([0, count], np.int32), np.zeros(1, np.int32)
    tables = np.arange(-(-count // BLOCK), dtype=np.int32)[None]
    return Step(ids, starts, begins, tables, np.array([count - 1], np.int32))


def measure(config: ModelConfig, backend: KernelsBackend, weights: Kind) -> dict[str, float]:
    """Limits and steps.

    Returns:
        tok_s_1, tok_s_8, tok_s_32: decoded tokens per second at a context of 512, by batch;
        prefill_tok_s: tokens per second of a prompt of 512;
        step_us: a step's least time at batch 1; read_gb_s and product_gop_s: the bounds;
        decode_gb_s, prefill_gop_s and their shares of the bounds.
    """
    backend.allocate(33 * PROMPT // BLOCK)
    result = {}
    for batch in (1, 8, 32):
        result[f"tok_s_{batch}"] = batch / best(partial(backend.step, decode_step(batch, PROMPT)))
    result["prefill_tok_s"] = PROMPT / best(partial(backend.step, prefill_step(PROMPT)))
    layers, head = parameter_counts(config)
    cached = PROMPT // BLOCK * backend.block_bytes
    memory = np.ones((layers + head) * _BYTES[weights] + cached, np.uint8)
    result["step_us"] = 1e6 / result["tok_s_1"]
    result["read_gb_s"] = memory.nbytes / best(lambda: backend.read_memory(memory)) / 1e9
    result["decode_gb_s"] = memory.nbytes * result["tok_s_1"] / 1e9
    result["decode_share"] = result["decode_gb_s"] / result["read_gb_s"]
    operations = backend.multiply(1 << 16)
    result["product_gop_s"] = operations / best(lambda: backend.multiply(1 << 16)) / 1e9
    # Only the prompt's last token meets the output matrix; attention is not counted.
    result["prefill_gop_s"] = 2 * (layers + head / PROMPT) * result["prefill_tok_s"] / 1e9
    result["prefill_share"] = result["prefill_gop_s"] / result["product_gop_s"]
    return result


def _say(text: str) -> None:
    print(text)  # noqa: T201  a command's result


def main(arguments: list[str] | None = None) -> int:
    """Prints a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder or hub id")
    parser.add_argument("--weights", default="int8", choices=list(_BYTES))
    parser.add_argument("--kv", default="", choices=["", *_BYTES], help="default: as the weights")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--level", default="", help="an instruction set below the CPU's")
    options = parser.parse_args(arguments)
    model = open_model(options.model)
    config = read_config(model.config)
    if reason := why_no_kernels(config):
        _say(reason)
        return 1
    weights = Checkpoints(model.folder, config, None).weights(options.weights)
    backend = KernelsBackend(
        weights, options.kv or options.weights, options.threads, level=options.level
    )
    result = measure(config, backend, options.weights)
    for name, value in result.items():
        _say(f"{name:>16} {value:12.2f}")
    about = {"level": backend.level, "threads": options.threads, "weights": options.weights}
    _say(json.dumps(about | {name: round(value, 3) for name, value in result.items()}))
    backend.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
