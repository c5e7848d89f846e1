"""The bytes of a stream: valid server-sent events and valid JSON, whatever the text."""

import json
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import public
from gateway.faces.openai.chunks import PING, ChunkWriter, Completion
from gateway.turn.domain import ChoiceFinished, Delta, Finished, Logprob, ModelInfo, Started, Usage

MODEL = ModelInfo("m", 100, "fp_1")
STARTED = Started("TURN", MODEL, "", 0)
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
            found.append((fields[b"id"], fields[b"data"]))
        position = match.end()
    return found


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 2), TEXT, st.booleans())),
    st.booleans(),
    TEXT,
    st.booleans(),
)
def test_every_stream_is_server_sent_events_of_json(deltas, include_usage, name, fails):
    writer = ChunkWriter(1, 3, include_usage, 0)
    started = Started("TURN", ModelInfo(name, 1, "fp"), name, 0)
    logprobs = [Logprob("é".encode()[:1], -0.5)]
    events = [started, *(Delta(i, text, 1, logprobs if lp else ()) for i, text, lp in deltas)]
    stream = b"".join(writer.events(number, event) for number, event in enumerate(events))
    stream += PING
    if fails:
        stream += writer.error(len(events), public("TIMEOUT", f"bad\n{name}"))
    else:
        stream += b"".join(writer.events(len(events), ChoiceFinished(i, "stop")) for i in range(3))
        stream += writer.events(len(events) + 1, USAGE)
    found = parsed(stream)
    assert found[-1][1] == b"[DONE]"
    chunks = [json.loads(data) for _, data in found[:-1]]
    texts = ["", "", ""]
    for chunk in chunks:
        for choice in chunk.get("choices", ()):
            texts[choice["index"]] += choice["delta"].get("content", "")
    wanted = ["".join(text for i, text, _ in deltas if i == index) for index in range(3)]
    assert texts == wanted
    numbers = [int(each.rsplit(b":", 1)[1]) for each, _ in found]
    assert numbers == sorted(numbers)
    if not fails:
        assert ("usage" in chunks[0]) is include_usage
        assert ("prompt_tokens" in (chunks[-1].get("usage") or {})) is include_usage


@given(TEXT, TEXT)
def test_the_whole_body_says_the_same(one, other):
    completion = Completion(1, 2)
    for event in (STARTED, Delta(1, one, 1), Delta(0, other, 1), Delta(1, other, 2)):
        completion.add(event)
    completion.add(ChoiceFinished(0, "stop"))
    completion.add(ChoiceFinished(1, "length"))
    completion.add(USAGE)
    body = json.loads(completion.body())
    assert [choice["message"]["content"] for choice in body["choices"]] == [other, one + other]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop", "length"]
    assert body["usage"]["total_tokens"] == 5
