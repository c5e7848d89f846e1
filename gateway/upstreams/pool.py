"""Which node gets the next answer: a warm prefix cache, bounded by load. `pick` is pure.

The node-side prefix hashes are chained over blocks of token ids and salted, in a definition that
is the node's own. The gateway therefore steers by what comes to the same: requests that open alike
(tenant, system prompt and first user message, or the stored conversation) share an affinity key,
and each key has an order of nodes by rendezvous hashing (Thaler & Ravishankar, 1998). The first of
that order gets the request unless it is clearly busier than the least busy one.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

# How much more of its capacity a warm node may have in use than the least busy one before a
# request leaves it. A quarter of a cache is worth about the prefill that moving would repeat.
AFFINITY_SLACK = 0.25
# A request of which no report knows yet counts as this share of a node, so that a burst between
# two reports (50 ms) does not fall on one node.
UNREPORTED_COST = 0.02
# Share of a node's queue beyond which turns wait at the gateways instead, where one queue is fair
# between accounts. What is left takes up what several gateways send between two reports.
CROWDED_SHARE = 0.25
# Requests that run beside each other before a node without KV figures counts as full.
RUNNING_COUNT_NOMINAL = 64


@dataclass(frozen=True, slots=True)
class Load:
    """What a node last said of itself; the defaults stand for "nothing yet"."""

    waiting_count: int = 0
    running_count: int = 0
    queue_depth_max: int = 0
    kv_block_count: int = 0
    kv_block_free_count: int = 0
    draining: bool = False


@dataclass(slots=True)
class NodeState:
    """One live node."""

    name: str
    # Changes when the process behind the name does.
    address: str = ""
    load: Load = Load()
    # Models it serves; None: not known yet, it may serve any.
    models: frozenset[str] | None = None
    # Answers that this gateway gave it since its last report.
    unreported_count: int = 0

    @property
    def key(self) -> str:
        """Names the process, not the place: a restarted node is another one."""
        return f"{self.name}@{self.address}"


def cost(node: NodeState) -> float:
    """How busy a node is: 0 idle, about 1 full, 2 and more when its queue is full too."""
    load = node.load
    if load.kv_block_count:
        used = 1 - load.kv_block_free_count / load.kv_block_count
    else:
        used = load.running_count / RUNNING_COUNT_NOMINAL
    queued = load.waiting_count / load.queue_depth_max if load.queue_depth_max else 0.0
    full = 1.0 if load.queue_depth_max and load.waiting_count >= load.queue_depth_max else 0.0
    return used + queued + full + node.unreported_count * UNREPORTED_COST


def pick(
    nodes: Iterable[NodeState], model: str, key: bytes, avoid: Collection[str] = ()
) -> NodeState | None:
    """The node for a request; None when no node may take it.

    Args:
        nodes: the live nodes.
        model: the model it must serve.
        key: requests of the same key go to the same node while load permits.
        avoid: `NodeState.key` of nodes that just failed this request.
    """
    able = [node for node in nodes if node.key not in avoid and _is_able(node, model)]
    if not able:
        return None
    warm = max(able, key=lambda node: _rank(node.name, key))
    idlest = min(able, key=lambda node: (cost(node), -_rank(node.name, key)))
    return warm if cost(warm) <= cost(idlest) + AFFINITY_SLACK else idlest


def _is_able(node: NodeState, model: str) -> bool:
    return not node.load.draining and (node.models is None or model in node.models)


def _rank(name: str, key: bytes) -> int:
    return int.from_bytes(blake2b(name.encode(), key=key[:64], digest_size=8).digest(), "big")


class Pool:
    """The live nodes as this gateway knows them; every gateway keeps its own."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeState] = {}
        # Called when the nodes or their loads changed.
        self.on_change: Callable[[], None] = lambda: None

    @property
    def nodes(self) -> tuple[NodeState, ...]:
        """The live nodes."""
        return tuple(self._nodes.values())

    def replace(self, addresses: dict[str, str]) -> None:
        """Takes the live nodes (name -> address); what is known of the ones that stay is kept."""
        known = {node.key: node for node in self._nodes.values()}
        fresh = (NodeState(name, address) for name, address in addresses.items())
        self._nodes = {node.name: known.get(node.key, node) for node in fresh}
        self.on_change()

    def report(self, name: str, load: Load) -> None:
        """Takes a node's report; one of a node that is gone changes nothing."""
        if node := self._nodes.get(name):
            node.load, node.unreported_count = load, 0
            self.on_change()

    def serves(self, name: str, models: frozenset[str]) -> None:
        """Takes the models of a node."""
        if node := self._nodes.get(name):
            node.models = models

    def choose(self, model: str, key: bytes, avoid: Collection[str] = ()) -> NodeState | None:
        """`pick` among the live nodes, and counts the answer that it will work at."""
        if node := pick(self._nodes.values(), model, key, avoid):
            node.unreported_count += 1
        return node

    def is_crowded(self, model: str, coming_count: int) -> bool:
        """Whether the nodes of a model have as many waiting as they should; no node: they have not.

        Args:
            model: the model.
            coming_count: turns that are on their way to them.
        """
        able = [node for node in self._nodes.values() if _is_able(node, model)]
        if not all(node.load.queue_depth_max for node in able):
            return False  # one that names no bound has none, as far as is known
        room = sum(
            max(0.0, load.queue_depth_max * CROWDED_SHARE - load.waiting_count - unreported_count)
            for load, unreported_count in ((node.load, node.unreported_count) for node in able)
        )
        return bool(able) and coming_count >= room

    def has_other(self, model: str, avoid: Collection[str]) -> bool:
        """Whether a node is left that was not tried."""
        return pick(self._nodes.values(), model, b"", avoid) is not None


@contextlib.contextmanager
def counted(node: NodeState | None) -> Iterator[None]:
    """Takes an answer that ended before any report back out of the count."""
    load = node.load if node else None
    try:
        yield
    finally:
        if node and node.load is load and node.unreported_count:
            node.unreported_count -= 1
