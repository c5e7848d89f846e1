"""What was found in texts that were judged before, by digest: of a long chat costs what is new.

An entry is an account's own: how soon an answer comes must not tell what others have sent.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, TypeVar

from prometheus_client import Counter

T = TypeVar("T")

# An entry is some 200 bytes, with many findings some thousand.
ENTRY_COUNT_MAX = 1 << 16
# Texts in which more was found are judged again.
FINDING_COUNT_MAX = 32
_DIGEST_SIZE = 20

_lookups = Counter(
    "chatmesh_safety_memory_lookups_total",
    "Texts of prompts that were asked for in the memory of what was judged, by outcome.",
    ["what", "outcome"],
)


def digest(*words: str) -> bytes:
    """The key of a text: of `words`, each by itself."""
    total = hashlib.blake2b(digest_size=_DIGEST_SIZE)
    for word in words:
        data = word.encode()
        total.update(len(data).to_bytes(8))
        total.update(data)
    return total.digest()


class Memory(Generic[T]):
    """Findings by key, the latest used; bounded.

    Args:
        what: for metrics.
        entry_count_max: beyond it the entry that was not used for longest goes.
    """

    def __init__(self, what: str, entry_count_max: int = ENTRY_COUNT_MAX) -> None:
        self._entry_count_max = entry_count_max
        self._entries: OrderedDict[bytes, Sequence[T]] = OrderedDict()
        self._known, self._new = (_lookups.labels(what, one) for one in ("known", "new"))

    def get(self, key: bytes) -> Sequence[T] | None:
        """What was found in the text of `key`; None: it is not known."""
        found = self._entries.get(key)
        if found is None:
            self._new.inc()
            return None
        self._known.inc()
        self._entries.move_to_end(key)
        return found

    def put(self, key: bytes, found: Sequence[T]) -> None:
        """Remembers what was found in the text of `key`."""
        if len(found) > FINDING_COUNT_MAX:
            return
        self._entries[key] = tuple(found)
        self._entries.move_to_end(key)
        while len(self._entries) > self._entry_count_max:
            self._entries.popitem(last=False)
