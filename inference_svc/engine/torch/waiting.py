"""Who of those that wait runs next. Pure: the clock is an argument.

- Classes: high before normal before low priority. So that the lower ones cannot starve, those of
  them in which somebody has waited longer than `wait_s_max` get every second free place, in turn:
  with c such classes, whatever comes in the higher ones, the k-th of a class is served within
  2 c k admissions from then on.
- In a class: a preempted request before one that never ran; then the tenant that was served least,
  by a virtual token counter (VTC; Sheng et al., "Fairness in Serving Large Language Models", OSDI
  2024): two tenants of a class that both have requests waiting never differ in service by more than
  twice the larger of one prompt and one KV cache full of answers; then the earlier arrival.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterator

from inference_svc.engine.torch.sequence import Sequence

PROMPT_TOKEN_COST, ANSWER_TOKEN_COST = 1, 2  # weights of service, those of the VTC paper
IDLE_TENANT_COUNT_MAX = 10_000
_OVERDUE = 1 << 20  # above every priority

Key = tuple[bool, int, int]

Tenant = str | int


class ServiceCounters:
    """The virtual token counter of each tenant.

    A tenant that comes with nothing waiting is lifted to the least of those that wait: what it did
    not use while it was away is no credit.
    """

    def __init__(self, idle_count_max: int = IDLE_TENANT_COUNT_MAX) -> None:
        self._idle_count_max = idle_count_max
        self._served: dict[Tenant, int] = {}
        self._live: dict[Tenant, int] = {}  # requests that wait or run
        self._waiting: dict[Tenant, int] = {}
        self._idle: OrderedDict[Tenant, None] = OrderedDict()  # the longest idle first
        self._left_last = 0  # counter of the tenant that left the empty queue

    def __getitem__(self, tenant: Tenant) -> int:
        return self._served[tenant]

    def arrives(self, tenant: Tenant) -> None:
        """A request comes."""
        if tenant not in self._waiting:
            least = min((self._served[each] for each in self._waiting), default=self._left_last)
            self._served[tenant] = max(self._served.get(tenant, 0), least)
        self._live[tenant] = self._live.get(tenant, 0) + 1
        self._idle.pop(tenant, None)
        self.waits(tenant)

    def waits(self, tenant: Tenant) -> None:
        """One more of its requests waits."""
        self._waiting[tenant] = self._waiting.get(tenant, 0) + 1

    def waits_no_more(self, tenant: Tenant) -> None:
        """One of its requests left the queue."""
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            self._left_last = self._served[tenant]

    def charge(self, tenant: Tenant, cost: int) -> None:
        """It was served."""
        self._served[tenant] += cost

    def leaves(self, tenant: Tenant) -> None:
        """A request has ended. A request that is a tenant by itself is forgotten with it."""
        self._live[tenant] -= 1
        if self._live[tenant]:
            return
        del self._live[tenant]
        if isinstance(tenant, int):
            del self._served[tenant]
            return
        self._idle[tenant] = None
        if len(self._idle) > self._idle_count_max:
            oldest, _ = self._idle.popitem(last=False)
            del self._served[oldest]


class WaitingQueue:
    """The sequences that wait, one line for each tenant and priority.

    Args:
        wait_s_max: seconds after which a lower class gets its turn.
    """

    def __init__(self, wait_s_max: float) -> None:
        self._wait_s_max = wait_s_max
        self._lines: dict[tuple[Tenant, int], list[Sequence]] = {}
        self._count = 0
        # Whether the last choice was of a class that had waited too long, and the last admission.
        self._chose_overdue = self._served_overdue = False
        self._admitted_total = 0
        self._last_turns: dict[int, int] = {}  # priority -> number of its last admission
        self.counters = ServiceCounters()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        for line in self._lines.values():
            yield from line

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._lines.get((sequence.tenant, sequence.request.priority), ())

    def push(self, sequence: Sequence) -> None:
        """Takes a newcomer, or one that was preempted: that one goes before who came later."""
        line = self._lines.setdefault((sequence.tenant, sequence.request.priority), [])
        insort(line, sequence, key=lambda each: each.arrival)
        self._count += 1
        if sequence.preempted:
            self.counters.waits(sequence.tenant)
        else:
            self.counters.arrives(sequence.tenant)

    def remove(self, sequence: Sequence) -> None:
        """Takes one out."""
        key = (sequence.tenant, sequence.request.priority)
        self._lines[key].remove(sequence)
        if not self._lines[key]:
            del self._lines[key]
        self._count -= 1
        self.counters.waits_no_more(sequence.tenant)

    def admit(self, sequence: Sequence) -> None:
        """Takes out the one that `first` gave: it runs now."""
        self.remove(sequence)
        self._served_overdue = self._chose_overdue
        self._admitted_total += 1
        self._last_turns[sequence.request.priority] = self._admitted_total

    def rank(self, sequence: Sequence, now_s: float) -> tuple[int, int]:
        """What preemption goes by: the largest gives way.

        Whoever has waited and run longer than `wait_s_max` stands above all priorities: else a low
        one could be preempted for ever.
        """
        overdue = now_s - sequence.arrived_s >= self._wait_s_max
        return (-(_OVERDUE if overdue else sequence.request.priority), sequence.arrival)

    def first(self, now_s: float, ready: Callable[[Sequence], bool]) -> Sequence | None:
        """The next to run among those that are ready; it stays in the queue."""
        best: dict[int, tuple[Key, Sequence]] = {}
        for (tenant, priority), line in self._lines.items():
            sequence = next(filter(ready, line), None)
            if sequence is None:
                continue
            key = (not sequence.preempted, self.counters[tenant], sequence.arrival)
            if priority not in best or key < best[priority][0]:
                best[priority] = key, sequence
        if not best:
            return None
        chosen = highest = max(best)
        if not self._served_overdue and len(best) > 1:
            overdue = self._overdue(now_s) & best.keys() - {highest}
            chosen = min(overdue, key=self._turn, default=highest)
        self._chose_overdue = chosen != highest
        return best[chosen][1]

    def _turn(self, priority: int) -> tuple[int, int]:
        """Smaller: whose last turn is longer ago, then the higher."""
        return (self._last_turns.get(priority, 0), -priority)

    def _overdue(self, now_s: float) -> set[int]:
        """Priorities in which somebody has waited too long."""
        return {
            priority
            for (_, priority), line in self._lines.items()
            if now_s - line[0].arrived_s >= self._wait_s_max
        }
