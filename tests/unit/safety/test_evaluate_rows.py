"""Rows of the evaluation: what is read, and what is refused with its line."""

import json
from pathlib import Path

import pytest

from safety_svc.detectors.base import Audience, Category, Turn
from safety_svc.evaluate.rows import RowError, read, row


def _row(value: object) -> str:
    return json.dumps(value)


def test_a_text_is_the_users() -> None:
    found = row(_row({"text": "Hello", "unsafe": 0, "id": 7}), "f:1")
    assert found.turns == [Turn(Audience.USER, "Hello")]
    assert found.unsafe is False
    assert found.labels == {}


def test_messages_keep_their_roles() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Sum"}, {"type": "image_url"}]},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "content": "42"},
    ]
    found = row(_row({"messages": messages}), "f:1")
    audiences = [Audience.SYSTEM, Audience.USER, Audience.ASSISTANT, Audience.TOOL]
    assert [turn.audience for turn in found.turns] == audiences
    assert [turn.text for turn in found.turns] == ["Be brief.", "Sum", "", "42"]
    assert found.unsafe is None


def test_categories_in_every_spelling() -> None:
    labels = {"hate/threatening": 1, "self-harm": 0, "prompt_injection": False, "malware": None}
    found = row(_row({"text": "x", "labels": labels}), "f:1")
    assert found.labels == {
        Category.HATE_THREATENING: True,
        Category.SELF_HARM: False,
        Category.PROMPT_INJECTION: False,
    }
    assert found.unsafe is True  # one category holds


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "no JSON"),
        ("[1]", "no object"),
        ("{}", "text or messages"),
        (_row({"text": "x", "messages": []}), "one of them"),
        (_row({"text": 5}), "no string"),
        (_row({"messages": []}), "at least one message"),
        (_row({"messages": ["x"]}), "no object"),
        (_row({"messages": [{"role": "king", "content": "x"}]}), "unknown role 'king'"),
        (_row({"messages": [{"role": "user", "content": 5}]}), "no string"),
        (_row({"text": "x", "unsafe": 2}), "unsafe is 2"),
        (_row({"text": "x", "labels": [1]}), "labels is no object"),
        (_row({"text": "x", "labels": {"rude": 1}}), "unknown category 'rude'"),
        (_row({"text": "x", "labels": {"hate": "yes"}}), "hate is 'yes'"),
        (b'{"text": "\xff"}', "no JSON"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(
    line: str | bytes, problem: str, tmp_path: Path
) -> None:
    data = line if isinstance(line, bytes) else line.encode()
    (tmp_path / "rows.jsonl").write_bytes(b'{"text": "fine"}\n\n' + data + b"\n")
    with pytest.raises(RowError, match=r"rows\.jsonl:3: ") as caught:
        list(read(tmp_path / "rows.jsonl"))
    assert problem in str(caught.value)
    assert "; " in str(caught.value)
