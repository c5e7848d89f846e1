"""The bytes of a stream: valid server-sent events and valid JSON, whatever the text."""

import json
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import public
from gateway.faces.openai.chunks import PING, ChunkWriter, Completion
from gateway.turn.domain import (
    ChoiceFinished,
    Failed,
    Finished,
    Logprob,
    ModelInfo,
    Started,
    TextDelta,
    Usage,
)
from gateway.turn.events import Numbered

MODEL = ModelInfo("m", 100, "fp_1")
STARTED = Started("TURN", MODEL, "", 0, choice_count=2)
USAGE = Finished(Usage(3, 1, 2))
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
# One event: fields, one a line, then an empty line (WHATWG HTML, 9.2.5).
EVENT = re.compile(rb"(?:(?:id|data): [^\r\n]+\n)+\n|: ping\n\n")


def parsed(stream: bytes) -> list[tuple[bytes, object]]:
    """Events by the grammar; every byte must belong to one."""
    found, position = [], 0
    while position < len(stream):
        match = EVENT.match(stream, position)
        assert match, stream[position : position + 80]
        fields = dict(line.split(b": ", 1) for line in match[0].strip().split(b"\n"))
        if b"data" in fields:
            found.append((fields.get(b"id", b""), fields[b"data"]))
        position = match.end()
    return found


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 2), TEXT, st.booleans())),
    st.booleans(),
    TEXT,
    st.sampled_from(["", "by itself", "here"]),
)
def test_every_stream_is_server_sent_events_of_json(deltas, include_usage, name, fails):
    model = ModelInfo(name, 1, "fp")
    started = Started("TURN", model, name, 0, choice_count=3, include_usage=include_usage)
    writer = ChunkWriter(started)
    logprobs = [Logprob("é".encode()[:1], -0.5)]
    events = [started, *(TextDelta(i, text, 1, logprobs if lp else ()) for i, text, lp in deltas)]
    if fails == "by itself":
        events.append(Failed("TIMEOUT", f"bad\n{name}"))
    elif not fails:
        events += [*(ChoiceFinished(index, "stop") for index in range(3)), USAGE]
    stream = writer.events(4, [Numbered(*each) for each in enumerate(events)]) + PING
    if fails == "here":
        stream += writer.error(public("TIMEOUT", f"bad\n{name}"))
    found = parsed(stream)
    assert found[-1][1] == b"[DONE]"
    chunks = [json.loads(data) for _, data in found[:-1]]
    texts = ["", "", ""]
    for chunk in chunks:
        for choice in chunk.get("choices", ()):
            texts[choice["index"]] += choice["delta"].get("content", "")
    wanted = ["".join(text for i, text, _ in deltas if i == index) for index in range(3)]
    assert texts == wanted
    cursors = [each.rsplit(b":", 2) for each, _ in found if each]
    assert {(turn, epoch) for turn, epoch, _ in cursors} == {(b"TURN", b"4")}
    numbers = [int(number) for _, _, number in cursors]
    assert numbers == sorted(numbers)
    if not fails:
        assert ("usage" in chunks[0]) is include_usage
        assert ("prompt_tokens" in (chunks[-1].get("usage") or {})) is include_usage


@given(TEXT, TEXT)
def test_the_whole_body_says_the_same(one, other):
    completion = Completion(STARTED)
    for event in (STARTED, TextDelta(1, one, 1), TextDelta(0, other, 1), TextDelta(1, other, 2)):
        completion.add(event)
    completion.add(ChoiceFinished(0, "stop"))
    completion.add(ChoiceFinished(1, "length"))
    completion.add(USAGE)
    body = json.loads(completion.body())
    assert [choice["message"]["content"] for choice in body["choices"]] == [other, one + other]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop", "length"]
    assert body["usage"]["total_tokens"] == 5
