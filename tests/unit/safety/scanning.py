"""What the tests of this folder share."""

import itertools
from pathlib import Path

from safety_svc import policy_file as policies
from safety_svc.detectors.base import Audience, Finding, Scanner
from safety_svc.detectors.rulebook import Detectors, house_rules
from safety_svc.policy import Policy
from safety_svc.settings import POLICY

DETECTORS = Detectors(house_rules(), {})


def default_policy(**replaced: str) -> Policy:
    """The shipped policy, with pieces of its text replaced."""
    return policies.read(edited(**replaced), "default.yaml")


def edited(**replaced: str) -> str:
    """The shipped policy's text; `window_token_count="16>4"` replaces `…: 16` by `…: 4`."""
    text = Path(POLICY).read_text(encoding="utf-8")
    for key, change in replaced.items():
        old, new = change.split(">")
        assert f"{key}: {old}" in text
        text = text.replace(f"{key}: {old}", f"{key}: {new}", 1)
    return text


def found(text: str, audience: Audience = Audience.USER) -> list[Finding]:
    """All findings of the house rules in a whole text."""
    return feed_all(DETECTORS.scanners(audience), [text])


def feed_all(scanners: tuple[Scanner, ...], cuts: list[str]) -> list[Finding]:
    """All findings in a text that arrives in pieces, in the order in which they are decided."""
    *earlier, last = cuts or [""]
    result: list[Finding] = []
    for piece in earlier:
        result += [finding for scanner in scanners for finding in scanner.feed(piece)]
    result += [finding for scanner in scanners for finding in scanner.feed(last, final=True)]
    return sorted(result)


def cut(text: str, places: list[int]) -> list[str]:
    """`text` cut at the given character indices (any order, any range)."""
    ends = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(ends)]
