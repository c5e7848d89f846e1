"""An answer that survives cuts: `python clients/python/resume.py "Tell me about the sea."`

The whole of what a client has to do, on the standard library, to be copied:

    1. Give the POST an Idempotency-Key of its own. As long as no answer has come, repeat the POST
       with that key: it joins the turn that runs, it never makes a second one.
    2. Note the header x-turn-id, and the `id:` of each server-sent event.
    3. A stream that ends without `data: [DONE]` was cut. Ask for the rest of the turn with
       GET /api/turns/{turn}/events and the header Last-Event-ID: the last id that was seen.

Nothing is received twice, and nothing is missed, whichever process dies.
"""

import http.client
import json
import os
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

DONE = "[DONE]"
# Answers after which the same request may be made again: nothing of it was done, or it joins what
# was done. 409 and the others say that the request itself is wrong.
AGAIN = frozenset({429, 502, 503, 504})
# The server says ": ping" after 15 s of silence; a connection that is silent longer is dead.
SILENCE_S_MAX = 20.0
BACK_OFF_S_MIN = 0.05
BACK_OFF_S_MAX = 1.0


@dataclass(frozen=True)
class Trouble:
    """Something that a client without resumption would have shown to a person.

    Attributes:
        status: HTTP status; 0: no answer, the connection failed or was cut.
        code: the error's code, such as "service_unavailable"; for status 0 what happened.
    """

    status: int
    code: str


class TurnError(Exception):
    """The turn cannot be had: it failed, or the request was refused, or patience is at its end."""

    def __init__(self, trouble: Trouble, message: str) -> None:
        self.trouble = trouble
        super().__init__(f"{trouble.status or 'no answer'} {trouble.code}: {message}")


class CutError(Exception):
    """The connection ended before the answer did."""


class Server:
    """Where requests go.

    Args:
        base_url: such as "http://127.0.0.1:8080", with or without /v1.
        api_key: sent as bearer token.
        patience_s: how long to try again without getting any further.
        on_trouble: told of each failure that is made good by trying again.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        patience_s: float = 60.0,
        on_trouble: Callable[[Trouble], None] = lambda trouble: None,
    ) -> None:
        self._url = urlsplit(base_url.removesuffix("/v1"))
        self._api_key, self._patience_s, self._on_trouble = api_key, patience_s, on_trouble

    def stream(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Makes a turn and gives its chunks, each once, whatever is cut meanwhile.

        Raises:
            TurnError: the turn failed, was refused, or did not go on for patience_s.
        """
        key = str(uuid.uuid4())
        return self._follow("", "", {**body, "stream": True}, key)

    def follow(self, turn_id: str, after: str = "") -> Iterator[dict[str, Any]]:
        """Gives the chunks of a turn that was made before, from a cursor or from the beginning.

        Raises:
            TurnError: as `stream`.
        """
        return self._follow(turn_id, after, None, "")

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """One answer of JSON; a POST is repeated with the same Idempotency-Key.

        Raises:
            TurnError: as `stream`.
        """
        headers = {"idempotency-key": str(uuid.uuid4())} if method == "POST" else {}
        patience = _Patience(self._patience_s)
        while True:
            connection = self._connection()
            try:
                return json.loads(self._open(connection, method, path, body, headers).read())
            except (OSError, http.client.HTTPException, CutError) as error:
                self._wait(patience, Trouble(0, type(error).__name__), str(error))
            except TurnError as error:
                self._wait_or_raise(patience, error)
            finally:
                connection.close()

    def _follow(
        self, turn_id: str, cursor: str, body: Mapping[str, Any] | None, key: str
    ) -> Iterator[dict[str, Any]]:
        patience = _Patience(self._patience_s)
        while True:
            connection = self._connection()
            try:
                if turn_id:
                    headers = {"last-event-id": cursor} if cursor else {}
                    path = f"/api/turns/{turn_id}/events"
                    answer = self._open(connection, "GET", path, None, headers)
                else:
                    headers = {"idempotency-key": key}
                    answer = self._open(connection, "POST", "/v1/chat/completions", body, headers)
                turn_id = answer.headers["x-turn-id"] or turn_id
                for event_id, data in _events(answer):
                    if data == DONE:
                        return
                    yield _chunk(data)
                    cursor = event_id or cursor
                    patience.renew()
                raise CutError("the stream ended without [DONE]")
            except (OSError, http.client.HTTPException, CutError) as error:
                self._wait(patience, Trouble(0, type(error).__name__), str(error))
            except TurnError as error:
                self._wait_or_raise(patience, error)
            finally:
                connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        secure = self._url.scheme == "https"
        make = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        return make(self._url.hostname or "localhost", self._url.port, timeout=SILENCE_S_MAX)

    def _open(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        headers: Mapping[str, str],
    ) -> http.client.HTTPResponse:
        data = None if body is None else json.dumps(body).encode()
        kind = {} if body is None else {"content-type": "application/json"}
        identity = {"authorization": f"Bearer {self._api_key}"}
        connection.request(method, path, data, {**identity, **kind, **headers})
        answer = connection.getresponse()
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            raise _refusal(answer)
        return answer

    def _wait_or_raise(self, patience: "_Patience", error: TurnError) -> None:
        if error.trouble.status not in AGAIN:
            raise error
        self._wait(patience, error.trouble, str(error))

    def _wait(self, patience: "_Patience", trouble: Trouble, message: str) -> None:
        self._on_trouble(trouble)
        if not patience.wait():
            raise TurnError(trouble, f"gave up after {self._patience_s:.0f} s: {message}")


class _Patience:
    """How long to wait before the next try; everything is forgotten when there is progress."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.renew()

    def renew(self) -> None:
        self._end = time.monotonic() + self._patience_s
        self._delay_s = 0.0

    def wait(self) -> bool:
        """Waits; False when it has lasted too long. The first try again is made at once."""
        if time.monotonic() > self._end:
            return False
        # Jitter: not every client of a dead process comes back in the same millisecond.
        time.sleep(self._delay_s * random.uniform(0.5, 1))  # noqa: S311 - no secret
        self._delay_s = min(max(2 * self._delay_s, BACK_OFF_S_MIN), BACK_OFF_S_MAX)
        return True


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, str]]:
    """(id, data) of each server-sent event that arrived whole; comments are left out.

    Raises:
        CutError: the connection was cut.
    """
    fields: dict[str, str] = {}
    try:
        # http.client ends a chunked body that was cut by an exception or, in readline, silently.
        while line := answer.readline():
            text = line.decode().rstrip("\r\n")
            if text:
                name, _, value = text.partition(":")
                fields[name] = value.removeprefix(" ")
                continue
            if "data" in fields:
                yield fields.get("id", ""), fields["data"]
            fields = {}
    except ValueError as error:  # a chunk's length that was cut in two
        raise CutError(str(error)) from error


def _chunk(data: str) -> dict[str, Any]:
    chunk: dict[str, Any] = json.loads(data)
    if "error" in chunk:
        # Said inside the stream: the turn itself failed. Trying again would hear the same.
        raise TurnError(Trouble(200, chunk["error"]["code"]), chunk["error"]["message"])
    return chunk


def _refusal(answer: http.client.HTTPResponse) -> TurnError:
    text = answer.read().decode(errors="replace")
    try:
        error = json.loads(text)["error"]
        code, message = str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        code, message = "unreadable", text[:200]
    return TurnError(Trouble(answer.status, code), message)


def main() -> None:
    """Streams the answer to the first argument; says on stderr when it had to come back."""
    question = sys.argv[1] if len(sys.argv) > 1 else "Tell me about the sea."
    server = Server(
        os.environ["OPENAI_BASE_URL"],
        os.environ["OPENAI_API_KEY"],
        on_trouble=lambda trouble: sys.stderr.write(f"\n[{trouble.code}; going on]\n"),
    )
    body = {
        "model": os.environ.get("MODEL_ID", "chatmesh-tiny"),
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 400,
        "temperature": 0.3,  # a small model rambles at the default of 1
    }
    for chunk in server.stream(body):
        for choice in chunk["choices"]:
            sys.stdout.write(choice["delta"].get("content") or "")
            sys.stdout.flush()
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
