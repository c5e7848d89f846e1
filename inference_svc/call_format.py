"""GenerateRequest.calls to the engine's form: the ranges of content.v1.ToolUse and CallSyntax."""

import re
from collections.abc import Iterator

from chatmesh.content.v1 import content_pb2
from chatmesh.inference.v1 import inference_pb2
from inference_svc.engine.protocol import (
    Calls,
    CallSyntax,
    FormatKind,
    ResponseFormat,
    Tool,
)

TOOL_COUNT_MAX = 128
SCHEMAS_BYTES_MAX = 256 << 10
SYNTAX_BYTES_MAX = 256
ANY_OBJECT = '{"type": "object"}'

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_NAME_CHARACTER = re.compile(r"[a-zA-Z0-9_.-]")


def call_format(asked: inference_pb2.CallFormat, text: ResponseFormat | None) -> ResponseFormat:
    """What an answer with tools is held to; `text` is what it is held to without calls."""
    use, syntax = asked.tool_use, asked.syntax
    allowed = set(use.allowed_names) or {tool.name for tool in use.tools}
    if use.choice == content_pb2.TOOL_CHOICE_NONE:
        allowed = set()
    schema = ""
    if text is not None:
        schema = text.text or ANY_OBJECT
    calls = Calls(
        CallSyntax(
            syntax.before_calls,
            syntax.before_name,
            syntax.before_arguments,
            syntax.after_arguments,
            syntax.between_calls,
            syntax.after_calls,
        ),
        tuple(
            Tool(tool.name, tool.parameters_json, tool.strict)
            for tool in use.tools
            if tool.name in allowed
        ),
        is_required=use.choice == content_pb2.TOOL_CHOICE_REQUIRED,
        is_single=use.single_call,
    )
    return ResponseFormat(FormatKind.CALLS, schema, calls=calls)


def call_faults(request: inference_pb2.GenerateRequest) -> Iterator[tuple[str, str]]:
    """(field, message) of everything that is out of its range."""
    use, syntax = request.calls.tool_use, request.calls.syntax
    names = [tool.name for tool in use.tools]
    if not 1 <= len(names) <= TOOL_COUNT_MAX:
        yield "calls", f"There must be 1 to {TOOL_COUNT_MAX} tools."
    if len(set(names)) < len(names):
        yield "calls", "Two tools have the same name."
    if not all(_NAME.fullmatch(name) for name in names):
        yield "calls", "A tool's name must have 1 to 64 of the characters a-z A-Z 0-9 _ . -"
    if sum(len(tool.parameters_json.encode()) for tool in use.tools) > SCHEMAS_BYTES_MAX:
        yield "calls", f"All schemas together must have at most {SCHEMAS_BYTES_MAX} bytes."
    if use.choice not in content_pb2.ToolChoice.values():
        yield "calls", "The choice must be auto, none or required."
    if set(use.allowed_names) - set(names):
        yield "calls", "A tool is allowed that is not among the tools."
    pieces = [value for _, value in syntax.ListFields()]
    if max(map(len, pieces), default=0) > SYNTAX_BYTES_MAX:
        yield "calls", f"A piece of the syntax must have at most {SYNTAX_BYTES_MAX} bytes."
    if not (syntax.before_calls or syntax.before_name):
        yield "calls", "The syntax must begin with something."
    if not syntax.before_arguments or _NAME_CHARACTER.match(syntax.before_arguments):
        yield "calls", "What stands before the arguments must not begin like a name."
    if request.response_format.WhichOneof("format") not in (None, "json_object", "json_schema"):
        yield "response_format", "Beside tools only JSON can be asked for."
