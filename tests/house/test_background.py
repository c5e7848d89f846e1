"""Work that goes on as long as the process is begun in one place, which hears of its end."""

import ast
from pathlib import Path

from tests.house import tree

BEGINS = {"create_task", "ensure_future"}
# Whose tasks end with a call, a stream or a batch, and are awaited or watched there.
BOUNDED = {
    "mesh/chassis/background.py": "the place itself",
    "mesh/chassis/group_commit.py": "the sender of a batch ends with it; each row has its future",
    "mesh/chassis/link/client.py": "the writer of one stream ends with its reader",
    "mesh/chassis/link/kinds.py": "the requests of one call",
    "mesh/chassis/link/links.py": "links are begun again by `kept` and by _keep, calls go plainly",
    "mesh/chassis/link/plain.py": "reader and writer of one call",
    "mesh/chassis/link/server.py": "one stream, and the calls on it",
    "mesh/control/inbox.py": "the requests of one stream",
    "mesh/control/__main__.py": "a task group: the first failure ends the process",
    "inference_svc/__main__.py": "waits for the engine's failure, and ends the process",
}


def begins(path: Path) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in BEGINS
        for node in ast.walk(ast.parse(tree.text(path)))
    )


def looked_at() -> list[Path]:
    ours = [Path("mesh", folder) for folder in ("chassis", "control", "edge")]
    return [
        path
        for path in tree.sources()
        if any(folder in path.parents for folder in ours)
        or (path.name == "__main__.py" and path.parts[0] in tree.SERVICES)
    ]


def test_long_work_is_begun_by_the_chassis_only() -> None:
    beginning = {str(path) for path in looked_at() if begins(path)}
    unknown = beginning - BOUNDED.keys()
    assert not unknown, (
        "a task that nobody watches ends in silence; keep it going with `node.keeping(name=work)` "
        f"(mesh/chassis/background.py), or say in BOUNDED what ends it: {sorted(unknown)}"
    )
    assert not BOUNDED.keys() - beginning, "these begin no task any more; take them off BOUNDED"
