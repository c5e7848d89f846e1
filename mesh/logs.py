"""Log files of bounded size, written by the supervisor for all its processes.

A process writes into a pipe, and never onto the disk: a full disk, or a supervisor that is held up,
costs log lines and not the process.
"""

import asyncio
import contextlib
import fcntl
import os
from pathlib import Path

# Of the file in use, and of the one before: a name takes twice as much at most.
SIZE_BYTES_MAX = 8 << 20
READ_BYTES_MAX = 64 << 10
# What a process may write while the supervisor is held up; the kernel grants 1 MiB to all.
PIPE_BYTES = 1 << 20
TAIL_BYTES_MAX = 256 << 10


class RotatedFile:
    """Appends to `path`; what would grow beyond size_bytes_max begins anew, the old as `.1`.

    Writing never raises: what does not fit on the disk is left out, and how much is said as soon as
    there is room again.
    """

    def __init__(self, path: Path, size_bytes_max: int = SIZE_BYTES_MAX) -> None:
        self.path, self._size_bytes_max = path, size_bytes_max
        self._lost_byte_count = 0

    @property
    def former(self) -> Path:
        """Where the lines before those of `path` are."""
        return self.path.with_name(f"{self.path.name}.1")

    def write(self, data: bytes) -> None:
        """Appends; one call is never divided between two files."""
        try:
            self._append(self._confession() + data if self._lost_byte_count else data)
            self._lost_byte_count = 0
        except OSError:
            self._lost_byte_count += len(data)

    def flush(self) -> None:
        """Nothing waits here; for those who print into it."""

    def tail(self, line_count: int) -> str:
        """The last lines of the file in use."""
        with contextlib.suppress(OSError), self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - TAIL_BYTES_MAX))
            lines = file.read().decode(errors="replace").splitlines()
            return "\n".join(lines[-line_count:])
        return ""

    def _append(self, data: bytes) -> None:
        # Opened each time: whoever moves or removes the file is not held to it.
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if size and size + len(data) > self._size_bytes_max:
                os.close(descriptor)
                descriptor = -1
                self.path.replace(self.former)
                descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                size = 0
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
            except OSError:
                # Half a line would make the next one unreadable.
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, size)
                raise
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _confession(self) -> bytes:
        return b'{"event": "log_lost", "byte_count": %d}\n' % self._lost_byte_count


class TextLog:
    """A rotated file for those who print text into it."""

    def __init__(self, path: Path) -> None:
        self._file = RotatedFile(path)

    def write(self, text: str) -> None:
        """Appends; never raises."""
        self._file.write(text.encode(errors="replace"))

    def flush(self) -> None:
        """Nothing waits here."""


class LogPipe:
    """What the processes of one name write, on its way into their file.

    One for all lives of the process: what the last one wrote when it died is read all the same.
    """

    def __init__(self, file: RotatedFile) -> None:
        self._file = file
        self._reader, self.writer = os.pipe()
        for end in (self._reader, self.writer):
            # Of the writer too: a process that logs never waits for us; what finds no room is lost.
            os.set_blocking(end, False)
        with contextlib.suppress(OSError):  # more than this user may have: the default serves
            fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        asyncio.get_running_loop().add_reader(self._reader, self._take)

    def tail(self, line_count: int) -> str:
        """The last lines, those in the pipe among them."""
        self._drain()
        return self._file.tail(line_count)

    def close(self) -> None:
        """Takes what is in the pipe, and ends it."""
        self._drain()
        asyncio.get_running_loop().remove_reader(self._reader)
        os.close(self._reader)
        os.close(self.writer)

    def _drain(self) -> None:
        for _ in range(PIPE_BYTES // READ_BYTES_MAX):
            if not self._take():
                return

    def _take(self) -> int:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._reader, READ_BYTES_MAX)
            self._file.write(data)
            return len(data)
        return 0
