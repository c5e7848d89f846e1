"""What xDS makes of the topology: deadlines, refusals, streams, live changes."""

import asyncio
import os

import pytest

from mesh import topology
from tests.support.control_plane import control_plane, until

pytestmark = pytest.mark.mesh


async def test_unknown_and_empty_services_fail_at_once(tmp_path):
    async with control_plane(tmp_path) as control:
        client = await control.client()
        # With a deadline far away: what comes before it did not wait for it.
        for target in ("xds:///nosuch", "xds:///edge", "xds:///control", "xds:///safety"):
            answer = await client.call("unary", target=target, timeout=1000)
            assert answer["code"] == "UNAVAILABLE", (target, answer)
        # Whoever wants to wait for a known service can, and is served when it comes.
        waiting = asyncio.create_task(
            client.call("unary", target="xds:///tokenizer", timeout=100, wait_for_ready=True)
        )
        await control.server("tokenizer-1")
        assert (await waiting).get("instance") == "tokenizer-1"


async def test_the_callers_deadline_is_exact(tmp_path):
    async with control_plane(tmp_path) as control:
        text = topology.TOPOLOGY_FILE.read_text()
        # C-core ends a route's own limit 1-2 s early: at 1 s it would end the call at once.
        control.topology.write_text(
            text.replace("CountTokens: {deadline_ms: 3000", "CountTokens: {deadline_ms: 1000")
        )
        await until(lambda: control.logged("topology_changed"), "the topology is in force")
        await control.server("tokenizer-1")
        client = await control.client()
        answer = await client.call("slow", target="xds:///tokenizer", timeout=1.0)
        assert answer["code"] == "DEADLINE_EXCEEDED"
        assert answer["seconds"] >= 0.99


async def test_every_service_is_accepted_over_a_stream_of_its_own(tmp_path):
    async with control_plane(tmp_path) as control:
        await control.server("inference-1")
        client = await control.client()
        table = topology.load()
        targets = [name for name in table.services if name not in ("edge", "control")]
        for name in targets:
            # Nobody serves it, or not this method: here only the resources matter.
            await client.call("unary", target=f"xds:///{name}")
        assert len(control.logged("ads_opened")) == len(targets)

        async def accepted() -> bool:
            lines = (await control.snapshot()).subscriptions
            assert not any(line.nacked_version for line in lines), lines
            return len(lines) == 4 and all(line.acked_version for line in lines)

        await until(accepted, "the client has accepted every type")
        assert not control.logged("ads_refused")


async def test_a_bad_topology_is_refused_and_the_old_one_serves_on(tmp_path):
    async with control_plane(tmp_path) as control:
        await control.server("tokenizer-1")
        version = (await control.status()).snapshot_version
        scratch = control.topology.with_suffix(".new")
        scratch.write_text(control.topology.read_text().replace("tokenizer:", "tokeniser:"))
        scratch.write_text(scratch.read_text().replace("callers: [gateway]", "callers: [nobody]"))
        os.replace(scratch, control.topology)
        await until(lambda: control.logged("topology_refused"), "the bad topology is reported")
        (report,) = control.logged("topology_refused")
        assert any("no caller is called 'nobody'" in problem for problem in report["problems"])
        assert (await control.status()).snapshot_version == version
        client = await control.client()
        assert "instance" in await client.call("unary", target="xds:///tokenizer")
