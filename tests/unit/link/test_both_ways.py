"""What callers and servicers see of a call is the same over a link as plainly."""

import asyncio

import grpc
import pytest
from prometheus_client import REGISTRY

from mesh.chassis import deadlines
from mesh.chassis.errors import MeshError
from tests.support.control_plane import until
from tests.support.linked import WAYS, method, method_policy, toy_channel

pytestmark = pytest.mark.parametrize("way", WAYS)
MIB = 1 << 20


async def echo(request, context):
    return request


async def three(request, context):
    for number in b"123":
        yield request + bytes([number])


async def three_written(request, context):
    for number in b"123":
        await context.write(request + bytes([number]))


async def join(requests, context):
    return b"".join([request async for request in requests])


async def answer_each(requests, context):
    async for request in requests:
        yield request.upper()


async def answer_each_written(requests, context):
    async for request in requests:
        await context.write(request.upper())


async def answer_each_read(_requests, context):
    while (request := await context.read()) is not grpc.aio.EOF:
        await context.write(request.upper())


async def caught(awaitable):
    with pytest.raises(grpc.aio.AioRpcError) as found:
        await awaitable
    return found.value


async def test_one_request_one_answer(way, tmp_path):
    async with toy_channel(way, tmp_path, {"Echo": ("unary_unary", echo)}) as (_, channel):
        call = method(channel, "unary_unary", "Echo")(b"hello")
        assert await call == b"hello"
        assert await call == b"hello"
        assert await call.code() == grpc.StatusCode.OK
        assert call.done()
        assert not call.cancelled()
        assert not call.cancel()
        assert await method(channel, "unary_unary", "Echo")(b"") == b""


@pytest.mark.parametrize("behaviour", [three, three_written])
async def test_one_request_many_answers(way, tmp_path, behaviour):
    methods = {"Three": ("unary_stream", behaviour)}
    async with toy_channel(way, tmp_path, methods) as (_, channel):
        three = method(channel, "unary_stream", "Three")
        assert [each async for each in three(b"n")] == [b"n1", b"n2", b"n3"]
        call = three(b"n")
        read = [await call.read() for _ in range(4)]
        assert read == [b"n1", b"n2", b"n3", grpc.aio.EOF]
        assert await call.read() is grpc.aio.EOF
        assert await call.code() == grpc.StatusCode.OK


async def test_many_requests_one_answer(way, tmp_path):
    async def generate():
        for each in (b"a", b"b", b""):
            yield each

    async with toy_channel(way, tmp_path, {"Join": ("stream_unary", join)}) as (_, channel):
        joined = method(channel, "stream_unary", "Join")
        assert await joined(generate()) == b"ab"
        assert await joined([b"x", b"y"]) == b"xy"
        call = joined()
        await call.write(b"1")
        await call.write(b"2")
        await call.done_writing()
        await call.done_writing()
        assert await call == b"12"


@pytest.mark.parametrize("behaviour", [answer_each, answer_each_written, answer_each_read])
async def test_many_of_both(way, tmp_path, behaviour):
    methods = {"Each": ("stream_stream", behaviour)}
    async with toy_channel(way, tmp_path, methods) as (_, channel):
        call = method(channel, "stream_stream", "Each")()
        for word in (b"one", b"two"):
            await call.write(word)
            assert await call.read() == word.upper()
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        with pytest.raises(asyncio.InvalidStateError):
            await call.write(b"late")


async def test_a_failing_request_iterator_cancels_the_call(way, tmp_path):
    async def generate():
        yield b"a"
        raise ValueError("no more")

    async with toy_channel(way, tmp_path, {"Join": ("stream_unary", join)}) as (_, channel):
        call = method(channel, "stream_unary", "Join")(generate())
        assert await call.code() == grpc.StatusCode.CANCELLED


async def test_metadata_travels_both_ways(way, tmp_path):
    seen = {}

    async def tell(request, context):
        seen.update(dict(context.invocation_metadata()))
        await context.send_initial_metadata((("first", "1"), ("first-bin", b"\x00\xff")))
        context.set_trailing_metadata((("last", "2"),))
        return b""

    async with toy_channel(way, tmp_path, {"Tell": ("unary_unary", tell)}) as (_, channel):
        metadata = (("a-key", "a value"), ("a-key-bin", b"\xfe"))
        call = method(channel, "unary_unary", "Tell")(b"", metadata=metadata)
        initial = dict(await call.initial_metadata())
        await call
        trailing = dict(await call.trailing_metadata())
    assert (seen["a-key"], seen["a-key-bin"]) == ("a value", b"\xfe")
    assert (initial["first"], initial["first-bin"]) == ("1", b"\x00\xff")
    assert trailing["last"] == "2"


async def test_the_servicer_knows_the_peer_and_the_time(way, tmp_path):
    seen = []

    async def look(request, context):
        names = context.auth_context()["x509_subject_alternative_name"]
        seen.extend([b"spiffe://chatmesh/gateway" in names, context.time_remaining()])
        seen.extend([deadlines.remaining_s(), context.peer()])
        return b""

    async with toy_channel(way, tmp_path, {"Look": ("unary_unary", look)}) as (_, channel):
        await method(channel, "unary_unary", "Look")(b"", timeout=3)
    assert seen[0]
    assert 2 < seen[1] <= 3
    assert 2 < seen[2] <= 3
    assert seen[3].startswith("ipv4:127.0.0.1:")


async def test_an_error_keeps_reason_metadata_and_delay(way, tmp_path):
    async def fail(request, context):
        raise MeshError(
            grpc.StatusCode.NOT_FOUND, "LOST", "It is gone.", metadata={"k": "v"}, retry_after_s=2
        )

    async def fail_late(request, context):
        yield b"first"
        raise MeshError(grpc.StatusCode.ABORTED, "LATE", "Too late.")

    methods = {"Fail": ("unary_unary", fail), "Late": ("unary_stream", fail_late)}
    async with toy_channel(way, tmp_path, methods) as (_, channel):
        error = MeshError.from_rpc(await caught(method(channel, "unary_unary", "Fail")(b"")))
        assert (error.code, error.reason) == (grpc.StatusCode.NOT_FOUND, "LOST")
        assert (error.metadata, error.retry_after_s) == ({"k": "v"}, 2)
        assert error.message == "It is gone."
        call = method(channel, "unary_stream", "Late")(b"")
        assert await call.read() == b"first"
        assert MeshError.from_rpc(await caught(call.read())).reason == "LATE"


async def test_a_crash_tells_the_caller_nothing_of_it(way, tmp_path):
    async def crash(request, context):
        raise ValueError("a secret")

    async with toy_channel(way, tmp_path, {"Crash": ("unary_unary", crash)}) as (_, channel):
        error = await caught(method(channel, "unary_unary", "Crash")(b""))
    assert error.code() == grpc.StatusCode.INTERNAL
    assert "secret" not in error.details()


async def test_abort_by_the_servicer(way, tmp_path):
    async def abort(request, context):
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now", (("why", "so"),))

    async with toy_channel(way, tmp_path, {"Abort": ("unary_unary", abort)}) as (_, channel):
        error = await caught(method(channel, "unary_unary", "Abort")(b""))
    assert (error.code(), error.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "not now")
    assert dict(error.trailing_metadata())["why"] == "so"


async def test_an_unknown_method_is_unimplemented(way, tmp_path):
    async with toy_channel(way, tmp_path, {"Echo": ("unary_unary", echo)}) as (_, channel):
        error = await caught(method(channel, "unary_unary", "Nothing")(b"", timeout=5))
    assert error.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_policies_are_asked_at_each_call(way, tmp_path):
    async with toy_channel(way, tmp_path, {"Echo": ("unary_unary", echo)}) as (toy, channel):
        call = method(channel, "unary_unary", "Echo")
        assert await call(b"1") == b"1"
        (name,) = toy.policies
        toy.policies[name] = method_policy("Echo", allowed_spiffe_ids=["spiffe://chatmesh/other"])
        error = MeshError.from_rpc(await caught(call(b"2", timeout=5)))
        assert error.reason == "CALLER_NOT_ALLOWED"
        assert error.metadata["peer"] == "spiffe://chatmesh/gateway"
        del toy.policies[name]
        assert MeshError.from_rpc(await caught(call(b"3", timeout=5))).reason == (
            "CALLER_NOT_ALLOWED"
        )


async def test_a_call_must_carry_a_deadline(way, tmp_path):
    async with toy_channel(way, tmp_path, {"Echo": ("unary_unary", echo)}) as (_, channel):
        call = method(channel, "unary_unary", "Echo")
        channel.policies = dict  # the caller knows of none
        error = MeshError.from_rpc(await caught(call(b"")))
        assert error.reason == "DEADLINE_REQUIRED"


async def test_the_deadline_ends_both_sides(way, tmp_path):
    ended = asyncio.Event()

    async def wait(request, context):
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with toy_channel(way, tmp_path, {"Wait": ("unary_unary", wait)}) as (_, channel):
        call = method(channel, "unary_unary", "Wait")(b"", timeout=0.1)
        error = await caught(call)
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert await call.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await asyncio.wait_for(ended.wait(), 5)


async def test_cancelling_reaches_the_servicer(way, tmp_path):
    began, ended = asyncio.Event(), asyncio.Event()

    async def wait(request, context):
        try:
            yield b"begun"
            began.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with toy_channel(way, tmp_path, {"Wait": ("unary_stream", wait)}) as (_, channel):
        call = method(channel, "unary_stream", "Wait")(b"")
        told = []
        call.add_done_callback(told.append)
        assert await call.read() == b"begun"
        await began.wait()
        assert call.cancel()
        assert not call.cancel()
        await asyncio.wait_for(ended.wait(), 5)
        assert await call.code() == grpc.StatusCode.CANCELLED
        assert call.cancelled()
        await until(lambda: told == [call], "the callback was called")


async def test_the_call_ends_with_the_task_that_waits_for_it(way, tmp_path):
    ended = asyncio.Event()

    async def wait(request, context):
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with toy_channel(way, tmp_path, {"Wait": ("unary_unary", wait)}) as (_, channel):

        async def call():
            await method(channel, "unary_unary", "Wait")(b"")

        task = asyncio.create_task(call())
        await asyncio.sleep(0.05)  # it is on its way
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(ended.wait(), 5)


@pytest.mark.parametrize("size", [0, 1, 32 << 10, (64 << 10) + 1, 3 * MIB])
async def test_messages_of_all_sizes_arrive_whole(way, tmp_path, size):
    methods = {"Echo": ("unary_unary", echo), "Each": ("stream_stream", answer_each)}
    body = bytes(range(97, 123)) * (size // 26 + 1)
    body = body[:size]
    async with toy_channel(way, tmp_path, methods) as (_, channel):
        assert await method(channel, "unary_unary", "Echo")(body) == body
        call = method(channel, "stream_stream", "Each")(iter([body, b"x", body]))
        assert [each async for each in call] == [body.upper(), b"X", body.upper()]


async def test_messages_over_the_limit_are_refused(way, tmp_path):
    async def large(request, context):
        return b"x" * (8 * MIB + 1)

    methods = {"Echo": ("unary_unary", echo), "Large": ("unary_unary", large)}
    async with toy_channel(way, tmp_path, methods) as (_, channel):
        for name, body in (("Echo", b"x" * (8 * MIB + 1)), ("Large", b"")):
            error = await caught(method(channel, "unary_unary", name)(body))
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await method(channel, "unary_unary", "Echo")(b"still") == b"still"


async def test_a_servicer_without_a_reader_is_held_back(way, tmp_path):
    written = []

    async def pour(request, context):
        for number in range(2000):
            await context.write(b"x" * 4096)
            written.append(number)

    async with toy_channel(way, tmp_path, {"Pour": ("unary_stream", pour)}) as (_, channel):
        call = method(channel, "unary_stream", "Pour")(b"")
        await until(lambda: written, "it began")
        before = -1
        while before != len(written):  # it stands still
            before = len(written)
            await asyncio.sleep(0.2)
        assert before < 1500
        count = 0
        async for _ in call:
            count += 1
        assert count == 2000


async def test_a_caller_without_a_reader_is_held_back(way, tmp_path):
    go = asyncio.Event()

    async def later(requests, context):
        await go.wait()
        return str(len([request async for request in requests])).encode()

    async with toy_channel(way, tmp_path, {"Later": ("stream_unary", later)}) as (_, channel):
        call = method(channel, "stream_unary", "Later")()
        written = 0

        async def pour():
            nonlocal written
            for _ in range(2000):
                await call.write(b"x" * 4096)
                written += 1
            await call.done_writing()

        task = asyncio.create_task(pour())
        before = -1
        while before != written:
            before = written
            await asyncio.sleep(0.2)
        assert written < 1500
        go.set()
        await task
        assert await call == b"2000"


async def test_deadlines_are_handed_on(way, tmp_path):
    async def look(request, context):
        return str(context.time_remaining()).encode()

    async with toy_channel(way, tmp_path, {"Look": ("unary_unary", look)}) as (_, channel):
        deadlines.enter(1.0)
        remaining = float(await method(channel, "unary_unary", "Look")(b"", timeout=5))
        assert 0.5 < remaining <= 0.96
        deadlines.enter(0.001)
        with pytest.raises(MeshError) as found:
            method(channel, "unary_unary", "Look")(b"", timeout=5)
        assert found.value.reason == "DEADLINE_TOO_SHORT"


async def test_calls_are_measured(way, tmp_path):

    labels = {"method": "toy.v1.ToyService/Echo", "code": "OK"}

    def count():
        return REGISTRY.get_sample_value("chatmesh_rpc_server_seconds_count", labels) or 0

    before = count()
    async with toy_channel(way, tmp_path, {"Echo": ("unary_unary", echo)}) as (_, channel):
        await method(channel, "unary_unary", "Echo")(b"")
        assert count() == before + 1
        in_flight = {"method": labels["method"]}
        assert REGISTRY.get_sample_value("chatmesh_rpc_server_in_flight", in_flight) == 0
