"""The events of a turn, numbered so that every process numbers them alike. Pure but for waiting.

An event with text raises the number by its bytes of UTF-8, any other by 1. However the text is cut
into events, the end of the same text has the same number: a gateway that makes the turn again
from its plan needs not know how the one before had cut it, and a reader's cursor stays valid.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gateway.errors import CURSOR_INVALID, public
from gateway.turn.domain import (
    FINISH_CANCELLED,
    ChoiceFinished,
    Event,
    Failed,
    Finished,
    TextDelta,
)

# The cursor of a reader that has seen nothing.
BEGINNING = -1
NUMBER_DIGITS_MAX = 15
EPOCH_DIGITS_MAX = 9
FIRST_READER_S = 1.0


class Numbered(NamedTuple):
    """An event and its number: that of its last byte."""

    number: int
    event: Event


def weight(event: Event) -> int:
    """By how much an event raises the number."""
    return max(1, len(event.text.encode())) if type(event) is TextDelta else 1


def cuts_short(event: Event) -> bool:
    """Whether it ends what another owner would have gone on with."""
    if isinstance(event, ChoiceFinished):
        return event.finish_reason == FINISH_CANCELLED or event.bound is not None
    return isinstance(event, Failed)


def behind(numbered: Numbered, cursor: int) -> Numbered | None:
    """The part of an event that a reader at `cursor` has not seen; None: there is none.

    Raises:
        MeshError: CURSOR_INVALID: the cursor lies inside a character.
    """
    number, event = numbered
    if number <= cursor:
        return None
    begin = number - weight(event)
    if begin >= cursor or not isinstance(event, TextDelta):
        return numbered
    try:
        text = event.text.encode()[cursor - begin :].decode()
    except UnicodeDecodeError:
        raise bad_cursor() from None
    return Numbered(number, replace(event, text=text))


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a reader is: the number of the last event it saw, and who had numbered it."""

    epoch: int = 0
    number: int = BEGINNING

    def of(self, turn_id: str) -> str:
        """As clients carry it."""
        return f"{turn_id}:{self.epoch}:{self.number}"

    @classmethod
    def parse(cls, text: str, turn_id: str) -> "Cursor":
        """What a client carried; "" is the beginning.

        Raises:
            MeshError: CURSOR_INVALID: it is none, or one of another turn.
        """
        if not text:
            return cls()
        turn, *numbers = text.split(":")
        if turn != turn_id or len(numbers) != 2:  # noqa: PLR2004  # epoch and number
            raise bad_cursor()
        epoch, number = numbers
        if not (_is_number(epoch, EPOCH_DIGITS_MAX) and _is_number(number, NUMBER_DIGITS_MAX)):
            raise bad_cursor()
        return cls(int(epoch), int(number))


def _is_number(text: str, digits_max: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= digits_max


def bad_cursor() -> Exception:
    """The refusal of a cursor."""
    message = "This is no cursor of this turn; send the id of the last event, or none."
    return public(CURSOR_INVALID, message, param="after")


class EventLog:
    """The events of one turn of this process: one writer, any number of readers.

    Readers see events up to the number that was shown; what is behind it waits for the journal.
    """

    def __init__(self, events: Iterable[Numbered] = ()) -> None:
        """`events` are those that an earlier owner journaled: they are shown at once."""
        self.events = list(events)
        self.number = self.events[-1].number if self.events else BEGINNING
        self.shown_number = self.number
        # Nothing follows what is there; with `moved` it follows elsewhere.
        self.is_ended = self.is_moved = False
        self._shown_count = len(self.events)
        # Where each reader is, by what wakes it.
        self._readers: dict[asyncio.Event, int] = {}
        self._room = asyncio.Event()
        # Whoever began the turn needs a moment to come to read it.
        self._unread_since = _now() + FIRST_READER_S
        # Called when the last reader leaves.
        self.on_unread: Callable[[], object] = _ignore

    def append(self, event: Event) -> Numbered:
        """Numbers an event; readers do not see it yet."""
        self.number += weight(event) if self.events else 1  # the first is 0
        numbered = Numbered(self.number, event)
        self.events.append(numbered)
        return numbered

    def show(self, number: int) -> None:
        """Lets readers see the events up to `number`."""
        count = self._shown_count
        while count < len(self.events) and self.events[count].number <= number:
            count += 1
        if count != self._shown_count:
            self._shown_count, self.shown_number = count, self.events[count - 1].number
            self._wake()

    def end(self, *, moved: bool = False) -> None:
        """Says that nothing more will be shown here."""
        self.is_ended, self.is_moved = True, moved
        self._wake()
        self._room.set()

    @property
    def is_final(self) -> bool:
        """Whether the last event that can be is there."""
        return bool(self.events) and isinstance(self.events[-1].event, Finished | Failed)

    @property
    def idle_s(self) -> float:
        """For how long nobody has been reading; negative while somebody does, or may come."""
        return -1.0 if self._readers else _now() - self._unread_since

    async def room(self, bytes_max: int) -> None:
        """Returns when no reader, or the fastest one, is at most `bytes_max` behind."""
        while self._lag() > bytes_max and not self.is_ended:
            self._room.clear()
            await self._room.wait()

    async def read(self, cursor: int) -> AsyncGenerator[Sequence[Numbered], None]:
        """What follows `cursor`: all that is there, then what comes, until the end."""
        arrived = asyncio.Event()
        self._readers[arrived] = cursor
        index = 0
        try:
            while True:
                arrived.clear()
                news = [
                    left
                    for numbered in self.events[index : self._shown_count]
                    if (left := behind(numbered, cursor))
                ]
                index = self._shown_count
                self._advance(arrived, cursor := max(cursor, self.shown_number))
                if news:
                    yield news
                elif self.is_ended:
                    return
                else:
                    await arrived.wait()
        finally:
            self._advance(arrived, None)

    def _advance(self, reader: asyncio.Event, cursor: int | None) -> None:
        if cursor is None:
            del self._readers[reader]
            if not self._readers:
                self._unread_since = _now()
                self.on_unread()
        else:
            self._readers[reader] = cursor
        self._room.set()

    def _lag(self) -> int:
        if not self._readers:
            return 0
        return self.number - max(self._readers.values())

    def _wake(self) -> None:
        for arrived in self._readers:
            arrived.set()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _ignore() -> None:
    """Nobody is to be told."""
