"""Becomes a command that never outlives its parent; as an unprivileged user, if asked.

    python -I mesh/launcher.py UID GID REACH SIGNAL FOLDER COMMAND [ARGUMENT ...]

UID, GID  user to become; -1: stay. PostgreSQL refuses to run as root. With UID -1 and a GID: stay
          root by name, in that group alone and without any of root's powers: what belongs to
          others, and is not for that group, is out of reach.
REACH     1: keep one right. Of a user: to walk through folders that it may not enter, such as a
          project below /root, which is 0700. Of a group: to take ports below 1024.
SIGNAL    number that this process gets when its parent dies, however it dies; 0: none.
FOLDER    working folder.

The supervisor starts every process through it, the embedded stores as a user other than root. It is
a file on the standard library alone, because it stands in the way of each start: about 20 ms. The
process id stays the same (exec).
"""

import ctypes
import errno
import os
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION_3 = 0x20080522
_CAP_DAC_OVERRIDE = 1
_CAP_DAC_READ_SEARCH = 2
_CAP_NET_BIND_SERVICE = 10
_CAPABILITY_COUNT = 64


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


def confine(gid: int, low_ports: bool) -> None:
    """Stays root by name, in the group `gid`, without root's powers, for good.

    Raises:
        OSError: this root has no CAP_SETPCAP or no CAP_SETGID.
    """
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    kept = [_CAP_NET_BIND_SERVICE] if low_ports else []
    # An exec gives root what is in the bounding set, and nothing else.
    libc = ctypes.CDLL(None, use_errno=True)
    for number in range(_CAPABILITY_COUNT):
        if number not in kept and libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            if ctypes.get_errno() == errno.EINVAL:
                break  # one more than this kernel has
            _fail("prctl PR_CAPBSET_DROP")
    bits = sum(1 << number for number in kept)
    header, none = _CapHeader(_CAPABILITY_VERSION_3, 0), _CapData(0, 0, 0)
    data = (_CapData * 2)(_CapData(bits, bits, 0), none)
    if libc.capset(ctypes.byref(header), data) != 0:
        _fail("capset")
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


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
    elif gid >= 0:
        confine(gid, bool(reach))
    if signal_number and sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal_number)  # after the drop, which would clear it
        if os.getppid() != parent:
            sys.exit("the parent died meanwhile")
    os.umask(0o077)
    os.execv(command[0], command)  # noqa: S606 - becoming the command is the purpose


if __name__ == "__main__":
    main(sys.argv[1:])
