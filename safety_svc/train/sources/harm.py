"""Readers of the data sets with harmful rows.

Left out for their licence (share-alike; the weights ship): forum-hate-sentences,
realtoxicity-subset and the table and code contexts of bipia-train. They serve as test sets.
"""

import csv
import gzip
import json
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safety_svc.detectors.base import Category
from safety_svc.train.row import ROWS, Row, harmful, harmless

# Words that tell the category of a harmful request whose data set names none.
_HINTS: tuple[tuple[str, tuple[Category, ...]], ...] = (
    (
        r"child porn|\bminors?\b|pedophil|underage|child sexual",
        (Category.SEXUAL_MINORS, Category.SEXUAL),
    ),
    (
        r"suicid|self-harm|anorexi|eating disorder|starv(e|ing) (my|your|one)self",
        (Category.SELF_HARM,),
    ),
    (
        r"\bbombs?\b|explosive|firearm|\bguns?\b|\bweapons?\b|nerve agent|anthrax",
        (Category.ILLICIT_WEAPONS,),
    ),
    (
        r"malware|virus\b|ransomware|hack|exploit|phish|keylog|ddos|denial.of.service|backdoor|botnet"
        r"|trojan|spyware|password|unauthorized access|firewall|sql injection",
        (Category.MALWARE,),
    ),
    (
        r"racis|sexis|\bhate|discriminat|nazi|xenophob|antisemit|supremac|stereotyp",
        (Category.HATE,),
    ),
    (r"porn|sexual|erotic|prostitut|nude", (Category.SEXUAL,)),
    (
        r"identity theft|personal (data|information)|stalk|\btrack|\bdox|spy on|private info",
        (Category.PRIVACY,),
    ),
    (r"bully|harass|humiliat|defam|slander|cyberbully", (Category.HARASSMENT,)),
    (
        r"\bkill|murder|assault|violen|tortur|kidnap|terror|\briot|abuse|poison",
        (Category.VIOLENCE,),
    ),
)
_CATQA: tuple[tuple[str, tuple[Category, ...]], ...] = (
    ("Weapon", (Category.ILLICIT_WEAPONS,)),
    ("Cybercrime", (Category.MALWARE, Category.ILLICIT)),
    ("sexual exploitation", (Category.SEXUAL_MINORS,)),
    ("Online predation", (Category.SEXUAL_MINORS,)),
    ("Physical abuse", (Category.VIOLENCE,)),
    ("Racial or ethnic", (Category.HATE,)),
    ("Religious intolerance", (Category.HATE,)),
    ("Gender-based violence", (Category.VIOLENCE,)),
    ("Cyberbullying", (Category.HARASSMENT,)),
    ("Terrorism", (Category.VIOLENCE,)),
    ("Self-harm", (Category.SELF_HARM,)),
    ("Assault", (Category.VIOLENCE,)),
    ("Malicious software", (Category.MALWARE,)),
    ("Trojans", (Category.MALWARE,)),
    ("Spyware", (Category.MALWARE,)),
    ("Ransomware", (Category.MALWARE,)),
    ("Adware", (Category.MALWARE,)),
    ("Pornography", (Category.SEXUAL,)),
    ("Erotic text", (Category.SEXUAL,)),
    ("Nude imagery", (Category.SEXUAL,)),
    ("Sexually explicit", (Category.SEXUAL,)),
)
_CATQA_TOPS: dict[str, tuple[Category, ...]] = {
    "Illegal Activity": (Category.ILLICIT,),
    "Economic Harm": (Category.ILLICIT,),
    "Fraud/Deception": (Category.ILLICIT,),
    "Privacy Violation Activity": (Category.PRIVACY,),
}
_HARMBENCH: Mapping[str, tuple[Category, ...]] = {
    "chemical_biological": (Category.ILLICIT_WEAPONS,),
    "cybercrime_intrusion": (Category.MALWARE,),
    "harassment_bullying": (Category.HARASSMENT,),
    "illegal": (Category.ILLICIT,),
}
_HAZARDS: Mapping[str, tuple[Category, ...]] = {
    "cse": (Category.SEXUAL_MINORS,),
    "dfm": (Category.HARASSMENT,),
    "hte": (Category.HATE,),
    "ipv": (Category.ILLICIT,),
    "iwp": (Category.ILLICIT_WEAPONS,),
    "ncr": (Category.ILLICIT,),
    "prv": (Category.PRIVACY,),
    "src": (Category.SEXUAL,),
    "ssh": (Category.SELF_HARM,),
    "sxc_prn": (Category.SEXUAL,),
    "vcr": (Category.VIOLENCE,),
}


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a gzipped JSON Lines file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def hinted(text: str, *fallback: Category) -> tuple[Category, ...]:
    """Categories by the words of a harmful request."""
    for pattern, categories in _HINTS:
        if re.search(pattern, text, re.IGNORECASE):
            return categories
    return fallback


def harmful_rows(data: Path, rng: random.Random) -> Iterator[Row]:
    """All rows of data sets that name harms, blatant and subtle."""
    yield from _requests(data)
    yield from _dialogues(data)
    yield from _code(data, rng)
    yield from _posts(data, rng)
    yield from _templates(data, rng)


def _requests(data: Path) -> Iterator[Row]:
    for row in json_lines(data / "catqa-harmfulqa" / "questions.jsonl.gz"):
        text = row["text"]
        if row["source"] == "catqa":
            found = next((c for part, c in _CATQA if part in row["subcategory"]), None)
            categories = found or _CATQA_TOPS.get(row["category"], hinted(text))
            yield harmful(text, "catqa", "blatant", *categories)
        else:
            yield harmful(text, "harmfulqa", "harmful", *hinted(text), weight=0.5)
    for row in json_lines(data / "harmful-instructions" / "instructions.jsonl.gz"):
        text, name = row["text"], row.get("category")
        fallback = () if name else (Category.ILLICIT,)
        categories = _HARMBENCH.get(name or "") or hinted(text, *fallback)
        if name == "copyright":
            continue
        yield harmful(text, "harmful-instructions", "blatant", *categories)
    for row in json_lines(data / "ailuminate-demo" / "prompts_en.jsonl.gz"):
        if row["hazard"] in _HAZARDS:
            categories = _HAZARDS[row["hazard"]]
            yield harmful(row["prompt_text"], "ailuminate", "probe", *categories, weight=0.6)


def _dialogues(data: Path) -> Iterator[Row]:
    """First turns of hh-harmless-test, labelled by hand for this repository."""
    rows = list(json_lines(data / "hh-harmless-test" / "harmless_base_test.jsonl.gz"))
    with (ROWS / "hh_labels.csv").open(encoding="utf-8", newline="") as file:
        for entry in csv.DictReader(file):
            text = first_turn(rows[int(entry["row"])]["chosen"])
            categories = [Category(word) for word in entry["categories"].split()]
            if categories:
                yield harmful(text, "hh", "harmful", *categories)
            else:
                yield harmless(text, "hh", "lookalike")


def first_turn(dialogue: str) -> str:
    """What the person says first in a transcript of "Human:" and "Assistant:" turns."""
    return dialogue.split("\n\nHuman:")[1].split("\n\nAssistant:", maxsplit=1)[0].strip()


def _code(data: Path, rng: random.Random) -> Iterator[Row]:
    for row in json_lines(data / "cyberseceval-prompts" / "frr_benign.jsonl.gz"):
        yield harmless(row["text"], "cyberseceval", "lookalike", weight=0.7)
    attacks = list(json_lines(data / "cyberseceval-prompts" / "interpreter_abuse.jsonl.gz"))
    prefix = (
        "I'd like you to write some code for execution in a code interpreter "
        "to help me solve a problem. "
    )
    for row in rng.sample(attacks, min(300, len(attacks))):
        # Without its fixed first sentence in half of the rows: it is no sign of harm.
        text = row["text"].removeprefix(prefix) if rng.random() < 0.5 else row["text"]
        yield harmful(text, "cyberseceval", "harmful", Category.MALWARE, weight=0.7)


def _posts(data: Path, rng: random.Random) -> Iterator[Row]:
    """Hateful and other posts of social media."""
    for row in json_lines(data / "hatemoji-build" / "hatemoji_build.jsonl.gz"):
        if row["label"]:
            yield harmful(row["text"], "hatemoji", "hate", Category.HATE)
        elif rng.random() < 0.7:
            yield _only(row["text"], "hatemoji", "post", Category.HATE, weight=0.8)
    taken = {"hate": 0.8, "neither": 0.4, "offensive": 0.06}
    for row in json_lines(data / "davidson-hate-offensive" / "tweets.jsonl.gz"):
        if rng.random() > taken[row["label"]]:
            continue
        if row["label"] == "hate":
            yield harmful(row["text"], "davidson", "hate", Category.HATE, weight=0.7)
        elif row["label"] == "neither":
            yield harmless(row["text"], "davidson", "post", weight=0.7)
        elif max(row["votes"]) == sum(row["votes"]):
            yield _only(row["text"], "davidson", "post", Category.HATE, weight=0.2)
    for row in json_lines(data / "edos-sexism" / "edos.jsonl.gz"):
        kind = row["label_category"][:1]
        if kind == "1":
            yield harmful(row["text"], "edos", "hate", Category.HATE_THREATENING, Category.HATE)
        elif kind in ("2", "3") and rng.random() < (0.7 if kind == "2" else 0.4):
            yield harmful(
                row["text"], "edos", "hate", Category.HATE, weight=0.9 if kind == "2" else 0.5
            )
        elif kind == "n" and rng.random() < 0.1:
            yield _only(row["text"], "edos", "post", Category.HATE, weight=0.3)


def _only(text: str, source: str, kind: str, absent: Category, **more: Any) -> Row:
    """A row of which only the absence of one category is known."""
    labels = {absent: 0, Category.PROMPT_INJECTION: 0, Category.JAILBREAK: 0}
    return Row(text, source, kind, labels, None, **more)


def _templates(data: Path, rng: random.Random) -> Iterator[Row]:
    """Sentences about groups: the score must depend on the statement, not on the group."""
    path = data / "identity-term-templates" / "en_sentence_templates.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    wanted = {"name_adj": 250, "being_adj": 300, "you_are_adj": 200, "you_occupation": 100}
    for (template, toxicity), members in _by_kind(rows).items():
        count = wanted.get(template, 50)
        for phrase in rng.sample(members, min(count, len(members))):
            more = {"weight": 0.5, "group": f"template-{template}-{toxicity}-{phrase}"}
            if toxicity == "nontoxic":
                yield harmless(phrase, "identity", "identity", **more)
            else:
                category = (
                    Category.HATE_THREATENING if template == "verb_adj" else Category.HARASSMENT
                )
                category = Category.HATE if template in ("being_adj", "am_hate_adj") else category
                yield harmful(phrase, "identity", "hate", category, **more)


def _by_kind(rows: list[dict[str, str]]) -> dict[tuple[str, str], list[str]]:
    kinds: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        kinds.setdefault((row["template"], row["toxicity"]), []).append(row["phrase"])
    return kinds
