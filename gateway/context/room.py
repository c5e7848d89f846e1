"""What of a conversation can fit a model at all: found by its bytes, before anybody reads it. Pure.

The tokenizer finds exactly what fits, and drops the oldest turns that do not (decision 0019). What
is far beyond any context must not be screened and rendered for that: it leaves here, by the same
rule, and is told in the same way (decision 0031).
"""

import math

from gateway import errors
from gateway.context.parts import Context
from gateway.errors import public
from gateway.turn.domain import Message
from mesh.chassis.errors import MeshError

# Texts have 1 to 6 bytes a token, white space in columns up to 10. One character over and over can
# have more; it then leaves a little before it must.
TOKEN_BYTES_MAX = 16


def bounded(context: Context) -> Context:
    """The context without the oldest turns that cannot fit the model.

    Raises:
        MeshError: CONTEXT_LENGTH_EXCEEDED with "limit" and "count": the system messages and the
            newest turn cannot.
    """
    limit = context.model.context_token_count_max
    room = limit * TOKEN_BYTES_MAX
    needed = sum(_cost(each) for each in context.messages if each.role == "system")
    spoken = [each for each in context.messages if each.role != "system"]
    turn = len(spoken)  # where the oldest turn begins that still fits
    for index in reversed(range(len(spoken))):
        needed += _cost(spoken[index])
        if needed > room:
            break
        if spoken[index].role == "user" or index == 0:
            turn = index
    if needed > room and turn == len(spoken):
        raise _too_long(limit, needed)
    return context.without(turn) if turn else context


def _cost(message: Message) -> int:
    """Bytes; a message without any is a token all the same."""
    texts = [message.content, message.name]
    texts += (text for call in message.calls for text in (call.name, call.arguments))
    return max(TOKEN_BYTES_MAX, sum(len(text.encode()) for text in texts))


def _too_long(limit: int, needed: int) -> MeshError:
    count = math.ceil(needed / TOKEN_BYTES_MAX)
    return public(
        errors.CONTEXT_LENGTH_EXCEEDED,
        f"The context of this model is {limit} tokens, but the system messages and the newest turn "
        f"take at least {count}: shorten them.",
        param="messages",
        limit=str(limit),
        count=str(count),
    )
