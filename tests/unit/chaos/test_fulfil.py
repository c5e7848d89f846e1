"""Each shape of request against a small server that speaks the public protocol, and cuts."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.chaos.clients import Crowd, Place, fulfil
from tests.chaos.verdict import Answer, Choice
from tests.chaos.wishes import SHAPES_BY_ENGINE, Wish, plan

WORDS = ["The ", "sea ", "is ", "deep."]
USAGE = {"prompt_tokens": 3, "completion_tokens": 4}
WANTED = Answer((Choice("".join(WORDS), "stop"),), 3, 4)


def frames(include_usage):
    """The events of the one turn that this server knows."""
    choices = [{"index": 0, "delta": {"content": word}, "finish_reason": None} for word in WORDS]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    data = [json.dumps({"choices": [one], "conversation_id": "c"}) for one in choices]
    if include_usage:
        data.append(json.dumps({"choices": [], "usage": USAGE}))
    return [f"id: {number}\ndata: {text}\n\n" for number, text in enumerate([*data, "[DONE]"])]


class Protocol(BaseHTTPRequestHandler):
    """Streams are cut after the second event when they begin with a POST."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append(body)
        if self.server.gate is not None:
            self.server.gate.wait()
        self.server.usage_asked = "stream_options" in body
        if body.get("background"):
            return self._json(202, {"id": "t", "object": "turn", "status": "running"})
        if not body.get("stream"):
            message = {"role": "assistant", "content": "".join(WORDS)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return self._json(200, {"choices": [choice], "usage": USAGE})
        return self._events(frames(self.server.usage_asked)[:2], whole=False)

    def do_GET(self):
        if not self.path.endswith("/events"):
            return self._json(200, {"id": "t", "status": "completed", "usage": USAGE})
        after = int(self.headers.get("last-event-id", -1))
        return self._events(frames(self.server.usage_asked)[after + 1 :], whole=True)

    def _json(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _events(self, events, whole):
        data = "".join(events).encode()
        self.send_response(200)
        self.send_header("x-turn-id", "t")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) + (b"0\r\n\r\n" if whole else b""))
        self.close_connection = True

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Protocol) as serving:
        serving.bodies, serving.gate, serving.usage_asked = [], None, False
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


def place(server):
    url = f"http://127.0.0.1:{server.server_port}"
    return Place(url, "", b"", dict.fromkeys(SHAPES_BY_ENGINE["torch"], "cm-key"))


@pytest.mark.parametrize("shape", ["stream", "stops", "logprobs", "whole", "background", "formats"])
def test_one_request_of_a_shape(server, shape):
    (wish,) = plan(1, 1, (shape,))
    outcome = fulfil(wish, place(server), time.monotonic)
    assert outcome.failure == ""
    assert outcome.answers == (WANTED,)
    cut = shape not in ("whole", "background")
    assert [trouble.status for trouble in outcome.troubles] == ([0] if cut else [])
    assert len(server.bodies) == 1
    assert server.bodies[0]["seed"] == wish.bodies[0]["seed"]


def test_a_conversation_goes_on_where_it_was(server):
    (wish,) = plan(1, 1, ("conversation",))
    outcome = fulfil(wish, place(server), time.monotonic)
    assert outcome.answers == (WANTED, WANTED)
    first, second = server.bodies
    assert "conversation_id" not in first
    assert second["conversation_id"] == "c"


def test_what_goes_wrong_is_an_outcome_and_no_exception(server):
    wish = Wish(0, "choices", ({"n": 0, "messages": []},))  # index 0 of no answer
    outcome = fulfil(wish, place(server), time.monotonic)
    assert outcome.answers == ()
    assert "IndexError" in outcome.failure


def test_a_crowd_has_every_wish_as_often_as_it_is_told(server):
    wishes = plan(1, 6, ("whole",))
    crowd = Crowd(wishes, place(server), 3, time.monotonic, rounds=2)
    crowd.start()
    assert crowd.join(30) == []
    assert sorted(one.number for one in crowd.outcomes) == sorted([*range(6), *range(6)])


def test_a_crowd_that_is_stopped_ends_what_it_has_begun_and_tells_who_hangs(server):
    server.gate = threading.Event()
    crowd = Crowd(plan(1, 6, ("whole",)), place(server), 2, time.monotonic)
    crowd.start()
    while len(server.bodies) < 2:
        time.sleep(0.005)
    crowd.stop()
    late = crowd.join(0)
    assert [one.failure for one in late] == ["has not ended"] * 2
    server.gate.set()
    assert crowd.join(30) == []
    assert len(crowd.outcomes) == 2
