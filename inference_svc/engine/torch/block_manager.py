"""Who owns which block of the paged KV cache, and which blocks hold a prefix worth keeping.

Pure bookkeeping: no torch, no clock. A block is in exactly one state:

    in use (references > 0) ──release──> free ──────────> allocated again
                                     └─> cached, free ──> adopted by a prompt with the same prefix
                                                     └──> evicted, the least recently used first

A full block may carry a chained hash of all tokens up to its end and of the tenant's salt (as in
vLLM's automatic prefix caching); a prompt adopts the longest run of its own hashes.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice

from inference_svc.engine.protocol import BLOCK_TOKEN_COUNT

PREFIX_HASH_REPORT_MAX = 64


def root_hash(cache_salt: str) -> bytes:
    """The hash before the first block: the tenant's salt. 16 bytes."""
    return hashlib.blake2b(cache_salt.encode(), digest_size=16).digest()


def chained_hash(parent: bytes, token_ids: Iterable[int]) -> bytes:
    """The hash of a block behind `parent`: BLAKE2b-128 over it and the ids as u32. 16 bytes."""
    return hashlib.blake2b(parent + array("I", token_ids).tobytes(), digest_size=16).digest()


def prefix_hashes(token_ids: Sequence[int], cache_salt: str) -> list[bytes]:
    """Hashes of the full blocks of `token_ids`; none without a salt, which shares nothing."""
    if not cache_salt:
        return []
    parent, hashes = root_hash(cache_salt), []
    for begin in range(0, len(token_ids) - BLOCK_TOKEN_COUNT + 1, BLOCK_TOKEN_COUNT):
        parent = chained_hash(parent, token_ids[begin : begin + BLOCK_TOKEN_COUNT])
        hashes.append(parent)
    return hashes


class BlockManager:
    """Owns block numbers [0, block_count).

    Attributes:
        evicted_total: cached blocks whose content was given up for a new owner.
    """

    def __init__(self, block_count: int) -> None:
        self.block_count = block_count
        self.evicted_total = 0
        self._references = [0] * block_count
        self._plain = list(range(block_count - 1, -1, -1))  # free, without content
        self._cached: OrderedDict[int, None] = OrderedDict()  # free with content, oldest first
        self._hash_of: dict[int, bytes] = {}
        # The most recently used hash last: what WatchLoad reports.
        self._block_of: OrderedDict[bytes, int] = OrderedDict()
        self._recent: tuple[int, ...] | None = ()  # None: to be made again

    @property
    def free_count(self) -> int:
        """Blocks that nobody uses, those with cached content included."""
        return len(self._plain) + len(self._cached)

    def match(self, hashes: Sequence[bytes]) -> int:
        """How many of the leading hashes are cached."""
        for count, digest in enumerate(hashes):
            if digest not in self._block_of:
                return count
        return len(hashes)

    def adopt(self, hashes: Sequence[bytes]) -> list[int]:
        """Takes references on the cached blocks of `hashes`, all of which must match."""
        blocks = []
        for digest in hashes:
            block = self._block_of[digest]
            self._block_of.move_to_end(digest)
            if self._references[block] == 0:
                del self._cached[block]
            self._references[block] += 1
            blocks.append(block)
        self._recent = None
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Takes one more reference on blocks that are in use."""
        for block in blocks:
            if self._references[block] <= 0:
                raise AssertionError(f"block {block} is free and cannot be shared")
            self._references[block] += 1

    def allocate(self, count: int) -> list[int] | None:
        """Takes `count` free blocks, or none at all when there are fewer."""
        if count > self.free_count:
            return None
        return [self._take() for _ in range(count)]

    def _take(self) -> int:
        if self._plain:
            block = self._plain.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            del self._block_of[self._hash_of.pop(block)]
            self.evicted_total += 1
            self._recent = None
        self._references[block] = 1
        return block

    def register(self, block: int, digest: bytes) -> None:
        """Makes a full block in use findable; a hash that is known keeps its first block."""
        if digest in self._block_of or block in self._hash_of:
            return
        self._hash_of[block] = digest
        self._block_of[digest] = block
        self._recent = None

    def owned_alone(self, blocks: Iterable[int]) -> list[int]:
        """Those of `blocks` that have a single owner."""
        return [block for block in blocks if self._references[block] == 1]

    def release(self, blocks: Sequence[int]) -> None:
        """Gives references back; the end of a prefix is evicted before its beginning."""
        for block in reversed(blocks):
            if self._references[block] <= 0:
                raise AssertionError(f"block {block} is free already")
            self._references[block] -= 1
            if self._references[block] > 0:
                continue
            if block in self._hash_of:
                self._cached[block] = None
            else:
                self._plain.append(block)

    def recent_prefixes(self) -> tuple[int, ...]:
        """First 64 bits of the cached hashes, the most recently used first, at most 64."""
        if self._recent is None:
            recent = islice(reversed(self._block_of), PREFIX_HASH_REPORT_MAX)
            self._recent = tuple(int.from_bytes(digest[:8], "little") for digest in recent)
        return self._recent
