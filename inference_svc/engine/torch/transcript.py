"""What came in and what each step decided, as lines of JSON that can be replayed.

    {"begin": limits}  {"add": id, …}  {"remove": id}  {"step": number, …}

The scheduler is a function of these arrivals, removals and of the tokens that the model gave:
`replay` drives a fresh one from a transcript and writes the transcript again; it is the same, or
the scheduler has changed. A further "begin" is a further life of the node. The lines hold token
ids: treat a transcript like the conversations.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Row
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog

from inference_svc.engine.answer import AnswerState
from inference_svc.engine.protocol import EngineRequest, StopRule
from inference_svc.engine.torch.block_manager import BlockManager
from inference_svc.engine.torch.plan import Plan
from inference_svc.engine.torch.scheduler import Proposer, Scheduler
from inference_svc.engine.torch.sequence import Sequence
from inference_svc.engine.vocabulary import Vocabulary

DIGIT_COUNT = 6  # of seconds: microseconds
TRANSCRIPT_BYTES_MAX = 1 << 30

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Limits:
    """What a scheduler is made with; see `Scheduler`."""

    block_count: int
    step_token_count_max: int
    running_count_max: int
    wait_s_max: float = 10.0

    def make(self, proposer: Proposer | None = None) -> Scheduler:
        """A scheduler with all blocks free."""
        return Scheduler(
            BlockManager(self.block_count),
            step_token_count_max=self.step_token_count_max,
            running_count_max=self.running_count_max,
            wait_s_max=self.wait_s_max,
            proposer=proposer,
        )


class Transcript:
    """Writes lines.

    Args:
        write: takes one line without its end.
    """

    def __init__(self, write: Callable[[str], object], limits: Limits) -> None:
        self._write, self._step = write, 0
        self._put({"begin": asdict(limits)})

    def _put(self, entry: Mapping[str, Any]) -> None:
        self._write(json.dumps(entry, separators=(",", ":")))

    def add(self, sequence: Sequence) -> None:
        """A request came."""
        request = sequence.request
        entry = {
            "add": request.request_id,
            "at": sequence.arrived_s,
            "prompt": list(request.prompt_token_ids),
            "emitted": list(request.emitted_token_ids),
            "max": request.stop.max_token_count,
            "priority": request.priority,
            "salt": request.cache_salt,
            "group": request.group,
        }
        self._put({key: value for key, value in entry.items() if value not in ("", [])})

    def remove(self, sequence: Sequence) -> None:
        """A request was cancelled, or failed."""
        self._put({"remove": sequence.request.request_id})

    def step(
        self,
        plan: Plan,
        now_s: float,
        tokens: Mapping[Sequence, Row[int]],
        ended: Iterable[Sequence],
        scheduler: Scheduler,
    ) -> None:
        """A step was planned at `now_s`, gave these tokens and ended these answers."""
        blocks = scheduler.blocks
        self._step += 1
        entry = {
            "step": self._step,
            "now": now_s,
            "chunks": [
                [chunk.sequence.request.request_id, chunk.begin, chunk.end]
                + ([list(chunk.draft_token_ids)] if chunk.draft_token_ids else [])
                for chunk in plan.chunks.values()
            ],
            "copies": [[source, target] for target, source in plan.copies.items()],
            "admitted": _ids(plan.admitted),
            "preempted": _ids(plan.preempted),
            "tokens": {s.request.request_id: list(ids) for s, ids in tokens.items() if ids},
            "ended": _ids(ended),
            "running": scheduler.running_count,
            "waiting": scheduler.waiting_count,
            "free_blocks": blocks.free_count,
            "evicted_total": blocks.evicted_total,
        }
        self._put({key: value for key, value in entry.items() if value not in ([], {})})


def _ids(sequences: Iterable[Sequence]) -> list[str]:
    return [sequence.request.request_id for sequence in sequences]


def replay(lines: Iterable[str]) -> Iterator[str]:
    """Drives a scheduler through a transcript; yields the lines of a new one."""
    life: _Life | None = None
    for number, line in enumerate(lines):
        entry = json.loads(line)
        if "begin" in entry:
            life = _Life(Limits(**entry["begin"]))
        elif life is None:
            raise ValueError("A transcript begins with the limits of the scheduler.")
        elif "add" in entry:
            life.add(entry, number)
        elif "remove" in entry:
            life.remove(entry)
        else:
            life.step(entry)
        yield from life.written
        life.written.clear()


class _Life:
    """One scheduler under replay."""

    def __init__(self, limits: Limits) -> None:
        self.written: list[str] = []
        self._drafts = _Recorded()
        self._scheduler = limits.make(self._drafts)
        self._transcript = Transcript(self.written.append, limits)
        self._alive: dict[str, Sequence] = {}

    def add(self, entry: Mapping[str, Any], arrival: int) -> None:
        sequence = self._alive[entry["add"]] = _sequence(entry, arrival)
        self._scheduler.add(sequence)
        self._transcript.add(sequence)

    def remove(self, entry: Mapping[str, Any]) -> None:
        sequence = self._alive.pop(entry["remove"])
        self._scheduler.remove(sequence)
        self._transcript.remove(sequence)

    def step(self, entry: Mapping[str, Any]) -> None:
        self._drafts.read(entry)
        plan = self._scheduler.plan(entry["now"])
        tokens = {}
        for chunk in plan.chunks.values():
            ids = entry.get("tokens", {}).get(chunk.sequence.request.request_id, [])
            self._scheduler.record(chunk, ids)
            tokens[chunk.sequence] = ids
        ended = [self._alive.pop(name) for name in entry.get("ended", ())]
        for sequence in ended:
            self._scheduler.remove(sequence)
        self._transcript.step(plan, entry["now"], tokens, ended, self._scheduler)


def _sequence(entry: Mapping[str, Any], arrival: int) -> Sequence:
    rule = StopRule(entry["max"])
    request = EngineRequest(
        entry["add"],
        entry["prompt"],
        rule,
        emitted_token_ids=entry.get("emitted", ()),
        priority=entry["priority"],
        cache_salt=entry.get("salt", ""),
        group=entry.get("group", ""),
    )
    return Sequence(
        request, AnswerState(rule, Vocabulary([], frozenset(), "")), arrival, entry["at"]
    )


class _Recorded:
    """Proposes what the transcript says was proposed."""

    def __init__(self) -> None:
        self._drafts: dict[str, list[int]] = {}

    def read(self, entry: Mapping[str, Any]) -> None:
        self._drafts = {name: rest[0] for name, _, _, *rest in entry.get("chunks", ()) if rest}

    def propose(self, asks: Row[tuple[Sequence, int]]) -> list[list[int]]:
        return [self._drafts.get(sequence.request.request_id, []) for sequence, _ in asks]


def open_writer(file: Path | None, opened: ExitStack) -> Callable[[str], object] | None:
    """Appends lines to a file that only its owner may read, up to a size."""
    if file is None:
        return None
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    # By line: what led to a crash is what is wanted.
    stream = opened.enter_context(os.fdopen(descriptor, "w", buffering=1, encoding="utf-8"))
    left = TRANSCRIPT_BYTES_MAX - file.stat().st_size

    def write(line: str) -> None:
        nonlocal left
        was_left, left = left, left - len(line) - 1
        if left >= 0:
            stream.write(line + "\n")
        elif was_left >= 0:
            log.warning("transcript_full", byte_count_max=TRANSCRIPT_BYTES_MAX)
            left = -1

    return write
