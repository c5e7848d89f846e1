"""What the engine measures of itself, for Prometheus; named as in vLLM where it means the same.

The engine's thread counts in plain numbers, a fraction of a microsecond each, and a scrape reads
them: prometheus_client's own histograms cost more a token than scheduling it does.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from inference_svc.engine.torch.scheduler import Scheduler
from inference_svc.engine.torch.sequence import Sequence

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
STEP_SECONDS = (0.0001, 0.00025, 0.0005, *SECONDS)
TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class Histogram:
    """Counts by upper bound. One thread observes."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds, self._counts, self._sum = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """`count` samples of one value."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulated counts by bound, and the sum."""
        total, buckets = 0, []
        for bound, count in zip((*self._bounds, float("inf")), list(self._counts), strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return buckets, self._sum


class EngineMetrics(Collector):
    """Everything that one engine counts.

    Attributes:
        step_seconds: a step as a whole.
        overhead_seconds: of it, what is not the model's computing.
    """

    def __init__(self, model_id: str) -> None:
        self._model_id = model_id
        self.first_token, self.inter_token = Histogram(SECONDS), Histogram(STEP_SECONDS)
        self.queue, self.prefill, self.whole = (Histogram(SECONDS) for _ in range(3))
        self.step_tokens = Histogram(TOKENS)
        self.step_seconds, self.overhead_seconds = (Histogram(STEP_SECONDS) for _ in range(2))
        self.prompt_tokens = self.generation_tokens = 0
        self.prefix_queries = self.prefix_hits = self.copies = 0
        self.drafts = self.draft_tokens = self.accepted_tokens = 0
        self._ended: Counter[str] = Counter()
        self._gauges = (0, 0, 0, 0)  # running, waiting, blocks used, blocks
        self._totals = (0, 0)  # preempted, evicted
        self._registry: CollectorRegistry | None = None

    def register(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Lets scrapes see it, until `unregister`."""
        registry.register(self)
        self._registry = registry

    def unregister(self) -> None:
        """Takes it out again. Repeatable."""
        if self._registry is not None:
            self._registry.unregister(self)
            self._registry = None

    # ---- the engine's thread

    def planned(self, token_count: int, copy_count: int) -> None:
        """A step computed so many tokens, and copied so many blocks before."""
        self.step_tokens.observe(token_count)
        self.copies += copy_count

    def admitted(self, prompt_count: int, cached_count: int) -> None:
        """A request runs for the first time."""
        self.prefix_queries += prompt_count
        self.prefix_hits += cached_count

    def stepped(self, scheduler: Scheduler, whole_s: float, computing_s: float) -> None:
        """A step is done."""
        self.step_seconds.observe(whole_s)
        self.overhead_seconds.observe(whole_s - computing_s)
        blocks = scheduler.blocks
        used = blocks.block_count - blocks.free_count
        running, waiting = scheduler.running_count, scheduler.waiting_count
        self._gauges = (running, waiting, used, blocks.block_count)
        self._totals = (scheduler.preempted_total, blocks.evicted_total)

    def tokens(self, sequence: Sequence, count: int, now_s: float) -> None:
        """A sequence got tokens."""
        self.generation_tokens += count
        last_s, sequence.last_token_s = sequence.last_token_s, now_s
        if last_s is not None:
            self.inter_token.observe((now_s - last_s) / count, count)
            return
        sequence.first_token_s = now_s
        admitted_s = sequence.admitted_s or now_s
        self.prompt_tokens += sequence.prompt_count
        self.first_token.observe(now_s - sequence.arrived_s)
        self.queue.observe(admitted_s - sequence.arrived_s)
        self.prefill.observe(now_s - admitted_s)

    def verified(self, drafted_count: int, accepted_count: int) -> None:
        """Guesses for one sequence were tried."""
        self.drafts += 1
        self.draft_tokens += drafted_count
        self.accepted_tokens += accepted_count

    def ended(self, sequence: Sequence, reason: str, now_s: float) -> None:
        """A sequence ended: "stop", "length", "cancelled" or "error"."""
        self._ended[reason] += 1
        self.whole.observe(now_s - sequence.arrived_s)

    # ---- a scrape's thread

    def describe(self) -> Iterator[Metric]:
        """No names in advance: several engines may be measured, one after the other."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """All families."""
        running, waiting, used, blocks = self._gauges
        preempted, evicted = self._totals
        yield self._gauge("vllm:num_requests_running", "Sequences that hold blocks", running)
        yield self._gauge("vllm:num_requests_waiting", "Sequences that wait", waiting)
        yield self._gauge(
            "vllm:kv_cache_usage_perc", "Share of KV blocks in use, 1 is all", used / max(blocks, 1)
        )
        yield self._gauge("chatmesh_inference_kv_blocks_used", "KV blocks in use", used)
        yield self._gauge("chatmesh_inference_kv_blocks", "KV blocks there are", blocks)
        for name, text, count in (
            ("vllm:num_preemptions", "Sequences whose blocks were taken", preempted),
            ("vllm:prompt_tokens", "Prompt tokens processed", self.prompt_tokens),
            ("vllm:generation_tokens", "Tokens generated", self.generation_tokens),
            ("vllm:prefix_cache_queries", "Prompt tokens looked up", self.prefix_queries),
            ("vllm:prefix_cache_hits", "Prompt tokens found", self.prefix_hits),
            (
                "chatmesh_inference_kv_block_copies",
                "Shared blocks copied to be written",
                self.copies,
            ),
            ("chatmesh_inference_kv_block_evictions", "Cached blocks given up", evicted),
        ):
            family = CounterMetricFamily(name, text, labels=["model_name"])
            family.add_metric([self._model_id], count)
            yield family
        yield self._endings()
        for name, text, histogram in (
            ("vllm:time_to_first_token_seconds", "Arrival to first token", self.first_token),
            ("vllm:inter_token_latency_seconds", "Between two tokens", self.inter_token),
            ("vllm:request_queue_time_seconds", "Arrival to admission", self.queue),
            ("vllm:request_prefill_time_seconds", "Admission to first token", self.prefill),
            ("vllm:e2e_request_latency_seconds", "Arrival to end", self.whole),
            ("vllm:iteration_tokens_total", "Tokens of one step", self.step_tokens),
            ("chatmesh_inference_step_seconds", "One step", self.step_seconds),
            (
                "chatmesh_inference_step_overhead_seconds",
                "Of a step, what is not the model's computing",
                self.overhead_seconds,
            ),
        ):
            buckets, total = histogram.read()
            distribution = HistogramMetricFamily(name, text, labels=["model_name"])
            distribution.add_metric([self._model_id], buckets, total)
            yield distribution

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model_id], value)
        return family

    def _endings(self) -> CounterMetricFamily:
        labels = ["model_name", "finished_reason"]
        family = CounterMetricFamily("vllm:request_success", "Requests that ended", labels=labels)
        for reason, count in sorted(self._ended.items()):
            family.add_metric([self._model_id, reason], count)
        return family
