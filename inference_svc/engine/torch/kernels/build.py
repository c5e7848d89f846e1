"""Compiles the kernels: `python -m inference_svc.engine.torch.kernels.build`.

The library's folder is named by the digest of the sources, so that a service finds the library that
belongs to its code or none. Without a compiler nothing is built and the exit status is 0: the plain
torch back end serves then.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "cpp"
LIBRARY_NAME = "libkernels.so"
# No contraction and no fast-math: the order and rounding of every addition are the source's own.
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-pthread"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing"),
    *("-Wall", "-Wextra", "-Wno-maybe-uninitialized"),  # GCC 12 doubts its own intrinsics
)
_AVX2 = "-mavx2 -mfma -mf16c"
_AVX512 = f"{_AVX2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni"
_X86_LEVELS = {
    "avx2": _AVX2,
    "avx512": _AVX512,
    "amx": f"{_AVX512} -mamx-tile -mamx-int8 -mamx-bf16",
}
LEVELS = ("generic", "avx2", "avx512", "amx")  # as enum Level in model.h


def source_digest() -> str:
    """Names the library that belongs to the sources of this package."""
    digest = hashlib.blake2b(" ".join(FLAGS).encode(), digest_size=8)
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def library_folder() -> Path:
    """Where the library is, or will be: `build/` of the repository, else the user's cache."""
    root = Path(__file__).parents[4]
    if (root / "pyproject.toml").exists():
        base = root / "build"
    else:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        base = Path(cache) / "chatmesh"
    return base / "kernels" / f"{source_digest()}-{platform.machine()}"


def library_path() -> Path:
    """The library's file; it need not exist."""
    return library_folder() / LIBRARY_NAME


def find_compiler() -> str | None:
    """The C++ compiler: $CXX, g++, c++ or clang++."""
    for name in (os.environ.get("CXX"), "g++", "c++", "clang++"):
        if name and shutil.which(name):
            return name
    return None


def build(compiler: str) -> Path:
    """Compiles and links, unless the same compiler has done so before.

    Raises:
        CalledProcessError: the sources do not compile; the compiler has said why.
    """
    target, stamp = library_path(), library_folder() / "compiler"
    version = _run([compiler, "--version"]).stdout.splitlines()[0]
    if target.exists() and stamp.exists() and stamp.read_text() == version:
        return target
    _say(f"compiling the inference kernels with {version} (under a minute, once)")
    begun = time.monotonic()
    objects_folder = library_folder() / f"objects-{os.getpid()}"
    objects_folder.mkdir(parents=True, exist_ok=True)
    jobs = _jobs(compiler)
    have = [f"-DCM_HAVE_{level.upper()}" for level in LEVELS if level in jobs]
    jobs |= {"api": ["api.cpp", *have], "pool": ["pool.cpp"]}
    with ThreadPoolExecutor(os.cpu_count()) as executor:
        running = {
            name: executor.submit(_compile, compiler, job, objects_folder / f"{name}.o")
            for name, job in jobs.items()
        }
        for number, (name, future) in enumerate(running.items(), 1):
            future.result()
            _say(f"  {number}/{len(running)} {name}")
    objects = [str(objects_folder / f"{name}.o") for name in jobs]
    linked = objects_folder / LIBRARY_NAME
    _run([compiler, "-shared", "-pthread", "-o", str(linked), *objects])
    linked.replace(target)  # whole or not at all
    stamp.write_text(version)
    shutil.rmtree(objects_folder)
    _say(f"kernels are ready after {time.monotonic() - begun:.0f} s")
    return target


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


def _compile(compiler: str, job: list[str], target: Path) -> None:
    source, *arguments = job
    _run([compiler, *FLAGS, *arguments, "-c", str(SOURCES / source), "-o", str(target)])


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        _say(f"{' '.join(command)}\n{done.stderr}")
    done.check_returncode()
    return done


def _say(text: str) -> None:
    print(f"chatmesh: {text}", flush=True)  # noqa: T201  a command's progress


def main() -> int:
    """Builds. Without kernels everything still runs, slower: that is said, and is no error."""
    compiler = find_compiler()
    if compiler is None:
        _say(
            "no C++ compiler found (g++ or clang++, or set CXX): "
            "the pure torch back end will be used. Install one and run make again for speed."
        )
        return 0
    try:
        build(compiler)
    except subprocess.CalledProcessError as error:
        _say(
            f"{compiler} failed with status {error.returncode}, see above: "
            "the pure torch back end will be used."
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
