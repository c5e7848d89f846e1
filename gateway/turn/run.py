"""A turn that this process owns, from its plan to its end. Nothing of it hangs on who reads it.

plan → (generate → screen reply) × n → numbered events → journal → readers
     └→ settle ‖ remember, on every way out
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import structlog

from gateway import errors, metrics
from gateway.errors import is_public, public
from gateway.settings import TurnLimits
from gateway.turn.allotment import Allotment
from gateway.turn.answer import Answer
from gateway.turn.background import Background, wait_at_most
from gateway.turn.choice import Choice
from gateway.turn.conclude import Concluder, usage_of
from gateway.turn.domain import (
    FINISH_CANCELLED,
    ChoiceFinished,
    Event,
    Failed,
    Finished,
    Started,
    TextDelta,
)
from gateway.turn.events import BEGINNING, EventLog, Numbered
from gateway.turn.feed import WAITING_BYTES_MAX
from gateway.turn.generation import Generator
from gateway.turn.hold_clock import HoldClock
from gateway.turn.journal import (
    CANCELLED,
    COMPLETED,
    FAILED,
    RUNNING,
    Head,
    JournalWriter,
    Lease,
    Outcome,
    Recording,
)
from gateway.turn.plan import Plan
from gateway.turn.stored import read_batches
from gateway.turn.watchdog import Watchdog
from gateway.upstreams.billing import Billing
from gateway.upstreams.failures import may_pass
from gateway.upstreams.safety import Safety
from mesh.chassis import deadlines
from mesh.chassis.cancellation import is_cancelled
from mesh.chassis.errors import MeshError

# Each owner's attempts at nodes have numbers of their own.
ATTEMPTS_OF_AN_OWNER = 100
# So long the end of a turn waits for a journal that is away, where another end could be made.
END_PATIENCE_S = 30.0
UNPAID = "Billing does not answer, so that the rest cannot be paid for; try again shortly."
# A turn that is read at another gateway is written so much more often.
LISTENED_FLUSH_DIVISOR = 8
MS = 1000

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Means:
    """What it takes to run a turn."""

    generator: Generator
    safety: Safety
    billing: Billing
    concluder: Concluder
    writer: JournalWriter
    lease: Lease
    background: Background
    limits: TurnLimits
    # Seconds since the epoch.
    clock: Callable[[], float] = time.time


class Run:
    """One turn of this process: the only writer of its answers, its events and their numbers."""

    def __init__(
        self,
        plan: Plan,
        means: Means,
        owner: str,
        before: Head | None = None,
        batches: Sequence[bytes] = (),
        *,
        epoch: int = 0,
    ) -> None:
        """With `before` it goes on in the next epoch, where the last owner came in the journal.

        Else it begins; in an epoch of its own when another may have begun too.
        """
        self.plan, self._means = plan, means
        epoch_numbers = (*before.epoch_numbers, before.number) if before else (BEGINNING,) * epoch
        self._is_adopted = before is not None
        # Whether what earlier owners sent is what this one sends; not so with other weights.
        self.redraws = plan.redraws
        # It is being found out whether anybody reads it.
        self.is_unread = False
        now = asyncio.get_running_loop().time()
        self._hold = HoldClock(means.limits.hold_lifetime_s, now, is_adopted=self._is_adopted)
        self.answers = [Answer(index) for index in range(plan.choice_count)]
        events = read_batches(batches, plan.started(journaled=True), self.answers)
        self.log = EventLog(events)
        self.recording = Recording(
            plan, owner, self.log, self.answers, epoch_numbers, is_journaled=self._is_adopted
        )
        self.recording.on_fenced, self.recording.on_stopped = self._superseded, self.stop
        self.recording.on_away = self._unjournaled
        self._attempt = len(epoch_numbers) * ATTEMPTS_OF_AN_OWNER
        self._allotment = Allotment(plan, means.generator, means.billing)
        self._begin = time.perf_counter()
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = self._is_answering = self._is_stuck = False
        # Why it must end, that is nobody's wish.
        self._failure: MeshError | None = None
        self._watchdog = Watchdog(means.limits.turn_stall_s, now)
        # What is being made.
        self._choices: list[Choice] = []
        self._is_waiting_for_readers = False

    @property
    def head(self) -> Head:
        """As the journal would have it, were it up to date."""
        return Head(
            turn_id=self.plan.turn_id,
            account_id=self.plan.caller.account_id,
            owner=self.recording.owner,
            epoch=self.recording.epoch,
            number=self.log.number,
            state=self.recording.state if self.log.is_ended else RUNNING,
            epoch_numbers=self.recording.epoch_numbers,
        )

    @property
    def has_started(self) -> bool:
        """A node accepted it; one that none accepted leaves no trace."""
        return bool(self.log.events) and isinstance(self.log.events[0].event, Started)

    def start(self, ended: Callable[[], None]) -> None:
        """Begins; `ended` is called when nothing more happens here."""
        self._means.writer.note(self.recording)
        self._task = asyncio.create_task(self._run(), name=f"turn {self.plan.turn_id}")
        self._task.add_done_callback(lambda _: ended())

    def stop(self) -> None:
        """Ends it as cancelled: what was said is kept and billed."""
        self._is_stopped = True
        if self._is_answering and self._task:
            self._task.cancel()

    def watch(self, now: float) -> None:
        """Ends a turn that should have ended: the nodes are through, and nothing leaves any more.

        Args:
            now: of the loop's clock, in seconds.
        """
        is_fed = bool(self._choices) and all(each.is_fed for each in self._choices)
        is_due = self._is_answering and is_fed and not self._is_waiting_for_readers
        is_stuck = self._watchdog.is_stuck(now, self.log.number, is_due=is_due)
        if is_stuck and not self._is_stuck:
            self._is_stuck = True
            metrics.TURNS_STUCK.inc()
            log.error("turn_stuck", turn_id=self.plan.turn_id, number=self.log.number)
            if self._task:
                self._task.cancel()

    def pay(self, now: float) -> None:
        """Lets its hold live on; ends it when that may not stand any more.

        Args:
            now: of the loop's clock, in seconds.
        """
        if self._hold.is_due(now):
            self._means.background.start(self._renew(now), "renew_hold")
        if self._hold.is_over(now) and self._is_answering:
            self._fail(public(errors.SERVICE_UNAVAILABLE, UNPAID, service="billing"))

    async def _renew(self, now: float) -> None:
        self._hold.asked()
        try:
            await self._means.concluder.renew(self.plan, self._allotment.token_count)
        except MeshError as error:
            log.warning("hold_not_renewed", turn_id=self.plan.turn_id, reason=error.reason)
            if may_pass(error):
                self._hold.refused(asyncio.get_running_loop().time())
            elif self._is_answering:  # others have what it held
                self._fail(error)
        else:
            self._hold.renewed(now)

    def _fail(self, failure: MeshError) -> None:
        if self._failure is None:
            self._failure = failure
            if self._task:
                self._task.cancel()

    async def leave(self) -> None:
        """Ends it here, so that another gateway may go on with it."""
        self.log.end(moved=True)
        self.recording.leave()
        self.stop()
        if self._task:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        deadlines.enter(None)  # the deadline of the request that began it is not the turn's
        state, failure = await self._answered()
        if not self.log.is_moved:
            await self._conclude(state, failure)

    async def _answered(self) -> tuple[str, Failed | None]:
        """Makes what is missing of the answers; how that ended."""
        if self.log.is_final or all(answer.is_finished for answer in self.answers):
            return self._state_as_journaled(), None
        if self._is_stopped:
            return CANCELLED, None
        self._is_answering = True
        try:
            async with asyncio.timeout(self._left_s()):
                await self._answer()
        except asyncio.CancelledError as error:
            if not is_cancelled():  # of a call below: without an end its readers wait for ever
                return FAILED, _failed(error)
            if self._task is None or not (self._is_stopped or self._is_stuck or self._failure):
                raise
            self._task.uncancel()
            is_wish, why = self._is_stopped, self._failure or error
            return (CANCELLED, None) if is_wish else (FAILED, _failed(why))
        except Exception as error:
            return FAILED, _failed(error)
        finally:
            self._is_answering = False
        return COMPLETED, None

    def _state_as_journaled(self) -> str:
        """How a turn ended of which an earlier owner made all events, or all but the last."""
        if isinstance(self.log.events[-1].event, Failed):
            return FAILED
        is_cancelled = any(each.finish_reason == FINISH_CANCELLED for each in self.answers)
        return CANCELLED if is_cancelled else COMPLETED

    async def _answer(self) -> None:
        if self.plan.stored.safe_text:
            return self._say_safe_text()
        async with AsyncExitStack() as stack:
            first, *others = (answer for answer in self.answers if not answer.is_finished)
            # The first one is admitted or refused for all: what follows waits for its place.
            choice = await stack.enter_async_context(self._choice(first, self._is_adopted))
            self._choices = [choice]
            await choice.accepted()
            self._say_started()
            for answer in others:
                other = await stack.enter_async_context(self._choice(answer, is_begun=True))
                self._choices.append(other)
            if not others:
                return await choice.run(self._publish, self._room)
            async with asyncio.TaskGroup() as group:
                for each in self._choices:
                    group.create_task(self._run_choice(each))
        return None

    async def _run_choice(self, choice: Choice) -> None:
        await choice.accepted()
        await choice.run(self._publish, self._room)

    def _choice(self, answer: Answer, is_begun: bool) -> Choice:
        plan = self.plan
        frames = self._allotment.generate(answer, self._attempt, is_begun=is_begun)
        screen = self._means.safety.screen_reply(plan.caller, answer, is_json=plan.is_json)
        return Choice(answer, frames, screen)

    def _say_started(self) -> None:
        """The first event; it is shown when it is known whether the plan is durable."""
        if not self.log.events:
            self._publish(self.plan.started(journaled=not self.recording.is_away))

    def _unjournaled(self) -> None:
        """The journal is away: what nobody has seen yet says so."""
        if self.has_started and self.log.shown_number == BEGINNING:
            self.log.events[0] = Numbered(0, self.plan.started(journaled=False))

    def _say_safe_text(self) -> None:
        """Nothing is generated, kept or charged."""
        self._say_started()
        stored = self.plan.stored
        for answer in self.answers:
            if not answer.is_finished:
                if delta := answer.block(stored.safe_category, 0, stored.safe_text):
                    self._publish(delta)
                self._publish(answer.finish())

    def _publish(self, event: Event) -> None:
        if isinstance(event, TextDelta) and len(self.log.events) == 1:
            metrics.FIRST_TEXT_SECONDS.observe(time.perf_counter() - self._begin)
        if isinstance(event, ChoiceFinished) and event.bound:
            # Where a limit has no room now, another owner may find some.
            self.recording.hold_back()
        numbered, recording = self.log.append(event), self.recording
        flush_s = self._means.limits.journal_flush_s
        if recording.may_show:
            self.log.show(numbered.number)
        if not self.plan.redraws:
            flush_s = 0.0
        elif recording.is_listened:
            flush_s /= LISTENED_FLUSH_DIVISOR
        self._means.writer.note(recording, flush_s)

    async def _room(self) -> None:
        if not self.plan.stored.background:
            self._is_waiting_for_readers = True
            await self.log.room(WAITING_BYTES_MAX)
            self._is_waiting_for_readers = False

    async def _conclude(self, state: str, failure: Failed | None) -> None:
        """Ends the answers, and the turn in the books, unless another has it now."""
        outcome = "finished" if state == COMPLETED else state
        metrics.TURNS.labels(failure.reason.lower() if failure else outcome).inc()
        is_begun = self._is_adopted or any(answer.token_ids for answer in self.answers)
        if is_begun and not self.log.events:
            # Its owner before, or a node, may have begun: readers find an end here, not nothing.
            self._publish(self.plan.started(journaled=True))
        # How much is generated until a block is known is chance.
        is_alike = self.redraws and not any(each.withheld_token_count for each in self.answers)
        if self.has_started and (state != COMPLETED or not is_alike):
            self.recording.hold_back()
        if state == CANCELLED and self.has_started:
            for answer in self.answers:
                if not answer.is_finished:
                    self._publish(answer.finish())
        if not await self._may_conclude():
            return
        concluding = self._means.concluder.conclude(
            self.plan, self.answers, is_begun=self.has_started
        )
        recorded = self._means.background.start(concluding, "conclude_turn")
        limits = self._means.limits
        wait_s = limits.store_wait_s if self.plan.thread.id else limits.conclude_wait_s
        await wait_at_most(recorded, wait_s)
        if not self.log.is_final:
            self._publish(failure or Finished(usage_of(self.plan, self.answers)))
            if not self.recording.may_show and await self._is_lost():
                return
        if not recorded.done():  # the readers need not wait longer; whoever asks waits for the end
            self.log.show(self.log.number)
            await recorded
        if self.has_started:  # who has heard the end finds the turn ended at every gateway
            self.recording.end(state)
            self._means.writer.note(self.recording)
            await self.recording.flushed()
        self.log.show(self.log.number)
        self.log.end(moved=self.recording.is_fenced)

    async def _may_conclude(self) -> bool:
        """Whether this gateway is still the owner, who alone may settle: it may have slept."""
        # What another would make otherwise must be journaled before: stored is what is read.
        if self.recording.may_show and self._means.lease.covers(self.recording.confirmed_at):
            return not self.recording.is_fenced
        return not await self._is_lost()

    async def _is_lost(self) -> bool:
        """Whether another gateway has it, once all is written.

        While the journal is away nobody knows. What another would make alike may end; else the end
        waits for a while, so that no two readers see two of them.
        """
        self._means.writer.note(self.recording)
        patient = not self.recording.may_show
        try:
            async with asyncio.timeout(END_PATIENCE_S):
                outcome = await self.recording.flushed(patient=patient)
        except TimeoutError:
            return False
        return outcome is Outcome.FENCED or self.log.is_moved

    def _superseded(self) -> None:
        """Another gateway has adopted the turn: whoever reads here reads on there."""
        metrics.TURNS_LOST.inc()
        log.warning("turn_superseded", turn_id=self.plan.turn_id, epoch=self.recording.epoch)
        self.log.end(moved=True)
        self.stop()

    def _left_s(self) -> float:
        passed_s = self._means.clock() - self.plan.stored.create_time_ms / MS
        return max(0.0, self._means.limits.turn_duration_s_max - passed_s)


def _failed(error: BaseException) -> Failed:
    """The failure of a turn as its readers hear it."""
    if isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    shown = error if isinstance(error, MeshError) and is_public(error) else None
    if isinstance(error, TimeoutError):
        message = "The time for this request ran out; ask for less."
        shown = public(errors.TIMEOUT, message)
    if shown is None:
        # The type only: the text of an unknown error may hold a prompt.
        log.error("turn_crashed", error=type(error).__name__)
        shown = public(errors.INTERNAL_ERROR, "A fault of ours; try again shortly.")
    return Failed(shown.reason, shown.message, shown.metadata, shown.retry_after_s)
