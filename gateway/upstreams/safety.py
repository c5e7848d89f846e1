"""The veto: over the prompt, and over an answer while it streams."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import grpc

from chatmesh.content.v1 import content_pb2
from chatmesh.safety.v1 import safety_pb2 as pb
from chatmesh.safety.v1 import safety_pb2_grpc
from gateway import errors
from gateway.content import ROLES, TIERS
from gateway.context.parts import Context
from gateway.errors import public
from gateway.settings import TurnLimits
from gateway.turn.answer import Answer
from gateway.turn.domain import Caller, Message, ToolUse
from gateway.upstreams.failures import translated
from gateway.upstreams.reply_screen import MESSAGE_DEFAULT, ReplyScreen, category_of

_NO_MESSAGE = -1


@dataclass(frozen=True, slots=True)
class Screened:
    """A conversation that may be answered."""

    # What is said instead of an answer by the model; empty: the model answers.
    safe_text: str = ""
    # Why, with `safe_text`.
    category: str = ""
    # The messages with what is redacted masked; empty: they stand as they are.
    masked: Sequence[Message] = ()
    # Version of the policy that judged.
    policy_version: str = ""


class Safety:
    """Screens."""

    def __init__(self, channel: grpc.aio.Channel, limits: TurnLimits) -> None:
        self._limits = limits
        self._stub = safety_pb2_grpc.SafetyServiceStub(channel)

    async def screen_prompt(self, caller: Caller, context: Context) -> Screened:
        """Returns when the conversation may be answered, and how.

        Tool calls are judged as what an assistant said, tools as what the caller's system says.

        Raises:
            MeshError: CONTENT_FILTER; SERVICE_UNAVAILABLE, TIMEOUT (no decision: refused).
        """
        messages = context.screened
        read = [text for index, each in enumerate(messages) for text in _texts(index, each)]
        if context.tool_use:
            read.append(_Text(_NO_MESSAGE, "system", _described(context.tool_use)))
        request = pb.ScreenPromptRequest(
            subject=_subject(caller),
            messages=[
                content_pb2.Message(role=ROLES[each.role], content=each.content, name=each.name)
                for each in read
            ],
            has_operator_prompt=context.has_operator_prompt,
        )
        with translated("safety"):
            verdict = (await self._stub.ScreenPrompt(request)).verdict
        category = category_of(verdict)
        if verdict.action == pb.ACTION_SAFE_COMPLETE:
            text = verdict.message or MESSAGE_DEFAULT
            return Screened(text, category, policy_version=verdict.policy_version)
        if verdict.action == pb.ACTION_REDACT and verdict.masks:
            masked = _masked(messages, read, verdict.masks)
            if masked is not None:
                return Screened(masked=masked, policy_version=verdict.policy_version)
        # What cannot be masked, for safety does not say where, is refused.
        if verdict.action in (pb.ACTION_BLOCK, pb.ACTION_REDACT):
            message = verdict.message or MESSAGE_DEFAULT
            raise public(errors.CONTENT_FILTER, message, param="messages", category=category)
        return Screened(policy_version=verdict.policy_version)

    def screen_reply(self, caller: Caller, answer: Answer, *, is_json: bool) -> ReplyScreen:
        """Opens the screening of one answer, behind what was released of it before.

        With `is_json` it is one JSON document, and is one still when it is masked.

        The caller must `cancel` it in the end.
        """
        start = pb.ReplyStart(
            subject=_subject(caller),
            choice_index=answer.choice_index,
            accepts_masks=True,
            is_json=is_json,
        )
        return ReplyScreen(
            # Written to, not iterated: no request iterator.
            lambda: self._stub.ScreenReply(None),
            start,
            self._limits,
            bytes(answer.text_bytes),
            answer.released_offset,
        )


class _Text(NamedTuple):
    """A text of a prompt as it is judged."""

    message_index: int
    role: str
    content: str
    name: str = ""
    # Of which call of the message these are the arguments; -1: of none.
    call_index: int = -1


def _texts(index: int, message: Message) -> Iterator[_Text]:
    yield _Text(index, message.role, message.content, message.name)
    for call_index, call in enumerate(message.calls):
        yield _Text(index, message.role, call.arguments, call_index=call_index)


def _described(tool_use: ToolUse) -> str:
    return "\n".join(
        f"{tool.name}: {tool.description}\n{tool.parameters}" for tool in tool_use.tools
    )


def _masked(
    messages: Sequence[Message], texts: Sequence[_Text], masks: Sequence[pb.Mask]
) -> list[Message] | None:
    """The messages with their masks, which come in the order of the text; None: what would be
    masked is no message, or would be no JSON then."""
    contents = [bytearray(each.content.encode()) for each in texts]
    for mask in reversed(masks):
        content = contents[mask.message_index]
        content[mask.start_offset : mask.end_offset] = mask.replacement.encode()
    found = list(messages)
    for text, content in zip(texts, contents, strict=True):
        words = content.decode()
        if words == text.content:
            continue
        if text.message_index == _NO_MESSAGE:
            return None
        message = found[text.message_index]
        if text.call_index < 0:
            found[text.message_index] = replace(message, content=words)
        elif not _is_object(words):
            return None
        else:
            calls = list(message.calls)
            calls[text.call_index] = replace(calls[text.call_index], arguments=words)
            found[text.message_index] = replace(message, calls=calls)
    return found


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _subject(caller: Caller) -> pb.Subject:
    return pb.Subject(
        turn_id=caller.turn_id,
        account_id=caller.account_id,
        tier=caller.tier,
        account_tier=TIERS[caller.tier],
        jurisdiction=caller.jurisdiction,
    )
