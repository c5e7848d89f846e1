"""Compiles the kernels: `python -m inference_svc.engine.torch.kernels.build`.

Without a compiler nothing is built and the exit status is 0: the plain torch back end serves then.
"""

import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mesh.chassis import native_build
from mesh.chassis.native import NativeLibrary
from mesh.chassis.native_build import build_if_possible, compile_object, say

KERNELS = NativeLibrary("kernels", Path(__file__).parent / "cpp")
_AVX2 = "-mavx2 -mfma -mf16c"
_AVX512 = f"{_AVX2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni"
_X86_LEVELS = {
    "avx2": _AVX2,
    "avx512": _AVX512,
    "amx": f"{_AVX512} -mamx-tile -mamx-int8 -mamx-bf16",
}
LEVELS = ("generic", "avx2", "avx512", "amx")  # as enum Level in model.h


def build(compiler: str) -> Path:
    """Compiles and links, unless the same compiler has done so before.

    Raises:
        CalledProcessError: the sources do not compile; the compiler has said why.
    """
    return native_build.build(KERNELS, compiler, lambda folder: _objects(compiler, folder))


def _objects(compiler: str, folder: Path) -> list[Path]:
    jobs = _jobs(compiler)
    have = [f"-DCM_HAVE_{level.upper()}" for level in LEVELS if level in jobs]
    jobs |= {"api": ["api.cpp", *have], "pool": ["pool.cpp"]}
    with ThreadPoolExecutor(os.cpu_count()) as executor:
        running = {
            name: executor.submit(_compile, compiler, job, folder / f"{name}.o")
            for name, job in jobs.items()
        }
        for number, (name, future) in enumerate(running.items(), 1):
            future.result()
            say(f"  {number}/{len(running)} {name}")
    return [future.result() for future in running.values()]


def _jobs(compiler: str) -> dict[str, list[str]]:
    """Source and arguments for each level that the architecture and the compiler know."""
    flags = {"generic": ""}
    if platform.machine() in ("x86_64", "AMD64"):
        flags |= {name: text for name, text in _X86_LEVELS.items() if _knows(compiler, text)}
    return {
        name: [
            "level.cpp",
            f"-DCM_LEVEL={LEVELS.index(name)}",
            f"-DCM_NAMESPACE={name}",
            *text.split(),
        ]
        for name, text in flags.items()
    }


def _knows(compiler: str, flags: str) -> bool:
    """Whether the compiler takes these flags: AMX came with GCC 11 and Clang 12."""
    command = [compiler, *flags.split(), "-x", "c++", "-fsyntax-only", "-"]
    return subprocess.run(command, input=b"", capture_output=True, check=False).returncode == 0


def _compile(compiler: str, job: list[str], target: Path) -> Path:
    source, *arguments = job
    return compile_object(compiler, KERNELS.sources / source, arguments, target)


if __name__ == "__main__":
    sys.exit(build_if_possible(build, "the pure torch back end"))
