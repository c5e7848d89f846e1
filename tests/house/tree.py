"""The repository as the house rules see it: what is tracked, or would be."""

import functools
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SERVICES = (
    "gateway",
    "safety_svc",
    "tokenizer_svc",
    "inference_svc",
    "conversation_svc",
    "billing_svc",
)
_LISTING = ("ls-files", "--cached", "--others", "--exclude-standard", "-z")


@functools.cache
def files() -> tuple[Path, ...]:
    """Every file that git tracks or would add, relative to the root."""
    command = ["git", "-c", "safe.directory=*", "-C", str(ROOT), *_LISTING]
    listed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    paths = (Path(name) for name in listed.split("\0") if name)
    return tuple(sorted(path for path in paths if (ROOT / path).is_file()))


def sources() -> list[Path]:
    """The Python files written by hand."""
    stubs = Path("proto/gen")
    return [path for path in files() if path.suffix == ".py" and stubs not in path.parents]


@functools.cache
def text(path: Path) -> str:
    """A file's text; "" for one that is not UTF-8."""
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""
