"""Who may read what of a copy's folder, when the copy runs as root.

As root every service could read the key of the mesh's CA, the passwords of the stores and its
neighbours' identities. So services keep root's name only, which the project's files need, and lose
its powers (`launcher`); the folder belongs to a user that nobody is:

    .chatmesh                 the keeper's, 0711: one may pass, not look, not change
      control operator roles redis-roles log run      the keeper's, 0700
      redis                   the same; PostgreSQL's user passes through `postgres`, 0711
      nodes/<instance>        the keeper's, and its service's group, 0770

The supervisor and the control plane keep root's powers, the stores theirs. Groups differ, so that
no service can trace another (ptrace(2) asks for the same group too).

Without root all processes are one user, and one of them that is taken over can read all of this:
run as root, or in containers of different users, where that matters.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from mesh.home import PROJECT, Home

# Numbers that no system gives to a user or group by itself.
KEEPER_UID = 61_900
FIRST_GID = 61_901
# Of /proc/self/status: CHOWN, DAC_OVERRIDE, SETGID, SETPCAP.
_NEEDED = (0, 1, 6, 8)


def is_possible() -> bool:
    """Whether we are a root that may do all this, and the project can be read without powers."""
    if os.geteuid() != 0:
        return False
    lines = Path("/proc/self/status").read_text().splitlines()
    held = int(next(line for line in lines if line.startswith("CapEff:")).split()[1], 16)
    return all(held >> number & 1 for number in _NEEDED) and _passable(PROJECT)


def groups(services: Iterable[str]) -> dict[str, int]:
    """A group for each service, by name; the same at every start of the same table."""
    return {name: FIRST_GID + number for number, name in enumerate(services)}


def guard(home: Home) -> None:
    """Makes the copy's folder, and what is not for services, the keeper's."""
    private = [home.control, home.operator, home.log, home.run]
    private += [home.folder / name for name in ("roles", "redis-roles")]
    for path in private:
        path.mkdir(mode=0o700, exist_ok=True)
        _give(path, 0, 0o700)
    for path in (home.nodes, home.folder):
        _give(path, 0, 0o711)


def guard_stores(home: Home) -> None:
    """Makes the stores' folders and passwords the keeper's; to be called when they are prepared."""
    folders = ((home.folder / "redis", 0o700), (home.folder / "postgres", 0o711))
    for folder, mode in folders:
        if folder.exists():
            _give(folder, 0, mode)
            _give(folder / "password", 0, 0o600)


def guard_node(state_dir: Path, group: int) -> None:
    """Makes the folder of an instance its service's group's."""
    _give(state_dir, group, 0o770)


def _give(path: Path, group: int, mode: int) -> None:
    os.chown(path, KEEPER_UID, group)
    path.chmod(mode)


def _passable(folder: Path) -> bool:
    """Whether root without powers may walk from / into `folder`."""
    for path in (folder, *folder.parents):
        status = path.stat()
        shift = 6 if status.st_uid == 0 else 0
        if not status.st_mode >> shift & 1:
            return False
    return True
