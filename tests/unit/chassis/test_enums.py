"""The words of an enum are those that configuration, tables and JSON had before it was one."""

from chatmesh.content.v1 import content_pb2
from mesh.chassis.enums import words_of


def test_words_by_number() -> None:
    assert words_of(content_pb2.Role) == {1: "system", 2: "user", 3: "assistant", 4: "tool"}
    assert list(words_of(content_pb2.Tier).values()) == ["free", "pro", "enterprise", "admin"]
    assert words_of(content_pb2.FinishReason) == {
        1: "stop",
        2: "length",
        3: "content_filter",
        4: "cancelled",
        5: "tool_calls",
    }
