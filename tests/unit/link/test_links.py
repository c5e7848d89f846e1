"""Links and the processes at their ends: deaths, drains, ages, peers without links."""

import asyncio
import contextlib
import random

import grpc
import pytest

from chatmesh.mesh.v1 import link_pb2, link_pb2_grpc
from mesh.chassis.link import links
from tests.support.control_plane import until
from tests.support.linked import (
    WAYS,
    Fleet,
    Toy,
    caller_channel,
    calling,
    method,
    method_policy,
    open_links,
    serving,
    toy_channel,
)
from tests.support.pki import TestMesh


def counting(name, counts):
    async def count(request, context):
        counts[name] = counts.get(name, 0) + 1
        return name.encode()

    return {"Who": ("unary_unary", count)}


async def wait(request, context):
    await asyncio.Event().wait()


async def read_all(stream):
    async for _ in stream:
        pass


async def pour(request, context):
    while True:
        yield b"x"
        await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def two(way, folder, methods_of, **policy):
    """Two instances and a channel to both."""
    mesh = TestMesh(folder)
    toys = [Toy(mesh, methods_of(name), name) for name in ("toy-1", "toy-2")]
    for toy in toys:
        toy.policies = {f"toy.v1.ToyService/{m}": method_policy(m, **policy) for m in toy.methods}
    async with serving(toys[0]), serving(toys[1]), calling(way, toys) as channel:
        yield toys, channel


def tables_are_empty(channel):
    return all(not link.mux.flows for link in open_links(channel))


@pytest.mark.parametrize("way", WAYS)
async def test_calls_are_shared_by_the_instances(way, tmp_path):
    counts = {}
    async with two(way, tmp_path, lambda name: counting(name, counts)) as (_, channel):
        call = method(channel, "unary_unary", "Who")
        await until(lambda: _both(call, counts), "both are called")
        counts.clear()
        for _ in range(20):
            await call(b"")
    assert counts == {"toy-1": 10, "toy-2": 10}


async def _both(call, counts):
    await call(b"")
    return len(counts) == 2


async def test_the_instance_that_metadata_names_is_called(tmp_path):
    counts = {}
    async with two("link", tmp_path, lambda name: counting(name, counts)) as (_, channel):
        for _ in range(5):
            metadata = ((links.INSTANCE_KEY, "toy-2"),)
            answer = await method(channel, "unary_unary", "Who")(b"", metadata=metadata)
            assert answer == b"toy-2"
        # One that there is not: any.
        metadata = ((links.INSTANCE_KEY, "toy-9"),)
        assert await method(channel, "unary_unary", "Who")(b"", metadata=metadata)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("repeatable", [False, True])
async def test_what_a_killed_server_leaves_of_its_calls(way, repeatable, tmp_path):
    """Only xDS makes plain calls again; here they are as calls that may not be repeated."""
    began = asyncio.Event()

    def methods(name):
        async def first_waits(request, context):
            if not began.is_set():
                began.set()
                await asyncio.Event().wait()
            return b"answered"

        return {"Work": ("unary_unary", first_waits), "Pour": ("unary_stream", pour)}

    async with two(way, tmp_path, methods, repeatable=repeatable) as (toys, channel):
        # One of them serves the call; the other must answer it.
        call = method(channel, "unary_unary", "Work")(b"")
        stream = method(channel, "unary_stream", "Pour")(b"")
        assert await anext(aiter(stream)) == b"x"
        await began.wait()
        for toy in toys:
            await toy.server.stop(0)
            await toy.start()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_all(stream)
        # A stream whose answer began is never made again.
        assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        if not repeatable or way == "plain":
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


async def test_a_repeatable_call_is_tried_three_times_and_says_so(tmp_path):
    seen = []

    async def fail(request, context):
        metadata = dict(context.invocation_metadata())
        seen.append((request, metadata.get("grpc-previous-rpc-attempts")))
        await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")

    policies = {
        "toy.v1.ToyService/Again": method_policy("Again", repeatable=True),
        "toy.v1.ToyService/Once": method_policy("Once"),
    }
    methods = {"Again": ("unary_unary", fail), "Once": ("unary_unary", fail)}
    async with toy_channel("link", tmp_path, methods, policies=policies) as (_, channel):
        for name in ("Again", "Once"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await method(channel, "unary_unary", name)(name.encode())
            assert caught.value.details() == "not now"
        assert tables_are_empty(channel)
    assert seen == [(b"Again", None), (b"Again", "1"), (b"Again", "2"), (b"Once", None)]


async def test_an_answer_that_began_is_not_asked_for_again(tmp_path):
    seen = []

    async def fail_late(request, context):
        seen.append(request)
        yield b"first"
        await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")

    policies = {"toy.v1.ToyService/Late": method_policy("Late", repeatable=True)}
    methods = {"Late": ("unary_stream", fail_late)}
    async with toy_channel("link", tmp_path, methods, policies=policies) as (_, channel):
        call = method(channel, "unary_stream", "Late")(b"")
        assert await call.read() == b"first"
        assert await call.code() == grpc.StatusCode.UNAVAILABLE
    assert len(seen) == 1


async def test_a_repeatable_call_waits_for_a_server_that_is_started_again(tmp_path):
    """As plain calls do: the try that finds no link is a plain call."""
    began, counts = asyncio.Event(), []

    async def first_waits(request, context):
        counts.append(request)
        if len(counts) == 1:
            began.set()
            await asyncio.Event().wait()
        return b"answered"

    policies = {"toy.v1.ToyService/Work": method_policy("Work", repeatable=True)}
    toy = Toy(TestMesh(tmp_path), {"Work": ("unary_unary", first_waits)}, policies=policies)
    async with serving(toy), calling("link", [toy]) as channel:
        call = method(channel, "unary_unary", "Work")(b"asked", timeout=9)
        await began.wait()
        await _restart_at_the_same_port(toy)
        assert await call == b"answered"
    assert counts == [b"asked", b"asked"]


async def _restart_at_the_same_port(toy):
    address = toy.address
    await toy.server.stop(0)
    port = int(address.rpartition(":")[2])
    # The chassis takes a free port: until it is the one that the channel knows.
    second = Toy(toy.mesh, toy.methods, toy.instance, policies=toy.policies)
    await second.start()
    forward = await asyncio.start_server(
        lambda reader, writer: _pass_on(reader, writer, second.address), "127.0.0.1", port
    )
    toy.server, toy.forward = second.server, forward


async def _pass_on(reader, writer, address):
    host, port = address.split(":")
    other_reader, other_writer = await asyncio.open_connection(host, int(port))

    async def copy(source, sink):
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
        sink.close()

    await asyncio.gather(copy(reader, other_writer), copy(other_reader, writer))


async def test_a_draining_server_finishes_what_it_took_and_nobody_notices(tmp_path):
    """Of plain calls one in a thousand is CANCELLED by the GOAWAY; there xDS tries it again."""
    counts = {}

    def methods(name):
        async def slow(request, context):
            await asyncio.sleep(random.uniform(0, 0.05))
            counts[name] = counts.get(name, 0) + 1
            return request

        async def stream(requests, context):
            async for request in requests:
                await asyncio.sleep(0.01)
                yield request

        return {"Slow": ("unary_unary", slow), "Talk": ("stream_stream", stream)}

    async with two("link", tmp_path, methods) as (toys, channel):
        stop = asyncio.Event()
        answered = 0

        async def caller(number):
            nonlocal answered
            while not stop.is_set():
                body = f"{number}".encode()
                assert await method(channel, "unary_unary", "Slow")(body) == body
                talk = method(channel, "stream_stream", "Talk")(iter([b"a", b"b", b"c"]))
                assert [each async for each in talk] == [b"a", b"b", b"c"]
                answered += 1

        callers = [asyncio.create_task(caller(number)) for number in range(30)]
        await asyncio.sleep(0.1)
        before = dict(counts)
        await toys[0].server.stop(20)  # less when it drains at once
        stop.set()
        await asyncio.gather(*callers)
        assert answered >= 30
        assert counts["toy-2"] > before.get("toy-2", 0)


async def test_a_call_that_crosses_the_drain_is_sent_elsewhere(tmp_path):
    counts = {}
    async with two("link", tmp_path, lambda name: counting(name, counts)) as (toys, channel):
        first = next(link for link in open_links(channel) if link.name == "toy-1")
        # The server drains; that the client has not heard of it yet is made certain.
        toys[0].server._links.drain()
        calls = [method(channel, "unary_unary", "Who")(b"") for _ in range(10)]
        assert [await call for call in calls] == [b"toy-2"] * 10
        await until(lambda: not first.is_open, "the client heard of it")


async def test_links_are_renewed_before_their_connection_is_old(tmp_path):
    counts, seen = {}, set()
    async with toy_channel(
        "link", tmp_path, counting("toy-1", counts), connection_age_max_s=1.0
    ) as (_, channel):

        async def many():
            for link in open_links(channel):
                seen.add(link)
            await method(channel, "unary_unary", "Who")(b"")
            return len(seen) >= 4

        await until(many, "four links, one after the other")
        gone = [link for link in seen if not link.is_open]
        await until(
            lambda: all(isinstance(link.error, type(None)) for link in gone), "ended in peace"
        )


async def test_a_server_that_offers_no_links_is_called_plainly(tmp_path):
    counts = {}
    methods = counting("toy-1", counts)
    async with toy_channel("link", tmp_path, methods, offers_links=False) as (_, channel):
        await until(lambda: channel.links._peers, "the instance is known")
        (peer,) = channel.links._peers.values()
        await until(lambda: peer.is_plain, "it is known to offer none")
        assert channel.links.pick(()) is None
        assert await method(channel, "unary_unary", "Who")(b"") == b"toy-1"
        assert peer.link.error.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_a_mixed_fleet_is_balanced_as_a_whole(tmp_path):
    counts, mesh = {}, TestMesh(tmp_path)
    toys = [
        Toy(mesh, counting("toy-1", counts), "toy-1", offers_links=False),
        Toy(mesh, counting("toy-2", counts), "toy-2"),
    ]
    async with (
        serving(toys[0]),
        serving(toys[1]),
        # A channel to one of them: which one a header names is the control plane's to route.
        calling("link", [toys[1]], Fleet(toys)) as channel,
    ):
        plain = next(p for p in channel.links._peers.values() if p.name == "toy-1")
        plain.is_plain = True
        channel.links._note_peers()
        assert channel.links.pick(()) is None
        assert channel.links.pick(((links.INSTANCE_KEY, "toy-2"),)).name == "toy-2"


async def test_a_link_that_another_instance_answers_is_not_used(tmp_path):
    counts, mesh = {}, TestMesh(tmp_path)
    toy = Toy(mesh, counting("toy-1", counts), "toy-1")
    other = Toy(mesh, {}, "toy-2")
    async with serving(toy):
        other.address = toy.address
        fleet = Fleet([other])
        inner = caller_channel(toy.address, mesh.identity("gateway"))
        async with inner:
            used = links.Links("toy", inner, fleet.watch)
            used.pick(())
            await until(lambda: used._peers, "the fleet is known")
            (peer,) = used._peers.values()
            await until(lambda: peer.link and peer.link.error, "the link is closed again")
            assert "toy-1 answered" in str(peer.link.error)
            assert used.pick(()) is None
            await used.close()


async def test_instances_that_go_are_left_and_those_that_come_are_linked(tmp_path):
    counts, mesh = {}, TestMesh(tmp_path)
    toys = [Toy(mesh, counting(name, counts), name) for name in ("toy-1", "toy-2")]
    async with serving(toys[0]), serving(toys[1]):
        fleet = Fleet([toys[0]])
        async with calling("link", toys[:1], fleet) as channel:
            fleet.set()  # it is gone, as far as one knows: its calls may still end
            await until(lambda: not open_links(channel), "it is left")
            assert channel.links.pick(()) is None
            fleet.set(toys[0].described)
            await until(lambda: open_links(channel), "it is linked again")
            assert channel.links.pick(()).name == "toy-1"


@pytest.mark.parametrize("sent", [b"\xff\xff", {"call_id": 9}, {"call_id": 1, "cancel": True}])
async def test_a_bad_server_ends_its_link_and_calls_are_plain(tmp_path, sent):
    """Of a service that answers links with nonsense; its plain calls are good."""
    mesh, counts = TestMesh(tmp_path), {}

    class Bad(link_pb2_grpc.LinkServiceServicer):
        async def Open(self, requests, context):  # noqa: N802
            yield link_pb2.OpenResponse(instance="toy-1").SerializeToString()
            await anext(aiter(requests))
            bad = link_pb2.OpenResponse(frames=[sent]) if isinstance(sent, dict) else sent
            yield bad if isinstance(bad, bytes) else bad.SerializeToString()
            await asyncio.Event().wait()

    toy = Toy(mesh, counting("toy-1", counts), offers_links=False)
    handler = grpc.stream_stream_rpc_method_handler(
        Bad().Open, request_deserializer=link_pb2.OpenRequest.FromString
    )
    toy.others = [("chatmesh.mesh.v1.LinkService", {"Open": handler})]
    async with serving(toy), calling("link", [toy]) as channel:
        await until(lambda: open_links(channel), "it looked good")
        (link,) = open_links(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(channel, "unary_unary", "Who")(b"")
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "bad" in str(link.error)
        channel.links.pick = lambda metadata: None
        assert await method(channel, "unary_unary", "Who")(b"") == b"toy-1"


async def test_without_news_of_the_fleet_calls_are_plain(tmp_path):
    counts = {}
    async with toy_channel("link", tmp_path, counting("toy-1", counts)) as (_, channel):
        assert channel.links.pick(())
        follower = next(t for t in channel.links._tasks if "kept" in repr(t))
        follower.cancel()
        await until(lambda: not open_links(channel), "the links are left")
        assert await method(channel, "unary_unary", "Who")(b"") == b"toy-1"


async def test_the_edge_and_strangers_open_no_links(tmp_path):
    mesh = TestMesh(tmp_path)
    async with serving(Toy(mesh, {})) as toy:
        for identity, allowed in (("edge", False), ("safety", True)):
            async with caller_channel(toy.address, mesh.identity(identity)) as channel:
                call = link_pb2_grpc.LinkServiceStub(channel).Open()
                if allowed:
                    assert (await call.read()).instance == "toy-1"
                    await call.done_writing()
                    assert await call.read() is grpc.aio.EOF
                else:
                    assert await call.code() == grpc.StatusCode.PERMISSION_DENIED


async def test_bad_peers_end_their_link_and_nothing_else(tmp_path):
    counts = {}
    mesh = TestMesh(tmp_path)
    begin = link_pb2.Begin(method="toy.v1.ToyService/Who", timeout_us=2**64 - 1)
    bad = {
        "garbage": b"\xff\xff\xff\xff",
        "unknown call": link_pb2.OpenRequest(frames=[{"call_id": 3, "data": b""}]),
        "overrun": link_pb2.OpenRequest(
            frames=[{"call_id": 1, "begin": begin}, *[{"call_id": 1, "data": b"x" * 32000}] * 9]
        ),
        "resets": link_pb2.OpenRequest(
            frames=[{"call_id": each, "begin": begin, "cancel": True} for each in range(1, 20_100)]
        ),
        "flood": link_pb2.OpenRequest(
            frames=[{"call_id": each, "begin": begin} for each in range(1, 20_100)]
        ),
    }
    async with serving(Toy(mesh, counting("toy-1", counts))) as toy, calling("link", [toy]) as good:
        for what, sent in bad.items():
            async with caller_channel(toy.address, mesh.identity("safety")) as channel:
                call = channel.stream_stream(
                    "/chatmesh.mesh.v1.LinkService/Open",
                    request_serializer=lambda each: (
                        each if isinstance(each, bytes) else each.SerializeToString()
                    ),
                )()
                await call.read()
                await call.write(sent)
                assert await call.code() != grpc.StatusCode.OK, what
            assert await method(good, "unary_unary", "Who")(b"") == b"toy-1"
        await until(lambda: len(toy.server._links._links) == 1, "their links are gone")
        (link,) = toy.server._links._links
        await until(lambda: not link.tasks and not link.mux.flows, "nothing is left of them")


async def test_random_cancellations_leave_nothing(tmp_path):
    async def echo_all(requests, context):
        async for request in requests:
            await asyncio.sleep(0)
            yield request

    methods = {"Echo": ("stream_stream", echo_all), "Wait": ("unary_unary", wait)}
    async with toy_channel("link", tmp_path, methods) as (toy, channel):
        dice = random.Random(7)

        async def talk():
            call = method(channel, "stream_stream", "Echo")(timeout=dice.uniform(0.005, 5))
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                for _ in range(dice.randrange(6)):
                    await call.write(b"x" * dice.randrange(50_000))
                    if dice.random() < 0.5:
                        await call.read()
                if dice.random() < 0.5:
                    await call.done_writing()
                    async for _ in call:
                        pass
            call.cancel()

        async def ask():
            with contextlib.suppress(grpc.aio.AioRpcError):
                await method(channel, "unary_unary", "Wait")(b"", timeout=dice.uniform(0.005, 0.1))

        tasks = [asyncio.create_task(dice.choice((talk, ask))()) for _ in range(400)]
        for task in dice.sample(tasks, 150):
            asyncio.get_running_loop().call_later(dice.uniform(0, 0.2), task.cancel)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each) for each in results} <= {type(None), asyncio.CancelledError}
        (client,), (server,) = open_links(channel), toy.server._links._links
        await until(lambda: not client.mux.flows, "the client's table is empty")
        await until(lambda: not server.mux.flows and not server.tasks, "the server's too")
        assert client.mux.held_bytes == server.mux.held_bytes == 0


async def test_who_uses_a_call_that_another_ends_is_not_cancelled(tmp_path):
    async def hold(requests, context):
        yield b"begun"
        await asyncio.Event().wait()

    async with toy_channel("link", tmp_path, {"Hold": ("stream_stream", hold)}) as (_, channel):
        for round_ in range(200):
            call = method(channel, "stream_stream", "Hold")()
            await call.read()

            async def write(call=call):
                while True:
                    await call.write(b"x" * 8000)

            using = [asyncio.create_task(write()), asyncio.create_task(call.read())]
            using.append(asyncio.create_task(call.code()))
            await asyncio.sleep(0.001 * (round_ % 3))
            call.cancel()
            results = await asyncio.gather(*using, return_exceptions=True)
            kinds = (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.StatusCode)
            assert all(isinstance(each, kinds) for each in results), results
