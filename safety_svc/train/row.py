"""A training row with partial labels, and the small files of rows written for this repository."""

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from safety_svc.detectors.base import Category

ROWS = Path(__file__).with_name("rows")

_CHOICE = re.compile(r"\{([^{}]*)\}")
_C = Category

# What may well hold beside a category: unknown rather than 0 where a data set names one label.
_BESIDE: Mapping[Category, frozenset[Category]] = {
    _C.HATE: frozenset({_C.HATE_THREATENING, _C.HARASSMENT, _C.VIOLENCE}),
    _C.HATE_THREATENING: frozenset({_C.HATE, _C.HARASSMENT, _C.VIOLENCE}),
    _C.HARASSMENT: frozenset({_C.HATE, _C.HATE_THREATENING, _C.VIOLENCE, _C.PRIVACY, _C.ILLICIT}),
    _C.VIOLENCE: frozenset(
        {_C.VIOLENCE_GRAPHIC, _C.HARASSMENT, _C.HATE, _C.ILLICIT, _C.ILLICIT_WEAPONS}
    ),
    _C.VIOLENCE_GRAPHIC: frozenset({_C.VIOLENCE}),
    _C.SELF_HARM: frozenset({_C.VIOLENCE, _C.VIOLENCE_GRAPHIC}),
    _C.SEXUAL: frozenset({_C.SEXUAL_MINORS, _C.HARASSMENT, _C.VIOLENCE, _C.PRIVACY, _C.ILLICIT}),
    _C.SEXUAL_MINORS: frozenset({_C.SEXUAL, _C.ILLICIT, _C.VIOLENCE, _C.PRIVACY}),
    _C.ILLICIT: frozenset(
        {_C.ILLICIT_WEAPONS, _C.MALWARE, _C.PRIVACY, _C.VIOLENCE, _C.HARASSMENT, _C.SEXUAL}
    ),
    _C.ILLICIT_WEAPONS: frozenset({_C.ILLICIT, _C.VIOLENCE}),
    _C.MALWARE: frozenset({_C.ILLICIT, _C.PRIVACY}),
    _C.PRIVACY: frozenset({_C.ILLICIT, _C.HARASSMENT, _C.MALWARE}),
}

# Words without which an attack on the model asks for no such harm. Data sets of attacks do not say
# what the attack is for: with that unknown, a model learns that attacks are everything at once.
_ASKED_BY: Mapping[Category, re.Pattern[str]] = {
    category: re.compile(words)
    for category, words in {
        _C.HATE: "hate|racis|sexis|slur|nazi|jew|muslim|black|gay|women|immigra|offens|discrimin",
        _C.HATE_THREATENING: "hate|racis|nazi|jew|muslim|gay|immigra|kill|exterminat",
        _C.HARASSMENT: "insult|bull(y|ie)|harass|offens|humiliat|mock|threat|stalk|hate|rude|swear",
        _C.VIOLENCE: "kill|murder|violen|attack|weapon|bomb|shoot|hurt|harm|tortur|blood|poison",
        _C.VIOLENCE_GRAPHIC: "gore|blood|graphic|tortur|mutilat|gruesome|dismember",
        _C.SELF_HARM: "suicid|self.harm|kill (your|my)self|anorex|starv",
        _C.SEXUAL: "sex|porn|erotic|nsfw|nude|naked|explicit|adult|fetish|kink|seduc",
        _C.SEXUAL_MINORS: r"child|minor|under.?age|teen|\bkids?\b|loli|school",
        _C.ILLICIT: "illegal|illicit|crim|drug|steal|fraud|scam|hack|bomb|launder|weapon|immoral"
        "|unethical|harmful|danger|bypass|law|phish|meth|password|counterfeit|transfer",
        _C.ILLICIT_WEAPONS: "bomb|weapon|gun|explosi|poison|grenade|nuclear|chemical|firearm",
        _C.MALWARE: "malware|virus|ransom|exploit|hack|curl|rm -rf|script|payload|keylog|code|troj",
        _C.PRIVACY: "password|personal|private|address|e-?mail|phone|data|credential|dox|track"
        "|stalk|key|card|secret|conta[ck]t|kontakt|inbox|invoice|daten|mot de passe|contrase|senha"
        "|парол",
    }.items()
}


@dataclass(frozen=True, slots=True)
class Row:
    """One text with what is known about it.

    Attributes:
        text: as a user or a document says it.
        source: where it comes from.
        kind: which figure of the evaluation it belongs to, such as "ordinary".
        labels: 0 or 1 by category; an absent category is unknown.
        unsafe: 1 when any category holds, 0 when none does, None when unknown.
        document: True for a document or tool result.
        weight: weight in the loss, range (0, 1].
        group: rows of one group are alike and stay in one split.
    """

    text: str
    source: str
    kind: str
    labels: Mapping[Category, int] = field(default_factory=dict)
    unsafe: int | None = None
    document: bool = False
    weight: float = 1.0
    group: str = ""


def harmless(text: str, source: str, kind: str, **more: object) -> Row:
    """A row in which nothing holds."""
    return Row(text, source, kind, dict.fromkeys(known(), 0), 0, **more)  # type: ignore[arg-type]


def harmful(text: str, source: str, kind: str, *categories: Category, **more: object) -> Row:
    """A row in which `categories` hold; what may hold beside them is unknown.

    Without categories only the verdict is known: harmful, and no attack on the model.
    """
    labels: dict[Category, int] = {_C.PROMPT_INJECTION: 0, _C.JAILBREAK: 0}
    if categories:
        beside = frozenset().union(*(_BESIDE[one] for one in categories))
        labels |= dict.fromkeys(set(known()) - beside, 0)
        labels |= dict.fromkeys(categories, 1)
    return Row(text, source, kind, labels, 1, **more)  # type: ignore[arg-type]


def attack(
    text: str, source: str, kind: str, labels: Mapping[Category, int], **more: object
) -> Row:
    """An attack on the model: `labels`; harms it has no word of are absent, others unknown."""
    return Row(text, source, kind, {**unasked(text), **labels}, 1, **more)  # type: ignore[arg-type]


def unasked(text: str) -> dict[Category, int]:
    """A 0 for each harm of which an attack has no word."""
    lowered = text.lower()
    return {one: 0 for one, words in _ASKED_BY.items() if not words.search(lowered)}


def known() -> list[Category]:
    """Every category that the classifier has."""
    return [one for one in Category if one is not Category.SECRET]


def lines(name: str) -> list[str]:
    """The lines of a file of `rows/` without comments; "\\n" in them stands for a line break."""
    text = (ROWS / name).read_text(encoding="utf-8")
    found = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return [line.replace("\\n", "\n") for line in found]


def spelled(line: str, rng: random.Random) -> str:
    """`line` with one of the words of each {a|b} chosen, inner braces first."""
    while match := _CHOICE.search(line):
        chosen = rng.choice(match.group(1).split("|"))
        line = line[: match.start()] + chosen + line[match.end() :]
    return re.sub(r" +", " ", line).strip()


def variants(line: str, count: int, rng: random.Random) -> Iterator[str]:
    """At most `count` different spellings of `line`."""
    yield from dict.fromkeys(spelled(line, rng) for _ in range(count))
