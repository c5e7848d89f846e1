"""The veto: over the prompt, and over an answer while it streams."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from gateway.turn.domain import Caller, Message
from gateway.upstreams.failures import translated
from gateway.upstreams.reply_screen import MESSAGE_DEFAULT, ReplyScreen, category_of


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

        Raises:
            MeshError: CONTENT_FILTER; SERVICE_UNAVAILABLE, TIMEOUT (no decision: refused).
        """
        messages = context.screened
        request = pb.ScreenPromptRequest(
            subject=_subject(caller),
            messages=[
                content_pb2.Message(role=ROLES[each.role], content=each.content, name=each.name)
                for each in messages
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
            masked = _masked(messages, verdict.masks)
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


def _masked(messages: Sequence[Message], masks: Sequence[pb.Mask]) -> list[Message]:
    """The messages with their masks, which come in the order of the text."""
    contents = [bytearray(each.content.encode()) for each in messages]
    for mask in reversed(masks):
        content = contents[mask.message_index]
        content[mask.start_offset : mask.end_offset] = mask.replacement.encode()
    return [
        replace(message, content=content.decode())
        for message, content in zip(messages, contents, strict=True)
    ]


def _subject(caller: Caller) -> pb.Subject:
    return pb.Subject(
        turn_id=caller.turn_id,
        account_id=caller.account_id,
        tier=caller.tier,
        account_tier=TIERS[caller.tier],
        jurisdiction=caller.jurisdiction,
    )
