"""One run: a world, its clients and its faults, from a seed; then the laws."""

import asyncio
import contextlib
import hashlib
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from tests.simulation import laws, seams
from tests.simulation import loop as virtual
from tests.simulation.clients import Wish
from tests.simulation.faults import CHAOS_S, GATEWAYS, Chaos, Schedule
from tests.simulation.network import TIMEOUT_S
from tests.simulation.world import World

# Virtual seconds after the last fault in which every turn must have ended, and every reader.
PATIENCE_S = 45.0
# What runs when all turns have ended: usage that is late, the reconciler, a hold's lifetime.
AFTERWARDS_S = 15.0
LOOK_S = 0.25

Variant = Callable[[], AbstractContextManager[None]]


@dataclass
class Result:
    """What came of a seed."""

    seed: int
    variant: str = ""
    violations: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    faults: set[str] = field(default_factory=set)
    step_count: int = 0
    virtual_s: float = 0.0

    @property
    def command(self) -> str:
        """Makes this run again."""
        name = f" --variant {self.variant}" if self.variant else ""
        return f"python -m tests.simulation --seed {self.seed}{name} --trace"

    @property
    def digest(self) -> str:
        """Of the trace: equal for equal runs."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()

    def __str__(self) -> str:
        return "\n".join([*self.violations, f"again: {self.command}"])


def wishes_of(seed: int, count: int) -> list[Wish]:
    rng = random.Random(f"wishes {seed}")
    return [Wish.drawn(rng, index) for index in range(count)]


def simulate(
    seed: int,
    variant: Variant | None = None,
    *,
    name: str = "",
    trace: bool = False,
    schedule: Schedule | None = None,
    wishes: list[Wish] | None = None,
) -> Result:
    """Runs a seed; a schedule or wishes that are given stand for those of the seed."""
    result = Result(seed, name)
    schedule = schedule or Schedule.of(seed)
    wishes = wishes if wishes is not None else wishes_of(seed, schedule.client_count)

    async def main(loop: virtual.VirtualLoop) -> None:
        def note(who: str, what: str) -> None:
            result.trace.append(f"{loop.now:9.4f} {who:>14}  {what}")

        with contextlib.ExitStack() as stack:
            stack.enter_context(seams.simulated(loop, seed, note if trace else None))
            if variant:
                stack.enter_context(variant())
            await _run(loop, seed, schedule, wishes, result, note=note if trace else None)

    try:
        virtual.run(main)
    except virtual.Stuck as stuck:
        result.violations.append(f"stuck: {stuck}")
    return result


async def _run(
    loop: virtual.VirtualLoop,
    seed: int,
    schedule: Schedule,
    wishes: list[Wish],
    result: Result,
    *,
    note: Callable[..., None] | None,
) -> None:
    world = World.made(loop, seed, schedule.node_count, note)
    if note:
        note("schedule", f"{', '.join(schedule.kinds) or 'no faults'}; {schedule.weather}")
        for wish in wishes:
            note("wish", str(wish))
    for machine in GATEWAYS[: schedule.gateway_count]:
        world.start_gateway(machine)
    house = asyncio.create_task(world.keep_house())
    for index, wish in enumerate(wishes):
        world.add_client(wish, f"client-{index}", seed)
        if wish.twice:
            world.add_client(wish, f"client-{index}b", seed)
        if wish.has_rival:
            world.add_client(wish.rival, f"client-{index}r", seed)
    reading = [each.process.start(each.run(), "client") for each in world.clients]
    chaos = asyncio.create_task(Chaos(world, schedule).run())
    await _until_quiet(world, [chaos, *reading])
    world.ended_at = loop.now
    for task in (chaos, *reading):
        if task.done() and not task.cancelled() and (error := task.exception()):
            raise error
    hung = [
        each.process.name
        for each, task in zip(world.clients, reading, strict=True)
        if not task.done()
    ]
    result.violations += [f"liveness: {name} still waits" for name in hung]
    if not world.is_quiet:
        result.violations.append("liveness: a turn still runs")
    await _close(world)
    house.cancel()
    await asyncio.wait([house])
    _afterwards(world)
    result.violations += laws.broken(world)
    result.violations += [f"crash: {failure}" for failure in loop.failures]
    result.faults, result.step_count, result.virtual_s = world.faults, loop.step_count, loop.now


async def _until_quiet(world: World, tasks: "list[asyncio.Task[None]]") -> None:
    while world.loop.now < CHAOS_S + PATIENCE_S:
        if all(task.done() for task in tasks) and world.is_quiet:
            return
        await asyncio.sleep(LOOK_S)


async def _close(world: World) -> None:
    """All gateways end as at SIGTERM; no task may be left."""
    for machine in list(world.gateways):
        gateway = world.gateways[machine]
        if gateway.keeping.done():
            world.left_over.append(f"none: {machine} gave up: {gateway.keeping.exception()!r}")
        closing = gateway.process.start(gateway.turns.close(), "close")
        await asyncio.wait([closing], timeout=5.0)
        gateway.keeping.cancel()
        await asyncio.sleep(TIMEOUT_S + 0.2)
        left = [str(task.get_coro()) for task in gateway.process.tasks]
        world.left_over += [f"{machine} {name}" for name in left]
        await world.end(gateway.process)
    for service in (*world.nodes.values(), world.safety):
        world.left_over += [f"{service.process.name} serves" for _ in service.process.tasks]
        await world.end(service.process)
    for client in world.clients:
        await world.end(client.process)


def _afterwards(world: World) -> None:
    """Holds lapse, and what no node reported is charged."""
    world.loop.now += AFTERWARDS_S
    world.billing.sweep()
