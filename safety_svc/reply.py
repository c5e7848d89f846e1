"""One streamed answer under screening: the caller's messages in, clearances out.

Two tasks write: the one that reads the caller, and each look that comes back from the classifier.
Their order is the order in which the screener decided, because a fair lock is taken in the same
step. While looks are on their way the stream goes on, up to the window of the policy. At most
`PENDING_LOOK_COUNT_MAX` of them are on their way; beyond that the caller is read no further: so a
busy classifier slows the streams, and what waits for it is bounded by their number.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from chatmesh.safety.v1 import safety_pb2 as pb
from safety_svc import wire
from safety_svc.audit import QUOTATION_LENGTH_MAX, Judge
from safety_svc.backends.base import Backend, BackendError
from safety_svc.detectors.base import Audience, Finding
from safety_svc.detectors.windowed import TextWindow
from safety_svc.policy import Direction, Failure, Quoting, Regime
from safety_svc.policy_source import Published
from safety_svc.screen import Halted, Outcome, Passed, Released, ReplyScreener

DELTA_TOKEN_COUNT_MAX = 1 << 20
PENDING_LOOK_COUNT_MAX = 8

Write = Callable[[pb.ScreenReplyResponse], Awaitable[None]]


class ReplySession:
    """Screens one answer.

    Args:
        start: the caller's first message, checked.
        regime: the rules in force for it.
        published: the policy they come from, with its detectors.
        backend: the classifier; None: the rules judge alone.
        write: sends to the caller.
    """

    def __init__(
        self,
        start: pb.ReplyStart,
        regime: Regime,
        published: Published,
        backend: Backend | None,
        write: Write,
    ) -> None:
        self._regime, self._backend, self._write = regime, backend, write
        self._policy, self._owner = published.policy, start.subject.account_id
        direction = Direction.REPLY
        acted_on, redacted = regime.acted_on(direction), regime.redacted(direction)
        self.screener = ReplyScreener(
            regime,
            published.detectors.scanners(Audience.REPLY, acted_on, redacted),
            stride_min=backend.stride_min if backend else 0,
            masking=start.accepts_masks,
            is_json=start.is_json,
            clears=self._clears,
        )
        self.mask_count, self._is_json = 0, start.is_json
        self._backend_failed = False
        self._quoted: list[str] | None = [] if regime.quoting is Quoting.FULL else None
        self._quoted_length = 0
        self._over: asyncio.Future[Halted | Passed] = asyncio.get_running_loop().create_future()
        self._due: deque[TextWindow] = deque()  # a long delta brings more looks than may be asked
        self._looks: set[asyncio.Task[None]] = set()
        self._came_back = asyncio.Event()
        self._writing = asyncio.Lock()
        if start.released_text:
            self.screener.resume(start.released_text)

    @property
    def judge(self) -> Judge:
        """Which classifier took part."""
        if self._backend is None:
            return Judge()
        return Judge(self._backend.name, self._backend.digest, self._backend_failed)

    @property
    def quotation(self) -> str | None:
        """The answer's text, if the policy has it quoted."""
        return None if self._quoted is None else "".join(self._quoted)

    async def run(self, requests: AsyncIterator[pb.ScreenReplyRequest]) -> Halted | Passed:
        """Screens to the end; releases are written meanwhile, the outcome is not.

        Raises:
            MeshError: BAD_REQUEST, BACKEND_UNAVAILABLE.
        """
        reading = asyncio.create_task(self._read(requests))
        reading.add_done_callback(self._failed)
        try:
            return await self._over
        finally:
            tasks = [reading, *self._looks]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            if self._over.done() and not self._over.cancelled():
                self._over.exception()  # perhaps nobody waited for it any more

    async def _read(self, requests: AsyncIterator[pb.ScreenReplyRequest]) -> None:
        async for request in requests:
            await self._act(self._take(request))
            while self.screener.pending_count > PENDING_LOOK_COUNT_MAX:
                self._came_back.clear()
                await self._came_back.wait()
            if request.HasField("end"):
                return
        raise wire.bad("The stream closed before `end`: send `end` after the last delta.", "end")

    def _take(self, request: pb.ScreenReplyRequest) -> Outcome | None:
        """Takes one message after `start`."""
        event = request.WhichOneof("event")
        if event == "end":
            outcome = self.screener.end()
        elif event == "delta":
            outcome = self._delta(request.delta)
        else:
            raise wire.bad("After `start` come deltas and one `end`; open a new stream.", "event")
        self._due += self.screener.looks()
        self._ask()
        return outcome

    def _clears(self, text: str) -> bool:
        return self._backend is not None and self._backend.clears(text, Audience.REPLY)

    def _ask(self) -> None:
        """Sends looks on their way, as many as may be."""
        while self._due and len(self._looks) < PENDING_LOOK_COUNT_MAX:
            task = asyncio.create_task(self._look(self._due.popleft()))
            self._looks.add(task)
            task.add_done_callback(self._looked)
            task.add_done_callback(self._failed)

    def _looked(self, task: "asyncio.Task[None]") -> None:
        self._looks.discard(task)
        if not self._over.done():
            self._ask()

    def _delta(self, delta: pb.ReplyDelta) -> Outcome | None:
        if not delta.text:
            raise wire.bad("A delta needs at least 1 byte of text.", "text")
        if not 1 <= delta.token_count <= DELTA_TOKEN_COUNT_MAX:
            raise wire.bad("A delta needs a token_count of at least 1.", "token_count")
        if self._quoted is not None:
            self._quote(delta.text)
        outcome = self.screener.delta(delta.text, delta.token_count)
        if self.screener.byte_count > wire.REPLY_BYTE_COUNT_MAX:
            limit = wire.REPLY_BYTE_COUNT_MAX
            raise wire.bad(f"The answer is over {limit} bytes: end it earlier.", "text")
        return outcome

    def _quote(self, text: str) -> None:
        assert self._quoted is not None
        self._quoted.append(text)
        self._quoted_length += len(text)
        while self._quoted_length - len(self._quoted[0]) >= QUOTATION_LENGTH_MAX:
            self._quoted_length -= len(self._quoted.pop(0))

    async def _look(self, look: TextWindow) -> None:
        assert self._backend is not None
        findings: list[Finding] = []
        try:
            findings = list(await self._backend.inspect(look.text, Audience.REPLY, self._owner))
        except BackendError as error:
            if self._regime.unjudged is Failure.CLOSED:
                raise wire.unjudged() from error
            self._backend_failed = True
        outcome = self.screener.judged(look, findings)
        self._came_back.set()
        await self._act(outcome)

    async def _act(self, outcome: Outcome | None) -> None:
        """Writes a release; ends with anything else. Nothing is awaited before the lock."""
        if outcome is None:
            return
        self.mask_count += 0 if isinstance(outcome, Halted) else len(outcome.masks)
        async with self._writing:
            if not isinstance(outcome, Released):
                if not self._over.done():
                    self._over.set_result(outcome)
                return
            masks = wire.masks_of(outcome.masks, self._policy, is_json=self._is_json)
            release = pb.Release(release_up_to_offset=outcome.offset, masks=masks)
            await self._write(pb.ScreenReplyResponse(release=release))

    def _failed(self, task: "asyncio.Task[None]") -> None:
        """Hands the failure of a task to `run`."""
        error = None if task.cancelled() else task.exception()
        if error and not self._over.done():
            self._over.set_exception(error)
