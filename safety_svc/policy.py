"""The policy: what is done about which finding, for whom.

A policy is read whole, checked whole and published whole; nothing changes it afterwards. It has
rules for everybody and overrides for tiers and jurisdictions. A rule says from which score on
which action is taken, for one category in one direction.
"""

import hashlib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from safety_svc.detectors.base import Category, Finding
from safety_svc.document import Value, parse

WINDOW_TOKEN_COUNT_MAX = 256
VERSION_LENGTH_MAX = 64
TIERS = ("free", "pro", "enterprise", "admin")


class Direction(StrEnum):
    """Which way a text goes."""

    PROMPT = "prompt"
    REPLY = "reply"


class Action(IntEnum):
    """What is done, the mildest first; the words of `safety.v1.Action`."""

    ALLOW = 1
    FLAG = 2
    REDACT = 3
    SAFE_COMPLETE = 4
    BLOCK = 5


HALTING = frozenset({Action.BLOCK, Action.SAFE_COMPLETE})


class Unrecorded(StrEnum):
    """What happens to a decision that could not be recorded."""

    CLOSED = "closed"  # no decision: the call fails
    OPEN = "open"  # the decision stands; its row goes to the log


@dataclass(frozen=True, slots=True)
class Threshold:
    """From `score` on, `action` is taken."""

    score: float
    action: Action


# A rule: thresholds with the strongest action first.
Rule = tuple[Threshold, ...]
Rules = Mapping[tuple[Direction, Category], Rule]


@dataclass(frozen=True, slots=True)
class Regime:
    """The rules that hold for one tier in one jurisdiction.

    Attributes:
        window_token_count: W, range [1, WINDOW_TOKEN_COUNT_MAX].
        unrecorded: what happens when the audit store is away.
        rules: by direction and category; what has no rule is allowed.
    """

    window_token_count: int
    unrecorded: Unrecorded
    rules: Rules

    def action(self, direction: Direction, finding: Finding) -> Action:
        """What is done about one finding."""
        for threshold in self.rules.get((direction, finding.category), ()):
            if finding.score >= threshold.score:
                return threshold.action
        return Action.ALLOW

    def halts(self, direction: Direction, finding: Finding) -> bool:
        """True when the finding ends the turn."""
        return self.action(direction, finding) in HALTING

    def judge(self, direction: Direction, findings: Iterable[Finding]) -> "Judgement":
        """The strongest action over `findings`; of equals, the first one decides."""
        action, category = Action.ALLOW, None
        for finding in findings:
            one = self.action(direction, finding)
            if one > action:
                action, category = one, finding.category
        return Judgement(action, category)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is done, and the category that decided (None when allowed)."""

    action: Action
    category: Category | None


@dataclass(frozen=True, slots=True)
class Policy:
    """A checked policy.

    Attributes:
        version: the author's name for it.
        digest: SHA-256 of its text, lower-case hex.
        terms: the operator's own phrases by category.
        messages: what a person is told by category; "" is the key of all others.
        tiers: regime by tier, where no jurisdiction has its own.
        local: regime by (tier, jurisdiction).
    """

    version: str
    digest: str
    terms: Mapping[Category, tuple[str, ...]]
    messages: Mapping[str, str]
    tiers: Mapping[str, Regime]
    local: Mapping[tuple[str, str], Regime]

    def regime(self, tier: str, jurisdiction: str = "") -> Regime:
        """The regime of a known tier; an unknown jurisdiction has no rules of its own."""
        return self.local.get((tier, jurisdiction), self.tiers[tier])

    def message(self, category: Category) -> str:
        """What the person is told about a refusal."""
        return self.messages.get(category, self.messages[""])


_CATEGORIES = frozenset(Category)
_ACTIONS = {action.name.lower(): action for action in Action if action is not Action.ALLOW}
_REGIME_KEYS = frozenset({"window_token_count", "audit_failure", "prompt", "reply"})
_ALWAYS = "allow"


def read(text: str, file: str) -> Policy:
    """Checks a policy document; raises DocumentError with file, line and remedy."""
    required = frozenset({"version", "message", "base"})
    optional = frozenset({"messages", "terms", "tiers", "jurisdictions"})
    top = parse(text, file).mapping(required | optional, required)
    base_value = top["base"]
    base_value.mapping(_REGIME_KEYS, _REGIME_KEYS)
    nothing = Regime(1, Unrecorded.CLOSED, {})
    base = _regime(base_value, nothing)
    overrides = _named(top.get("tiers"), frozenset(TIERS))
    tiers = {tier: _regime(overrides.get(tier), base) for tier in TIERS}
    local = {
        (tier, country): _regime(value, tiers[tier])
        for country, value in _named(top.get("jurisdictions"), None).items()
        for tier in TIERS
    }
    version = top["version"].text()
    if len(version) > VERSION_LENGTH_MAX:
        top["version"].fail("the version is too long", f"use {VERSION_LENGTH_MAX} characters")
    messages = {
        word: value.text() for word, value in _named(top.get("messages"), _CATEGORIES).items()
    }
    return Policy(
        version=version,
        digest=hashlib.sha256(text.encode()).hexdigest(),
        terms={
            Category(word): tuple(value.texts())
            for word, value in _named(top.get("terms"), _CATEGORIES).items()
        },
        messages={"": top["message"].text(), **messages},
        tiers=tiers,
        local=local,
    )


def _named(value: Value | None, allowed: frozenset[str] | None) -> dict[str, Value]:
    """The pairs of an optional mapping; without `allowed`, the keys are country codes."""
    if value is None:
        return {}
    pairs = dict(value.items())
    if allowed is not None:
        return value.mapping(allowed, frozenset())
    for word, child in pairs.items():
        if not (len(word) == 2 and word.isascii() and word.isalpha() and word.isupper()):  # noqa: PLR2004 - alpha-2
            child.fail(f"{word} is no country", "use ISO 3166-1 alpha-2 such as DE")
    return pairs


def _regime(value: Value | None, under: Regime) -> Regime:
    """The regime `under` with the overrides of `value`."""
    if value is None:
        return under
    entry = value.mapping(_REGIME_KEYS, frozenset())
    window, unrecorded = under.window_token_count, under.unrecorded
    if "window_token_count" in entry:
        window = entry["window_token_count"].integer(1, WINDOW_TOKEN_COUNT_MAX)
    if "audit_failure" in entry:
        unrecorded = Unrecorded(entry["audit_failure"].word(frozenset(Unrecorded)))
    rules = dict(under.rules)
    for direction in Direction:
        for word, rule in _named(entry.get(direction), _CATEGORIES).items():
            rules[direction, Category(word)] = _rule(rule)
    return Regime(window, unrecorded, rules)


def _rule(value: Value) -> Rule:
    """`block` (from any score on), `allow`, or `{flag: 0.3, block: 0.8}`."""
    words = frozenset(_ACTIONS)
    if not value.is_mapping:
        word = value.word(words | {_ALWAYS})
        return () if word == _ALWAYS else (Threshold(0.0, _ACTIONS[word]),)
    pairs = value.mapping(words, frozenset())
    thresholds = [Threshold(score.probability(), _ACTIONS[word]) for word, score in pairs.items()]
    thresholds.sort(key=lambda one: one.action, reverse=True)
    for stronger, milder in itertools.pairwise(thresholds):
        if milder.score >= stronger.score:
            value.fail(
                f"{milder.action.name.lower()} needs a lower score than "
                f"{stronger.action.name.lower()}",
                "give the stronger action the higher score",
            )
    return tuple(thresholds)
