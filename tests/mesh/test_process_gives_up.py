"""A process whose work cannot go on leaves the balancing, and ends to be started anew."""

import asyncio
import signal

import pytest

from chatmesh.mesh.v1 import mesh_pb2
from tests.support.control_plane import DEADLINE_S, control_plane, until
from tests.unit.chassis.test_background import WORKS

pytestmark = pytest.mark.mesh


@pytest.mark.parametrize("work", WORKS)
async def test_it_is_gone_from_endpoints_and_its_supervisor_hears_of_it(tmp_path, work):
    async with control_plane(tmp_path) as control:
        process = await control.server(
            "tokenizer-1", module="tests.support.failing_server", FAILS=work, WELL_S="3"
        )

        async def gone() -> bool:
            serving = mesh_pb2.INSTANCE_STATE_SERVING
            return all(one.state != serving for one in (await control.status()).instances)

        await until(gone, "the instance is out of balancing")
        assert await asyncio.wait_for(process.child.wait(), DEADLINE_S) == 1
        assert "process_gives_up" in process.log.read_text()


async def test_certificates_that_expired_while_all_were_stopped_are_replaced(tmp_path):
    """As after a suspended machine: whoever wakes too late ends, and a new token lets it in."""
    async with control_plane(tmp_path, CONTROL_CERT_LIFETIME_S="3") as control:
        process = await control.server("tokenizer-1")
        process.child.send_signal(signal.SIGSTOP)
        await asyncio.sleep(3.2)  # the certificate's life, in real time: a clock of the kernel
        process.child.send_signal(signal.SIGCONT)
        assert await asyncio.wait_for(process.child.wait(), DEADLINE_S) == 1
        assert "process_gives_up" in process.log.read_text()
        await control.server("tokenizer-1")
