"""A cache of encoded text that is bounded by its bytes and may be used from several threads."""

import hashlib
import secrets
import threading
from array import array
from collections import OrderedDict
from typing import NamedTuple

# Key, dictionary slot, tuple and array header of one entry, measured with sys.getsizeof.
ENTRY_BYTE_COUNT = 400


class Encoded(NamedTuple):
    """Token ids of a text, and how many of them belong to each of its chunks."""

    token_ids: "array[int]"
    chunk_token_counts: tuple[int, ...]

    @property
    def byte_count(self) -> int:
        """Memory the entry takes."""
        return (
            ENTRY_BYTE_COUNT
            + self.token_ids.itemsize * len(self.token_ids)
            + 8 * len(self.chunk_token_counts)
        )


class EncodedCache:
    """Least recently used entries leave first.

    Args:
        byte_count_max: memory of all entries; an entry larger than that is not kept.
    """

    def __init__(self, byte_count_max: int) -> None:
        self._byte_count_max = byte_count_max
        self._byte_count = 0
        self._entries: OrderedDict[bytes, Encoded] = OrderedDict()
        self._lock = threading.Lock()
        self._hash_key = secrets.token_bytes(32)

    @property
    def byte_count(self) -> int:
        """Memory of all entries."""
        return self._byte_count

    def key(self, chunks: list[str]) -> bytes:
        """The key of a text in chunks: a keyed digest, so that no text is kept."""
        digest = hashlib.blake2b(key=self._hash_key, digest_size=16)
        for chunk in chunks:
            # A lone surrogate (only a template can make one) must not break the lookup.
            data = chunk.encode("utf-8", "surrogatepass")
            digest.update(b"%d:" % len(data))
            digest.update(data)
        return digest.digest()

    def get(self, key: bytes) -> Encoded | None:
        """The entry, which becomes the most recently used."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def put(self, key: bytes, entry: Encoded) -> None:
        """Keeps an entry and drops the least recently used ones until all fit."""
        if entry.byte_count > self._byte_count_max:
            return
        with self._lock:
            old = self._entries.pop(key, None)
            self._entries[key] = entry
            self._byte_count += entry.byte_count - (old.byte_count if old else 0)
            while self._byte_count > self._byte_count_max:
                _, evicted = self._entries.popitem(last=False)
                self._byte_count -= evicted.byte_count
