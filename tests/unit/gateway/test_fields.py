"""No field is ignored that would change an answer: each is honoured, refused or idle."""

import json
from pathlib import Path

import pytest

from gateway.faces.openai.requests import RefusedFields, parse_chat_completion
from gateway.faces.openai.table import WITHOUT_EFFECT, decided, decision, markdown
from mesh.chassis.errors import MeshError

ROOT = Path(__file__).parents[3]
LISTED = Path(__file__).with_name("openai") / "chat_completion_fields.txt"
FIELDS = [line for line in LISTED.read_text().splitlines() if not line.startswith("#")]
ASKED = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def body(**more) -> bytes:
    return json.dumps(ASKED | more).encode()


def test_every_field_of_openai_is_decided_about() -> None:
    assert len(FIELDS) > 100
    # The variants of a union that are refused by their "type".
    custom = ("tools[].custom", "tool_choice.custom", "messages[].tool_calls[].custom")
    assert [f for f in FIELDS if not f.startswith(custom) and decision(f) is None] == []


@pytest.mark.parametrize("param", ["tools", "tool_choice", "messages"])
def test_custom_tools_are_refused(param) -> None:
    custom = {"type": "custom", "custom": {"name": "f"}}
    tool = {"type": "function", "function": {"name": "f"}}
    asked = {
        "tools": {"tools": [custom]},
        "tool_choice": {"tools": [tool], "tool_choice": custom},
        "messages": {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", **custom}]}]},
    }
    with pytest.raises(MeshError) as refused:
        parse_chat_completion(body(**asked[param]))
    assert refused.value.metadata["param"].startswith(param)


@pytest.mark.parametrize("name", RefusedFields.model_fields)
def test_what_is_refused_is_named_and_may_be_empty(name) -> None:
    with pytest.raises(MeshError) as refused:
        parse_chat_completion(body(**{name: ["x", 5]}))
    assert refused.value.metadata["param"] == name
    parse_chat_completion(body(**{name: None}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("modalities", ["text"]), ("reasoning_effort", "none"), ("verbosity", "medium")],
)
def test_what_is_done_anyway_may_be_asked_for(name, value) -> None:
    parse_chat_completion(body(**{name: value}))


def test_what_has_no_effect_is_taken_whatever_it_is() -> None:
    top = [path for path in WITHOUT_EFFECT if "." not in path]
    parse_chat_completion(body(**{key: {"a": 1} for key in top}))


def test_a_refusal_of_an_earlier_answer_is_text() -> None:
    messages = [{"role": "assistant", "content": None, "refusal": "No."}, *ASKED["messages"]]
    ask = parse_chat_completion(body(messages=messages)).ask
    assert ask.messages[0].content == "No."


def test_the_page_is_what_the_code_does() -> None:
    page = (ROOT / "docs" / "CHAT-FIELDS.md").read_text()
    assert page == markdown(), "python -m gateway.faces.openai.table > docs/CHAT-FIELDS.md"
    assert decided()["tools[].function.strict"] == "honoured"
    assert decision("no_such_field") is None
