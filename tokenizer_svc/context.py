"""Which turns of a conversation stay when it does not fit the context.

A turn is a user message with everything that follows until the next user message. System messages
belong to no turn and always stay, and so does the newest turn. Turns leave whole, oldest first.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, takewhile


def turns_of(roles: Sequence[str]) -> list[list[int]]:
    """Indexes of the messages of each turn, oldest turn first.

    Messages before the first user message, such as a greeting, are a turn of their own.
    """
    turns: list[list[int]] = []
    for index, role in enumerate(roles):
        if role == "system":
            continue
        if role == "user" or not turns:
            turns.append([])
        turns[-1].append(index)
    return turns


def kept_indexes(message_count: int, turns: Sequence[Sequence[int]], dropped: int) -> list[int]:
    """Indexes of the messages that stay when the oldest `dropped` turns leave."""
    gone = {index for turn in turns[:dropped] for index in turn}
    return [index for index in range(message_count) if index not in gone]


def affordable_turn_count(newest_first_costs: Iterable[int], room: int) -> int:
    """How many turns fit `room` tokens; costs behind the first that does not are not asked for."""
    return sum(1 for _ in takewhile(lambda total: total <= room, accumulate(newest_first_costs)))


def smallest_drop(fits: Callable[[int], bool], guess: int, drop_max: int) -> int | None:
    """The smallest number of turns to drop so that the rest fits; None when nothing does.

    Args:
        fits: whether the prompt without that many turns fits; monotone.
        guess: a likely answer; a right one costs two questions.
        drop_max: most turns that may be dropped.
    """
    if not fits(guess):
        found = bisect_left(range(guess + 1, drop_max + 1), True, key=fits) + guess + 1
        return found if found <= drop_max else None
    if guess == 0 or not fits(guess - 1):
        return guess
    return bisect_left(range(guess - 1), True, key=fits)
