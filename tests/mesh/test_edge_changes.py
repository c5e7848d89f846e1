"""What happens to running streams when the mesh around them changes, and what Envoy refuses."""

import asyncio
import contextlib
import json
import ssl
import urllib.request

import httpx
import pytest
import pytest_asyncio
from cryptography import x509

from mesh.edge import admin
from mesh.edge.inputs import EdgeLimits
from mesh.xds import ROUTES
from tests.support.edge import Edge, running_edge, until
from tests.support.fake_gateway import KEY

pytestmark = [pytest.mark.mesh, pytest.mark.asyncio(loop_scope="module")]

AUTHORIZED = {"authorization": KEY}
COMPLETIONS = "/v1/chat/completions"
WAIT_S = 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory):
    async with running_edge(tmp_path_factory.mktemp("edge")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def edge(shared):
    shared.gateway.reset()
    yield shared
    await shared.publish()


@pytest_asyncio.fixture(loop_scope="module")
async def client(edge):
    async with httpx.AsyncClient(base_url=edge.url, timeout=WAIT_S) as http:
        yield http


@contextlib.asynccontextmanager
async def open_stream(edge, http):
    """A stream that has begun; gives a function that lets it end and returns all of it."""
    request = {"do": "sse", "wait": True}
    async with http.stream("POST", COMPLETIONS, headers=AUTHORIZED, json=request) as answer:
        chunks = answer.aiter_raw()
        seen = [await anext(chunks)]

        async def finish():
            edge.gateway.go_on.set()
            seen.extend([chunk async for chunk in chunks])
            return b"".join(seen)

        yield finish


async def do(client, what, **wanted):
    return await client.post(COMPLETIONS, headers=AUTHORIZED, json={"do": what, **wanted})


def change_routes(change):
    def apply(rendered):
        (host,) = rendered[ROUTES]["edge"]["virtual_hosts"]
        for route in host["routes"]:
            change(route)

    return apply


# -- pitfall 7: which changes a stream survives ----------------------------------------------


async def test_a_route_change_leaves_streams_alone(edge, client):
    def other_health(route):
        if route["match"] == {"path": "/healthz"}:
            route["direct_response"]["body"]["inline_string"] = '{"status":"new"}'

    async with open_stream(edge, client) as finish:
        await edge.publish(change_routes(other_health))
        assert (await client.get("/healthz")).json() == {"status": "new"}
        assert (await finish()).endswith(b"data: [DONE]\n\n")


async def test_a_gateway_that_drains_finishes_its_streams(edge, client):
    first = edge.gateway_address
    old = edge.gateway_server
    async with open_stream(edge, client) as finish:
        await edge.start_gateway(edge.mesh.identity("gateway"))
        assert edge.gateway_address != first
        await edge.publish()
        answer = await client.get("/v1/models", headers=AUTHORIZED)
        assert answer.status_code == 200
        line = await edge.access_log(answer.headers["x-request-id"])
        assert line["upstream"] == edge.gateway_address
        assert (await finish()).endswith(b"data: [DONE]\n\n")
    await old.stop(0)


async def served_certificate(edge):
    def fetch():
        pem = ssl.get_server_certificate(("127.0.0.1", edge.tls_port), timeout=WAIT_S)
        return x509.load_pem_x509_certificate(pem.encode()).serial_number

    return await asyncio.to_thread(fetch)


async def test_a_new_web_certificate_is_served_and_streams_go_on(edge):
    context = ssl.create_default_context(cafile=edge.web_ca_file)
    before = await served_certificate(edge)
    async with (
        httpx.AsyncClient(base_url=edge.tls_url, verify=context, timeout=WAIT_S) as client,
        open_stream(edge, client) as finish,
    ):
        certificate, key = edge.web_certificate()
        await edge.publish(web_certificate_pem=certificate, web_key_pem=key)
        wanted = x509.load_pem_x509_certificate(certificate.encode()).serial_number
        async for _ in until(WAIT_S):
            if await served_certificate(edge) == wanted:
                break
        assert wanted != before
        assert await served_certificate(edge) == wanted
        assert (await finish()).endswith(b"data: [DONE]\n\n")


async def test_a_listener_change_lets_streams_finish_within_the_drain_time(edge, client):
    """With the drain time that we start Envoy with; the next test shows a short one."""
    async with open_stream(edge, client) as finish:
        await edge.publish(access_log_path="other.log")
        async for _ in until(WAIT_S):
            if (edge.state_dir / "other.log").exists():
                break
        async with httpx.AsyncClient(base_url=edge.url) as fresh:
            assert (await fresh.get("/healthz")).status_code == 200
        assert (await finish()).endswith(b"data: [DONE]\n\n")


async def test_a_short_drain_time_would_cut_them(tmp_path):
    """What pitfall 7 is about: so drain_s is longer than the longest answer."""
    async with (
        running_edge(tmp_path, drain_s=1) as edge,
        httpx.AsyncClient(base_url=edge.url, timeout=WAIT_S) as client,
        open_stream(edge, client),
    ):
        await edge.publish(access_log_path="other.log")
        await asyncio.wait_for(edge.gateway.cancelled.wait(), WAIT_S)


async def test_streams_go_on_without_a_control_plane(tmp_path):
    async with (
        running_edge(tmp_path) as edge,
        httpx.AsyncClient(base_url=edge.url, timeout=WAIT_S) as client,
        open_stream(edge, client) as finish,
    ):
        await edge.ads_server.stop(0)
        assert (await client.get("/v1/models", headers=AUTHORIZED)).status_code == 200
        assert (await finish()).endswith(b"data: [DONE]\n\n")


# -- pitfall 8: silence ----------------------------------------------------------------------


async def test_silence_is_bounded_by_our_limit_only(tmp_path):
    """Scaled: a gap of 0.8 s stands for one of minutes, 0.3 s for a timeout that is too short."""
    async with (
        running_edge(tmp_path, EdgeLimits(stream_silence_s_max=5)) as edge,
        httpx.AsyncClient(base_url=edge.url, timeout=WAIT_S) as client,
    ):
        assert (await do(client, "sse", events=1, gap_s=0.8)).content.endswith(b"[DONE]\n\n")

        # Envoy's default of 15 s a route, scaled: it cuts the stream in the middle.
        def scaled_default(route):
            if "route" in route:
                route["route"]["timeout"] = "0.3s"

        await edge.publish(change_routes(scaled_default))
        with pytest.raises(httpx.RemoteProtocolError):
            await do(client, "sse", events=1, gap_s=0.8)


async def test_a_gateway_that_stays_silent_is_a_504(tmp_path):
    async with (
        running_edge(tmp_path, EdgeLimits(stream_silence_s_max=0.3)) as edge,
        httpx.AsyncClient(base_url=edge.url, timeout=WAIT_S) as client,
    ):
        answer = await do(client, "silent")
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "timeout"


async def test_without_origins_no_page_may_call(edge, client):
    asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
    answer = await client.options(COMPLETIONS, headers=asked)
    assert "access-control-allow-origin" not in answer.headers
    assert edge.gateway.calls == []


# -- retries ---------------------------------------------------------------------------------


async def test_a_turn_that_may_have_begun_is_not_repeated(edge, client):
    answer = await do(client, "unavailable")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "overloaded"
    assert len(edge.gateway.calls) == 1


async def test_a_repeatable_method_is_repeated(edge, client):
    rpc = "chatmesh.gateway.v1.OpenAIService/ListModels"
    await edge.publish(repeatable_methods=frozenset({rpc}))
    edge.gateway.unavailable_left = 1
    assert (await client.get("/v1/models", headers=AUTHORIZED)).status_code == 200
    assert len(edge.gateway.calls) == 2


async def test_a_gateway_that_is_gone_is_passed_over(edge, client):
    """One of two endpoints refuses connections: also a POST is sent to the other."""

    def with_a_dead_one(rendered):
        for type_url, named in rendered.items():
            if type_url.endswith("ClusterLoadAssignment"):
                endpoints = named["gateway"]["endpoints"][0]["lb_endpoints"]
                dead = json.loads(json.dumps(endpoints[0]))
                dead["endpoint"]["address"]["socket_address"]["port_value"] = 1
                endpoints.append(dead)

    await edge.publish(with_a_dead_one)
    answers = [await do(client, "json") for _ in range(12)]
    assert {answer.text for answer in answers} == {'{"id":"c","text":"a"}'}
    assert len(edge.gateway.calls) == 12


async def test_a_gateway_that_dies_before_the_first_byte_is_a_503(edge, client):
    pending = asyncio.ensure_future(do(client, "silent"))
    async for _ in until(WAIT_S):
        if edge.gateway.calls:
            break
    await edge.gateway_server.stop(0)
    try:
        answer = await pending
        assert answer.status_code == 503
        assert answer.json()["error"]["type"] == "server_error"
        assert len(edge.gateway.calls) == 1
    finally:
        await edge.start_gateway(edge.mesh.identity("gateway"))


# -- identity --------------------------------------------------------------------------------


def stats(edge, pattern):
    address = (edge.state_dir / "admin-address.txt").read_text().strip()
    url = f"http://{address}/stats?format=json&filter={pattern}"
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        found = json.load(answer)["stats"]
    return {each["name"]: each["value"] for each in found if "value" in each}


async def until_stat(edge, name, above):
    async for _ in until(WAIT_S):
        found = await asyncio.to_thread(stats, edge, name.replace(".", "[.]"))
        if found.get(name, 0) > above:
            return
    raise AssertionError(f"{name} stays at {above}: {edge.log()}")


async def test_an_impostor_of_the_gateway_gets_nothing(tmp_path):
    """Right CA, other identity (pitfall 1, Envoy's side)."""
    async with (
        running_edge(tmp_path, gateway_identity="safety") as edge,
        httpx.AsyncClient(base_url=edge.url, timeout=WAIT_S) as client,
    ):
        answer = await client.get("/v1/models", headers=AUTHORIZED)
        assert answer.status_code == 503
        await until_stat(edge, "cluster.gateway.ssl.fail_verify_san", 0)
        assert edge.gateway.checks == []


async def test_an_impostor_of_the_control_plane_is_not_believed(tmp_path):
    edge = Edge(tmp_path, EdgeLimits())
    await edge.start_gateway(edge.mesh.identity("gateway"))
    await edge.publish()
    address = await edge.start_ads(identity="gateway")
    edge.start_envoy(address, drain_s=60)
    try:
        async for _ in until(WAIT_S):
            if (edge.state_dir / "admin-address.txt").exists():
                break
        await until_stat(edge, "cluster.control.ssl.fail_verify_san", 0)
        assert not (await asyncio.to_thread(admin.health, edge.state_dir)).listeners
    finally:
        await edge.stop()


async def test_a_renewed_identity_is_used_without_a_restart(edge, client):
    """The chassis replaces a link; Envoy reads both files again (pitfall 14)."""
    async with open_stream(edge, client) as finish:
        renewed = edge.mesh.identity("edge", state_dir=edge.state_dir)
        wanted = x509.load_pem_x509_certificate(renewed.certificate.read_bytes()).serial_number
        async for _ in until(WAIT_S):
            # A new gateway means a new connection, which shows the certificate of now.
            await edge.start_gateway(edge.mesh.identity("gateway"))
            await edge.publish()
            await client.get("/v1/models", headers=AUTHORIZED)
            if edge.gateway.peer_serial == wanted:
                break
        assert edge.gateway.peer_serial == wanted
        assert (await finish()).endswith(b"data: [DONE]\n\n")


# -- ports -----------------------------------------------------------------------------------


async def test_a_second_edge_does_not_share_the_port(edge, tmp_path):
    second = Edge(tmp_path, EdgeLimits())
    second.plain_port, second.tls_port = edge.plain_port, edge.tls_port
    await second.start_gateway(second.mesh.identity("gateway"))
    await second.publish()
    second.start_envoy(await second.start_ads(), drain_s=60)
    try:
        async for _ in until(WAIT_S):
            if second.ads.refused:
                break
        assert "ddress already in use" in second.ads.refused[0]
    finally:
        await second.stop()


async def test_envoy_accepts_all_that_we_render(shared):
    assert shared.ads.refused == []
    assert "deprecated" not in shared.log().lower()
