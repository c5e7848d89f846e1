"""The whole system in one loop: real gateways over a simulated network, and what stands behind."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from billing_svc.ledger import Usage
from gateway.context.builder import ContextBuilder
from gateway.context.source import OperatorPromptsFile
from gateway.settings import QueueLimits, TurnLimits
from gateway.turn.background import Background
from gateway.turn.conclude import Concluder
from gateway.turn.fair_queue import FairQueue
from gateway.turn.generation import Generator
from gateway.turn.journal import JournalWriter, Lease
from gateway.turn.plan import Planner
from gateway.turn.run import Means
from gateway.turn.threads import Threads
from gateway.turn.turns import Turns
from gateway.upstreams.billing import Billing as BillingClient
from gateway.upstreams.catalogue import Catalogue
from gateway.upstreams.conversation import Conversation as ConversationClient
from gateway.upstreams.inference import Inference
from gateway.upstreams.pool import Pool
from gateway.upstreams.safety import Safety as SafetyClient
from gateway.upstreams.tokenizer import Tokenizer as TokenizerClient
from tests.simulation import seams
from tests.simulation.billing import BEGIN, Billing
from tests.simulation.clients import Client, Face, Reading, Wish
from tests.simulation.journal import NetJournal, ServedJournal, running_turns
from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.network import Channel, Network, Service, Stream, Weather
from tests.simulation.services import Conversation, Node, Safety, Tokenizer

LIMITS = TurnLimits(
    owner_lease_ms=800,
    hold_lifetime_s=6.0,
    node_backoff_s=0.1,
    safety_backoff_s=0.1,
    reader_grace_s=2.0,
    conclude_wait_s=1.0,
)
HOUSEKEEPING_S = 0.5


@dataclass
class Gateway:
    """One life of a gateway."""

    machine: str
    process: Process
    turns: Turns
    face: Face
    background: Background
    pool: Pool
    keeping: "asyncio.Task[None] | None" = None


@dataclass
class World:
    """What is there, and the record of what happened."""

    loop: VirtualLoop
    rng: random.Random
    network: Network
    journal: ServedJournal
    billing: Billing
    conversation: Conversation
    safety: Safety
    tokenizer: Tokenizer
    nodes: dict[str, Node]
    gateways: dict[str, Gateway] = field(default_factory=dict)
    lives: dict[str, int] = field(default_factory=dict)
    clients: list[Client] = field(default_factory=list)
    turn_count: int = 0
    # What the faults were, by name: some refusals are explained by some of them only.
    faults: set[str] = field(default_factory=set)
    left_over: list[str] = field(default_factory=list)
    ended_at: float = 0.0

    @classmethod
    def made(
        cls, loop: VirtualLoop, seed: int, node_count: int, note: Callable[..., None] | None
    ) -> "World":
        rng = random.Random(f"world {seed}")
        network = Network(loop, random.Random(f"network {seed}"), note)
        billing = Billing(loop)
        world = cls(
            loop=loop,
            rng=rng,
            network=network,
            journal=ServedJournal(network),
            billing=billing,
            conversation=Conversation(),
            safety=Safety(),
            tokenizer=Tokenizer(),
            nodes={},
        )
        for index in range(node_count):
            name = f"inference-{index}"
            world.nodes[name] = Node(name, random.Random(f"{name} {seed}"), world.report)
        return world

    # -- gateways ----------------------------------------------------------------------------

    def start_gateway(self, machine: str) -> Gateway:
        """A new life of a machine's gateway."""
        life = self.lives[machine] = self.lives.get(machine, -1) + 1
        process = Process(f"{machine}.{life}", machine)
        gateway = process.context.run(self._wired, machine, process)
        gateway.keeping = process.start(gateway.turns.keep(), "keep")
        self.gateways[machine] = gateway
        return gateway

    def _wired(self, machine: str, process: Process) -> Gateway:
        """As gateway.wiring does, with the clock of this world."""

        def channel_to(service: Service) -> Any:
            return Channel(self.network, process, lambda _: service)

        billing = BillingClient(channel_to(self.billing))
        conversation = ConversationClient(channel_to(self.conversation))
        inference = Inference(Channel(self.network, process, self._node))  # type: ignore[arg-type]
        pool, background = Pool(), Background(LIMITS.conclude_duration_s_max)
        pool.replace({each.name: each.process.name for each in self.nodes.values()})
        catalogue = Catalogue(inference, pool, clock=self.loop.time)
        safety = SafetyClient(channel_to(self.safety), LIMITS)
        tokenizer = TokenizerClient(channel_to(self.tokenizer), LIMITS.answer_room_token_count)
        context = ContextBuilder(tokenizer, OperatorPromptsFile(None), lambda: BEGIN.date())
        journal = NetJournal(self.network, self.journal, process, LIMITS.journal_timeout_s)
        planner = Planner(
            catalogue,
            Threads(conversation),
            safety,
            context,
            billing,
            background,
            FairQueue(QueueLimits(), pool.is_crowded),
            LIMITS,
        )
        means = Means(
            generator=Generator(inference, pool, LIMITS),
            safety=safety,
            billing=billing,
            concluder=Concluder(billing, conversation),
            writer=JournalWriter(journal),
            lease=Lease(),
            background=background,
            limits=LIMITS,
            clock=lambda: seams.BEGIN_UNIX_S + self.loop.now,
        )
        turns = Turns(planner, means, journal, process.name)
        return Gateway(machine, process, turns, Face(turns), background, pool)

    def _node(self, name: str) -> Node | None:
        if name:
            return self.nodes.get(name)
        alive = [each for each in self.nodes.values() if not each.process.is_dead]
        return self.rng.choice(alive) if alive else None

    def told_of_nodes(self) -> None:
        """The mesh tells every gateway which nodes live."""
        live = {
            each.name: each.process.name for each in self.nodes.values() if not each.process.is_dead
        }
        for gateway in self.gateways.values():
            gateway.pool.replace(live)

    async def crash(self, machine: str) -> None:
        """kill -9."""
        gateway = self.gateways.pop(machine)
        await self.end(gateway.process)

    async def end(self, process: Process) -> None:
        """Nothing leaves a process any more; whoever talked to it finds out."""
        process.is_dead = True
        for stream in list(self.network.streams):
            if process in (stream.client, stream.server):
                stream.fail()
        await process.die()

    async def drain(self, machine: str) -> None:
        """SIGTERM: turns go to other gateways."""
        gateway = self.gateways.pop(machine)
        await gateway.process.start(gateway.turns.close(), "close")
        await self.end(gateway.process)

    # -- clients and usage -------------------------------------------------------------------

    def next_turn_id(self) -> str:
        self.turn_count += 1
        return f"01JD{self.turn_count:022d}"

    def connect(self, process: Process, request: tuple[Any, ...]) -> Stream:
        """By the edge: to any gateway that lives."""
        gateways = [each for each in self.gateways.values() if not each.process.is_dead]
        if not gateways:
            nobody = Process("nobody")
            nobody.is_dead = True
            return Stream(self.network, process, nobody, _nothing, request)
        gateway = self.rng.choice(gateways)
        return Stream(self.network, process, gateway.process, gateway.face.serve, request)

    def report(self, source: Process, usage: Usage) -> None:
        """A usage event: durable once it is written; late, repeated, in any order."""
        if source.is_dead:
            return
        repeated = self.network.chance(self.network.weather.repeated)
        for _ in range(2 if repeated else 1):
            delay_s = self.rng.choice((0.01, 0.1, 0.1, 1.0))
            self.loop.call_later(delay_s, self._reported, usage, context=self.context)

    def _reported(self, usage: Usage) -> None:
        if self.billing.is_away:
            self.loop.call_later(0.5, self._reported, usage, context=self.context)
        else:
            self.billing.store.append(usage, self.billing.now())

    @property
    def context(self) -> Any:
        return self.billing.process.context

    def add_client(self, wish: Wish, name: str, seed: int) -> None:
        self.clients.append(Client(self, wish, random.Random(f"{name} {seed}"), name))

    @property
    def readings(self) -> list[Reading]:
        return [client.reading for client in self.clients]

    # -- time --------------------------------------------------------------------------------

    async def keep_house(self) -> None:
        """What runs beside everything: snapshots, the sweeper, the reconciler."""
        while True:
            self.journal.snapshot()
            self.billing.sweep()
            await asyncio.sleep(HOUSEKEEPING_S)

    def heal(self) -> None:
        """No more faults; what died was started again by its supervisor."""
        self.network.weather, self.network.cuts = Weather(), set()
        self.billing.is_away = self.conversation.is_away = False
        for machine in self.lives:
            if machine not in self.gateways:
                self.start_gateway(machine)
            self.gateways[machine].process.resume()
        for each in (*self.nodes.values(), self.safety):
            if each.process.is_dead:
                each.restart()
        if self.journal.process.is_dead:
            self.journal.restart("nothing")
        self.journal.process.resume()
        self.told_of_nodes()

    @property
    def is_quiet(self) -> bool:
        """No turn runs anywhere."""
        runs = [run for each in self.gateways.values() for run in each.turns._runs]
        return not runs and not running_turns(self.journal.turns.values())


async def _nothing(request: Any, stream: Stream) -> None:
    raise AssertionError("nobody serves this")
