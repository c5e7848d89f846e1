"""Logs have a bound, and a disk that is full costs log lines only."""

import asyncio
import errno
import json
import os
import sys

import pytest

from mesh import logs
from mesh.chassis import telemetry
from mesh.logs import LogPipe, RotatedFile


def test_a_file_never_grows_beyond_its_bound(tmp_path):
    file = RotatedFile(tmp_path / "one.log", size_bytes_max=1000)
    for number in range(1000):
        file.write(b"%04d " % number + b"x" * 94 + b"\n")
        sizes = [path.stat().st_size for path in tmp_path.iterdir()]
        assert max(sizes) <= 1000
        assert len(sizes) <= 2
    assert file.tail(2).splitlines()[1].startswith("0999 ")
    assert file.former.read_text().splitlines()[-1].startswith("0989 ")


def test_one_line_larger_than_the_bound_is_written_whole(tmp_path):
    file = RotatedFile(tmp_path / "one.log", size_bytes_max=10)
    file.write(b"a" * 50)
    assert file.path.read_bytes() == b"a" * 50


def test_a_full_disk_costs_lines_and_says_how_much(tmp_path, monkeypatch):
    file, write = RotatedFile(tmp_path / "one.log"), os.write
    file.write(b"before\n")

    def full(descriptor, data):
        write(descriptor, bytes(data)[:3])  # a part of it still fitted
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(logs.os, "write", full)
    file.write(b"lost one\n")
    file.write(b"lost two\n")
    monkeypatch.undo()
    file.write(b"after\n")
    before, confession, after = file.path.read_text().splitlines()
    assert (before, after) == ("before", "after")
    assert json.loads(confession) == {"event": "log_lost", "byte_count": 18}


async def test_what_a_process_wrote_at_its_end_is_read(tmp_path):
    pipe = LogPipe(RotatedFile(tmp_path / "one.log"))
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import sys; sys.exit('the last words')", stderr=pipe.writer
    )
    await child.wait()
    assert pipe.tail(1) == "the last words"
    pipe.close()


async def test_a_process_whose_reader_is_held_up_goes_on(tmp_path):
    """More is logged than the pipe holds, and nobody reads: lines are lost, nothing waits."""
    pipe = LogPipe(RotatedFile(tmp_path / "one.log", size_bytes_max=64 << 20))
    asyncio.get_running_loop().remove_reader(pipe._reader)
    code = (
        "import structlog; from mesh.chassis import telemetry;"
        "telemetry.configure('a', 'a-1', 'info'); log = structlog.get_logger();"
        "[log.info('line', text='x' * 1000) for _ in range(3000)]"
    )
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=pipe.writer)
    assert await asyncio.wait_for(child.wait(), 60) == 0
    pipe.close()
    lines = (tmp_path / "one.log").read_text().splitlines()
    assert 500 < len(lines) < 3000
    assert json.loads(lines[0])["event"] == "line"


def test_a_log_line_that_cannot_be_written_does_not_fail_its_caller(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(telemetry.os, "write", full)
    telemetry._Output().write("a line\n")
    with pytest.raises(OSError, match="No space"):
        os.write(1, b"")
