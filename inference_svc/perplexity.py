"""What each kind of weights and KV cache costs in quality: perplexity on a text, against float32.

    python -m inference_svc.perplexity --model FOLDER --text FILE

prints a table and, as its last line, the same as JSON. Perplexity is exp of the mean negative log
likelihood of each token given those before it in its window (at most 512 tokens); the first token
of a window is not counted. What makes int8 the default is the divergence that `quality` measures.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import structlog
from tokenizers import Tokenizer

from inference_svc.engine.protocol import BLOCK_TOKEN_COUNT, EngineError
from inference_svc.engine.torch.backend import Backend
from inference_svc.engine.torch.backends import offered_kinds, open_backend
from inference_svc.engine.torch.models.numbers import Kind
from inference_svc.engine.torch.quality import logits_of
from inference_svc.engine.torch.threads import engine_thread_count
from inference_svc.model_folder import ModelFolder, open_model

WINDOW_TOKEN_COUNT_MAX = 512

Losses = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Figure:
    """What one pair of kinds gave.

    Attributes:
        change: of perplexity against the first pair measured, 0.01 is one per cent more.
        agreement: share of positions whose likeliest token is that of the first pair.
        tokens_per_s: computed, logits of every position included.
    """

    weights: Kind
    kv: Kind
    perplexity: float
    change: float
    agreement: float
    tokens_per_s: float


def windows(token_ids: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Pieces of `size` tokens; a last piece of fewer than two has nothing to predict."""
    for begin in range(0, len(token_ids) - 1, size):
        if len(piece := token_ids[begin : begin + size]) > 1:
            yield piece


def scores(backend: Backend, token_ids: Sequence[int]) -> tuple[Losses, npt.NDArray[np.int32]]:
    """Negative log likelihoods, nats, and likeliest tokens at positions 1 … of one window."""
    losses, greedy, at = [], [], 1
    for logits in logits_of(backend, token_ids):
        wide = logits.astype(np.float64)
        wide -= wide.max(1, keepdims=True)
        count = len(wide)
        wanted = np.array(token_ids[at : at + count])
        losses.append(np.log(np.exp(wide).sum(1)) - wide[np.arange(count), wanted])
        greedy.append(wide.argmax(1).astype(np.int32))
        at += count
    return np.concatenate(losses), np.concatenate(greedy)


def measure(
    model: ModelFolder,
    token_ids: Sequence[int],
    pairs: Sequence[tuple[Kind, Kind]],
    *,
    backend: str = "auto",
    thread_count: int = 1,
) -> Iterator[Figure]:
    """One figure for each (weights, KV); the first is what the others are compared with."""
    size = min(WINDOW_TOKEN_COUNT_MAX, model.context_token_count_max)
    base: tuple[float, npt.NDArray[np.int32]] | None = None
    for weights, kv in pairs:
        loaded = open_backend(
            model, backend=backend, weights=weights, kv=kv, thread_count=thread_count
        )
        loaded.allocate(-(-size // BLOCK_TOKEN_COUNT))
        start = time.perf_counter()
        results = [scores(loaded, window) for window in windows(token_ids, size)]
        elapsed_s = time.perf_counter() - start
        loaded.close()
        losses, greedy = (np.concatenate(parts) for parts in zip(*results, strict=True))
        perplexity = math.exp(losses.mean())
        base = base or (perplexity, greedy)
        yield Figure(
            weights=weights,
            kv=kv,
            perplexity=perplexity,
            change=perplexity / base[0] - 1,
            agreement=float((greedy == base[1]).mean()),
            tokens_per_s=losses.size / elapsed_s,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m inference_svc.perplexity", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", required=True, help="model folder or hub id")
    parser.add_argument("--text", required=True, type=Path, help="text file, UTF-8")
    parser.add_argument("--backend", default="auto", help="auto, kernels, torch or cuda")
    parser.add_argument("--threads", type=int, default=engine_thread_count())
    parser.add_argument("--tokens", type=int, default=20_000, help="of the text's beginning")
    given = parser.parse_args(arguments)
    try:
        figures = _report(given)
    except (EngineError, OSError, UnicodeDecodeError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps({"figures": [asdict(figure) for figure in figures]}) + "\n")
    return 0


def _report(given: argparse.Namespace) -> list[Figure]:
    model = open_model(given.model)
    tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
    text = given.text.read_text("utf-8")
    ids = tokenizer.encode(text, add_special_tokens=False).ids[: given.tokens]
    if len(ids) < 2:  # noqa: PLR2004  # one token predicts none
        raise EngineError(f"{given.text} is too short: two tokens are the least.")
    sys.stdout.write(f"{len(ids)} tokens of {given.text.name}, {model.id}\n")
    row = "{:>8} {:>6} {:>12} {:>9} {:>10} {:>10}\n"
    sys.stdout.write(row.format("weights", "KV", "perplexity", "change", "same top", "tokens/s"))
    figures = []
    pairs = offered_kinds(model, given.backend)
    for figure in measure(model, ids, pairs, backend=given.backend, thread_count=given.threads):
        sys.stdout.write(
            row.format(
                figure.weights,
                figure.kv,
                f"{figure.perplexity:.4f}",
                f"{figure.change:+.3%}",
                f"{figure.agreement:.2%}",
                f"{figure.tokens_per_s:.0f}",
            )
        )
        sys.stdout.flush()
        figures.append(figure)
    return figures


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    sys.exit(main())
