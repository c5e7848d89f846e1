"""One answer, whichever nodes it takes: a stream that breaks goes on at the next node.

The node that continues is told the tokens that were received; randomness is keyed by seed and
position, so that it draws the same ones the first would have drawn, and the client sees nothing.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import structlog

from gateway import metrics
from gateway.settings import TurnLimits
from gateway.turn.domain import Frame
from gateway.upstreams.inference import Inference, Job, NodeError
from gateway.upstreams.pool import NodeState, Pool, counted

# Between two questions of full nodes for an answer that they must not refuse.
FULL_WAIT_S = 1.0

log = structlog.get_logger()


class Generator:
    """Generates answers at the nodes of a pool."""

    def __init__(self, inference: Inference, pool: Pool, limits: TurnLimits) -> None:
        self._inference, self._pool, self._limits = inference, pool, limits

    async def generate(
        self,
        job: Job,
        emitted: Sequence[int] = (),
        first_attempt: int = 0,
        *,
        is_begun: bool = False,
    ) -> AsyncGenerator[Frame, None]:
        """Streams an answer to its end, behind the tokens that were `emitted` before.

        The first frame of each attempt is empty: a node accepted. Attempts are numbered from
        `first_attempt`. When the turn `is_begun`, or this answer was, full nodes are waited for:
        a refusal would throw away what was generated and is charged.

        Raises:
            MeshError: OVERLOADED, SERVICE_UNAVAILABLE, CONTEXT_LENGTH_EXCEEDED, …: no node would,
                or each one broke.
        """
        token_ids, tried = list(emitted), set[str]()
        broken_count, waited_s = 0, 0.0
        for attempt in itertools.count(first_attempt):
            node = self._pool.choose(job.request.model, job.affinity, tried)
            node = node or self._pool.choose(job.request.model, job.affinity)
            try:
                stream = self._at(node, job, attempt, token_ids)
                async with aclosing(stream) as frames:
                    async for frame in frames:
                        is_begun, waited_s = True, 0.0
                        token_ids += frame.token_ids
                        yield frame
                return
            except NodeError as error:
                failure = error
            if not failure.is_movable:
                raise failure.public
            if node:
                tried.add(node.key)
            if is_begun and failure.is_full and waited_s < self._limits.full_wait_s_max:
                waited_s += await self._wait_for_room(job, tried)
                continue
            broken_count += 1
            if broken_count == self._limits.node_attempt_count_max:
                raise failure.public
            await self._turn_elsewhere(failure, job, broken_count, tried)

    async def _at(
        self, node: NodeState | None, job: Job, attempt: int, emitted: Sequence[int]
    ) -> AsyncGenerator[Frame, None]:
        with counted(node):
            name = node.name if node else ""
            async with aclosing(self._inference.generate(job, name, attempt, emitted)) as frames:
                async for frame in frames:
                    yield frame

    async def _wait_for_room(self, job: Job, tried: set[str]) -> float:
        """Returns when full nodes may be asked again: after so many seconds."""
        if self._pool.has_other(job.request.model, tried):
            return 0.0
        await asyncio.sleep(FULL_WAIT_S)
        return FULL_WAIT_S

    async def _turn_elsewhere(
        self, failure: NodeError, job: Job, broken_count: int, tried: set[str]
    ) -> None:
        """Returns when the next attempt may be made; raises when none should."""
        others = self._pool.has_other(job.request.model, tried)
        if not others and failure.is_refusal:
            raise failure.public
        metrics.CONTINUATIONS.labels(failure.reason).inc()
        turn_id = job.request.turn_id
        log.warning("generation_moved", turn_id=turn_id, reason=failure.reason, broken=broken_count)
        if not others:  # the one that is being restarted is worth waiting for
            await asyncio.sleep(self._limits.node_backoff_s * 2 ** (broken_count - 1))
