"""What is printed: the command that repeats, the table, the line of JSON."""

import json

from tests.chaos import report
from tests.chaos.__main__ import parse
from tests.chaos.experiment import Options, Result, as_json
from tests.chaos.schedule import Blow
from tests.chaos.verdict import Answer, Choice, Gaps, Outcome, Seen, Struck, Violation

OPTIONS = Options(seconds=60, interval_s=1.5, clients=3, seed=9, kinds=("gateway", "envoy"))
RESULT = Result(
    outcomes=[
        Outcome(0, "stream", 1, 2, (Answer((Choice("a", "stop"),), 1, 1),)),
        Outcome(1, "whole", 1, 9, (), "gone", (Seen(5.5, 503, "edge"), Seen(5.6, 0, "CutError"))),
    ],
    struck=[
        Struck(Blow(5, "gateway", "gateway-1"), 5.0),
        Struck(Blow(30, "envoy", "envoy", 2.0), 30.0),
    ],
    gaps=Gaps({"gateway": [0.25]}),
    violations=[Violation("failed", "wish 1 (whole): gone")],
    audit="clean",
)


def test_the_command_repeats_the_experiment():
    words = OPTIONS.command().split()
    assert words[:3] == ["python", "-m", "tests.chaos"]
    assert parse(words[3:]) == OPTIONS
    assert parse([]) == Options()


def test_the_table_has_a_row_for_each_kind():
    rows = report.table(RESULT).splitlines()[2:]
    assert rows == [
        "| envoy | 0 | 1 | – | – | nothing |",
        "| gateway | 1 | 0 | 0.25 | 0.25 | 1 × 503 `edge`, 1 × cut |",
    ]


def test_the_last_line_is_json():
    line = json.loads(as_json(RESULT, OPTIONS))
    assert (line["seed"], line["requests"], line["reconnects"]) == (9, 2, 1)
    assert line["gap_s"] == {"gateway": {"median": 0.25, "max": 0.25}}
    assert line["violation_count"] == 1
    assert line["violations"] == [{"law": "failed", "detail": "wish 1 (whole): gone"}]
    assert "\n" not in as_json(RESULT, OPTIONS)
