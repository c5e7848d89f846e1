"""An event loop whose time is a number: it jumps to the next timer when nothing is ready.

No threads, no sockets, no wall clock. Everything that runs belongs to a process (a context
variable that tasks, timers and callbacks inherit), and a process can be paused as by SIGSTOP: what
would run in it is held, in order, until it is resumed. Two runs of the same program make the same
steps: no set is iterated in the order of addresses, and the garbage collector is off.
"""

import asyncio
import contextvars
import gc
import heapq
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

# Steps at one moment before the loop says that time stands still.
STEPS_AT_ONCE_MAX = 200_000

_process: contextvars.ContextVar["Process | None"] = contextvars.ContextVar("process", default=None)
_serials = itertools.count()


class Stuck(Exception):  # noqa: N818  # what the run is, not what failed
    """Nothing will ever happen again, or everything happens at one moment."""


class Process:
    """What pauses and dies as a whole. `name` is of this life, `machine` of all its lives."""

    def __init__(self, name: str, machine: str = "") -> None:
        self.name, self.machine = name, machine or name
        self.is_paused = self.is_dead = False
        self.held: list[asyncio.Handle] = []
        self.context = contextvars.Context()
        self.context.run(_process.set, self)
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, work: Coroutine[Any, Any, Any], name: str = "") -> "asyncio.Task[Any]":
        """Runs work in this process."""
        loop = asyncio.get_running_loop()
        return loop.create_task(work, name=name, context=self.context.copy())

    def own(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.append(task)
        if len(self._tasks) > 64:
            self._tasks = self.tasks

    @property
    def tasks(self) -> "list[asyncio.Task[Any]]":
        """Those that have not ended."""
        return [task for task in self._tasks if not task.done()]

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        """What was held runs now, in its order."""
        self.is_paused = False
        asyncio.get_running_loop()._ready.extend(self.held)
        self.held = []

    async def die(self) -> None:
        """Ends all tasks; the network takes nothing from, and brings nothing to, the dead."""
        self.is_dead = True
        self.resume()
        for _ in range(100):
            if not (tasks := self.tasks):
                return
            for task in tasks:
                task.cancel()
            await asyncio.sleep(0)
        raise Stuck(f"{self.name} does not die: {[task.get_name() for task in self.tasks]}")


class _Task(asyncio.Task):
    """Hashes by age: sets of tasks have the same order in every run."""

    def __init__(self, coroutine: Any, **more: Any) -> None:
        self._serial = next(_serials)
        super().__init__(coroutine, **more)

    def __hash__(self) -> int:
        return self._serial

    def __eq__(self, other: object) -> bool:
        return self is other


class _Handle(asyncio.Handle):
    __slots__ = ()

    def _run(self) -> None:
        if not _is_held(self):
            asyncio.Handle._run(self)


class _Timer(asyncio.TimerHandle):
    __slots__ = ()

    def _run(self) -> None:
        if not _is_held(self):
            asyncio.Handle._run(self)


def _is_held(handle: asyncio.Handle) -> bool:
    """Whether it must not run now; one whose process is paused runs when that is resumed."""
    process = handle._context.get(_process)
    if process is not None and process.is_paused:
        process.held.append(handle)
        return True
    return handle._cancelled


class _Selector:
    """Waits for nothing: moves the clock."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop, self._idle_count = loop, 0

    def select(self, timeout: float | None) -> tuple[()]:
        if timeout is None:
            raise Stuck("nothing is left to happen")
        if timeout > 0:
            self._idle_count = 0
            self._loop.now += timeout
        else:
            self._idle_count += 1
            if self._idle_count > STEPS_AT_ONCE_MAX:
                raise Stuck(f"time stands still at {self._loop.now:.3f}")
        return ()

    def close(self) -> None:
        pass


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.step_count = 0
        self.failures: list[str] = []
        self._clock_resolution = 1e-9
        self._selector = _Selector(self)
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._failed)

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        self.step_count += 1
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    @staticmethod
    def _make_task(loop: Any, coroutine: Any, **more: Any) -> "asyncio.Task[Any]":
        task = _Task(coroutine, loop=loop, **more)
        context = more.get("context")
        process = context.get(_process) if context is not None else _process.get()
        if process is not None:
            process.own(task)
        return task

    def _failed(self, loop: Any, context: dict[str, Any]) -> None:
        self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def run(main: Callable[["VirtualLoop"], Coroutine[Any, Any, Any]]) -> Any:
    """Runs `main` to its end under a virtual clock that begins at 0."""
    loop = VirtualLoop()
    was_on = gc.isenabled()
    gc.disable()  # a collection would close abandoned generators at a moment of its own
    try:
        asyncio.set_event_loop(None)
        return loop.run_until_complete(main(loop))
    finally:
        loop.close()
        if was_on:
            gc.enable()
