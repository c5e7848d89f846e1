"""The resuming client against a small server that cuts, refuses and goes on."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from clients.python import resume
from clients.python.resume import Server, Trouble, TurnError

WORDS = ["The ", "sea ", "is ", "wide ", "and ", "deep."]


def frame(number, data):
    text = data if data == "[DONE]" else json.dumps(data)
    return f"id: t:0:{number}\ndata: {text}\n\n".encode()


def said(word):
    return {"choices": [{"index": 0, "delta": {"content": word}}]}


FRAMES = [*(frame(number, said(word)) for number, word in enumerate(WORDS)), frame(6, "[DONE]")]

PING = b": ping\n\n"


class Turns:
    """A server of one turn. `script` has one entry for each request, the last one for the rest:

    an int: that many bytes of the body are sent, then the connection is cut; a (status, code): a
    refusal; None: the whole rest.
    """

    def __init__(self, *script):
        self.script = list(script)
        self.requests = []
        self.head, self.frames = PING, FRAMES

    def answer(self, handler):
        size = int(handler.headers.get("content-length", 0))
        body = json.loads(handler.rfile.read(size)) if size else None
        self.requests.append((handler.command, handler.path, dict(handler.headers), body))
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, tuple):
            return self.refuse(handler, *step)
        cursor = handler.headers.get("last-event-id")
        begin = 0 if cursor is None else int(cursor.rpartition(":")[2]) + 1
        data = self.head + b"".join(self.frames[begin:])
        handler.send_response(200)
        handler.send_header("x-turn-id", "t")
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"%x\r\n" % len(data) + data[:step])
        if step is None:
            handler.wfile.write(b"\r\n0\r\n\r\n")
        handler.close_connection = True
        return None

    def refuse(self, handler, status, code):
        data = json.dumps({"error": {"message": "m", "code": code}}).encode()
        handler.send_response(status)
        handler.send_header("content-length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)


@contextlib.contextmanager
def serving(*script):
    turns = Turns(*script)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            turns.answer(self)

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        turns.url = f"http://127.0.0.1:{server.server_port}"
        yield turns
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def text_of(chunks):
    return "".join(choice["delta"]["content"] for chunk in chunks for choice in chunk["choices"])


@pytest.fixture
def troubles():
    return []


def stream(turns, troubles, **kwargs):
    server = Server(turns.url + "/v1", "cm-key", on_trouble=troubles.append, **kwargs)
    return server.stream({"messages": []})


# Every length cuts somewhere else: inside an id, inside the data, between two lines, between two
# events, before [DONE].
@pytest.mark.parametrize("count", range(0, len(PING + b"".join(FRAMES)), 7))
def test_wherever_it_is_cut_every_word_comes_once(troubles, count):
    with serving(count, None) as turns:
        assert text_of(stream(turns, troubles)) == "".join(WORDS)
        first, second = turns.requests
    assert (first[0], first[3]["stream"]) == ("POST", True)
    assert (second[0], second[1]) == ("GET", "/api/turns/t/events")
    assert len(troubles) == 1
    assert troubles[0].status == 0


def test_it_is_cut_again_and_again(troubles):
    with serving(*[150] * 20) as turns:
        assert text_of(stream(turns, troubles)) == "".join(WORDS)
    assert len(troubles) >= 3


def test_a_post_that_got_no_answer_is_repeated_with_its_key(troubles):
    refusals = [(503, "service_unavailable"), (503, "overloaded")]
    with serving(*refusals, None) as turns:
        assert text_of(stream(turns, troubles)) == "".join(WORDS)
        methods = {request[0] for request in turns.requests}
        keys = {request[2]["idempotency-key"] for request in turns.requests}
    assert methods == {"POST"}
    assert len(keys) == 1
    assert troubles == [Trouble(503, "service_unavailable"), Trouble(503, "overloaded")]


def test_two_turns_have_two_keys(troubles):
    with serving(None) as turns:
        server = Server(turns.url, "cm-key")
        for _ in range(2):
            list(server.stream({"messages": []}))
        assert len({request[2]["idempotency-key"] for request in turns.requests}) == 2


def test_what_cannot_be_made_good_is_raised_at_once(troubles):
    with serving((409, "idempotency_key_reused")) as turns:
        with pytest.raises(TurnError, match="idempotency_key_reused") as raised:
            list(stream(turns, troubles))
        assert raised.value.trouble == Trouble(409, "idempotency_key_reused")
        assert len(turns.requests) == 1


def test_a_turn_that_failed_is_not_asked_for_again(troubles):
    with serving(None) as turns:
        error = {"error": {"message": "no node", "code": "overloaded"}}
        turns.frames = [FRAMES[0], frame(1, error), frame(2, "[DONE]")]
        with pytest.raises(TurnError, match="no node"):
            list(stream(turns, troubles))
        assert len(turns.requests) == 1


def test_patience_ends(troubles, monkeypatch):
    moments = iter(range(0, 10_000, 10))
    monkeypatch.setattr(resume.time, "monotonic", lambda: next(moments))
    monkeypatch.setattr(resume.time, "sleep", lambda seconds: None)
    with serving((503, "service_unavailable")) as turns:
        with pytest.raises(TurnError, match="gave up"):
            list(stream(turns, troubles, patience_s=60))
        assert 2 <= len(turns.requests) <= 7


def test_a_turn_is_followed_from_its_beginning_and_from_a_cursor(troubles):
    with serving(None) as turns:
        server = Server(turns.url, "cm-key")
        assert text_of(server.follow("t")) == "".join(WORDS)
        assert text_of(server.follow("t", "t:0:3")) == "".join(WORDS[4:])


def test_a_whole_answer_is_asked_for_again_with_its_key(troubles):
    with serving((503, "overloaded"), None) as turns:
        turns.head, turns.frames = b'{"id": "c"}', []
        server = Server(turns.url, "cm-key", on_trouble=troubles.append)
        answer = server.call("POST", "/v1/chat/completions", {"messages": []})
        assert answer == {"id": "c"}
        keys = {request[2]["idempotency-key"] for request in turns.requests}
    assert len(keys) == 1
    assert troubles == [Trouble(503, "overloaded")]
