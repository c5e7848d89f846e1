"""The result as a table for docs/LOG.md. Pure."""

from collections import Counter

from tests.chaos.experiment import Result
from tests.chaos.verdict import Struck

HEAD = (
    "| struck | killed | paused | median silence, s | longest, s | met within 15 s |\n"
    "|---|--:|--:|--:|--:|---|"
)


def table(result: Result) -> str:
    """One line a kind of process.

    Blows overlap: what a client met is listed at every kind that was struck shortly before.
    """
    kinds = sorted({one.blow.kind for one in result.struck})
    return "\n".join([HEAD, *(_row(kind, result) for kind in kinds)])


def _row(kind: str, result: Result) -> str:
    struck = [one for one in result.struck if one.blow.kind == kind]
    hows = Counter(one.blow.how for one in struck)
    median, worst = result.gaps.median(kind), result.gaps.worst(kind)
    figures = ["–" if value is None else f"{value:.2f}" for value in (median, worst)]
    met = _met(struck, result)
    listed = ", ".join(f"{count} × {what}" for what, count in met.most_common()) or "nothing"
    return f"| {kind} | {hows['kill']} | {hows['pause']} | {figures[0]} | {figures[1]} | {listed} |"


def _met(struck: list[Struck], result: Result) -> Counter[str]:
    return Counter(
        f"{trouble.status} `{trouble.code}`" if trouble.status else "cut"
        for one in result.outcomes
        for trouble in one.troubles
        if any(each.at_s <= trouble.at_s <= each.over_s for each in struck)
    )
