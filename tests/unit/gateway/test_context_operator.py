"""The operator's prompts: which text speaks, what a document may hold, how a change is taken."""

import asyncio
from datetime import date
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.context.operator import (
    TEXT_BYTE_COUNT_MAX,
    TEXT_COUNT_MAX,
    OperatorPrompts,
    parse,
)
from gateway.context.source import OperatorPromptsFile
from mesh.chassis.checked_yaml import YamlError
from mesh.chassis.followed_file import BYTE_COUNT_MAX

TODAY = date(2026, 3, 4)
DOCUMENT = """
default: "You are Ada. Today is {date}."
models:
  tiny: "You are {model}."
tiers:
  free: "Be brief."
accounts:
  acc_1: "Speak of {{braces}} only."
  acc_2: ""
"""


@pytest.mark.parametrize(
    ("model", "account", "tier", "text"),
    [
        ("large", "acc_9", "pro", "You are Ada. Today is 2026-03-04."),
        ("tiny", "acc_9", "pro", "You are tiny."),
        ("tiny", "acc_9", "free", "Be brief."),
        ("tiny", "acc_1", "free", "Speak of {braces} only."),
        ("tiny", "acc_2", "free", ""),
    ],
)
def test_the_most_special_text_speaks(model, account, tier, text):
    assert parse(DOCUMENT, "p.yaml").text(model, account, tier, TODAY) == text


def test_without_a_document_the_operator_says_nothing():
    assert OperatorPrompts().text("tiny", "acc_1", "free", TODAY) == ""
    assert parse("models: {a: b}", "p.yaml").text("tiny", "acc_1", "free", TODAY) == ""


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (
            'models:\n  tiny: "x"\n  big: "Hi {user}"\n',
            "p.yaml:3: models.big: has {user}, which is no placeholder; known: date, model; "
            "write {date}, {model}, or {{ and }} for braces that are text",
        ),
        ('default: "{dat}"', "p.yaml:1: default: has {dat}, which is no placeholder; did you mean"),
        ('default: "{date:%Y}"', "p.yaml:1: default: has {date}, which is no placeholder"),
        ('default: "{model!r}"', "p.yaml:1: default: has {model}, which is no placeholder"),
        ('default: "{model.__class__}"', "p.yaml:1: default: has text in braces"),
        ("default: '{\"secret\": 1}'", "p.yaml:1: default: has text in braces"),
        ('default: "{}"', "p.yaml:1: default: has text in braces"),
        ('default: "{date"', "p.yaml:1: default: has a single brace"),
        ('default: "a } b"', "p.yaml:1: default: has a single brace"),
        ("default: [a]", "p.yaml:1: default: must be a text"),
        ("default:", "p.yaml:1: default: must be a text"),
        ('\ndefalt: "x"', "p.yaml:2: defalt: unknown key; did you mean default?"),
        ('tiers: {gold: "x"}', "p.yaml:1: tiers.gold: unknown key"),
        ('models: {a: "x", a: "y"}', "p.yaml:1: models.a: stands here twice"),
        ("accounts: [a]", "p.yaml:1: accounts: must be a mapping"),
        (f'default: "{"é" * (TEXT_BYTE_COUNT_MAX // 2 + 1)}"', "p.yaml:1: default: is too long"),
        ('default: "\\0"', "p.yaml:1: default: has a NUL character"),
        ('default: "\\ud800"', "p.yaml:1: default: has half of a surrogate pair"),
        ("", "p.yaml:1: file: empty; write default"),
        ("default: 'x", "p.yaml:1: file: not YAML"),
    ],
)
def test_a_mistake_is_told_with_line_key_and_remedy(document, problem):
    with pytest.raises(YamlError) as caught:
        parse(document, "p.yaml")
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith(problem)


def test_all_mistakes_are_told_at_once_and_no_prompt_with_them():
    with pytest.raises(YamlError) as caught:
        parse('default: "{x} hidden"\nmodels: {a: "{y} hidden"}\nnew: 1', "p.yaml")
    assert [each.split(":")[1] for each in caught.value.problems] == ["3", "1", "2"]
    assert "hidden" not in str(caught.value)


def test_the_number_of_texts_is_bounded():
    lines = "".join(f"  acc_{number}: x\n" for number in range(TEXT_COUNT_MAX))
    assert parse(f"accounts:\n{lines}", "p.yaml").count == TEXT_COUNT_MAX
    with pytest.raises(YamlError, match=f"has {TEXT_COUNT_MAX + 1} texts; use at most"):
        parse(f"default: x\naccounts:\n{lines}", "p.yaml")


def said(source: OperatorPromptsFile) -> str:
    return source.current.text("tiny", "acc_9", "free", TODAY)


def test_a_change_is_taken_and_a_bad_one_changes_nothing(tmp_path: Path):
    path = tmp_path / "prompts.yaml"
    path.write_text("default: first")
    source = OperatorPromptsFile(path)
    assert (source.refresh(), said(source)) == (False, "first")
    path.write_text("default: second")
    assert (source.refresh(), said(source)) == (True, "second")
    path.write_text('default: "a secret {user}"')
    with capture_logs() as logs:
        assert [source.refresh(), source.refresh()] == [False, False]
    assert said(source) == "second"
    refused = [each for each in logs if each["event"] == "operator_prompts_refused"]
    assert len(refused) == 1  # told once, not at every look
    assert refused[0]["problems"][0].startswith("prompts.yaml:1: default: has {user}")
    assert "secret" not in str(logs)
    path.write_text("default: third")
    assert (source.refresh(), said(source)) == (True, "third")


def test_a_file_that_goes_away_changes_nothing_until_it_is_back(tmp_path: Path):
    path = tmp_path / "prompts.yaml"
    path.write_text("default: first")
    source = OperatorPromptsFile(path)
    path.unlink()
    with capture_logs() as logs:
        assert [source.refresh(), source.refresh()] == [False, False]
    assert len(logs) == 1
    assert said(source) == "first"
    path.write_text("default: back")
    assert (source.refresh(), said(source)) == (True, "back")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (None, "No such file or directory; put the file there"),
        (b"default: ok\nmodels: {a: \xff}", "prompts.yaml:2: file: not UTF-8"),
        (b"#" * (BYTE_COUNT_MAX + 1), "prompts.yaml is larger than"),
        (b'default: "{x}"', "prompts.yaml:1: default: has {x}"),
    ],
)
def test_a_bad_file_is_refused_at_start(tmp_path: Path, data, problem):
    path = tmp_path / "prompts.yaml"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(YamlError) as caught:
        OperatorPromptsFile(path)
    assert problem in str(caught.value)


async def test_without_a_file_there_is_nothing_to_follow():
    source = OperatorPromptsFile(None)
    following = asyncio.ensure_future(source.follow(interval_s=3600))
    await asyncio.sleep(0)
    assert not following.done()  # it is kept as all work of a process: one that ends is begun again
    following.cancel()
    assert source.refresh() is False
    assert source.current.count == 0
