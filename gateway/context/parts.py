"""The parts of a prompt: their order, their budgets, and what was left out. Pure.

    operator → history → messages

A further part (a summary, memory, retrieved text) is one `Rule` in `ORDER`, one `Part` in
`builder`, and one value of `chat.v1.PromptPart`; nothing else asks for a part by its name.

Budgets bound the texts of a part as CountTokens counts them; what the template writes around a
message (a few tokens each) is not in them. That all parts together fit the context is the
tokenizer's to see: Encode drops the oldest turns whole, whichever part they stand in.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from gateway import errors
from gateway.errors import public
from gateway.turn.domain import LeftOut, Message, ModelInfo, ToolUse

# A text is cut at the end of one of so many pieces of about equal length.
PIECE_COUNT_MAX = 32
PIECE_LENGTH_MIN = 64
# What an operator says leaves the other half for the conversation.
OPERATOR_CONTEXT_SHARE_MAX = 0.5

# Tokens of texts; what is not in it counts as many tokens as it can have at most.
Counts = Mapping[str, int]

_SPACE = re.compile(r"\s")


class Overflow(Enum):
    """What happens to a part that passes its budget."""

    REFUSE = "refuse"  # the turn is refused
    DROP_OLDEST = "drop_oldest"  # its oldest turns leave whole
    CUT = "cut"  # its text ends where the budget does


@dataclass(frozen=True, slots=True)
class Rule:
    """What a part may take of the context; without limits of its own only the context bounds it."""

    name: str
    overflow: Overflow
    token_count_max: int | None = None
    # Range (0, 1].
    context_share_max: float = 1.0
    # ScreenPrompt judges and masks it. False only for what no caller can write or change.
    is_screened: bool = True

    def budget(self, context_token_count_max: int) -> int | None:
        """Most tokens of the part's texts; None: no limit of its own."""
        limits = [] if self.token_count_max is None else [self.token_count_max]
        if self.context_share_max < 1:
            limits.append(int(self.context_share_max * context_token_count_max))
        return min(limits, default=None)


OPERATOR = Rule(
    "operator",
    Overflow.REFUSE,
    context_share_max=OPERATOR_CONTEXT_SHARE_MAX,
    is_screened=False,
)
HISTORY = Rule("history", Overflow.DROP_OLDEST)
MESSAGES = Rule("messages", Overflow.DROP_OLDEST)
ORDER = (OPERATOR, HISTORY, MESSAGES)


@dataclass(frozen=True, slots=True)
class Part:
    """Some messages of a prompt, oldest first."""

    rule: Rule
    messages: Sequence[Message]
    # Tokens of each message where they are known, 0 where not; empty: none is known.
    token_counts: Sequence[int] = ()
    # What was left out before it came here.
    left_out: LeftOut | None = None
    # The last message is the beginning of one that counts as left out.
    is_last_cut: bool = False


@dataclass(frozen=True, slots=True)
class Context:
    """What one turn gives the model to read."""

    model: ModelInfo
    # In the order of the prompt.
    parts: tuple[Part, ...]
    # Described before all parts, in the model's own way.
    tool_use: ToolUse | None = None

    @property
    def messages(self) -> list[Message]:
        """All messages, in the order of the prompt."""
        return [message for part in self.parts for message in part.messages]

    @property
    def screened(self) -> list[Message]:
        """What ScreenPrompt judges: all but what only the operator can write."""
        screened = (part for part in self.parts if part.rule.is_screened)
        return [message for part in screened for message in part.messages]

    @property
    def has_operator_prompt(self) -> bool:
        """Whether the operator says something to the model before the conversation."""
        return bool(self.of(OPERATOR))

    def of(self, rule: Rule) -> Sequence[Message]:
        """The messages of one part; none when the prompt has no such part."""
        return next((part.messages for part in self.parts if part.rule == rule), ())

    def masked(self, screened: Sequence[Message]) -> "Context":
        """The same with other words in the messages of `screened`."""
        words = iter(screened)
        parts = (
            replace(part, messages=[next(words) for _ in part.messages])
            if part.rule.is_screened
            else part
            for part in self.parts
        )
        return replace(self, parts=tuple(parts))

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """All that the model does not read, one entry a part, in the order of the prompt."""
        return tuple(part.left_out for part in self.parts if part.left_out)

    def without(self, dropped_message_count: int) -> "Context":
        """What the model reads, when so many messages do not fit.

        Args:
            dropped_message_count: as Encode counts, from the oldest that is not a system message.
        """
        parts = []
        for part in self.parts:
            droppable = [i for i, each in enumerate(part.messages) if each.role != "system"]
            gone = droppable[:dropped_message_count]
            dropped_message_count -= len(gone)
            parts.append(_lessened(part, gone))
        return replace(self, parts=tuple(parts))


def assemble(
    model: ModelInfo, parts: Iterable[Part], counts: Counts, order: Sequence[Rule] = ORDER
) -> Context:
    """Puts parts into their order and each within its budget.

    Args:
        model: the model, whose context the budgets are shares of.
        parts: at most one for each rule of `order`, in any order.
        counts: tokens of the texts that `uncounted` names.
        order: the rules, as their parts stand in the prompt.

    Raises:
        MeshError: CONTEXT_LENGTH_EXCEEDED with "part", "limit" and "count".
        ValueError: a part that is not in the order, or stands twice.
    """
    given = sorted(parts, key=lambda part: order.index(part.rule))
    if len({part.rule.name for part in given}) < len(given):
        raise ValueError("a part stands twice")
    return Context(model, tuple(_fitted(part, model, counts) for part in given))


def uncounted(model: ModelInfo, parts: Iterable[Part]) -> list[str]:
    """Texts whose tokens must be counted, because their part may pass its budget."""
    found = []
    for part in parts:
        budget = part.rule.budget(model.context_token_count_max)
        if budget is not None and sum(_costs(part, {})) > budget:
            known = _known(part)
            unknown = (each for each, count in zip(part.messages, known, strict=True) if not count)
            found += [text for message in unknown for text in _texts(part, message)]
    return found


def pieces(text: str) -> list[str]:
    """A text in at most PIECE_COUNT_MAX pieces that end before white space where there is some."""
    length = max(PIECE_LENGTH_MIN, math.ceil(len(text) / PIECE_COUNT_MAX))
    found, start = [], 0
    while start < len(text):
        end = start + length
        space = _SPACE.search(text, end, end + length)
        end = space.start() if space else end
        found.append(text[start:end])
        start = end
    return found


def _fitted(part: Part, model: ModelInfo, counts: Counts) -> Part:
    budget = part.rule.budget(model.context_token_count_max)
    if budget is None:
        return part
    costs = _costs(part, counts)
    if sum(costs) <= budget:
        return part
    if part.rule.overflow is Overflow.CUT:
        return _cut(part, sum(costs), counts, budget)
    if part.rule.overflow is Overflow.DROP_OLDEST:
        return _without_oldest(part, costs, budget)
    raise public(
        errors.CONTEXT_LENGTH_EXCEEDED,
        f"The {part.rule.name} part of the prompt takes {sum(costs)} tokens, but of the "
        f"{model.context_token_count_max} of this model at most {budget} are for it: use a model "
        "with a larger context, or ask the operator to shorten it.",
        param="model",
        part=part.rule.name,
        limit=str(budget),
        count=str(sum(costs)),
    )


def _without_oldest(part: Part, costs: Sequence[int], budget: int) -> Part:
    """Drops whole turns, as the tokenizer does; a system message is a turn of its own here."""
    starts = [i for i, each in enumerate(part.messages) if i and each.role in ("user", "system")]
    gone = next((start for start in starts if sum(costs[start:]) <= budget), len(costs))
    dropped = LeftOut(part.rule.name, gone, sum(costs[:gone]))
    return replace(
        part,
        messages=part.messages[gone:],
        token_counts=part.token_counts[gone:],
        left_out=_sum(part.left_out, dropped),
    )


def _cut(part: Part, cost: int, counts: Counts, budget: int) -> Part:
    """Keeps whole messages, then whole pieces of the first one that does not fit."""
    kept: list[Message] = []
    whole, room, is_last_cut = 0, budget, False
    for message in part.messages:
        text = ""
        for piece in pieces(message.content):
            if (needed := _cost(piece, counts)) > room:
                break
            text += piece
            room -= needed
        kept += [replace(message, content=text)] if text else []
        if text != message.content:
            is_last_cut = bool(text)
            break
        whole += 1
    lost = LeftOut(part.rule.name, len(part.messages) - whole, cost - (budget - room))
    left_out = _sum(part.left_out, lost)
    return replace(part, messages=kept, token_counts=(), left_out=left_out, is_last_cut=is_last_cut)


def _texts(part: Part, message: Message) -> list[str]:
    """The texts whose tokens make up those of a message: where it may be cut, its pieces."""
    is_cut = part.rule.overflow is Overflow.CUT
    return pieces(message.content) if is_cut else [message.content]


def _known(part: Part) -> Sequence[int]:
    """Tokens of each message as they were counted before; 0: not counted."""
    if not part.token_counts or part.rule.overflow is Overflow.CUT:
        return [0] * len(part.messages)
    return part.token_counts


def _costs(part: Part, counts: Counts) -> list[int]:
    """Tokens of each message; what is not counted by the most that it can have."""
    return [
        known or sum(_cost(text, counts) for text in _texts(part, message))
        for message, known in zip(part.messages, _known(part), strict=True)
    ]


def _cost(text: str, counts: Counts) -> int:
    # A token has at least one byte; some tokenizers write one more before a text.
    return counts.get(text, len(text.encode()) + 1)


def _lessened(part: Part, gone: Sequence[int]) -> Part:
    """The part without the messages of these indexes."""
    if not gone:
        return part
    dropped = set(gone)
    kept = [index for index in range(len(part.messages)) if index not in dropped]
    return replace(
        part,
        messages=[part.messages[index] for index in kept],
        token_counts=[part.token_counts[index] for index in kept] if part.token_counts else (),
        left_out=_sum(part.left_out, _dropped(part, gone)),
    )


def _dropped(part: Part, gone: Sequence[int]) -> LeftOut | None:
    """The messages of these indexes."""
    if not gone:
        return None
    counts = [part.token_counts[index] for index in gone] if part.token_counts else []
    count = len(gone) - (part.is_last_cut and len(part.messages) - 1 in gone)
    return LeftOut(part.rule.name, count, sum(counts) if counts and all(counts) else None)


def _sum(one: LeftOut | None, other: LeftOut | None) -> LeftOut | None:
    """Both together; the tokens of what was not counted are not known."""
    if one is None or other is None:
        return one or other
    known = one.token_count is not None and other.token_count is not None
    tokens = (one.token_count or 0) + (other.token_count or 0) if known else None
    return LeftOut(one.part, one.message_count + other.message_count, tokens)
