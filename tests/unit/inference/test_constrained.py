"""Constrained answers: whatever the logits are, a finished text has the wanted form."""

import functools
import json
import re

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.engine.protocol import BadFormatError, FormatKind, ResponseFormat
from inference_svc.engine.torch import constrained
from inference_svc.engine.torch.constrained import GrammarCompiler
from inference_svc.engine.torch.sampler import SamplingRequest
from tests.support.toy_folder import EOS, ids_of
from tests.unit.inference.sampling import ask, sequence
from tests.unit.inference.schemas import schemas

TOKEN_COUNT_MAX = 400
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def json_schema(schema: object) -> ResponseFormat:
    return ResponseFormat(FormatKind.JSON_SCHEMA, json.dumps(schema))


WIDE = json_schema(
    {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(900)}}
)


@pytest.fixture(scope="module")
def toy(model):
    return GrammarCompiler(model)


@pytest.fixture(scope="module")
def real(shipped):
    return GrammarCompiler(shipped)


def is_possible(compiler, schema) -> bool:
    """Some schemas contradict themselves; no feature may be missing."""
    try:
        compiler.compile(json_schema(schema))
    except BadFormatError as error:
        if "Unsatisfiable" not in str(error):
            raise
        return False
    return True


def rows(model, seed: int, count: int) -> np.ndarray:
    """Random logits; quotes and brackets are likelier, so that most answers come to an end."""
    generator = np.random.default_rng(seed)
    logits = generator.standard_normal((count, model.vocabulary_size), np.float32) * 2
    logits[:, _closing(model.vocabulary)] += 9
    return logits


@functools.cache
def _closing(vocabulary) -> list[int]:
    ends = (b'"', b"]", b"}", b",")
    return [i for i in range(vocabulary.size) if vocabulary.token_bytes(i) in ends]


def write(
    model, compiler, wanted, logits, *, draft=None, **sampling
) -> tuple[str, bool, list[int]]:
    """(text, whether it ended, tokens) of an answer that draws from these logits, row by row.

    `draft`, when given, makes a step's draft of the tokens so far.
    """
    of = sequence((5,), **sampling)
    of.constraint = compiler.compile(wanted).constraint()
    done: list[int] = []
    while len(done) < len(logits):
        drafted = (draft(done) if draft else [])[: len(logits) - len(done) - 1]
        step = logits[len(done) : len(done) + 1 + len(drafted)]
        outcome = ask(step, SamplingRequest(of, 0, drafted))[0]
        assert not outcome.error, outcome.error
        done += outcome.token_ids
        of.token_ids.extend(outcome.token_ids)
        if done[-1] in model.eos_token_ids:
            return model.vocabulary.join(done[:-1]).decode(), True, done
    return model.vocabulary.join(done).decode(errors="replace"), False, done


@settings(max_examples=60, deadline=None)
@given(schema=schemas(), seed=st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("served", ["toy", "shipped"])
def test_a_finished_json_answer_validates(request, served, schema, seed) -> None:
    """With a token for each byte, and with a real vocabulary."""
    folder = request.getfixturevalue("model" if served == "toy" else "shipped")
    compiler = request.getfixturevalue("toy" if served == "toy" else "real")
    if not is_possible(compiler, schema):
        return
    logits = rows(folder, seed, TOKEN_COUNT_MAX)
    text, ended, _ = write(folder, compiler, json_schema(schema), logits, seed=seed)
    if ended:
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(text))


def test_most_random_answers_end(model, toy) -> None:
    """Else the test above would prove nothing."""
    ended = [
        write(model, toy, json_schema(PERSON), rows(model, seed, TOKEN_COUNT_MAX), seed=seed)[1]
        for seed in range(20)
    ]
    assert sum(ended) == 20


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        {"top_p": 0.9, "presence_penalty": 1.0},
        {"top_k": 1, "logit_bias": {EOS: -100.0}},
        {"temperature": 0.0, "repetition_penalty": 2.0, "min_p": 0.1},
    ],
)
def test_every_way_of_sampling_obeys(model, toy, sampling) -> None:
    for seed in range(5):
        text, ended, _ = write(model, toy, json_schema(PERSON), rows(model, seed, 200), **sampling)
        assert ended
        jsonschema.validate(json.loads(text), PERSON)


def test_a_weak_model_cannot_go_on_with_white_space(model, toy) -> None:
    logits = rows(model, 1, TOKEN_COUNT_MAX)
    for space in b" \n\t\r":
        logits[:, ids_of(model, chr(space))] += 50
    text, ended, _ = write(model, toy, json_schema({**PERSON, "required": []}), logits)
    assert ended
    assert re.sub(r'"[^"]*"', "", text).count(" ") <= 8
    value, _, _ = write(model, toy, ResponseFormat(FormatKind.JSON_OBJECT), logits)
    assert value.startswith('{"') or value == "{}"


def test_any_json_object(model, toy) -> None:
    ended = 0
    for seed in range(20):
        wanted = ResponseFormat(FormatKind.JSON_OBJECT)
        text, finished, _ = write(model, toy, wanted, rows(model, seed, 300), seed=seed)
        if finished:
            ended += 1
            assert isinstance(json.loads(text), dict)
    assert ended > 10


@pytest.mark.parametrize("regex", [r"\d{3}-\d{4}", "^(yes|no)!*$", "[^a]{3,5}", "é+|€x?", "a.c"])
def test_a_regular_expression_is_matched_in_full(shipped, real, regex) -> None:
    for seed in range(8):
        wanted = ResponseFormat(FormatKind.REGEX, regex)
        text, ended, _ = write(shipped, real, wanted, rows(shipped, seed, 60), seed=seed)
        assert not ended or re.fullmatch(regex, text)


@settings(max_examples=50, deadline=None)
@given(
    texts=st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=5),
    seed=st.integers(0, 99),
)
def test_one_of_the_choices_is_written(model, toy, texts, seed) -> None:
    wanted = ResponseFormat(FormatKind.CHOICE, choices=tuple(texts))
    text, ended, _ = write(model, toy, wanted, rows(model, seed, 80), seed=seed)
    assert ended
    assert text in texts


@settings(max_examples=40, deadline=None)
@given(schema=schemas(), seed=st.integers(0, 2**32 - 1), cut=st.integers(0, 60))
def test_a_continuation_stands_where_the_first_attempt_stood(model, toy, schema, seed, cut) -> None:
    if not is_possible(toy, schema):
        return
    grammar = toy.compile(json_schema(schema))
    logits = rows(model, seed, TOKEN_COUNT_MAX)
    _, _, whole = write(model, toy, json_schema(schema), logits, seed=seed)
    cut = min(cut, len(whole) - 1)
    rest = sequence((5,), whole[:cut], seed=seed)
    rest.constraint = grammar.constraint(whole[:cut])
    for at in range(cut, len(whole)):
        outcome = ask(logits[at : at + 1], SamplingRequest(rest, 0))[0]
        assert outcome.token_ids == [whole[at]]
        rest.token_ids.append(whole[at])


@settings(max_examples=40, deadline=None)
@given(schema=schemas(), seed=st.integers(0, 2**32 - 1), greedy=st.booleans())
def test_drafts_change_no_constrained_answer(model, toy, schema, seed, greedy) -> None:
    """Drafts right, wrong, forbidden by the grammar, and beyond the end."""
    if not is_possible(toy, schema):
        return
    logits, guess = rows(model, seed, 120), np.random.default_rng(seed)
    sampling = {"seed": seed, "temperature": 0.0 if greedy else 1.0}
    slow = write(model, toy, json_schema(schema), logits, **sampling)

    def draft(done: list[int]) -> list[int]:
        right = slow[2][len(done) : len(done) + 5]
        if guess.random() < 0.5:
            right = [*right[:2], int(guess.integers(0, model.vocabulary.size)), *right[2:]]
        return right

    assert write(model, toy, json_schema(schema), logits, draft=draft, **sampling) == slow


def test_forced_text_is_offered_as_a_draft(model, toy) -> None:
    grammar = toy.compile(ResponseFormat(FormatKind.CHOICE, choices=("the river", "the mill")))
    forced = grammar.constraint().forced()
    assert model.vocabulary.join(forced) == b"the "[: len(model.vocabulary.join(forced))]
    assert forced
    constraint = grammar.constraint()
    for token_id in forced:
        assert np.flatnonzero(constraint.allowed(model.vocabulary_size)).tolist() == [token_id]
        constraint.accept(token_id)
    assert np.count_nonzero(constraint.allowed(model.vocabulary_size)) > 1


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        (json_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (json_schema({"not": {"type": "string"}}), "not"),
        (json_schema({"if": {}, "then": {}}), "if"),
        (json_schema({"type": "object", "propertyNames": {"maxLength": 2}}), "propertyNames"),
        (json_schema({"type": "string", "format": "no-such"}), "no-such"),
        (json_schema({"type": "no-such"}), "no-such"),
        (json_schema({"$ref": "http://127.0.0.1:9/x"}), "127.0.0.1"),
        (json_schema({"type": "string", "pattern": "(?=a)b"}), "look-ahead"),
        (json_schema({"enum": []}), "empty"),
        (json_schema({"$ref": "#"}), "NoExtension"),
        (WIDE, "max is 2000"),
        (json_schema([1]), "object"),
        (json_schema({"x-guidance": {"lenient": True}, "not": {}}), "not"),
        (ResponseFormat(FormatKind.JSON_SCHEMA, "{"), "no JSON"),
        (ResponseFormat(FormatKind.JSON_SCHEMA, "[" * 100_000), "JSON"),
        (ResponseFormat(FormatKind.REGEX, "a("), "unclosed"),
        (ResponseFormat(FormatKind.REGEX, r"(a)\1"), "backreferences"),
    ],
)
def test_what_cannot_be_enforced_is_named(toy, wanted, named) -> None:
    with pytest.raises(BadFormatError) as caught:
        toy.compile(wanted)
    assert named in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_schema_cannot_loosen_white_space(model, toy) -> None:
    loose = {**PERSON, "x-guidance": {"whitespace_flexible": True}}
    constraint = toy.compile(json_schema(loose)).constraint(ids_of(model, "{"))
    assert np.flatnonzero(constraint.allowed(model.vocabulary_size)).tolist() == ids_of(model, '"')


def test_tokens_that_do_not_fit_are_refused(model, toy) -> None:
    with pytest.raises(BadFormatError, match="emitted before"):
        toy.compile(json_schema(PERSON)).constraint(ids_of(model, "[1"))


def test_grammars_are_compiled_once(toy) -> None:
    wanted = json_schema({"type": "object", "title": "once"})
    assert toy.compile(wanted) is toy.compile(json_schema({"type": "object", "title": "once"}))


def test_a_grammar_that_explodes_fails_its_own_request(model, monkeypatch) -> None:
    """Lexer states are bounded: the answer ends with an error, not the process."""
    monkeypatch.setattr(constrained, "LEXER_STATE_COUNT_MAX", 60)
    grammar = GrammarCompiler(model).compile(ResponseFormat(FormatKind.REGEX, "(.*[a-z].{9}b)+"))
    of, other = sequence((5,)), sequence((5,))
    of.constraint = grammar.constraint()
    for seed in range(TOKEN_COUNT_MAX):
        failed, fine = ask(rows(model, seed, 2), SamplingRequest(of, 0), SamplingRequest(other, 1))
        assert not fine.error
        if failed.error:
            break
        of.token_ids.extend(failed.token_ids)
    assert "too complex" in failed.error
    assert not failed.token_ids


def test_a_request_does_not_fail_for_what_others_asked(model, monkeypatch) -> None:
    """Requests of one format share lexer states, which are bounded."""
    monkeypatch.setattr(constrained, "LEXER_STATE_COUNT_MAX", 80)
    wanted = ResponseFormat(FormatKind.REGEX, "([a-m]|[a-z].{6}b)+")
    shared = GrammarCompiler(model)
    for seed in range(8):
        logits = rows(model, seed, 14)
        logits[:, ids_of(model, "abcdefghijklmnopqrstuvwxyz")] += 30
        alone = write(model, GrammarCompiler(model), wanted, logits, seed=seed)
        assert write(model, shared, wanted, logits, seed=seed) == alone
    assert shared.compile(wanted)._renewal_count >= 1  # else the test shows nothing
