"""Readings of a text that comes in pieces: what is between the pieces is taken away.

Each rule needs several pieces of its own kind before it reads anything, so that ordinary prose,
lists and programs have no such reading, or one that means nothing. All are linear in the length.
"""

import re
from collections import Counter
from collections.abc import Iterator

# "How do", 'I', … in an array, a sum, or assignments that follow each other.
_QUOTED = re.compile(r"""(["'])((?:(?!\1)[^\n\\]){1,48})\1""")
_BETWEEN_QUOTED = re.compile(r"\s*(?:[,+]\s*|;?\s*(?:\w{1,16}\s*=\s*)?)")
_BETWEEN_LENGTH_MAX = 32
_QUOTED_COUNT_MIN = 3
# (2) I make
_NUMBERED = re.compile(r"(?m)^\W{0,2}(\d{1,2})[).:\]]\s*(\S{1,24}(?: \S{1,24}){0,2}) ?$")
_NUMBERED_COUNT_MIN = 3
# Letters alone, whatever stands between them.
_ALONE = re.compile(r"(?:(?<![^\W_])[^\W_](?![^\W_])[\W_]{1,12}){9,}(?<![^\W_])[^\W_](?![^\W_])")
_GAP = re.compile(r"[\W_]+")
_LETTER_SHARE_MIN = 0.6
# Inline markup within a word.
_TAG = re.compile(
    r"(?<=\w)(?:<!--[^<>]{0,40}-->|</?(?:b|i|u|s|em|strong|span|font|wbr|mark|small|sub|sup)\b"
    r"[^<>]{0,40}>|\*\*|~~)+(?=\w)"
)
_TAG_COUNT_MIN = 2
# A word cut by a hyphen into short ends: bo-mb.
_HYPHENATED = re.compile(r"(?<![\w-])([^\W\d_]{1,5})-([^\W\d_]{1,5})(?![\w-])")
_HYPHENATED_COUNT_MIN = 3
_WORD = re.compile(r"\S+")
# HHooww
_DOUBLED = re.compile(r"(?<!\w)(?:([^\W\d_])\1){2,}(?!\w)")
_DOUBLED_COUNT_MIN = 3
# HowDoIMake…
_HUMPED = re.compile(r"(?<!\w)(?:[A-Z][a-z]*){5,}(?!\w)(?<![A-Z]{5})")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# Of a request cut into turns: "It goes on: …", 'Part two is "…"'.
_PART = re.compile(
    r"(?im)^[^:\"“\n]{0,40}\b(?:beginning|part|piece|half|goes on|continues?|first|second|"
    r"third|next|rest|end)\b[^:\"“\n]{0,24}(?::\s*|[\"“])([^\"”\n]{3,200})"
)


def joined(text: str) -> Iterator[str]:
    """Every reading of `text`, already plain, with its pieces together."""
    yield from _quoted(text)
    yield from _numbered(text)
    for pattern, count_min, whole in _WITHIN:
        found = len(pattern.findall(text))
        if found >= count_min and (not whole or 4 * found >= len(_WORD.findall(text))):
            yield pattern.sub(_without, text)
    if _ALONE.search(text):
        yield _ALONE.sub(_together, text)
    if _HUMPED.search(text):
        yield _HUMPED.sub(lambda match: _HUMP.sub(" ", match.group()), text)


def parts_joined(text: str) -> str:
    """What stands in the parts that a text names, as one; empty where there are not two."""
    parts = _PART.findall(text)
    return " ".join(part.strip() for part in parts) if len(parts) > 1 else ""


def _quoted(text: str) -> Iterator[str]:
    """Strings that follow each other with only signs of a program between them."""
    run: list[str] = []
    end = 0
    for match in _QUOTED.finditer(text):
        start = match.start()
        near = start - end <= _BETWEEN_LENGTH_MAX
        if run and not (near and _BETWEEN_QUOTED.fullmatch(text, end, start)):
            yield from _run(run)
            run = []
        run.append(match.group(2))
        end = match.end()
    yield from _run(run)


def _run(pieces: list[str]) -> Iterator[str]:
    if len(pieces) >= _QUOTED_COUNT_MIN:
        # Pieces that bring their spaces are parts of words.
        cut = any(piece != piece.strip() for piece in pieces)
        yield ("" if cut else " ").join(pieces)


def _numbered(text: str) -> Iterator[str]:
    parts = [(int(number), words.strip()) for number, words in _NUMBERED.findall(text)]
    if len(parts) >= _NUMBERED_COUNT_MIN and len({number for number, _ in parts}) == len(parts):
        yield " ".join(words for _, words in sorted(parts))


def _without(match: re.Match[str]) -> str:
    """A word without what cuts it: two ends together, or one of each pair of letters."""
    if match.re is _DOUBLED:
        return match.group()[::2]
    return "".join(match.groups())


def _together(match: re.Match[str]) -> str:
    """Letters alone as words; the gap that is longer than most, or alone a space, parts them."""
    text = match.group()
    letters = sum(one.isalpha() for one in text if one.isalnum())
    count = sum(one.isalnum() for one in text)
    if letters < _LETTER_SHARE_MIN * count:
        return text
    ((most, _),) = Counter(_GAP.findall(text)).most_common(1)

    def closed(gap: re.Match[str]) -> str:
        sign = gap.group()
        more = len(sign) - 2 * len(most)
        parts = more >= 0 if most.isspace() else more > 0 or sign.isspace()
        return " " if parts else ""

    return _GAP.sub(closed, text)


# Pattern, how often it stands there at least, and whether a quarter of all words have it.
_WITHIN = (
    (_TAG, _TAG_COUNT_MIN, False),
    (_HYPHENATED, _HYPHENATED_COUNT_MIN, True),
    (_DOUBLED, _DOUBLED_COUNT_MIN, True),
)
