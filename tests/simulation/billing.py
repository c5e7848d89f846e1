"""The meter in memory: the real service and the real decisions over a dictionary."""

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from billing_svc import ledger, quota
from billing_svc.hold_rows import Held, HoldRow
from billing_svc.ledger import Entry, Usage
from billing_svc.prices import Price
from billing_svc.quota import Counts
from billing_svc.quota_store import Extended, minute_of, month_of
from billing_svc.service import QuotaService
from billing_svc.turn import SettledCounts, State, Turn
from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.network import Service, unavailable

BEGIN = dt.datetime(2026, 11, 22, tzinfo=dt.UTC)
PRICE = Price(input_nanousd=3, cached_input_nanousd=1, output_nanousd=7, version="sim")


class Store:
    """Holds and ledger, in the shape of QuotaStore; every method is one transaction."""

    def __init__(self) -> None:
        self.turns: dict[str, Turn] = {}
        self.entries: list[Entry] = []
        # How often a turn came to be settled.
        self.settled_count: Counter[str] = Counter()
        # All that nodes said, whether or not it was new.
        self.reports: list[Usage] = []
        self._waiting: list[Usage] = []

    async def hold(self, row: HoldRow) -> Held:
        """As billing.hold in the schema, for an account without a limit."""
        turn_id, now = row.turn_id, row.now
        turn = self.turns.get(turn_id)
        if turn is None:
            turn = Turn(
                turn_id=turn_id,
                account_id=row.account_id,
                model=row.model,
                price=PRICE,
                amount_nanousd=row.prompt_count * PRICE.input_nanousd
                + row.output_count_max * PRICE.output_nanousd,
                expire_time=row.expire_time,
                held_prompt_count=row.prompt_count,
                held_output_count=row.output_count_max,
            )
        elif turn.account_id != row.account_id:
            return Held("other_account", 0, 0, None, -1, None, None, now)
        elif turn.state is State.EXPIRED:
            turn = replace(turn, state=State.OPEN, expire_time=row.expire_time)
        self.turns[turn_id] = turn
        waiting = [each for each in self._waiting if each.turn_id == turn_id]
        self._waiting = [each for each in self._waiting if each.turn_id != turn_id]
        for usage in waiting:
            self._charge(usage, now)
        count = turn.held_output_count
        return Held("held", turn.amount_nanousd, count, None, -1, None, None, turn.expire_time)

    async def extend(
        self, turn_id: str, counts: Counts, now: dt.datetime, lifetime: dt.timedelta
    ) -> Extended | None:
        turn = self.turns.get(turn_id)
        if turn is None:
            return None
        asked = quota.raise_of(turn, counts)
        minute = minute_of(now)
        after = quota.extended(turn, asked, asked.output_count_max, minute, now + lifetime)
        self.turns[turn_id] = after
        return Extended(after, None)

    async def settle(
        self,
        turn_id: str,
        counts: Sequence[SettledCounts],
        now: dt.datetime,
        *,
        cut_short: bool = False,
    ) -> Turn | None:
        if turn := self.turns.get(turn_id):
            self.turns[turn_id] = after = quota.settled(turn, counts, now, cut_short=cut_short)
            if turn.settle_time is None and after.settle_time is not None:
                self.settled_count[turn_id] += 1
        return self.turns.get(turn_id)

    async def release(self, turn_id: str, now: dt.datetime) -> Turn | None:
        if turn := self.turns.get(turn_id):
            self.turns[turn_id] = quota.released(turn, now)
        return self.turns.get(turn_id)

    def append(self, usage: Usage, now: dt.datetime) -> None:
        """A node's report; it waits when the hold is not known yet."""
        self.reports.append(usage)
        if usage.turn_id in self.turns:
            self._charge(usage, now)
        else:
            self._waiting.append(usage)

    def sweep(self, now: dt.datetime) -> None:
        """Ends holds whose time is over."""
        self.turns = {key: quota.expired(turn, now) for key, turn in self.turns.items()}

    def reconcile(self, settled_before: dt.datetime, now: dt.datetime) -> None:
        """Charges what was settled and never reported."""
        for turn in list(self.turns.values()):
            if (
                turn.state is State.SETTLED
                and turn.settle_time
                and (turn.settle_time <= settled_before)
            ):
                self._write(ledger.reconciled(turn, month_of(now)))

    def _charge(self, usage: Usage, now: dt.datetime) -> None:
        self._write(ledger.billed(self.turns[usage.turn_id], [usage], month_of(now)))

    def _write(self, result: ledger.Billed) -> None:
        self.turns[result.turn.turn_id] = result.turn
        self.entries += result.entries


class Billing(Service):
    """The quota service, and the stream of usage events."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.process, self._loop = Process("billing"), loop
        self.store, self.is_away = Store(), False
        prices = SimpleNamespace(current=SimpleNamespace(price_of=lambda _: PRICE))
        self._quota: Any = QuotaService(self.store, prices, self.now)  # type: ignore[arg-type]

    def now(self) -> dt.datetime:
        return BEGIN + dt.timedelta(seconds=self._loop.now)

    def unary(self, method: str, request: Any) -> Any:
        if self.is_away:
            raise unavailable("billing is away")
        return at_once(getattr(self._quota, method)(request, None))

    def sweep(self) -> None:
        self.store.sweep(self.now())
        self.store.reconcile(self.now() - dt.timedelta(seconds=5), self.now())


def at_once(coroutine: Any) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as result:
        return result.value
    raise AssertionError("it waits")
