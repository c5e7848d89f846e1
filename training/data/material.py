"""What the skills take from the data folders: harmful requests, user queries, rare words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from training.data import clean, sources
from training.data.skills.base import Material, entries

HAZARDS = frozenset(["vcr", "ncr", "iwp"])
CATEGORIES_UNUSED = frozenset(
    {"Political Campaigning", "Tailored Financial Advice", "Adult Content"}
)
SEXUAL = re.compile(r"sex|porn|child abuse|nude|rape|minor|lyrics")


# Many rows of HarmfulQA and AILuminate are harmless in themselves ("How to use game theory to win a
# negotiation?"): refusing them would teach to refuse by tone. These words make them plain.
PLAINLY_HARMFUL = re.compile(
    r"\b(bombs?|explosives?|kill(ing)?|murder\w*|poison\w*|steal(ing)?|hack(ing)?|weapons?|drugs?|"
    r"fraud|illegal\w*|without (getting|being) (caught|detected)|blackmail\w*|counterfeit\w*|"
    r"forge|sabotage|bribe\w*|launder\w*|smuggl\w*|malware|phishing|stalk\w*|kidnap\w*|rob|"
    r"scam\w*|harass\w*|threaten\w*|terror\w*|arson|assault|vandali\w*|cheat)\b"
)


def _plain(texts: Iterable[str]) -> list[str]:
    plain = {clean.plain(text) for text in texts}
    return sorted(text for text in plain if text.isascii() and len(text) < 260)


def instructions(data: Path) -> list[str]:
    """Requests that are harmful beyond doubt, without sexual ones."""
    found = [r["text"] for r in sources.rows(data, "harmful-instructions", "instructions.jsonl.gz")]
    for row in sources.rows(data, "catqa-harmfulqa", "questions.jsonl.gz"):
        if row["source"] == "catqa" and row["category"] not in CATEGORIES_UNUSED:
            found.append(row["text"])
    return [text for text in _plain(found) if not SEXUAL.search(text.lower())]


def harmful(data: Path) -> list[str]:
    """`instructions` and those rows of two wider sets that are plainly harmful."""
    wider = [
        row["text"]
        for row in sources.rows(data, "catqa-harmfulqa", "questions.jsonl.gz")
        if row["source"] != "catqa"
    ]
    for row in sources.rows(data, "ailuminate-demo", "prompts_en.jsonl.gz"):
        if row["hazard"] in HAZARDS and row["prompt_text"].strip().endswith("?"):
            wider.append(row["prompt_text"])
    plain = [text for text in _plain(wider) if PLAINLY_HARMFUL.search(text.lower())]
    return sorted({*instructions(data), *(t for t in plain if not SEXUAL.search(t.lower()))})


def queries(data: Path) -> dict[str, list[str]]:
    """User queries of clinc150 by intent."""
    found: dict[str, list[str]] = {}
    for row in sources.rows(data, "clinc150-queries", "queries.jsonl.gz"):
        found.setdefault(str(row["intent"]), []).append(str(row["text"]))
    return found


def too_hard(data: Path) -> list[str]:
    """Worded sums that the model declines: the long ones."""
    asked = (
        clean.plain(r["question"]) for r in sources.rows(data, "gsm8k-train", "train.jsonl.gz")
    )
    return [text for text in asked if 180 < len(text) < 400 and text.isascii()][:1500]


def support(data: Path) -> list[tuple[str, str]]:
    """Short exchanges on technical trouble."""
    found = set()
    for row in sources.rows(data, "chatterbot-english", "conversations.jsonl.gz"):
        turns = [clean.plain(turn) for turn in row["turns"]]
        if row["topic"] == "tech support" and len(turns) == 2 and max(map(len, turns)) < 160:
            found.add((turns[0], turns[1][:1].upper() + turns[1][1:]))
    return sorted(found)


def strange(texts: Iterable[str]) -> list[str]:
    """Words that occur in the prose but in no table, so that nothing is said about them."""
    used = Counter(word for text in texts for word in re.findall(r"\b[a-z]{5,11}\b", text))
    tables = ("facts", "explain", "advice", "smalltalk", "identity", "lookalikes")
    familiar = {
        word
        for table in tables
        for entry in entries(table)
        for question in entry.questions
        for word in re.findall(r"[a-z]+", question.lower())
    }
    return sorted(w for w, n in used.items() if 3 <= n <= 40 and w not in familiar)


def load(data: Path, prose: Iterable[str]) -> Material:
    """All of it; rare words come from `prose`."""
    return Material(
        harmful=harmful(data),
        queries=queries(data),
        too_hard=too_hard(data),
        strange=strange(prose),
        support=support(data),
    )
