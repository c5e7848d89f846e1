"""Tools in prompts: shown by the template, or written out where it knows none."""

import json

import jinja2
import pytest

from chatmesh.content.v1.content_pb2 import (
    ROLE_ASSISTANT,
    ROLE_TOOL,
    ROLE_USER,
    Message,
    Part,
    Tool,
    ToolCall,
    ToolResult,
)
from tokenizer_svc.chat_template import NO_OWNER, ChatTemplate
from tokenizer_svc.messages import BadMessagesError, checked_messages, checked_tools
from tokenizer_svc.tools import HERMES, LLAMA_JSON, ToolTexts

PLAIN = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
KNOWING = (
    "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>{% endif %}"
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{% if m.tool_call_id %}({{ m.tool_call_id }}){% endif %}{% endfor %}"
)
TOOL = Tool(name="get", description="Gets.", parameters_json='{"type": "object"}')
USER = {"role": "user", "content": "Hi"}
CALL = {"type": "function", "id": "c1", "function": {"name": "get", "arguments": {"a": "ä"}}}
CALLING = {"role": "assistant", "content": "Well. ", "tool_calls": [CALL, CALL]}
WRITTEN = '<tool_call>\n{"name": "get", "arguments": {"a": "ä"}}\n</tool_call>'


def rendered(source, messages, tools=()):
    texts = ToolTexts(source)
    shown, first_owner = texts.written_out(messages, checked_tools(tools))
    template = ChatTemplate(source, "~", {})
    return template.render(shown, checked_tools(tools), first_owner=first_owner)


def test_a_template_that_knows_tools_shows_them_itself() -> None:
    chunks = rendered(KNOWING, [USER, CALLING], [TOOL])
    text = "".join(chunk.text for chunk in chunks)
    assert json.loads(text.split("tools>")[1][:-2])["function"]["description"] == "Gets."
    assert text.count('<tool_call>{"name": "get", "arguments": {"a": "ä"}}</tool_call>') == 2
    # The same as without our marks in the template.
    tools = checked_tools([TOOL])
    environment = jinja2.Environment()
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    assert text == environment.from_string(KNOWING).render(messages=[USER, CALLING], tools=tools)


def test_any_other_gets_them_in_the_first_system_message() -> None:
    system = {"role": "system", "content": "Be kind."}
    chunks = rendered(PLAIN, [system, USER], [TOOL])
    assert [chunk.owner for chunk in chunks] == [0, 1]
    assert chunks[0].text.startswith("[system]Be kind.\n\n")
    assert '{"name": "get", "description": "Gets.", "parameters": {"type": "object"}}' in (
        chunks[0].text
    )


def test_or_in_one_of_their_own_that_is_nobodys() -> None:
    chunks = rendered(PLAIN, [USER], [TOOL])
    assert [chunk.owner for chunk in chunks] == [NO_OWNER, 0]
    assert chunks[1].text == "[user]Hi"


def test_calls_stand_as_the_model_wrote_them() -> None:
    (chunk,) = rendered(PLAIN, [CALLING])
    assert chunk.text == f"[assistant]Well. {WRITTEN}\n{WRITTEN}"
    assert chunk.text.startswith("[assistant]Well. " + HERMES.before_calls + HERMES.before_name)


def test_without_tools_nothing_changes() -> None:
    texts = ToolTexts(PLAIN)
    assert texts.written_out([USER], []) == ([USER], 0)


@pytest.mark.parametrize(
    ("source", "syntax"),
    [
        (PLAIN, HERMES),
        (KNOWING, HERMES),
        ('{% if tools %}{"name": function name, "parameters": dict}{% endif %}', LLAMA_JSON),
        ("{% if tools %}[TOOL_CALLS]{% endif %}", None),
    ],
)
def test_the_syntax_is_the_templates(source, syntax) -> None:
    assert ToolTexts(source).syntax == syntax


def test_messages_with_parts_are_checked() -> None:
    call = Part(tool_call=ToolCall(id="c1", name="get", arguments_json='{"a": 1}'))
    result = Part(tool_result=ToolResult(tool_call_id="c1"))
    found = checked_messages(
        [
            Message(role=ROLE_ASSISTANT, parts=[call]),
            Message(role=ROLE_TOOL, content="Rain.", parts=[result]),
        ]
    )
    assert found[0]["tool_calls"][0]["function"] == {"name": "get", "arguments": {"a": 1}}
    assert found[1]["tool_call_id"] == "c1"
    broken = Part(tool_call=ToolCall(id="c1", name="get", arguments_json="[1]"))
    for role, part in ((ROLE_USER, call), (ROLE_ASSISTANT, result), (ROLE_ASSISTANT, broken)):
        with pytest.raises(BadMessagesError):
            checked_messages([Message(role=role, parts=[part])])
    with pytest.raises(BadMessagesError):
        checked_tools([Tool(name="f", parameters_json="[")])
