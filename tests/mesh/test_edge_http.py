"""HTTP through a real Envoy: JSON, events, errors, limits, headers."""

import asyncio
import gzip
import json
import re
import ssl

import httpx
import pytest
import pytest_asyncio

from mesh.edge.inputs import EdgeLimits
from tests.support.edge import running_edge
from tests.support.fake_gateway import KEY, denied

pytestmark = [pytest.mark.mesh, pytest.mark.asyncio(loop_scope="module")]

AUTHORIZED = {"authorization": KEY}
COMPLETIONS = "/v1/chat/completions"
APP = "https://app.example"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("edge")
    async with running_edge(folder, cors_origins=(APP,)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def edge(shared):
    shared.gateway.reset()
    return shared


@pytest_asyncio.fixture(loop_scope="module")
async def client(edge):
    async with httpx.AsyncClient(base_url=edge.url, timeout=20) as http:
        yield http


async def do(client, what, **wanted):
    return await client.post(COMPLETIONS, headers=AUTHORIZED, json={"do": what, **wanted})


def error_of(answer):
    """The error of an OpenAI-shaped body, which has these fields and no other."""
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert not [name for name in answer.headers if name.startswith("grpc-")]
    return body["error"]


# -- answers ---------------------------------------------------------------------------------


async def test_json_passes_verbatim_with_its_large_numbers(client):
    """Pitfall 10: a 64-bit number of a proto field would come out as a string."""
    answer = await client.get("/v1/models", headers=AUTHORIZED)
    assert answer.status_code == 200
    assert answer.content == b'{"object":"list","created":1700000000123456789,"data":[]}'
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["server"] == "chatmesh"
    assert not [name for name in answer.headers if name.startswith(("grpc-", "x-envoy"))]


async def test_both_prefixes_reach_the_gateway(client):
    for path in ("/v1/chat/completions", "/api/chat/completions"):
        answer = await client.post(path, headers=AUTHORIZED, json={"do": "json"})
        assert answer.json() == {"id": "c", "text": "a"}


async def test_path_and_query_become_fields(client, edge):
    for wanted in ("tiny", "org/model", "org%2Fmodel"):
        answer = await client.get(f"/v1/models/{wanted}?api-version=1", headers=AUTHORIZED)
        assert answer.json() == {"id": wanted.replace("%2F", "/")}
    answer = await client.get("/api/conversations?page_size=7&unknown=1", headers=AUTHORIZED)
    assert answer.json() == {"size": "7"}
    await client.delete("/api/conversations/c%2F1", headers=AUTHORIZED)
    assert edge.gateway.calls[-1][1].conversation_id == "c/1"


async def test_events_come_one_by_one_and_verbatim(client, edge):
    expected = [b'id: t-%d\ndata: {"n":%d}\n\n' % (n, n) for n in range(3)]
    request = {"do": "sse", "wait": True}
    headers = {**AUTHORIZED, "accept-encoding": "gzip"}
    async with client.stream("POST", COMPLETIONS, headers=headers, json=request) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        assert "content-encoding" not in answer.headers
        stream = answer.aiter_raw()
        # The gateway sends no second event before this one was read here.
        first = await asyncio.wait_for(anext(stream), 10)
        assert first == expected[0]
        edge.gateway.go_on.set()
        rest = b"".join([chunk async for chunk in stream])
    assert rest == b"".join(expected[1:]) + b"data: [DONE]\n\n"


async def test_json_is_compressed_when_asked(client):
    headers = {**AUTHORIZED, "accept-encoding": "gzip"}
    request = {"do": "json", "size": 5000}
    async with client.stream("POST", COMPLETIONS, headers=headers, json=request) as answer:
        assert answer.headers["content-encoding"] == "gzip"
        raw = b"".join([chunk async for chunk in answer.aiter_raw()])
    assert len(raw) < 500
    assert len(json.loads(gzip.decompress(raw))["text"]) == 5000
    plain = await client.post(
        COMPLETIONS, headers={**AUTHORIZED, "accept-encoding": "identity"}, json=request
    )
    assert "content-encoding" not in plain.headers


async def test_client_gone_cancels_the_call(client, edge):
    request = {"do": "sse", "wait": True}
    async with client.stream("POST", COMPLETIONS, headers=AUTHORIZED, json=request) as answer:
        await anext(answer.aiter_raw())
    await asyncio.wait_for(edge.gateway.cancelled.wait(), 10)


async def test_an_error_event_and_done_arrive_after_the_first_byte(client):
    """Pitfall 9: the gateway must say it in the stream, and the edge must pass it on."""
    answer = await do(client, "late_error")
    assert answer.status_code == 200
    assert b'data: {"error"' in answer.content
    assert answer.content.endswith(b"data: [DONE]\n\n")


async def test_a_stream_that_only_breaks_off_has_no_done(client, edge):
    """Pitfall 9, the other half: what a client must take for a failure; the log has the status."""
    answer = await do(client, "late_abort")
    assert answer.status_code == 200
    assert b"[DONE]" not in answer.content
    line = await edge.access_log(answer.headers["x-request-id"])
    assert line["grpc_status"] == "Unavailable"


# -- errors ----------------------------------------------------------------------------------


async def test_the_gateways_own_error_keeps_body_status_and_headers(client):
    answer = await do(client, "openai_error")
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "7"
    assert "x-http-status" not in answer.headers
    assert error_of(answer) == {
        "message": "m",
        "type": "t",
        "param": None,
        "code": "insufficient_quota",
    }


async def test_a_mesh_error_is_shaped(client):
    """Pitfalls 5 and 6: the status survives, and so does a body with details."""
    answer = await do(client, "mesh_error")
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "2"
    assert error_of(answer) == {
        "message": 'Full, says "node\\1","details":[]; wait.',
        "type": "rate_limit_error",
        "param": "max_tokens",
        "code": "overloaded",
    }


async def test_a_crash_is_a_500_without_its_text(client):
    answer = await do(client, "crash")
    assert answer.status_code == 500
    assert error_of(answer)["type"] == "server_error"
    assert "secret" not in answer.text


async def test_grpc_status_removed_by_routes_would_hide_errors(edge, client):
    """Pitfall 5, seen: this is why the routes do not remove it."""

    def remove(rendered):
        (table,) = rendered[next(key for key in rendered if key.endswith("RouteConfiguration"))]
        routes = next(
            value for key, value in rendered.items() if key.endswith("RouteConfiguration")
        )
        routes[table]["response_headers_to_remove"] = ["grpc-status"]

    await edge.publish(remove)
    try:
        assert (await do(client, "mesh_error")).status_code == 200
    finally:
        await edge.publish()
    assert (await do(client, "mesh_error")).status_code == 429


async def test_unknown_urls(client, edge):
    for path in ("/", "/nope?token=hidden", "/v1/embeddings", "/v1/modelsx", "/apis"):
        answer = await client.get(path)
        assert answer.status_code == 404
        error = error_of(answer)
        assert error["code"] == "unknown_url"
        assert "hidden" not in answer.text
    assert edge.gateway.checks == []


async def test_a_wrong_verb_says_which_are_right(client):
    answer = await client.get(COMPLETIONS)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert error_of(answer)["code"] == "method_not_allowed"
    answer = await client.post("/api/conversations/c1")
    assert answer.headers["allow"] == "DELETE, GET, PATCH"


@pytest.mark.parametrize("path", ["/v1/models/%00", "/v1/models/%ff", "/v1/models/a%c3b%a9"])
async def test_a_url_that_is_no_text_is_a_400_in_words(client, edge, path):
    answer = await client.get(path, headers=AUTHORIZED)
    assert answer.status_code == 400
    assert error_of(answer)["code"] == "bad_request"
    assert edge.gateway.calls == []


async def test_a_url_may_hold_any_text(client):
    for text in ("é", "中", "😀", "a%25b", "\U00010000\ud7ff"):
        answer = await client.get(f"/v1/models/{text}", headers=AUTHORIZED)
        assert answer.json() == {"id": text.replace("%25", "%")}


async def test_the_query_does_not_change_the_body(client, edge):
    for query in ("body.data=eA==", "body.content_type=evil", "body=x"):
        path = f"{COMPLETIONS}?{query}"
        await client.post(path, headers=AUTHORIZED, json={"do": "json"})
        body = edge.gateway.calls[-1][1].body
        assert (body.content_type, json.loads(body.data)) == ("application/json", {"do": "json"})


async def test_the_largest_body_passes_and_a_larger_one_does_not(client, edge):
    limit = edge.limits.request_body_bytes_max
    answer = await client.post(COMPLETIONS, headers=AUTHORIZED, content=b"x" * limit)
    assert answer.json() == {"bytes": limit}
    answer = await client.post(COMPLETIONS, headers=AUTHORIZED, content=b"x" * (limit + 8192))
    assert answer.status_code == 413
    error = error_of(answer)
    assert error["code"] == "request_too_large"
    assert "4 MiB" in error["message"]


async def test_too_many_or_too_large_headers(client):
    many = {f"h{number}": "x" for number in range(120)}
    for headers in ({"x-large": "x" * 62_000}, many):
        answer = await client.get("/v1/models", headers={**AUTHORIZED, **headers})
        assert answer.status_code == 431
        assert error_of(answer)["code"] == "request_headers_too_large"


async def test_no_gateway_is_a_503(edge, client):
    def empty(rendered):
        for key, named in rendered.items():
            if key.endswith("ClusterLoadAssignment"):
                named["gateway"] = {"cluster_name": "gateway"}

    await edge.publish(empty)
    try:
        answer = await client.get("/v1/models", headers=AUTHORIZED)
        assert answer.status_code == 503
        assert error_of(answer)["code"] == "service_unavailable"
        assert (await client.get("/healthz")).status_code == 200
    finally:
        await edge.publish()
    assert (await client.get("/v1/models", headers=AUTHORIZED)).status_code == 200


async def test_healthz_needs_no_key_and_is_not_wrapped(client, edge):
    """Pitfall 18: a body format for errors must leave a 200 alone."""
    answer = await client.get("/healthz")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ok"}
    assert answer.headers["content-type"] == "application/json"
    assert edge.gateway.checks == []


# -- admission -------------------------------------------------------------------------------


async def test_a_refusal_passes_with_body_and_headers(client, edge):
    edge.gateway.denial = denied(
        429, "rate_limit_exceeded", "Slow.", retry_after="3", x_ratelimit_limit_requests="10"
    )
    answer = await client.get("/v1/models", headers=AUTHORIZED)
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "3"
    assert answer.headers["x-ratelimit-limit-requests"] == "10"
    assert error_of(answer)["code"] == "rate_limit_exceeded"
    for status, code in ((401, "invalid_api_key"), (403, "insufficient_scope"), (503, "store")):
        edge.gateway.denial = denied(status, code, "No.", www_authenticate="Bearer")
        answer = await client.get("/v1/models", headers=AUTHORIZED)
        assert answer.status_code == status
        assert answer.headers["www-authenticate"] == "Bearer"
        assert error_of(answer)["code"] == code
    assert edge.gateway.calls == []


async def test_headers_of_an_admission_reach_both_sides(client, edge):
    answer = await client.get("/v1/models", headers=AUTHORIZED)
    assert answer.headers["x-ratelimit-remaining-requests"] == "59"
    metadata = edge.gateway.calls[-1][2]
    assert (metadata["x-chatmesh-account"], metadata["x-chatmesh-tier"]) == ("acc-1", "pro")
    # Admission sees the path that was asked for, not the method that it stands for.
    assert edge.gateway.checks[-1][":path"] == "/v1/models"


async def test_admission_that_does_not_answer_is_a_503(client, edge):
    edge.gateway.check_fails = True
    answer = await client.get("/v1/models", headers=AUTHORIZED)
    assert answer.status_code == 503
    assert "Keys cannot be checked" in error_of(answer)["message"]
    assert edge.gateway.calls == []


async def test_admission_may_take_its_time(client, edge):
    """Envoy takes the longest back-off of a check for the timeout of each try."""
    edge.gateway.check_delay_s = 0.6
    answer = await client.get("/v1/models", headers=AUTHORIZED)
    assert answer.status_code == 200
    assert len(edge.gateway.checks) == 1


async def test_identity_headers_cannot_be_spoofed(client, edge):
    spoofed = {
        "x-chatmesh-account": "evil",
        "X-ChatMesh-Tier": "admin",
        "x-chatmesh-scopes": "all",
        "x-chatmesh-anything-new": "1",
        "x_chatmesh_account": "evil",
        "x-http-status": "500",
        "x-envoy-original-path": "/evil",
        "x-envoy-upstream-rq-timeout-ms": "1",
        "x-envoy-retry-on": "5xx",
    }
    answer = await client.get("/v1/models", headers={**AUTHORIZED, **spoofed})
    assert answer.status_code == 200
    for seen in (edge.gateway.calls[-1][2], edge.gateway.checks[-1]):
        assert "evil" not in json.dumps(seen)
        assert not seen.keys() & {"x-chatmesh-scopes", "x-chatmesh-anything-new", "x-http-status"}
        assert not seen.keys() & {"x-envoy-upstream-rq-timeout-ms", "x-envoy-retry-on"}
    assert edge.gateway.calls[-1][2]["x-chatmesh-tier"] == "pro"


# -- headers ---------------------------------------------------------------------------------


async def test_preflight_needs_no_key(client, edge):
    asked = {"origin": APP, "access-control-request-method": "POST"}
    answer = await client.options(COMPLETIONS, headers=asked)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == APP
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "authorization" in answer.headers["access-control-allow-headers"]
    foreign = await client.options(COMPLETIONS, headers={**asked, "origin": "https://evil.example"})
    assert "access-control-allow-origin" not in foreign.headers
    assert edge.gateway.checks == []
    assert edge.gateway.calls == []


async def test_an_answer_carries_cors_headers_for_a_known_origin(client):
    answer = await client.get("/v1/models", headers={**AUTHORIZED, "origin": APP})
    assert answer.headers["access-control-allow-origin"] == APP
    assert "x-request-id" in answer.headers["access-control-expose-headers"]
    refused = await client.get("/v1/models", headers={"origin": APP})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == APP


async def test_the_request_id_is_the_edges_and_begins_the_trace(client, edge):
    answer = await client.get("/v1/models", headers={**AUTHORIZED, "x-request-id": "mine"})
    request_id = answer.headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", request_id)
    metadata = edge.gateway.calls[-1][2]
    assert metadata["x-request-id"] == request_id
    version, trace, span, flags = metadata["traceparent"].split("-")
    assert (version, trace, flags) == ("00", request_id.replace("-", ""), "01")
    assert re.fullmatch("[0-9a-f]{16}", span)


async def test_a_callers_trace_goes_on(client, edge):
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
    headers = {**AUTHORIZED, "traceparent": parent, "tracestate": "a=b"}
    await client.get("/v1/models", headers=headers)
    metadata = edge.gateway.calls[-1][2]
    assert (metadata["traceparent"], metadata["tracestate"]) == (parent, "a=b")
    await client.get("/v1/models", headers={**AUTHORIZED, "traceparent": "no trace"})
    assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-01", edge.gateway.calls[-1][2]["traceparent"])


async def test_the_access_log_names_the_request_and_no_secret(client, edge):
    answer = await client.get("/v1/models?key=cm-secret", headers=AUTHORIZED)
    line = await edge.access_log(answer.headers["x-request-id"])
    assert (line["method"], line["path"], line["status"]) == ("GET", "/v1/models", 200)
    assert line["upstream_id"] == "spiffe://chatmesh/gateway"
    text = json.dumps(line)
    assert "cm-secret" not in text
    assert "cm-good" not in text
    assert "acc-1" not in text


# -- TLS -------------------------------------------------------------------------------------


async def test_https_with_the_web_certificate(edge):
    context = ssl.create_default_context(cafile=edge.web_ca_file)
    async with httpx.AsyncClient(base_url=edge.tls_url, verify=context, timeout=20) as client:
        answer = await do(client, "sse")
        assert answer.content.endswith(b"[DONE]\n\n")
    async with httpx.AsyncClient(base_url=edge.tls_url, timeout=20) as stranger:
        with pytest.raises(httpx.ConnectError):
            await stranger.get("/healthz")


def handshake(edge, newest):
    """(TLS version, ALPN protocol) with a client that knows at most `newest`."""
    import socket

    context = ssl.create_default_context(cafile=edge.web_ca_file)
    # OpenSSL itself refuses the old versions unless it is told not to care.
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = newest
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection(("127.0.0.1", edge.tls_port), timeout=10) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as secured,
    ):
        return secured.version(), secured.selected_alpn_protocol()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_tls_1_3_and_nothing_older(edge):
    modern = await asyncio.to_thread(handshake, edge, ssl.TLSVersion.TLSv1_3)
    assert modern == ("TLSv1.3", "h2")
    for refused in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1):
        with pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"):
            await asyncio.to_thread(handshake, edge, refused)


# -- limits, with small ones -----------------------------------------------------------------


async def test_small_limits_are_enforced_in_words(tmp_path):
    limits = EdgeLimits(request_s_max=0.4, connections_max=6)
    async with running_edge(tmp_path, limits) as edge:
        reader, writer = await asyncio.open_connection("127.0.0.1", edge.plain_port)
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: a\r\nauthorization: {KEY}\r\n"
        writer.write(head.encode() + b"content-length: 100\r\n\r\nhalf")
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"request_timeout"' in answer

        opened = [await asyncio.open_connection("127.0.0.1", edge.plain_port) for _ in range(7)]
        ended = [asyncio.ensure_future(reader.read()) for reader, _ in opened]
        done, _ = await asyncio.wait(ended, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        assert done
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
        for _, writer in opened:
            writer.close()
