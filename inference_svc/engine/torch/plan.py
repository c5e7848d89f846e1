"""What one step computes: the scheduler's word to the model runner."""

from collections.abc import Sequence as Row
from dataclasses import dataclass, field

from inference_svc.engine.torch.sequence import Sequence


@dataclass(slots=True)
class Chunk:
    """Positions [begin, end) of a sequence, to compute in one step, and guesses behind them.

    Attributes:
        draft_token_ids: what may follow; only for a chunk that samples.
    """

    sequence: Sequence
    begin: int
    end: int
    draft_token_ids: Row[int] = ()

    @property
    def samples(self) -> bool:
        """The last position is the newest token: its logits give the next one."""
        return self.end == len(self.sequence.token_ids)

    @property
    def token_count(self) -> int:
        """Rows of the step."""
        return self.end - self.begin + len(self.draft_token_ids)


@dataclass(slots=True)
class Plan:
    """What one step does.

    Attributes:
        chunks: by sequence, in the order of the step.
        copies: target block -> source block, to be made before the step. No target is a source.
        admitted, preempted: who began and who ceased to run.
    """

    chunks: dict[Sequence, Chunk] = field(default_factory=dict)
    copies: dict[int, int] = field(default_factory=dict)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)

    @property
    def token_count(self) -> int:
        """Rows of the step."""
        return sum(chunk.token_count for chunk in self.chunks.values())
