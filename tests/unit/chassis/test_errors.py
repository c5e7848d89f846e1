"""A MeshError crosses the wire whole; anything else tells nothing that it must not."""

import grpc
import pytest

from chatmesh.tokenizer.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from mesh.chassis.errors import MeshError
from tests.support.loopback import loopback


class Failing(tokenizer_pb2_grpc.TokenizerServiceServicer):
    def __init__(self, error):
        self.error = error

    async def Decode(self, request, context):  # noqa: N802
        if request.skip_special_tokens:
            await context.abort(grpc.StatusCode.DATA_LOSS, "its own way")
        raise self.error


async def failure(error, **fields):
    servicer = (tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server, Failing(error))
    async with loopback([servicer]) as channel:
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Decode(tokenizer_pb2.DecodeRequest(**fields), timeout=5)
    return caught.value


async def test_a_mesh_error_arrives_with_reason_metadata_and_retry_delay():
    sent = MeshError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "QUEUE_FULL",
        "Come back later.",
        metadata={"limit": "5"},
        retry_after_s=1.5,
    )
    got = MeshError.from_rpc(await failure(sent))
    assert (got.code, got.reason, got.message) == (sent.code, sent.reason, sent.message)
    assert got.metadata == {"limit": "5"}
    assert got.retry_after_s == 1.5


async def test_the_text_of_an_unknown_error_stays_here():
    error = await failure(RuntimeError("the prompt was: my secret"))
    assert error.code() == grpc.StatusCode.INTERNAL
    assert "secret" not in error.details()


@pytest.mark.parametrize(
    ("upstream", "told"),
    [
        (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE),
        (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.DEADLINE_EXCEEDED),
        (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INTERNAL),
    ],
)
async def test_an_upstream_failure_passes_only_as_far_as_a_retry_needs_it(upstream, told):
    metadata = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(upstream, metadata, metadata, details="10.0.0.7 refused")
    got = await failure(error)
    assert got.code() == told
    assert "10.0.0.7" not in got.details()


async def test_a_servicer_that_aborts_by_itself_is_left_alone():
    error = await failure(None, skip_special_tokens=True)
    assert (error.code(), error.details()) == (grpc.StatusCode.DATA_LOSS, "its own way")


async def test_a_peer_without_details_gives_an_empty_reason():
    error = await failure(None, skip_special_tokens=True)
    assert MeshError.from_rpc(error).reason == ""


async def test_a_long_message_does_not_break_the_trailing_metadata():
    sent = MeshError(grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST", "x" * 100_000)
    got = MeshError.from_rpc(await failure(sent))
    assert got.reason == "BAD_REQUEST"
    assert 0 < len(got.message) < 4000
