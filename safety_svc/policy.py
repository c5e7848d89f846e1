"""The policy: what is done about which finding, for whom. Values only; `policy_file.py` reads them.

Who wrote a text decides what it can be. To ignore what was said before is the user's good right: an
attack in what a person typed is no harm by itself. It lowers the thresholds of the harm that it
wraps, and it has rules of its own where there is an operator's prompt to protect. In a document or
a tool result an instruction is an attack.

A policy is read whole, checked whole and published whole; nothing changes it afterwards. It has
rules for everybody and overrides for tiers, jurisdictions and accounts, the later ones stronger. A
rule says from which score on which action is taken, for one category, or one type of personal data
or secret, in one direction.

Rules in the shadow are judged and recorded beside those in force, and nobody acts on them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum

from chatmesh.content.v1.content_pb2 import Tier
from mesh.chassis.enums import words_of
from safety_svc.detectors.base import Audience, Category, Finding
from safety_svc.detectors.kinds import CATEGORIES

WINDOW_TOKEN_COUNT_MAX = 256
TIER_WORDS = words_of(Tier)
TIERS = tuple(TIER_WORDS.values())


class Direction(StrEnum):
    """Which way a text goes, and what stands around it."""

    PROMPT = "prompt"
    # Harm in what a person typed, where an attack on the model that the policy acts on stands in
    # the conversation too; without a rule of its own, that of prompts holds.
    WRAPPED = "wrapped"
    # An attack in what a person typed, where the operator's prompt stands above the conversation;
    # without a rule of its own, that of prompts holds.
    GUARDED = "guarded"
    # A tool result or a document in the prompt; without a rule of its own, that of prompts holds.
    DOCUMENT = "document"
    REPLY = "reply"


class Action(IntEnum):
    """What is done, the mildest first; the words of `safety.v1.Action`."""

    ALLOW = 1
    FLAG = 2
    REDACT = 3
    SAFE_COMPLETE = 4
    BLOCK = 5


HALTING = frozenset({Action.BLOCK, Action.SAFE_COMPLETE})


class Failure(StrEnum):
    """What a part that failed means for the decision."""

    CLOSED = "closed"  # no decision: the call fails
    OPEN = "open"  # the decision stands without it


class Mode(StrEnum):
    """Whether anybody acts on the rules."""

    ENFORCE = "enforce"
    SHADOW = "shadow"


class Quoting(StrEnum):
    """What of the judged text stands in the audit row."""

    NONE = "none"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Threshold:
    """From `score` on, `action` is taken."""

    score: float
    action: Action


# A rule: thresholds with the strongest action first.
Rule = tuple[Threshold, ...]
# By direction and category, or type of span (`detectors/kinds.py`): the type is asked first.
Rules = Mapping[tuple[Direction, str], Rule]

_ASKED = {
    Direction.PROMPT: (Direction.PROMPT,),
    Direction.WRAPPED: (Direction.WRAPPED, Direction.PROMPT),
    Direction.GUARDED: (Direction.GUARDED, Direction.PROMPT),
    Direction.DOCUMENT: (Direction.DOCUMENT, Direction.PROMPT),
    Direction.REPLY: (Direction.REPLY,),
}


def direction_of(audience: Audience) -> Direction:
    """The direction whose rules hold for a text."""
    if audience is Audience.REPLY:
        return Direction.REPLY
    return Direction.DOCUMENT if audience is Audience.TOOL else Direction.PROMPT


def _action(rules: Rules, direction: Direction, finding: Finding) -> Action:
    for asked in _ASKED[direction]:
        for word in (finding.detector, finding.category):
            rule = rules.get((asked, word))
            if rule is None:
                continue
            return next((one.action for one in rule if finding.score >= one.score), Action.ALLOW)
    return Action.ALLOW


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is done, and the category that decided (None when allowed)."""

    action: Action
    category: Category | None


def _judge(rules: Rules, findings: Iterable[tuple[Direction, Finding]]) -> Judgement:
    action, category = Action.ALLOW, None
    for direction, finding in findings:
        one = _action(rules, direction, finding)
        if one > action:
            action, category = one, finding.category
    return Judgement(action, category)


@dataclass(frozen=True, slots=True)
class Regime:
    """The rules that hold for one account.

    Attributes:
        window_token_count: W, range [1, WINDOW_TOKEN_COUNT_MAX].
        unrecorded: what happens when the audit store is away.
        unjudged: what happens when the classifier behind the rules gives no answer.
        unread: what happens when a prompt holds more text than the classifier judges.
        quoting: what of the text stands in the audit.
        rules: those in force; what has no rule is allowed.
        shadow: those that are only recorded; None: there are none.
    """

    window_token_count: int = 1
    unrecorded: Failure = Failure.CLOSED
    unjudged: Failure = Failure.CLOSED
    unread: Failure = Failure.CLOSED
    quoting: Quoting = Quoting.NONE
    rules: Rules = field(default_factory=dict)
    shadow: Rules | None = None

    def action(self, direction: Direction, finding: Finding) -> Action:
        """What is done about one finding."""
        return _action(self.rules, direction, finding)

    def halts(self, direction: Direction, finding: Finding) -> bool:
        """True when the finding ends the turn."""
        return self.action(direction, finding) in HALTING

    def judge(self, direction: Direction, findings: Iterable[Finding]) -> Judgement:
        """The strongest action over `findings`; of equals, the first one decides."""
        return self.judge_all((direction, finding) for finding in findings)

    def judge_all(self, findings: Iterable[tuple[Direction, Finding]]) -> Judgement:
        """As `judge`, each finding with the direction of its text."""
        return _judge(self.rules, findings)

    def judge_shadow(self, findings: Iterable[tuple[Direction, Finding]]) -> Judgement | None:
        """What the rules in the shadow would have done; None: there are none."""
        return None if self.shadow is None else _judge(self.shadow, findings)

    def acted_on(self, direction: Direction) -> frozenset[str]:
        """Categories and types that halt or mask a text from some score on."""
        return self._with(direction, frozenset({Action.REDACT, *HALTING}))

    def redacted(self, direction: Direction) -> frozenset[str]:
        """Categories and types that are masked from some score on."""
        return self._with(direction, frozenset({Action.REDACT}))

    def _with(self, direction: Direction, actions: frozenset[Action]) -> frozenset[str]:
        def has(word: str) -> bool:
            rule = self.rules.get((direction, word), ())
            return any(threshold.action in actions for threshold in rule)

        kinds = (
            kind
            for kind, category in CATEGORIES.items()
            if has(kind if (direction, kind) in self.rules else category)
        )
        return frozenset([*kinds, *filter(has, Category)])


@dataclass(frozen=True, slots=True)
class Override:
    """What one entry of a policy says; None and absent keys leave what was before."""

    window_token_count: int | None = None
    unrecorded: Failure | None = None
    unjudged: Failure | None = None
    unread: Failure | None = None
    quoting: Quoting | None = None
    mode: Mode | None = None
    rules: Rules = field(default_factory=dict)
    shadow: Rules = field(default_factory=dict)

    def under(self, other: "Override | None") -> "Override":
        """This with `other` written over it."""
        if other is None:
            return self
        named = ("window_token_count", "unrecorded", "unjudged", "unread", "quoting", "mode")
        given = {name: value for name in named if (value := getattr(other, name)) is not None}
        rules, shadow = {**self.rules, **other.rules}, {**self.shadow, **other.shadow}
        return replace(self, **given, rules=rules, shadow=shadow)

    def regime(self) -> Regime:
        """The rules in force; in shadow mode none are, and all of them stand in the shadow."""
        shadowing = self.mode is Mode.SHADOW
        candidate = {**self.rules, **self.shadow}
        return Regime(
            self.window_token_count or 1,
            self.unrecorded or Failure.CLOSED,
            self.unjudged or Failure.CLOSED,
            self.unread or Failure.CLOSED,
            self.quoting or Quoting.NONE,
            {} if shadowing else self.rules,
            candidate if shadowing or self.shadow else None,
        )


@dataclass(frozen=True)
class Policy:
    """A checked policy.

    Attributes:
        version: the author's name for it.
        digest: SHA-256 of its text, lower-case hex.
        terms: the operator's own phrases by category.
        allowed: texts that are no finding, in lower case; `*` stands for any characters.
        messages: what a person is told by category; "" is the key of all others.
        replacement: what stands where a span was masked; "{type}" is its type.
        base, tiers, jurisdictions, accounts: what holds for whom, the later ones stronger.
    """

    version: str
    digest: str
    terms: Mapping[Category, tuple[str, ...]]
    allowed: tuple[str, ...]
    messages: Mapping[str, str]
    replacement: str
    base: Override
    tiers: Mapping[str, Override]
    jurisdictions: Mapping[str, Override]
    accounts: Mapping[str, Override]
    _regimes: dict[tuple[str, str, str], Regime] = field(default_factory=dict, repr=False)

    def regime(self, tier: str, jurisdiction: str = "", account_id: str = "") -> Regime:
        """The rules for a known tier; others than the named countries and accounts add nothing."""
        # Only what the policy names becomes a key, so that the table stays as small as the policy.
        country = jurisdiction if jurisdiction in self.jurisdictions else ""
        account = account_id if account_id in self.accounts else ""
        key = (tier, country, account)
        if key not in self._regimes:
            found = self.base.under(self.tiers.get(tier)).under(self.jurisdictions.get(country))
            self._regimes[key] = found.under(self.accounts.get(account)).regime()
        return self._regimes[key]

    def message(self, category: Category) -> str:
        """What the person is told about a refusal."""
        text = self.messages.get(category, self.messages[""])
        return text.format(category=category.replace("_", " "))

    def mask(self, kind: str) -> str:
        """What stands where a span of type `kind` was."""
        return self.replacement.format(type=kind)
