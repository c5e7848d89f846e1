"""One turn's context: its parts gathered, counted where a budget asks for it, and encoded."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from hashlib import blake2b

import structlog

from gateway import errors
from gateway.context.parts import (
    HISTORY,
    MESSAGES,
    OPERATOR,
    Context,
    Counts,
    Part,
    assemble,
    uncounted,
)
from gateway.context.room import bounded
from gateway.context.source import OperatorPromptsFile
from gateway.turn.domain import Caller, LeftOut, Message, ModelInfo, Prompt, ToolUse
from gateway.upstreams.conversation import History
from gateway.upstreams.tokenizer import Tokenizer
from mesh.chassis.errors import MeshError

COUNT_MAX = 1024

log = structlog.get_logger()


def utc_today() -> date:
    """The date that prompts show."""
    return datetime.now(UTC).date()


class ContextBuilder:
    """Makes contexts; in the common case one Encode is all that it asks of the tokenizer."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        operator: OperatorPromptsFile,
        today: Callable[[], date] = utc_today,
    ) -> None:
        self._tokenizer, self._operator, self._today = tokenizer, operator, today
        # By model and text; the operator's texts are few, so that each is counted once.
        self._counted: OrderedDict[bytes, int] = OrderedDict()

    async def build(
        self,
        model: ModelInfo,
        caller: Caller,
        history: History,
        messages: Sequence[Message],
        tool_use: ToolUse | None = None,
    ) -> Context:
        """The context of a turn, without what is far too much for the model.

        Raises:
            MeshError: CONTEXT_LENGTH_EXCEEDED; SERVICE_UNAVAILABLE, TIMEOUT (nobody counts).
        """
        parts = [
            *self._operator_part(model, caller),
            Part(HISTORY, history.messages, history.token_counts, _omitted(history)),
            Part(MESSAGES, messages),
        ]
        counts = await self._counts(model, uncounted(model, parts))
        try:
            context = replace(assemble(model, parts, counts), tool_use=tool_use)
        except MeshError as error:  # a part that may not be shortened: for the operator to mend
            log.error("prompt_part_refused", model=model.id, **error.metadata)
            raise
        return bounded(context)

    async def encode(self, context: Context, max_tokens: int, limit: int) -> Prompt:
        """The prompt of a context, as `Tokenizer.encode`; its failure tells the operator's share.

        Raises:
            MeshError: CONTEXT_LENGTH_EXCEEDED with "limit", "count" and, where the operator says
                something, "operator_count"; INVALID_PARAMETER.
        """
        try:
            return await self._tokenizer.encode(
                context.model, context.messages, max_tokens, limit, context.tool_use
            )
        except MeshError as error:
            if error.reason != errors.CONTEXT_LENGTH_EXCEEDED or not context.of(OPERATOR):
                raise
            raise await self._with_share(context, error) from error

    def _operator_part(self, model: ModelInfo, caller: Caller) -> list[Part]:
        prompts = self._operator.current
        text = prompts.text(model.id, caller.account_id, caller.tier, self._today())
        return [Part(OPERATOR, [Message("system", text)])] if text else []

    async def _with_share(self, context: Context, error: MeshError) -> MeshError:
        texts = [message.content for message in context.of(OPERATOR)]
        try:
            counts = await self._counts(context.model, texts)
        except MeshError:
            return error
        share = str(sum(counts.values()))
        message = f"{error.message} Of these the operator's instructions take {share}."
        metadata = error.metadata | {"operator_count": share}
        return MeshError(error.code, error.reason, message, metadata=metadata)

    async def _counts(self, model: ModelInfo, texts: Sequence[str]) -> Counts:
        """Tokens of texts; those that were asked for before are remembered."""
        keys = {text: _key(model, text) for text in texts}
        known = {text: self._counted[key] for text, key in keys.items() if key in self._counted}
        unknown = [text for text in keys if text not in known]
        if unknown:
            found = await self._tokenizer.count(model, unknown)
            known.update(zip(unknown, found, strict=True))
        for text, key in keys.items():
            self._counted[key] = known[text]
            self._counted.move_to_end(key)
        while len(self._counted) > COUNT_MAX:
            self._counted.popitem(last=False)
        return known


def _key(model: ModelInfo, text: str) -> bytes:
    # The fingerprint names the tokenizer.
    return blake2b(f"{model.fingerprint} {text}".encode(), digest_size=16).digest()


def _omitted(history: History) -> LeftOut | None:
    """What the conversation service did not even send."""
    if not history.omitted_message_count:
        return None
    tokens = history.omitted_token_count or None
    return LeftOut(HISTORY.name, history.omitted_message_count, tokens)
