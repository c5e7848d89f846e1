"""SafetyService over gRPC: proto <-> domain, and the audit row before every answer."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, TypeAlias

import grpc
from prometheus_client import Counter, Histogram
from ulid import ULID

from chatmesh.safety.v1 import safety_pb2 as pb
from chatmesh.safety.v1.safety_pb2_grpc import SafetyServiceServicer
from mesh.chassis.errors import MeshError
from safety_svc.audit import Audit, Grounds, decision
from safety_svc.detectors.base import Audience
from safety_svc.policy import TIERS, Action, Direction
from safety_svc.policy_source import PolicySource, Published
from safety_svc.prompt import PromptFinding, PromptScreener
from safety_svc.screen import Halted, Passed, Released, ReplyScreener, pieces

MESSAGE_COUNT_MAX = 4_096
CONTENT_BYTE_COUNT_MAX = 1 << 20
REPLY_BYTE_COUNT_MAX = 4 << 20
CHOICE_INDEX_MAX = 3
DELTA_TOKEN_COUNT_MAX = 1 << 20

# The stubs want type arguments; the class takes none at run time.
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_ID = re.compile(r"[!-~]{1,128}")
_COUNTRY = re.compile(r"(?:[A-Z]{2})?")
_AUDIENCES = {
    pb.ROLE_UNSPECIFIED: Audience.USER,
    pb.ROLE_SYSTEM: Audience.SYSTEM,
    pb.ROLE_USER: Audience.USER,
    pb.ROLE_ASSISTANT: Audience.ASSISTANT,
    pb.ROLE_TOOL: Audience.TOOL,
}

_decisions = Counter(
    "chatmesh_safety_decisions_total", "Decisions.", ["direction", "action", "category"]
)
_prompt_seconds = Histogram(
    "chatmesh_safety_screen_prompt_seconds",
    "Time to judge a prompt without its audit row, in seconds.",
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2),
)


class SafetyService(SafetyServiceServicer):
    """Serves the contract.

    Args:
        policies: the policy in force.
        audit: where decisions are recorded.
    """

    def __init__(self, policies: PolicySource, audit: Audit) -> None:
        self._policies = policies
        self._audit = audit

    async def ScreenPrompt(  # noqa: N802 - the contract's name
        self, request: pb.ScreenPromptRequest, context: Context
    ) -> pb.ScreenPromptResponse:
        """See the contract."""
        published = self._policies.current
        _check_subject(request.subject)
        _check_messages(request)
        regime = published.policy.regime(request.subject.tier, request.subject.jurisdiction)
        screener = PromptScreener(regime, published.detectors)
        with _prompt_seconds.time():
            for index, message in enumerate(request.messages):
                screener.message(index, _AUDIENCES.get(message.role, Audience.USER))
                for piece in pieces(message.content):
                    screener.piece(piece)
                    await asyncio.sleep(0)  # a long prompt does not hold up the streams
            judgement, findings = screener.end()
        plain = [finding.finding for finding in findings]
        grounds = Grounds(Direction.PROMPT, judgement, plain, screener.byte_count)
        audit_id = await self._record(request.subject, grounds, published)
        verdict = _verdict(audit_id, grounds, findings, published)
        return pb.ScreenPromptResponse(verdict=verdict)

    async def ScreenReply(  # noqa: N802 - the contract's name
        self,
        request_iterator: AsyncIterator[pb.ScreenReplyRequest],
        context: Context,
    ) -> AsyncIterator[pb.ScreenReplyResponse]:
        """See the contract."""
        published = self._policies.current
        start = await _start(request_iterator)
        regime = published.policy.regime(start.subject.tier, start.subject.jurisdiction)
        screener = ReplyScreener(regime, published.detectors.scanners(Audience.REPLY))
        if start.released_text:
            screener.resume(start.released_text)
        async for request in request_iterator:
            outcome = _step(screener, request)
            if outcome is None:
                continue
            if isinstance(outcome, Released):
                release = pb.Release(release_up_to_offset=outcome.offset)
                yield pb.ScreenReplyResponse(release=release)
                continue
            yield await self._closed(start, screener, outcome, published)
            return
        raise _bad("The stream closed before `end`: send `end` after the last delta.", "end")

    async def GetPolicy(  # noqa: N802 - the contract's name
        self, request: pb.GetPolicyRequest, context: Context
    ) -> pb.GetPolicyResponse:
        """See the contract."""
        policy = self._policies.current.policy
        return pb.GetPolicyResponse(
            policy_version=policy.version,
            policy_digest=policy.digest,
            window_token_count={tier: policy.tiers[tier].window_token_count for tier in TIERS},
        )

    async def _closed(
        self,
        start: pb.ReplyStart,
        screener: ReplyScreener,
        outcome: Halted | Passed,
        published: Published,
    ) -> pb.ScreenReplyResponse:
        """Records the outcome of an answer and makes its last message."""
        offset = outcome.offset if isinstance(outcome, Halted) else None
        grounds = Grounds(
            Direction.REPLY,
            outcome.judgement,
            screener.findings,
            screener.byte_count,
            start.choice_index,
            offset,
        )
        audit_id = await self._record(start.subject, grounds, published)
        findings = [PromptFinding(0, finding) for finding in grounds.findings]
        verdict = _verdict(audit_id, grounds, findings, published)
        if offset is None:
            return pb.ScreenReplyResponse(cleared=pb.Cleared(verdict=verdict))
        return pb.ScreenReplyResponse(block=pb.Block(verdict=verdict, offset=offset))

    async def _record(self, subject: pb.Subject, grounds: Grounds, published: Published) -> str:
        """Writes the audit row and returns its id; raises MeshError when it is not accepted."""
        regime = published.policy.regime(subject.tier, subject.jurisdiction)
        row = decision(
            str(ULID()),
            datetime.now(UTC),
            turn_id=subject.turn_id,
            account_id=subject.account_id,
            tier=subject.tier,
            jurisdiction=subject.jurisdiction,
            grounds=grounds,
            policy=published.policy,
        )
        await self._audit.record(row, regime.unrecorded)
        _decisions.labels(row.direction, row.action, row.category).inc()
        return row.audit_id


async def _start(requests: AsyncIterator[pb.ScreenReplyRequest]) -> pb.ReplyStart:
    """The first message of a stream; raises MeshError when it is another one."""
    first = await anext(requests, None)
    if first is None or first.WhichOneof("event") != "start":
        raise _bad("The first message must be `start`.", "start")
    start = first.start
    _check_subject(start.subject)
    if start.choice_index > CHOICE_INDEX_MAX:
        raise _bad(f"choice_index is {start.choice_index}: use 0 to 3.", "choice_index")
    if len(start.released_text) > REPLY_BYTE_COUNT_MAX:
        raise _bad(f"released_text is over {REPLY_BYTE_COUNT_MAX} bytes.", "released_text")
    return start


def _step(
    screener: ReplyScreener, request: pb.ScreenReplyRequest
) -> Released | Halted | Passed | None:
    """Takes one message after `start`."""
    event = request.WhichOneof("event")
    if event == "end":
        return screener.end()
    if event != "delta":
        raise _bad("After `start` come deltas and one `end`; open a new stream.", "event")
    delta = request.delta
    if not delta.text:
        raise _bad("A delta needs at least 1 byte of text.", "text")
    if not 1 <= delta.token_count <= DELTA_TOKEN_COUNT_MAX:
        raise _bad("A delta needs a token_count of at least 1.", "token_count")
    outcome = screener.delta(delta.text, delta.token_count)
    if screener.byte_count > REPLY_BYTE_COUNT_MAX:
        raise _bad(f"The answer is over {REPLY_BYTE_COUNT_MAX} bytes: end it earlier.", "text")
    return outcome


def _verdict(
    audit_id: str, grounds: Grounds, findings: list[PromptFinding], published: Published
) -> pb.Verdict:
    """The decision as the caller sees it."""
    action, category = grounds.judgement.action, grounds.judgement.category
    refused = category is not None and action > Action.REDACT
    return pb.Verdict(
        action=pb.Action.Value(f"ACTION_{action.name}"),
        category=_category(category) if category else pb.CATEGORY_UNSPECIFIED,
        findings=[
            pb.Finding(
                category=_category(finding.category),
                score=finding.score,
                detector=finding.detector,
                start_offset=finding.start,
                end_offset=finding.end,
                message_index=index,
            )
            for index, finding in findings
        ],
        policy_version=published.policy.version,
        audit_id=audit_id,
        message=published.policy.message(category) if category and refused else "",
    )


def _category(category: str) -> pb.Category.ValueType:
    return pb.Category.Value(f"CATEGORY_{category.upper()}")


def _check_subject(subject: pb.Subject) -> None:
    """Raises MeshError when a subject is out of its range."""
    for name in ("turn_id", "account_id"):
        if not _ID.fullmatch(getattr(subject, name)):
            raise _bad(f"subject.{name} must be 1 to 128 visible ASCII characters.", name)
    if subject.tier not in TIERS:
        raise _bad(f"subject.tier must be one of {', '.join(TIERS)}.", "tier")
    if not _COUNTRY.fullmatch(subject.jurisdiction):
        raise _bad(
            "subject.jurisdiction must be a country code such as DE, or empty.", "jurisdiction"
        )


def _check_messages(request: pb.ScreenPromptRequest) -> None:
    """Raises MeshError when messages are out of their range."""
    if not 1 <= len(request.messages) <= MESSAGE_COUNT_MAX:
        raise _bad(f"messages must hold 1 to {MESSAGE_COUNT_MAX} entries.", "messages")
    for index, message in enumerate(request.messages):
        if len(message.content) * 4 > CONTENT_BYTE_COUNT_MAX < len(message.content.encode()):
            raise _bad(f"messages[{index}].content is over 1 MiB: shorten it.", "content")


def _bad(message: str, param: str) -> MeshError:
    return MeshError(
        grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST", message, metadata={"param": param}
    )
