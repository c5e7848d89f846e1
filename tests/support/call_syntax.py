"""How the models of tests write tool calls: as Hermes does."""

from chatmesh.content.v1 import content_pb2

CALL_SYNTAX = content_pb2.CallSyntax(
    before_calls="<tool_call>",
    before_name='\n{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}\n</tool_call>",
    between_calls="\n<tool_call>",
)
