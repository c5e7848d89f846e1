"""Instances that fail nearly every call get none for a while. Pure.

What OUTLIER_DETECTION of mesh/control/render.py asks of xDS clients, for calls that their balancer
does not see because they travel on a link: failure percentage, as Envoy defines it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

INTERVAL_S = 2.0
CALL_COUNT_MIN = 20
HOST_COUNT_MIN = 2
FAILED_FRACTION_MIN = 0.9
EJECTION_S = 5.0
EJECTION_S_MAX = 30.0


@dataclass(slots=True)
class _Host:
    call_count: int = 0
    failed_count: int = 0
    ejected_until: float = 0.0
    # Longer each time; shorter again with every interval in which it did well.
    ejection_count: int = 0


class Outliers:
    """Counts the ends of calls by instance; times in seconds of any one clock."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Host] = {}
        self._interval_end = self._now = 0.0
        self._some_ejected = False

    def note(self, name: str, is_ok: bool, now: float) -> None:
        """A call to an instance ended."""
        self._now = now
        if now >= self._interval_end:
            self._judge()
            self._interval_end = now + INTERVAL_S
        host = self._hosts.setdefault(name, _Host())
        host.call_count += 1
        host.failed_count += not is_ok

    def usable(self, names: Sequence[str]) -> Sequence[str]:
        """Those of `names` that may be called; at least half of them."""
        if not self._some_ejected:
            return names
        out = [name for name in names if self._is_ejected(name)]
        return [name for name in names if name not in out[: len(names) // 2]]

    def _is_ejected(self, name: str) -> bool:
        host = self._hosts.get(name)
        return host is not None and host.ejected_until > self._now

    def _judge(self) -> None:
        judged = [host for host in self._hosts.values() if host.call_count >= CALL_COUNT_MIN]
        for host in judged if len(judged) >= HOST_COUNT_MIN else ():
            if host.failed_count < FAILED_FRACTION_MIN * host.call_count:
                host.ejection_count = max(0, host.ejection_count - 1)
            else:
                host.ejection_count += 1
                duration_s = min(EJECTION_S * host.ejection_count, EJECTION_S_MAX)
                host.ejected_until = self._now + duration_s
        # An instance that was not called at all is gone, or another by its return.
        self._hosts = {
            name: host
            for name, host in self._hosts.items()
            if host.call_count or host.ejected_until > self._now
        }
        self._some_ejected = any(host.ejected_until > self._now for host in self._hosts.values())
        for host in self._hosts.values():
            host.call_count = host.failed_count = 0
