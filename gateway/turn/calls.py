"""Tool calls in an answer's text: read where the answer is read, and nowhere kept. Pure.

Whatever a node, safety and the journal know of a tool call is text, in the markup that the plan
names. So an answer with calls is continued, screened, cut and numbered as any other; each reader
reads the calls anew, from the beginning of the text to its cursor in silence. The grammar of the
answer (`inference.v1.CallFormat`) makes the reading certain: outside of calls the markup that
begins them cannot be generated.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from hashlib import blake2b

from chatmesh.content.v1.content_pb2 import CallSyntax
from gateway.turn.answer import Answer
from gateway.turn.domain import (
    FINISH_CONTENT_FILTER,
    FINISH_STOP,
    FINISH_TOOL_CALLS,
    CallDelta,
    ChoiceFinished,
    Logprob,
    TextDelta,
    ToolCall,
)
from gateway.turn.events import BEGINNING, Numbered, behind, weight
from gateway.turn.plan import Plan

ID_DIGEST_SIZE = 12

# What matters within a JSON string, and outside of one.
_IN_STRING = re.compile(r'["\\]')
_OUTSIDE = re.compile(r'["{}\[\]]')


class _At(Enum):
    """What comes next in the text."""

    TEXT = auto()
    BEFORE_NAME = auto()
    NAME = auto()
    ARGUMENTS = auto()
    AFTER_ARGUMENTS = auto()
    BETWEEN = auto()
    END = auto()
    # Nothing that a grammar allows: a mask lies over the markup. The rest is not shown.
    BROKEN = auto()


@dataclass(frozen=True, slots=True)
class Piece:
    """What became known: text of the answer, and calls behind it."""

    text: str
    calls: Sequence[CallDelta] = ()


class CallReader:
    """Reads one answer, in pieces of any size.

    Args:
        syntax: how the calls are written.
        id_of: the id of a call, by its index.
    """

    def __init__(self, syntax: CallSyntax, id_of: Callable[[int], str]) -> None:
        self._syntax, self._id_of = syntax, id_of
        self._opening = syntax.before_calls or syntax.before_name
        self._at = _At.TEXT
        self._rest = ""
        # How much of the rest, while it is text, the reader was told all the same.
        self._told_count = 0
        self._index = 0
        self._depth, self._is_in_string, self._is_escaped = 0, False, False
        self._text = ""
        self._calls: list[CallDelta] = []

    @property
    def is_in_calls(self) -> bool:
        """Whether the text before the calls is over."""
        return self._at is not _At.TEXT

    @property
    def held(self) -> str:
        """Text that is held back, and that its reader was not told."""
        return self._rest[self._told_count :] if self._at is _At.TEXT else ""

    def mark_told(self) -> None:
        """The reader knows all text so far."""
        self._told_count = len(self._rest) if self._at is _At.TEXT else 0

    def feed(self, text: str) -> Piece:
        """Takes more of the answer; what could be the beginning of markup is held back."""
        self._rest += text
        self._text, self._calls = "", []
        while self._step():
            pass
        return Piece(self._text, self._calls)

    def finish(self, reason: str) -> tuple[str, str]:
        """The text that was held back, and why the answer ended, as the reader is told."""
        held = self.held
        if reason != FINISH_STOP:
            return held, reason
        if self._at is _At.TEXT:
            return held, reason
        # The grammar ends no call but a whole one: anything else lies under a mask.
        is_whole = self._at is (_At.END if self._syntax.after_calls else _At.BETWEEN)
        return held, FINISH_TOOL_CALLS if is_whole and not self._rest else FINISH_CONTENT_FILTER

    def _step(self) -> bool:
        """Whether it came further."""
        match self._at:
            case _At.TEXT:
                further = self._read_text()
            case _At.BEFORE_NAME:
                further = self._expect(self._syntax.before_name, _At.NAME)
            case _At.NAME:
                further = self._read_name()
            case _At.ARGUMENTS:
                further = self._read_arguments()
            case _At.AFTER_ARGUMENTS:
                further = self._expect(self._syntax.after_arguments, _At.BETWEEN)
            case _At.BETWEEN:
                further = self._read_between()
            case _:
                self._rest, further = "", False
        return further

    def _read_text(self) -> bool:
        text, found, rest = self._rest.partition(self._opening)
        if found:
            self._tell(text)
            self._rest = rest
            self._at = _At.BEFORE_NAME if self._syntax.before_calls else _At.NAME
            return True
        end = len(text) - _held_count(text, self._opening)
        self._tell(text[:end])
        self._rest = text[end:]
        return False

    def _tell(self, text: str) -> None:
        self._text = text[self._told_count :]
        self._told_count = max(0, self._told_count - len(text))

    def _read_name(self) -> bool:
        name, found, rest = self._rest.partition(self._syntax.before_arguments)
        if not found:
            return False
        self._calls.append(CallDelta(self._index, self._id_of(self._index), name))
        self._rest, self._at = rest, _At.ARGUMENTS
        return True

    def _read_arguments(self) -> bool:
        end = self._end_of_json()
        if end:
            self._calls.append(CallDelta(self._index, arguments=self._rest[:end]))
            self._rest = self._rest[end:]
        if not end or self._depth:
            return False
        self._at = _At.AFTER_ARGUMENTS
        return True

    def _end_of_json(self) -> int:
        """How much of the rest belongs to the JSON object that is being read."""
        place = 0
        while place < len(self._rest):
            if self._is_escaped:
                self._is_escaped = False
                place += 1
                continue
            found = (_IN_STRING if self._is_in_string else _OUTSIDE).search(self._rest, place)
            if not found:
                break
            place = found.end()
            match found[0]:
                case '"':
                    self._is_in_string = not self._is_in_string
                case "\\":
                    self._is_escaped = True
                case "{" | "[":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if not self._depth:
                        return place
        return len(self._rest)

    def _read_between(self) -> bool:
        between, after = self._syntax.between_calls, self._syntax.after_calls
        if between and self._rest.startswith(between):
            self._rest, self._at = self._rest[len(between) :], _At.BEFORE_NAME
            self._index += 1
            return True
        if after and self._rest.startswith(after):
            self._rest, self._at = self._rest[len(after) :], _At.END
            return True
        if not between.startswith(self._rest) and not after.startswith(self._rest):
            self._at = _At.BROKEN
        return False

    def _expect(self, text: str, then: _At) -> bool:
        if self._rest.startswith(text):
            self._rest, self._at = self._rest[len(text) :], then
            return True
        if not text.startswith(self._rest):
            self._at = _At.BROKEN
            return True
        return False


class CallReading:
    """The events of a turn as one reader is told them, with the calls of each answer read."""

    def __init__(self, plan: Plan) -> None:
        self._readers = [reader_of(plan, index) for index in range(plan.choice_count)]
        # Of tokens whose text is held back, by answer.
        self._logprobs: list[list[Logprob]] = [[] for _ in self._readers]
        self._token_counts = [0] * plan.choice_count
        # Of the last event that was read.
        self._number = BEGINNING

    def skip(self, events: Sequence[Numbered], cursor: int) -> None:
        """Reads what the reader has seen of events that follow each other."""
        before = self._number
        for numbered in events:
            fresh = behind(numbered, self._number)
            if fresh is None:
                continue
            number, event = fresh
            begin = number - weight(event)
            if begin >= cursor:
                break
            if isinstance(event, TextDelta):
                if number > cursor:
                    seen = event.text.encode()[: cursor - begin].decode()
                    number, event = cursor, replace(event, text=seen)
                self._readers[event.choice_index].feed(event.text)
            self._number = number
        if self._number > before:
            for reader in self._readers:
                reader.mark_told()

    def told(self, events: Sequence[Numbered]) -> list[Numbered]:
        """Events that follow what was read; fewer where all of a text is held back."""
        found: list[Numbered] = []
        for number, event in events:
            self._number = number
            if isinstance(event, TextDelta):
                if shown := self._delta(event):
                    # The cursor behind it is where the text ends that was told.
                    held = self._readers[event.choice_index].held
                    found.append(Numbered(number - len(held.encode()), shown))
            elif isinstance(event, ChoiceFinished):
                index = event.choice_index
                held, reason = self._readers[index].finish(event.finish_reason)
                if held:  # its place is before the end
                    last = TextDelta(index, held, self._token_counts[index], self._logprobs[index])
                    found.append(Numbered(number - 1, last))
                found.append(Numbered(number, replace(event, finish_reason=reason)))
            else:
                found.append(Numbered(number, event))
        return found

    def _delta(self, event: TextDelta) -> TextDelta | None:
        index = event.choice_index
        reader, logprobs = self._readers[index], [*self._logprobs[index], *event.logprobs]
        piece = reader.feed(event.text)
        self._token_counts[index] = event.token_count
        # Log probabilities tell the text of tokens: they come with it, and those of calls never.
        is_held = not piece.text and bool(reader.held)
        self._logprobs[index] = logprobs if is_held else []
        shown = [] if is_held or reader.is_in_calls else logprobs
        if not piece.text and not piece.calls and not shown:
            return None
        return replace(event, text=piece.text, calls=piece.calls, logprobs=shown)


@dataclass(frozen=True, slots=True)
class Read:
    """An answer, so far, with its calls read."""

    text: str
    calls: Sequence[ToolCall]
    # As the client is told it.
    finish_reason: str


def read(plan: Plan, answer: Answer) -> Read:
    """What an answer says."""
    if not plan.has_tools:
        return Read(answer.text, (), answer.finish_reason)
    reader = reader_of(plan, answer.choice_index)
    piece = reader.feed(answer.text)
    held, reason = reader.finish(answer.finish_reason)
    return Read(piece.text + held, gathered(piece.calls), reason)


def gathered(deltas: Sequence[CallDelta]) -> list[ToolCall]:
    """The calls that deltas make up."""
    calls: list[ToolCall] = []
    for delta in deltas:
        if delta.name:
            calls.append(ToolCall(delta.id, delta.name, delta.arguments))
        else:
            last = calls[delta.call_index]
            calls[delta.call_index] = replace(last, arguments=last.arguments + delta.arguments)
    return calls


def reader_of(plan: Plan, choice_index: int) -> CallReader:
    """A reader for one answer of a turn with tools."""
    request = plan.stored.request

    def id_of(index: int) -> str:
        place = f"{plan.turn_id}/{request.step}/{choice_index}/{index}"
        return "call_" + blake2b(place.encode(), digest_size=ID_DIGEST_SIZE).hexdigest()

    return CallReader(request.calls.syntax, id_of)


def _held_count(text: str, opening: str) -> int:
    """How many characters at the end of a text may begin the opening."""
    longest = min(len(text), len(opening) - 1)
    return next((n for n in range(longest, 0, -1) if opening.startswith(text[-n:])), 0)
