"""Links between real processes under a real control plane."""

import asyncio
import signal

import pytest

from tests.support.control_plane import control_plane

pytestmark = pytest.mark.mesh
TOKENIZER = "xds:///tokenizer"


async def test_each_instance_gets_a_link_and_its_share(tmp_path):
    async with control_plane(tmp_path) as control:
        one, _ = await asyncio.gather(control.server("tokenizer-1"), control.server("tokenizer-2"))
        client = await control.client(way="link")
        await client.call("linked", target=TOKENIZER, names=["tokenizer-1", "tokenizer-2"])
        seen = [(await client.call("unary", target=TOKENIZER))["instance"] for _ in range(8)]
        assert sorted(seen) == ["tokenizer-1"] * 4 + ["tokenizer-2"] * 4
        await one.end(signal.SIGKILL)
        for _ in range(8):
            assert (await client.call("unary", target=TOKENIZER))["instance"] == "tokenizer-2"
        await client.call("linked", target=TOKENIZER, names=["tokenizer-2"])
        await control.server("tokenizer-1")
        await client.call("linked", target=TOKENIZER, names=["tokenizer-1", "tokenizer-2"])
        # Asked to end it goes without a failure.
        await one.end(signal.SIGTERM)


async def test_a_link_ends_with_its_process_and_the_stream_on_it_is_told(tmp_path):
    async with control_plane(tmp_path) as control:
        server = await control.server("inference-1")
        client = await control.client(way="link")
        await client.call("linked", target="xds:///inference", names=["inference-1"])
        opened = await client.call("generate", target="xds:///inference", timeout=100)
        assert opened["instance"] == "inference-1"
        await server.end(signal.SIGKILL)
        assert (await client.call("read", count=1000))["code"] == "UNAVAILABLE"


@pytest.mark.parametrize("settings", [{"CHATMESH_LINK": "off"}, {}])
async def test_a_process_without_links_is_called_plainly(tmp_path, settings):
    async with control_plane(tmp_path) as control:
        await control.server("tokenizer-1", **settings)
        client = await control.client(way="link")
        assert (await client.call("unary", target=TOKENIZER))["instance"] == "tokenizer-1"
        names = [] if settings else ["tokenizer-1"]
        await client.call("linked", target=TOKENIZER, names=names)
        assert (await client.call("unary", target=TOKENIZER))["instance"] == "tokenizer-1"
