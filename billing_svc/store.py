"""PostgreSQL: the pool, its failures as reasons, and turns as rows.

A connection is opened when it is needed, so the service starts before its store and comes back
with it. Lock order everywhere: turns (by id), balances (by account), totals (by key).
"""

import contextlib
import datetime as dt
from collections.abc import AsyncIterator, Iterable
from typing import Any, TypeAlias

import asyncpg
import grpc

from billing_svc.prices import Price
from billing_svc.ranges import Ranges
from billing_svc.turn import Counts, State, Turn
from mesh.chassis import postgres
from mesh.chassis.errors import MeshError
from mesh.chassis.postgres import StoreUnavailableError

Connection: TypeAlias = postgres.Connection

ACQUIRE_TIMEOUT_S = 1.5
CONNECT_TIMEOUT_S = 1.0
COMMAND_TIMEOUT_S = 2.5
RETRY_AFTER_S = 1.0
# Answer c's position p stands in covered_output as c * 2^32 + p.
_CHOICE_BITS = 32


class Store:
    """The pool. `connection()` for single statements, `transaction()` for several."""

    def __init__(self, pool: postgres.Pool) -> None:
        self._pool = pool

    @classmethod
    async def open(cls, dsn: str, connection_count_max: int = 16) -> "Store":
        """Makes the pool; it connects at the first query, not here."""
        pool = await postgres.open_pool(
            dsn,
            name="billing",
            connection_count_max=connection_count_max,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            command_timeout_s=COMMAND_TIMEOUT_S,
        )
        return cls(pool)

    async def close(self) -> None:
        """Ends the connections; queries that run get a second."""
        await postgres.close_pool(self._pool)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection; MeshError STORE_UNAVAILABLE when there is none, or it fails inside."""
        try:
            async with postgres.connection_of(self._pool, ACQUIRE_TIMEOUT_S) as connection:
                yield connection
        except StoreUnavailableError as error:
            raise MeshError(
                grpc.StatusCode.UNAVAILABLE,
                "STORE_UNAVAILABLE",
                "The billing store does not answer; try again in a moment.",
                retry_after_s=RETRY_AFTER_S,
            ) from error

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A transaction, committed at the end, rolled back on an exception."""
        async with self.connection() as connection, connection.transaction():
            yield connection


TURN_COLUMNS = """
    turn_id, account_id, model, price_version, input_nanousd, cached_input_nanousd, output_nanousd,
    state, amount_nanousd, ledger_nanousd, expire_time, settle_time,
    settled_prompt_count, settled_cached_count, settled_output_count, settled_withheld_count,
    covered_input, covered_output, output_credit, ledger_period
"""

_UPDATE_TURN = """
UPDATE billing.turns SET
    state = $2, amount_nanousd = $3, reserved_nanousd = $4, ledger_nanousd = $5, expire_time = $6,
    settle_time = $7, settled_prompt_count = $8, settled_cached_count = $9,
    settled_output_count = $10, settled_withheld_count = $11, covered_input = $12,
    covered_output = $13, output_credit = $14, ledger_period = $15
WHERE turn_id = $1
"""


def turn_of(row: asyncpg.Record) -> Turn:
    """The turn of a row with TURN_COLUMNS."""
    counts = None
    if row["settle_time"] is not None:
        names = ("prompt", "cached", "output", "withheld")
        counts = Counts(*(row[f"settled_{name}_count"] for name in names))
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
        counts=counts,
        covered_input=_positions(row["covered_input"]),
        covered_output=_answers(_positions(row["covered_output"])),
        output_credit=row["output_credit"],
        ledger_period=row["ledger_period"],
    )


async def update_turns(connection: Connection, turns: Iterable[Turn]) -> None:
    """Writes turns whose rows are locked; one round trip."""
    await connection.executemany(_UPDATE_TURN, [_row_of(turn) for turn in turns])


def _row_of(turn: Turn) -> tuple[Any, ...]:
    counts = turn.counts
    settled = (counts.prompt, counts.cached, counts.output, counts.withheld) if counts else ()
    return (
        turn.turn_id,
        int(turn.state),
        turn.amount_nanousd,
        turn.reserved_nanousd,
        turn.ledger_nanousd,
        turn.expire_time,
        turn.settle_time,
        *(settled or (None,) * 4),
        _multirange(turn.covered_input),
        _multirange(_flat(turn.covered_output)),
        turn.output_credit,
        turn.ledger_period,
    )


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


async def change_balances(
    connection: Connection, deltas: dict[str, tuple[int, int]], month: dt.date
) -> None:
    """Adds (reserved, spent) to accounts' balances, in the order of their ids."""
    rows = [(account, *delta, month) for account, delta in sorted(deltas.items()) if any(delta)]
    await connection.executemany(
        """
        UPDATE billing.balances SET
            reserved_nanousd = reserved_nanousd + $2,
            spent_nanousd = CASE WHEN period < $4 THEN 0 ELSE spent_nanousd END + $3,
            period = greatest(period, $4)
        WHERE account_id = $1
        """,
        rows,
    )
