"""What `make soak` measures with, on a running copy."""

import pytest

from tests.soak.sample import Sampler
from tests.soak.verdict import judge
from tests.support.http import Client

pytestmark = pytest.mark.mesh
CHAT = {"model": "chatmesh-tiny", "messages": [{"role": "user", "content": "Hello!"}]}


def test_every_process_is_measured_and_a_calm_copy_is_flat(mesh_copy):
    sampler = Sampler(mesh_copy)
    client = Client(mesh_copy.plain_address, mesh_copy.new_key("admin"))
    samples = []
    for _ in range(10):
        assert client.request("POST", "/v1/chat/completions", CHAT).status == 200
        samples.append(sampler.take())
    names = {row["instance"] for row in mesh_copy.status()} | {"supervisor"}
    for one in samples:
        assert one.processes.keys() == names
        assert all(used.memory_mib > 1 for used in one.processes.values())
        assert all(used.descriptor_count > 3 for used in one.processes.values())
        assert {"log", "nodes", "postgres", "redis"} <= one.disk_mib.keys()
        assert one.redis_keys is not None
        assert one.redis_keys[0] >= one.redis_keys[1]
    loops = {name for name, used in samples[-1].processes.items() if used.lag_ms is not None}
    assert loops >= {"gateway-1", "billing-1", "inference-1", "safety-1"}
    judged = {one.name: one for one in judge(samples)}
    assert judged["descriptors of gateway-1"].is_flat
    assert judged["keys_without_expiry of redis"].is_flat
