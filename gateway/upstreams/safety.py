"""The veto: over the prompt, and over an answer while it streams."""

from collections.abc import Sequence

import grpc

from chatmesh.safety.v1 import safety_pb2 as pb
from chatmesh.safety.v1 import safety_pb2_grpc
from gateway import errors
from gateway.domain import Caller, Message
from gateway.errors import public
from gateway.settings import TurnLimits
from gateway.upstreams.failures import translated
from gateway.upstreams.reply_screen import ReplyScreen

ROLES = {
    "system": pb.ROLE_SYSTEM,
    "user": pb.ROLE_USER,
    "assistant": pb.ROLE_ASSISTANT,
    "tool": pb.ROLE_TOOL,
}
# A prompt is encoded while it is screened, so that it cannot be masked: refused instead.
REFUSING = {pb.ACTION_BLOCK, pb.ACTION_REDACT}
MESSAGE_DEFAULT = "The safety policy refuses this request; change it and try again."


class Safety:
    """Screens."""

    def __init__(self, channel: grpc.aio.Channel, limits: TurnLimits) -> None:
        self._limits = limits
        self._stub = safety_pb2_grpc.SafetyServiceStub(channel)

    async def screen_prompt(self, caller: Caller, messages: Sequence[Message]) -> str:
        """Returns when the conversation may be answered: "" by the model, else with that text.

        Raises:
            MeshError: CONTENT_FILTER; SERVICE_UNAVAILABLE, TIMEOUT (no decision: refused).
        """
        request = pb.ScreenPromptRequest(
            subject=_subject(caller),
            messages=[pb.Message(role=ROLES[each.role], content=each.content) for each in messages],
        )
        with translated("safety"):
            verdict = (await self._stub.ScreenPrompt(request)).verdict
        if verdict.action == pb.ACTION_SAFE_COMPLETE:
            return verdict.message or MESSAGE_DEFAULT
        if verdict.action in REFUSING:
            category = pb.Category.Name(verdict.category).removeprefix("CATEGORY_").lower()
            message = verdict.message or MESSAGE_DEFAULT
            raise public(errors.CONTENT_FILTER, message, param="messages", category=category)
        return ""

    def screen_reply(self, caller: Caller, choice_index: int) -> ReplyScreen:
        """Opens the screening of one answer; the caller must `cancel` it in the end."""
        start = pb.ReplyStart(subject=_subject(caller), choice_index=choice_index)
        # Written to, not iterated: no request iterator.
        return ReplyScreen(lambda: self._stub.ScreenReply(None), start, self._limits)


def _subject(caller: Caller) -> pb.Subject:
    return pb.Subject(turn_id=caller.turn_id, account_id=caller.account_id, tier=caller.tier)
