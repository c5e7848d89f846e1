"""A small HTTP/1.1 client on plain sockets: tests see bytes and moments, not a library's view."""

import contextlib
import dataclasses
import json
import socket
from collections.abc import Iterator, Mapping

TIMEOUT_S = 30.0


@dataclasses.dataclass
class HttpResponse:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self):
        """The body as JSON."""
        return json.loads(self.body)


class Connection:
    """One request on one connection, its answer read as it comes."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._file = self._socket.makefile("rb")

    def send(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = ()):
        """Sends a request; a body gets its length."""
        lines = {"host": "localhost", **dict(headers)}
        if body or method in ("POST", "PATCH"):
            lines["content-length"] = str(len(body))
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._socket.sendall(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)

    def head(self) -> tuple[int, dict[str, str]]:
        """Reads status and headers; EOFError when the connection was cut before them."""
        first = self._file.readline()
        if not first:
            raise EOFError("the connection was cut before the answer")
        status = int(first.split()[1])
        headers = {}
        while (line := self._file.readline().decode().strip()) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return status, headers

    def chunks(self, headers: Mapping[str, str]) -> Iterator[bytes]:
        """Pieces of the body as they arrive; ends with the body.

        Raises:
            EOFError: the connection was cut before the end.
        """
        if "content-length" in headers:
            yield self._file.read(int(headers["content-length"]))
            return
        while True:
            line = self._file.readline()
            if not line:
                raise EOFError("the connection was cut inside the body")
            size = int(line, 16)
            data = self._file.read(size)
            self._file.readline()
            if size == 0:
                return
            yield data

    def close(self) -> None:
        """Closes the connection, whatever is still to come."""
        self._file.close()
        self._socket.close()


@contextlib.contextmanager
def connect(address: str) -> Iterator[Connection]:
    """A connection that is closed at the end of the block."""
    connection = Connection(address)
    try:
        yield connection
    finally:
        connection.close()


class Client:
    """Requests with a key."""

    def __init__(self, address: str, key: str = "") -> None:
        self.address = address
        self.headers = {"authorization": f"Bearer {key}"} if key else {}

    def request(self, method, path, body=None, headers=()) -> HttpResponse:
        """A whole request; `body` is bytes, or a value that becomes JSON."""
        data = body if isinstance(body, bytes) else b"" if body is None else _json(body)
        kind = {"content-type": "application/json"} if data else {}
        with connect(self.address) as connection:
            connection.send(method, path, data, {**self.headers, **kind, **dict(headers)})
            status, got = connection.head()
            has_body = method != "HEAD" and status not in (204, 304)
            return HttpResponse(status, got, b"".join(connection.chunks(got)) if has_body else b"")

    @contextlib.contextmanager
    def stream(self, body=None, path="/v1/chat/completions", headers=()):
        """Opens a stream; yields (status, headers, pieces, connection). Without a body a GET."""
        with connect(self.address) as connection:
            method, data = ("GET", b"") if body is None else ("POST", _json(body))
            kind = {"content-type": "application/json"} if data else {}
            connection.send(method, path, data, {**self.headers, **kind, **dict(headers)})
            status, got = connection.head()
            yield status, got, connection.chunks(got), connection


def events(pieces: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    """(id, data) of each server-sent event; comments come as ("", ": …")."""
    buffer = b""
    for piece in pieces:
        buffer += piece
        while b"\n\n" in buffer:
            block, buffer = buffer.split(b"\n\n", 1)
            lines = block.decode().split("\n")
            if lines[0].startswith(":"):
                yield "", lines[0]
                continue
            fields = dict(line.split(": ", 1) for line in lines)
            yield fields.get("id", ""), fields["data"]
    assert buffer == b"", "the stream ended inside an event"


def _json(value) -> bytes:
    return json.dumps(value).encode()
