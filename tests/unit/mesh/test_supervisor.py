"""What dies is started again; what ends, ends all of it."""

import asyncio
import json
import os
import signal
import sys
import time

import psutil
import pytest
import structlog

from mesh.supervisor import Launch, Process, Supervisor, log_to, next_delay_s, tied
from tests.support.disk import full, root_only, small_disk

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def supervisor(tmp_path):
    return Supervisor(tmp_path, tmp_path / "processes.json")


def process(name, command):
    async def prepare():
        return Launch(command, dict(os.environ))

    return Process(name, name, prepare)


async def until(condition, timeout_s=10):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.01)


async def test_a_killed_process_is_started_again(supervisor, tmp_path):
    one = process("one", SLEEPER)
    supervisor.start(one)
    await until(lambda: one.pid)
    first = one.pid
    os.kill(first, signal.SIGKILL)
    await until(lambda: one.pid not in (0, first))
    assert supervisor.restarts("one") == 1
    table = json.loads((tmp_path / "processes.json").read_text())
    assert [(row["name"], row["pid"], row["restarts"]) for row in table] == [("one", one.pid, 1)]
    await supervisor.stop(["one"], 5)
    assert not psutil.pid_exists(one.pid) or one.pid == 0


def test_the_first_start_again_is_at_once_and_later_ones_ever_slower():
    delays_s = [0.0]
    while len(delays_s) < 9:
        delays_s.append(next_delay_s(delays_s[-1]))
    assert delays_s == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


async def test_one_that_ignores_the_signal_is_killed(supervisor, tmp_path):
    ready = tmp_path / "ready"
    code = (
        "import signal, time, pathlib; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(60)"
    )
    stubborn = process("stubborn", [sys.executable, "-c", code])
    supervisor.start(stubborn)
    await until(ready.exists)
    pid = stubborn.pid
    await supervisor.stop(["stubborn"], 0.2)
    assert not psutil.pid_exists(pid)


async def test_a_process_that_cannot_start_is_tried_again_and_its_log_kept(supervisor):
    failing = process("failing", [sys.executable, "-c", "import sys; sys.exit('no model here')"])
    supervisor.start(failing)
    await until(lambda: failing.restarts >= 2)
    assert "no model here" in supervisor.tail("failing")
    await supervisor.stop(["failing"], 5)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
async def test_children_do_not_outlive_a_supervisor_that_was_killed(tmp_path):
    command = tied(SLEEPER, tmp_path)
    code = (
        f"import subprocess, time; print(subprocess.Popen({command!r}).pid, flush=True);"
        "time.sleep(60)"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    child = psutil.Process(int(await parent.stdout.readline()))
    await until(lambda: child.cmdline() == SLEEPER)  # the launcher has become it
    parent.kill()
    await parent.wait()
    await until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def children_of(command):
    own = psutil.Process().children()
    return [child for child in own if child.is_running() and child.cmdline() == command]


async def test_a_full_disk_neither_ends_supervision_nor_makes_a_second_child(
    supervisor, tmp_path, monkeypatch
):
    """The table could not be written after a start: the child ran on, and got another beside it."""
    is_full = True

    def write_private(path, content):
        if is_full:
            raise OSError(28, "No space left on device")
        path.write_text(content)

    monkeypatch.setattr("mesh.supervisor.write_private", write_private)
    monkeypatch.setattr("mesh.supervisor.TABLE_RETRY_S", 0.01)
    one = process("one", SLEEPER)
    supervisor.start(one)
    await until(lambda: one.pid)
    for _ in range(2):
        killed = one.pid
        os.kill(killed, signal.SIGKILL)
        await until(lambda killed=killed: one.pid not in (0, killed))
    await asyncio.sleep(0.3)  # time in which a second one would be started
    assert [child.pid for child in children_of(SLEEPER)] == [one.pid]
    assert one.restarts == 2
    is_full = False
    await until((tmp_path / "processes.json").exists)
    assert json.loads((tmp_path / "processes.json").read_text())[0]["pid"] == one.pid
    await supervisor.stop(["one"], 5)


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", "64k") as folder:
        yield folder


@root_only
async def test_supervision_goes_on_while_the_real_disk_is_full(disk):
    supervisor = Supervisor(disk, disk / "processes.json")
    log_to(disk / "up.log")
    talking = [sys.executable, "-c", "import time; print('x' * 9999); time.sleep(60)"]
    one = process("one", talking)
    try:
        with full(disk):
            supervisor.start(one)
            await until(lambda: one.pid)
            first = one.pid
            os.kill(first, signal.SIGKILL)
            await until(lambda: one.pid not in (0, first))
            assert [child.pid for child in children_of(talking)] == [one.pid]
        await until((disk / "processes.json").exists)
        await supervisor.stop(["one"], 5)
    finally:
        structlog.reset_defaults()
