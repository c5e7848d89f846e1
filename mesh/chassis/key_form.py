"""The form of API keys: billing makes them, the gateway looks at them before it asks about them.

"cm-", 43 characters of URL-safe base64 (256 random bits), and 6 that are the CRC-32 of what stands
before them. A key that was mistyped, cut or made up is known without a query. Anybody can compute
the checksum: it spares work, it proves nothing. Keys made before it are as long as their random
part, and stay valid.
"""

import base64
import re
import zlib

KEY_FORM = re.compile(r"cm-[A-Za-z0-9_-]{20,120}")
PREFIX = "cm-"
RANDOM_BYTE_COUNT = 32
RANDOM_LENGTH = 43
CHECKSUM_LENGTH = 6
LENGTH = len(PREFIX) + RANDOM_LENGTH + CHECKSUM_LENGTH


def key_of(random: bytes) -> str:
    """The key that is made of 32 random bytes."""
    text = PREFIX + _base64(random)
    return text + _checksum(text)


def has_checksum(text: str) -> bool:
    """Whether a key has the form with a checksum, right or wrong."""
    return len(text) == LENGTH


def is_possible(text: str) -> bool:
    """Whether there may be such a key; its checksum, if it has one, is right."""
    if not KEY_FORM.fullmatch(text):
        return False
    return not has_checksum(text) or _checksum(text[:-CHECKSUM_LENGTH]) == text[-CHECKSUM_LENGTH:]


def _checksum(text: str) -> str:
    return _base64(zlib.crc32(text.encode()).to_bytes(4))


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
