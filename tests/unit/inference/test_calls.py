"""Tool calls held to a grammar: whatever the logits are, what is called exists and validates."""

import json

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatmesh.content.v1 import content_pb2
from chatmesh.inference.v1 import inference_pb2
from gateway.turn.calls import CallReader, gathered
from inference_svc.call_format import call_faults
from inference_svc.engine.protocol import (
    BadFormatError,
    Calls,
    CallSyntax,
    FormatKind,
    ResponseFormat,
    Tool,
)
from inference_svc.engine.torch.constrained import GrammarCompiler
from tests.support.call_syntax import CALL_SYNTAX
from tests.support.toy_folder import ids_of
from tests.unit.inference.schemas import NAMES, schemas
from tests.unit.inference.test_constrained import rows, write

HERMES = CallSyntax(*(getattr(CALL_SYNTAX, name) for name in CallSyntax.__slots__))
LIST = CallSyntax("[CALLS][", '{"name": "', '", "arguments": ', "}", ", ", "]")
TOKEN_COUNT_MAX = 500
CALL = '\n{"name": "f", "arguments": {}}\n</tool_call>'
ANY = {"type": "object", "additionalProperties": False}


@pytest.fixture(scope="module")
def toy(model):
    return GrammarCompiler(model)


@pytest.fixture(scope="module")
def real(shipped):
    return GrammarCompiler(shipped)


@st.composite
def tools(draw):
    """Some tools whose schemas are of objects."""
    found = {}
    for name in draw(st.lists(st.sampled_from(["f", "get", "get_x", "a.b-c"]), min_size=1)):
        properties = draw(st.dictionaries(st.sampled_from(NAMES), schemas(), max_size=3))
        found[name] = {
            "type": "object",
            "properties": properties,
            "required": sorted(properties),
            "additionalProperties": False,
        }
    return found


def wanted(found, syntax=HERMES, text="", **how):
    offered = tuple(Tool(name, json.dumps(schema), True) for name, schema in found.items())
    return ResponseFormat(FormatKind.CALLS, text, calls=Calls(syntax, offered, **how))


def calls_in(text, syntax=HERMES):
    reader = CallReader(CALL_SYNTAX if syntax is HERMES else _proto(syntax), str)
    piece = reader.feed(text)
    held, reason = reader.finish("stop")
    return piece.text + held, gathered(piece.calls), reason


def _proto(syntax):
    return content_pb2.CallSyntax(**{name: getattr(syntax, name) for name in CallSyntax.__slots__})


def is_possible(compiler, form):
    try:
        compiler.compile(form)
    except BadFormatError as error:
        if "Unsatisfiable" not in str(error):
            raise
        return False
    return True


@settings(max_examples=80, deadline=None)
@given(found=tools(), seed=st.integers(0, 2**32 - 1), is_single=st.booleans())
@pytest.mark.parametrize("served", ["toy", "shipped"])
def test_required_calls_validate(request, served, found, seed, is_single) -> None:
    syntax = LIST if seed % 2 else HERMES
    folder = request.getfixturevalue("model" if served == "toy" else "shipped")
    compiler = request.getfixturevalue("toy" if served == "toy" else "real")
    form = wanted(found, syntax, is_required=True, is_single=is_single)
    if not is_possible(compiler, form):
        return
    logits = rows(folder, seed, TOKEN_COUNT_MAX)
    text, ended, _ = write(folder, compiler, form, logits, seed=seed)
    said, calls, reason = calls_in(text, syntax)
    assert said == ""
    whole = calls if ended else calls[:-1]
    assert (reason == "tool_calls") >= ended
    assert not is_single or len(calls) <= 1
    for call in whole:
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        schema = jsonschema.Draft202012Validator(found[call.name], format_checker=checker)
        schema.validate(json.loads(call.arguments))


def test_most_required_calls_end(model, toy) -> None:
    """Else the test above would prove nothing."""
    form = wanted({"f": ANY, "get": ANY}, is_required=True, is_single=True)
    ended = [
        write(model, toy, form, rows(model, seed, TOKEN_COUNT_MAX), seed=seed)[1]
        for seed in range(20)
    ]
    assert sum(ended) == 20


def test_free_text_calls_only_by_whole_calls(model, toy) -> None:
    """A model that loves the markup: what it writes is text or a call, and never half of one."""
    form = wanted({"f": ANY})
    begun = 0
    for seed in range(30):
        logits = rows(model, seed, 300)
        for at, token_id in enumerate(ids_of(model, f"x<tool_call>{CALL}")):
            if seed % 2 or at < 6:
                logits[at, token_id] += 30
        text, ended, _ = write(model, toy, form, logits, seed=seed)
        _, calls, reason = calls_in(text)
        begun += bool(calls)
        assert not ended or reason == ("tool_calls" if calls else "stop")
        assert not ended or ("<tool_call>" in text) == bool(calls)
    assert begun >= 10


def test_no_call_can_begin_where_none_is_allowed(model, toy) -> None:
    form = ResponseFormat(FormatKind.CALLS, calls=Calls(HERMES, ()))
    for seed in range(10):
        logits = rows(model, seed, 60)
        for at, token_id in enumerate(ids_of(model, "<tool_call>\n{")):
            logits[at, token_id] += 50
        text, _, _ = write(model, toy, form, logits, seed=seed)
        assert text.startswith("<tool_call")
        assert "<tool_call>" not in text


def test_an_answer_is_json_or_calls(model, toy) -> None:
    schema = json.dumps({"type": "object", "properties": {}, "additionalProperties": False})
    form = wanted({"f": ANY}, text=schema)
    texts = {
        write(model, toy, form, rows(model, seed, 300), seed=seed)[0].split("\n")[0]
        for seed in range(40)
    }
    assert texts == {"{}", "<tool_call>"}


@settings(max_examples=40, deadline=None)
@given(found=tools(), seed=st.integers(0, 2**32 - 1), cut=st.integers(0, 120))
def test_a_continuation_in_mid_argument_stands_where_it_stood(model, toy, found, seed, cut) -> None:
    form = wanted(found, is_required=True)
    if not is_possible(toy, form):
        return
    _, _, whole = write(model, toy, form, rows(model, seed, 200), seed=seed)
    grammar = toy.compile(form)
    here, there = grammar.constraint(), grammar.constraint(whole[: cut % len(whole)])
    for token_id in whole[: cut % len(whole)]:
        here.accept(token_id)
    size = model.vocabulary.size
    assert (here.allowed(size) == there.allowed(size)).all()


@settings(max_examples=30, deadline=None)
@given(found=tools(), seed=st.integers(0, 2**32 - 1))
def test_several_tokens_in_one_step_are_held_too(model, toy, found, seed) -> None:
    """A draft that runs past the end of a call into the next one."""
    form = wanted(found, is_required=True)
    if not is_possible(toy, form):
        return
    logits = rows(model, seed, 200)
    _, _, alone = write(model, toy, form, logits, seed=seed)
    drafted = write(
        model, toy, form, logits, seed=seed, draft=lambda done: alone[len(done) : len(done) + 9]
    )[2]
    assert drafted == alone


@pytest.mark.parametrize(
    ("parameters", "strict", "word"),
    [
        ("[1]", False, "no JSON object"),
        ("{", False, "no JSON"),
        ('{"type": "string"}', False, '"object"'),
        ('{"type": "object", "not": {"required": ["a"]}}', True, "not"),
    ],
)
def test_what_cannot_be_enforced_is_refused(toy, parameters, strict, word) -> None:
    form = ResponseFormat(FormatKind.CALLS, calls=Calls(HERMES, (Tool("f", parameters, strict),)))
    with pytest.raises(BadFormatError, match=word):
        toy.compile(form)


def test_a_schema_cannot_choose_its_own_options(model, toy) -> None:
    loose = {"type": "object", "x-guidance": {"whitespace_flexible": True}}
    loose["properties"] = {"a": {"type": "integer", "maximum": 9, "minimum": 0}}
    loose |= {"required": ["a"], "additionalProperties": False}
    form = wanted({"f": loose}, is_required=True, is_single=True)
    logits = rows(model, 3, 200)
    logits[:, ord(" ")] += 40
    _, (call,), _ = calls_in(write(model, toy, form, logits)[0])
    assert call.arguments.count(" ") == 1


@pytest.mark.parametrize(
    "change",
    [
        {"tools": []},
        {"tools": [{"name": "a b"}]},
        {"tools": [{"name": "f"}, {"name": "f"}]},
        {"tools": [{"name": "f", "parameters_json": " " * (257 << 10)}]},
        {"tools": [{"name": "f"}], "allowed_names": ["g"]},
        {"tools": [{"name": "f"}], "choice": 9},
        {"tools": [{"name": f"f{n}"} for n in range(129)]},
    ],
)
def test_calls_out_of_range_are_faults(change) -> None:
    good = inference_pb2.CallFormat(tool_use={"tools": [{"name": "f"}]}, syntax=CALL_SYNTAX)
    assert not list(call_faults(inference_pb2.GenerateRequest(calls=good)))
    bad = inference_pb2.CallFormat(tool_use=change, syntax=CALL_SYNTAX)
    assert list(call_faults(inference_pb2.GenerateRequest(calls=bad)))
    nameless = inference_pb2.CallFormat(tool_use=good.tool_use)
    assert list(call_faults(inference_pb2.GenerateRequest(calls=nameless)))
