"""One call at one end of a link: what it has to send, what came, and the credit of both. Pure.

HTTP/2 has the same in its streams (RFC 9113, section 5.2); here a message costs no system call, no
hand-over between threads and no wake-up of its own.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import grpc

from chatmesh.mesh.v1 import link_pb2
from mesh.chassis.link.framing import (
    FRAME_BYTES,
    MESSAGE_BYTES_MAX,
    PIECE_BYTES_MAX,
    WINDOW_BYTES,
    Metadata,
    bad_frame,
    end,
    metadata_of,
)

if TYPE_CHECKING:
    from mesh.chassis.link.mux import Mux


class Sink(Protocol):
    """Who hears of a call at one end."""

    def began(self, metadata: Metadata) -> None:
        """The server's initial metadata came."""

    def progressed(self) -> None:
        """There is something to read, or room to write."""

    def ended(self, ended: link_pb2.End) -> None:
        """The call is over, whoever ended it; nothing is heard of it after this."""


class _Nobody:
    def began(self, metadata: Metadata) -> None: ...
    def progressed(self) -> None: ...
    def ended(self, ended: link_pb2.End) -> None: ...


# Hears of calls that are over: they hold their owners no more, which hold them.
NOBODY = _Nobody()


class Flow:
    """One call at one end. `mux` sends what it queues and hands it what comes."""

    __slots__ = (
        "_credit",
        "_end",
        "_granted",
        "_is_half_closed",
        "_is_half_closing",
        "_is_sent",
        "_offset",
        "_out",
        "_partial_cost",
        "_parts",
        "_parts_bytes",
        "_returned",
        "head",
        "held_bytes",
        "id",
        "is_listed",
        "is_over",
        "is_peer_done",
        "messages",
        "mux",
        "queued_bytes",
        "sink",
    )

    def __init__(
        self, mux: "Mux", call_id: int, head: Callable[[link_pb2.Frame], int] | None
    ) -> None:
        self.mux, self.id, self.head = mux, call_id, head
        self.sink: Sink = NOBODY
        self.is_listed = self.is_over = self.is_peer_done = False
        # To send: whole messages, and how much of the first one has left.
        self._out: list[bytes] = []
        self._offset = self.queued_bytes = 0
        self._credit = WINDOW_BYTES
        self._is_half_closing = self._is_half_closed = self._is_sent = False
        self._end: link_pb2.End | None = None
        # Received: messages with the credit that their reading gives back and what they hold.
        # Short lists, both: an empty deque would hold more than all else here.
        self.messages: list[tuple[bytes, int, int]] = []
        self._parts: list[bytes] = []
        self._parts_bytes = self._partial_cost = self._returned = self.held_bytes = 0
        self._granted = WINDOW_BYTES

    # What the owner of the call does.

    def send(self, message: bytes) -> None:
        """Queues a message; nothing when the call is over."""
        if self.is_over or self._end is not None:
            return
        self._out.append(message)
        self.queued_bytes += len(message) + FRAME_BYTES
        self.mux.enlist(self)

    def half_close(self) -> None:
        """Says, behind what is queued, that no more messages come."""
        self._is_half_closing = True
        self.mux.enlist(self)

    def read(self) -> bytes | None:
        """The next message; None when none is there yet."""
        if not self.messages:
            return None
        message, cost, held = self.messages.pop(0)
        if not self.is_over:
            self.held_bytes -= held
            self.mux.held_bytes -= held
            if not self.messages and self._partial_cost:
                cost, self._partial_cost = cost + self._partial_cost, 0
            self._give_back(cost)
        return message

    def finish(self, ended: link_pb2.End) -> None:
        """Server: ends the call behind what is queued."""
        self._end = ended
        self.mux.enlist(self)

    def cancel(self) -> None:
        """Client: ends the call now; nothing when it is over."""
        if not self.is_over:
            self.mux.forget(self, tell_peer=self._is_sent)

    # What the mux does.

    @property
    def is_finished(self) -> bool:
        """Whether the server has ended the call, be the end on its way or not."""
        return self._end is not None

    @property
    def wants_to_send(self) -> bool:
        """Whether a frame would say anything now."""
        if self.is_over:
            return False
        if self.head is not None or self._owes_credit:
            return True
        if self._out:
            return self._credit > FRAME_BYTES
        return self._end is not None or (self._is_half_closing and not self._is_half_closed)

    def fill(self, frame: link_pb2.Frame) -> int:
        """Puts into a frame what may leave now; the number of bytes of it."""
        frame.call_id = self.id
        self._is_sent = True
        size = 0
        if self.head is not None:
            size = self.head(frame)
            self.head = None
        if self._owes_credit:
            frame.credit_bytes = self._returned
            self._granted += self._returned
            self._returned = 0
        if self._out and self._credit > FRAME_BYTES:
            size += self._fill_data(frame)
        if not self._out:
            if self._is_half_closing and not self._is_half_closed:
                frame.is_last = self._is_half_closed = True
            if self._end is not None:
                frame.end.CopyFrom(self._end)
                size += self._end.ByteSize()
                self.mux.forget(self, tell_peer=False)
        return size

    def _fill_data(self, frame: link_pb2.Frame) -> int:
        message, offset = self._out[0], self._offset
        room = min(PIECE_BYTES_MAX, self._credit - FRAME_BYTES)
        if len(message) - offset <= room:
            frame.data = message[offset:] if offset else message
            self._out.pop(0)
            self._offset = 0
            self.queued_bytes -= len(message) + FRAME_BYTES
            self.sink.progressed()
        else:
            frame.data = message[offset : offset + room]
            frame.has_more = True
            self._offset += room
        size = len(frame.data)
        self._credit -= size + FRAME_BYTES
        return size

    def receive(self, frame: link_pb2.Frame) -> None:
        """Takes what a frame of the peer says of messages and credit.

        Raises:
            MeshError: BAD_FRAME, the peer does not follow the contract.
        """
        self._credit += frame.credit_bytes
        if frame.credit_bytes and self._out:
            self.mux.enlist(self)
        if self._end is not None:  # nobody reads any more
            return
        if frame.HasField("initial_metadata"):
            self.sink.began(metadata_of(frame.initial_metadata))
        if frame.HasField("data"):
            if self.is_peer_done:
                raise bad_frame("a message after the last one")
            self._take(frame.data, frame.has_more)
        if frame.is_last:
            self.is_peer_done = True

    def _take(self, data: bytes, has_more: bool) -> None:
        cost = len(data) + FRAME_BYTES
        self._granted -= cost
        if self._granted < 0 or len(data) > PIECE_BYTES_MAX:
            raise bad_frame("more bytes than were granted")
        self.held_bytes += cost
        self.mux.held_bytes += cost
        self._partial_cost += cost
        if has_more or self._parts:
            self._parts.append(data)
            self._parts_bytes += len(data)
            if self._parts_bytes > MESSAGE_BYTES_MAX:
                self.fail(end(grpc.StatusCode.RESOURCE_EXHAUSTED, "A message is over 8 MiB."))
                return
        if not has_more:
            self._complete(data)
        elif not self.messages:  # its reader waits for the rest of it
            cost, self._partial_cost = self._partial_cost, 0
            self._give_back(cost)

    def _complete(self, data: bytes) -> None:
        held = len(data) + FRAME_BYTES
        if self._parts:
            held = self._parts_bytes + FRAME_BYTES * len(self._parts)
            data = b"".join(self._parts)
            self._parts, self._parts_bytes = [], 0
        self.messages.append((data, self._partial_cost, held))
        self._partial_cost = 0

    def _give_back(self, cost: int) -> None:
        self._returned += cost
        if self._owes_credit:
            self.mux.enlist(self)

    @property
    def _owes_credit(self) -> bool:
        return self._returned >= WINDOW_BYTES // 2 and not self.is_peer_done

    # What either does.

    def fail(self, ended: link_pb2.End) -> None:
        """Ends the call for a reason of this end: both owners hear it."""
        sink = self.sink
        if self.mux.is_server:
            self._drop()
            self.finish(ended)
        else:
            self.cancel()
        sink.ended(ended)

    def _drop(self) -> None:
        self.release()
        self.is_over = False  # its end is still to be told
        self.messages.clear()

    def release(self) -> None:
        """Forgets what is queued; whole messages that came can still be read."""
        self.is_over = True
        self._out.clear()
        self._parts, self._parts_bytes, self.queued_bytes = [], 0, 0
        self.mux.held_bytes -= self.held_bytes
        self.held_bytes = 0
        self.sink = NOBODY
