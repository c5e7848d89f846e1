"""Compiles, checks and releases the contracts: `python proto/build.py [--check | --release]`.

Without a flag: writes the Python stubs (`gen/python`) and the descriptor set of the edge.
`--check`: lints, compares with the released contracts (`released.binpb`), and proves that the
committed stubs are what the protos compile to; exit status 1 says what to do.
`--release`: makes the present contracts the ones that later changes must not break.
"""

import argparse
import filecmp
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
STUBS = ROOT / "gen" / "python"
RELEASED = ROOT / "released.binpb"
# googleapis-common-protos installs its .proto files beside its Python modules.
INCLUDES = [ROOT, Path(sysconfig.get_path("purelib"))]
SCRIPTS = Path(sysconfig.get_path("scripts"))


def protos() -> list[str]:
    """Paths of all contracts, relative to the proto root, sorted."""
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("chatmesh/**/*.proto"))


def protoc(*flags: str) -> None:
    """Runs protoc over all contracts; raises CalledProcessError when one does not compile."""
    includes = [f"-I{path}" for path in INCLUDES]
    command = [sys.executable, "-m", "grpc_tools.protoc", *includes, *flags, *protos()]
    subprocess.run(command, check=True)


def generate(target: Path) -> None:
    """Writes message, service and type stubs into `target`, which is emptied first."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    protoc(
        f"--plugin=protoc-gen-mypy={SCRIPTS / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={SCRIPTS / 'protoc-gen-mypy_grpc'}",
        f"--python_out={target}",
        f"--grpc_python_out={target}",
        f"--mypy_out=quiet:{target}",
        f"--mypy_grpc_out=quiet:{target}",
    )


def image(target: Path) -> None:
    """Writes the descriptor set with imports and comments, for buf and for the edge."""
    protoc("--include_imports", "--include_source_info", f"--descriptor_set_out={target}")


def buf(*arguments: str) -> bool:
    """Runs buf over the contracts only (not over what they import); True when it is content."""
    command = [str(SCRIPTS / "buf"), *arguments, "--config", str(ROOT / "buf.yaml")]
    return subprocess.run([*command, "--path", "chatmesh"], check=False).returncode == 0


def same_tree(left: Path, right: Path) -> bool:
    """True when both folders hold the same files with the same bytes (caches aside)."""
    comparison = filecmp.dircmp(left, right, ignore=["__pycache__"])
    if comparison.left_only or comparison.right_only:
        return False
    _, different, errors = filecmp.cmpfiles(left, right, comparison.common_files, shallow=False)
    if different or errors:
        return False
    return all(same_tree(left / name, right / name) for name in comparison.common_dirs)


def check() -> int:
    """Returns 0 when the contracts are clean, compatible and their stubs fresh."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh, compiled = Path(scratch) / "python", Path(scratch) / "image.binpb"
        image(compiled)
        failures = []
        if not buf("lint", str(compiled)):
            failures.append("lint: mend what buf names above")
        if not buf("breaking", str(compiled), "--against", str(RELEASED)):
            failures.append("breaking: keep the released element, or reserve it in a new version")
        generate(fresh)
        if not same_tree(fresh, STUBS):
            failures.append("stale stubs: run `make proto` and commit proto/gen/python")
    for failure in failures:
        print(f"proto: {failure}", file=sys.stderr)
    return 1 if failures else 0


def main() -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="change nothing, report")
    mode.add_argument("--release", action="store_true", help="freeze the present contracts")
    arguments = parser.parse_args()
    if arguments.check:
        return check()
    if arguments.release:
        image(RELEASED)
        return 0
    generate(STUBS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
