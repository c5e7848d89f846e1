"""TokenizerService: the contract over `prompt.ChatTokenizer`."""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import grpc
from prometheus_client import Counter, Histogram

from chatmesh.tokenizer.v1 import tokenizer_pb2 as pb
from chatmesh.tokenizer.v1 import tokenizer_pb2_grpc
from mesh.chassis.errors import MeshError
from tokenizer_svc.chat_template import TemplateError
from tokenizer_svc.messages import (
    BadMessagesError,
    character_count,
    check_texts,
    checked_messages,
    checked_tools,
    length_of,
)
from tokenizer_svc.prompt import BadTokenError, ChatTokenizer, ContextLengthError

# 4 kB of text take 2.5 ms to encode: longer input would hold up the other calls of this process.
INLINE_CHARACTER_COUNT_MAX = 4096
INLINE_TOKEN_COUNT_MAX = 4096
DECODE_TOKEN_COUNT_MAX = 131_072
# The library releases the GIL while it encodes.
WORKER_COUNT = max(2, os.cpu_count() or 1)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
T = TypeVar("T")

_prompt_tokens = Histogram(
    "chatmesh_tokenizer_prompt_tokens",
    "Tokens of the prompts that were made",
    buckets=[4**power for power in range(2, 10)],
)
_dropped_messages = Counter(
    "chatmesh_tokenizer_dropped_messages", "Messages left out because they did not fit"
)


class TokenizerService(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """Serves the tokenizers of some models.

    Args:
        tokenizers: by model id; at most 16.
    """

    def __init__(self, tokenizers: Mapping[str, ChatTokenizer]) -> None:
        self._tokenizers = dict(tokenizers)
        self._pool = ThreadPoolExecutor(WORKER_COUNT, thread_name_prefix="encode")
        # Waiting calls wait here, where their deadline ends them, not in the pool's queue.
        self._workers = asyncio.Semaphore(WORKER_COUNT)

    async def Encode(self, request: pb.EncodeRequest, context: Context) -> pb.EncodeResponse:  # noqa: N802
        """See the contract."""
        with _as_mesh_errors():
            tokenizer = self._tokenizer(request.model)
            if not request.messages:
                raise BadMessagesError("messages", "At least one message is needed.")
            messages = checked_messages(request.messages)
            tools = checked_tools(request.tool_use.tools)
            if tools and tokenizer.tools.syntax is None:
                raise TemplateError(
                    "How this model writes tool calls is not known; leave tools out."
                )
            prompt = await self._run(
                sum(map(length_of, messages)) + request.tool_use.ByteSize(),
                INLINE_CHARACTER_COUNT_MAX,
                lambda: tokenizer.fit(
                    messages, request.max_tokens, request.forbid_truncation, tools
                ),
            )
        _prompt_tokens.observe(len(prompt.token_ids))
        _dropped_messages.inc(prompt.dropped_message_count)
        return pb.EncodeResponse(
            token_ids=prompt.token_ids,
            dropped_message_count=prompt.dropped_message_count,
            answer_token_count_max=tokenizer.context_token_count_max - len(prompt.token_ids),
            context_token_count_max=tokenizer.context_token_count_max,
            tokenizer_digest=tokenizer.digest,
            message_token_counts=prompt.message_token_counts,
            call_syntax=tokenizer.tools.syntax if tools else None,
        )

    async def Decode(self, request: pb.DecodeRequest, context: Context) -> pb.DecodeResponse:  # noqa: N802
        """See the contract."""
        with _as_mesh_errors():
            tokenizer = self._tokenizer(request.model)
            token_ids = list(request.token_ids)
            if len(token_ids) > DECODE_TOKEN_COUNT_MAX:
                first_too_many = token_ids[DECODE_TOKEN_COUNT_MAX]
                raise BadTokenError(
                    first_too_many, f"At most {DECODE_TOKEN_COUNT_MAX} tokens are decoded at once."
                )
            text = await self._run(
                len(token_ids),
                INLINE_TOKEN_COUNT_MAX,
                lambda: tokenizer.decode(token_ids, request.skip_special_tokens),
            )
        return pb.DecodeResponse(text=text)

    async def CountTokens(  # noqa: N802
        self, request: pb.CountTokensRequest, context: Context
    ) -> pb.CountTokensResponse:
        """See the contract."""
        with _as_mesh_errors():
            tokenizer = self._tokenizer(request.model)
            texts = list(request.texts)
            check_texts(texts)
            messages = checked_messages(request.messages)

            def count() -> pb.CountTokensResponse:
                return pb.CountTokensResponse(
                    text_token_counts=tokenizer.count(texts),
                    messages_token_count=len(tokenizer.prompt(messages).token_ids)
                    if messages
                    else 0,
                )

            size = character_count(texts) + sum(map(length_of, messages))
            return await self._run(size, INLINE_CHARACTER_COUNT_MAX, count)

    async def ListTokenizers(  # noqa: N802
        self, request: pb.ListTokenizersRequest, context: Context
    ) -> pb.ListTokenizersResponse:
        """See the contract."""
        return pb.ListTokenizersResponse(
            tokenizers=[
                pb.Tokenizer(
                    model=model,
                    tokenizer_digest=tokenizer.digest,
                    vocabulary_size=tokenizer.vocabulary_size,
                    context_token_count_max=tokenizer.context_token_count_max,
                )
                for model, tokenizer in sorted(self._tokenizers.items())
            ]
        )

    def close(self) -> None:
        """Ends the worker threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _tokenizer(self, model: str) -> ChatTokenizer:
        tokenizer = self._tokenizers.get(model)
        if tokenizer is None:
            raise MeshError(
                grpc.StatusCode.NOT_FOUND,
                "MODEL_NOT_FOUND",
                f"There is no tokenizer for the model {model[:200]!r}; ListTokenizers tells which.",
                metadata={"model": model[:200]},
            )
        return tokenizer

    async def _run(self, size: int, inline_size_max: int, work: Callable[[], T]) -> T:
        """Runs `work` here when it is short, else on a worker thread."""
        if size <= inline_size_max:
            return work()
        await self._workers.acquire()
        loop = asyncio.get_running_loop()
        running = self._pool.submit(work)
        # Not `async with`: a call that is cancelled leaves, its thread works on.
        running.add_done_callback(lambda _: loop.call_soon_threadsafe(self._workers.release))
        return await asyncio.wrap_future(running)


@contextmanager
def _as_mesh_errors() -> Iterator[None]:
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    try:
        yield
    except BadMessagesError as error:
        raise MeshError(
            invalid, "BAD_MESSAGES", str(error), metadata={"field": error.field}
        ) from error
    except TemplateError as error:
        raise MeshError(invalid, "TEMPLATE_FAILED", str(error)) from error
    except BadTokenError as error:
        raise MeshError(
            invalid, "BAD_TOKEN", str(error), metadata={"token_id": str(error.token_id)}
        ) from error
    except ContextLengthError as error:
        raise MeshError(
            invalid,
            "CONTEXT_LENGTH_EXCEEDED",
            f"The context of this model is {error.limit} tokens, but {error.count} are needed "
            f"({error.prompt_count} for the messages, {error.answer_count} for the answer): "
            "shorten the messages or ask for fewer tokens.",
            metadata={
                "limit": str(error.limit),
                "count": str(error.count),
                "prompt_count": str(error.prompt_count),
            },
        ) from error
