"""The contract over a real wire: every method, every reason."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from tokenizers import Tokenizer

from chatmesh.content.v1 import content_pb2
from chatmesh.tokenizer.v1 import tokenizer_pb2 as pb
from chatmesh.tokenizer.v1 import tokenizer_pb2_grpc
from mesh.chassis.errors import MeshError
from tests.support.loopback import loopback
from tests.unit.tokenizer import conftest as models
from tokenizer_svc.messages import CONTENT_BYTE_COUNT_MAX
from tokenizer_svc.prompt import ChatTokenizer
from tokenizer_svc.service import DECODE_TOKEN_COUNT_MAX, TokenizerService

USER, ASSISTANT, SYSTEM = content_pb2.ROLE_USER, content_pb2.ROLE_ASSISTANT, content_pb2.ROLE_SYSTEM


@pytest.fixture
async def stub(chat: ChatTokenizer) -> AsyncIterator[tokenizer_pb2_grpc.TokenizerServiceStub]:
    service = TokenizerService({"tiny": chat})
    add = tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server
    async with loopback([(add, service)]) as channel:
        yield tokenizer_pb2_grpc.TokenizerServiceStub(channel)
    service.close()


def encode(*messages: tuple[int, str], model: str = "tiny", **rest: object) -> pb.EncodeRequest:
    listed = [content_pb2.Message(role=role, content=content) for role, content in messages]
    return pb.EncodeRequest(model=model, messages=listed, **rest)


async def refused(call: object, reason: str, code: str = "INVALID_ARGUMENT") -> dict[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = MeshError.from_rpc(caught.value)
    assert (error.reason, error.code.name) == (reason, code)
    assert error.message
    return error.metadata


async def test_encode(stub, chat: ChatTokenizer, tokenizer_object: Tokenizer) -> None:
    answer = await stub.Encode(encode((SYSTEM, "Be kind."), (USER, "Hello"), max_tokens=7))
    text = tokenizer_object.decode(list(answer.token_ids), skip_special_tokens=False)
    assert text == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert answer.context_token_count_max == models.CONTEXT
    assert answer.answer_token_count_max == models.CONTEXT - len(answer.token_ids)
    assert answer.tokenizer_digest == chat.digest
    assert len(answer.message_token_counts) == 2
    assert answer.dropped_message_count == 0


async def test_encode_drops_whole_turns_and_says_so(stub) -> None:
    filler = "hello there " * 40
    turns = [(USER, filler), (ASSISTANT, filler)] * 4
    answer = await stub.Encode(encode((SYSTEM, "Be kind."), *turns, (USER, "now"), max_tokens=50))
    assert answer.dropped_message_count in {4, 6}
    assert len(answer.message_token_counts) == 10 - answer.dropped_message_count
    assert answer.answer_token_count_max >= 50


async def test_context_length_exceeded(stub) -> None:
    metadata = await refused(
        stub.Encode(encode((USER, "hello there " * 400))), "CONTEXT_LENGTH_EXCEEDED"
    )
    assert int(metadata["count"]) > int(metadata["limit"]) == models.CONTEXT
    metadata = await refused(
        stub.Encode(encode((USER, "hi"), max_tokens=models.CONTEXT)), "CONTEXT_LENGTH_EXCEEDED"
    )
    assert int(metadata["count"]) == models.CONTEXT + int(metadata["prompt_count"])
    turns = [(USER, "hello there " * 60), (ASSISTANT, "hello there " * 60), (USER, "x")]
    assert (await stub.Encode(encode(*turns, max_tokens=200))).dropped_message_count == 2
    await refused(
        stub.Encode(encode(*turns, max_tokens=200, forbid_truncation=True)),
        "CONTEXT_LENGTH_EXCEEDED",
    )


async def test_bad_messages(stub) -> None:
    assert await refused(stub.Encode(encode()), "BAD_MESSAGES") == {"field": "messages"}
    metadata = await refused(stub.Encode(encode((USER, "a"), (0, "b"))), "BAD_MESSAGES")
    assert metadata == {"field": "messages[1].role"}
    assert await refused(stub.Encode(encode((9, "b"))), "BAD_MESSAGES")
    assert await refused(stub.Encode(encode(*[(USER, "b")] * 4097)), "BAD_MESSAGES")
    long = "ä" * (CONTENT_BYTE_COUNT_MAX // 2) + "x"
    metadata = await refused(stub.Encode(encode((USER, long))), "BAD_MESSAGES")
    assert metadata == {"field": "messages[0].content"}
    message = content_pb2.Message(role=USER, content="x", name="n" * 65)
    metadata = await refused(
        stub.Encode(pb.EncodeRequest(model="tiny", messages=[message])), "BAD_MESSAGES"
    )
    assert metadata == {"field": "messages[0].name"}
    message = content_pb2.Message(role=USER, content="x", parts=[content_pb2.Part(text="x")])
    metadata = await refused(
        stub.CountTokens(pb.CountTokensRequest(model="tiny", messages=[message])), "BAD_MESSAGES"
    )
    assert metadata == {"field": "messages[0].parts[0]"}
    request = pb.CountTokensRequest(model="tiny", texts=["x"] * 1025)
    assert await refused(stub.CountTokens(request), "BAD_MESSAGES") == {"field": "texts"}


async def test_template_failed(tmp_path, tokenizer_object: Tokenizer) -> None:
    from tokenizer_svc.model_folder import read_folder

    folder = models.write_model(tmp_path / "m", tokenizer_object, models.SPLIT_OUT)
    service = TokenizerService({"tiny": ChatTokenizer(read_folder(folder), 0)})
    add = tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server
    async with loopback([(add, service)]) as channel:
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="Roles must alternate") as caught:
            await stub.Encode(encode((ASSISTANT, "x")))
        assert MeshError.from_rpc(caught.value).reason == "TEMPLATE_FAILED"
    service.close()


async def test_unknown_model(stub) -> None:
    for call in (
        stub.Encode(encode((USER, "x"), model="other")),
        stub.Decode(pb.DecodeRequest(model="other")),
        stub.CountTokens(pb.CountTokensRequest(model="other")),
    ):
        assert await refused(call, "MODEL_NOT_FOUND", "NOT_FOUND") == {"model": "other"}


async def test_decode(stub, chat: ChatTokenizer) -> None:
    answer = await stub.Encode(encode((USER, "Grüße 🙂")))
    request = pb.DecodeRequest(model="tiny", token_ids=answer.token_ids, skip_special_tokens=True)
    assert (await stub.Decode(request)).text == "user\nGrüße 🙂\nassistant\n"
    request.token_ids.append(chat.vocabulary_size)
    metadata = await refused(stub.Decode(request), "BAD_TOKEN")
    assert metadata == {"token_id": str(chat.vocabulary_size)}
    too_many = pb.DecodeRequest(model="tiny", token_ids=[5] * (DECODE_TOKEN_COUNT_MAX + 1))
    await refused(stub.Decode(too_many), "BAD_TOKEN")


async def test_count_tokens_agrees_with_encode(stub) -> None:
    messages = [
        content_pb2.Message(role=USER, content="hello there"),
        content_pb2.Message(role=ASSISTANT),
    ]
    request = pb.CountTokensRequest(model="tiny", texts=["", "hello there"], messages=messages)
    answer = await stub.CountTokens(request)
    encoded = await stub.Encode(pb.EncodeRequest(model="tiny", messages=messages))
    assert answer.messages_token_count == len(encoded.token_ids)
    assert answer.text_token_counts[0] == 0 < answer.text_token_counts[1]
    assert (await stub.CountTokens(pb.CountTokensRequest(model="tiny"))).messages_token_count == 0


async def test_list_tokenizers(stub, chat: ChatTokenizer) -> None:
    listed = (await stub.ListTokenizers(pb.ListTokenizersRequest())).tokenizers
    assert [(t.model, t.context_token_count_max) for t in listed] == [("tiny", models.CONTEXT)]
    assert listed[0].tokenizer_digest == chat.digest
    assert listed[0].vocabulary_size == chat.vocabulary_size


async def test_a_mebibyte_does_not_hold_up_short_calls(stub) -> None:
    big = asyncio.ensure_future(
        stub.CountTokens(pb.CountTokensRequest(model="tiny", texts=["hello " * 170_000]))
    )
    for _ in range(5):  # answered by the loop while threads encode
        await stub.Encode(encode((USER, "hi")))
    assert (await big).text_token_counts[0] > 100_000


async def test_cancelled_calls_give_their_worker_back(stub) -> None:
    request = pb.CountTokensRequest(model="tiny", texts=["hello there " * 2000])
    calls = [stub.CountTokens(request) for _ in range(12)]
    for call in calls[::2]:
        call.cancel()
    assert all([(await call).text_token_counts for call in calls[1::2]])
    assert (await stub.CountTokens(request)).text_token_counts
