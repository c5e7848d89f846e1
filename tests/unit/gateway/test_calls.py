"""Tool calls are read from text, however it is cut and wherever a reader begins."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmesh.content.v1.content_pb2 import CallSyntax
from chatmesh.gateway.v1 import journal_pb2
from gateway.turn.answer import Answer
from gateway.turn.calls import CallReader, CallReading, gathered, read
from gateway.turn.domain import ChoiceFinished, Frame, Logprob, TextDelta, ToolCall
from gateway.turn.events import BEGINNING, Numbered, behind, weight
from gateway.turn.plan import Plan
from tests.support.call_syntax import CALL_SYNTAX

LLAMA = CallSyntax(
    before_name='{"name": "', before_arguments='", "parameters": ', after_arguments="}"
)
LIST = CallSyntax(
    before_calls="[CALLS][",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}",
    between_calls=", ",
    after_calls="]",
)
SYNTAXES = {"hermes": CALL_SYNTAX, "llama": LLAMA, "list": LIST}

texts = st.text(alphabet='<tol_ca>[CAS]{"é😀 \n}', max_size=30)
values = st.recursive(
    st.none() | st.integers() | st.text(max_size=8) | st.sampled_from(['"}', "\\", "</tool_call>"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
arguments = st.dictionaries(st.text(max_size=5), values, max_size=3)
calls = st.lists(st.tuples(st.sampled_from(["f", "get", "get_x.y-z"]), arguments), max_size=4)


def written(syntax, text, wanted):
    """An answer as a model under the grammar writes it."""
    said = [
        f"{syntax.before_name}{name}{syntax.before_arguments}{json.dumps(given)}"
        f"{syntax.after_arguments}"
        for name, given in wanted
    ]
    if not said:
        return text
    return text + syntax.before_calls + syntax.between_calls.join(said) + syntax.after_calls


def pieces(text, cuts):
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def make(syntax):
    return CallReader(syntax, lambda index: f"call_{index}")


@pytest.mark.parametrize("name", SYNTAXES)
@given(text=texts, wanted=calls, cuts=st.lists(st.integers(0, 10**6), max_size=12))
def test_whatever_was_called_is_read_from_any_pieces(name, text, wanted, cuts):
    syntax = SYNTAXES[name]
    opening = syntax.before_calls or syntax.before_name
    text = text.replace(opening, "")
    if name == "llama":
        wanted = wanted[:1]
    reader, shown, deltas = make(syntax), "", []
    answer = written(syntax, text, wanted)
    if answer.index(opening) != len(text) if wanted else opening in text:
        return  # text and opening together spell an earlier opening: the grammar ends text there
    for piece in pieces(answer, cuts):
        found = reader.feed(piece)
        shown, deltas = shown + found.text, [*deltas, *found.calls]
    held, reason = reader.finish("stop")
    assert shown + held == text
    assert reason == ("tool_calls" if wanted else "stop")
    expected = [
        ToolCall(f"call_{index}", name, json.dumps(given))
        for index, (name, given) in enumerate(wanted)
    ]
    assert gathered(deltas) == expected


@given(wanted=calls.filter(bool), end=st.integers(0, 10**6))
def test_a_call_that_is_cut_is_never_whole(wanted, end):
    whole = [written(CALL_SYNTAX, "Well. ", wanted[: n + 1]) for n in range(len(wanted))]
    part = whole[-1][: end % len(whole[-1])]
    reader = make(CALL_SYNTAX)
    reader.feed(part)
    assert reader.finish("length")[1] == "length"
    assert (reader.finish("stop")[1] == "tool_calls") == (part in whole)


@pytest.mark.parametrize(
    "answer",
    [
        '<tool_call>\n{"nam[redacted]get", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "get", "arguments": {}[redacted]ll>',
        '<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call>[redacted]',
    ],
)
def test_masked_markup_is_no_call(answer):
    reader = make(CALL_SYNTAX)
    reader.feed(answer)
    assert reader.finish("stop") == ("", "content_filter")


def plan_of(choice_count=1):
    stored = journal_pb2.TurnPlan(turn_id="T", choice_count=choice_count)
    stored.request.calls.syntax.CopyFrom(CALL_SYNTAX)
    return Plan(stored)


ANSWER = 'Löok <tool_ca ok <tool_call>\n{"name": "f", "arguments": {"ä": "<"}}\n</tool_call>'


def log_of(parts, end="stop"):
    deltas = [TextDelta(0, part, 1, [Logprob(b"x", -1.0)]) for part in parts if part]
    number, events = 0, []
    for event in (*deltas, ChoiceFinished(0, end)):
        number += weight(event)
        events.append(Numbered(number, event))
    return events


def said(events):
    """What a reader makes of events."""
    deltas = [each.event for each in events if isinstance(each.event, TextDelta)]
    return "".join(delta.text for delta in deltas), [c for delta in deltas for c in delta.calls]


@given(
    text=st.sampled_from([ANSWER, ANSWER[:-3], "a <tool_c", "<", "plain", ANSWER[:20]]),
    cuts=st.lists(st.integers(0, 10**6), max_size=10),
    again=st.lists(st.integers(0, 10**6), max_size=10),
)
def test_a_reader_that_comes_back_is_told_exactly_the_rest(text, cuts, again):
    events = log_of(pieces(text, cuts))
    told = CallReading(plan_of()).told(events)
    numbers = [each.number for each in told]
    assert numbers == sorted(set(numbers))
    # Another owner may have cut the text elsewhere.
    other = log_of(pieces(text, again))
    for index, each in enumerate(told):
        reading = CallReading(plan_of())
        reading.skip(other, each.number)
        rest = reading.told([left for e in other if (left := behind(e, each.number))])
        shown, found = said(told[index + 1 :])
        got, got_calls = said(rest)
        assert got == shown
        assert "".join(c.arguments for c in got_calls) == "".join(c.arguments for c in found)
        assert [c.name for c in got_calls if c.name] == [c.name for c in found if c.name]
        assert rest[-1:] == told[-1:] if index < len(told) - 1 else rest == []


def test_log_probabilities_of_markup_are_not_told():
    told = CallReading(plan_of()).told(log_of([ANSWER[:6], ANSWER[6:30], ANSWER[30:]]))
    assert [bool(each.event.logprobs) for each in told[:-1]] == [True, False, False]


def test_an_answer_without_tools_is_as_it_stands():
    answer = Answer(0)
    answer.receive(Frame(text=ANSWER, finish_reason="stop"))
    answer.clear()
    plain = Plan(journal_pb2.TurnPlan(turn_id="T", choice_count=1))
    assert read(plain, answer).text == ANSWER
    found = read(plan_of(), answer)
    assert (found.text, found.finish_reason) == ("Löok <tool_ca ok ", "tool_calls")
    assert [(call.name, call.arguments) for call in found.calls] == [("f", '{"ä": "<"}')]


def test_ids_are_the_same_for_every_reader_and_differ_between_answers():
    first, again = read_ids(0), read_ids(0)
    assert first == again
    assert first != read_ids(1)


def read_ids(choice_index):
    answer = Answer(choice_index)
    answer.receive(Frame(text=ANSWER, finish_reason="stop"))
    answer.clear()
    return [call.id for call in read(plan_of(2), answer).calls]


def test_nothing_is_skipped_at_the_beginning():
    reading = CallReading(plan_of())
    events = log_of([ANSWER])
    reading.skip(events, BEGINNING)
    assert said(reading.told(events))[1]
