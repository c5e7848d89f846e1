"""Becomes a command that never outlives its parent; as an unprivileged user, if asked.

    python -I mesh/launcher.py UID GID REACH SIGNAL FOLDER COMMAND [ARGUMENT ...]

UID, GID  user to become; -1: stay. PostgreSQL refuses to run as root.
REACH     1: keep the right to walk through folders that the user may not enter, such as a
          project below /root, which is 0700. Nothing else of root's power is kept.
SIGNAL    number that this process gets when its parent dies, however it dies; 0: none.
FOLDER    working folder.

The supervisor starts every process through it, the embedded stores as a user other than root. It is
a file on the standard library alone, because it stands in the way of each start: about 20 ms. The
process id stays the same (exec).
"""

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CAPABILITY_VERSION_3 = 0x20080522
_CAP_DAC_OVERRIDE = 1
_CAP_DAC_READ_SEARCH = 2


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapData(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def become(uid: int, gid: int, reach: bool) -> None:
    """Drops root for `uid`; with `reach` keeps one capability, through exec as well.

    Raises:
        OSError: this root may not change its user (a container without CAP_SETUID), or holds
            neither CAP_DAC_READ_SEARCH nor CAP_DAC_OVERRIDE.
    """
    if reach:
        _prctl(_PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if reach:
        _keep_reach()


def _keep_reach() -> None:
    # DAC_READ_SEARCH is the smaller right; containers often have only DAC_OVERRIDE.
    libc = ctypes.CDLL(None, use_errno=True)
    header = _CapHeader(_CAPABILITY_VERSION_3, 0)
    data = (_CapData * 2)()
    if libc.capget(ctypes.byref(header), data) != 0:
        _fail("capget")
    wanted = (_CAP_DAC_READ_SEARCH, _CAP_DAC_OVERRIDE)
    held = [cap for cap in wanted if data[0].permitted >> cap & 1]
    if not held:
        raise PermissionError("root without CAP_DAC_READ_SEARCH and CAP_DAC_OVERRIDE")
    bit = 1 << held[0]
    kept = (_CapData * 2)(_CapData(bit, bit, bit), _CapData(0, 0, 0))
    if libc.capset(ctypes.byref(header), kept) != 0:
        _fail("capset")
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, held[0], 0, 0)


def _prctl(*arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(*(ctypes.c_ulong(argument) for argument in arguments)) != 0:
        _fail(f"prctl {arguments[0]}")


def _fail(what: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{what}: {os.strerror(number)}")


def main(arguments: list[str]) -> None:
    """Drops, ties the life to the parent's, and becomes the command."""
    uid, gid, reach, signal_number = (int(value) for value in arguments[:4])
    folder, command = arguments[4], arguments[5:]
    parent = os.getppid()
    os.chdir(folder)  # before the drop: the user may not be able to walk here
    if uid >= 0:
        become(uid, gid, bool(reach))
    if signal_number and sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal_number)  # after the drop, which would clear it
        if os.getppid() != parent:
            sys.exit("the parent died meanwhile")
    os.umask(0o077)
    os.execv(command[0], command)  # noqa: S606 - becoming the command is the purpose


if __name__ == "__main__":
    main(sys.argv[1:])
