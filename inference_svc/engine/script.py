"""The text of the simulated engine: a fixed script in the model's own tokens, read from a place
that the prompt and the seed choose. A token is a function of prompt ids, seed and position.
"""

import hashlib
from array import array
from collections.abc import Iterable, Sequence

from inference_svc.engine.vocabulary import Vocabulary

# Sentences of our own; a few letters are two bytes long, so that a token may be half of one.
_SENTENCES = (
    "The river runs past the old mill and the garden behind it.",
    "A small boat waits at the bridge, and nobody knows whose it is.",
    "In spring the children count the birds that come back.",
    "Somebody wrote a long letter, folded it twice, and kept it.",
    "The baker opens at six; the café across the street opens at seven.",
    "Rain is good for the field, less good for the roof.",
    "Two friends walk to the market and talk about the price of apples.",
    "The train was late, so the whole station learned the song.",
    "Most answers are shorter than the questions that led to them.",
    "Under the stairs there is a box with naïve drawings of the sea.",
    "The clock in the tower is right twice a day, and proud of it.",
    "When the lamp went out, the room was larger than before.",
)
SCRIPT_SENTENCE_COUNT = 512


def make_script(vocabulary: Vocabulary) -> list[int]:
    """A few thousand token ids of plain sentences, spelt with the longest tokens that fit."""
    spell = _speller(vocabulary)
    ids: list[int] = []
    for number in range(SCRIPT_SENTENCE_COUNT):
        digest = hashlib.blake2b(number.to_bytes(4, "little"), digest_size=4).digest()
        sentence = _SENTENCES[int.from_bytes(digest, "little") % len(_SENTENCES)]
        ids += spell((" " if number else "") + sentence)
    return ids


def _speller(vocabulary: Vocabulary) -> "_Speller":
    return _Speller(
        {
            vocabulary.token_bytes(token_id): token_id
            for token_id in range(vocabulary.size)
            if vocabulary.token_bytes(token_id)
        }
    )


class _Speller:
    """Greedy longest-match: any ids that decode to the text will do here, merges do not matter."""

    def __init__(self, id_of: dict[bytes, int]) -> None:
        self._id_of = id_of
        self._longest = max(map(len, id_of), default=0)

    def __call__(self, text: str) -> list[int]:
        data, ids, at = text.encode(), [], 0
        while at < len(data):
            for end in range(min(len(data), at + self._longest), at, -1):
                if (token_id := self._id_of.get(data[at:end])) is not None:
                    ids.append(token_id)
                    at = end
                    break
            else:
                at += 1  # a byte without a token: left out
        return ids


def script_key(prompt_token_ids: Sequence[int], seed: int) -> int:
    """64 bits that prompt and seed determine."""
    data = array("I", prompt_token_ids).tobytes()
    salt = (seed & (2**64 - 1)).to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, salt=salt).digest(), "little")


def script_digest(script: Sequence[int], eos_token_ids: Iterable[int]) -> str:
    """Names what is read and what ends it: 10 hex digits."""
    digest = hashlib.blake2b(array("I", script).tobytes(), digest_size=5)
    digest.update(repr(sorted(eos_token_ids)).encode())
    return digest.hexdigest()
