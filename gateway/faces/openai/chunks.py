"""Turn events to the bytes of an answer.

The CPU spent on each event bounds the throughput of a gateway, so that the envelope, equal in all
chunks of an answer, is serialised once and only the text is escaped for each event.
"""

import json
from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import Any

from gateway.faces.openai.errors import error_body
from gateway.turn.domain import (
    ChoiceFinished,
    Delta,
    Event,
    Finished,
    LeftOut,
    Logprob,
    Started,
    Usage,
)
from mesh.chassis.errors import MeshError

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class ChunkWriter:
    """Builds the server-sent events of one answer."""

    def __init__(self, created_unix_s: int, n: int, include_usage: bool, epoch: int) -> None:
        self._created, self._n, self._include_usage = created_unix_s, n, include_usage
        self._epoch = epoch
        self._turn_id = ""
        self._head = self._tail = ""

    def events(self, sequence: int, event: Event) -> bytes:
        """The server-sent events for one turn event; each carries the id of the turn event."""
        if type(event) is Delta:
            return self._frame(sequence, self._delta(event)).encode()
        if type(event) is Started:
            return self._started(sequence, event).encode()
        if type(event) is ChoiceFinished:
            reason = f'"delta":{{}},"logprobs":null,"finish_reason":"{event.finish_reason}"'
            reason += f',"content_filter":{_dumps(found)}}}' if (found := _filter(event)) else "}"
            return self._frame(sequence, f'{{"index":{event.choice_index},{reason}').encode()
        assert isinstance(event, Finished)
        return self._finished(sequence, event)

    def error(self, sequence: int, error: MeshError) -> bytes:
        """A failure after the first byte: an event, and the end."""
        prefix = b"id: %s\n" % self._id(sequence)
        return b"%sdata: %s\n\n%s%s" % (prefix, error_body(error), prefix, DONE)

    def _id(self, sequence: int) -> bytes:
        return f"{self._turn_id}:{self._epoch}:{sequence}".encode()

    def _started(self, sequence: int, event: Started) -> str:
        self._turn_id = event.turn_id
        head = envelope(event, "chat.completion.chunk", self._created)
        self._head = "data: " + _dumps(head)[:-1] + ',"choices":['
        self._tail = '],"usage":null}\n\n' if self._include_usage else "]}\n\n"
        role = '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        frames = [self._frame(sequence, f'{{"index":{index},{role}') for index in range(self._n)]
        if event.left_out:
            told = f'],"left_out":{_dumps(left_out_object(event.left_out))}'
            frames[0] = frames[0].removesuffix(self._tail) + told + self._tail[1:]
        return "".join(frames)

    def _frame(self, sequence: int, choice: str) -> str:
        return f"id: {self._turn_id}:{self._epoch}:{sequence}\n{self._head}{choice}{self._tail}"

    def _delta(self, event: Delta) -> str:
        logprobs = _dumps(logprobs_object(event.logprobs)) if event.logprobs else "null"
        return (
            f'{{"index":{event.choice_index},"delta":{{"content":{encode_basestring(event.text)}}},'
            f'"logprobs":{logprobs},"finish_reason":null}}'
        )

    def _finished(self, sequence: int, event: Finished) -> bytes:
        prefix = b"id: %s\n" % self._id(sequence)
        if not self._include_usage:
            return prefix + DONE
        chunk = f'{self._head}],"usage":{_dumps(usage_object(event.usage))}}}\n\n'
        return prefix + chunk.encode() + prefix + DONE


class Completion:
    """Gathers the events of a turn for one JSON body."""

    def __init__(self, created_unix_s: int, n: int) -> None:
        self._created = created_unix_s
        self._texts: list[list[str]] = [[] for _ in range(n)]
        self._logprobs: list[list[Logprob]] = [[] for _ in range(n)]
        self._endings = [ChoiceFinished(index, "") for index in range(n)]
        self._started: Started | None = None
        self._usage: Usage | None = None

    def add(self, event: Event) -> None:
        """Takes one event."""
        if isinstance(event, Delta):
            self._texts[event.choice_index].append(event.text)
            self._logprobs[event.choice_index] += event.logprobs
        elif isinstance(event, Started):
            self._started = event
        elif isinstance(event, ChoiceFinished):
            self._endings[event.choice_index] = event
        else:
            self._usage = event.usage

    def body(self) -> bytes:
        """The JSON, once all events were added."""
        assert self._started
        assert self._usage
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": "".join(texts), "refusal": None},
                "logprobs": logprobs_object(logprobs) if logprobs else None,
                "finish_reason": ending.finish_reason,
            }
            | ({"content_filter": found} if (found := _filter(ending)) else {})
            for index, (texts, logprobs, ending) in enumerate(
                zip(self._texts, self._logprobs, self._endings, strict=True)
            )
        ]
        head = envelope(self._started, "chat.completion", self._created)
        body = head | {"choices": choices, "usage": usage_object(self._usage)}
        if self._started.left_out:
            body["left_out"] = left_out_object(self._started.left_out)
        return _dumps(body).encode()


def _filter(event: ChoiceFinished) -> dict[str, object]:
    """Why an answer was cut: a field of our own beside OpenAI's finish_reason."""
    if not event.filter_category:
        return {}
    return {"category": event.filter_category, "offset": event.filter_offset}


def envelope(event: Started, kind: str, created_unix_s: int) -> dict[str, object]:
    """What all chunks of an answer have in common."""
    head: dict[str, object] = {
        "id": f"chatcmpl-{event.turn_id}",
        "object": kind,
        "created": created_unix_s,
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
