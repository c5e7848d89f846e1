"""The cache stays within its bytes and forgets the least recently used."""

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer_svc.cache import ENTRY_BYTE_COUNT, Encoded, EncodedCache


def entry(token_count: int) -> Encoded:
    return Encoded(array("I", range(token_count)), (token_count,))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3000))))
def test_it_never_passes_its_bytes(puts: list[tuple[int, int]]) -> None:
    cache = EncodedCache(10_000)
    kept: dict[int, Encoded] = {}
    for key, size in puts:
        cache.put(cache.key([str(key)]), entry(size))
        assert cache.byte_count <= 10_000
    for number in range(10):
        found = cache.get(cache.key([str(number)]))
        if found:
            kept[number] = found
    assert sum(e.byte_count for e in kept.values()) == cache.byte_count


def test_the_least_recently_used_leaves_first() -> None:
    cache = EncodedCache(3 * (ENTRY_BYTE_COUNT + 100))
    keys = [cache.key([name]) for name in "abcd"]
    for key in keys[:3]:
        cache.put(key, entry(10))
    assert cache.get(keys[0])
    cache.put(keys[3], entry(10))
    assert [bool(cache.get(key)) for key in keys] == [True, False, True, True]


def test_keys_tell_chunks_apart() -> None:
    cache = EncodedCache(1000)
    assert cache.key(["ab", "c"]) != cache.key(["a", "bc"]) != cache.key(["abc"])
    assert cache.key(["ab"]) == cache.key(["ab"])
    assert cache.key(["\ud800"])  # a template's lone surrogate is no crash
