"""The laws of a prompt's parts: order, budgets, and that nothing is lost without being told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.context.parts import (
    HISTORY,
    MESSAGES,
    OPERATOR,
    ORDER,
    PIECE_COUNT_MAX,
    Overflow,
    Part,
    Rule,
    assemble,
    pieces,
    uncounted,
)
from gateway.turn.domain import LeftOut, Message, ModelInfo
from mesh.chassis.errors import MeshError
from tokenizer_svc.context import kept_indexes, turns_of

MODEL = ModelInfo("m", 200, "fp_1")
WORDS = st.lists(st.sampled_from(["a", "is", "this", "éé", "words"]), max_size=60).map(" ".join)
ROLES = st.sampled_from(["system", "user", "assistant", "tool"])
RULES = (
    Rule("facts", Overflow.CUT, context_share_max=0.25),
    Rule("memory", Overflow.DROP_OLDEST, token_count_max=30),
    HISTORY,
    MESSAGES,
)


@st.composite
def parts_in_any_order(draw: st.DrawFn) -> list[Part]:
    """Parts of distinct rules; each message's text begins with a number of its own."""
    rules = draw(st.lists(st.sampled_from(RULES), unique=True))
    numbers = iter(range(10_000))
    found = []
    for rule in rules:
        drawn = draw(st.lists(st.tuples(ROLES, WORDS), max_size=8))
        messages = [Message(role, f"{next(numbers)} {text}") for role, text in drawn]
        counts = [tokens(each.content) for each in messages]
        known = draw(st.sampled_from([(), counts, [0 for _ in counts]]))
        found.append(Part(rule, messages, known))
    return found


def tokens(text: str) -> int:
    return len(text.split())


def counted(parts: list[Part]) -> dict[str, int]:
    """What the tokenizer would say of the texts that are asked for, a token a word."""
    return {text: tokens(text) for text in uncounted(MODEL, parts)}


@given(parts_in_any_order())
def test_the_order_is_fixed_whatever_the_order_of_arrival(parts):
    context = assemble(MODEL, parts, counted(parts), RULES)
    places = [RULES.index(part.rule) for part in context.parts]
    assert places == sorted(places)
    assert len(places) == len(parts)
    assert context.messages == [each for part in context.parts for each in part.messages]


@given(parts_in_any_order())
def test_no_part_passes_its_budget(parts):
    for part in assemble(MODEL, parts, counted(parts), RULES).parts:
        budget = part.rule.budget(MODEL.context_token_count_max)
        spent = sum(tokens(each.content) for each in part.messages)
        assert budget is None or spent <= budget


@given(parts_in_any_order(), st.integers(0, 40))
def test_nothing_is_lost_without_being_told(parts, dropped):
    context = assemble(MODEL, parts, counted(parts), RULES)
    told = {each.part: each.message_count for each in context.without(dropped).left_out}
    # What the tokenizer keeps, when it drops the oldest messages that are not system messages.
    rest = [i for i, each in enumerate(context.messages) if each.role != "system"]
    read = {m.content for i, m in enumerate(context.messages) if i not in rest[:dropped]}
    for part in parts:
        lost = sum(each.content not in read for each in part.messages)
        assert told.get(part.rule.name, 0) == lost
    assert all(told.values())


@given(parts_in_any_order())
def test_what_is_kept_is_the_newest_of_turns_and_the_beginning_of_texts(parts):
    before = {part.rule.name: [each.content for each in part.messages] for part in parts}
    for part in assemble(MODEL, parts, counted(parts), RULES).parts:
        whole, kept = before[part.rule.name], [each.content for each in part.messages]
        if part.rule.overflow is Overflow.CUT:
            assert "\n".join(whole).startswith("\n".join(kept))
        else:
            assert whole[len(whole) - len(kept) :] == kept


@given(st.lists(ROLES, min_size=1, max_size=12), st.integers(0, 12), st.integers(0, 12))
def test_left_out_names_the_messages_that_the_tokenizer_drops(roles, border, dropped_turns):
    """The tokenizer's own words on which messages leave are the oracle."""
    messages = [Message(role, f"{number}") for number, role in enumerate(roles)]
    turns = turns_of(roles)
    dropped_turns = min(dropped_turns, max(0, len(turns) - 1))
    kept = kept_indexes(len(roles), turns, dropped_turns)
    old, new = messages[:border], messages[border:]
    parts = [Part(OPERATOR, [Message("system", "Be kind.")]), Part(HISTORY, old)]
    context = assemble(MODEL, [*parts, Part(MESSAGES, new)], {})
    told = context.without(sum(map(len, turns[:dropped_turns]))).left_out
    gone_old = sum(index < border for index in set(range(len(roles))) - set(kept))
    gone_new = len(roles) - len(kept) - gone_old
    wanted = [LeftOut("history", gone_old), LeftOut("messages", gone_new)]
    assert list(told) == [each for each in wanted if each.message_count]


@given(WORDS)
def test_pieces_are_few_and_lose_nothing(text):
    found = pieces(text)
    assert "".join(found) == text
    assert len(found) <= PIECE_COUNT_MAX
    assert all(found)


def test_a_text_without_spaces_is_cut_all_the_same():
    text = "x" * 10_000
    assert len(pieces(text)) == PIECE_COUNT_MAX
    rule = Rule("facts", Overflow.CUT, token_count_max=5_000)
    part = Part(rule, [Message("system", text)])
    counts = {each: len(each) for each in uncounted(MODEL, [part])}
    kept = assemble(MODEL, [part], counts, [rule]).parts[0]
    assert text.startswith(kept.messages[0].content)
    assert 4_600 < len(kept.messages[0].content) <= 5_000
    assert kept.left_out == LeftOut("facts", 1, 10_000 - len(kept.messages[0].content))


def test_turns_leave_whole_oldest_first():
    rule = Rule("memory", Overflow.DROP_OLDEST, token_count_max=4)
    words = ["one two", "three", "four five", "six", "seven"]
    roles = ["user", "assistant", "user", "assistant", "tool"]
    messages = [Message(role, text) for role, text in zip(roles, words, strict=True)]
    part = Part(rule, messages, [tokens(text) for text in words], LeftOut("memory", 2, 9))
    context = assemble(MODEL, [part], {}, [rule])
    assert [each.content for each in context.messages] == words[2:]
    assert context.without(0).left_out == (LeftOut("memory", 4, 12),)


def test_tokens_are_told_only_where_all_are_known():
    old = [Message("user", "a"), Message("assistant", "b"), Message("user", "c")]
    parts = [Part(HISTORY, old, [3, 4, 0]), Part(MESSAGES, [Message("user", "d")])]
    context = assemble(MODEL, parts, {})
    assert context.without(0).left_out == ()
    assert context.without(2).left_out == (LeftOut("history", 2, 7),)
    assert context.without(3).left_out == (LeftOut("history", 3),)
    assert context.without(4).left_out == (LeftOut("history", 3), LeftOut("messages", 1))


def test_a_part_that_may_not_be_shortened_is_refused():
    """CONTEXT_LENGTH_EXCEEDED."""
    text = "word " * 101
    parts = [Part(OPERATOR, [Message("system", text)]), Part(MESSAGES, [])]
    assert uncounted(MODEL, parts) == [text]
    assert len(assemble(MODEL, parts, {text: 100}).messages) == 1
    with pytest.raises(MeshError) as caught:
        assemble(MODEL, parts, {text: 101})
    assert caught.value.reason == "CONTEXT_LENGTH_EXCEEDED"
    facts = {"param": "model", "part": "operator", "limit": "100", "count": "101"}
    assert caught.value.metadata == facts
    assert "takes 101 tokens, but of the 200 of this model at most 100" in caught.value.message
    assert "ask the operator to shorten it" in caught.value.message
    assert "word" not in caught.value.message


def test_what_cannot_pass_its_budget_is_not_counted():
    short = Part(OPERATOR, [Message("system", "x" * 99)])
    assert uncounted(MODEL, [short]) == []
    assert uncounted(MODEL, [Part(HISTORY, [Message("user", "x" * 9_999)])]) == []
    assert assemble(MODEL, [short], {}).messages == short.messages


def test_a_part_stands_once_and_is_known():
    once = Part(MESSAGES, [])
    with pytest.raises(ValueError, match="twice"):
        assemble(MODEL, [once, once], {})
    with pytest.raises(ValueError, match="not in"):
        assemble(MODEL, [Part(RULES[0], [])], {})


def test_only_the_operator_is_not_screened():
    assert [rule.name for rule in ORDER if not rule.is_screened] == ["operator"]


def test_masks_reach_the_messages_that_were_screened_and_no_others():
    parts = [
        Part(MESSAGES, [Message("user", "new")]),
        Part(OPERATOR, [Message("system", "ours")]),
        Part(HISTORY, [Message("user", "old"), Message("assistant", "said")], [5, 6]),
    ]
    context = assemble(MODEL, parts, {})
    assert [each.content for each in context.screened] == ["old", "said", "new"]
    words = [Message(each.role, each.content.upper()) for each in context.screened]
    masked = context.masked(words)
    assert [each.content for each in masked.messages] == ["ours", "OLD", "SAID", "NEW"]
    assert [each.content for each in masked.of(MESSAGES)] == ["NEW"]
    assert masked.without(2).left_out == (LeftOut("history", 2, 11),)
