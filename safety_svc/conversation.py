"""A conversation as texts that are judged one by one, and what was found in them together. Pure.

    turns ──parts──> texts ──a model──> findings ──combined──> findings of the conversation

Every character that a model will read stands in one of the texts, and most in one only. A text is
no longer than a model judges in some milliseconds, so that others come in between, and depends on
its message alone, so that what was judged in an earlier turn of a chat need not be judged again:
`backends/conversations.py` remembers it.

What a message weighs is put on afterwards. The last message of the user counts in full, earlier
ones and the model's own less: they were judged in their own time. The user's last messages are
judged once more together, so that a request cut into turns is seen as one. Where a person attacks
the model's rules, what the attack wraps is judged by itself, paragraph by paragraph.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from safety_svc.classifier.joins import parts_joined
from safety_svc.classifier.labels import ATTACKS
from safety_svc.detectors.base import Audience, Category, Finding, PromptFinding, Turn, byte_count

# Characters of a text, and how many two texts of one message share at most.
LENGTH_MAX, OVERLAP_LENGTH = 4_096, 256
# The user's messages seen together: how many earlier ones, and of each how many characters.
_TOGETHER_COUNT, _TOGETHER_LENGTH, _LAST_LENGTH = 2, 160, 320
# From this score on a finding is an attack whose paragraphs are judged; how many of them; how long
# a paragraph is at least: shorter ones go with the next.
ATTACK_SCORE_MIN = 0.3
_PARAGRAPH_COUNT_MAX, _PARAGRAPH_LENGTH_MIN, _PARAGRAPH_LENGTH_MAX = 32, 24, 640
_SPACE = re.compile(r"\s")
_PARAGRAPH = re.compile(r"\S[^\n]*")


class Part(NamedTuple):
    """One text of a conversation.

    Attributes:
        message_index: the message that it is of.
        audience: who wrote it.
        text: what is judged.
        start: where it begins in the message, in characters; less than 0: so many characters of
            the author's name stand before it.
        weighs_less: whether it is no part of the user's last message.
        is_whole: whether what is found in it is found in the message as a whole.
    """

    message_index: int
    audience: Audience
    text: str
    start: int = 0
    weighs_less: bool = False
    is_whole: bool = False


class Unjudged(NamedTuple):
    """Text of a message that no model judged, in bytes of the message."""

    message_index: int
    start: int
    end: int


class Found(NamedTuple):
    """What a back end says of a conversation.

    Attributes:
        findings: in no certain order.
        unjudged: text that it did not judge, at most one entry a message, in their order.
    """

    findings: Sequence[PromptFinding] = ()
    unjudged: Sequence[Unjudged] = ()


# What a finding in a text of an audience is worth in a message that weighs less.
Lessen = Callable[[Finding, Audience], Finding]


def parts(turns: Sequence[Turn]) -> Iterator[Part]:
    """All texts of a conversation, those that weigh most first, then the latest first."""
    users = [index for index, turn in enumerate(turns) if turn.audience is Audience.USER]
    last = users[-1] if users else -1
    if users:
        yield from _of_message(last, turns[last], weighs_less=False)
    if len(users) > 1:
        spoken = together(turns, users)
        for text in (spoken, parts_joined(spoken)):
            if text:
                yield Part(last, Audience.USER, text, weighs_less=True, is_whole=True)
    for index in range(len(turns) - 1, -1, -1):
        if index != last:
            yield from _of_message(index, turns[index], weighs_less=True)


def wrapped(turns: Sequence[Turn], found: Iterable[PromptFinding]) -> Iterator[Part]:
    """The paragraphs of the messages in which a person attacks the model's rules.

    Args:
        turns: the conversation.
        found: what was found in its `parts`.
    """
    users = [index for index, turn in enumerate(turns) if turn.audience is Audience.USER]
    attacked = {
        index
        for index, finding in found
        if finding.category in ATTACKS
        and finding.score >= ATTACK_SCORE_MIN
        and turns[index].audience is not Audience.TOOL
    }
    for index in sorted(attacked, reverse=True):
        audience, text = turns[index].audience, turns[index].text
        paragraphs = list(_paragraphs(text))
        if len(paragraphs) > 1:
            for start, end in paragraphs[-_PARAGRAPH_COUNT_MAX:]:
                yield Part(index, audience, text[start:end], start, [index] != users[-1:])


def combined(
    turns: Sequence[Turn], found: Mapping[Part, Sequence[Finding]], lessen: Lessen
) -> list[PromptFinding]:
    """What was found in the parts, in their messages: of each category the highest score.

    Args:
        turns: the conversation.
        found: findings by part, spans in bytes of its text.
        lessen: of the model.
    """
    best: dict[tuple[int, Category], PromptFinding] = {}
    for part, findings in found.items():
        for one in findings:
            finding = lessen(one, part.audience) if part.weighs_less else one
            key = (part.message_index, finding.category)
            if key not in best or finding.score > best[key].finding.score:
                placed = _placed(turns[part.message_index].text, part, finding)
                best[key] = PromptFinding(part.message_index, placed)
    return list(best.values())


def unjudged(turns: Sequence[Turn], left_out: Iterable[Part]) -> list[Unjudged]:
    """The text of parts that were not judged, one entry a message, in their order."""
    spans: dict[int, tuple[int, int]] = {}
    for part in left_out:
        if not part.is_whole:
            start, end = max(0, part.start), part.start + len(part.text)
            low, high = spans.get(part.message_index, (start, end))
            spans[part.message_index] = (min(start, low), max(end, high))
    return [
        Unjudged(index, byte_count(turns[index].text[:start]), byte_count(turns[index].text[:end]))
        for index, (start, end) in sorted(spans.items())
    ]


def _of_message(index: int, turn: Turn, *, weighs_less: bool) -> Iterator[Part]:
    """The texts of one message, with its author's name before the first."""
    name = f"{turn.name}: " if turn.name else ""
    for start, end in _pieces(turn.text):
        before = name if start == 0 else ""
        text = before + turn.text[start:end]
        if text:
            yield Part(index, turn.audience, text, start - len(before), weighs_less)


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """Where the pieces of a text lie: they begin and end at spaces where there are some."""
    start = 0
    while len(text) - start > LENGTH_MAX:
        end = _space_before(text, start + LENGTH_MAX)
        yield start, end
        start = _space_before(text, end - OVERLAP_LENGTH // 2)
    yield start, len(text)


def _space_before(text: str, at: int) -> int:
    """The place behind the last space of the few characters before `at`, or `at`."""
    low = at - OVERLAP_LENGTH // 2
    spaces = [match.end() for match in _SPACE.finditer(text, low, at)]
    return spaces[-1] if spaces else at


def together(turns: Sequence[Turn], users: Sequence[int]) -> str:
    """The user's last messages as one text."""
    *earlier, last = (turns[index].text for index in users[-1 - _TOGETHER_COUNT :])
    return "\n\n".join([*(text[-_TOGETHER_LENGTH:] for text in earlier), last[:_LAST_LENGTH]])


def _paragraphs(text: str) -> Iterator[tuple[int, int]]:
    """Where the paragraphs of a text lie; long ones are cut."""
    begin = -1
    for match in _PARAGRAPH.finditer(text):
        begin = match.start() if begin < 0 else begin
        if match.end() - begin >= _PARAGRAPH_LENGTH_MIN:
            yield from _cut(begin, match.end())
            begin = -1
    if begin >= 0:
        yield begin, len(text)


def _cut(start: int, end: int) -> Iterator[tuple[int, int]]:
    for at in range(start, end, _PARAGRAPH_LENGTH_MAX):
        yield at, min(end, at + _PARAGRAPH_LENGTH_MAX)


def _placed(message: str, part: Part, finding: Finding) -> Finding:
    """A finding of a part at its place in the message."""
    size = byte_count(message)
    if part.is_whole:
        return finding._replace(settled_at=size, start=0, end=size)
    if part.start < 0:
        moved = -byte_count(part.text[: -part.start])
    else:
        moved = byte_count(message[: part.start])
    start, end, settled = (
        min(size, max(0, place + moved))
        for place in (finding.start, finding.end, finding.settled_at)
    )
    return finding._replace(settled_at=settled, start=start, end=end)
