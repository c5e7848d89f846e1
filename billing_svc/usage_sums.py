"""Sums of a month, and limits, on the wire."""

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from billing_svc.ledger_store import Total
from billing_svc.limits import Limits, payer_of
from chatmesh.billing.v1 import billing_pb2 as pb
from chatmesh.content.v1 import content_pb2


def usage_response(
    month: dt.date, totals: Sequence[Total], limits: Sequence[Limits], names: Mapping[str, str]
) -> pb.GetUsageResponse:
    """The answer of GetUsage.

    Args:
        month: its first day.
        totals: by model and key.
        limits: of the account, and of what else is shown.
        names: of keys by id.
    """
    (own,) = (each for each in limits if payer_of(each.payer_id) == content_pb2.PAYER_ACCOUNT)
    return pb.GetUsageResponse(
        period=f"{month:%Y-%m}",
        **_sums(totals),
        turn_count=sum(total.turn_count for total in totals),
        budget_nanousd=own.monthly_budget_nanousd,
        held_nanousd=own.reserved_nanousd,
        models=[
            pb.ModelUsage(model=model, **_sums(of_model))
            for model, of_model in _grouped(totals, "model")
        ],
        keys=[
            pb.KeyUsage(
                key_id=key_id,
                name=names.get(key_id, ""),
                **_sums(of_key),
                turn_count=sum(total.turn_count for total in of_key),
            )
            for key_id, of_key in _grouped(totals, "key_id")
        ],
        limits=map(limits_message, limits),
    )


def limits_message(found: Limits) -> pb.Limits:
    """Limits on the wire."""
    return pb.Limits(
        id=found.payer_id,
        payer=payer_of(found.payer_id),
        monthly_budget_nanousd=found.monthly_budget_nanousd,
        spent_nanousd=found.spent_nanousd,
        held_nanousd=found.reserved_nanousd,
        tokens_per_minute=found.tokens_per_minute,
        minute_token_count=found.minute_token_count,
        parallel_max=found.parallel_max,
        running_count=found.running,
    )


def _grouped(totals: Iterable[Total], field: str) -> list[tuple[str, list[Total]]]:
    groups: dict[str, list[Total]] = defaultdict(list)
    for total in totals:
        groups[attrgetter(field)(total)].append(total)
    return sorted(groups.items())


def _sums(totals: Iterable[Total]) -> dict[str, int]:
    totals = list(totals)
    # A month may have given back more than it charged; counts on the wire are not negative.
    return {
        "input_token_count": max(0, sum(total.input_token_count for total in totals)),
        "cached_input_token_count": max(0, sum(total.cached_input_token_count for total in totals)),
        "output_token_count": max(0, sum(total.output_token_count for total in totals)),
        "cost_nanousd": sum(total.cost_nanousd for total in totals),
    }
