"""Tools as OpenAI's bodies have them: what may be called, by whose choice, and what was called."""

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, FailFast, Field

from gateway.errors import bad_parameter
from gateway.faces.openai.fields import Strict, fault
from gateway.turn.checks import TOOL_COUNT_MAX
from gateway.turn.domain import Tool, ToolCall, ToolUse


def _schema_text(schema: Any) -> str:
    if schema is None:
        return ""
    if not isinstance(schema, dict):
        raise fault("", "must be a JSON schema, which is an object")
    return json.dumps(schema, ensure_ascii=False)


def _given(found: Any) -> Any:
    return [] if found is None else found


# Read to the first fault: a body can hold a million, and each would be one.
SHORT_LIST = (FailFast(), Field(max_length=TOOL_COUNT_MAX), BeforeValidator(_given))


class Function(Strict):
    """`tools[].function`."""

    name: str
    description: str | None = None
    parameters: Annotated[str, BeforeValidator(_schema_text)] = ""
    strict: bool | None = None


class FunctionTool(Strict):
    """One of `tools`."""

    type: Literal["function"]
    function: Function


class Named(Strict):
    """A function, by its name."""

    name: str


class NamedTool(Strict):
    """`tool_choice`: this one; or one of `allowed_tools`."""

    type: Literal["function"]
    function: Named


class AllowedTools(Strict):
    """`tool_choice.allowed_tools`."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], *SHORT_LIST] = Field(min_length=1)


class AllowedChoice(Strict):
    """`tool_choice`: one of these."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class CalledFunction(Strict):
    """`messages[].tool_calls[].function`."""

    name: str
    arguments: str


class CalledTool(Strict):
    """One of `messages[].tool_calls`."""

    id: str = Field(min_length=1)
    type: Literal["function"] = "function"
    function: CalledFunction


class ToolFields(Strict):
    """The fields of a body that say what may be called."""

    tools: Annotated[list[FunctionTool], *SHORT_LIST] = Field(default_factory=list)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedChoice | None = None
    parallel_tool_calls: bool | None = None


def wanted_tools(fields: ToolFields) -> ToolUse | None:
    """What an answer may call; None: there are no tools.

    Raises:
        MeshError: INVALID_PARAMETER: a choice without tools.
    """
    chosen = fields.tool_choice
    if not fields.tools:
        if chosen not in (None, "none", "auto"):
            raise bad_parameter("tool_choice", "tool_choice needs tools to choose from.")
        return None
    choice, allowed = "auto", tuple[str, ...]()
    if isinstance(chosen, str):
        choice = chosen
    elif isinstance(chosen, NamedTool):
        choice, allowed = "required", (chosen.function.name,)
    elif isinstance(chosen, AllowedChoice):
        choice = chosen.allowed_tools.mode
        allowed = tuple(tool.function.name for tool in chosen.allowed_tools.tools)
    return ToolUse(
        [_tool(each.function) for each in fields.tools],
        choice,
        allowed,
        # Whoever names one tool asks for one call of it.
        is_single=fields.parallel_tool_calls is False or isinstance(chosen, NamedTool),
    )


def called(calls: list[CalledTool]) -> tuple[ToolCall, ...]:
    """What an assistant has called before."""
    return tuple(
        ToolCall(each.id, each.function.name, each.function.arguments or "{}") for each in calls
    )


def _tool(function: Function) -> Tool:
    return Tool(
        function.name, function.description or "", function.parameters, bool(function.strict)
    )
