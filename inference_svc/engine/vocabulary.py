"""Token ids to bytes, from a Hugging Face tokenizer.json: all that an engine needs of a tokenizer.

Two families are read: byte-level BPE (GPT-2's byte alphabet) and SentencePiece-like pieces with
byte fallback ("▁" for a space, "<0x0A>" for a byte). Special tokens have no text.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Vocabulary:
    """The bytes of every token.

    Attributes:
        size: number of ids, [1, …).
        digest: SHA-256 of the tokenizer.json, lower-case hex.
        special_ids: control tokens, which have no text.
    """

    def __init__(self, pieces: list[bytes], special_ids: frozenset[int], digest: str) -> None:
        self._pieces = pieces
        self.size = len(pieces)
        self.special_ids = special_ids
        self.digest = digest

    def token_bytes(self, token_id: int) -> bytes:
        """The text of one token as bytes; empty for ids that have none."""
        return self._pieces[token_id] if 0 <= token_id < self.size else b""

    def join(self, token_ids: Iterable[int]) -> bytes:
        """The text of a run of tokens as bytes."""
        return b"".join(map(self.token_bytes, token_ids))


def read_vocabulary(file: Path) -> Vocabulary:
    """Reads a tokenizer.json.

    Raises:
        OSError, ValueError: the file is missing or is none.
    """
    raw = file.read_bytes()
    document = json.loads(raw)
    vocab = document.get("model", {}).get("vocab")
    if not isinstance(vocab, dict):
        raise ValueError(f"{file} has no BPE vocabulary; use a byte-level BPE tokenizer.json.")
    decode = _byte_level() if _is_byte_level(document) else _sentence_piece
    added = document.get("added_tokens", [])
    size = max([*vocab.values(), *(token["id"] for token in added)]) + 1
    pieces = [b""] * size
    for piece, token_id in vocab.items():
        pieces[token_id] = decode(piece)
    for token in added:
        pieces[token["id"]] = b"" if token["special"] else token["content"].encode()
    special = frozenset(token["id"] for token in added if token["special"])
    return Vocabulary(pieces, special, hashlib.sha256(raw).hexdigest())


def _is_byte_level(document: dict[str, Any]) -> bool:
    decoder = document.get("decoder") or {}
    parts = decoder.get("decoders", [decoder])
    return any(part.get("type") == "ByteLevel" for part in parts)


def _byte_level() -> Callable[[str], bytes]:
    alphabet = byte_alphabet()

    def decode(piece: str) -> bytes:
        try:
            return bytes([alphabet[character] for character in piece])
        except KeyError:  # an added token that stands in the vocabulary too
            return piece.encode()

    return decode


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte (`bytes_to_unicode` of its encoder.py)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + index): byte for index, byte in enumerate(hidden)})
    return table


def _sentence_piece(piece: str) -> bytes:
    if byte := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(byte[1], 16)])
    return piece.replace("\u2581", " ").encode()
