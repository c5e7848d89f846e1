"""SafetyService over gRPC: every decision with its audit row before it is answered."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import grpc
import structlog
from prometheus_client import Counter, Histogram
from ulid import ULID

from chatmesh.safety.v1 import safety_pb2 as pb
from chatmesh.safety.v1.safety_pb2_grpc import SafetyServiceServicer
from mesh.chassis import deadlines
from mesh.chassis.errors import MeshError
from safety_svc import wire
from safety_svc.audit import Audit, Ended, Grounds, Judge, decision
from safety_svc.backends.base import Backend, BackendError, OverloadedError
from safety_svc.classifier.labels import NAME as CLASSIFIER
from safety_svc.conversation import Found
from safety_svc.detectors.base import PromptFinding, Turn
from safety_svc.masking import Mask, UnmaskableError, prompt_masks
from safety_svc.policy import (
    HALTING,
    TIERS,
    Action,
    Direction,
    Failure,
    Judgement,
    Quoting,
    Regime,
)
from safety_svc.policy_source import PolicySource, Published
from safety_svc.prompt import PromptScreener
from safety_svc.prompt_rules import PromptRules
from safety_svc.reply import ReplySession
from safety_svc.screen import Halted, Passed

# Streams whose callers have gone are recorded behind them.
LEFT_STREAM_COUNT_MAX = 4_096

# The stubs want type arguments; the class takes none at run time.
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_log = structlog.get_logger()
_decisions = Counter(
    "chatmesh_safety_decisions_total", "Decisions.", ["direction", "action", "category"]
)
_shadow = Counter(
    "chatmesh_safety_shadow_disagreements_total",
    "Decisions that the rules in the shadow would have made otherwise.",
    ["direction", "action", "shadow_action", "shadow_category"],
)
_unjudged = Counter(
    "chatmesh_safety_unjudged_total",
    "Texts that the classifier did not judge, by what the policy made of it.",
    ["direction", "consequence"],
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
        backend: the classifier behind the rules; None: they judge alone.
    """

    def __init__(
        self, policies: PolicySource, audit: Audit, backend: Backend | None = None
    ) -> None:
        self._policies, self._audit, self._backend = policies, audit, backend
        self._rules = PromptRules()
        self._leaving: set[asyncio.Task[None]] = set()

    async def finish(self) -> None:
        """Returns when every stream that was left has its row."""
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def ScreenPrompt(  # noqa: N802 - the contract's name
        self, request: pb.ScreenPromptRequest, context: Context
    ) -> pb.ScreenPromptResponse:
        """See the contract."""
        published = self._policies.current
        wire.check_subject(request.subject)
        wire.check_messages(request)
        regime = _regime(published, request.subject)
        screener = PromptScreener(regime, published.detectors, guarded=request.has_operator_prompt)
        with _prompt_seconds.time():
            turns = [
                Turn(wire.audience(one.role), one.content, one.name) for one in request.messages
            ]
            owner = request.subject.account_id
            judging = asyncio.create_task(self._judged(turns, regime, owner))
            try:
                await self._rules.read(screener, turns, owner, published)
                read, judge = await judging
            finally:
                judging.cancel()
            unread = {one.message_index for one in read.unjudged}
            judged = judge.name == CLASSIFIER and not judge.failed
            screener.add(read.findings, judged=judged, unread=unread)
            judgement, findings = screener.end()
        if unread:
            judgement = _unread(judgement, regime)
        judgement, masks = _masked(judgement, regime, screener)
        pairs = ((screener.direction(one), one.finding) for one in screener.found)
        grounds = Grounds(
            Direction.PROMPT,
            judgement,
            [finding.finding for finding in findings],
            screener.byte_count,
            shadow=regime.judge_shadow(pairs),
            judge=judge,
            mask_count=sum(map(len, masks.values())),
            quotation=_quotation(request, regime),
            unjudged=read.unjudged,
        )
        audit_id = await self._record(request.subject, grounds, published)
        policy = published.policy
        sent = [one for index, kept in masks.items() for one in wire.masks_of(kept, policy, index)]
        verdict = wire.verdict(audit_id, grounds, findings, sent, policy)
        return pb.ScreenPromptResponse(verdict=verdict)

    # Written to, not generated: looks of the classifier come back between the caller's messages.
    async def ScreenReply(  # type: ignore[override]  # noqa: N802 - the contract's name
        self, request_iterator: AsyncIterator[pb.ScreenReplyRequest], context: Context
    ) -> None:
        """See the contract."""
        published = self._policies.current
        start = wire.check_start(await anext(request_iterator, None))
        regime = _regime(published, start.subject)
        session = ReplySession(start, regime, published, self._backend, context.write)
        try:
            outcome = await session.run(request_iterator)
        except BaseException as error:
            ended = Ended.LEFT if _is_gone(error) else Ended.FAILED
            if isinstance(error, MeshError) and error.reason == "BACKEND_UNAVAILABLE":
                _unjudged.labels(Direction.REPLY, "refused").inc()
            self._leave(start, session, regime, published, ended)
            raise
        if session.judge.failed:
            _unjudged.labels(Direction.REPLY, "went_on").inc()
        await context.write(await self._closed(start, session, outcome, published))

    async def GetPolicy(  # noqa: N802 - the contract's name
        self, request: pb.GetPolicyRequest, context: Context
    ) -> pb.GetPolicyResponse:
        """See the contract."""
        policy = self._policies.current.policy
        return pb.GetPolicyResponse(
            policy_version=policy.version,
            policy_digest=policy.digest,
            window_token_count={tier: policy.regime(tier).window_token_count for tier in TIERS},
        )

    async def _judged(
        self, turns: Sequence[Turn], regime: Regime, owner: str
    ) -> tuple[Found, Judge]:
        """What the classifier finds; raises MeshError BACKEND_UNAVAILABLE, OVERLOADED."""
        if self._backend is None:
            return Found(), Judge()
        name, digest = self._backend.name, self._backend.digest
        try:
            return await _in_time(self._backend, turns, owner), Judge(name, digest)
        except BackendError as error:
            closed = regime.unjudged is Failure.CLOSED
            _unjudged.labels(Direction.PROMPT, "refused" if closed else "went_on").inc()
            if closed:
                overloaded = isinstance(error, OverloadedError)
                raise (wire.overloaded() if overloaded else wire.unjudged()) from error
            return Found(), Judge(name, digest, failed=True)

    async def _closed(
        self,
        start: pb.ReplyStart,
        session: ReplySession,
        outcome: Halted | Passed,
        published: Published,
    ) -> pb.ScreenReplyResponse:
        """Records the outcome of an answer and makes its last message."""
        grounds = _reply_grounds(start, session, outcome, published)
        audit_id = await self._record(start.subject, grounds, published)
        findings = [PromptFinding(0, finding) for finding in grounds.findings]
        masks = [] if isinstance(outcome, Halted) else outcome.masks
        sent = wire.masks_of(masks, published.policy, is_json=start.is_json)
        verdict = wire.verdict(audit_id, grounds, findings, sent, published.policy)
        if isinstance(outcome, Halted):
            return pb.ScreenReplyResponse(block=pb.Block(verdict=verdict, offset=outcome.offset))
        return pb.ScreenReplyResponse(cleared=pb.Cleared(verdict=verdict))

    def _leave(
        self,
        start: pb.ReplyStart,
        session: ReplySession,
        regime: Regime,
        published: Published,
        ended: Ended,
    ) -> None:
        """Records, behind the caller, what was found of an answer that did not come to its end."""
        screener = session.screener
        if not screener.byte_count:
            return  # nothing was judged
        if len(self._leaving) >= LEFT_STREAM_COUNT_MAX:
            _log.error("left_stream_unrecorded", turn_id=start.subject.turn_id)
            return
        outcome = Passed(regime.judge(Direction.REPLY, screener.findings))
        grounds = _reply_grounds(start, session, outcome, published, ended)
        task = asyncio.create_task(self._record_left(start.subject, grounds, published))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _record_left(
        self, subject: pb.Subject, grounds: Grounds, published: Published
    ) -> None:
        try:
            await self._record(subject, grounds, published)
        except MeshError as error:  # nobody waits for it: the audit has counted the refusal
            _log.error("left_stream_unrecorded", turn_id=subject.turn_id, reason=error.reason)

    async def _record(self, subject: pb.Subject, grounds: Grounds, published: Published) -> str:
        """Writes the audit row and returns its id; raises MeshError when it is not accepted."""
        regime = _regime(published, subject)
        row = decision(
            str(ULID()),
            datetime.now(UTC),
            turn_id=subject.turn_id,
            account_id=subject.account_id,
            tier=wire.tier_of(subject),
            jurisdiction=subject.jurisdiction,
            grounds=grounds,
            policy=published.policy,
        )
        await self._audit.record(row, regime.unrecorded)
        _decisions.labels(row.direction, row.action, row.category).inc()
        if row.shadow_action not in (None, row.action):
            labels = (row.direction, row.action, row.shadow_action, row.shadow_category)
            _shadow.labels(*labels).inc()
        return row.audit_id


async def _in_time(backend: Backend, turns: Sequence[Turn], owner: str) -> Found:
    """What `backend` finds, if that comes while there is time to pass it on.

    Its work has a limit of its own: what is late has waited for others.

    Raises:
        BackendError: OverloadedError when it comes too late.
        MeshError: DEADLINE_TOO_SHORT.
    """
    timeout_s = deadlines.timeout_for("the classifier", None, None)
    try:
        async with asyncio.timeout(timeout_s):
            return await backend.conversation(turns, owner)
    except TimeoutError:
        raise OverloadedError(f"no turn within {timeout_s} s") from None


def _regime(published: Published, subject: pb.Subject) -> Regime:
    return published.policy.regime(wire.tier_of(subject), subject.jurisdiction, subject.account_id)


def _masked(
    judgement: Judgement, regime: Regime, screener: PromptScreener
) -> tuple[Judgement, dict[int, list[Mask]]]:
    """The masks of a conversation that goes on; one that needs too many is blocked."""
    if judgement.action is not Action.REDACT:
        return judgement, {}
    try:
        return judgement, prompt_masks(regime, screener.directions, screener.found)
    except UnmaskableError:
        return Judgement(Action.BLOCK, judgement.category), {}


def _unread(judgement: Judgement, regime: Regime) -> Judgement:
    """The decision about a conversation that the classifier did not read whole."""
    closed = regime.unread is Failure.CLOSED
    _unjudged.labels(Direction.PROMPT, "refused" if closed else "went_on").inc()
    if not closed or judgement.action in HALTING:
        return judgement
    return Judgement(Action.BLOCK, None)


def _quotation(request: pb.ScreenPromptRequest, regime: Regime) -> str | None:
    if regime.quoting is Quoting.NONE:
        return None
    return "\n".join(
        f"{one.name}: {one.content}" if one.name else one.content for one in request.messages
    )


def _reply_grounds(
    start: pb.ReplyStart,
    session: ReplySession,
    outcome: Halted | Passed,
    published: Published,
    ended: Ended = Ended.COMPLETE,
) -> Grounds:
    halted = isinstance(outcome, Halted)
    findings = session.screener.findings
    regime = _regime(published, start.subject)
    return Grounds(
        Direction.REPLY,
        outcome.judgement,
        findings,
        session.screener.byte_count,
        start.choice_index,
        outcome.offset if isinstance(outcome, Halted) else None,
        ended=Ended.HALTED if halted else ended,
        shadow=regime.judge_shadow((Direction.REPLY, one) for one in findings),
        judge=session.judge,
        mask_count=session.mask_count,
        quotation=session.quotation,
    )


def _is_gone(error: BaseException) -> bool:
    """True when the caller left, rather than something failing."""
    return isinstance(error, asyncio.CancelledError | grpc.aio.UsageError)
