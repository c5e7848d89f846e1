"""The categories that the classifier knows, in the order of its outputs."""

from safety_svc.detectors.base import Audience, Category

# The built-in classifier's name, as a back end and in findings.
NAME = "classifier"
CATEGORIES: tuple[Category, ...] = tuple(one for one in Category if one is not Category.SECRET)
INDEX = {category: index for index, category in enumerate(CATEGORIES)}
COUNT = len(CATEGORIES)

# Attacks on the model itself: they have no meaning in what the model says.
ATTACKS = frozenset({Category.PROMPT_INJECTION, Category.JAILBREAK})

# Names in figures, as OpenAI's moderation API spells them.
_PARTS = ("hate", "violence", "sexual", "illicit")


def public_name(category: Category) -> str:
    """The name in figures: "hate/threatening", "self-harm", "prompt-injection"."""
    first, _, second = category.value.partition("_")
    if not second:
        return first
    return f"{first}/{second}" if first in _PARTS else f"{first}-{second}"


def judged(audience: Audience) -> frozenset[Category]:
    """The categories that a text of `audience` is judged for.

    A document can plant instructions but asks for nothing, so a jailbreak in it is an injection;
    a reply attacks nobody's rules.
    """
    if audience is Audience.REPLY:
        return frozenset(CATEGORIES) - ATTACKS
    if audience is Audience.TOOL:
        return frozenset(CATEGORIES) - {Category.JAILBREAK}
    return frozenset(CATEGORIES)
