"""The engine's core over the toy back end, under a clock that the test turns."""

import random
from collections.abc import Sequence as Row
from dataclasses import dataclass, field

from inference_svc.engine.answer import AnswerState
from inference_svc.engine.protocol import EngineRequest, Sampling, StopRule
from inference_svc.engine.torch.core import EngineCore, Event
from inference_svc.engine.torch.metrics import EngineMetrics
from inference_svc.engine.torch.model_runner import ModelRunner
from inference_svc.engine.torch.sequence import Sequence
from inference_svc.engine.torch.transcript import Limits
from inference_svc.engine.vocabulary import Vocabulary
from tests.support.toy_backend import ToyBackend

VOCABULARY = Vocabulary([b"x"] * 40, frozenset(), "")
STEP_S = 0.01
GREEDY = Sampling(temperature=0)


class Guesser:
    """Drafts what followed the newest token before; now and then something else."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng
        self.reports: list[tuple[int, int]] = []
        self.forgotten: list[Sequence] = []

    def propose(self, asks: Row[tuple[Sequence, int]]) -> list[list[int]]:
        return [self._guess(list(sequence.token_ids), most) for sequence, most in asks]

    def _guess(self, ids: list[int], most: int) -> list[int]:
        if self._rng and self._rng.random() < 0.2:
            return [self._rng.randrange(40) for _ in range(self._rng.randint(0, most))]
        places = [at for at in range(len(ids) - 1) if ids[at] == ids[-1]]
        return ids[places[-1] + 1 :][: min(most, 5)] if places else []

    def report(self, sequence: Sequence, drafted_count: int, accepted_count: int) -> None:
        assert 0 <= accepted_count <= drafted_count
        self.reports.append((drafted_count, accepted_count))

    def forget(self, sequence: Sequence) -> None:
        self.forgotten.append(sequence)

    def close(self) -> None:
        pass


@dataclass
class CoreUnderTest:
    """A core, its parts, and what came out of it."""

    limits: Limits
    backend: ToyBackend = field(default_factory=ToyBackend)
    guesser: Guesser | None = None
    now_s: float = 0.0
    lines: list[str] = field(default_factory=list)
    answers: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, Event] = field(default_factory=dict)
    arrivals: int = 0

    def __post_init__(self) -> None:
        self.backend.allocate(self.limits.block_count)
        self.metrics = EngineMetrics("toy")
        self.core = EngineCore(
            ModelRunner(self.backend),
            self.limits,
            queue_depth_max=100,
            metrics=self.metrics,
            clock=lambda: self.now_s,
            drafter=self.guesser,
            write_transcript=self.lines.append,
        )
        self.scheduler, self.blocks = self.core._scheduler, self.core._blocks

    def add(self, request: EngineRequest) -> Sequence:
        answer = AnswerState(request.stop, VOCABULARY)
        answer.replay(request.emitted_token_ids)
        sequence = Sequence(request, answer, self.arrivals, self.now_s)
        self.arrivals += 1
        self.answers[request.request_id] = []
        self.core.add(sequence)
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        event = self.core.cancel(sequence)
        assert event is not None
        self.ends[sequence.request.request_id] = event

    def step(self) -> list[Event]:
        self.now_s = round(self.now_s + STEP_S, 6)
        events = self.core.step()
        for event in events:
            name = event.sequence.request.request_id
            self.answers[name] += event.token_ids
            if event.finish or event.error:
                assert name not in self.ends
                self.ends[name] = event
        return events

    def run(self, step_count_max: int = 100_000) -> None:
        for _ in range(step_count_max):
            if not self.core.busy:
                return
            assert self.step(), "busy, but nothing to compute"
        raise AssertionError("it does not end")


def request(
    name: object, prompt: Row[int], limit: int = 10, *, sampling: Sampling = GREEDY, **fields
) -> EngineRequest:
    return EngineRequest(str(name), prompt, StopRule(limit), sampling=sampling, **fields)


_known: dict[object, list[int]] = {}


def alone(one: EngineRequest, repeat: int = 0) -> list[int]:
    """What the request gives with a core of its own."""
    limit, draws = one.stop.max_token_count, (one.sampling.temperature, one.sampling.seed)
    key = (*one.prompt_token_ids, -1, *one.emitted_token_ids, -1, limit, draws, repeat)
    if key not in _known:
        under_test = CoreUnderTest(Limits(200, 512, 1), ToyBackend(repeat=repeat))
        under_test.add(one)
        under_test.run()
        _known[key] = under_test.answers[one.request_id]
    return _known[key]
