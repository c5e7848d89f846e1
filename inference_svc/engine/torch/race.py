"""The only randomness there is: an exponential race whose noise is a hash of (seed, position, id).

Token t with weight w(t) gets the score w(t) / e(t), e(t) standard exponential; the highest score is
drawn, with probability w(t) over the sum of all weights (the Gumbel-max trick, Maddison et al.,
NeurIPS 2014, without its logarithm of w). Because a token keeps its own noise whatever the others
weigh, two distributions that differ little draw the same token most of the time: another CPU's
last bits seldom change an answer, and a draft model that draws with the same noise is accepted
often.

Only the likely tokens race one by one. All others race as one entrant with their summed weight, and
when that wins one of them is taken by the inverse of their cumulative distribution: still exact,
and a vocabulary of 128,000 needs noise for a few dozen ids.
"""

import hashlib

import numpy as np
import numpy.typing as npt

Weights = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Key = tuple[int, float]  # see `keys_of`

# Tokens of at least this weight, the likeliest being 1, race one by one.
HEAD_WEIGHT_MIN = np.float32(2.0**-7)
# The tail is summed in blocks, so that only one block is searched.
BLOCK_SIZE = 128
# SplitMix64 (Steele et al., OOPSLA 2014): the increment and the two multipliers of its mixer.
_GAMMA, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = 2**64 - 1


def keys_of(seed: int, position: int) -> Key:
    """The key of a position's noise, 64 bits, and a uniform number in [0, 1) for its tail.

    Both are of BLAKE2b-128 over the position (u64), keyed by the seed (u64).
    """
    key = (seed & _MASK).to_bytes(8, "little")
    digest = hashlib.blake2b(position.to_bytes(8, "little"), digest_size=16, key=key).digest()
    return (
        int.from_bytes(digest[:8], "little"),
        (int.from_bytes(digest[8:], "little") >> 11) * 2.0**-53,
    )


def exponentials(keys: Keys, counters: Keys) -> npt.NDArray[np.float64]:
    """Standard exponential numbers, one for each (key, counter): -log of 53 bits of SplitMix64."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is what is wanted
        state = keys + counters * np.uint64(_GAMMA)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(_MIX_1)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(_MIX_2)
        state ^= state >> np.uint64(31)
    uniform = ((state >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    noise: npt.NDArray[np.float64] = -np.log(uniform)
    return noise


def race(weights: Weights, draws: list[Key], ids: Ids | None = None) -> list[int]:
    """Draws a token from each row; a row's result does not depend on the other rows.

    Args:
        weights: [rows, tokens], C-contiguous, each row's largest is 1; overwritten.
        draws: `keys_of` each row.
        ids: the ids that the columns stand for; None: the column is the id.

    Returns:
        The drawn ids.
    """
    keys = np.array([key for key, _ in draws], np.uint64)
    flat = weights.reshape(-1)
    likely = np.flatnonzero(flat >= HEAD_WEIGHT_MIN)
    row, column = np.divmod(likely, weights.shape[1])
    head = flat[likely].astype(np.float64)
    flat[likely] = 0
    blocks = np.add.reduceat(weights, np.arange(0, weights.shape[1], BLOCK_SIZE), axis=1)
    mass = np.cumsum(blocks, axis=1, dtype=np.float64)
    # Counter 0 is the tail's, id + 1 a token's.
    counters = np.zeros(likely.size + keys.size, np.uint64)
    counters[: likely.size] = (column if ids is None else ids[column]) + 1
    noise = exponentials(np.concatenate([keys[row], keys]), counters)
    scores = head / noise[: likely.size]
    rows = np.arange(keys.size)
    best = np.maximum.reduceat(scores, np.searchsorted(row, rows))  # each has its likeliest
    winners = np.flatnonzero(scores == best[row])
    columns = column[winners[np.searchsorted(row[winners], rows)]]
    tail_scores = mass[:, -1] / noise[likely.size :]
    for index in np.flatnonzero(tail_scores > best):
        columns[index] = _from_tail(weights[index], mass[index], draws[index][1])
    return [int(token_id) for token_id in (columns if ids is None else ids[columns])]


def _from_tail(weights: Weights, mass: npt.NDArray[np.float64], uniform: float) -> int:
    """The column at `uniform` of the cumulative distribution; `mass` is it at the blocks' ends."""
    wanted = uniform * mass[-1]
    block = int(np.searchsorted(mass, wanted, side="right"))
    begin = block * BLOCK_SIZE
    within = np.cumsum(weights[begin : begin + BLOCK_SIZE], dtype=np.float64)
    wanted -= mass[block - 1] if block else 0.0
    # The sums of a block differ in the last bits: not beyond its last token that has weight.
    last = int(np.searchsorted(within, within[-1], side="left"))
    return begin + min(int(np.searchsorted(within, wanted, side="right")), last)
