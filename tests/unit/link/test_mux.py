"""Both ends of a link without a wire: order, wholeness, credit, fairness, bad peers."""

from collections import deque

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatmesh.mesh.v1 import link_pb2
from mesh.chassis.errors import MeshError
from mesh.chassis.link import framing, mux
from mesh.chassis.link.framing import FRAME_BYTES, PIECE_BYTES_MAX, WINDOW_BYTES, end

OK = link_pb2.End()


class End:
    """One end of one call, and what it saw."""

    def __init__(self):
        self.flow, self.seen, self.end = None, [], None

    def began(self, metadata):
        pass

    def progressed(self):
        pass

    def ended(self, ended):
        assert self.end is None, "a call ends once"
        self.end = ended

    def read_all(self):
        while (message := self.flow.read()) is not None:
            self.seen.append(message)


class Pair:
    """A client's mux and a server's; batches wait between them until they are delivered."""

    def __init__(self):
        self.client = mux.ClientMux(lambda: None)
        self.server = mux.ServerMux(lambda: None, self._begin)
        self.calls, self.served = [], {}
        self.to_server, self.to_client = deque(), deque()

    def _begin(self, flow, begin):
        served = self.served[begin.method] = End()
        served.flow = flow
        return served

    def begin(self):
        call, name = End(), str(len(self.calls))

        def head(frame):
            frame.begin.method = name
            return 1

        call.flow = self.client.begin(call, head)
        self.calls.append(call)
        return call

    def write(self):
        """Each end writes one batch."""
        for end_, queue in ((self.client, self.to_server), (self.server, self.to_client)):
            batch = link_pb2.OpenRequest()
            end_.fill(batch.frames)
            if batch.frames:
                queue.append(batch.SerializeToString())

    def deliver(self):
        """Each end reads one batch."""
        for queue, end_ in ((self.to_server, self.server), (self.to_client, self.client)):
            if queue:
                for frame in link_pb2.OpenRequest.FromString(queue.popleft()).frames:
                    end_.receive(frame)

    def settle(self):
        """Until nothing moves any more, all readers reading."""
        while True:
            for each in (*self.calls, *self.served.values()):
                each.read_all()
            self.write()
            if not self.to_server and not self.to_client:
                return
            while self.to_server or self.to_client:
                self.deliver()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["begin", "ask", "answer", "read", "read", "write", "deliver", "end", "cancel"]
        ),
        st.integers(0, 5),
        st.sampled_from([0, 1, 100, PIECE_BYTES_MAX, PIECE_BYTES_MAX + 1, 3 * WINDOW_BYTES]),
    ),
    max_size=120,
)


class Story:
    """What was done to a pair, and so what must have been seen."""

    def __init__(self):
        self.pair = Pair()
        self.asked, self.answered = {}, {}
        self.cancelled, self.finished = set(), set()

    def step(self, number, step, which, size):
        if step in ("begin", "write", "deliver"):
            getattr(self.pair, step)()
        elif self.pair.calls:
            name = which % len(self.pair.calls)
            message = number.to_bytes(2) * (size // 2) + b"." * (size % 2)
            served = self.pair.served.get(str(name))
            getattr(self, step)(name, self.pair.calls[name], served, message)

    def ask(self, name, call, served, message):
        if call.end is None and name not in self.cancelled:
            call.flow.send(message)
            self.asked.setdefault(name, []).append(message)

    def cancel(self, name, call, served, message):
        call.flow.cancel()
        self.cancelled.add(name)

    def read(self, name, call, served, message):
        for each in (call, served):
            if each:
                each.read_all()

    def answer(self, name, call, served, message):
        if served and served.end is None and name not in self.finished:
            served.flow.send(message)
            self.answered.setdefault(name, []).append(message)

    def end(self, name, call, served, message):
        if served and served.end is None and name not in self.finished:
            served.flow.finish(OK)
            self.finished.add(name)

    def check(self, name, call):
        got = self.pair.served.get(str(name), End()).seen
        sent, answered = self.asked.get(name, []), self.answered.get(name, [])
        assert got == sent[: len(got)]
        assert call.seen == answered[: len(call.seen)]
        if name not in self.cancelled:
            assert got == sent or name in self.finished
            assert call.seen == answered
            assert (call.end is not None) == (name in self.finished)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_whatever_happens_calls_see_their_messages_in_order_whole_and_once(steps):
    story = Story()
    pair = story.pair
    for number, step in enumerate(steps):
        story.step(number, *step)
        check_credit(pair)
    pair.settle()
    check_credit(pair)
    for name, call in enumerate(pair.calls):
        story.check(name, call)
        if name not in story.finished:
            call.flow.cancel()
    pair.settle()
    for side in (pair.client, pair.server):
        assert not side.flows
        assert side.held_bytes == 0


def check_credit(pair):
    for side in (pair.client, pair.server):
        for flow in side.flows.values():
            assert 0 <= flow._granted <= WINDOW_BYTES
            assert flow._credit >= 0
            assert flow.queued_bytes >= 0
            unread = sum(held for _, _, held in flow.messages) + flow._parts_bytes
            assert unread <= flow.held_bytes


def test_a_batch_is_shared_among_the_calls():
    pair = Pair()
    large, *small = [pair.begin() for _ in range(4)]
    large.flow.send(b"x" * (2 * PIECE_BYTES_MAX))
    for each in small:
        each.flow.send(b"y")
    batch = link_pb2.OpenRequest()
    pair.client.fill(batch.frames)
    order = [(frame.call_id, len(frame.data), frame.has_more) for frame in batch.frames]
    assert order[:4] == [(1, PIECE_BYTES_MAX, True), (2, 1, False), (3, 1, False), (4, 1, False)]
    # What its credit does not cover waits for more.
    assert order[4:] == [(1, PIECE_BYTES_MAX - 2 * FRAME_BYTES, True)]


def test_a_batch_has_an_end():
    pair = Pair()
    for _ in range(64):
        pair.begin().flow.send(b"x" * PIECE_BYTES_MAX)
    batch = link_pb2.OpenRequest()
    pair.client.fill(batch.frames)
    assert len(batch.frames) <= framing.BATCH_BYTES_MAX // PIECE_BYTES_MAX
    pair.settle()
    assert all(len(served.seen) == 1 for served in pair.served.values())


def test_a_call_cancelled_before_it_left_is_never_told():
    pair = Pair()
    pair.begin().flow.cancel()
    batch = link_pb2.OpenRequest()
    pair.client.fill(batch.frames)
    assert not batch.frames


def test_the_end_of_a_link_ends_its_calls():
    pair = Pair()
    calls = [pair.begin() for _ in range(3)]
    pair.client.close(end(grpc.StatusCode.UNAVAILABLE, "gone"))
    assert [call.end.message for call in calls] == ["gone"] * 3
    assert not pair.client.flows


def frame(**fields):
    return link_pb2.Frame(**fields)


def receive(end_, frames):
    for each in frames:
        end_.receive(each)


BEGIN = link_pb2.Begin(method="a")


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([frame(call_id=1, data=b"x")], "BAD_FRAME"),
        ([frame(call_id=0, begin=BEGIN)], "BAD_FRAME"),
        ([frame(call_id=1, begin=BEGIN), frame(call_id=1, begin=BEGIN)], "BAD_FRAME"),
        ([frame(call_id=2, begin=BEGIN), frame(call_id=1, begin=BEGIN)], "BAD_FRAME"),
        ([frame(call_id=1, begin=BEGIN), frame(call_id=7, credit_bytes=1)], "BAD_FRAME"),
        ([frame(call_id=1, begin=BEGIN, end=OK)], "BAD_FRAME"),
        ([frame(call_id=1, begin=BEGIN, is_last=True), frame(call_id=1, data=b"")], "BAD_FRAME"),
        (
            [frame(call_id=1, begin=BEGIN)] + [frame(call_id=1, data=b"x" * 32000)] * 3,
            "BAD_FRAME",
        ),
        ([frame(call_id=1, begin=BEGIN)] + [frame(call_id=1, data=b"")] * 3000, "BAD_FRAME"),
        ([frame(call_id=1, begin=BEGIN, data=b"x" * (PIECE_BYTES_MAX + 1))], "BAD_FRAME"),
        (
            [frame(call_id=each, begin=BEGIN) for each in range(1, framing.CALL_COUNT_MAX + 2)],
            "LINK_FULL",
        ),
    ],
)
def test_a_client_that_breaks_the_contract_is_found_out(frames, reason):
    pair = Pair()
    with pytest.raises(MeshError) as caught:
        receive(pair.server, frames)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "bad",
    [
        frame(call_id=2, data=b"x"),
        frame(call_id=1, begin=BEGIN),
        frame(call_id=1, cancel=True),
        frame(call_id=0),
    ],
)
def test_a_server_that_breaks_the_contract_is_found_out(bad):
    pair = Pair()
    pair.begin()
    with pytest.raises(MeshError):
        pair.client.receive(bad)


def test_frames_of_calls_that_are_over_are_late_not_bad():
    pair = Pair()
    call = pair.begin()
    pair.write()
    pair.deliver()
    pair.served["0"].flow.send(b"on its way")
    call.flow.cancel()
    pair.settle()
    assert call.seen == []
    assert not pair.server.flows


def test_a_message_over_the_limit_ends_its_call_only():
    pair = Pair()
    first, second = pair.begin(), pair.begin()
    first.flow.send(b"x" * (framing.MESSAGE_BYTES_MAX + 1))
    second.flow.send(b"y")
    pair.settle()
    assert framing.code_of(first.end) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert pair.served["1"].seen == [b"y"]


def test_a_link_that_nobody_reads_holds_a_bounded_amount(monkeypatch):
    monkeypatch.setattr(mux, "HELD_BYTES_MAX", 4 * WINDOW_BYTES)
    pair = Pair()
    for _ in range(8):
        pair.begin().flow.send(b"x" * (PIECE_BYTES_MAX - FRAME_BYTES) * 2)
    while pair.client._ready:
        pair.write()
        pair.deliver()
        assert pair.server.held_bytes <= 5 * WINDOW_BYTES
    ends = [call.end for call in pair.calls if call.end is not None]
    pair.settle()
    full = [call.end for call in pair.calls if call.end is not None]
    assert {framing.code_of(each) for each in full} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert len(ends) < 8


def test_a_draining_server_refuses_what_it_has_not_begun():
    pair = Pair()
    pair.server._on_begin = lambda flow, begin: None
    call = pair.begin()
    call.flow.send(b"x")
    pair.settle()
    assert call.end.is_refused
    assert not pair.server.flows
