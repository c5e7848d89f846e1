"""What is masked, and with what. Pure."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from safety_svc.detectors.base import Finding, PromptFinding
from safety_svc.policy import Action, Direction, Policy, Regime

MASK_COUNT_MAX = 4_096


class Mask(NamedTuple):
    """A span in bytes and the type that names it."""

    start: int
    end: int
    kind: str


class UnmaskableError(Exception):
    """More than MASK_COUNT_MAX spans are to be masked, or what is no text of a message."""


def merged(masks: Iterable[Mask]) -> list[Mask]:
    """Masks in the order of the text; those that overlap become one, named by the first."""
    result: list[Mask] = []
    for mask in sorted(masks, key=lambda one: (one.start, -one.end, one.kind)):
        if result and mask.start < result[-1].end:
            last = result[-1]
            result[-1] = last._replace(end=max(last.end, mask.end))
        else:
            result.append(mask)
    return result


def mask_of(finding: Finding) -> Mask:
    """The mask of a finding."""
    return Mask(finding.start, finding.end, finding.detector)


def prompt_masks(
    regime: Regime, directions: Sequence[Direction], found: Iterable[PromptFinding]
) -> dict[int, list[Mask]]:
    """The masks of a conversation by message.

    Args:
        regime: the rules in force.
        directions: of each message.
        found: everything that was found.

    Raises:
        UnmaskableError: more than MASK_COUNT_MAX, or a finding that has no place in the text.
    """
    by_message: dict[int, list[Mask]] = {}
    for index, finding in found:
        if regime.action(directions[index], finding) is Action.REDACT:
            if not finding.end:  # in the name of its author
                raise UnmaskableError
            by_message.setdefault(index, []).append(mask_of(finding))
    result = {index: merged(masks) for index, masks in sorted(by_message.items())}
    if sum(map(len, result.values())) > MASK_COUNT_MAX:
        raise UnmaskableError
    return result


def masked(text: str, masks: Sequence[Mask], policy: Policy) -> str:
    """`text` with its masks, merged ones, replaced."""
    data, result, at = text.encode(), b"", 0
    for mask in masks:
        result += data[at : mask.start] + policy.mask(mask.kind).encode()
        at = mask.end
    return (result + data[at:]).decode()
