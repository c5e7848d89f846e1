"""Messages and tools as content.v1 has them, and back."""

from collections.abc import Iterable

from chatmesh.content.v1 import content_pb2 as pb
from gateway.content import ROLES, TOOL_CHOICES
from gateway.turn.domain import Message, ToolCall, ToolUse


def message_of(message: Message) -> pb.Message:
    """A message with its parts."""
    return pb.Message(
        role=ROLES[message.role],
        content=message.content,
        name=message.name,
        parts=parts_of(message),
    )


def parts_of(message: Message) -> list[pb.Part]:
    """What a message is made of beside its text."""
    parts = [pb.Part(tool_call=call_of(call)) for call in message.calls]
    if message.call_id:
        parts.append(pb.Part(tool_result=pb.ToolResult(tool_call_id=message.call_id)))
    return parts


def call_of(call: ToolCall) -> pb.ToolCall:
    """A tool call."""
    return pb.ToolCall(id=call.id, name=call.name, arguments_json=call.arguments)


def calls_in(parts: Iterable[pb.Part]) -> tuple[ToolCall, ...]:
    """The tool calls among parts."""
    calls = (part.tool_call for part in parts if part.HasField("tool_call"))
    return tuple(ToolCall(call.id, call.name, call.arguments_json) for call in calls)


def call_id_in(parts: Iterable[pb.Part]) -> str:
    """Whose result a message is; empty: nobody's."""
    results = (part.tool_result for part in parts if part.HasField("tool_result"))
    return next((result.tool_call_id for result in results), "")


def tool_use_of(use: ToolUse) -> pb.ToolUse:
    """Tools and what may be done with them."""
    return pb.ToolUse(
        tools=[
            pb.Tool(
                name=tool.name,
                description=tool.description,
                parameters_json=tool.parameters,
                strict=tool.strict,
            )
            for tool in use.tools
        ],
        choice=TOOL_CHOICES[use.choice],
        allowed_names=use.allowed_names,
        single_call=use.is_single,
    )
