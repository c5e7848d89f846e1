"""Shared libraries that `make` compiles from C++ of ours, found again by the digest of the sources.

A service loads the library that belongs to its code or none: nothing is compiled when it starts,
and without a compiler it runs on without. `native_build.py` compiles.
"""

import hashlib
import os
import platform
from dataclasses import dataclass
from pathlib import Path

# No contraction and no fast-math: the order and rounding of every addition are the source's own.
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-pthread"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing"),
    *("-Wall", "-Wextra", "-Wno-maybe-uninitialized"),  # GCC 12 doubts its own intrinsics
)


@dataclass(frozen=True, slots=True)
class NativeLibrary:
    """A library and its sources.

    Attributes:
        name: a word for it, such as "kernels".
        sources: the folder of all its sources.
    """

    name: str
    sources: Path

    def source_digest(self) -> str:
        """Names the library that belongs to the sources, 16 lower-case hex digits."""
        digest = hashlib.blake2b(" ".join(FLAGS).encode(), digest_size=8)
        for path in sorted(self.sources.iterdir()):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()

    def folder(self) -> Path:
        """Where the library is, or will be: `build/` of the repository, else the user's cache."""
        root = Path(__file__).parents[2]
        if (root / "pyproject.toml").exists():
            base = root / "build"
        else:
            cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
            base = Path(cache) / "chatmesh"
        return base / self.name / f"{self.source_digest()}-{platform.machine()}"

    def path(self) -> Path:
        """The library's file; it need not exist."""
        return self.folder() / f"lib{self.name}.so"
