"""A settlement on the wire and as counts of steps."""

from billing_svc import checks
from billing_svc.turn import STEP_COUNT_MAX, SettledCounts
from chatmesh.billing.v1 import billing_pb2 as pb


def counts_of(request: pb.SettleRequest) -> tuple[SettledCounts, ...]:
    """The counts by step, from step 0 on; a step that is not named has zeros.

    Raises:
        MeshError: BAD_REQUEST.
    """
    counts = {0: _checked("", request)}
    for index, usage in enumerate(request.steps):
        field = f"steps[{index}]."
        if not 0 < usage.step < STEP_COUNT_MAX:
            raise checks.bad_request(f"{field}step", f"must be in [1, {STEP_COUNT_MAX - 1}].")
        if usage.step in counts:
            raise checks.bad_request(f"{field}step", "must not stand twice.")
        counts[usage.step] = _checked(field, usage)
    return tuple(counts.get(number, SettledCounts()) for number in range(max(counts) + 1))


def _checked(field: str, usage: pb.SettleRequest | pb.StepUsage) -> SettledCounts:
    counts = SettledCounts(
        prompt=usage.prompt_token_count,
        cached=usage.cached_token_count,
        output=usage.output_token_count,
        withheld=usage.withheld_token_count,
        unsent=usage.unsent_token_count,
    )
    if counts.cached > counts.prompt:
        raise checks.bad_request(f"{field}cached_token_count", "must not be above the prompt's.")
    if counts.withheld > counts.output:
        raise checks.bad_request(f"{field}withheld_token_count", "must not be above the output's.")
    if counts.released < 0:
        raise checks.bad_request(
            f"{field}unsent_token_count", "must not be above the output's less the withheld ones."
        )
    return counts
