"""`mesh.ctl audit`: does every token that was generated stand in the ledger, once?"""

import argparse
import datetime as dt
import json
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

from google.protobuf import timestamp_pb2

from chatmesh.billing.v1 import billing_pb2 as pb
from chatmesh.billing.v1 import billing_pb2_grpc
from mesh.home import Home
from mesh.operator import CALL_TIMEOUT_S, Operator
from mesh.tables import print_table

PAGE_TURN_COUNT = 500
REPAIR_TURN_COUNT = 20  # each adds up its account anew, within one deadline
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
COLUMNS = (
    "turn",
    "step",
    "generated",
    "released",
    "withheld",
    "unsent",
    "ledger",
    "difference",
    "finding",
)


async def audit(home: Home, arguments: argparse.Namespace) -> int:
    """Prints turns and what the ledger has of them; exit status 1 when that differs."""
    stub = billing_pb2_grpc.AuditServiceStub(Operator(home).channel_to("billing"))
    return await audit_with(stub, arguments)


async def audit_with(stub: Any, arguments: argparse.Namespace) -> int:
    """As `audit`, over a stub of AuditService."""
    rows, summary = await _audited(stub, arguments)
    repairs = await _repaired(stub, rows) if arguments.repair else []
    if repairs:
        rows, summary = await _audited(stub, arguments)
    if arguments.json:
        print(json.dumps({"turns": rows, "repairs": repairs, "summary": summary}, indent=2))
    else:
        _print(rows, repairs, summary)
    return 1 if summary["differing_turns"] else 0


def since(text: str) -> dt.datetime:
    """A time from "90s", "15m", "2h", "7d" (ago) or ISO 8601. Raises ArgumentTypeError."""
    if match := re.fullmatch(r"(\d{1,6})([smhd])", text):
        ago = dt.timedelta(**{_UNITS[match[2]]: int(match[1])})
        return dt.datetime.now(dt.UTC) - ago
    try:
        return dt.datetime.fromisoformat(text).astimezone(dt.UTC)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time: write 90s, 15m, 2h, 7d or 2026-11-22T10:00Z"
        ) from None


async def _audited(
    stub: Any, arguments: argparse.Namespace
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    rows, last = [], pb.AuditTurnsResponse()
    async for last in _pages(stub, arguments):
        rows += [_row(step) for step in last.steps]
    differing = {row["turn"] for row in rows if row["differs"]}
    summary = {
        "turns": len({row["turn"] for row in rows}),
        "running_turns": len({row["turn"] for row in rows if not row["ended"]}),
        "differing_turns": len(differing),
        "difference": sum(row["difference"] for row in rows if row["ended"]),
        "drift": sum(row["drift"] for row in rows),
        # Of the audit that never ends, over all accounts.
        "lag_s": last.lag.ToTimedelta().total_seconds(),
        "finding_turns": last.finding_turn_count,
    }
    return rows, summary


async def _pages(stub: Any, arguments: argparse.Namespace) -> AsyncIterator[pb.AuditTurnsResponse]:
    request = pb.AuditTurnsRequest(
        account_id=arguments.account,
        turn_id=arguments.turn,
        only_findings=arguments.findings,
        page_size=PAGE_TURN_COUNT,
    )
    if arguments.since is not None:
        begin = timestamp_pb2.Timestamp()
        begin.FromDatetime(arguments.since)
        request.since.CopyFrom(begin)
    while True:
        answer = await stub.AuditTurns(request, timeout=CALL_TIMEOUT_S)
        yield answer
        request.page_token = answer.next_page_token
        if not request.page_token:
            return


def _row(step: pb.AuditedStep) -> dict[str, Any]:
    drift = [f.token_count for f in step.findings if f.finding == pb.AUDIT_FINDING_DRIFT]
    return {
        "turn": step.turn_id,
        "account": step.account_id,
        "step": step.step,
        "ended": step.ended,
        "prompt": step.prompt_token_count,
        "ledger_prompt": step.ledger_prompt_token_count,
        "generated": step.generated_token_count,
        "released": step.released_token_count,
        "withheld": step.withheld_token_count,
        "unsent": step.unsent_token_count,
        "ledger": step.ledger_token_count,
        "difference": step.difference_token_count,
        "drift": sum(drift),
        "differs": step.difference_token_count != 0 or len(drift) < len(step.findings),
        "findings": [_finding(found) for found in step.findings],
    }


def _finding(found: pb.FoundTokens) -> str:
    name = pb.AuditFinding.Name(found.finding).removeprefix("AUDIT_FINDING_").lower()
    kind = pb.UsageKind.Name(found.kind).removeprefix("USAGE_KIND_").lower()
    return f"{name} ({found.token_count} {kind})"


async def _repaired(stub: Any, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    turns = sorted({row["turn"] for row in rows if row["differs"]})
    done: list[dict[str, Any]] = []
    for begin in range(0, len(turns), REPAIR_TURN_COUNT):
        request = pb.RepairTurnsRequest(turn_ids=turns[begin : begin + REPAIR_TURN_COUNT])
        answer = await stub.RepairTurns(request, timeout=CALL_TIMEOUT_S)
        done += [_repair(turn) for turn in answer.turns]
    return done


def _repair(turn: pb.RepairedTurn) -> dict[str, Any]:
    counts = [
        (entry.first_position - entry.end_position) * (1 if entry.credit else -1)
        for entry in turn.entries
    ]
    return {
        "turn": turn.turn_id,
        "entries": len(turn.entries),
        "tokens": sum(counts),
        "cost_nanousd": sum(entry.cost_nanousd for entry in turn.entries),
        "settled": turn.settled,
    }


def _print(
    rows: Sequence[dict[str, Any]], repairs: Sequence[dict[str, Any]], summary: dict[str, Any]
) -> None:
    cells = [[*(str(row[name]) for name in COLUMNS[:-1]), _text(row)] for row in rows]
    print_table(COLUMNS, cells)
    for one in repairs:
        settled = ", settled as unsent" if one["settled"] else ""
        print(
            f"repaired {one['turn']}: {one['entries']} entries, {one['tokens']:+d} tokens, "
            f"{one['cost_nanousd']:+d} nano-USD{settled}"
        )
    print(
        f"{summary['turns']} turns, {summary['running_turns']} of them running; "
        f"{summary['differing_turns']} differ (by {summary['difference']:+d} tokens), "
        f"{summary['drift']} tokens of drift; the running audit is {summary['lag_s']:.0f} s behind "
        f"and has {summary['finding_turns']} turns with a finding"
    )


def _text(row: dict[str, Any]) -> str:
    return ", ".join(row["findings"]) or ("" if row["ended"] else "running")
