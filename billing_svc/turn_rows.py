"""Turns as rows of billing.turns.

Step 0 stands in columns of its own, further steps in the column later_steps: a JSON array with one
object a step,

    {"input": [[0, 12]], "output": [[[0, 5]], [[0, 7]]], "credit": 0, "settled": [12, 0, 12, 0, 0]}

positions as half-open ranges, output by answer, settled as the fields of SettledCounts or null.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import asyncpg

from billing_svc.prices import Price
from billing_svc.ranges import Ranges
from billing_svc.store import Connection
from billing_svc.turn import SettledCounts, State, Step, Turn

# Answer c's position p stands in covered_output as c * 2^32 + p.
_CHOICE_BITS = 32
_COUNTS = ("prompt", "cached", "output", "withheld", "unsent")

TURN_COLUMNS = """
    turn_id, account_id, model, price_version, input_nanousd, cached_input_nanousd, output_nanousd,
    state, amount_nanousd, ledger_nanousd, expire_time, settle_time,
    settled_prompt_count, settled_cached_count, settled_output_count, settled_withheld_count,
    settled_unsent_count, covered_input, covered_output, output_credit, later_steps, ledger_period,
    repair_time, create_time, key_id, other_payers, held_prompt_count, held_output_count, minute,
    minute_token_count, is_cut_short
"""

# In the order of the ids, each by the index. A statement with `= ANY($1)` that was prepared while
# the table was small reads all of it until it is analysed: 300 us a turn where this takes 60.
_LOCK_TURNS = f"""
SELECT turn.* FROM (SELECT id FROM unnest($1::text[]) AS id ORDER BY id) AS wanted,
    LATERAL (SELECT {TURN_COLUMNS} FROM billing.turns WHERE turn_id = wanted.id FOR UPDATE) AS turn
"""  # noqa: S608 - a constant

_UPDATE_TURN = """
UPDATE billing.turns SET
    state = $2, amount_nanousd = $3, reserved_nanousd = $4, ledger_nanousd = $5, expire_time = $6,
    settle_time = $7, settled_prompt_count = $8, settled_cached_count = $9,
    settled_output_count = $10, settled_withheld_count = $11, settled_unsent_count = $12,
    covered_input = $13, covered_output = $14, output_credit = $15, later_steps = $16,
    ledger_period = $17, repair_time = $18, held_prompt_count = $19, held_output_count = $20,
    minute = $21, minute_token_count = $22, is_cut_short = $23
WHERE turn_id = $1
"""


def turn_of(row: asyncpg.Record) -> Turn:
    """The turn of a row with TURN_COLUMNS."""
    settled = None
    if row["settle_time"] is not None:
        # The version before did not write the unsent ones.
        settled = SettledCounts(*(row[f"settled_{name}_count"] or 0 for name in _COUNTS))
    first = Step(
        covered_input=_positions(row["covered_input"]),
        covered_output=_answers(_positions(row["covered_output"])),
        output_credit=row["output_credit"],
        settled=settled,
    )
    prices = (row["input_nanousd"], row["cached_input_nanousd"], row["output_nanousd"])
    return Turn(
        turn_id=row["turn_id"],
        account_id=row["account_id"],
        model=row["model"],
        price=Price(*prices, version=row["price_version"]),
        amount_nanousd=row["amount_nanousd"],
        expire_time=row["expire_time"],
        state=State(row["state"]),
        ledger_nanousd=row["ledger_nanousd"],
        settle_time=row["settle_time"],
        steps=(first, *map(_step_of, json.loads(row["later_steps"]))),
        ledger_period=row["ledger_period"],
        repair_time=row["repair_time"],
        create_time=row["create_time"],
        key_id=row["key_id"],
        other_payers=tuple(row["other_payers"]),
        held_prompt_count=row["held_prompt_count"],
        held_output_count=row["held_output_count"],
        minute=row["minute"],
        minute_token_count=row["minute_token_count"],
        is_cut_short=row["is_cut_short"],
    )


async def lock_turns(connection: Connection, turn_ids: Iterable[str]) -> dict[str, Turn]:
    """The turns of these ids that are there, locked until the transaction ends."""
    rows = await connection.fetch(_LOCK_TURNS, list(turn_ids))
    return {row["turn_id"]: turn_of(row) for row in rows}


async def update_turns(connection: Connection, turns: Iterable[Turn]) -> None:
    """Writes turns whose rows are locked; one round trip."""
    await connection.executemany(_UPDATE_TURN, [_row_of(turn) for turn in turns])


def _row_of(turn: Turn) -> tuple[Any, ...]:
    first = turn.steps[0]
    return (
        turn.turn_id,
        int(turn.state),
        turn.amount_nanousd,
        turn.reserved_nanousd,
        turn.ledger_nanousd,
        turn.expire_time,
        turn.settle_time,
        *(_counts(first.settled) or (None,) * len(_COUNTS)),
        _multirange(first.covered_input),
        _multirange(_flat(first.covered_output)),
        first.output_credit,
        json.dumps([_object_of(step) for step in turn.steps[1:]]),
        turn.ledger_period,
        turn.repair_time,
        turn.held_prompt_count,
        turn.held_output_count,
        turn.minute,
        turn.minute_token_count,
        turn.is_cut_short,
    )


def _counts(settled: SettledCounts | None) -> tuple[int, ...] | None:
    if settled is None:
        return None
    return tuple(getattr(settled, name) for name in _COUNTS)


def _object_of(step: Step) -> dict[str, Any]:
    return {
        "input": step.covered_input,
        "output": step.covered_output,
        "credit": step.output_credit,
        "settled": _counts(step.settled),
    }


def _step_of(stored: dict[str, Any]) -> Step:
    return Step(
        covered_input=_pairs(stored["input"]),
        covered_output=tuple(map(_pairs, stored["output"])),
        output_credit=stored["credit"],
        settled=stored["settled"] and SettledCounts(*stored["settled"]),
    )


def _pairs(stored: Sequence[Sequence[int]]) -> Ranges:
    return tuple((first, end) for first, end in stored)


def _answers(flat: Ranges) -> tuple[Ranges, ...]:
    answers: list[list[tuple[int, int]]] = []
    for first, end in flat:
        choice = first >> _CHOICE_BITS
        answers += [[] for _ in range(choice + 1 - len(answers))]
        offset = choice << _CHOICE_BITS
        answers[choice].append((first - offset, end - offset))
    return tuple(map(tuple, answers))


def _flat(answers: tuple[Ranges, ...]) -> Ranges:
    return tuple(
        (first + (choice << _CHOICE_BITS), end + (choice << _CHOICE_BITS))
        for choice, covered in enumerate(answers)
        for first, end in covered
    )


def _positions(multirange: Iterable[Any]) -> Ranges:
    return tuple((part.lower, part.upper) for part in multirange)


def _multirange(covered: Ranges) -> list[Any]:
    return [asyncpg.Range(first, end) for first, end in covered]
