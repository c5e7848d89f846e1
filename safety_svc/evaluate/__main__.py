"""python -m safety_svc.evaluate FILE.jsonl… [--out FOLDER] [--policy FILE] [--model FOLDER]

Scores rows as ScreenPrompt does, and prints figures. Each line of a file is an object with `text`
or `messages`, and what is known of it: `unsafe` 0 or 1, `labels` {category: 0 or 1}. The last line
of stdout is one JSON document with every figure; plots go to the folder.
"""

import argparse
import json
import sys
from pathlib import Path

from mesh.chassis.checked_yaml import YamlError
from safety_svc.classifier import model
from safety_svc.classifier.weights import SHIPPED, ModelError
from safety_svc.evaluate import plots, report, rows
from safety_svc.evaluate.screening import Screen
from safety_svc.policy_source import published
from safety_svc.settings import POLICY

FOLDER = Path(".chatmesh") / "safety-evaluation"
_WARM_UP_COUNT = 5


def main() -> int:
    """Runs the command; returns its exit status."""
    arguments = _parsed()
    try:
        policy = published(arguments.policy.read_text(encoding="utf-8"), str(arguments.policy))
        classifier = None if arguments.rules_only else model.load(arguments.model)
        given = [row for path in arguments.files for row in rows.read(path)]
    except (rows.RowError, YamlError, ModelError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if not given:
        print("the files hold no rows; write one JSON object a line", file=sys.stderr)
        return 2
    screen = Screen(policy, classifier)
    for row in given[:_WARM_UP_COUNT]:
        screen.screen(row)
    screened = [screen.screen(row) for row in given]
    found = report.document(
        given,
        screened,
        files=[path.name for path in arguments.files],
        policy_version=policy.policy.version,
        model_digest=classifier.digest if classifier else None,
    )
    for line in report.lines(found):
        print(line)
    try:
        for path in plots.draw(given, screened, arguments.out):
            print(f"plot: {path}")
    except ImportError:
        print("no plots: install matplotlib (pip install -e .[dev])", file=sys.stderr)
    print(json.dumps(found))
    return 0


def _parsed() -> argparse.Namespace:
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(usage=summary, description=rest)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.jsonl")
    parser.add_argument("--out", type=Path, default=FOLDER, help=f"folder of the plots ({FOLDER})")
    parser.add_argument("--policy", type=Path, default=POLICY, help="another policy")
    parser.add_argument("--model", type=Path, default=SHIPPED, help="folder of another classifier")
    parser.add_argument("--rules-only", action="store_true", help="leave the classifier out")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
