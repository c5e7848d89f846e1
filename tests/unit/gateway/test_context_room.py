"""What of a conversation can fit a model at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.context.parts import HISTORY, MESSAGES, OPERATOR, Context, Part, assemble
from gateway.context.room import TOKEN_BYTES_MAX, bounded
from gateway.turn.domain import LeftOut, Message, ModelInfo
from mesh.chassis.errors import MeshError
from tokenizer_svc.context import kept_indexes, turns_of

CONTEXT = 64
MODEL = ModelInfo("m", CONTEXT, "fp_1")
ROOM = CONTEXT * TOKEN_BYTES_MAX
ROLES = st.sampled_from(("system", "user", "assistant", "tool"))
SIZES = st.integers(0, ROOM // 2)


def context(old: list[Message], new: list[Message]) -> Context:
    return assemble(MODEL, [Part(HISTORY, old, [1] * len(old)), Part(MESSAGES, new)], {})


def size(messages) -> int:
    return sum(max(TOKEN_BYTES_MAX, len(each.content.encode())) for each in messages)


@given(st.lists(st.tuples(ROLES, SIZES), min_size=1, max_size=12), st.integers(0, 12))
def test_whole_turns_leave_as_the_tokenizer_drops_them(drawn, border):
    messages = [Message(role, f"{n:02}" + "x" * count) for n, (role, count) in enumerate(drawn)]
    turns = turns_of([each.role for each in messages])

    def kept(dropped: int) -> list[Message]:
        return [messages[i] for i in kept_indexes(len(messages), turns, dropped)]

    fitting = (n for n in range(max(1, len(turns))) if size(kept(n)) <= ROOM)
    dropped = next(fitting, None)
    whole = context(messages[:border], messages[border:])
    if dropped is None:
        with pytest.raises(MeshError) as refused:
            bounded(whole)
        assert refused.value.reason == "CONTEXT_LENGTH_EXCEEDED"
        assert int(refused.value.metadata["count"]) > CONTEXT
        return
    found = bounded(whole)
    assert found.messages == kept(dropped)
    assert sum(each.message_count for each in found.left_out) == len(messages) - len(found.messages)


def test_what_could_fit_is_left_to_the_tokenizer():
    messages = [Message("user", "x" * (ROOM - TOKEN_BYTES_MAX)), Message("assistant", "")]
    assert bounded(context([], messages)).messages == messages


def test_a_megabyte_of_old_turns_leaves_and_is_told():
    old = [Message("user", "x" * ROOM), Message("assistant", "y")]
    new = [Message("system", "Be kind."), Message("user", "x" * ROOM), Message("user", "Hello!")]
    found = bounded(context(old, new))
    assert found.of(MESSAGES) == [new[0], new[2]]
    assert found.left_out == (LeftOut("history", 2, 2), LeftOut("messages", 1))


def test_a_long_name_counts_too():
    with pytest.raises(MeshError):
        bounded(context([], [Message("user", "", "ä" * ROOM)]))


@pytest.mark.parametrize("role", ["system", "user", "tool"])
def test_what_may_not_leave_is_refused(role):
    """CONTEXT_LENGTH_EXCEEDED."""
    with pytest.raises(MeshError) as refused:
        bounded(context([], [Message(role, "x" * (ROOM + 1))]))
    assert refused.value.metadata["param"] == "messages"
    assert refused.value.metadata["limit"] == str(CONTEXT)


def test_the_operators_prompt_takes_of_the_same_room():
    parts = [Part(OPERATOR, [Message("system", "x" * 16)]), Part(MESSAGES, [Message("user", "a")])]
    whole = assemble(MODEL, parts, {"x" * 16: 4})
    assert bounded(whole) == whole
