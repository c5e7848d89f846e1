"""Endpoints come and go as their processes do; streams stay."""

import asyncio
import os
import signal

import pytest

from chatmesh.mesh.v1 import mesh_pb2, mesh_pb2_grpc
from tests.support.control_plane import ControlPlane, control_plane, until

pytestmark = pytest.mark.mesh
both_ways = pytest.mark.parametrize("way", ["plain", "link"])

GENERATE = {"target": "xds:///inference", "timeout": 100}
# So long that within a test only the end of a stream can end a lease.
LONG_LEASE = {"CONTROL_LEASE_TTL_MS": "60000"}


async def states(control: ControlPlane) -> dict[str, int]:
    return {one.name: one.state for one in (await control.status()).instances}


async def drain(control: ControlPlane, instance: str) -> None:
    async with control.admin() as admin:
        await admin.DrainInstance(mesh_pb2.DrainInstanceRequest(instance=instance), timeout=5)


@both_ways
async def test_a_killed_process_leaves_with_its_connection(tmp_path, way):
    async with control_plane(tmp_path, **LONG_LEASE) as control:
        one, _ = await asyncio.gather(control.server("tokenizer-1"), control.server("tokenizer-2"))
        client = await control.client(way=way)
        async with control.channel(await control.join("gateway")) as channel:
            watch = mesh_pb2_grpc.RegistryServiceStub(channel).WatchInstances(
                mesh_pb2.WatchInstancesRequest(service="tokenizer"), timeout=30
            )
            assert len((await watch.read()).instances) == 2
            await one.end(signal.SIGKILL)
            assert [left.name for left in (await watch.read()).instances] == ["tokenizer-2"]
        # Whether or not the client has heard of it: a repeatable call is repeated elsewhere.
        for _ in range(20):
            assert (await client.call("unary", target="xds:///tokenizer")).get("instance") == (
                "tokenizer-2"
            )


@both_ways
async def test_calls_go_on_while_a_process_is_killed(tmp_path, way):
    async with control_plane(tmp_path) as control:
        one, _ = await asyncio.gather(control.server("tokenizer-1"), control.server("tokenizer-2"))
        client = await control.client(way=way)

        async def call_until(ended: asyncio.Event) -> set[str]:
            seen = set()
            while not ended.is_set() or len(seen) < 2:
                answer = await client.call("unary", target="xds:///tokenizer")
                assert "instance" in answer, answer
                seen.add(answer["instance"])
            return seen

        ended = asyncio.Event()
        calls = asyncio.create_task(call_until(ended))
        await until(lambda: calls.done() or client.calls > 50, "calls run")
        await one.end(signal.SIGKILL)

        async def gone() -> bool:
            return "tokenizer-1" not in await states(control)

        await until(gone, "the endpoint has left")
        ended.set()
        assert await calls == {"tokenizer-1", "tokenizer-2"}


@both_ways
async def test_a_silent_process_leaves_and_comes_back(tmp_path, way):
    async with control_plane(tmp_path, CONTROL_LEASE_TTL_MS="600") as control:
        server = await control.server("tokenizer-1")
        client = await control.client(way=way)
        assert "instance" in await client.call("unary", target="xds:///tokenizer")
        os.kill(server.pid, signal.SIGSTOP)
        try:

            async def gone() -> bool:
                return "tokenizer-1" not in await states(control)

            await until(gone, "the silent instance has left")
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await control.until_serving("tokenizer-1")
        answer = await client.call("unary", target="xds:///tokenizer", wait_for_ready=True)
        assert answer.get("instance") == "tokenizer-1"


@both_ways
async def test_a_draining_instance_finishes_its_streams_and_gets_no_new_ones(tmp_path, way):
    async with control_plane(tmp_path) as control:
        await asyncio.gather(control.server("inference-1"), control.server("inference-2"))
        client, other = await control.client(way=way), await control.client(way=way)
        opened = await client.call("generate", instance="inference-1", **GENERATE)
        assert opened.get("instance") == "inference-1", opened
        await drain(control, "inference-1")
        assert (await states(control))["inference-1"] == mesh_pb2.INSTANCE_STATE_DRAINING

        async def nobody_new() -> bool:
            answers = [await other.call("generate", **GENERATE) for _ in range(4)]
            return {answer["instance"] for answer in answers} == {"inference-2"}

        await until(nobody_new, "new calls go elsewhere")
        # Asked for by name it is not there any more: another serves.
        answer = await other.call("generate", instance="inference-1", **GENERATE)
        assert answer.get("instance") == "inference-2", answer
        assert (await client.call("read", count=50))["read"] == 50


@both_ways
async def test_the_caller_may_choose_the_instance(tmp_path, way):
    async with control_plane(tmp_path) as control:
        await asyncio.gather(control.server("inference-1"), control.server("inference-2"))
        client = await control.client(way=way)
        for name in ("inference-1", "inference-2", "inference-1", "inference-1"):
            answer = await client.call("generate", instance=name, **GENERATE)
            assert answer.get("instance") == name, answer
        answer = await client.call("generate", instance="inference-9", **GENERATE)
        assert answer["instance"] in ("inference-1", "inference-2")


@both_ways
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
async def test_a_restarted_control_plane_has_lost_nothing(tmp_path, ending, way):
    async with control_plane(tmp_path) as control:
        servers = [await control.server("inference-1"), await control.server("tokenizer-1")]
        client = await control.client(way=way)
        assert (await client.call("generate", **GENERATE)).get("instance") == "inference-1"
        assert "instance" in await client.call("unary", target="xds:///tokenizer")
        before, own = await control.status(), await control.join("gateway")
        address = control.address

        await control.process.end(ending)
        # Without it everything goes on.
        assert "instance" in await client.call("unary", target="xds:///tokenizer")
        assert (await client.call("read", count=20))["read"] == 20

        await control.start()
        assert control.address == address
        # A new process finds everybody at once, whether or not they have come back already.
        fresh = await control.client(own=own, way=way)
        assert "instance" in await fresh.call("unary", target="xds:///tokenizer")
        assert (await client.call("read", count=20))["read"] == 20

        after = await control.status()
        assert after.snapshot_version > before.snapshot_version
        known = {
            one.name: (one.pid, one.register_time.ToMilliseconds()) for one in before.instances
        }
        assert known == {
            one.name: (one.pid, one.register_time.ToMilliseconds()) for one in after.instances
        }
        # They hold their leases again: the end of a process is seen as before.
        await servers[1].end(signal.SIGKILL)

        async def gone() -> bool:
            return set(await states(control)) == {"inference-1"}

        await until(gone, "the killed instance has left")
