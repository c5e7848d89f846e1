"""Words, phrases and patterns of phrases, in one pass over the words of a text.

A rulebook names phrases. A phrase is a finding by itself (a term), belongs to a class that
patterns use, or is ordinary: an ordinary phrase shields the words inside it ("bath bomb" is no
bomb). A pattern is classes that follow one another in one sentence with a bounded number of
words between them ("build" … "pipe bomb").

Phrases are found with a trie over words, as in Aho and Corasick (1975) but with a short list of
live positions instead of failure links: phrases are short and seldom begin.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from safety_svc.detectors import prefilter
from safety_svc.detectors.base import (
    NOTHING_OPEN,
    NOWHERE,
    Audience,
    Category,
    Feed,
    Finding,
    Open,
    byte_count,
)
from safety_svc.detectors.normalise import INVISIBLE, normalise, unleet

WORD_LENGTH_MAX = 64
# So many letters of a phrase's first word may leave: an answer that begins with "I" or "The" need
# not wait for its second token, and three letters of a bad word harm nobody. None may where terms
# are masked: what is masked is masked whole.
FREE_LENGTH = 3
# How far before a pattern the words that rule it out may stand.
UNLESS_REACH_WORDS = 6
# A word with the invisible characters and combining marks in it, or the end of a sentence.
_UNIT = re.compile(rf"(?:[^\W_]|[\u0300-\u036f{INVISIBLE}])+|[.!?]")
_LAST_UNIT = re.compile(r"[^\W_]+$")
_BREAKS = frozenset(".!?")


class Term(NamedTuple):
    """A phrase that is a finding by itself."""

    category: Category
    detector: str


@dataclass(frozen=True, slots=True)
class Pattern:
    """Classes that follow one another.

    Attributes:
        name: the detector's name in findings.
        category: what it is.
        sequence: names of classes, at least 2.
        gap_word_count_max: words allowed between two of them.
        unless: a class that rules the pattern out when it stands between, or shortly before.
        audiences: where it holds.
    """

    name: str
    category: Category
    sequence: tuple[str, ...]
    gap_word_count_max: int
    unless: str
    audiences: frozenset[Audience]


@dataclass(slots=True)
class Node:
    """A place in the trie and what ends there."""

    children: dict[str, "Node"] = field(default_factory=dict)
    terms: list[Term] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    ordinary: bool = False
    leads_to_ordinary: bool = False  # here or below
    leads_to_strong: bool = False  # a term, or a class that ends a pattern


class Lexicon:
    """The rules that hold for one audience, compiled; shared by all scanners, never changed."""

    def __init__(
        self,
        terms: Iterable[tuple[str, Term]],
        classes: Mapping[str, Iterable[str]],
        ordinary: Iterable[str],
        patterns: Iterable[Pattern],
    ) -> None:
        self.root = Node()
        self.patterns = tuple(patterns)
        self.words: set[str] = set()
        self.strong_beginnings: set[str] = set()
        self.weak_beginnings: set[str] = set()
        self.patterns_of: dict[str, list[int]] = {}
        # The words of each phrase that ends a finding, by the longest of them.
        self._ends: dict[str, list[frozenset[str]]] = {}
        for number, pattern in enumerate(self.patterns):
            for name in sorted({*pattern.sequence, pattern.unless}):
                self.patterns_of.setdefault(name, []).append(number)
        last = {pattern.sequence[-1] for pattern in self.patterns}
        used = {name for one in self.patterns for name in (*one.sequence, one.unless) if name}
        for phrase, term in terms:
            self._add(phrase, strong=True).terms.append(term)
        for name in sorted(used):
            for phrase in classes[name]:
                self._add(phrase, strong=name in last).classes.append(name)
        for phrase in ordinary:
            self._add(phrase, ordinary=True).ordinary = True

    def _add(self, phrase: str, *, strong: bool = False, ordinary: bool = False) -> Node:
        """Returns the node at the end of `phrase`, made where it is missing."""
        node, words = self.root, split(phrase)
        if strong:
            self._ends.setdefault(max(words, key=len), []).append(frozenset(words))
        for index, word in enumerate(words):
            self.words.add(word)
            if not ordinary and index == 0:
                beginnings = self.strong_beginnings if strong else self.weak_beginnings
                beginnings.update(word[:n] for n in range(len(word) + 1))
            node = node.children.setdefault(word, Node())
            node.leads_to_strong |= strong
            node.leads_to_ordinary |= ordinary
        return node

    def may_find(self, text: str) -> bool:
        """False, quickly, for a text that lacks a word of every phrase that ends a finding."""
        words = set()
        for unit in set(_UNIT.findall(text)):
            if unit.isascii() and unit.isalpha():
                words.add(unit.lower())
            elif len(unit) <= WORD_LENGTH_MAX:  # as in `feed`
                word = normalise(unit)
                words |= {word, unleet(word)}
        phrases = (one for key in words & self._ends.keys() for one in self._ends[key])
        return any(phrase <= words for phrase in phrases)


def split(phrase: str) -> list[str]:
    """The words of a phrase, in their canonical spelling."""
    return [normalise(match.group()) for match in _UNIT.finditer(phrase)]


class _Live(NamedTuple):
    node: Node
    start: int
    first_word: int


class _Hit(NamedTuple):
    node: Node
    start: int
    end: int
    first_word: int
    last_word: int


class _Stage(NamedTuple):
    start: int
    last_word: int


class WordScanner:
    """Finds the phrases and patterns of a lexicon in a text that arrives in pieces."""

    def __init__(self, lexicon: Lexicon, free_length: int = FREE_LENGTH) -> None:
        self._lexicon = lexicon
        self._free_length = free_length
        self._feed = Feed()
        self._overlong = False  # inside a word that is too long to be looked up
        self._index = 0
        self._live: list[_Live] = []
        self._waiting: list[_Hit] = []  # phrases that an ordinary one may still shield
        self._stops: dict[int, int] = {}  # pattern -> last word of what rules it out
        self._stages: dict[tuple[int, int], _Stage] = {}

    def feed(self, piece: str, *, final: bool = False) -> list[Finding]:
        """See `Scanner.feed`."""
        text = self._feed.add(piece)
        findings: list[Finding] = []
        cut = size = len(text)
        if final and self._feed.base == 0 and not self._lexicon.may_find(text):
            self._feed.cut(size)
            return findings
        for match in _UNIT.finditer(text, self._skip(text, findings)):
            word, end = match.group(), match.end()
            if word in _BREAKS:
                self._break(self._feed.at(match.start()), findings)
            elif end == size and not final:
                cut = match.start()
                break
            elif end - match.start() > WORD_LENGTH_MAX or self._is_foreign(word):
                self._unknown(end, findings)
            else:
                self._word(word, match.start(), end, findings)
        if size - cut > WORD_LENGTH_MAX:
            self._overlong, cut = True, size
        if final:
            self._break(self._feed.at(size), findings)
        self._feed.cut(cut)
        return findings

    @property
    def wakes(self) -> int:
        """See `Sleeper.wakes`."""
        return prefilter.WORD

    def wakes_at(self, words: Sequence[str]) -> bool:
        """See `Sleeper.wakes_at`: only a first word of a phrase changes anything."""
        first = self._lexicon.root.children
        for word in map(str.lower, words):
            if word in first or (not word.isalpha() and unleet(word) in first):
                return True
        return False

    def is_idle(self) -> bool:
        """See `Sleeper.is_idle`."""
        going_on = self._live or self._waiting or self._stages or self._stops
        return not (self._feed.text or self._overlong or going_on)

    def skip(self, context: str, offset: int) -> None:
        """See `Sleeper.skip`."""
        self._feed.base = offset

    def peek(self, word: str, offset: int) -> Open:
        """See `Sleeper.peek`."""
        if word.isalpha():
            return self._open_word(word, offset)
        unit = _LAST_UNIT.search(word)
        if not unit:
            return NOTHING_OPEN
        return self._open_word(unit.group(), offset + byte_count(word[: unit.start()]))

    def open(self) -> Open:
        """See `Scanner.open`."""
        strong = weak = NOWHERE
        word = normalise(self._feed.text)
        live_now = [live for live in self._live if self._may_go_on(live, word)]
        for live in live_now:
            if live.node.leads_to_strong:
                strong = min(strong, live.start)
            weak = min(weak, live.start)
        for hit in self._waiting:
            strong = min(strong, hit.start)
        for (number, _), stage in self._stages.items():
            gap = self._lexicon.patterns[number].gap_word_count_max
            if self._index - stage.last_word <= gap or live_now or self._waiting:
                weak = min(weak, stage.start)
        if self._feed.text:
            one = self._open_word(self._feed.text, self._feed.base)
            strong, weak = min(strong, one.strong), min(weak, one.weak)
        return Open(strong, weak)

    def _open_word(self, raw: str, offset: int) -> Open:
        """What the unfinished word `raw` may begin."""
        word = normalise(raw)
        if self._begins(word, self._lexicon.strong_beginnings):
            return Open(strong=offset) if len(raw) > self._free_length else Open(weak=offset)
        weak = self._begins(word, self._lexicon.weak_beginnings)
        return Open(weak=offset) if weak else NOTHING_OPEN

    @staticmethod
    def _may_go_on(live: _Live, unfinished: str) -> bool:
        """Whether a phrase can still go on with the word that has begun, if one has."""
        children = live.node.children
        if not unfinished or any(child.startswith(unfinished) for child in children):
            return True
        if unfinished.isalpha():
            return False
        plain = unleet(unfinished)
        return any(child.startswith(plain) for child in children)

    @staticmethod
    def _begins(word: str, beginnings: set[str]) -> bool:
        return word in beginnings or (not word.isalpha() and unleet(word) in beginnings)

    def _skip(self, text: str, findings: list[Finding]) -> int:
        """Index of the first character after an overlong word that began in an earlier piece."""
        if not self._overlong:
            return 0
        match = _UNIT.match(text)
        end = match.end() if match and match.group() not in _BREAKS else 0
        if end < len(text):
            self._overlong = False
            self._unknown(end, findings)
        return end

    def _is_foreign(self, word: str) -> bool:
        """Whether `word` is plainly in no phrase: so most words of a text are, it must be quick."""
        return word.lower() not in self._lexicon.words and word.isascii() and word.isalpha()

    def _unknown(self, end: int, findings: list[Finding]) -> None:
        """A word until index `end` that stands in no phrase: whatever was live has ended."""
        self._index += 1
        if self._live or self._waiting:
            self._live = []
            self._settle(self._feed.at(end), findings)

    def _word(self, raw: str, start: int, end: int, findings: list[Finding]) -> None:
        """Moves every live phrase on by one word and begins new ones."""
        words = self._lexicon.words
        word = normalise(raw)
        if word not in words and not word.isalpha():
            word = unleet(word)
        if word not in words:
            self._unknown(end, findings)
            return
        self._index += 1
        offset, end_offset = self._feed.at(start), self._feed.at(end)
        live = [*self._live, _Live(self._lexicon.root, offset, self._index)]
        self._live = []
        shielded = NOWHERE  # first word of the longest ordinary phrase that ends here
        for node, begin, first in live:
            after = node.children.get(word)
            if after is None:
                continue
            if after.ordinary:
                shielded = min(shielded, first)
            if after.terms or after.classes:
                self._waiting.append(_Hit(after, begin, end_offset, first, self._index))
            if after.children:
                self._live.append(_Live(after, begin, first))
        if shielded != NOWHERE:
            self._waiting = [hit for hit in self._waiting if hit.first_word < shielded]
        self._settle(end_offset, findings)

    def _settle(self, settled_at: int, findings: list[Finding]) -> None:
        """Acts on the phrases that no unfinished ordinary phrase can shield any more."""
        if not self._waiting:
            return
        shields = [live.first_word for live in self._live if live.node.leads_to_ordinary]
        first = min(shields, default=NOWHERE)
        waiting, self._waiting = self._waiting, []
        for hit in waiting:
            # In the order of the text: what waits keeps later phrases waiting.
            if hit.first_word >= first or self._waiting:
                self._waiting.append(hit)
                continue
            for category, detector in hit.node.terms:
                findings.append(Finding(settled_at, hit.start, hit.end, category, detector))
            for name in hit.node.classes:
                self._advance(name, hit, settled_at, findings)

    def _advance(self, name: str, hit: _Hit, settled_at: int, findings: list[Finding]) -> None:
        """Moves on the patterns that class `name` stands in."""
        for number in self._lexicon.patterns_of[name]:
            pattern = self._lexicon.patterns[number]
            # Later stages first, so that one phrase does not serve two of them.
            for stage in range(len(pattern.sequence) - 1, -1, -1):
                if pattern.sequence[stage] == name:
                    self._stage(number, stage, hit, settled_at, findings)
            if pattern.unless == name:
                self._stops[number] = hit.last_word

    def _stage(
        self, number: int, stage: int, hit: _Hit, settled_at: int, findings: list[Finding]
    ) -> None:
        """Enters one stage of a pattern, if what must come before it came."""
        pattern = self._lexicon.patterns[number]
        stopped = self._stops.get(number, -NOWHERE)
        start = hit.start
        if stage == 0:
            if hit.first_word - stopped <= UNLESS_REACH_WORDS:
                return
        else:
            before = self._stages.get((number, stage - 1))
            if before is None or stopped > before.last_word:
                return
            if not 0 < hit.first_word - before.last_word <= pattern.gap_word_count_max + 1:
                return
            start = before.start
        if stage < len(pattern.sequence) - 1:
            self._stages[number, stage] = _Stage(start, hit.last_word)
        else:
            findings.append(Finding(settled_at, start, hit.end, pattern.category, pattern.name))

    def _break(self, settled_at: int, findings: list[Finding]) -> None:
        """A sentence ends: nothing goes on over it."""
        if self._live or self._waiting:
            self._live = []
            self._settle(settled_at, findings)
        self._stages.clear()
        self._stops.clear()
