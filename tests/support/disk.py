"""Small disks of their own, and how to fill them."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a disk of its own")


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system in memory, mounted on `folder`; `size` as mount takes it, such as "1m"."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextlib.contextmanager
def full(folder: Path) -> Iterator[None]:
    """Not a byte is free on the disk of `folder` within the block."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        for piece in (1 << 20, 512):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * piece)
    try:
        yield
    finally:
        filler.unlink()
