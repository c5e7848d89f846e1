"""Compiling the shared libraries of `native.py`: what `make` runs, and no service does."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mesh.chassis.native import FLAGS, NativeLibrary


def build(
    library: NativeLibrary, compiler: str, compile_into: Callable[[Path], Sequence[Path]]
) -> Path:
    """Compiles and links, unless the same compiler has done so before.

    Args:
        library: what is built.
        compiler: see `find_compiler`.
        compile_into: compiles into a folder and returns the object files.

    Raises:
        CalledProcessError: the sources do not compile; the compiler has said why.
    """
    target, stamp = library.path(), library.folder() / "compiler"
    version = run([compiler, "--version"]).stdout.splitlines()[0]
    if target.exists() and stamp.exists() and stamp.read_text() == version:
        return target
    say(f"compiling {target.name} with {version} (under a minute, once)")
    begun = time.monotonic()
    objects_folder = library.folder() / f"objects-{os.getpid()}"
    objects_folder.mkdir(parents=True, exist_ok=True)
    objects = map(str, compile_into(objects_folder))
    linked = objects_folder / target.name
    run([compiler, "-shared", "-pthread", "-o", str(linked), *objects])
    linked.replace(target)  # whole or not at all
    stamp.write_text(version)
    shutil.rmtree(objects_folder)
    say(f"{target.name} is ready after {time.monotonic() - begun:.0f} s")
    return target


def find_compiler() -> str | None:
    """The C++ compiler: $CXX, g++, c++ or clang++."""
    for name in (os.environ.get("CXX"), "g++", "c++", "clang++"):
        if name and shutil.which(name):
            return name
    return None


def build_if_possible(build: Callable[[str], Path], without: str) -> int:
    """The exit status of a command that builds: without a compiler all runs on, and that is said.

    Args:
        build: takes the compiler.
        without: what serves when there is no library, such as "the plain torch back end".
    """
    compiler = find_compiler()
    if compiler is None:
        say(
            f"no C++ compiler found (g++ or clang++, or set CXX): {without} will be used. "
            "Install one and run make again for speed."
        )
        return 0
    try:
        build(compiler)
    except subprocess.CalledProcessError as error:
        say(f"{compiler} failed with status {error.returncode}, see above: {without} will be used.")
    return 0


def compile_object(compiler: str, source: Path, arguments: Sequence[str], target: Path) -> Path:
    """Compiles one source with FLAGS; raises CalledProcessError."""
    run([compiler, *FLAGS, *arguments, "-c", str(source), "-o", str(target)])
    return target


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a compiler; what it complains of is printed, and raised as CalledProcessError."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        say(f"{' '.join(command)}\n{done.stderr}")
    done.check_returncode()
    return done


def say(text: str) -> None:
    """Tells how far a build is."""
    print(f"chatmesh: {text}", flush=True)  # noqa: T201  a command's progress
