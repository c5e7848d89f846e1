"""An append-only file of records that survives a kill: each is framed with length and CRC-32, and
an append returns only after fsync. A torn last record (a crash while it was written) is dropped.
"""

import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import structlog

_FRAME = struct.Struct("<II")  # length in bytes, CRC-32 of the record

log = structlog.get_logger()


class Spool:
    """One file; one writer at a time.

    Args:
        file: made when the first record comes.
        byte_count_max: from here on `full` is true; records are still taken.
    """

    def __init__(self, file: Path, byte_count_max: int) -> None:
        self._file, self._byte_count_max = file, byte_count_max
        self.byte_count = file.stat().st_size if file.exists() else 0
        if self.byte_count:
            self.read()  # finds the end of the last whole record

    @property
    def empty(self) -> bool:
        """Nothing waits."""
        return self.byte_count == 0

    @property
    def full(self) -> bool:
        """More waits than is wanted."""
        return self.byte_count >= self._byte_count_max

    def append(self, records: Sequence[bytes]) -> None:
        """Writes records through to the disk. Raises OSError; then none of them counts."""
        data = b"".join(_FRAME.pack(len(r), zlib.crc32(r)) + r for r in records)
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            # A part that an earlier failure left behind is written over.
            os.ftruncate(descriptor, self.byte_count)
            os.lseek(descriptor, self.byte_count, os.SEEK_SET)
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.byte_count += len(data)

    def read(self) -> list[bytes]:
        """All whole records, oldest first; later appends go behind the last whole one."""
        data, records, at = self._file.read_bytes(), [], 0
        while at + _FRAME.size <= len(data):
            length, checksum = _FRAME.unpack_from(data, at)
            record = data[at + _FRAME.size : at + _FRAME.size + length]
            if len(record) < length or zlib.crc32(record) != checksum:
                break
            records.append(record)
            at += _FRAME.size + length
        if at < len(data):
            log.warning("spool_tail_dropped", byte_count=len(data) - at)
            self.byte_count = at
        return records

    def clear(self) -> None:
        """Forgets everything, for good."""
        with self._file.open("r+b") as stream:
            stream.truncate(0)
            os.fsync(stream.fileno())
        self.byte_count = 0
