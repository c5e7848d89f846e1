"""The calls of one link at one end: who sends next, whose frame this is, what is too much. Pure.

What gathered while the last batch was on its way leaves as the next one. Within a batch each call
that has something to send puts in one frame, then each that has more puts in another: a large
message does not hold up small ones.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import grpc

from chatmesh.mesh.v1 import link_pb2
from mesh.chassis.link.flow import Flow, Sink
from mesh.chassis.link.framing import (
    BATCH_BYTES_MAX,
    CALL_COUNT_MAX,
    FRAME_BYTES,
    HELD_BYTES_MAX,
    bad_frame,
    end,
    link_full,
)

FULL = end(grpc.StatusCode.RESOURCE_EXHAUSTED, "The link holds too much that nobody reads.")
REFUSED = end(grpc.StatusCode.UNAVAILABLE, "The server drains; it did not begin the call.")
REFUSED.is_refused = True
# In one batch: some 100 KiB.
REFUSED_COUNT_MAX = 1000


class Mux:
    """One end of a link. `on_ready` is called when there is something to send."""

    is_server = False

    def __init__(self, on_ready: Callable[[], None]) -> None:
        self.flows: dict[int, Flow] = {}
        self.held_bytes = 0
        self.last_id = 0
        # No more calls begin: the end of the last one is something to do.
        self.is_leaving = False
        self._on_ready = on_ready
        self._ready: deque[Flow] = deque()
        self._cancelled: list[int] = []

    def enlist(self, flow: Flow) -> None:
        """Notes that a flow may have something to send."""
        if not flow.is_listed:
            flow.is_listed = True
            self._ready.append(flow)
            self._on_ready()

    def forget(self, flow: Flow, tell_peer: bool) -> None:
        """Takes a call out of the table; with `tell_peer` a cancel is sent."""
        self.flows.pop(flow.id, None)
        flow.release()
        if tell_peer:
            self._cancelled.append(flow.id)
        if tell_peer or (self.is_leaving and not self.flows):
            self._on_ready()

    def fill(self, frames: Any) -> None:
        """Appends the frames of the next batch to a repeated field of Frame."""
        for call_id in self._cancelled:
            frames.add(call_id=call_id, cancel=True)
        self._cancelled.clear()
        size = 0
        while self._ready and size < BATCH_BYTES_MAX:
            flow = self._ready.popleft()
            flow.is_listed = False
            if flow.wants_to_send:
                size += flow.fill(frames.add()) + FRAME_BYTES
                if flow.wants_to_send:
                    self.enlist(flow)

    def receive(self, frame: link_pb2.Frame) -> None:
        """Takes a frame of the peer.

        Raises:
            MeshError: BAD_FRAME or LINK_FULL; the link must end.
        """
        flow = self.flows.get(frame.call_id)
        if flow is None:
            # A call that ended here while the peer still spoke of it.
            if not 0 < frame.call_id <= self.last_id or frame.HasField("begin"):
                raise bad_frame(f"call {frame.call_id} is unknown")
            return
        flow.receive(frame)
        if self.held_bytes > HELD_BYTES_MAX and not flow.is_over:
            flow.fail(FULL)
        if flow.is_over or not self._conclude(flow, frame):
            return
        flow.sink.progressed()

    def _conclude(self, flow: Flow, frame: link_pb2.Frame) -> bool:
        """Whether the call goes on after this frame."""
        raise NotImplementedError

    def close(self, ended: link_pb2.End) -> None:
        """The link is over: so is every call."""
        for flow in list(self.flows.values()):
            self._end(flow, ended)

    def _end(self, flow: Flow, ended: link_pb2.End) -> None:
        sink = flow.sink
        self.forget(flow, tell_peer=False)
        sink.ended(ended)


class ClientMux(Mux):
    """The end that begins calls."""

    def begin(self, sink: Sink, head: Callable[[link_pb2.Frame], int]) -> Flow:
        """A new call; `head` writes its beginning into its first frame."""
        self.last_id += 1
        flow = self.flows[self.last_id] = Flow(self, self.last_id, head)
        flow.sink = sink
        self.enlist(flow)
        return flow

    def receive(self, frame: link_pb2.Frame) -> None:
        """See Mux; a server neither begins nor cancels calls."""
        if frame.cancel or frame.HasField("begin"):
            raise bad_frame("a server begins and cancels no calls")
        super().receive(frame)

    def _conclude(self, flow: Flow, frame: link_pb2.Frame) -> bool:
        if not frame.HasField("end"):
            return True
        self._end(flow, frame.end)
        return False


class ServerMux(Mux):
    """The end that serves calls; `on_begin` gives a new one its sink."""

    is_server = True

    def __init__(
        self, on_ready: Callable[[], None], on_begin: Callable[[Flow, link_pb2.Begin], Sink | None]
    ) -> None:
        super().__init__(on_ready)
        self._on_begin = on_begin
        self.refused: list[int] = []

    def receive(self, frame: link_pb2.Frame) -> None:
        """See Mux; also begins calls."""
        if frame.HasField("end") or frame.HasField("initial_metadata"):
            raise bad_frame("a client sends neither ends nor initial metadata")
        if not frame.HasField("begin"):
            super().receive(frame)
            return
        if frame.call_id <= self.last_id:
            raise bad_frame(f"call {frame.call_id} begins a second time")
        self.last_id = frame.call_id
        if len(self.flows) + len(self.refused) >= CALL_COUNT_MAX:
            raise link_full()
        flow = Flow(self, frame.call_id, None)
        sink = self._on_begin(flow, frame.begin)
        if sink is None:
            self.refused.append(flow.id)
            self._on_ready()
            return
        flow.sink = sink
        self.flows[flow.id] = flow
        super().receive(frame)

    def fill(self, frames: Any) -> None:
        """See Mux; refusals too."""
        refused, self.refused = self.refused[:REFUSED_COUNT_MAX], self.refused[REFUSED_COUNT_MAX:]
        for call_id in refused:
            frames.add(call_id=call_id).end.CopyFrom(REFUSED)
        super().fill(frames)

    def _conclude(self, flow: Flow, frame: link_pb2.Frame) -> bool:
        if not frame.cancel:
            return True
        self._end(flow, end(grpc.StatusCode.CANCELLED, "The caller left."))
        return False
