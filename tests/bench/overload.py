"""Past capacity: `python -m tests.bench.overload`; see README.md.

Measures the capacity with a closed loop, then offers 0.5, 1, 2 and 4 times as much in an open loop,
from accounts of all tiers and one greedy account. With `--pause-safety 2` it offers 0.7 of the
capacity instead and stops the safety process for two seconds. Ends with one line of JSON.
"""

import argparse
import asyncio
import contextlib
import json
import math
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence

import psutil
import uvloop

from tests.bench import processes, systems
from tests.bench.figures import percentile, shown, table, without_nan
from tests.bench.limits import raise_file_limit
from tests.bench.load import Account, wave
from tests.bench.open_loop import Outcome, arrivals, offer
from tests.bench.prompts import endless
from tests.bench.quiet import Watch
from tests.bench.reply import ANSWERED, FAILED, OVERLOAD, POLICY
from tests.bench.systems import System

GREEDY_SHARE = 0.5  # of all requests come from one account
SETTLE_S = 3.0  # at the start of each load: goodput is counted after that
BIN_S = 0.5  # of the course around the pause
# Goodput is back when its mean over so long is such a share of what it was before the pause.
BACK_S, BACK_SHARE = 2.0, 0.9


def askers(target_accounts: Sequence[Account]) -> tuple[list[Account], list[float]]:
    """Accounts with the weight of each; the first of tier pro is greedy."""
    greedy = next(at for at, one in enumerate(target_accounts) if one.tier == "pro")
    rest = (1 - GREEDY_SHARE) / (len(target_accounts) - 1)
    return list(target_accounts), [
        GREEDY_SHARE if at == greedy else rest for at in range(len(target_accounts))
    ]


async def capacity(system: System, arguments: argparse.Namespace) -> float:
    """Turns a second of a closed loop: the median of the rounds."""
    found = []
    for seed in range(arguments.rounds):
        one = await wave(
            system.target, arguments.streams, arguments.tokens, arguments.seconds / 3, endless(seed)
        )
        found.append(one.turns_per_s)
    return statistics.median(found)


def figures(outcomes: Sequence[Outcome], seconds: float, names: Sequence[str]) -> dict[str, object]:
    """What a load gave; turns a second are those that ended between SETTLE_S and the load's end."""
    counted = [
        one for one in outcomes if one.answer.kind == ANSWERED and SETTLE_S <= one.ended_s < seconds
    ]
    span = seconds - SETTLE_S
    by_account = Counter(names[one.arrival.asker] for one in counted)
    offered = Counter(names[one.arrival.asker] for one in outcomes)
    firsts = [one.answer.first_s * 1000 for one in counted]
    refused = [one.answer.seconds * 1000 for one in outcomes if one.answer.kind == OVERLOAD]
    return {
        "goodput_turns_per_s": round(len(counted) / span, 1),
        "first_token_p50_ms": round(percentile(firsts, 0.5), 1),
        "first_token_p99_ms": round(percentile(firsts, 0.99), 1),
        "refusals": sum(one.answer.kind == OVERLOAD for one in outcomes),
        "refusal_p50_ms": round(percentile(refused, 0.5), 1),
        "refusal_p99_ms": round(percentile(refused, 0.99), 1),
        "without_retry_after": sum(
            one.answer.kind == OVERLOAD and one.answer.retry_after_s is None for one in outcomes
        ),
        "by_policy": sum(one.answer.kind == POLICY for one in outcomes),
        "failed": sum(one.answer.kind == FAILED for one in outcomes),
        "not_answered": dict(
            Counter(
                f"{one.answer.kind}: {one.answer.detail}"
                for one in outcomes
                if one.answer.kind != ANSWERED
            )
        ),
        "served_per_s": {name: round(by_account[name] / span, 2) for name in names},
        "offered_per_s": {name: round(offered[name] / seconds, 2) for name in names},
    }


async def loads(
    system: System, peak: float, arguments: argparse.Namespace
) -> dict[str, dict[str, object]]:
    """Each multiple of the capacity, one after the other."""
    who, weights = askers(system.target.accounts)
    names = account_names(who, weights)
    found: dict[str, dict[str, object]] = {}
    for factor in arguments.factors:
        coming = arrivals(factor * peak, arguments.seconds, weights, arguments.seed)
        before = processes.cpu_by_service(system.root)
        client = time.process_time()
        with Watch([psutil.Process()]) as watch:
            outcomes = await offer(
                system.target, who, coming, arguments.tokens, endless(arguments.seed)
            )
        client = time.process_time() - client
        spent = processes.grown(before, processes.cpu_by_service(system.root))
        answered = max(1, sum(one.answer.kind == ANSWERED for one in outcomes))
        one = figures(outcomes, arguments.seconds, names)
        one["goodput_share"] = round(float(str(one["goodput_turns_per_s"])) / peak, 3)
        one["cpu_ms_per_turn"] = {
            name: round(value / answered * 1000, 2) for name, value in spent.items()
        }
        one["client_cpu_ms_per_turn"] = round(client / answered * 1000, 2)
        one["foreign_cores"] = round(watch.foreign_cores, 2)
        found[str(factor)] = one
        tell(factor, one)
    return found


def account_names(who: Sequence[Account], weights: Sequence[float]) -> list[str]:
    """free-1, pro-1 (greedy), …"""
    count: Counter[str] = Counter()
    names = []
    for one, weight in zip(who, weights, strict=True):
        count[one.tier] += 1
        greedy = " (greedy)" if weight == GREEDY_SHARE else ""
        names.append(f"{one.tier}-{count[one.tier]}{greedy}")
    return names


def tell(factor: float, one: dict[str, object]) -> None:
    """Prints a load's figures."""
    print(f"\n{factor} times the capacity")
    for name, value in one.items():
        if not isinstance(value, dict):
            print(f"  {name:<24} {value}")
    for name in ("not_answered", "cpu_ms_per_turn"):
        print(f"  {name}: {one[name]}")
    served, offered = one["served_per_s"], one["offered_per_s"]
    assert isinstance(served, dict)
    assert isinstance(offered, dict)
    rows = [[name, shown(offered[name], 2), shown(served[name], 2)] for name in served]
    print(table(["  turns a second", "offered", "served"], rows), flush=True)


async def pause(system: System, peak: float, arguments: argparse.Namespace) -> dict[str, object]:
    """Stops safety in the middle of a load of 0.7 of the capacity, and what clients saw."""
    who, weights = askers(system.target.accounts)
    coming = arrivals(0.7 * peak, arguments.seconds, weights, arguments.seed)
    at_s = arguments.seconds / 3
    stopping = asyncio.create_task(_stop_for(system, at_s, arguments.pause_safety))
    with Watch([psutil.Process()]) as watch:
        outcomes = await offer(
            system.target, who, coming, arguments.tokens, endless(arguments.seed)
        )
    await stopping
    found = around_pause(outcomes, at_s, arguments.pause_safety, arguments.seconds)
    found["foreign_cores"] = round(watch.foreign_cores, 2)
    return found


async def _stop_for(system: System, at_s: float, seconds: float) -> None:
    await asyncio.sleep(at_s)
    stopped = [
        one for one in processes.tree(system.root) if processes.service_of(one) == "safety_svc"
    ]
    if not stopped:
        raise RuntimeError("no safety process to stop")
    for one in stopped:
        one.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        for one in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGCONT)


def around_pause(
    outcomes: Sequence[Outcome], at_s: float, pause_s: float, seconds: float
) -> dict[str, object]:
    """Turns lost and recovered, and when goodput was back; the course in bins of BIN_S."""
    touched = [one for one in outcomes if one.ended_s >= at_s and one.arrival.at_s < at_s + pause_s]
    good = [one.ended_s for one in outcomes if one.answer.kind == ANSWERED]
    course = [
        sum(bin_ * BIN_S <= end < (bin_ + 1) * BIN_S for end in good) / BIN_S
        for bin_ in range(int(seconds / BIN_S))
    ]
    first, last = int(SETTLE_S / BIN_S), int(at_s / BIN_S)
    before = statistics.mean(course[first:last]) if last > first else float("nan")
    return {
        "goodput_before_turns_per_s": round(before, 1),
        "turns_touched": len(touched),
        "recovered": sum(one.answer.kind == ANSWERED for one in touched),
        "lost": sum(one.answer.kind == FAILED for one in touched),
        "refused": sum(one.answer.kind == OVERLOAD for one in touched),
        "lost_in_all": sum(one.answer.kind == FAILED for one in outcomes),
        "not_answered": dict(
            Counter(
                f"{one.answer.kind}: {one.answer.detail}"
                for one in outcomes
                if one.answer.kind != ANSWERED
            )
        ),
        "back_after_s": back_after_s(course, before, at_s + pause_s),
        "goodput_course": course,
    }


def back_after_s(course: Sequence[float], before: float, resumed_s: float) -> float | None:
    """Seconds from the end of the pause to where the mean of BACK_S is BACK_SHARE of that before.

    None: not within the load.
    """
    width = int(BACK_S / BIN_S)
    for number in range(math.ceil(resumed_s / BIN_S), len(course) - width + 1):
        if statistics.mean(course[number : number + width]) >= BACK_SHARE * before:
            return round(number * BIN_S - resumed_s, 2)
    return None


async def run(arguments: argparse.Namespace) -> None:
    """The whole benchmark."""
    systems.WORK.mkdir(parents=True, exist_ok=True)
    async with systems.chatmesh(
        "overload", systems.SIMULATED, accounts_per_tier=arguments.accounts_per_tier
    ) as system:
        await wave(system.target, 32, 32, 2.0, endless(0))
        with Watch([psutil.Process()]) as watch:
            peak = arguments.capacity or await capacity(system, arguments)
        print(f"capacity: {peak:.1f} turns/s, others {watch.foreign_cores:.2f} cores", flush=True)
        result: dict[str, object] = {"bench": "overload", "capacity_turns_per_s": round(peak, 1)}
        if arguments.pause_safety:
            result["pause"] = await pause(system, peak, arguments)
            print(f"safety stopped for {arguments.pause_safety} s: {result['pause']}")
        else:
            result["loads"] = await loads(system, peak, arguments)
    print(json.dumps(without_nan(result)))


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--factors", type=float, nargs="+", default=[0.5, 1, 2, 4])
    parser.add_argument("--capacity", type=float, default=0.0, help="turns/s; 0: measure it")
    parser.add_argument("--streams", type=int, default=64, help="of the loop that finds capacity")
    parser.add_argument("--rounds", type=int, default=3, help="of that loop")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each load")
    parser.add_argument("--accounts-per-tier", type=int, default=3)
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--pause-safety", type=float, default=0.0, metavar="SECONDS")
    arguments = parser.parse_args()
    if arguments.seconds <= SETTLE_S:
        parser.error(f"--seconds must be more than {SETTLE_S}")
    raise_file_limit()
    uvloop.run(run(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
