"""Metrics of links: how many are open, and how many steps of calls a message carries."""

from prometheus_client import Counter, Gauge

_messages = Counter("chatmesh_link_messages", "Messages of links", ["end", "direction"])
_frames = Counter("chatmesh_link_frames", "Frames in them: steps of calls", ["end", "direction"])
links_open = Gauge("chatmesh_link_open", "Links on which calls may begin", ["service"])
calls_begun = Counter("chatmesh_link_calls", "Outgoing calls by way: link, plain", ["way"])


class Traffic:
    """Counts the messages of links at one end ("client", "server"), and the frames in them."""

    def __init__(self, end: str) -> None:
        self._children = {
            way: (_messages.labels(end, way), _frames.labels(end, way)) for way in ("in", "out")
        }

    def count(self, direction: str, frame_count: int) -> None:
        """Counts a message; direction: "in" or "out"."""
        messages, frames = self._children[direction]
        messages.inc()
        frames.inc(frame_count)
