"""Prompt lookup: what followed the last time the same few tokens stood there.

After Saxena, "Prompt Lookup Decoding" (2023), with an index instead of a search: a token costs the
same however long prompt and answer are.
"""

from collections.abc import Sequence as Row

from inference_svc.engine.torch.sequence import Sequence

# Runs of so many tokens are looked up, the longer first: it is right more often.
GRAM_SIZES = (4, 2)
# Of a long prompt only the end is indexed: about 5 ms and 3 MB.
INDEXED_COUNT_MAX = 8192
# Token ids are below 2**24.
_ID_BITS = 24


class SuffixIndex:
    """Where each run of tokens last stood before the end."""

    def __init__(self, token_count: int) -> None:
        """Indexes from about the last INDEXED_COUNT_MAX of `token_count` tokens on."""
        self._after: tuple[dict[int, int], ...] = tuple({} for _ in GRAM_SIZES)
        self._indexed = max(1, token_count - INDEXED_COUNT_MAX)

    def extend(self, token_ids: Row[int]) -> None:
        """Indexes the tokens that came since the last call."""
        for end in range(self._indexed, len(token_ids)):
            # The run in front of `end`: what follows it begins at `end`. The run at the very end is
            # not indexed, since nothing follows it yet.
            for size, after in zip(GRAM_SIZES, self._after, strict=True):
                if end >= size:
                    after[_packed(token_ids[end - size : end])] = end
        self._indexed = max(self._indexed, len(token_ids))

    def follow(self, token_ids: Row[int], count: int) -> list[int]:
        """At most `count` tokens that followed an earlier run like the one at the end."""
        length = len(token_ids)
        for size, after in zip(GRAM_SIZES, self._after, strict=True):
            begin = after.get(_packed(token_ids[length - size :])) if length >= size else None
            if begin is not None:
                found = list(token_ids[begin : begin + count])
                while len(found) < count:  # the end was reached: the answer repeats itself
                    found += found[: count - len(found)]
                return found
        return []


def _packed(token_ids: Row[int]) -> int:
    packed = 0
    for token_id in token_ids:
        packed = packed << _ID_BITS | token_id
    return packed


class PromptLookup:
    """A `Source` without a model."""

    def __init__(self) -> None:
        self._indexes: dict[Sequence, SuffixIndex] = {}

    def guess(self, asks: Row[tuple[Sequence, int]]) -> list[list[int]]:
        """What followed the end of each sequence the last time."""
        drafts = []
        for sequence, count in asks:
            index = self._indexes.get(sequence)
            if index is None:
                index = self._indexes[sequence] = SuffixIndex(len(sequence.token_ids))
            index.extend(sequence.token_ids)
            drafts.append(index.follow(sequence.token_ids, count))
        return drafts

    def forget(self, sequence: Sequence) -> None:
        """Drops its index."""
        self._indexes.pop(sequence, None)

    def close(self) -> None:
        """Drops all indexes."""
        self._indexes.clear()
