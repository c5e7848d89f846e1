"""What was seen against what must be. Pure: values in, violations out."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.chaos.documented import Allowed
from tests.chaos.schedule import Blow

# A failure up to so long after a blow (or the end of a pause) may be its doing: the slowest process
# serves again after 5 s on a busy machine, and deadlines inside are 3 to 5 s.
AFTERMATH_S = 15.0
# A silence that begins up to so long after a blow is counted as its doing.
SILENCE_AFTER_S = 0.5
# Of a silence around the death of such a process, the median of the longest that any client saw.
SILENCE_TARGET_S = {"gateway": 1.0, "envoy": 2.0}


@dataclass(frozen=True)
class Choice:
    """One of the answers of a turn, put together from its events."""

    text: str
    finish_reason: str
    # The tokens whose log probabilities were reported, in order.
    tokens: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """A turn as its client put it together."""

    choices: tuple[Choice, ...]
    prompt_token_count: int
    completion_token_count: int


@dataclass(frozen=True)
class Seen:
    """A trouble that a client made good by trying again; status 0: the connection."""

    at_s: float
    status: int
    code: str


@dataclass(frozen=True)
class Outcome:
    """One wish as its client saw it; times in seconds of one clock."""

    number: int
    shape: str
    begin_s: float
    end_s: float
    # The turns that came to their end; as many as the wish has bodies when all is well.
    answers: tuple[Answer, ...]
    # Why it has no answer; empty when it has.
    failure: str = ""
    troubles: tuple[Seen, ...] = ()
    # (begin, end) of the longer silences of a stream.
    silences: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Struck:
    """A blow that was dealt; on the clients' clock."""

    blow: Blow
    at_s: float

    @property
    def over_s(self) -> float:
        """When nothing of it may be felt any more."""
        return self.at_s + self.blow.pause_s + AFTERMATH_S


@dataclass(frozen=True)
class Usage:
    """Tokens and turns of an account."""

    input_token_count: int = 0
    output_token_count: int = 0
    turn_count: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_token_count + other.input_token_count,
            self.output_token_count + other.output_token_count,
            self.turn_count + other.turn_count,
        )


@dataclass(frozen=True)
class Violation:
    """Something that must not be: a law ("bytes", "ledger", "status", …) and what it met."""

    law: str
    detail: str


References = Mapping[int, tuple[Answer, ...]]


def comparable(references: References) -> dict[int, tuple[Answer, ...]]:
    """Those that end by themselves: where safety cuts an answer depends on moments."""
    fine = {"stop", "length"}
    return {
        number: answers
        for number, answers in references.items()
        if all(choice.finish_reason in fine for answer in answers for choice in answer.choices)
    }


def wrong_answers(references: References, outcomes: Iterable[Outcome]) -> list[Violation]:
    """Law 1: what a client put together is what an undisturbed client gets, to the byte."""
    found = []
    for one in outcomes:
        if one.failure:
            found.append(Violation("failed", f"wish {one.number} ({one.shape}): {one.failure}"))
        elif one.answers != (wanted := references[one.number]):
            found.append(
                Violation(
                    "bytes", f"wish {one.number} ({one.shape}): {_first(one.answers, wanted)}"
                )
            )
    return found


def _first(got: tuple[Answer, ...], wanted: tuple[Answer, ...]) -> str:
    """Where two answers part."""
    if len(got) != len(wanted):
        return f"{len(got)} turns instead of {len(wanted)}"
    for turn, (one, other) in enumerate(zip(got, wanted, strict=True)):
        if len(one.choices) != len(other.choices):
            return f"turn {turn}: {len(one.choices)} answers instead of {len(other.choices)}"
        for index, (a, b) in enumerate(zip(one.choices, other.choices, strict=True)):
            if a.text != b.text:
                return f"turn {turn}, answer {index}: {_parted(a.text, b.text)}"
            if a != b:
                return (
                    f"turn {turn}, answer {index}: ended {a.finish_reason!r} with {len(a.tokens)} "
                    f"log probabilities instead of {b.finish_reason!r} with {len(b.tokens)}"
                )
        if one != other:
            return (
                f"turn {turn}: says {one.prompt_token_count} + {one.completion_token_count} tokens "
                f"instead of {other.prompt_token_count} + {other.completion_token_count}"
            )
    return "equal"


def _parted(got: str, wanted: str) -> str:
    pairs = zip(got, wanted, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(got), len(wanted)))
    return (
        f"{len(got)} characters instead of {len(wanted)}, other from {at} on: "
        f"{got[at : at + 20]!r} instead of {wanted[at : at + 20]!r}"
    )


def expected_usage(
    references: References, outcomes: Iterable[Outcome], accounts: Mapping[str, str]
) -> dict[str, Usage]:
    """What the ledger must have by account; `accounts` names that of each shape."""
    sums = dict.fromkeys(accounts.values(), Usage())
    for one in outcomes:
        for answer in references[one.number]:
            sums[accounts[one.shape]] += Usage(
                answer.prompt_token_count, answer.completion_token_count, 1
            )
    return sums


def wrong_ledger(expected: Mapping[str, Usage], found: Mapping[str, Usage]) -> list[Violation]:
    """Law 2: the ledger has what was generated, each turn once."""
    return [
        Violation("ledger", f"account {name}: {found.get(name, Usage())} instead of {wanted}")
        for name, wanted in expected.items()
        if found.get(name, Usage()) != wanted
    ]


def wrong_statuses(
    outcomes: Iterable[Outcome], struck: Sequence[Struck], allowed: Allowed
) -> list[Violation]:
    """Law 3: a client sees no status but those documented of what was struck before."""
    found = []
    for one in outcomes:
        for trouble in one.troubles:
            if trouble.status == 0:
                continue  # a reconnect
            near = {s.blow.kind for s in struck if s.at_s <= trouble.at_s <= s.over_s}
            if not any((trouble.status, trouble.code) in allowed.get(kind, ()) for kind in near):
                found.append(
                    Violation(
                        "status",
                        f"{trouble.status} {trouble.code} at {trouble.at_s:.1f} s for wish "
                        f"{one.number} ({one.shape}) after {', '.join(sorted(near)) or 'nothing'}",
                    )
                )
    return found


def hung(outcomes: Iterable[Outcome], last_blow_s: float, bound_s: float) -> list[Violation]:
    """Law 4: every wish ends within bound_s, or within bound_s of the last blow."""
    return [
        Violation("hang", f"wish {one.number} ({one.shape}) took {one.end_s - one.begin_s:.0f} s")
        for one in outcomes
        if one.end_s - max(one.begin_s, min(last_blow_s, one.end_s)) > bound_s
    ]


@dataclass
class Gaps:
    """The longest silence that a client saw around each death of a kind, in seconds."""

    by_kind: dict[str, list[float]] = field(default_factory=dict)

    def median(self, kind: str) -> float | None:
        """None where nothing was seen."""
        found = self.by_kind.get(kind)
        return statistics.median(found) if found else None

    def worst(self, kind: str) -> float | None:
        """The longest of all."""
        found = self.by_kind.get(kind)
        return max(found) if found else None


def gaps(outcomes: Iterable[Outcome], struck: Sequence[Struck]) -> Gaps:
    """What clients noticed of each kill: the longest silence around it, over all of them."""
    silences = [pair for one in outcomes for pair in one.silences]
    found = Gaps()
    for one in struck:
        if one.blow.how != "kill":
            continue
        around = (
            end - max(begin, one.at_s)
            for begin, end in silences
            if end > one.at_s and begin <= one.at_s + SILENCE_AFTER_S
        )
        found.by_kind.setdefault(one.blow.kind, []).append(max(around, default=0.0))
    return found


def too_slow(found: Gaps) -> list[Violation]:
    """Law 5: the median silence after a gateway's, and after Envoy's, death is bounded."""
    return [
        Violation("gap", f"median silence after the death of {kind}: {median:.2f} s over {limit} s")
        for kind, limit in SILENCE_TARGET_S.items()
        if (median := found.median(kind)) is not None and median > limit
    ]


def statuses(outcomes: Iterable[Outcome]) -> Counter[str]:
    """How often clients saw what."""
    return Counter(
        f"{trouble.status} {trouble.code}" if trouble.status else f"cut ({trouble.code})"
        for one in outcomes
        for trouble in one.troubles
    )
