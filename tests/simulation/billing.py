"""The meter in memory: the real service and the real decisions over a dictionary."""

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from billing_svc import ledger, quota
from billing_svc.ledger import Entry, Usage
from billing_svc.prices import Price
from billing_svc.quota_store import Held, month_of
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

    async def hold(self, *, turn_id: str, now: dt.datetime, lifetime: Any, **found: Any) -> Held:
        """As billing.hold in the schema, for an account without a limit."""
        turn = self.turns.get(turn_id)
        if turn is None:
            turn = Turn(turn_id=turn_id, expire_time=now + lifetime, **found)
        elif turn.account_id != found["account_id"]:
            return Held("other_account", 0, 0, now)
        elif turn.state is State.EXPIRED:
            turn = replace(turn, state=State.OPEN, expire_time=now + lifetime)
        self.turns[turn_id] = turn
        waiting = [each for each in self._waiting if each.turn_id == turn_id]
        self._waiting = [each for each in self._waiting if each.turn_id != turn_id]
        for usage in waiting:
            self._charge(usage, now)
        return Held("held", turn.amount_nanousd, -1, turn.expire_time)

    async def extend(
        self, turn_id: str, prompt: int, output: int, now: dt.datetime, lifetime: dt.timedelta
    ) -> Turn | None:
        turn = self.turns.get(turn_id)
        if turn:
            self.turns[turn_id] = quota.extended(turn, prompt, output, now + lifetime)
        return self.turns.get(turn_id)

    async def settle(
        self, turn_id: str, counts: Sequence[SettledCounts], now: dt.datetime
    ) -> Turn | None:
        if turn := self.turns.get(turn_id):
            self.turns[turn_id] = after = quota.settled(turn, counts, now)
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
