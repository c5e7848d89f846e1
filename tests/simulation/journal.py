"""The journal behind the network: the model of Redis, its restarts, and a gateway's way to it."""

import asyncio
import contextlib
import copy
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.turn.journal import Claim, Head, JournalAway, Outcome, Write, Written
from tests.simulation.billing import at_once
from tests.simulation.loop import Process
from tests.simulation.network import Network
from tests.support.memory_journal import MemoryJournal

SNAPSHOT_S = 0.5


@dataclass(frozen=True)
class Accepted:
    """A write or an adoption that changed the journal."""

    # Raised by each restart that lost something.
    life: int
    turn_id: str
    owner: str
    epoch: int
    number: int
    state: str
    at_s: float
    is_adoption: bool


class ServedJournal(MemoryJournal):
    """What the process of Redis has; news goes to whoever listens, over the network."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.process, self._network = Process("journal"), network
        self.connections: list[NetJournal] = []
        self.accepted: list[Accepted] = []
        self.life = 0
        self._snapshots: deque[Any] = deque(maxlen=2)

    def write_one(self, write: Write) -> Written:
        listeners = self._heard_by(write.turn_id)
        before = self.turns.get(write.turn_id)
        state_before = (before.head, len(before.batches)) if before else None
        written = super().write_one(write)
        now = self.turns.get(write.turn_id)
        if written.outcome is not Outcome.WRITTEN or now is None:
            return written
        if (now.head, len(now.batches)) == state_before:
            return written  # it was here before
        head = self.turns[write.turn_id].head
        self._accept(head)
        for connection in listeners:
            self._network.send(
                self.process, connection.process, "news", connection.hear, write.turn_id
            )
        return Written(written.outcome, bool(listeners), head.is_stopped)

    async def adopt(self, head: Head, owner: str) -> bool:
        adopted = await super().adopt(head, owner)
        if adopted:
            self._accept(self.turns[head.turn_id].head, is_adoption=True)
        return adopted

    def _accept(self, head: Head, *, is_adoption: bool = False) -> None:
        if self._network.note:
            what = f"{head.turn_id[-3:]} {head.state} {head.number} by {head.owner}, {head.epoch}"
            self._network.note("journal", what)
        self.accepted.append(
            Accepted(
                self.life,
                head.turn_id,
                head.owner,
                head.epoch,
                head.number,
                head.state,
                self._now(),
                is_adoption,
            )
        )

    async def stop(self, turn_id: str) -> None:
        await super().stop(turn_id)
        if found := self.turns.get(turn_id):
            for connection in self.connections:
                if connection.owner == found.head.owner:
                    self._network.send(
                        self.process, connection.process, "stop", connection.obey, turn_id
                    )

    def _heard_by(self, turn_id: str) -> "list[NetJournal]":
        return [
            each
            for each in self.connections
            if each.listens_to(turn_id)
            and not each.process.is_dead
            and not self._network.is_cut(self.process, each.process)
        ]

    # -- its own deaths ----------------------------------------------------------------------

    def snapshot(self) -> None:
        """What a power cut now would leave for the next half second or so."""
        self._snapshots.append(copy.deepcopy((self.turns, self.claims)))

    def die(self) -> None:
        self.process.is_dead = True

    def restart(self, loses: str) -> None:
        """`loses`: "nothing", "the last second", "everything"."""
        if loses == "everything":
            self.turns, self.claims = {}, {}
        elif loses == "the last second" and self._snapshots:
            self.turns, self.claims = copy.deepcopy(self._snapshots[0])
        if loses != "nothing":
            self.life += 1
            self.alive_until, self.read_until = {}, {}
            self._snapshots.clear()
        self.process = Process(f"journal.{self.life}", "journal")


class NetJournal:
    """A gateway's `JournalStore`."""

    def __init__(
        self, network: Network, served: ServedJournal, process: Process, timeout_s: float
    ) -> None:
        self.process, self.owner = process, ""
        self._network, self._served, self._timeout_s = network, served, timeout_s
        self._listeners: dict[str, list[asyncio.Event]] = {}
        self._stops: asyncio.Queue[str] = asyncio.Queue()
        served.connections.append(self)

    async def _ask(self, method: str, *args: Any) -> Any:
        served = self._served
        try:
            return await self._network.ask(
                self.process,
                served.process,
                f"journal.{method}",
                lambda: at_once(getattr(served, method)(*args)),
                self._timeout_s,
            )
        except TimeoutError:
            raise JournalAway from None

    async def write(self, writes: Sequence[Write]) -> list[Written]:
        return await self._ask("write", writes)

    async def tidy(self) -> None:
        await self._ask("tidy")

    async def head(self, turn_id: str) -> Head | None:
        return await self._ask("head", turn_id)

    async def plan(self, turn_id: str) -> bytes:
        return await self._ask("plan", turn_id)

    async def batches(self, turn_id: str, index: int = 0) -> list[bytes]:
        return await self._ask("batches", turn_id, index)

    async def adopt(self, head: Head, owner: str) -> bool:
        return await self._ask("adopt", head, owner)

    async def stop(self, turn_id: str) -> None:
        await self._ask("stop", turn_id)

    async def forget(self, turn_id: str, owner: str) -> None:
        await self._ask("forget", turn_id, owner)

    async def keep_alive(self, owner: str, lease_ms: int) -> None:
        await self._ask("keep_alive", owner, lease_ms)

    async def leave(self, owner: str) -> None:
        await self._ask("leave", owner)

    async def alive_s(self, owner: str) -> float:
        return await self._ask("alive_s", owner)

    async def orphans(self, owner: str, count_max: int) -> list[str]:
        return await self._ask("orphans", owner, count_max)

    async def claim(self, account_id: str, key: str, claim: Claim) -> Claim:
        return await self._ask("claim", account_id, key, claim)

    async def reclaim(self, account_id: str, key: str, old: Claim, claim: Claim) -> bool:
        return await self._ask("reclaim", account_id, key, old, claim)

    async def disclaim(self, account_id: str, key: str, claim: Claim) -> None:
        await self._ask("disclaim", account_id, key, claim)

    async def mark_read(self, turn_id: str, lease_ms: int) -> None:
        await self._ask("mark_read", turn_id, lease_ms)

    async def is_read(self, turn_id: str) -> bool:
        return await self._ask("is_read", turn_id)

    @contextlib.asynccontextmanager
    async def news(self, turn_id: str) -> AsyncIterator[asyncio.Event]:
        arrived = asyncio.Event()
        listeners = self._listeners.setdefault(turn_id, [])
        listeners.append(arrived)
        try:
            yield arrived
        finally:
            listeners.remove(arrived)

    async def stops(self, owner: str) -> AsyncIterator[str]:
        self.owner = owner
        while True:
            yield await self._stops.get()

    # -- what the network brings -------------------------------------------------------------

    def listens_to(self, turn_id: str) -> bool:
        return bool(self._listeners.get(turn_id))

    def hear(self, turn_id: str) -> None:
        for listener in self._listeners.get(turn_id, ()):
            listener.set()

    def obey(self, turn_id: str) -> None:
        self._stops.put_nowait(turn_id)


def running_turns(turns: Iterable[Any]) -> list[str]:
    return [each.head.turn_id for each in turns if each.head.state == "running"]
