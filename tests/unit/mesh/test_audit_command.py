"""`mesh.ctl audit` against a small AuditService."""

# ruff: noqa: N802  the names are the contract's

import argparse
import datetime as dt
import json
from collections.abc import Mapping

import pytest

from chatmesh.billing.v1 import billing_pb2 as pb
from chatmesh.billing.v1 import billing_pb2_grpc
from mesh import audit, ctl
from tests.support.loopback import loopback

GOOD = pb.AuditedStep(
    turn_id="01AAA",
    ended=True,
    generated_token_count=7,
    released_token_count=5,
    withheld_token_count=1,
    unsent_token_count=1,
    ledger_token_count=7,
    findings=[
        pb.FoundTokens(finding=pb.AUDIT_FINDING_DRIFT, kind=pb.USAGE_KIND_OUTPUT, token_count=2)
    ],
)
BAD = pb.AuditedStep(
    turn_id="01BBB",
    step=1,
    ended=True,
    generated_token_count=4,
    released_token_count=4,
    ledger_token_count=9,
    difference_token_count=5,
    findings=[
        pb.FoundTokens(
            finding=pb.AUDIT_FINDING_OVERCHARGED, kind=pb.USAGE_KIND_OUTPUT, token_count=5
        )
    ],
)
RUNNING = pb.AuditedStep(turn_id="01CCC", generated_token_count=3, ledger_token_count=3)


class Books(billing_pb2_grpc.AuditServiceServicer):
    """One turn a page; a repaired one balances."""

    def __init__(self, *steps: pb.AuditedStep) -> None:
        self.steps = list(steps)
        self.asked: list[pb.AuditTurnsRequest] = []

    async def AuditTurns(self, request, context):
        self.asked.append(request)
        number = int(request.page_token or 0)
        answer = pb.AuditTurnsResponse(steps=self.steps[number : number + 1])
        answer.lag.FromTimedelta(dt.timedelta(seconds=12))
        if number + 1 < len(self.steps):
            answer.next_page_token = str(number + 1)
        return answer

    async def RepairTurns(self, request, context):
        assert list(request.turn_ids) == ["01BBB"]
        self.steps = [step for step in self.steps if step.turn_id != "01BBB"]
        credit = pb.LedgerEntry(first_position=4, end_position=9, cost_nanousd=-300, credit=True)
        return pb.RepairTurnsResponse(turns=[pb.RepairedTurn(turn_id="01BBB", entries=[credit])])


async def run(books: Books, *words: str) -> int:
    arguments = ctl.parser().parse_args(["audit", *words])
    registration = (billing_pb2_grpc.add_AuditServiceServicer_to_server, books)
    async with loopback([registration]) as channel:
        return await audit.audit_with(billing_pb2_grpc.AuditServiceStub(channel), arguments)


def rows_of(printed: str) -> Mapping[str, list[str]]:
    return {line.split()[0]: line.split() for line in printed.splitlines()}


async def test_a_balance_is_printed_and_drift_is_no_difference(capsys) -> None:
    assert await run(Books(GOOD, RUNNING)) == 0
    printed = capsys.readouterr().out
    rows = rows_of(printed)
    assert rows["01AAA"] == ["01AAA", "0", "7", "5", "1", "1", "7", "0", "drift", "(2", "output)"]
    assert rows["01CCC"][-1] == "running"
    assert "2 turns, 1 of them running; 0 differ" in printed.splitlines()[-1]
    assert "12 s behind" in printed.splitlines()[-1]


async def test_a_difference_is_exit_status_1(capsys) -> None:
    assert await run(Books(GOOD, BAD), "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert [row["turn"] for row in told["turns"]] == ["01AAA", "01BBB"]
    assert told["turns"][1]["findings"] == ["overcharged (5 output)"]
    assert told["summary"] == {
        "turns": 2,
        "running_turns": 0,
        "differing_turns": 1,
        "difference": 5,
        "drift": 2,
        "lag_s": 12.0,
        "finding_turns": 0,
    }


async def test_repair_writes_looks_again_and_says_what_it_did(capsys) -> None:
    assert await run(Books(BAD, GOOD), "--repair") == 0
    printed = capsys.readouterr().out
    assert "repaired 01BBB: 1 entries, -5 tokens, -300 nano-USD" in printed.splitlines()
    assert "01BBB" not in rows_of(printed)


async def test_filters_reach_the_service() -> None:
    books = Books(GOOD)
    await run(books, "--account", "acc_1", "--turn", "01AAA", "--since", "2026-11-22T10:00Z")
    (asked,) = books.asked
    assert (asked.account_id, asked.turn_id) == ("acc_1", "01AAA")
    assert asked.since.ToDatetime() == dt.datetime(2026, 11, 22, 10)
    await run(books, "--findings")
    assert books.asked[-1].only_findings
    assert not books.asked[-1].HasField("since")


def test_since_takes_spans_and_times() -> None:
    before = dt.datetime.now(dt.UTC)
    found = audit.since("2h") + dt.timedelta(hours=2)
    assert before <= found <= dt.datetime.now(dt.UTC)
    with pytest.raises(argparse.ArgumentTypeError, match="write 90s"):
        audit.since("yesterday")
