"""Reads a policy: YAML in, a checked `Policy` out, or an error with file, line and remedy."""

import hashlib
import itertools
import re
import string

from mesh.chassis.checked_yaml import Value, parse
from safety_svc.classifier.labels import ATTACKS
from safety_svc.detectors.base import Category
from safety_svc.detectors.kinds import KINDS
from safety_svc.policy import (
    TIERS,
    WINDOW_TOKEN_COUNT_MAX,
    Action,
    Direction,
    Failure,
    Mode,
    Override,
    Policy,
    Quoting,
    Rule,
    Rules,
    Threshold,
)

VERSION_LENGTH_MAX = 64
REPLACEMENT_DEFAULT = "[{type}]"
ALLOWED_COUNT_MAX = 4_096
ACCOUNT_COUNT_MAX = 4_096

_CATEGORIES = frozenset(Category)
# What a section may name; the others any category, and any type.
_WORDS = {Direction.WRAPPED: _CATEGORIES - ATTACKS, Direction.GUARDED: ATTACKS}
_ACTIONS = {action.name.lower(): action for action in Action if action is not Action.ALLOW}
_ALWAYS = "allow"
_RULE_KEYS = frozenset(Direction)
_PLAIN_KEYS = frozenset(
    {
        *("window_token_count", "audit_failure", "backend_failure", "unread_text", "audit_text"),
        *("mode", "shadow"),
    }
)
_BASE_KEYS = frozenset({"window_token_count", "audit_failure", "prompt", "reply"})
_REQUIRED = frozenset({"version", "message", "base"})
_OPTIONAL = frozenset(
    {"messages", "terms", "allow", "replacement", "tiers", "jurisdictions", "accounts"}
)
_COUNTRY = re.compile(r"[A-Z]{2}")
_ACCOUNT = re.compile(r"[!-~]{1,128}")


def read(text: str, file: str) -> Policy:
    """Checks a policy document; raises YamlError with file, line and remedy."""
    top = parse(text, file).fields(_REQUIRED | _OPTIONAL, _REQUIRED)
    top["base"].fields(_PLAIN_KEYS | _RULE_KEYS, _BASE_KEYS)
    messages = _known(top.get("messages"), _CATEGORIES)
    terms = _known(top.get("terms"), _CATEGORIES)
    replacement = REPLACEMENT_DEFAULT
    if "replacement" in top:
        replacement = _template(top["replacement"], "type")
    return Policy(
        version=top["version"].text(VERSION_LENGTH_MAX),
        digest=hashlib.sha256(text.encode()).hexdigest(),
        terms={Category(word): tuple(value.texts()) for word, value in terms.items()},
        allowed=_allowed(top.get("allow")),
        messages={
            "": _template(top["message"], "category"),
            **{word: _template(value, "category") for word, value in messages.items()},
        },
        replacement=replacement,
        base=_override(top["base"]),
        tiers=_overrides(_known(top.get("tiers"), frozenset(TIERS))),
        jurisdictions=_overrides(_countries(top.get("jurisdictions"))),
        accounts=_overrides(_accounts(top.get("accounts"))),
    )


def _known(value: Value | None, allowed: frozenset[str]) -> dict[str, Value]:
    """The pairs of an optional mapping."""
    return value.fields(allowed) if value else {}


def _countries(value: Value | None) -> dict[str, Value]:
    pairs = value.fields() if value else {}
    for word, child in pairs.items():
        if not _COUNTRY.fullmatch(word):
            child.fail("is no country; use ISO 3166-1 alpha-2 such as DE")
    return pairs


def _accounts(value: Value | None) -> dict[str, Value]:
    pairs = value.fields() if value else {}
    for word, child in pairs.items():
        if not _ACCOUNT.fullmatch(word):
            child.fail("is no account id; use the id that `mesh.ctl keys list` shows")
    if value and len(pairs) > ACCOUNT_COUNT_MAX:
        value.fail(f"more than {ACCOUNT_COUNT_MAX}; give them a tier of their own")
    return pairs


def _allowed(value: Value | None) -> tuple[str, ...]:
    texts = value.texts() if value else []
    if value and len(texts) > ALLOWED_COUNT_MAX:
        value.fail(f"more than {ALLOWED_COUNT_MAX} texts; use * to join some")
    return tuple(text.casefold() for text in texts)


def _template(value: Value, field: str) -> str:
    """A text in which at most `{field}` is a placeholder."""
    text = value.text()
    try:
        fields = {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
    except ValueError:
        value.fail("a brace stands alone; write {{ or }} for a brace")
    if fields - {field}:
        value.fail(
            f"unknown placeholder {{{min(fields - {field})}}}; use {{{field}}}, or {{{{ for a brace"
        )
    return text


def _overrides(pairs: dict[str, Value]) -> dict[str, Override]:
    return {word: _override(value) for word, value in pairs.items()}


def _override(value: Value) -> Override:
    entry = value.fields(_PLAIN_KEYS | _RULE_KEYS)
    window = entry.get("window_token_count")
    words = {
        key: entry[key].word(frozenset(kind))
        for key, kind in (
            ("audit_failure", Failure),
            ("backend_failure", Failure),
            ("unread_text", Failure),
            ("audit_text", Quoting),
            ("mode", Mode),
        )
        if key in entry
    }
    shadow = _known(entry.get("shadow"), _RULE_KEYS)
    return Override(
        window_token_count=window.integer(1, WINDOW_TOKEN_COUNT_MAX) if window else None,
        unrecorded=Failure(words["audit_failure"]) if "audit_failure" in words else None,
        unjudged=Failure(words["backend_failure"]) if "backend_failure" in words else None,
        unread=Failure(words["unread_text"]) if "unread_text" in words else None,
        quoting=Quoting(words["audit_text"]) if "audit_text" in words else None,
        mode=Mode(words["mode"]) if "mode" in words else None,
        rules=_rules(entry),
        shadow=_rules(shadow),
    )


def _rules(entry: dict[str, Value]) -> Rules:
    return {
        (direction, word): _rule(rule)
        for direction in Direction
        for word, rule in _known(
            entry.get(direction), _WORDS.get(direction, _CATEGORIES | KINDS)
        ).items()
    }


def _rule(value: Value) -> Rule:
    """`block` (from any score on), `allow`, or `{flag: 0.3, block: 0.8}`."""
    words = frozenset(_ACTIONS)
    if not value.is_mapping:
        word = value.word(words | {_ALWAYS})
        return () if word == _ALWAYS else (Threshold(0.0, _ACTIONS[word]),)
    pairs = value.fields(words)
    thresholds = [Threshold(score.probability(), _ACTIONS[word]) for word, score in pairs.items()]
    thresholds.sort(key=lambda one: one.action, reverse=True)
    for stronger, milder in itertools.pairwise(thresholds):
        if milder.score >= stronger.score:
            value.fail(
                f"{milder.action.name.lower()} needs a lower score than "
                f"{stronger.action.name.lower()}; give the stronger action the higher score"
            )
    return tuple(thresholds)
