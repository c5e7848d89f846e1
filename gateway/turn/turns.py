"""All turns, wherever they run: begin one, follow it, stop it, look at it; adopt the orphans.

A turn runs in the process that owns it. Readers at another gateway read its journal; when the owner
is no more, whoever wants the turn adopts it, and a scan adopts those that nobody wants just now.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import structlog
from ulid import ULID

from gateway import errors, metrics
from gateway.errors import public
from gateway.turn.answer import Answer
from gateway.turn.domain import Ask, Caller, Failed, Finished, Usage
from gateway.turn.events import BEGINNING, Cursor, Numbered
from gateway.turn.follow import Following, check_cursor, journal_away, no_such_turn
from gateway.turn.journal import RUNNING, Claim, Head, JournalAway, JournalStore
from gateway.turn.plan import Plan, Planner
from gateway.turn.run import Means, Run
from gateway.turn.stored import read_batches
from mesh.chassis.errors import MeshError

# How often an owner says that it lives, and looks after what it owns; a quarter of its lease.
TICKS_A_LEASE = 4
# How often a gateway looks for turns whose owner is no more.
SCAN_S = 0.25
# Between two tries to take a turn out of the journal.
FORGET_RETRY_S = 0.5
# Between two looks whether the turn of an idempotency key has begun.
CLAIM_LOOK_S = 0.05
CLAIM_PATIENCE_S = 5.0
# A turn that ended while the journal was away is kept here for so long, to be written later.
UNWRITTEN_S_MAX = 60.0

MS = 1000
T = TypeVar("T")
# An account's idempotency key, and what it stands for.
Claimed = tuple[str, str, Claim]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class View:
    """A turn as it is now."""

    plan: Plan
    state: str
    # Of the last event that can be followed.
    cursor: Cursor
    answers: Sequence[Answer]
    journaled: bool
    usage: Usage | None = None
    failure: Failed | None = None


class Turns:
    """The turns of all gateways, as one of them sees and keeps them."""

    def __init__(self, planner: Planner, means: Means, store: JournalStore, owner: str) -> None:
        """`owner` names this process and no other, not even its successor."""
        self._planner, self._means, self._store = planner, means, store
        self._owner = f"{owner}.{ULID()}"
        self._runs: dict[str, Run] = {}
        # Turns that are being adopted, or taken out of the journal.
        self._changing: set[str] = set()
        # Turns that are being planned here.
        self._planning: set[str] = set()
        self._is_closing = False

    # -- what the faces ask for --------------------------------------------------------------

    async def begin(self, ask: Ask, caller: Caller, key: str = "", digest: str = "") -> Following:
        """Begins a turn, or joins the one that the idempotency key names.

        Args:
            ask: what is wanted.
            caller: who wants it.
            key: the idempotency key; "": none.
            digest: of the whole request, with a key.

        Raises:
            MeshError: with a reason of chat.v1.Reason: nothing runs and nothing is charged.
        """
        claim: Claimed | None = None
        try:
            if key:
                found = await self._claimed(caller, key, digest)
                claim, is_joined = (caller.account_id, key, found), found.holder != caller.turn_id
                caller = replace(caller, turn_id=found.turn_id)
                if is_joined:
                    return await self.follow(caller.turn_id, caller.account_id, "")
            if run := self._runs.get(caller.turn_id):
                return self._following(run.plan, Cursor())
            plan = await self._planned(ask, caller, claim)
            if claim and claim[2].epoch and await self._is_known(caller.turn_id):
                # It has begun after all, where it was taken over from.
                return await self.follow(caller.turn_id, caller.account_id, "")
        except MeshError as error:
            metrics.TURNS.labels(error.reason.lower() or "internal_error").inc()
            raise
        except asyncio.CancelledError:
            metrics.TURNS.labels("cancelled").inc()
            raise
        if caller.turn_id not in self._runs:
            run = Run(plan, self._means, self._owner, epoch=claim[2].epoch if claim else 0)
            self._own(run, claim)
            if plan.stored.background:  # whoever was promised an answer finds it at every gateway
                await run.recording.opened()
        return self._following(plan, Cursor())

    async def follow(self, turn_id: str, account_id: str, after: str) -> Following:
        """A reader of one of the account's turns, behind a cursor.

        Raises:
            MeshError: TURN_NOT_FOUND, CURSOR_INVALID, SERVICE_UNAVAILABLE.
        """
        plan, cursor = await self._plan_of(turn_id, account_id), Cursor.parse(after, turn_id)
        if after:  # refused before the first byte, where it can be
            run = self.run_of(turn_id)
            if run and run.recording.epoch < cursor.epoch:  # adopted since, and does not know it
                run = None
            head = run.head if run else await self._asked(self._store.head(turn_id))
            # A later owner than this gateway knows of is found on the way.
            if head and (cursor.epoch <= head.epoch or head.state != RUNNING):
                check_cursor(cursor, head, redraws=run.redraws if run else plan.redraws)
        return self._following(plan, cursor)

    async def stop(self, turn_id: str, account_id: str) -> View:
        """Stops one of the account's turns, wherever it runs.

        Raises:
            MeshError: TURN_NOT_FOUND, SERVICE_UNAVAILABLE.
        """
        await self._plan_of(turn_id, account_id)
        if run := self.run_of(turn_id):
            run.stop()
            with contextlib.suppress(JournalAway):  # whoever adopts it stops it too
                await self._store.stop(turn_id)
        else:
            await self._asked(self._stop_elsewhere(turn_id))
        return await self.view(turn_id, account_id)

    async def promised(self, turn_id: str, account_id: str) -> View:
        """A turn whose answer is fetched later: as soon as any gateway can find it.

        Waits an absent journal out for `store_wait_s`; the view says whether it was journaled.

        Raises:
            MeshError: TURN_NOT_FOUND, SERVICE_UNAVAILABLE.
        """
        if run := self.run_of(turn_id):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._means.limits.store_wait_s):
                    await run.recording.opened(patient=True)
        return await self.view(turn_id, account_id)

    async def view(self, turn_id: str, account_id: str) -> View:
        """One of the account's turns as it is now.

        Raises:
            MeshError: TURN_NOT_FOUND, SERVICE_UNAVAILABLE.
        """
        plan = await self._plan_of(turn_id, account_id)
        if run := self._runs.get(turn_id):
            shown = [each for each in run.log.events if each.number <= run.log.shown_number]
            return _view(plan, run.head, shown, run.answers, run.recording.is_journaled)
        head = await self._asked(self._store.head(turn_id))
        if head is None:
            raise no_such_turn()
        answers = [Answer(index) for index in range(plan.choice_count)]
        batches = await self._asked(self._store.batches(turn_id))
        events = read_batches(batches, plan.started(journaled=True), answers)
        return _view(plan, head, events, answers, journaled=True)

    # -- what keeps them ---------------------------------------------------------------------

    async def keep(self) -> None:
        """Looks after the turns until cancelled."""
        async with asyncio.TaskGroup() as group:
            for work in (self._means.writer.run, self._live, self._adopt_orphans, self._obey):
                group.create_task(_again_and_again(work))

    async def close(self) -> None:
        """Leaves all turns to other gateways, at once."""
        self._is_closing = True
        runs = list(self._runs.values())
        with contextlib.suppress(JournalAway):
            await self._means.writer.flush()
        await asyncio.gather(*(run.leave() for run in runs))
        with contextlib.suppress(JournalAway):
            await self._store.leave(self._owner)

    async def adopt(self, head: Head) -> Run | None:
        """Goes on with a turn whose owner is no more; None: it is, or another was faster.

        Raises:
            JournalAway: the next look finds out.
        """
        if run := self.run_of(head.turn_id):  # since the head was read
            return run
        if self._is_closing or head.turn_id in self._changing or head.state != RUNNING:
            return None
        self._changing.add(head.turn_id)
        try:
            return None if await self._lives(head) else await self._adopted(head)
        finally:
            self._changing.discard(head.turn_id)

    async def _adopted(self, head: Head) -> Run | None:
        turn_id = head.turn_id
        if not await self._store.adopt(head, self._owner):
            return None
        plan = Plan.read(await self._store.plan(turn_id))
        batches = await self._store.batches(turn_id)
        run = Run(plan, self._means, self._owner, head, batches)
        run.redraws = plan.redraws and await self._planner.is_served_as_planned(plan)
        metrics.TURNS_ADOPTED.inc()
        log.info("turn_adopted", turn_id=turn_id, epoch=head.epoch + 1, number=head.number)
        self._own(run)
        if head.is_stopped:
            run.stop()
        return run

    def run_of(self, turn_id: str) -> Run | None:
        """The turn, if it runs here."""
        run = self._runs.get(turn_id)
        return None if run is None or run.log.is_moved else run

    async def _live(self) -> None:
        lease_ms = self._means.limits.owner_lease_ms
        while True:
            with contextlib.suppress(JournalAway):
                await self._means.lease.renew(self._store, self._owner, lease_ms)
                await self._store.tidy()
            for run in list(self._runs.values()):
                self._look_after(run)
            metrics.TURNS_RUNNING.set(len(self._runs))
            await asyncio.sleep(lease_ms / MS / TICKS_A_LEASE)

    def _look_after(self, run: Run) -> None:
        now, limits = asyncio.get_running_loop().time(), self._means.limits
        run.watch(now)
        run.pay(now)
        is_unread = run.log.idle_s >= limits.reader_grace_s and not run.plan.stored.background
        if is_unread and not run.is_unread:
            run.is_unread = True
            self._means.background.start(self._stop_unread(run), "stop_unread")

    async def _stop_unread(self, run: Run) -> None:
        """Ends a turn that nobody reads, here or at another gateway."""
        try:
            is_read = await self._store.is_read(run.plan.turn_id)
        except JournalAway:
            is_read = False
        run.is_unread = not (is_read or run.log.idle_s < 0)
        if run.is_unread:
            run.stop()

    async def _adopt_orphans(self) -> None:
        while True:
            await asyncio.sleep(SCAN_S)
            with contextlib.suppress(JournalAway):
                count_max = self._means.limits.adoption_count_max
                for turn_id in await self._store.orphans(self._owner, count_max):
                    if self.run_of(turn_id) or turn_id in self._changing:
                        continue
                    if head := await self._store.head(turn_id):
                        await self.adopt(head)

    async def _lives(self, head: Head) -> bool:
        """Whether another gateway runs a turn that does not run here.

        One that is said to be ours was adopted and we never heard, or the journal lost its end.
        """
        if head.owner == self._owner:
            return False
        if not self._means.lease.may_judge(self._means.limits.owner_lease_ms):
            return True
        return await self._store.alive_s(head.owner) > 0

    async def _stop_elsewhere(self, turn_id: str) -> None:
        await self._store.stop(turn_id)
        if head := await self._store.head(turn_id):
            await self.adopt(head)

    async def _obey(self) -> None:
        """Stops turns whose stop was asked for at another gateway."""
        async for turn_id in self._store.stops(self._owner):
            if run := self._runs.get(turn_id):
                run.stop()

    def _own(self, run: Run, claim: Claimed | None = None) -> None:
        self._runs[run.plan.turn_id] = run
        loop, grace_s = asyncio.get_running_loop(), self._means.limits.reader_grace_s
        run.log.on_unread = lambda: loop.call_later(grace_s, self._look_after, run)
        run.start(lambda: self._ended(run, claim))

    def _ended(self, run: Run, claim: Claimed | None) -> None:
        """Lets go of a turn when it has ended and is written, or will never be."""
        if not run.has_started and not run.log.is_moved:
            work = self._leave_no_trace(run.plan.turn_id, claim)
            self._means.background.start(work, "forget_turn")
        if run.recording.has_news and run.has_started and not self._is_closing:
            loop = asyncio.get_running_loop()
            loop.call_later(UNWRITTEN_S_MAX, self._let_go, run)
        else:
            self._let_go(run)

    def _let_go(self, run: Run) -> None:
        self._means.writer.drop(run.recording)
        if self._runs.get(run.plan.turn_id) is run:
            del self._runs[run.plan.turn_id]

    async def _leave_no_trace(self, turn_id: str, claim: Claimed | None) -> None:
        """A turn that nothing came of may be tried again under the same key."""
        await self._until_told(turn_id, lambda: self._store.forget(turn_id, self._owner))
        if claim:
            await self._let_go_of_claim(turn_id, claim)

    async def _let_go_of_claim(self, turn_id: str, claimed: Claimed) -> None:
        """Frees the key; one that was taken over still names its turn, which may run after all."""
        account_id, key, claim = claimed
        vacant = replace(claim, owner="", holder="")

        async def free() -> None:
            if claim.holder == claim.turn_id:
                await self._store.disclaim(account_id, key, claim)
            else:
                await self._store.reclaim(account_id, key, claim, vacant)

        await self._until_told(turn_id, free)

    async def _until_told(self, turn_id: str, tell: Callable[[], Awaitable[None]]) -> None:
        """Repeats until the journal has heard; the turn is nobody else's business meanwhile."""
        self._changing.add(turn_id)
        try:
            while True:
                with contextlib.suppress(JournalAway):
                    return await tell()
                await asyncio.sleep(FORGET_RETRY_S)
        finally:
            self._changing.discard(turn_id)

    # -- parts -------------------------------------------------------------------------------

    def _following(self, plan: Plan, cursor: Cursor) -> Following:
        return Following(
            plan, cursor, self._store, run_of=self.run_of, lives=self._lives, adopt=self.adopt
        )

    async def _planned(self, ask: Ask, caller: Caller, claim: Claimed | None) -> Plan:
        self._planning.add(caller.turn_id)
        try:
            return await self._planner.plan(ask, caller)
        except BaseException:
            if claim:
                work = self._let_go_of_claim(caller.turn_id, claim)
                self._means.background.start(work, "forget_claim")
            raise
        finally:
            self._planning.discard(caller.turn_id)

    async def _claimed(self, caller: Caller, key: str, digest: str) -> Claim:
        """The claim that the key stands for: ours, or that of a turn that has begun.

        Raises:
            MeshError: IDEMPOTENCY_KEY_REUSED; SERVICE_UNAVAILABLE: without the journal nobody
                knows what the key names.
        """
        account_id, end = caller.account_id, asyncio.get_running_loop().time() + CLAIM_PATIENCE_S
        mine = Claim(caller.turn_id, digest, self._owner, holder=caller.turn_id)
        while True:
            found = await self._asked(self._store.claim(account_id, key, mine))
            if found.digest != digest:
                message = "This idempotency key was used for another request; use a new one."
                param = "idempotency_key"
                raise public(errors.IDEMPOTENCY_KEY_REUSED, message, param=param)
            if found == mine or self.run_of(found.turn_id) or await self._is_known(found.turn_id):
                return found
            # Another request is planning it, or died with its gateway while it did.
            mine = replace(mine, turn_id=found.turn_id, epoch=found.epoch + 1)
            is_over = asyncio.get_running_loop().time() > end
            if found.turn_id in self._planning or found.turn_id in self._changing:
                # Here: then it is known that somebody is at it.
                await asyncio.sleep(CLAIM_LOOK_S)
            elif is_over or not await self._asked(self._store.alive_s(found.owner)):
                await self._asked(self._store.reclaim(account_id, key, found, mine))
            else:
                await asyncio.sleep(CLAIM_LOOK_S)

    async def _plan_of(self, turn_id: str, account_id: str) -> Plan:
        """The plan of one of the account's turns. An id is no credential: others have none."""
        if run := self._runs.get(turn_id):
            plan = run.plan
        elif data := await self._asked(self._store.plan(turn_id)):
            plan = Plan.read(data)
        else:
            raise no_such_turn()
        if plan.caller.account_id != account_id:
            raise no_such_turn()
        return plan

    async def _is_known(self, turn_id: str) -> bool:
        return await self._asked(self._store.head(turn_id)) is not None

    async def _asked(self, question: Awaitable[T]) -> T:
        try:
            return await question
        except JournalAway as error:
            raise journal_away() from error


async def _again_and_again(work: Callable[[], Awaitable[None]]) -> None:
    """Work that must not end while the process lives: a fault in one round is not the last."""
    while True:
        try:
            await work()
        except Exception as error:
            log.error("turns_not_kept", work=work.__name__, error=type(error).__name__)
        await asyncio.sleep(SCAN_S)


def _view(
    plan: Plan, head: Head, events: Sequence[Numbered], answers: Sequence[Answer], journaled: bool
) -> View:
    last = events[-1].event if events else None
    return View(
        plan=plan,
        state=head.state,
        cursor=Cursor(head.epoch, events[-1].number if events else BEGINNING),
        answers=answers,
        journaled=journaled,
        usage=last.usage if isinstance(last, Finished) else None,
        failure=last if isinstance(last, Failed) else None,
    )
