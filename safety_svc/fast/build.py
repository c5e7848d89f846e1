"""Compiles the library: `python -m safety_svc.fast.build`.

Without a compiler nothing is built and the exit status is 0: Python serves alone then.
"""

import sys
from pathlib import Path

from mesh.chassis import native_build
from mesh.chassis.native import NativeLibrary

FAST = NativeLibrary("fast", Path(__file__).parent / "cpp")
_SOURCE = "fast.cpp"


def build(compiler: str) -> Path:
    """Compiles and links, unless the same compiler has done so before.

    Raises:
        CalledProcessError: the source does not compile; the compiler has said why.
    """

    def compile_into(folder: Path) -> list[Path]:
        source, target = FAST.sources / _SOURCE, folder / "fast.o"
        return [native_build.compile_object(compiler, source, [], target)]

    return native_build.build(FAST, compiler, compile_into)


if __name__ == "__main__":
    sys.exit(native_build.build_if_possible(build, "the safety service's plain Python"))
