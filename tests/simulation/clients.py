"""Clients: they ask, read, go away, come back with their cursor at another gateway, and stop.

What each saw is kept as it saw it; `laws.py` judges.
"""

import asyncio
import hashlib
import random
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import grpc

from gateway.turn.domain import (
    Ask,
    Caller,
    ChoiceFinished,
    Failed,
    Finished,
    Message,
    Sampling,
    Started,
    TextDelta,
)
from gateway.turn.events import Numbered
from mesh.chassis.errors import MeshError
from tests.simulation import engine
from tests.simulation.loop import Process
from tests.simulation.network import Stream
from tests.simulation.services import BY_POSITION, OTHERWISE

# A client that hears nothing for so long tries another gateway.
SILENCE_S = 12.0
# Reasons after which the same request may succeed.
TRY_AGAIN = {"SERVICE_UNAVAILABLE", "OVERLOADED", "TIMEOUT", "INTERNAL_ERROR", ""}


@dataclass(frozen=True)
class Wish:
    """What a client wants, all of it from the seed."""

    account: str
    model: str
    seed: int
    n: int = 1
    key: str = ""
    store: bool = False
    background: bool = False
    content: str = "How are you?"
    # It begins after so long, stops its turn, goes away after so many events.
    begin_s: float = 0.0
    stop_s: float | None = None
    leave_after: tuple[int, ...] = ()
    away_s: float = 0.5
    # Two requests of the same key at the same time.
    twice: bool = False
    # Another request of the same key, with another body: at most one of the two is served.
    has_rival: bool = False
    is_rival: bool = False

    @property
    def rival(self) -> "Wish":
        return replace(self, seed=self.seed ^ (1 << 12), has_rival=False, is_rival=True)

    @property
    def redraws(self) -> bool:
        return (self.model == BY_POSITION and self.n == 1) or self.content == "DELICATE"

    @property
    def ask(self) -> Ask:
        return Ask(
            model=self.model,
            messages=[Message("user", self.content)],
            store=self.store,
            n=self.n,
            sampling=Sampling(seed=self.seed),
            background=self.background,
        )

    @property
    def digest(self) -> str:
        return hashlib.sha256(
            repr((self.model, self.seed, self.n, self.content)).encode()
        ).hexdigest()

    @classmethod
    def drawn(cls, rng: random.Random, index: int) -> "Wish":
        seed = (
            (rng.randrange(1 << 40) << 4) | rng.choice((0, 4)) | (8 if rng.random() < 0.06 else 0)
        )
        background, key = rng.random() < 0.3, rng.random() < 0.5
        twice = key and rng.random() < 0.4
        leave = tuple(rng.randrange(1, 12) for _ in range(rng.randrange(3)))
        return cls(
            account=f"acc_{index}",
            model=rng.choice((BY_POSITION, BY_POSITION, OTHERWISE)),
            seed=seed,
            n=2 if rng.random() < 0.2 else 1,
            key=f"key {index}" if key else "",
            store=rng.random() < 0.6,
            background=background,
            content=rng.choices(("How are you?", "DELICATE", "FORBIDDEN"), (20, 1, 1))[0],
            begin_s=rng.random() * 1.5,
            stop_s=rng.random() * 2 if rng.random() < 0.25 else None,
            leave_after=leave,
            away_s=rng.choice((0.05, 0.5, 1.5, 3.0)),
            twice=twice,
            has_rival=key and not twice and rng.random() < 0.15,
        )


@dataclass
class Reading:
    """What one reader of a turn got, in order, from the beginning."""

    wish: Wish
    turn_id: str = ""
    # (epoch, number, event).
    events: list[tuple[int, int, Any]] = field(default_factory=list)
    # What it had before it began anew, when it did.
    earlier: list[list[tuple[int, int, Any]]] = field(default_factory=list)
    # Turns that its requests were told of.
    turn_ids: list[str] = field(default_factory=list)
    # The reason that ended it; "" while, or when, none did.
    error: str = ""
    errors: list[str] = field(default_factory=list)
    is_over: bool = False
    stop_asked: bool = False
    # When a gateway had said that it stops; when the end came.
    stopped_at: float = float("inf")
    over_at: float = 0.0
    # When it gave a gateway up that said nothing.
    silent_at: list[float] = field(default_factory=list)
    view: Any = None

    @property
    def cursor(self) -> str:
        if not self.events:
            return ""
        epoch, number, _ = self.events[-1]
        return f"{self.turn_id}:{epoch}:{number}"

    @property
    def last(self) -> Any:
        return self.events[-1][2] if self.events else None

    @property
    def has_end(self) -> bool:
        return isinstance(self.last, Finished | Failed)

    def text(self, choice: int) -> str:
        return text_of(self.events, choice)

    def anew(self) -> None:
        """The next event is the first of the turn again."""
        if self.events:
            self.earlier.append(self.events)
        self.events = []


def text_of(events: list[tuple[int, int, Any]], choice: int) -> str:
    return "".join(
        event.text
        for _, _, event in events
        if isinstance(event, TextDelta) and event.choice_index == choice
    )


class Face:
    """The gateway's end of a client's requests: as thin as the real ones."""

    def __init__(self, turns: Any) -> None:
        self._turns = turns

    async def serve(self, request: tuple[Any, ...], stream: Stream) -> None:
        turns, (method, *args) = self._turns, request
        if method == "begin":
            ask, caller, key, digest = args
            following = await turns.begin(ask, caller, key, digest)
            await self._follow(following, stream)
        elif method == "follow":
            await self._follow(await turns.follow(*args), stream)
        elif method == "stop":
            stream.send(("view", await turns.stop(*args)))
        else:
            stream.send(("view", await turns.view(*args)))

    @staticmethod
    async def _follow(following: Any, stream: Stream) -> None:
        turn_id = following.plan.turn_id
        async with aclosing(following.events()) as batches:
            async for batch in batches:
                for numbered in batch:
                    stream.send(("event", turn_id, following.epoch, numbered))


class Client:
    """One wish, to its end."""

    def __init__(self, world: Any, wish: Wish, rng: random.Random, name: str) -> None:
        self._world, self.wish, self._rng = world, wish, rng
        self.process = Process(name)
        self.reading = Reading(wish)
        self._leave_after = list(wish.leave_after)
        self._note: Callable[..., None] | None = world.network.note

    async def run(self) -> None:
        await asyncio.sleep(self.wish.begin_s)
        stopping = None
        if self.wish.stop_s is not None:
            stopping = asyncio.create_task(self._stop_later(self.wish.stop_s))
        try:
            while not self.reading.is_over:
                await self._once()
        finally:
            if stopping:
                stopping.cancel()
        if self.reading.turn_id and self.reading.has_end:
            await self._look()

    async def _once(self) -> None:
        """One request to a gateway, read to its end, or until the connection breaks or we leave."""
        reading, wish = self.reading, self.wish
        if wish.key and not (reading.turn_id and self._rng.random() < 0.5):
            reading.anew()
            request = self._begin()
        elif reading.turn_id:
            request = ("follow", reading.turn_id, wish.account, reading.cursor)
        else:
            request = self._begin()
        stream = self._world.connect(self.process, request)
        try:
            left = await self._read(stream)
        except grpc.aio.AioRpcError as error:
            await self._refused(MeshError.from_rpc(error))
        except TimeoutError:
            self._told("silence")
            self.reading.silent_at.append(asyncio.get_running_loop().time())
        else:
            await self._ended(left)
        finally:
            stream.cancel()

    def _begin(self) -> tuple[Any, ...]:
        wish, turn_id = self.wish, self._world.next_turn_id()
        jurisdiction = "1" if engine.is_safe_complete(wish.seed) else ""
        caller = Caller(wish.account, "pro", turn_id, jurisdiction)
        self.reading.turn_ids.append(turn_id)
        self._told(f"begins {turn_id[-3:]}")
        return ("begin", wish.ask, caller, wish.key, wish.digest if wish.key else "")

    async def _read(self, stream: Stream) -> bool:
        """Whether we left."""
        budget = self._leave_after.pop(0) if self._leave_after else None
        while True:
            async with asyncio.timeout(SILENCE_S):
                try:
                    item = await stream.__anext__()
                except StopAsyncIteration:
                    return False
            self._take(*item[1:])
            if budget is not None:
                budget -= 1
                if budget < 0:
                    return True

    def _take(self, turn_id: str, epoch: int, numbered: Numbered) -> None:
        reading = self.reading
        if reading.turn_id and reading.turn_id != turn_id:
            reading.anew()
        reading.turn_id = turn_id
        if turn_id not in reading.turn_ids:
            reading.turn_ids.append(turn_id)
        reading.events.append((epoch, numbered.number, numbered.event))
        if self._note:
            self._told(f"{turn_id[-3:]}:{epoch}:{numbered.number} {_brief(numbered.event)}")

    async def _ended(self, left: bool) -> None:
        reading = self.reading
        if reading.has_end:
            reading.is_over, reading.over_at = True, asyncio.get_running_loop().time()
        elif left:
            self._told("leaves")
            if reading.wish.key or reading.turn_id:
                await asyncio.sleep(self.wish.away_s)
            else:
                reading.is_over = True
        else:
            # A stream that ends well without an end: said to be over, and is not.
            reading.errors.append("NO_END")
            reading.error, reading.is_over = "NO_END", True

    async def _refused(self, error: MeshError) -> None:
        reading, reason = self.reading, error.reason
        self._told(f"refused {reason or error.code.name}")
        reading.errors.append(reason)
        may_repeat = reason in TRY_AGAIN and (self.wish.key or reading.turn_id)
        if not may_repeat:
            reading.error, reading.is_over = reason or "LOST", True
            return
        await asyncio.sleep(0.1 + 0.2 * self._rng.random())

    async def _stop_later(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        while not self.reading.turn_id:  # noqa: ASYNC110  # virtual seconds cost nothing
            await asyncio.sleep(0.1)
        self.reading.stop_asked = True
        for _ in range(100):
            self._told("stops")
            found, error = await self._asked("stop")
            if found is not None and not self.reading.is_over:
                self.reading.stopped_at = asyncio.get_running_loop().time()
            if found is not None or error == "TURN_NOT_FOUND" or self.reading.is_over:
                return
            await asyncio.sleep(0.2)

    async def _look(self) -> None:
        """What the turn says of itself, when we have its end."""
        for _ in range(100):
            found, error = await self._asked("view")
            if found is not None and found.state != "running":
                self.reading.view = found
                return
            if error == "TURN_NOT_FOUND":
                return
            await asyncio.sleep(0.3)

    async def _asked(self, method: str) -> tuple[Any, str]:
        request = (method, self.reading.turn_id, self.wish.account)
        stream = self._world.connect(self.process, request)
        try:
            async with asyncio.timeout(SILENCE_S):
                return (await stream.__anext__())[1], ""
        except grpc.aio.AioRpcError as error:
            return None, MeshError.from_rpc(error).reason
        except (TimeoutError, StopAsyncIteration):
            return None, ""
        finally:
            stream.cancel()

    def _told(self, what: str) -> None:
        if self._note:
            self._note(self.process.name, what)


def _brief(event: Any) -> str:
    if isinstance(event, TextDelta):
        return f"text {event.choice_index} {event.text!r}"
    if isinstance(event, ChoiceFinished):
        return f"choice {event.choice_index} {event.finish_reason}"
    if isinstance(event, Started):
        return "started" + ("" if event.journaled else " unjournaled")
    if isinstance(event, Failed):
        return f"failed {event.reason}"
    return f"finished {event.usage.completion_token_count}"
