"""The alphabet: messages to a prompt that fits the model."""

from collections.abc import Sequence

import grpc

from chatmesh.tokenizer.v1 import tokenizer_pb2 as pb
from chatmesh.tokenizer.v1 import tokenizer_pb2_grpc
from gateway import errors
from gateway.turn.domain import Message, ModelInfo, Prompt, ToolUse
from gateway.upstreams.contents import message_of, tool_use_of
from gateway.upstreams.failures import translated
from mesh.chassis.errors import MeshError

# When the client left the length open, at most this part of the context is kept for the answer.
ANSWER_ROOM_DIVISOR = 4
# Texts that one CountTokens takes.
TEXT_COUNT_MAX = 1024


class Tokenizer:
    """Encodes and counts."""

    def __init__(self, channel: grpc.aio.Channel, answer_room_token_count: int) -> None:
        self._stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        self._answer_room_token_count = answer_room_token_count

    async def encode(
        self,
        model: ModelInfo,
        messages: Sequence[Message],
        max_tokens: int,
        limit: int,
        tool_use: ToolUse | None = None,
    ) -> Prompt:
        """The prompt of a conversation, its oldest turns dropped whole where they must.

        Args:
            model: the model.
            messages: oldest first.
            max_tokens: tokens of an answer; 0: what the context leaves.
            limit: most tokens of an answer when max_tokens is 0.
            tool_use: what the model may call.

        Raises:
            MeshError: CONTEXT_LENGTH_EXCEEDED with "limit" and "count", INVALID_PARAMETER.
        """
        request = pb.EncodeRequest(
            model=model.id,
            messages=map(message_of, messages),
            max_tokens=max_tokens or self._room(model),
            tool_use=tool_use_of(tool_use) if tool_use else None,
        )
        try:
            response = await self._encode(request)
        except MeshError as error:
            if max_tokens or error.reason != errors.CONTEXT_LENGTH_EXCEEDED:
                raise
            request.max_tokens = 0  # a short answer is better than none
            response = await self._encode(request)
        return Prompt(
            token_ids=response.token_ids,
            max_tokens=max_tokens or min(response.answer_token_count_max, limit),
            dropped_message_count=response.dropped_message_count,
            message_token_counts=_counts(len(messages), response),
            call_syntax=response.call_syntax if response.HasField("call_syntax") else None,
        )

    async def count(self, model: ModelInfo, texts: Sequence[str]) -> list[int]:
        """Tokens of each text by itself.

        Raises:
            MeshError: MODEL_NOT_FOUND, INVALID_PARAMETER, SERVICE_UNAVAILABLE, TIMEOUT.
        """
        counts: list[int] = []
        for start in range(0, len(texts), TEXT_COUNT_MAX):
            request = pb.CountTokensRequest(
                model=model.id, texts=texts[start : start + TEXT_COUNT_MAX]
            )
            with translated("tokenizer"):
                counts += (await self._stub.CountTokens(request)).text_token_counts
        return counts

    async def _encode(self, request: pb.EncodeRequest) -> pb.EncodeResponse:
        with translated("tokenizer"):
            return await self._stub.Encode(request)

    def _room(self, model: ModelInfo) -> int:
        quarter = model.context_token_count_max // ANSWER_ROOM_DIVISOR
        return min(self._answer_room_token_count, quarter)


def _counts(message_count: int, response: pb.EncodeResponse) -> list[int]:
    """Of the messages that were kept; one that tells none gives 0."""
    kept = message_count - response.dropped_message_count
    counts = list(response.message_token_counts)
    return counts if len(counts) == kept else [0] * kept
