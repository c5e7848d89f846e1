"""Starts processes, restarts what dies, ends all of them.

Every child is in a session of its own (a Ctrl-C in the terminal reaches only the supervisor) and
is ended by the kernel when the supervisor dies, however it dies (`tied`). What fails around a child
(its log, the table, a full disk) never ends its supervision nor makes a second one beside it.
"""

import asyncio
import contextlib
import dataclasses
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO, cast

import structlog

from mesh.chassis.files import write_private
from mesh.logs import LogPipe, RotatedFile, TextLog

# Of the second and later deaths in a row; the first one after a settled life is made good at once.
RESTART_DELAY_S_MIN = 0.1
RESTART_DELAY_S_MAX = 5.0
# A process that lived this long is well: its next death is a first one again.
SETTLED_AFTER_S = 10.0
TABLE_RETRY_S = 1.0

log = structlog.get_logger()


@dataclasses.dataclass(frozen=True)
class Launch:
    """How to start a process once."""

    command: Sequence[str]
    env: Mapping[str, str]


def tied(
    command: Sequence[str], folder: Path, group: int = -1, *, low_ports: bool = False
) -> list[str]:
    """The command, so that it gets SIGTERM when its parent dies; runs in `folder`.

    With a group it runs in that group alone and without root's powers (`mesh/confinement.py`), but
    for ports below 1024 if low_ports.

    A launcher does it and not a preexec_fn, which would fork a process that has threads of gRPC.
    """
    launcher = Path(__file__).with_name("launcher.py")
    user = ["-1", str(group), str(int(low_ports))]
    number = str(int(signal.SIGTERM))
    return [sys.executable, "-I", str(launcher), *user, number, str(folder), *command]


@dataclasses.dataclass
class Process:
    """One supervised process.

    Attributes:
        name: unique, such as "inference-1".
        service: what it is an instance of, such as "inference".
        prepare: gives the command anew for each start (a join token works once).
        stop_signal: asks it to end.
    """

    name: str
    service: str
    prepare: Callable[[], Awaitable[Launch]]
    stop_signal: signal.Signals = signal.SIGTERM
    # What the registry does not tell of it: Envoy, the control plane and the stores hold no lease.
    address: Callable[[], str] = str
    spiffe_id: str = ""
    pid: int = 0
    restarts: int = 0
    started_at: float = 0.0
    child: asyncio.subprocess.Process | None = None


def next_delay_s(delay_s: float) -> float:
    """Seconds to wait before the next start in a row, after a wait of delay_s before this one."""
    return min(max(2 * delay_s, RESTART_DELAY_S_MIN), RESTART_DELAY_S_MAX)


def log_to(path: Path) -> None:
    """Sends the supervisor's own log lines to a file of bounded size; writing never raises."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, TextLog(path))),
    )


class Supervisor:
    """Runs processes until `stop`.

    Args:
        log_dir: folder for one log file a process.
        table: file that always holds the processes as JSON, for `mesh.ctl status`.
    """

    def __init__(self, log_dir: Path, table: Path) -> None:
        self._log_dir, self._table = log_dir, table
        self._processes: dict[str, Process] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._pipes: dict[str, LogPipe] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._stopping = False

    def start(self, process: Process) -> None:
        """Starts a process and keeps it running."""
        self._processes[process.name] = process
        file = RotatedFile(self._log_dir / f"{process.name}.log")
        self._pipes[process.name] = LogPipe(file)
        self._tasks[process.name] = asyncio.create_task(self._keep(process), name=process.name)

    def restarts(self, name: str) -> int:
        """How often a process was started again."""
        return self._processes[name].restarts

    def tail(self, name: str, line_count: int = 20) -> str:
        """The end of a process' log."""
        return self._pipes[name].tail(line_count) if name in self._pipes else ""

    async def stop(self, names: Sequence[str], timeout_s: float) -> None:
        """Ends processes; those that do not within timeout_s are killed."""
        self._stopping = True
        running = [self._processes[name] for name in names if name in self._processes]
        for process in running:
            _signal(process, process.stop_signal)
        tasks = [self._tasks[process.name] for process in running]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for process in running:
                if self._tasks[process.name] in late:
                    log.warning("killed", instance_ended=process.name)
                    _signal(process, signal.SIGKILL)
            await asyncio.gather(*tasks, return_exceptions=True)
        for name in names:
            self._processes.pop(name, None)
            self._tasks.pop(name, None)
            if pipe := self._pipes.pop(name, None):
                pipe.close()
        self._write_table()

    async def _keep(self, process: Process) -> None:
        delay_s = 0.0
        while not self._stopping:
            try:
                await self._start_once(process)
            except Exception as error:
                log.error("start_failed", instance_started=process.name, error=repr(error))
            # Also when something failed after its start: never a second one beside it.
            if process.child is not None:
                status = await process.child.wait()
                process.child, process.pid = None, 0
                if self._stopping:
                    return
                log.warning("died", instance_ended=process.name, status=status)
                if time.monotonic() - process.started_at > SETTLED_AFTER_S:
                    delay_s = 0.0
            if self._stopping:
                return
            process.restarts += 1
            self._write_table()
            await asyncio.sleep(delay_s)
            delay_s = next_delay_s(delay_s)

    async def _start_once(self, process: Process) -> None:
        launch = await process.prepare()
        if self._stopping:
            raise asyncio.CancelledError
        output = self._pipes[process.name].writer
        process.child = await asyncio.create_subprocess_exec(
            *launch.command,
            env=dict(launch.env),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        process.pid, process.started_at = process.child.pid, time.monotonic()
        self._write_table()

    def _write_table(self) -> None:
        """Tells `mesh.ctl` what runs; a disk that is full is tried again until it has room."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        try:
            rows = [_row(process) for process in self._processes.values()]
            write_private(self._table, json.dumps(rows))
        except OSError as error:
            log.error("table_not_written", error=type(error).__name__, errno=error.errno)
            if not self._stopping:
                loop = asyncio.get_running_loop()
                self._retry = loop.call_later(TABLE_RETRY_S, self._write_table)


def _row(process: Process) -> dict[str, object]:
    return {
        "name": process.name,
        "service": process.service,
        "pid": process.pid,
        "restarts": process.restarts,
        "address": process.address(),
        "spiffe_id": process.spiffe_id,
    }


def _signal(process: Process, number: signal.Signals) -> None:
    if process.child is not None and process.child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.child.send_signal(number)
