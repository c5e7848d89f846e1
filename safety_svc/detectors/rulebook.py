"""The rulebook: `rules.yaml`, checked, and its scanners for each audience."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from safety_svc.detectors.base import Audience, Category, Scanner
from safety_svc.detectors.cards import CardScanner
from safety_svc.detectors.secrets import SecretScanner
from safety_svc.detectors.words import Lexicon, Pattern, Term, WordScanner
from safety_svc.document import Value, parse

RULES = Path(__file__).with_name("rules.yaml")
NAME_LEXICON, NAME_POLICY_TERMS = "lexicon", "policy_terms"
GAP_WORD_COUNT_MAX = 16

_CATEGORIES = frozenset(Category)
_AUDIENCES = frozenset(Audience)


@dataclass(frozen=True, slots=True)
class Rulebook:
    """Checked rules.

    Attributes:
        classes: phrases by class.
        ordinary: phrases that shield.
        terms: (phrase, term, audiences).
        patterns: all of them, for every audience.
    """

    classes: Mapping[str, Sequence[str]]
    ordinary: Sequence[str]
    terms: Sequence[tuple[str, Term, frozenset[Audience]]]
    patterns: Sequence[Pattern]

    def lexicon(self, audience: Audience, extra: Mapping[Category, Sequence[str]]) -> Lexicon:
        """The rules for one audience, with the operator's own terms."""
        terms = [(phrase, term) for phrase, term, where in self.terms if audience in where]
        for category, phrases in extra.items():
            terms += [(phrase, Term(category, NAME_POLICY_TERMS)) for phrase in phrases]
        patterns = [pattern for pattern in self.patterns if audience in pattern.audiences]
        return Lexicon(terms, self.classes, self.ordinary, patterns)


class Detectors:
    """Makes the scanners of each audience; one object for each published policy."""

    def __init__(self, rulebook: Rulebook, extra: Mapping[Category, Sequence[str]]) -> None:
        self._lexicons = {audience: rulebook.lexicon(audience, extra) for audience in Audience}

    def scanners(self, audience: Audience) -> tuple[Scanner, ...]:
        """Fresh scanners for one text."""
        return WordScanner(self._lexicons[audience]), SecretScanner(), CardScanner()


@cache
def house_rules() -> Rulebook:
    """The rulebook that ships with the service; raises DocumentError when it is damaged."""
    return read(RULES.read_text(encoding="utf-8"), RULES.name)


def read(text: str, file: str) -> Rulebook:
    """Checks a rulebook; raises DocumentError with file, line and remedy."""
    keys = frozenset({"classes", "ordinary", "terms", "patterns"})
    top = parse(text, file).mapping(keys, keys)
    classes = {name: value.texts() for name, value in top["classes"].items()}
    return Rulebook(
        classes=classes,
        ordinary=top["ordinary"].texts(),
        terms=[entry for item in top["terms"].sequence() for entry in _terms(item)],
        patterns=[_pattern(item, frozenset(classes)) for item in top["patterns"].sequence()],
    )


def _audiences(value: Value | None) -> frozenset[Audience]:
    if value is None:
        return _AUDIENCES
    return frozenset(Audience(item.word(_AUDIENCES)) for item in value.sequence())


def _terms(item: Value) -> list[tuple[str, Term, frozenset[Audience]]]:
    allowed = frozenset({"category", "phrases", "audiences"})
    entry = item.mapping(allowed, allowed - {"audiences"})
    term = Term(Category(entry["category"].word(_CATEGORIES)), NAME_LEXICON)
    audiences = _audiences(entry.get("audiences"))
    return [(phrase, term, audiences) for phrase in entry["phrases"].texts()]


def _pattern(item: Value, classes: frozenset[str]) -> Pattern:
    required = frozenset({"name", "category", "sequence", "gap_word_count_max"})
    entry = item.mapping(required | {"audiences", "unless"}, required)
    sequence = tuple(name.word(classes) for name in entry["sequence"].sequence())
    if len(sequence) < 2:  # noqa: PLR2004 - one class would be a term
        item.fail("the sequence has fewer than 2 classes", "write its phrases under terms")
    unless = entry.get("unless")
    return Pattern(
        name=entry["name"].text(),
        category=Category(entry["category"].word(_CATEGORIES)),
        sequence=sequence,
        gap_word_count_max=entry["gap_word_count_max"].integer(0, GAP_WORD_COUNT_MAX),
        unless=unless.word(classes) if unless else "",
        audiences=_audiences(entry.get("audiences")),
    )
