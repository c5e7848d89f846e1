"""Files that are replaced whole: a reader sees the old content or the new, never a mixture."""

import os
from pathlib import Path


def write_public(path: Path, content: str) -> None:
    """Replaces a file that others read."""
    _replace(path, content, 0o644)


def write_private(path: Path, content: str) -> None:
    """Replaces a file that only its owner reads."""
    _replace(path, content, 0o600)


def _replace(path: Path, content: str, mode: int) -> None:
    # One process writes a state folder, so that a fixed scratch name cannot collide.
    scratch = path.with_name(f"{path.name}.new")
    scratch.unlink(missing_ok=True)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
    scratch.replace(path)
