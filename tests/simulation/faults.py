"""What goes wrong, and when: a schedule from a seed.

Each run has some kinds of faults and not others (swarm testing: Groce et al., 2012), so that what
one kind hides another does not.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.simulation.network import Weather

CHAOS_S = 3.5
GATEWAYS = ("gateway-0", "gateway-1", "gateway-2")

CRASH, PAUSE, DRAIN = "gateway crashes", "gateway pauses", "gateway drains"
PARTITION, NODE, SAFETY = "partition", "node dies", "safety dies"
JOURNAL_AWAY, JOURNAL_LOSES = "journal away", "journal loses"
STORES, WEATHER = "stores away", "weather"
KINDS = (CRASH, PAUSE, DRAIN, PARTITION, NODE, SAFETY, JOURNAL_AWAY, JOURNAL_LOSES, STORES, WEATHER)


@dataclass(frozen=True)
class Schedule:
    """Everything that is drawn before a run begins."""

    gateway_count: int
    node_count: int
    client_count: int
    kinds: tuple[str, ...]
    weather: Weather
    # (when, kind, a number to choose with).
    actions: tuple[tuple[float, str, float], ...]

    @classmethod
    def of(cls, seed: int) -> "Schedule":
        rng = random.Random(f"faults {seed}")
        kinds = tuple(kind for kind in KINDS if rng.random() < 0.3)
        timed = [kind for kind in kinds if kind != WEATHER]
        count = rng.randrange(1, 6) if timed else 0
        actions = sorted(
            (rng.random() * CHAOS_S, rng.choice(timed), rng.random()) for _ in range(count)
        )
        weather = Weather()
        if WEATHER in kinds:
            weather = Weather(
                lost=rng.choice((0.0, 0.01, 0.05)),
                repeated=rng.choice((0.0, 0.02, 0.1)),
                slow=rng.choice((0.0, 0.02, 0.1)),
                breaking=rng.choice((0.0, 0.002)),
            )
        return cls(
            gateway_count=rng.choice((2, 2, 3)),
            node_count=rng.choice((1, 2)),
            client_count=rng.choice((1, 2, 2, 3)),
            kinds=kinds,
            weather=weather,
            actions=tuple(actions),
        )


class Chaos:
    """Does what the schedule says."""

    def __init__(self, world: Any, schedule: Schedule) -> None:
        self._world, self._schedule = world, schedule
        self._repairs: list[asyncio.Task[None]] = []
        self._acts: dict[str, Callable[[float], Awaitable[None]]] = {
            CRASH: self._crash,
            PAUSE: self._pause,
            DRAIN: self._drain,
            PARTITION: self._partition,
            NODE: self._node,
            SAFETY: self._safety,
            JOURNAL_AWAY: self._journal_away,
            JOURNAL_LOSES: self._journal_loses,
            STORES: self._stores,
        }

    async def run(self) -> None:
        """The actions in their order, then all is well again."""
        world, schedule = self._world, self._schedule
        world.network.weather = schedule.weather
        if schedule.weather != Weather():
            world.faults.add(WEATHER)
        for when, kind, number in schedule.actions:
            await asyncio.sleep(max(0.0, when - world.loop.now))
            world.faults.add(kind)
            await self._acts[kind](number)
        if schedule.kinds:
            await asyncio.sleep(max(0.0, CHAOS_S - world.loop.now))
        for repair in self._repairs:
            repair.cancel()
        self._note("all is well", "")
        world.heal()

    def _later(self, seconds: float, repair: Callable[[], None]) -> None:
        async def after() -> None:
            await asyncio.sleep(seconds)
            repair()

        self._repairs.append(asyncio.create_task(after()))

    def _note(self, what: str, about: str) -> None:
        if self._world.network.note:
            self._world.network.note(what, about)

    def _some_gateway(self, number: float) -> str:
        living = sorted(self._world.gateways)
        return living[int(number * 1000) % len(living)] if living else ""

    async def _crash(self, number: float) -> None:
        if machine := self._some_gateway(number):
            self._note("crash", machine)
            await self._world.crash(machine)
            self._later(0.2 + number * 2, lambda: self._start(machine))

    def _start(self, machine: str) -> None:
        if machine not in self._world.gateways:
            self._note("start", machine)
            self._world.start_gateway(machine)

    async def _drain(self, number: float) -> None:
        if machine := self._some_gateway(number):
            self._note("drain", machine)
            process = self._world.gateways[machine].process
            process.resume()
            draining = asyncio.create_task(self._world.drain(machine))
            self._repairs.append(draining)
            await asyncio.wait([draining], timeout=1.0)
            if not draining.done():
                await self._world.end(process)
            self._later(0.2 + number * 2, lambda: self._start(machine))

    async def _pause(self, number: float) -> None:
        if machine := self._some_gateway(number):
            process = self._world.gateways[machine].process
            self._note("pause", process.name)
            process.pause()
            self._later(0.3 + number * 2, lambda: self._resume(process))

    def _resume(self, process: Any) -> None:
        self._note("resume", process.name)
        process.resume()

    async def _partition(self, number: float) -> None:
        machine = f"gateway-{int(number * 1000) % self._schedule.gateway_count}"
        others = ["journal", "journal", "safety", "billing", *self._world.nodes]
        other = others[int(number * 100_000) % len(others)]
        cut = frozenset((machine, other))
        self._note("cut", f"{machine} | {other}")
        self._world.network.cuts.add(cut)
        self._later(0.3 + number * 2.5, lambda: self._world.network.cuts.discard(cut))

    async def _node(self, number: float) -> None:
        living = [each for each in self._world.nodes.values() if not each.process.is_dead]
        if living:
            node = living[int(number * 1000) % len(living)]
            self._note("kill", node.name)
            await self._world.end(node.process)
            self._world.told_of_nodes()
            self._later(0.1 + number, lambda: self._restart(node))

    def _restart(self, service: Any) -> None:
        if service.process.is_dead:
            service.restart()
            self._note("start", service.process.name)
            self._world.told_of_nodes()

    async def _safety(self, number: float) -> None:
        safety = self._world.safety
        if not safety.process.is_dead:
            self._note("kill", "safety")
            await self._world.end(safety.process)
            self._later(0.1 + number, lambda: self._restart(safety))

    async def _journal_away(self, number: float) -> None:
        journal = self._world.journal
        process = journal.process
        self._note("pause", "journal")
        process.pause()
        self._later(0.2 + number * 2, lambda: self._resume(process))

    async def _journal_loses(self, number: float) -> None:
        journal = self._world.journal
        if not journal.process.is_dead:
            loses = ("nothing", "the last second", "everything")[int(number * 1000) % 3]
            self._world.faults.add(f"journal loses {loses}")
            self._note("kill", f"journal, loses {loses}")
            journal.process.resume()
            journal.die()
            self._later(0.05 + number, lambda: journal.restart(loses))

    async def _stores(self, number: float) -> None:
        service = self._world.billing if number < 0.5 else self._world.conversation
        self._note("away", service.process.name)
        service.is_away = True
        self._later(0.2 + number * 2, lambda: setattr(service, "is_away", False))
