"""What a run of the benchmark says: medians by system and cell, as tables and as JSON."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.bench.figures import shown, table
from tests.bench.measure import Cell, Measured

Results = Mapping[tuple[str, Cell], Sequence[Measured]]
HEAD = (
    "",
    "turns/s",
    "tokens/s",
    "CPU ms/turn",
    "first p50 ms",
    "first p99 ms",
    "gap p99 ms",
    "client ms",
    "backend ms",
    "foreign cores",
)
FIGURES: tuple[tuple[str, Callable[[Measured], float]], ...] = (
    ("turns_per_s", lambda one: one.wave.turns_per_s),
    ("tokens_per_s", lambda one: one.wave.token_count / one.wave.seconds),
    ("cpu_ms_per_turn", lambda one: sum(one.cpu_ms.values())),
    ("first_token_p50_ms", lambda one: one.wave.first_token_ms(0.5)),
    ("first_token_p99_ms", lambda one: one.wave.first_token_ms(0.99)),
    ("gap_p99_ms", lambda one: one.wave.gap_ms(0.99)),
    ("client_cpu_ms_per_turn", lambda one: one.client_ms),
    ("backend_cpu_ms_per_turn", lambda one: one.backend_ms),
    ("foreign_cores", lambda one: one.foreign_cores),
    ("metered_tokens_per_s", lambda one: one.metered_per_s),
    ("ledger_lag_s", lambda one: one.ledger_lag_s),
)


def median(values: Sequence[float]) -> float:
    """The median; nan when one of the values is, or there are none."""
    if not values or any(math.isnan(value) for value in values):
        return math.nan
    return statistics.median(values)


def medians(results: Sequence[Measured]) -> dict[str, Any]:
    """Each figure's median over the rounds, CPU by service, and all that was not answered."""
    found: dict[str, Any] = {
        name: round(median([figure(one) for one in results]), 3) for name, figure in FIGURES
    }
    services = sorted({name for one in results for name in one.cpu_ms})
    found["cpu_ms_by_service"] = {
        name: round(median([one.cpu_ms.get(name, 0.0) for one in results]), 3) for name in services
    }
    others = sum((Counter(one.wave.others()) for one in results), Counter())
    found["whole_answers"] = sum(len(one.wave.whole) for one in results)
    found["not_answered"] = dict(others)
    found["turns_per_s_rounds"] = [round(one.wave.turns_per_s, 1) for one in results]
    return found


def row(name: str, figures: Mapping[str, Any]) -> list[str]:
    """A line of the table of `HEAD`."""
    keys = [key for key, _ in FIGURES[: len(HEAD) - 1]]
    digits = {"turns_per_s": 1, "cpu_ms_per_turn": 2, "foreign_cores": 2}
    digits |= {"client_cpu_ms_per_turn": 2, "backend_cpu_ms_per_turn": 2, "tokens_per_s": 0}
    return [name, *(shown(figures[key], digits.get(key, 1)) for key in keys)]


def tables(results: Results, memory_kib: Mapping[str, Mapping[str, float]]) -> str:
    """The whole report for people."""
    cells = list(dict.fromkeys(cell for _, cell in results))
    parts = []
    for cell in cells:
        found = {name: medians(some) for (name, at), some in results.items() if at == cell}
        rows = [row(name, figures) for name, figures in found.items()]
        rounds = max(len(some) for (_, at), some in results.items() if at == cell)
        parts.append(f"\n{cell} tokens, medians of {rounds}\n" + table(HEAD, rows))
        parts += [
            f"  {name}: {figures['metered_tokens_per_s']:,.0f} tokens/s up to the ledger, the last "
            f"{figures['ledger_lag_s']:.1f} s after its answer"
            for name, figures in found.items()
            if not math.isnan(figures["metered_tokens_per_s"])
        ]
        parts += [
            f"  {name}: {count} {kind}, beside {figures['whole_answers']} whole answers"
            for name, figures in found.items()
            for kind, count in figures["not_answered"].items()
        ]
    parts.append("\nCPU ms a turn by service\n" + _by_service(results, cells))
    parts.append("\nMemory after the load, MiB (proportional set size)\n" + _memory(memory_kib))
    return "\n".join(parts)


def _by_service(results: Results, cells: Sequence[Cell]) -> str:
    found = {
        f"{name} {cell}": medians(results[name, cell])["cpu_ms_by_service"]
        for cell in cells
        for name in dict.fromkeys(name for name, _ in results)
        if (name, cell) in results
    }
    found = {at: services for at, services in found.items() if len(services) > 1}
    columns = list(found)
    services = sorted({service for some in found.values() for service in some})
    rows = [
        [service, *(shown(found[at].get(service, math.nan), 2) for at in columns)]
        for service in services
    ]
    return table(["", *columns], rows)


def _memory(memory_kib: Mapping[str, Mapping[str, float]]) -> str:
    services = sorted({service for some in memory_kib.values() for service in some})
    rows = [
        [service, *(shown(some.get(service, math.nan) / 1024) for some in memory_kib.values())]
        for service in services
    ]
    rows.append(["in all", *(shown(sum(some.values()) / 1024) for some in memory_kib.values())])
    return table(["", *memory_kib], rows)


def ratios(results: Results, ours: str) -> dict[str, dict[str, float]]:
    """Turns a second of ours over each other system's, by cell: medians of each."""
    found: dict[str, dict[str, float]] = {}
    for (name, cell), some in results.items():
        if name != ours and (ours, cell) in results:
            speed = median([one.wave.turns_per_s for one in results[ours, cell]])
            other = median([one.wave.turns_per_s for one in some])
            found.setdefault(f"{ours} / {name}", {})[str(cell)] = round(speed / other, 2)
    return found


def shares(results: Results, base: Cell) -> dict[str, dict[str, float]]:
    """Turns a second of cells with as many tokens and more streams, as a share of the base's."""
    found: dict[str, dict[str, float]] = {}
    for (name, cell), some in results.items():
        wider = cell.stream_count > base.stream_count and cell.token_count == base.token_count
        if wider and (name, base) in results:
            speed = median([one.wave.turns_per_s for one in some])
            at_base = median([one.wave.turns_per_s for one in results[name, base]])
            found.setdefault(name, {})[str(cell)] = round(speed / at_base, 3)
    return found
