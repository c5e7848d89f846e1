"""Strangers who send too slowly, too much, too often, or nothing at all; the real Envoy."""

import asyncio
import contextlib
import json
import ssl
import struct

import httpx
import pytest
import pytest_asyncio

from mesh.edge import admin
from mesh.edge.inputs import EdgeLimits
from tests.support.edge import running_edge, until
from tests.support.fake_gateway import KEY

pytestmark = [pytest.mark.mesh, pytest.mark.asyncio(loop_scope="module")]

COMPLETIONS = "/v1/chat/completions"
AUTHORIZED = {"authorization": KEY}
LIMITS = EdgeLimits(
    request_headers_s_max=0.5,
    request_s_max=1,
    connection_idle_s_max=1,
    handshake_s_max=1,
    address_burst_max=40,
    # So few that a slow machine's test adds none that matters.
    address_requests_per_s_max=1,
    early_reset_count_max=100,
)
WAIT_S = 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def edge(tmp_path_factory):
    async with running_edge(tmp_path_factory.mktemp("edge"), LIMITS) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(edge):
    edge.gateway.reset()
    async with httpx.AsyncClient(base_url=edge.url, timeout=WAIT_S) as http:
        yield http
        # Whatever happened: the next request is served.
        answer = await http.post(COMPLETIONS, headers=AUTHORIZED, json={"do": "json"})
        assert answer.status_code == 200


def context_of(edge):
    return ssl.create_default_context(cafile=edge.web_ca_file)


async def end_of(reader):
    """What comes until the connection ends."""
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(), WAIT_S)
    return b""


# -- slow ones -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent", [b"", b"GET /v1/models HT", b"GET /v1/models HTTP/1.1\r\nhost: a\r\n"]
)
async def test_headers_that_do_not_end_end_the_connection(client, edge, sent):
    reader, writer = await asyncio.open_connection("127.0.0.1", edge.plain_port)
    writer.write(sent)
    answer = await end_of(reader)
    assert not answer or answer.startswith(b"HTTP/1.1 408")
    writer.close()


async def test_a_body_that_comes_drop_by_drop_ends_although_each_drop_is_in_time(client, edge):
    reader, writer = await asyncio.open_connection("127.0.0.1", edge.plain_port)
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: a\r\nauthorization: {KEY}\r\n"
    writer.write(head.encode() + b"content-length: 1000\r\n\r\n")

    async def drip():
        while True:
            writer.write(b" ")
            await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())
    answer = await end_of(reader)  # lost when a drop meets the closed connection
    assert not answer or answer.startswith(b"HTTP/1.1 408")
    dripping.cancel()
    await asyncio.gather(dripping, return_exceptions=True)
    writer.close()
    assert edge.gateway.calls == []


async def test_a_connection_that_never_becomes_tls_is_ended(client, edge):
    reader, writer = await asyncio.open_connection("127.0.0.1", edge.tls_port)
    assert await end_of(reader) == b""
    writer.close()


async def test_a_stream_that_runs_is_no_idle_connection(client, edge):
    """Silent for longer than connections may be idle; answers take their time."""
    answer = await client.post(
        COMPLETIONS, headers=AUTHORIZED, json={"do": "sse", "events": 2, "gap_s": 1.6}
    )
    assert answer.content.endswith(b"[DONE]\n\n")


async def test_hundreds_of_idle_connections_hurt_nobody_and_end(client, edge):
    opened = [await asyncio.open_connection("127.0.0.1", edge.plain_port) for _ in range(500)]
    answer = await client.post(COMPLETIONS, headers=AUTHORIZED, json={"do": "json"})
    assert answer.status_code == 200
    assert await asyncio.gather(*(end_of(reader) for reader, _ in opened)) == [b""] * 500
    for _, writer in opened:
        writer.close()


# -- too much --------------------------------------------------------------------------------


async def test_a_line_of_the_access_log_is_short_however_long_the_request(client, edge):
    headers = {"user-agent": "u" * 10_000, "traceparent": "t" * 1000}
    path = "/v1/models/" + "p" * 3000
    answer = await client.get(path, headers=headers)
    line = await edge.access_log(answer.headers["x-request-id"])
    assert line["user_agent"] == "u" * 200
    assert len(json.dumps(line)) < 2048


async def test_headers_as_large_as_allowed_pass_and_larger_ones_are_refused(client):
    for size, status in ((14_000, 200), (17_000, 431), (70_000, 431)):
        headers = {**AUTHORIZED, "x-giant": "g" * size}
        assert (await client.get("/v1/models", headers=headers)).status_code == status


async def test_the_access_log_begins_anew_and_loses_no_line(client, edge):
    log = edge.state_dir / "access.log"
    ids = []
    for number in range(30):
        answer = await client.get("/healthz", headers={"user-agent": "u" * 200})
        ids.append(answer.headers["x-request-id"])
        if number == 15:
            await edge.access_log(ids[-1])
            assert await asyncio.to_thread(admin.rotate_log, edge.state_dir, 2000)
    await edge.access_log(ids[-1])
    former = log.with_name("access.log.1")
    lines = [*former.read_text().splitlines(), *log.read_text().splitlines()]
    found = {json.loads(line)["request_id"] for line in lines}
    assert set(ids) <= found
    assert not await asyncio.to_thread(admin.rotate_log, edge.state_dir)


# -- too often -------------------------------------------------------------------------------


async def test_one_address_may_not_ask_without_end_on_the_public_port(client, edge):
    """Before its keys are looked at: a flood of bad ones costs the gateway a burst, no more."""
    bad = {"authorization": "Bearer cm-nobody"}
    async with httpx.AsyncClient(
        base_url=edge.tls_url, verify=context_of(edge), timeout=WAIT_S
    ) as flood:
        answers = [await flood.get("/v1/models", headers=bad) for _ in range(120)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(edge.gateway.checks) == len(answers) - len(refused)
    assert LIMITS.address_burst_max <= len(edge.gateway.checks) < 100
    assert refused[0].json()["error"]["code"] == "rate_limit_exceeded"
    assert refused[0].headers["retry-after"] == "1"
    # The port on loopback, where the flood does not come from strangers, has no such bound.
    for _ in range(100):
        assert (await client.get("/v1/models", headers=AUTHORIZED)).status_code == 200


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value):
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


GET_MODELS = b"\x82\x87" + literal(b":path", b"/v1/models") + literal(b":authority", b"a")
SETTINGS, HEADERS, RST_STREAM, GOAWAY = 4, 1, 3, 7
CANCEL = struct.pack(">I", 8)


async def test_streams_that_are_begun_and_reset_at_once_end_the_connection(client, edge):
    """HTTP/2 rapid reset (CVE-2023-44487)."""
    context = context_of(edge)
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", edge.tls_port, ssl=context, server_hostname="localhost"
    )
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
    begun = 0

    async def flood():
        nonlocal begun
        with contextlib.suppress(ConnectionError):
            for stream in range(1, 100_000, 2):
                begun += 1
                writer.write(frame(HEADERS, 5, stream, GET_MODELS))
                writer.write(frame(RST_STREAM, 0, stream, CANCEL))
                await writer.drain()
                await asyncio.sleep(0)
                if reader.at_eof() or writer.is_closing():
                    return

    flooding = asyncio.create_task(flood())
    await end_of(reader)
    flooding.cancel()
    await asyncio.gather(flooding, return_exceptions=True)
    writer.close()
    assert begun < 50_000
    assert len(edge.gateway.checks) <= 2 * LIMITS.early_reset_count_max


async def test_more_streams_on_a_connection_than_allowed_wait_or_are_refused(tmp_path):
    limits = EdgeLimits(streams_per_connection_max=3)
    async with running_edge(tmp_path, limits) as edge:
        context = context_of(edge)
        context.set_alpn_protocols(["h2"])
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", edge.tls_port, ssl=context, server_hostname="localhost"
        )
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
        for stream in range(1, 11, 2):  # five, whose bodies never come
            writer.write(frame(HEADERS, 4, stream, GET_MODELS))
        await writer.drain()
        refused = 0
        async for _ in until(WAIT_S):
            head = await asyncio.wait_for(reader.readexactly(9), WAIT_S)
            payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
            refused += head[3] == RST_STREAM and payload == struct.pack(">I", 7)
            if refused or head[3] == GOAWAY:
                break
        assert refused or head[3] == GOAWAY
        writer.close()
