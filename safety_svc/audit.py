"""The audit: no decision leaves without its row.

Decisions that are made at the same time share one statement and so one commit (group commit):
while a statement is on its way, the next rows gather. The store waits for the disk
(`synchronous_commit` stays on), because a row that a crash can lose proves nothing.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

import grpc
import structlog
from prometheus_client import Counter, Histogram

from mesh.chassis.background import kept
from mesh.chassis.errors import MeshError
from mesh.chassis.postgres import StoreUnavailableError
from safety_svc.conversation import Unjudged
from safety_svc.detectors.base import Finding
from safety_svc.policy import Direction, Failure, Judgement, Policy
from safety_svc.screen import strongest

ROW_COUNT_MAX = 256  # rows of one statement
QUEUE_ROW_COUNT_MAX = 8_192  # beyond it the store cannot keep up
RETRY_AFTER_S = 1.0
# Of a text that the policy has quoted, its end: there stands what halted it.
QUOTATION_LENGTH_MAX = 16_384

_log = structlog.get_logger()
_rows = Counter("chatmesh_safety_audit_rows_total", "Audit rows by outcome.", ["outcome"])
_seconds = Histogram(
    "chatmesh_safety_audit_seconds",
    "Time from the decision to its accepted row, in seconds.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2),
)


class Ended(StrEnum):
    """How a judged text ended."""

    COMPLETE = "complete"
    HALTED = "halted"
    LEFT = "left"  # its caller went before the end
    FAILED = "failed"  # it could not be judged to the end


@dataclass(frozen=True, slots=True)
class Judge:
    """Which classifier took part; the defaults: none did.

    Attributes:
        name: of the back end.
        digest: of its weights.
        failed: it gave no answer, and the policy went on without.
    """

    name: str = ""
    digest: str = ""
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """One row of `safety.decisions`; the columns say what is what."""

    audit_id: str
    decided_at: datetime
    turn_id: str
    account_id: str
    tier: str
    jurisdiction: str
    direction: Direction
    choice_index: int
    action: str
    category: str
    halt_offset: int | None
    byte_count: int
    categories: tuple[str, ...]
    scores: tuple[float, ...]
    detectors: tuple[str, ...]
    policy_version: str
    policy_digest: str
    ended: str
    shadow_action: str | None
    shadow_category: str | None
    backend: str
    backend_digest: str
    backend_failed: bool
    mask_count: int
    quotation: str | None

    def columns(self) -> dict[str, object]:
        """The row as JSON values, by column."""
        return {**asdict(self), "decided_at": self.decided_at.isoformat()}


@dataclass(frozen=True, slots=True)
class Grounds:
    """What a decision rests on."""

    direction: Direction
    judgement: Judgement
    findings: Sequence[Finding]
    byte_count: int
    choice_index: int = 0
    halt_offset: int | None = None
    ended: Ended = Ended.COMPLETE
    shadow: Judgement | None = None
    judge: Judge = Judge()
    mask_count: int = 0
    quotation: str | None = None  # None: the policy has nothing quoted
    unjudged: Sequence[Unjudged] = ()


def decision(
    audit_id: str,
    decided_at: datetime,
    *,
    turn_id: str,
    account_id: str,
    tier: str,
    jurisdiction: str,
    grounds: Grounds,
    policy: Policy,
) -> Decision:
    """The row of a decision."""
    findings = strongest(grounds.findings)
    shadow, quotation = grounds.shadow, grounds.quotation
    if quotation is not None:  # PostgreSQL's text knows no NUL
        quotation = quotation[-QUOTATION_LENGTH_MAX:].replace("\0", "")
    return Decision(
        audit_id=audit_id,
        decided_at=decided_at,
        turn_id=turn_id,
        account_id=account_id,
        tier=tier,
        jurisdiction=jurisdiction,
        direction=grounds.direction,
        choice_index=grounds.choice_index,
        action=grounds.judgement.action.name.lower(),
        category=grounds.judgement.category or "",
        halt_offset=grounds.halt_offset,
        byte_count=grounds.byte_count,
        categories=tuple(finding.category for finding in findings),
        scores=tuple(finding.score for finding in findings),
        detectors=tuple(finding.detector for finding in findings),
        policy_version=policy.version,
        policy_digest=policy.digest,
        ended=grounds.ended,
        shadow_action=shadow.action.name.lower() if shadow else None,
        shadow_category=(shadow.category or "") if shadow else None,
        backend=grounds.judge.name,
        backend_digest=grounds.judge.digest,
        backend_failed=grounds.judge.failed,
        mask_count=grounds.mask_count,
        quotation=quotation,
    )


class AuditStore(Protocol):
    """Where rows go."""

    async def insert(self, rows: Sequence[Decision]) -> None:
        """Adds all rows, or raises StoreUnavailableError and adds none."""
        ...


class Audit:
    """Writes decisions in groups. Use as `async with`; it stops when the block is left.

    Args:
        store: where rows go.
        timeout_s: how long a decision waits for its row.
    """

    def __init__(self, store: AuditStore, timeout_s: float) -> None:
        self._store = store
        self._timeout_s = timeout_s
        self._queue: asyncio.Queue[tuple[Decision, asyncio.Future[None]]] = asyncio.Queue(
            QUEUE_ROW_COUNT_MAX
        )
        self._writer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Audit":
        self._writer = asyncio.create_task(kept("audit", self._write, ends_max=None))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._writer:
            self._writer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._writer

    async def record(self, row: Decision, unrecorded: Failure) -> None:
        """Returns when the row is on disk.

        Raises MeshError AUDIT_UNAVAILABLE when it is not, unless `unrecorded` is open: then the
        row goes to the log and the decision stands.
        """
        try:
            with _seconds.time():
                await self._accepted(row)
        except (StoreUnavailableError, asyncio.QueueFull, TimeoutError) as error:
            _rows.labels("refused").inc()
            if unrecorded is Failure.OPEN:
                columns = {**row.columns(), "quotation": None}  # no text in logs
                _log.error("decision_unrecorded", error=repr(error), row=columns)
                return
            raise MeshError(
                grpc.StatusCode.UNAVAILABLE,
                "AUDIT_UNAVAILABLE",
                "The safety decision could not be recorded, so none was made. Try again; if it "
                "lasts, the operator must look at the safety service's database.",
                retry_after_s=RETRY_AFTER_S,
            ) from error
        _rows.labels("written").inc()

    async def _accepted(self, row: Decision) -> None:
        written = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((row, written))
        await asyncio.wait_for(written, self._timeout_s)

    async def _write(self) -> None:
        """Takes what has gathered, writes it, tells those who wait, again and again."""
        while True:
            group = [await self._queue.get()]
            while len(group) < ROW_COUNT_MAX and not self._queue.empty():
                group.append(self._queue.get_nowait())
            # A caller that gave up was told that there is no decision: no row for it.
            group = [(row, written) for row, written in group if not written.done()]
            if group:
                await self._write_group(group)

    async def _write_group(self, group: list[tuple[Decision, asyncio.Future[None]]]) -> None:
        error: StoreUnavailableError | None = None
        try:
            await self._store.insert([row for row, _ in group])
        except StoreUnavailableError as failure:
            error = failure
        for _, written in group:
            if written.done():
                continue
            if error:
                written.set_exception(StoreUnavailableError(str(error)))
            else:
                written.set_result(None)
