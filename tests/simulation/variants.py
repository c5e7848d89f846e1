"""Systems that are broken on purpose, so that it is known what the laws see.

Each replaces one method at a seam for the time of a run; the production code is as it is. Most are
faults that this system once had, or nearly.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from billing_svc import ledger
from gateway.turn import follow
from gateway.turn.conclude import Concluder
from gateway.turn.domain import Failed, TextDelta
from gateway.turn.events import BEGINNING, EventLog, Numbered, weight
from gateway.turn.follow import Following
from gateway.turn.journal import RUNNING, Claim, Head, Recording, Write, Written
from gateway.turn.run import Run
from gateway.turn.turns import Turns
from gateway.upstreams.reply_screen import ReplyScreen
from gateway.upstreams.safety import Safety
from tests.simulation.billing import Store
from tests.simulation.seams import replaced
from tests.support.memory_journal import MemoryJournal

Variant = Callable[[], AbstractContextManager[None]]


def _instead(place: Any, name: str, make: Callable[[Any], Any]) -> Variant:
    """`make` gets the right one and gives the broken one."""

    @contextlib.contextmanager
    def broken() -> Iterator[None]:
        with replaced(place, name, make(place.__dict__[name])):
            yield

    return broken


def _all(*variants: Variant) -> Variant:
    @contextlib.contextmanager
    def broken() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for variant in variants:
                stack.enter_context(variant())
            yield

    return broken


# -- the journal -------------------------------------------------------------------------------


def _no_fence(right: Any) -> Any:
    """Whoever writes is taken for the owner."""

    def write_one(self: MemoryJournal, write: Write) -> Written:
        if found := self.turns.get(write.turn_id):
            head = found.head
            is_owner = (head.owner, head.epoch) == (write.owner, write.epoch)
            serial = write.serial if is_owner else found.serial + 1
            write = replace(write, owner=head.owner, epoch=head.epoch, serial=serial)
        return right(self, write)

    return write_one


def _no_serials(right: Any) -> Any:
    """A write that comes twice, or late, is written."""

    def write_one(self: MemoryJournal, write: Write) -> Written:
        found = self.turns.get(write.turn_id)
        if found and (found.head.owner, found.head.epoch) == (write.owner, write.epoch):
            found.serial = write.serial - 1
        return right(self, write)

    return write_one


def _adoption_without_compare(right: Any) -> Any:
    """Whoever saw a turn without an owner gets it, although another was faster."""

    async def adopt(self: MemoryJournal, head: Head, owner: str) -> bool:
        if found := self.turns.get(head.turn_id):
            found.head = replace(found.head, owner=head.owner, epoch=head.epoch)
            found.head = replace(found.head, epoch_numbers=head.epoch_numbers)
            found.serial = head.serial
        return await right(self, head, owner)

    return adopt


def _adoption_in_the_same_epoch(right: Any) -> Any:
    async def adopt(self: MemoryJournal, head: Head, owner: str) -> bool:
        adopted = await right(self, head, owner)
        if adopted and (found := self.turns.get(head.turn_id)):
            numbers = found.head.epoch_numbers[:-1]
            found.head = replace(found.head, epoch=head.epoch, epoch_numbers=numbers)
        return adopted

    return adopt


def _stop_not_remembered(right: Any) -> Any:
    async def stop(self: MemoryJournal, turn_id: str) -> None:
        await right(self, turn_id)
        if found := self.turns.get(turn_id):
            found.head = replace(found.head, is_stopped=False)

    return stop


def _retention_takes_running_turns(right: Any) -> Any:
    """The oldest turns make room, whether or not they have ended; their owners write no more."""

    def write_one(self: MemoryJournal, write: Write) -> Written:
        written = right(self, write)
        if write.state == RUNNING and write.number > 60:
            self.turns.pop(write.turn_id, None)
        return written

    return write_one


def _no_own_orphans(right: Any) -> Any:
    """Nobody looks for turns that were adopted and do not run."""

    async def orphans(self: MemoryJournal, owner: str, count_max: int) -> list[str]:
        found = await right(self, owner, count_max)
        return [each for each in found if self.turns[each].head.owner != owner]

    return orphans


# -- the owner ---------------------------------------------------------------------------------


def _numbers_from_zero(right: Any) -> Any:
    """An adopter numbers its events as if they were the first."""

    def begin(self: EventLog, events: Any = ()) -> None:
        right(self, events)
        self.number = BEGINNING if not self.events else 0

    return begin


def _not_superseded(right: Any) -> Any:
    """An owner that was fenced goes on, and settles."""

    def wrote(self: Recording, write: Write, written: Written) -> None:
        right(self, write, written)
        self.is_fenced = False

    return wrote


def _does_not_wait(right: Any) -> Any:
    """The end is recorded before it is known that all is in the journal."""

    async def is_lost(self: Run) -> bool:
        return False

    return is_lost


def _released_when_adopted(right: Any) -> Any:
    """An adopter gives the hold back that it took over."""

    async def conclude(self: Run, *args: Any) -> None:
        if self.recording.epoch:
            self._means = replace(self._means, concluder=_Releasing(self._means.concluder))
        await right(self, *args)

    return conclude


class _Releasing(Concluder):
    def __init__(self, right: Concluder) -> None:
        super().__init__(right._billing, right._conversation)

    async def _settle(self, plan: Any, *args: Any, **more: Any) -> None:
        await self._billing.release(plan.turn_id)


def _shown_first(right: Any) -> Any:
    """Readers see what is not journaled, whatever the engine can promise."""
    return property(lambda self: True)


def _end_not_held_back(right: Any) -> Any:
    return lambda self: None


def _all_released(right: Any) -> Any:
    """An adopter takes all that was generated for released."""

    def begin(self: Run, *args: Any, **more: Any) -> None:
        right(self, *args, **more)
        for answer in self.answers:
            answer.released_offset = len(answer.text_bytes)

    return begin


def _screened_anew(right: Any) -> Any:
    """An adopter's screening knows nothing of what was said before."""

    def screen_reply(self: Safety, caller: Any, answer: Any, *, is_json: bool) -> ReplyScreen:
        screen: ReplyScreen = right(self, caller, answer, is_json=is_json)
        screen._text, screen._released_offset = bytearray(), 0
        return screen

    return screen_reply


# -- the reader --------------------------------------------------------------------------------


def _off_by_one(right: Any) -> Any:
    def behind(numbered: Numbered, cursor: int) -> Numbered | None:
        number, event = numbered
        begin = number - weight(event)
        if isinstance(event, TextDelta) and begin < cursor < number:
            text = event.text.encode()[cursor - begin + 1 :].decode(errors="ignore")
            return Numbered(number, replace(event, text=text))
        return right(numbered, cursor)

    return behind


def _failure_not_shown(right: Any) -> Any:
    """Readers of a turn that failed wait for ever."""

    def show(self: EventLog, number: int) -> None:
        if not self.events or not isinstance(self.events[-1].event, Failed):
            right(self, number)

    return show


def _end_not_told(right: Any) -> Any:
    def end(self: EventLog, *, moved: bool = False) -> None:
        if moved or not self.events or not isinstance(self.events[-1].event, Failed):
            right(self, moved=moved)

    return end


def _rewriting_not_seen(right: Any) -> Any:
    """A reader counts what it has read, and the journal was written anew."""
    return lambda self, batch, head: False


# -- keys and money ----------------------------------------------------------------------------


def _key_ignored(right: Any) -> Any:
    async def claimed(self: Turns, caller: Any, key: str, digest: str) -> Claim:
        return Claim(caller.turn_id, digest, self._owner, caller.turn_id)

    return claimed


def _digest_ignored(right: Any) -> Any:
    async def claimed(self: Turns, caller: Any, key: str, digest: str) -> Claim:
        return await right(self, caller, key, "the same")

    return claimed


def _charged_again(right: Any) -> Any:
    """Every report of a node is charged, whether or not it is new."""

    def covered(turn: Any, report: Any) -> Any:
        after, _ = right(turn, report)
        return after, ((report.first, report.end),)

    return covered


def _settled_again(right: Any) -> Any:
    async def settle(self: Store, turn_id: str, counts: Any, now: Any, **more: Any) -> Any:
        if found := self.turns.get(turn_id):
            self.turns[turn_id] = replace(found, state=found.state.OPEN, settle_time=None)
        return await right(self, turn_id, counts, now, **more)

    return settle


VARIANTS: dict[str, Variant] = {
    "no-fence": _instead(MemoryJournal, "write_one", _no_fence),
    "no-serials": _instead(MemoryJournal, "write_one", _no_serials),
    "adoption-without-compare": _instead(MemoryJournal, "adopt", _adoption_without_compare),
    "adoption-in-the-same-epoch": _instead(MemoryJournal, "adopt", _adoption_in_the_same_epoch),
    "stop-not-remembered": _instead(MemoryJournal, "stop", _stop_not_remembered),
    "retention-takes-running-turns": _instead(
        MemoryJournal, "write_one", _retention_takes_running_turns
    ),
    "no-own-orphans": _instead(MemoryJournal, "orphans", _no_own_orphans),
    "numbers-from-zero": _instead(EventLog, "__init__", _numbers_from_zero),
    "fenced-owner-settles": _all(
        _instead(Recording, "wrote", _not_superseded),
        _instead(Run, "_superseded", lambda _: lambda self: None),
    ),
    "settle-before-append": _instead(Run, "_is_lost", _does_not_wait),
    "released-when-adopted": _instead(Run, "_conclude", _released_when_adopted),
    "shown-before-journaled": _instead(Recording, "may_show", _shown_first),
    "end-not-held-back": _instead(Recording, "hold_back", _end_not_held_back),
    "all-taken-for-released": _instead(Run, "__init__", _all_released),
    "screened-anew": _instead(Safety, "screen_reply", _screened_anew),
    "off-by-one": _instead(follow, "behind", _off_by_one),
    "failed-turn-never-ends": _all(
        _instead(EventLog, "show", _failure_not_shown), _instead(EventLog, "end", _end_not_told)
    ),
    "rewriting-not-seen": _instead(Following, "_skips", _rewriting_not_seen),
    "key-ignored": _instead(Turns, "_claimed", _key_ignored),
    "digest-ignored": _instead(Turns, "_claimed", _digest_ignored),
    "charged-again": _instead(ledger, "_covered", _charged_again),
    "settled-again": _instead(Store, "settle", _settled_again),
}
