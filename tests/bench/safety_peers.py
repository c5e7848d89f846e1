"""The prompt screen against what one would pick offline today: same rows, one interleaved run.

    make bench-safety ROWS=FILE.jsonl
    python -m tests.bench.safety_peers ROWS.jsonl… [--rounds 3]

Peers, in a venv of their own (.venv-bench/safety, which make installs):

- our own first stage alone, the linear model over n-grams, threshold 0.5;
- alt-profanity-check: a linear SVM over words for profanity and offence, threshold 0.5;
- llm-guard, its scanner without a downloaded model for such prompts: BanSubstrings with the list
  of attack phrases it ships.

Rows are those of `python -m safety_svc.evaluate`; the text of a conversation is its last message
of the user. Each round screens all rows with each contender in turn, in a process of its own with
one thread. Prints a table; the last line of stdout is one JSON object. All figures are for
"unsafe", so rows without it count for the time only.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from safety_svc.detectors.base import Audience
from safety_svc.evaluate import figures, rows

PYTHON = Path(__file__).resolve().parents[2] / ".venv-bench" / "safety" / "bin" / "python"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

# Each program reads a JSON list of texts and prints [[score, seconds], …].
_LOOP = """
import json, sys, time
texts = json.load(sys.stdin)
for text in texts[:5]:
    score(text)
found = []
for text in texts:
    begun = time.perf_counter()
    value = float(score(text))
    found.append([value, time.perf_counter() - begun])
print(json.dumps(found))
"""
_PROFANITY = """
from profanity_check import predict_prob
def score(text):
    return predict_prob([text])[0]
"""
# llm-guard pulls in torch, spaCy and transformers, of which this scanner uses nothing: it is
# installed without its dependencies, and loaded past the packages' __init__ that import the others.
_SUBSTRINGS = """
import logging, sys, sysconfig, types
from pathlib import Path
import structlog
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
for name in ("llm_guard", "llm_guard.input_scanners"):
    package = types.ModuleType(name)
    package.__path__ = [str(Path(sysconfig.get_paths()["purelib"], *name.split(".")))]
    sys.modules[name] = package
from llm_guard.input_scanners.ban_substrings import PROMPT_STOP_SUBSTRINGS, BanSubstrings
scanner = BanSubstrings(PROMPT_STOP_SUBSTRINGS, match_type="str", case_sensitive=False)
def score(text):
    return 0.0 if scanner.scan(text)[1] else 1.0
"""
_OURS = """
from safety_svc.classifier.model import shipped
from safety_svc.detectors.base import Audience, Turn
from safety_svc.evaluate.rows import Row
from safety_svc.evaluate.screening import Screen
from safety_svc.policy_source import published
from safety_svc.settings import POLICY
screen = Screen(published(POLICY.read_text(encoding="utf-8"), str(POLICY)), shipped())
def score(text):
    found = screen.screen(Row([Turn(Audience.USER, text)], None, {}))
    return 1 + found.scores.max() if found.blocked else found.scores.max()
"""
_LINEAR = """
from safety_svc.classifier.model import shipped
from safety_svc.classifier.normalise import plain
classifier = shipped()
def score(text):
    return classifier.first_stage(plain(text))
"""
CONTENDERS = {
    "chatmesh": (sys.executable, _OURS, 1.0),
    "chatmesh first stage": (sys.executable, _LINEAR, 0.5),
    "alt-profanity-check": (str(PYTHON), _PROFANITY, 0.5),
    "llm-guard BanSubstrings": (str(PYTHON), _SUBSTRINGS, 0.5),
}


def run(python: str, program: str, texts: Sequence[str]) -> list[list[float]]:
    """Screens all texts in a process of its own: [score, seconds] of each."""
    done = subprocess.run(
        [python, "-c", program + _LOOP],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **ONE_THREAD},
    )
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def last_words(row: rows.Row) -> str:
    """The last message of the user, or else the last message."""
    users = [turn.text for turn in row.turns if turn.audience is Audience.USER]
    return users[-1] if users else row.turns[-1].text


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if not PYTHON.exists():
        parser.error(f"{PYTHON} is missing: `make bench-safety ROWS=…` installs the peers.")
    given = [row for path in arguments.files for row in rows.read(path)]
    texts = [last_words(row) for row in given]
    found: dict[str, list[list[list[float]]]] = {name: [] for name in CONTENDERS}
    for _ in range(arguments.rounds):
        for name, (python, program, _) in CONTENDERS.items():
            found[name].append(run(python, program, texts))
    results = {name: _figures(given, found[name], CONTENDERS[name][2]) for name in CONTENDERS}
    columns = ("precision", "recall", "f1", "false_positive_rate", "average_precision")
    print(f"{'':26}" + "".join(f"{name[:19]:>20}" for name in (*columns, "p50 ms", "p99 ms")))
    for name, one in results.items():
        cells = [one[column] for column in (*columns, "p50_ms", "p99_ms")]
        print(f"{name:26}" + "".join(f"{'-' if c is None else round(c, 3):>20}" for c in cells))
    print(json.dumps({"rows": len(given), **results}))


def _figures(
    given: Sequence[rows.Row], rounds: Sequence[Sequence[Sequence[float]]], threshold: float
) -> dict[str, Any]:
    scores = np.array([one[0] for one in rounds[0]])
    known = np.array([row.unsafe is not None for row in given])
    unsafe = np.array([bool(row.unsafe) for row in given])[known]
    times = [np.array([one[1] for one in results]) * 1_000 for results in rounds]
    return {
        **figures.decisions(scores[known] >= threshold, unsafe),
        **figures.ranking(np.minimum(scores[known] / (2 * threshold), 1.0), unsafe),
        "p50_ms": statistics.median(float(np.quantile(one, 0.5)) for one in times),
        "p99_ms": statistics.median(float(np.quantile(one, 0.99)) for one in times),
    }


if __name__ == "__main__":
    main()
