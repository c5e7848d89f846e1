"""Response formats are tried in a process of their own before this one compiles them.

A schema of forty bytes can take minutes and gigabytes to compile ("multipleOf": 9999991), and
nothing ends a thread that does. A process can be ended: it may take so much processor time and so
much memory for each format, and what takes more is refused.

    passed ──a line of JSON──> python -m inference_svc.engine.torch.format_trial FOLDER ID
           <──{"fault": …}──   one at a time, tenants in turn; ended: the format is refused
"""

import asyncio
import contextlib
import json
import math
import resource
import sys
import time
from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, TextIO

import structlog

from inference_svc.engine.protocol import (
    BadFormatError,
    Calls,
    CallSyntax,
    FormatKind,
    QueueFullError,
    ResponseFormat,
    Tool,
)
from inference_svc.engine.torch.constrained import GrammarCompiler
from inference_svc.model_folder import ModelFolder, open_model

# Processor time of one format, in whole seconds, as the kernel counts; usual ones take 0.05 s.
CPU_S_MAX = 2
# Beyond what the process has with the tokenizer loaded.
MEMORY_BYTES_MAX = 512 << 20
# Far above CPU_S_MAX on a busy machine: only a process that stands still comes to it.
WAIT_S_MAX = 60.0
VERDICT_COUNT_MAX = 256
# Formats of one tenant that wait to be tried.
TENANT_WAITING_COUNT_MAX = 8
LINE_BYTES_MAX = 1 << 20
TOO_MUCH = "it takes too much time or memory to compile; simplify it"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a trial."""

    # Why it is refused; empty: it passed.
    fault: str = ""


class FormatTrials:
    """Tries formats for one model; used from the event loop only."""

    def __init__(self, model: ModelFolder) -> None:
        self._model = model
        self._process: asyncio.subprocess.Process | None = None
        self._verdicts: OrderedDict[ResponseFormat, Verdict] = OrderedDict()
        self._running: dict[ResponseFormat, asyncio.Task[Verdict]] = {}
        self._waiting: dict[str, int] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._asking = asyncio.Lock()

    async def passed(self, wanted: ResponseFormat, tenant: str) -> None:
        """Returns when the format can be compiled within the budget.

        Raises:
            BadFormatError: it cannot.
            QueueFullError: too many formats of this tenant wait.
        """
        if wanted.kind is FormatKind.JSON_OBJECT:  # always the same
            return
        verdict = self._verdicts.get(wanted)
        if verdict is None:
            if wanted not in self._running:
                self._begin(wanted, tenant)
            # A caller that leaves does not end it: others may wait, and the next one asks again.
            verdict = await asyncio.shield(self._running[wanted])
        if verdict.fault:
            raise BadFormatError(verdict.fault)

    async def close(self) -> None:
        """Ends the process."""
        for task in list(self._running.values()):
            task.cancel()
        await self._end()

    def _begin(self, wanted: ResponseFormat, tenant: str) -> None:
        if self._waiting.get(tenant, 0) >= TENANT_WAITING_COUNT_MAX:
            raise QueueFullError(TENANT_WAITING_COUNT_MAX)
        self._waiting[tenant] = self._waiting.get(tenant, 0) + 1
        task = asyncio.create_task(self._tried(wanted, tenant))
        self._running[wanted] = task
        task.add_done_callback(lambda _: self._over(wanted, tenant))

    def _over(self, wanted: ResponseFormat, tenant: str) -> None:
        del self._running[wanted]
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            self._turns.pop(tenant, None)

    async def _tried(self, wanted: ResponseFormat, tenant: str) -> Verdict:
        # One of each tenant stands in line, so that the line serves them in turn.
        async with self._turns.setdefault(tenant, asyncio.Lock()), self._asking:
            verdict = await self._asked(wanted)
        self._verdicts[wanted] = verdict
        while len(self._verdicts) > VERDICT_COUNT_MAX:
            self._verdicts.popitem(last=False)
        return verdict

    async def _asked(self, wanted: ResponseFormat) -> Verdict:
        question = asdict(wanted) | {"kind": wanted.kind.value}
        try:
            async with asyncio.timeout(WAIT_S_MAX):
                process = self._process = self._process or await self._started()
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(json.dumps(question).encode() + b"\n")
                await process.stdin.drain()
                if answer := await process.stdout.readline():
                    return Verdict(json.loads(answer)["fault"])
        except (OSError, TimeoutError) as error:
            log.warning("format_trial_failed", error=type(error).__name__)
        except asyncio.CancelledError:
            await self._end()
            raise
        await self._end()
        log.warning("format_too_costly", kind=wanted.kind.value)
        return Verdict(f"The {wanted.kind.value} cannot be enforced: {TOO_MUCH}.")

    async def _started(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "inference_svc.engine.torch.format_trial"),
            *(str(self._model.folder), self._model.id),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
        )

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def serve(questions: BinaryIO, answers: TextIO, compiler: GrammarCompiler) -> None:
    """The process: a question a line, until there is none; each under its budget."""
    while line := questions.readline():
        asked = json.loads(line)
        wanted = _format_of(asked)
        used_s = time.process_time()
        # The kernel ends what passes it: no code of ours runs while the library compiles.
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used_s) + CPU_S_MAX, -1))
        fault = ""
        try:
            compiler.compile(wanted)
        except BadFormatError as error:
            fault = str(error)
        except Exception as error:  # the library failed
            fault = f"The {wanted.kind.value} cannot be compiled ({type(error).__name__})."
        resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))
        answers.write(json.dumps({"fault": fault}) + "\n")
        answers.flush()


def _format_of(asked: dict[str, Any]) -> ResponseFormat:
    calls = asked["calls"]
    if calls is not None:
        syntax, tools = CallSyntax(**calls["syntax"]), (Tool(**tool) for tool in calls["tools"])
        calls = Calls(**(calls | {"syntax": syntax, "tools": tuple(tools)}))
    kind, choices = FormatKind(asked["kind"]), tuple(asked["choices"])
    return ResponseFormat(kind, asked["text"], choices, calls)


def main() -> None:
    """Loads the tokenizer, bounds its own memory, and serves."""
    folder, model_id = sys.argv[1:]
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints is no answer
    compiler = GrammarCompiler(open_model(folder, model_id))
    compiler.compile(ResponseFormat(FormatKind.JSON_OBJECT))
    with open("/proc/self/statm", encoding="ascii") as statm:
        size = int(statm.read().split()[0]) * resource.getpagesize() + MEMORY_BYTES_MAX
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(sys.stdin.buffer, answers, compiler)


if __name__ == "__main__":
    main()
