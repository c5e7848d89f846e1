"""Which node gets an answer."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.upstreams.pool import Load, NodeState, Pool, cost, counted, pick

IDLE = Load(kv_block_count=100, kv_block_free_count=100, queue_depth_max=8)
BUSY = Load(kv_block_count=100, kv_block_free_count=10, queue_depth_max=8)
FULL = Load(kv_block_count=100, kv_block_free_count=0, waiting_count=8, queue_depth_max=8)


def nodes(count: int, load: Load = IDLE) -> list[NodeState]:
    return [NodeState(f"inference-{number}", "a", load) for number in range(count)]


def test_the_same_key_finds_the_same_node_and_keys_spread():
    pool = nodes(4)
    picked = Counter(pick(pool, "m", f"key {number}".encode()).name for number in range(400))
    assert pick(pool, "m", b"key 7") is pick(list(reversed(pool)), "m", b"key 7")
    assert all(50 < count < 150 for count in picked.values())
    assert len(picked) == 4


@given(st.binary(min_size=1, max_size=16))
def test_a_node_that_leaves_moves_only_its_own_keys(key):
    pool = nodes(4)
    before = pick(pool, "m", key)
    rest = [node for node in pool if node is not pool[0]]
    after = pick(rest, "m", key)
    assert after is before or before is pool[0]


def test_a_busy_warm_node_is_left_for_an_idle_one():
    pool = nodes(3)
    warm = pick(pool, "m", b"k")
    warm.load = BUSY
    assert pick(pool, "m", b"k") is not warm
    for node in pool:
        node.load = BUSY
    assert pick(pool, "m", b"k") is warm


def test_who_may_not_be_picked():
    pool = nodes(3)
    pool[0].load = Load(draining=True)
    pool[1].models = frozenset({"other"})
    assert pick(pool, "m", b"k") is pool[2]
    assert pick(pool, "m", b"k", avoid={pool[2].key}) is None
    assert pick([], "m", b"k") is None


def test_cost_rises_with_everything_that_waits():
    idle, busy, full = (cost(NodeState("n", load=load)) for load in (IDLE, BUSY, FULL))
    assert idle < busy < full
    assert cost(NodeState("n", load=Load(running_count=32))) == 0.5


def test_a_burst_between_two_reports_spreads():
    pool = Pool()
    pool.replace({"inference-1": "a", "inference-2": "b"})
    picked = Counter(pool.choose("m", b"k").name for _ in range(60))
    assert min(picked.values()) > 15
    for name in picked:
        pool.report(name, IDLE)
    assert all(node.unreported_count == 0 for node in pool.nodes)


def test_a_node_keeps_what_is_known_until_its_process_changes():
    pool = Pool()
    pool.replace({"inference-1": "a"})
    pool.report("inference-1", BUSY)
    pool.serves("inference-1", frozenset({"m"}))
    pool.replace({"inference-1": "a", "inference-2": "b"})
    assert pool.nodes[0].load is BUSY
    pool.replace({"inference-1": "c"})
    assert pool.nodes[0].load == Load()
    pool.report("inference-9", BUSY)


def test_an_answer_that_ended_early_is_not_counted_on():
    pool = Pool()
    pool.replace({"inference-1": "a"})
    node = pool.choose("m", b"k")
    with counted(node):
        assert node.unreported_count == 1
    assert node.unreported_count == 0
    with counted(None):
        pass


def test_a_model_is_crowded_when_its_nodes_have_enough_waiting():
    pool, changes = Pool(), []
    pool.on_change = lambda: changes.append(pool.is_crowded("m", 0))
    assert not pool.is_crowded("m", 99)  # no node: the turn finds out
    pool.replace({"inference-1": "a", "inference-2": "b"})
    pool.report("inference-1", Load(waiting_count=9, queue_depth_max=16))
    pool.report("inference-2", Load(waiting_count=4, queue_depth_max=16))
    pool.report("inference-2", Load(waiting_count=2, queue_depth_max=16))
    assert [pool.is_crowded("m", count) for count in (1, 2)] == [False, True]
    assert {pool.choose("m", b"k").name for _ in range(2)} == {"inference-2"}
    assert pool.is_crowded("m", 0)  # of which no report knows yet
    pool.report("inference-2", Load(waiting_count=5, queue_depth_max=16))
    pool.serves("inference-1", frozenset({"other"}))
    pool.report("inference-1", Load(waiting_count=0, queue_depth_max=16))
    pool.report("inference-2", Load(waiting_count=5))  # one that names no bound has none
    assert changes == [False, False, True, False, True, True, False]
