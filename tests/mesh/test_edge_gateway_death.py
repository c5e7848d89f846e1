"""A gateway that dies or hangs: requests that had not begun are tried again at another one.

Real processes and a real Envoy. The control plane is slow here on purpose: it goes on naming the
dead gateway, so that what is tested is Envoy's own retry.
"""

import asyncio
import contextlib
import os
import signal

import httpx
import pytest
import pytest_asyncio

from mesh import topology
from mesh.edge.inputs import EdgeLimits
from tests.support.edge import running_edge, until
from tests.support.fake_gateway import KEY
from tests.support.gateway_process import gateway_process

pytestmark = [pytest.mark.mesh, pytest.mark.asyncio(loop_scope="module")]

AUTHORIZED = {"authorization": KEY}
COMPLETIONS = "/v1/chat/completions"
WAIT_S = 20
REQUEST_COUNT = 12
CLASSES = {
    f"{retry}_methods": frozenset(
        method.name for method in topology.load().called_by("edge") if method.retry == retry
    )
    for retry in ("repeatable", "joinable")
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory):
    # Longer than the time allowed for a connection (1 s): a hung gateway accepts none.
    limits = EdgeLimits(authorization_s_max=1.2)
    async with running_edge(tmp_path_factory.mktemp("edge"), limits, **CLASSES) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(shared):
    async with httpx.AsyncClient(base_url=shared.url, timeout=WAIT_S) as http:
        yield http


@contextlib.asynccontextmanager
async def gateways(edge, folder, *modes):
    """A gateway for each mode, behind the edge."""
    with contextlib.ExitStack() as stack:
        keys = edge.mesh.identity("gateway")
        running = [
            stack.enter_context(gateway_process(keys, folder / f"{number}.notes", mode))
            for number, mode in enumerate(modes)
        ]
        edge.gateway_addresses = [one.address for one in running]
        await edge.publish()
        try:
            yield running
        finally:
            edge.gateway_addresses = []


def complete(client, **body):
    return client.post(COMPLETIONS, headers=AUTHORIZED, json={"do": "json", **body})


def models(client):
    """What admission is asked about by a call of its own."""
    return client.get("/v1/models", headers=AUTHORIZED)


async def seen(gateway, kind):
    """Waits until it was asked."""
    async for _ in until(WAIT_S):
        if found := gateway.seen(kind):
            return found
    raise AssertionError(f"no {kind} came to it: {gateway.notes()}")


async def test_a_turn_whose_gateway_dies_before_its_answer_goes_to_the_other(
    shared, client, tmp_path
):
    async with gateways(shared, tmp_path, "call", "nothing") as (dying, other):
        pending = [asyncio.ensure_future(complete(client)) for _ in range(REQUEST_COUNT)]
        await seen(dying, "call")
        dying.process.kill()
        answers = await asyncio.gather(*pending)
        assert {answer.status_code for answer in answers} == {200}
        begun = {note["turn"] for note in dying.seen("call")}
        turns = [note["turn"] for note in other.seen("call")]
        # The same turn, so that the second gateway can join it; each turn once.
        assert begun <= set(turns)
        assert len(turns) == len(set(turns)) == REQUEST_COUNT
        # Whether a try is the first is what tells the gateway to count it.
        assert {note["attempt"] for note in dying.seen("call")} == {1}
        attempts = {note["turn"]: note["attempt"] for note in other.seen("call")}
        # What was on its way when the process died is a second try, too.
        assert {turn for turn, attempt in attempts.items() if attempt > 1} >= begun


async def test_a_check_whose_gateway_dies_is_made_at_the_other(shared, client, tmp_path):
    async with gateways(shared, tmp_path, "check", "nothing") as (dying, other):
        pending = [asyncio.ensure_future(models(client)) for _ in range(REQUEST_COUNT)]
        await seen(dying, "check")
        dying.process.kill()
        assert {answer.status_code for answer in await asyncio.gather(*pending)} == {200}
        assert len(other.seen("check")) == REQUEST_COUNT


async def test_new_requests_pass_over_a_dead_gateway(shared, client, tmp_path):
    async with gateways(shared, tmp_path, "nothing", "nothing") as (dead, other):
        dead.process.kill()
        answers = [await complete(client) for _ in range(REQUEST_COUNT)]
        assert {answer.status_code for answer in answers} == {200}
        assert len(other.seen("call")) == REQUEST_COUNT


async def test_a_check_at_a_gateway_that_hangs_is_made_at_the_other(shared, client, tmp_path):
    async with gateways(shared, tmp_path, "nothing", "nothing") as (paused, other):
        os.kill(paused.process.pid, signal.SIGSTOP)
        pending = [asyncio.ensure_future(models(client)) for _ in range(4)]
        await seen(other, "check")
        async for _ in until(WAIT_S):
            if len(other.seen("check")) == len(pending):
                break
        assert len(other.seen("check")) == len(pending)
        os.kill(paused.process.pid, signal.SIGCONT)
        assert {answer.status_code for answer in await asyncio.gather(*pending)} == {200}


async def test_a_large_body_is_repeated_too(shared, client, tmp_path):
    """Larger than a connection's buffer, which is all that Envoy keeps by itself."""
    async with gateways(shared, tmp_path, "call", "nothing") as (dying, other):
        size = 3 << 20
        pending: list[asyncio.Future[httpx.Response]] = []
        while not dying.seen("call"):  # which gateway a request goes to is chance
            pending.append(asyncio.ensure_future(complete(client, text="x" * size)))
            await asyncio.wait(pending, timeout=0.2)
        dying.process.kill()
        assert {answer.status_code for answer in await asyncio.gather(*pending)} == {200}
        assert all(note["bytes"] > size for note in other.seen("call"))


async def test_an_answer_that_has_begun_is_cut_and_not_begun_again(shared, client, tmp_path):
    """What follows is the client's: it has the turn's id, and asks for the rest."""
    async with gateways(shared, tmp_path, "nothing", "nothing") as running:
        request = {"do": "sse", "wait": True}
        async with client.stream("POST", COMPLETIONS, headers=AUTHORIZED, json=request) as answer:
            pieces = answer.aiter_raw()
            assert b'"n":0' in await anext(pieces)
            (running_one,) = [one for one in running if one.seen("call")]
            running_one.process.kill()
            with pytest.raises(httpx.RemoteProtocolError):
                async for _ in pieces:
                    pass
        assert sum(len(one.seen("call")) for one in running) == 1


async def test_a_repeatable_call_that_began_is_repeated(shared, client, tmp_path):
    async with gateways(shared, tmp_path, "call", "nothing") as (dying, _):
        pending = [asyncio.ensure_future(models(client)) for _ in range(REQUEST_COUNT)]
        await seen(dying, "call")
        dying.process.kill()
        assert {answer.status_code for answer in await asyncio.gather(*pending)} == {200}
