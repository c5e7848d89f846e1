"""Tools in prompts: how a model writes calls, and what stands in for a template that knows none.

A template that reads `tools` shows them, and the calls of earlier messages, in its own way; which
markup that is stands in its source. Any other template gets the tools as text in the first system
message, and earlier calls as the text that they were when the model wrote them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from chatmesh.content.v1.content_pb2 import CallSyntax
from tokenizer_svc.chat_template import NO_OWNER

# <tool_call>\n{"name": "f", "arguments": {…}}\n</tool_call>, as Hermes, Qwen and others write it.
HERMES = CallSyntax(
    before_calls="<tool_call>",
    before_name='\n{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}\n</tool_call>",
    between_calls="\n<tool_call>",
)
# {"name": "f", "parameters": {…}}, as Llama 3 writes it: one call, and nothing around it.
LLAMA_JSON = CallSyntax(
    before_name='{"name": "',
    before_arguments='", "parameters": ',
    after_arguments="}",
    between_calls="; ",
)
# The markup in a template's source, and what it is. The rest have control tokens in their calls.
MARKUP = (("<tool_call>", HERMES), ('"parameters": ', LLAMA_JSON))

_TOOLS = re.compile(r"\btools\b")
_INTRODUCTION = "You can call these functions, each described in one line of JSON:"
_MANNER = (
    "To call one, write it like this, several one below the other, and nothing behind them:\n"
    '<tool_call>\n{"name": "the function", "arguments": {"its": "arguments"}}\n</tool_call>\n'
    "Call nothing when no function helps: answer in words."
)


class ToolTexts:
    """What one model's template makes of tools.

    Attributes:
        syntax: how the model writes calls; None: not known.
    """

    def __init__(self, template: str) -> None:
        self._takes_tools = _TOOLS.search(template) is not None
        found = (syntax for markup, syntax in MARKUP if markup in template)
        self.syntax = next(found, None) if self._takes_tools else HERMES

    def written_out(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[Sequence[Mapping[str, Any]], int]:
        """The messages as the template is given them, and the index of the first one, which is
        NO_OWNER where it is none of these."""
        if self._takes_tools or not (tools or any("tool_calls" in each for each in messages)):
            return messages, 0
        shown = [_plain(message) for message in messages]
        if not tools:
            return shown, 0
        lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
        text = "\n".join([_INTRODUCTION, *lines, _MANNER])
        if shown[0]["role"] == "system":
            first = {**shown[0], "content": f"{shown[0]['content']}\n\n{text}"}
            return [first, *shown[1:]], 0
        return [{"role": "system", "content": text}, *shown], NO_OWNER


def _plain(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message whose calls are text."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    spelled = HERMES.between_calls.join(_spelled(call["function"]) for call in calls)
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "content": message["content"] + HERMES.before_calls + spelled}


def _spelled(function: Mapping[str, Any]) -> str:
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return (
        f"{HERMES.before_name}{function['name']}{HERMES.before_arguments}"
        f"{arguments}{HERMES.after_arguments}"
    )
