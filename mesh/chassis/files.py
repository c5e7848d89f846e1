"""Files that are replaced whole: a reader sees the old content or the new, never a mixture."""

import os
import secrets
from pathlib import Path


def write_public(path: Path, content: str) -> None:
    """Replaces a file that others may read (mode 0644)."""
    _replace(path, content.encode(), 0o644)


def write_private(path: Path, content: str | bytes) -> None:
    """Replaces a file that only its owner may read (mode 0600)."""
    _replace(path, content.encode() if isinstance(content, str) else content, 0o600)


def _replace(path: Path, content: bytes, mode: int) -> None:
    # Named at random, so that two that write one file do not meet: not by pid, which in containers
    # is the same for all.
    scratch = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise
