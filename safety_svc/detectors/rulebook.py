"""The rulebook: `rules.yaml`, checked, and its scanners for each audience."""

import fnmatch
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mesh.chassis.checked_yaml import Value, parse
from safety_svc.detectors.base import Audience, Category, Scanner
from safety_svc.detectors.cards import CardScanner
from safety_svc.detectors.personal import personal_scanners
from safety_svc.detectors.prefilter import Prefiltered, Sleeper
from safety_svc.detectors.secrets import SecretScanner
from safety_svc.detectors.words import FREE_LENGTH, Lexicon, Pattern, Term, WordScanner

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

    def lexicon(
        self,
        audience: Audience,
        extra: Mapping[Category, Sequence[str]],
        allowed: Sequence[str] = (),
    ) -> Lexicon:
        """The rules for one audience, with the operator's own terms and allowed phrases."""
        terms = [(phrase, term) for phrase, term, where in self.terms if audience in where]
        for category, phrases in extra.items():
            terms += [(phrase, Term(category, NAME_POLICY_TERMS)) for phrase in phrases]
        patterns = [pattern for pattern in self.patterns if audience in pattern.audiences]
        return Lexicon(terms, self.classes, [*self.ordinary, *allowed], patterns)


class Detectors:
    """Makes the scanners of each audience; one object for each published policy.

    Args:
        rulebook: the rules of the house.
        extra: the operator's own phrases by category.
        allowed: texts that are no finding, in lower case; `*` stands for any characters. As phrases
            they shield the words inside them.
    """

    def __init__(
        self,
        rulebook: Rulebook,
        extra: Mapping[Category, Sequence[str]],
        allowed: Sequence[str] = (),
    ) -> None:
        phrases = [text for text in allowed if "*" not in text]
        self._lexicons = {
            audience: rulebook.lexicon(audience, extra, phrases) for audience in Audience
        }
        self._terms = {term.category for _, term, _ in rulebook.terms} | set(extra)
        patterns = [*allowed, *(_joined(text) for text in allowed)]
        translated = (fnmatch.translate(text) for text in patterns)
        self._allowed = re.compile("|".join(translated)) if allowed else None

    def scanners(
        self,
        audience: Audience,
        acted_on: Collection[str] | None = None,
        redacted: Collection[str] = (),
    ) -> tuple[Scanner, ...]:
        """Fresh scanners for one text.

        Args:
            audience: whose text it is.
            acted_on: categories and types that halt or mask it; text is held back only for them.
                None: for all.
            redacted: those that are masked.
        """
        free_length = FREE_LENGTH if self._terms.isdisjoint(redacted) else 0
        scanners: tuple[Sleeper, ...] = (
            WordScanner(self._lexicons[audience], free_length),
            SecretScanner(self._allows),
            CardScanner(self._allows),
            *personal_scanners(self._allows, acted_on),
        )
        return (Prefiltered(scanners),)

    def _allows(self, text: str) -> bool:
        if self._allowed is None:
            return False
        text = text.casefold()
        return bool(self._allowed.match(text) or self._allowed.match(_joined(text)))


def _joined(text: str) -> str:
    """A number without what stands between its groups."""
    return re.sub(r"[\s\-()./]", "", text) if any(one.isdigit() for one in text) else text


@cache
def house_rules() -> Rulebook:
    """The rulebook that ships with the service; raises YamlError when it is damaged."""
    return read(RULES.read_text(encoding="utf-8"), RULES.name)


def read(text: str, file: str) -> Rulebook:
    """Checks a rulebook; raises YamlError with file, line and remedy."""
    keys = frozenset({"classes", "ordinary", "terms", "patterns"})
    top = parse(text, file).fields(keys, keys)
    classes = {name: value.texts() for name, value in top["classes"].fields().items()}
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
    entry = item.fields(allowed, allowed - {"audiences"})
    term = Term(Category(entry["category"].word(_CATEGORIES)), NAME_LEXICON)
    audiences = _audiences(entry.get("audiences"))
    return [(phrase, term, audiences) for phrase in entry["phrases"].texts()]


def _pattern(item: Value, classes: frozenset[str]) -> Pattern:
    required = frozenset({"name", "category", "sequence", "gap_word_count_max"})
    entry = item.fields(required | {"audiences", "unless"}, required)
    sequence = tuple(name.word(classes) for name in entry["sequence"].sequence())
    if len(sequence) < 2:  # noqa: PLR2004 - one class would be a term
        item.fail("the sequence has fewer than 2 classes; write its phrases under terms")
    unless = entry.get("unless")
    return Pattern(
        name=entry["name"].text(),
        category=Category(entry["category"].word(_CATEGORIES)),
        sequence=sequence,
        gap_word_count_max=entry["gap_word_count_max"].integer(0, GAP_WORD_COUNT_MAX),
        unless=unless.word(classes) if unless else "",
        audiences=_audiences(entry.get("audiences")),
    )
