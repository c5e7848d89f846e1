"""What must be true of every run, whatever went wrong in it. Reads the record, changes nothing."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from billing_svc import ranges
from billing_svc.ledger import Kind
from billing_svc.turn import State
from gateway.turn.domain import (
    FINISH_CANCELLED,
    FINISH_CONTENT_FILTER,
    ChoiceFinished,
    Failed,
    Finished,
    Started,
    TextDelta,
)
from gateway.turn.events import weight
from gateway.turn.journal import RUNNING
from tests.simulation import engine, faults
from tests.simulation.clients import SILENCE_S, Reading, text_of
from tests.simulation.services import BY_POSITION

# A stop that was taken ends the turn so soon, also when its owner dies: lease, scan, and a pause.
STOP_S = 5.0
LEAVES_THE_JOURNAL = {faults.JOURNAL_AWAY, faults.JOURNAL_LOSES}


def broken(world: Any) -> list[str]:
    """The laws that do not hold, with the evidence."""
    return [
        *_of_readings(world),
        *_of_turns(world),
        *_of_owners(world),
        *_of_money(world),
        *[f"task left: {name}" for name in world.left_over],
    ]


# -- what one reader got -----------------------------------------------------------------------


def _of_readings(world: Any) -> Iterator[str]:
    for client in world.clients:
        reading, name = client.reading, client.process.name
        for events in (*reading.earlier, reading.events):
            yield from (f"{name}: {wrong}" for wrong in _numbered(events))
            for choice in range(reading.wish.n):
                wrong = _text(world, reading, events, choice)
                yield from (f"{name}: choice {choice}: {each}" for each in wrong)
        yield from (f"{name}: {wrong}" for wrong in _ended(world, reading))


def _numbered(events: list[tuple[int, int, Any]]) -> Iterator[str]:
    """Numbers rise by what an event weighs; epochs never fall."""
    if not events:
        return
    if not isinstance(events[0][2], Started) or events[0][1] != 0:
        yield f"law 2: the first event is {events[0]}"
    for (epoch, number, _), (after_epoch, after, event) in pairwise(events):
        if after != number + weight(event):
            yield f"law 2: after number {number} comes {after} with {event}"
        if after_epoch < epoch:
            yield f"law 2: after epoch {epoch} comes {after_epoch}"
        if isinstance(event, Started):
            yield f"law 2: begun twice, at {after}"


def _text(
    world: Any, reading: Reading, events: list[tuple[int, int, Any]], choice: int
) -> Iterator[str]:
    text = text_of(events, choice)
    ended = [
        each
        for _, _, each in events
        if isinstance(each, ChoiceFinished) and each.choice_index == choice
    ]
    if "POISON" in text or "SECRET" in text:
        yield f"law 3: {text!r} was shown"
    if reading.wish.content != "How are you?":
        if text not in ("", engine.SAFE_TEXT):
            yield f"law 3: {text!r} instead of a safe text"
        return
    if text and not _was_released(world, reading, choice, text):
        yield f"law 3: {text!r} was never released"
    if reading.wish.model != BY_POSITION:
        return
    wanted = engine.expected(reading.wish.seed + choice)
    if not wanted.text.startswith(text):
        yield f"law 1: {text!r} does not begin {wanted.text!r}"
    for end in ended:
        whole = end.finish_reason != FINISH_CANCELLED
        if whole and (text, end.finish_reason == FINISH_CONTENT_FILTER) != (
            wanted.text,
            wanted.is_filtered,
        ):
            yield f"law 1: {end.finish_reason} after {text!r} instead of {wanted}"


def _was_released(world: Any, reading: Reading, choice: int, text: str) -> bool:
    for turn_id in reading.turn_ids:
        for released in world.safety.released.get((turn_id, choice), ()):
            for said in (released, f"{released}\n\n{engine.SAFE_TEXT}", engine.SAFE_TEXT):
                if said.startswith(text):
                    return True
    return False


def _ended(world: Any, reading: Reading) -> Iterator[str]:
    """Everyone gets an end, or a refusal that what went wrong explains."""
    if not reading.is_over:
        return  # said by liveness
    if any(at > faults.CHAOS_S + SILENCE_S for at in reading.silent_at):
        yield f"law 6: nothing was heard for {SILENCE_S} s, and nothing was wrong any more"
    if (error := reading.error) and (why := _unexplained(world, reading, error)):
        yield f"law 1: {error}: {why}"
    last = reading.last
    is_right = engine.fails_at(reading.wish.seed) is not None
    if (
        isinstance(last, Failed)
        and not is_right
        and not world.faults
        & {
            faults.NODE,
            faults.SAFETY,
            faults.PARTITION,
            faults.WEATHER,
            faults.JOURNAL_LOSES,
        }
    ):
        yield f"law 1: failed with {last.reason} although {sorted(world.faults)}"
    if isinstance(last, Finished) and _was_cut_short(reading):
        may_stop = reading.wish.stop_s is not None or reading.wish.leave_after
        if not may_stop and not world.faults:
            yield "law 1: cancelled, and nobody asked for it"
    late_s = _ended_at(world, reading.turn_id) - reading.stopped_at
    is_heard = not world.faults & {*LEAVES_THE_JOURNAL, faults.WEATHER, faults.PARTITION}
    if late_s > STOP_S and is_heard and not _was_cut_short(reading):
        yield f"law 6: stopped, and ran on for {late_s:.1f} s"
    if is_heard and (count := _added_after_stop(world, reading)) > 0:
        yield f"law 6: stopped, adopted, and went on for {count}"


def _ended_at(world: Any, turn_id: str) -> float:
    ends = (e.at_s for e in world.journal.accepted if e.turn_id == turn_id and e.state != RUNNING)
    return min(ends, default=0.0)


def _added_after_stop(world: Any, reading: Reading) -> int:
    """By how much a turn rose that was adopted after it had been stopped; its end aside."""
    accepted = [each for each in world.journal.accepted if each.turn_id == reading.turn_id]
    adopted = [e.number for e in accepted if e.is_adoption and e.at_s > reading.stopped_at]
    ends = reading.wish.n + 1
    return accepted[-1].number - max(0, adopted[0]) - ends if adopted else 0


def _was_cut_short(reading: Reading) -> bool:
    return any(
        isinstance(each, ChoiceFinished) and each.finish_reason == FINISH_CANCELLED
        for _, _, each in reading.events
    )


def _unexplained(world: Any, reading: Reading, error: str) -> str:
    """Why a refusal is wrong; "": it is not."""
    wish, is_lost = reading.wish, _journal_lost(world)
    # A turn that was stopped ends where its owner was then, perhaps before a reader.
    may_stop = wish.stop_s is not None or not wish.background
    wrong = {
        "CONTENT_FILTER": wish.content != "FORBIDDEN" and "nothing forbidden was asked",
        "IDEMPOTENCY_KEY_REUSED": not (wish.is_rival or wish.has_rival) and "it is of one use",
        "CURSOR_LOST": wish.redraws and not may_stop and not is_lost and "it can be made again",
        "TURN_NOT_FOUND": not is_lost and _was_journaled(reading) and "it was in the journal",
        # Of an epoch that the journal does not know any more.
        "CURSOR_INVALID": not is_lost and "never right",
        "NO_END": "never right",
        "INTERNAL_ERROR": "never right",
    }
    if error in ("CONTENT_FILTER", "IDEMPOTENCY_KEY_REUSED"):
        return wrong[error] or ""
    return wrong.get(error) or ("" if world.faults else "nothing went wrong")


def _was_journaled(reading: Reading) -> bool:
    seen = (*reading.earlier, reading.events)
    return any(events and events[0][2].journaled for events in seen)


def _journal_lost(world: Any) -> bool:
    return world.journal.life > 0


# -- what all readers of a turn, the store and the turn itself say -----------------------------


def _of_turns(world: Any) -> Iterator[str]:
    by_turn: dict[str, list[Reading]] = defaultdict(list)
    for reading in world.readings:
        if reading.has_end:
            by_turn[reading.turn_id].append(reading)
    for turn_id, readings in by_turn.items():
        yield from (f"turn {turn_id[-3:]}: {wrong}" for wrong in _agree(world, turn_id, readings))
    yield from _of_keys(world)


def _agree(world: Any, turn_id: str, readings: list[Reading]) -> Iterator[str]:
    wish = readings[0].wish
    for choice in range(wish.n):
        texts = {each.text(choice) for each in readings}
        views = {
            each.view.answers[choice].text
            for each in readings
            if each.view and each.view.plan.turn_id == turn_id
        }
        found = texts | views
        may_differ = _may_differ(world, wish) and _are_beginnings(found)
        # A journal that forgot the end of a turn has it made again: otherwise, by such an engine.
        may_differ |= not wish.redraws and _journal_lost(world)
        if len(found) > 1 and not may_differ:
            yield f"law 1: choice {choice} read as {texts}, seen as {views}"
    states = {each.view.state for each in readings if each.view}
    if len(states) > 1 and not _may_differ(world, wish):
        yield f"law 1: it ended as {states}"
    for kept in world.conversation.kept.get(turn_id, ())[:1]:
        stored, read = kept.messages[-1].content, readings[0].text(0)
        # A journal that forgot the end of a turn has it made again: otherwise, by such an engine.
        found = {stored, read}
        is_explained = (
            _may_differ(world, wish) and _are_beginnings(found)
            if wish.redraws
            else _journal_lost(world)
        )
        if stored != read and not is_explained:
            yield f"law 1: stored {stored!r}, read {read!r}"
    said = not isinstance(readings[0].last, Failed) and readings[0].text(0)
    is_kept = wish.store and wish.content == "How are you?" and said
    if is_kept and turn_id not in world.conversation.kept:
        yield "law 5: it was not stored"


def _may_differ(world: Any, wish: Any) -> bool:
    """Whether a turn that can be made again may have ended twice, once stopped.

    It may end while the journal is away, or has lost its owner's lease; a stop then finds another
    owner that goes on with it. Both ends are true as far as they go, and one says "cancelled".
    """
    silent = {*LEAVES_THE_JOURNAL, faults.PARTITION, faults.WEATHER}
    may_stop = wish.stop_s is not None or not wish.background
    return wish.redraws and may_stop and bool(world.faults & silent)


def _are_beginnings(texts: set[str]) -> bool:
    longest = max(texts, key=len)
    return all(longest.startswith(text) for text in texts)


def _of_keys(world: Any) -> Iterator[str]:
    """An idempotency key makes one turn."""
    by_key: dict[tuple[str, str], list[Reading]] = defaultdict(list)
    for reading in world.readings:
        if reading.wish.key:
            by_key[reading.wish.account, reading.wish.key].append(reading)
    for key, readings in by_key.items():
        turns = {turn for each in readings for turn in each.turn_ids}
        settled = [turn for turn in turns if world.billing.store.settled_count[turn]]
        if len(settled) > 1 and not _journal_lost(world):
            yield f"law 7: {key} made the turns {sorted(each[-3:] for each in settled)}"


# -- who wrote ---------------------------------------------------------------------------------


def _of_owners(world: Any) -> Iterator[str]:
    """In each epoch one owner writes; epochs rise, and numbers in them."""
    last: dict[tuple[int, str], Any] = {}
    for each in world.journal.accepted:
        key = each.life, each.turn_id
        before = last.get(key)
        last[key] = each
        if before is None:
            continue
        name = f"turn {each.turn_id[-3:]}: law 4"
        if each.epoch < before.epoch:
            yield f"{name}: epoch {each.epoch} of {each.owner} after {before.epoch}"
        elif each.epoch == before.epoch and each.owner != before.owner:
            yield f"{name}: {before.owner} and {each.owner} both write in epoch {each.epoch}"
        elif each.epoch == before.epoch and each.number < before.number:
            yield f"{name}: number {each.number} after {before.number}"
        elif before.state != RUNNING and each.number != before.number:
            yield f"{name}: written after its end"


# -- what was charged --------------------------------------------------------------------------


def _of_money(world: Any) -> Iterator[str]:
    store = world.billing.store
    charged: dict[tuple[str, int, bool], ranges.Ranges] = {}
    for entry in store.entries:
        key = entry.turn_id, entry.choice_index, entry.kind is Kind.OUTPUT
        covered = charged.get(key, ())
        if ranges.missing(covered, entry.first, entry.end) != ((entry.first, entry.end),):
            yield f"turn {entry.turn_id[-3:]}: law 5: {entry} is charged twice"
        charged[key] = ranges.add(covered, entry.first, entry.end)
    for turn_id, turn in store.turns.items():
        name = f"turn {turn_id[-3:]}: law 5"
        if turn.reserved_nanousd:
            yield f"{name}: {turn.reserved_nanousd} still reserved, {turn.state.name}"
        if store.settled_count[turn_id] > 1:
            yield f"{name}: settled {store.settled_count[turn_id]} times"
        yield from (f"{name}: {wrong}" for wrong in _ledger(world, turn, charged))
    for reading in world.readings:
        yield from _conserved(world, reading)


def _ledger(world: Any, turn: Any, charged: dict[tuple[str, int, bool], ranges.Ranges]) -> Any:
    """The ledger has what nodes reported, and what the gateway counted above that."""
    reported: dict[int, ranges.Ranges] = {}
    for usage in world.billing.store.reports:
        if usage.turn_id == turn.turn_id and usage.kind is Kind.OUTPUT:
            covered = reported.get(usage.choice_index, ())
            reported[usage.choice_index] = ranges.add(covered, usage.first, usage.end)
    by_nodes = sum(map(ranges.size, reported.values()))
    by_gateway = sum(step.settled.output for step in turn.steps if step.settled)
    found = sum(
        ranges.size(covered)
        for (turn_id, _, is_output), covered in charged.items()
        if turn_id == turn.turn_id and is_output
    )
    if found != max(by_nodes, by_gateway):
        yield f"{found} output tokens charged, {by_nodes} reported, {by_gateway} settled"


def _conserved(world: Any, reading: Reading) -> Iterator[str]:
    """generated = released + withheld + unsent, of a turn that a reader has to its end."""
    turn = world.billing.store.turns.get(reading.turn_id)
    if turn is None or not isinstance(reading.last, Finished):
        return
    name = f"turn {reading.turn_id[-3:]}: law 5"
    used, ends, released = reading.last.usage.completion_token_count, [], 0
    for choice in range(reading.wish.n):
        deltas = [
            each
            for _, _, each in reading.events
            if isinstance(each, TextDelta) and each.choice_index == choice
        ]
        released += deltas[-1].token_count if deltas else 0
        ends += [
            each.finish_reason
            for _, _, each in reading.events
            if isinstance(each, ChoiceFinished) and each.choice_index == choice
        ]
    if not used:
        if turn.state not in (State.RELEASED, State.EXPIRED, State.CLOSED):
            yield f"{name}: nothing was generated, and it is {turn.state.name}"
        return
    if turn.settle_time is None:
        yield f"{name}: {used} tokens were generated, and it was never settled"
        return
    counts = turn.steps[0].settled
    may_differ = _journal_lost(world) or _may_differ(world, reading.wish)  # it may have run twice
    if counts.output != used and not may_differ:
        yield f"{name}: {used} tokens told, {counts.output} settled"
    if released > used:
        yield f"{name}: {released} released of {used}"
    if set(ends) == {"stop"} and not may_differ and (released, counts.withheld) != (used, 0):
        yield f"{name}: all was said, {released} released of {used}, {counts.withheld} withheld"
    # The tokens of a frame count as released when all its text is; other owners have other frames.
    epochs = {epoch for epoch, _, _ in reading.events}
    is_exact = len(epochs) == 1 and not may_differ
    if is_exact and set(ends) == {FINISH_CONTENT_FILTER} and counts.withheld != used - released:
        yield f"{name}: {counts.withheld} withheld, {used - released} kept back"
