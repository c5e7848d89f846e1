"""Turn events to the bytes of an answer.

The CPU spent on each event bounds the throughput of a gateway, so that the envelope, equal in all
chunks of an answer, is serialised once and only the text is escaped for each event.
"""

import json
from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import Any

from gateway.faces.openai.errors import error_body, failure_error
from gateway.turn.calls import gathered
from gateway.turn.domain import (
    FINISH_CANCELLED,
    CallDelta,
    ChoiceFinished,
    Event,
    Failed,
    Finished,
    LeftOut,
    Logprob,
    Started,
    TextDelta,
    ToolCall,
    Usage,
)
from gateway.turn.events import Cursor, Numbered
from mesh.chassis.errors import MeshError

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class ChunkWriter:
    """Builds the server-sent events of one turn."""

    def __init__(self, started: Started) -> None:
        """`started` is the first event, which a reader that goes on may be past."""
        self._started_event = started
        head = envelope(started, "chat.completion.chunk")
        self._head = "data: " + _dumps(head)[:-1] + ',"choices":['
        self._tail = '],"usage":null}\n\n' if started.include_usage else "]}\n\n"

    def events(self, epoch: int, batch: Sequence[Numbered]) -> bytes:
        """The server-sent events for events of the turn; each carries the cursor behind it."""
        return b"".join(self._event(f"id: {self.cursor(epoch, n)}\n", e) for n, e in batch)

    def error(self, error: MeshError) -> bytes:
        """A failure after the first byte that is not the turn's own: no cursor is behind it."""
        return b"data: %s\n\n%s" % (error_body(error), DONE)

    def cursor(self, epoch: int, number: int) -> str:
        """Where a reader goes on behind an event."""
        return Cursor(epoch, number).of(self._started_event.turn_id)

    def _event(self, prefix: str, event: Event) -> bytes:
        if type(event) is TextDelta:
            return self._frame(prefix, self._delta(event)).encode()
        if type(event) is Started:
            return self._started(prefix).encode()
        if type(event) is ChoiceFinished:
            return self._frame(prefix, _choice_finished(event)).encode()
        if isinstance(event, Failed):
            shown = error_body(failure_error(event))
            return b"%sdata: %s\n\n%s%s" % (prefix.encode(), shown, prefix.encode(), DONE)
        assert isinstance(event, Finished)
        return self._finished(prefix, event)

    def _started(self, prefix: str) -> str:
        role = '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        frames = [
            self._frame(prefix, f'{{"index":{index},{role}')
            for index in range(self._started_event.choice_count)
        ]
        if left_out := self._started_event.left_out:
            shown = f'],"left_out":{_dumps(left_out_object(left_out))}'
            frames[0] = frames[0].removesuffix(self._tail) + shown + self._tail[1:]
        return "".join(frames)

    def _frame(self, prefix: str, choice: str) -> str:
        return f"{prefix}{self._head}{choice}{self._tail}"

    def _finished(self, prefix: str, event: Finished) -> bytes:
        if not self._started_event.include_usage:
            return prefix.encode() + DONE
        chunk = f'{self._head}],"usage":{_dumps(usage_object(event.usage))}}}\n\n'
        return (prefix + chunk + prefix).encode() + DONE

    def _delta(self, event: TextDelta) -> str:
        logprobs = _dumps(logprobs_object(event.logprobs)) if event.logprobs else "null"
        delta = (
            f'"content":{encode_basestring(event.text)}' if event.text or not event.calls else ""
        )
        if event.calls:
            delta += "," if delta else ""
            delta += f'"tool_calls":{_dumps([_call_delta(each) for each in event.calls])}'
        return (
            f'{{"index":{event.choice_index},"delta":{{{delta}}},'
            f'"logprobs":{logprobs},"finish_reason":null}}'
        )


def _call_delta(delta: CallDelta) -> dict[str, object]:
    function = {"name": delta.name} if delta.name else {}
    call = {"id": delta.id, "type": "function"} if delta.id else {}
    return {
        "index": delta.call_index,
        **call,
        "function": function | {"arguments": delta.arguments},
    }


def call_object(call: ToolCall) -> dict[str, object]:
    """A tool call in OpenAI's words."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _choice_finished(event: ChoiceFinished) -> str:
    shown = {"index": event.choice_index, "delta": {}, "logprobs": None, **ending(event)}
    return _dumps(shown)


def ending(event: ChoiceFinished) -> dict[str, object]:
    """How an answer ended; what OpenAI has no word for stands beside its own."""
    if event.finish_reason == FINISH_CANCELLED:
        return {"finish_reason": "stop", "cancelled": True}
    if event.bound:
        limit = {"kind": event.bound.limit, "of": event.bound.payer}
        return {"finish_reason": event.finish_reason, "limit": limit}
    if not event.filter_category:
        return {"finish_reason": event.finish_reason}
    found = {"category": event.filter_category, "offset": event.filter_offset}
    return {"finish_reason": event.finish_reason, "content_filter": found}


class Completion:
    """Gathers the events of a turn for one JSON body."""

    def __init__(self, started: Started) -> None:
        n = started.choice_count
        self._started = started
        self._texts: list[list[str]] = [[] for _ in range(n)]
        self._logprobs: list[list[Logprob]] = [[] for _ in range(n)]
        self._calls: list[list[CallDelta]] = [[] for _ in range(n)]
        self._endings = [ChoiceFinished(index, "") for index in range(n)]
        self._usage: Usage | None = None

    def add(self, event: Event) -> None:
        """Takes one event."""
        if isinstance(event, TextDelta):
            self._texts[event.choice_index].append(event.text)
            self._logprobs[event.choice_index] += event.logprobs
            self._calls[event.choice_index] += event.calls
        elif isinstance(event, ChoiceFinished):
            self._endings[event.choice_index] = event
        elif isinstance(event, Finished):
            self._usage = event.usage

    def body(self) -> bytes:
        """The JSON, once all events were added."""
        assert self._usage
        choices = [
            {
                "index": index,
                "message": _message("".join(texts), gathered(calls)),
                "logprobs": logprobs_object(logprobs) if logprobs else None,
            }
            | ending(ended)
            for index, (texts, calls, logprobs, ended) in enumerate(
                zip(self._texts, self._calls, self._logprobs, self._endings, strict=True)
            )
        ]
        head = envelope(self._started, "chat.completion")
        body = head | {"choices": choices, "usage": usage_object(self._usage)}
        if self._started.left_out:
            body["left_out"] = left_out_object(self._started.left_out)
        return _dumps(body).encode()


def _message(text: str, calls: Sequence[ToolCall]) -> dict[str, object]:
    message: dict[str, object] = {"role": "assistant", "content": text, "refusal": None}
    if calls:
        message["content"] = text or None
        message["tool_calls"] = [call_object(call) for call in calls]
    return message


def envelope(event: Started, kind: str) -> dict[str, object]:
    """What all chunks of an answer have in common."""
    head: dict[str, object] = {
        "id": f"chatcmpl-{event.turn_id}",
        "object": kind,
        "created": event.created_unix_s,
        "model": event.model.id,
        "system_fingerprint": event.model.fingerprint,
    }
    return head | ({"conversation_id": event.conversation_id} if event.conversation_id else {})


def left_out_object(left_out: Sequence[LeftOut]) -> list[dict[str, object]]:
    """What the model did not read: a field of our own. Without tokens where nobody counted them."""
    return [
        {"part": each.part, "messages": each.message_count}
        | ({} if each.token_count is None else {"tokens": each.token_count})
        for each in left_out
    ]


def usage_object(usage: Usage) -> dict[str, object]:
    """Token counts in OpenAI's words."""
    return {
        "prompt_tokens": usage.prompt_token_count,
        "completion_tokens": usage.completion_token_count,
        "total_tokens": usage.prompt_token_count + usage.completion_token_count,
        "prompt_tokens_details": {"cached_tokens": usage.cached_token_count},
    }


def logprobs_object(logprobs: Sequence[Logprob]) -> dict[str, object]:
    """Log probabilities in OpenAI's words."""

    def one(entry: Logprob) -> dict[str, object]:
        return {
            "token": entry.text.decode(errors="replace"),
            "logprob": entry.logprob,
            "bytes": list(entry.text),
        }

    def top(entry: Logprob) -> dict[str, object]:
        return one(entry) | {"top_logprobs": [one(other) for other in entry.top]}

    return {"content": [top(entry) for entry in logprobs], "refusal": None}
