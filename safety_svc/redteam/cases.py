"""Regression cases: every attack that got through, kept until the screens stop it, and afterwards.

One JSON object a line. `known_open` is true until the prompt screen blocks the case; the tests
expect such a case to pass the screen, and fail when it no longer does: then it is mended, and the
mark goes.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from safety_svc.redteam.attempts import Attempt


@dataclass(frozen=True, slots=True)
class Case:
    """One attack that got through.

    Attributes:
        id: of the messages; the same attack is filed once.
        technique: which attack.
        category: what it is after.
        messages: what was sent.
        filed: date, ISO 8601.
        policy_version: the policy that let it through.
        known_open: the prompt screen does not block it yet.
    """

    id: str
    technique: str
    category: str
    messages: Sequence[Mapping[str, str]]
    filed: str
    policy_version: str
    known_open: bool = True


def case_of(attempt: Attempt, filed: str, policy_version: str) -> Case:
    """The case of an attempt that got through."""
    messages = list(attempt.messages)
    digest = hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()
    category = attempt.seed.category or attempt.technique.goal.value
    name = attempt.technique.name
    return Case(digest[:16], name, category, messages, filed, policy_version)


def read(path: Path) -> list[Case]:
    """The cases of a file; none when it is not there."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Case(**json.loads(line)) for line in lines if line.strip()]


def file(path: Path, cases: Iterable[Case]) -> int:
    """Adds the cases that are new; returns how many."""
    known = {case.id for case in read(path)}
    new = {case.id: case for case in cases if case.id not in known}
    with path.open("a", encoding="utf-8") as out:
        out.writelines(map(_line, new.values()))
    return len(new)


def write(path: Path, cases: Iterable[Case]) -> None:
    """Replaces the file's cases."""
    path.write_text("".join(map(_line, cases)), encoding="utf-8")


def _line(case: Case) -> str:
    return json.dumps(asdict(case), ensure_ascii=False) + "\n"
