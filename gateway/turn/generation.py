"""One answer, whichever nodes it takes: a stream that breaks goes on at the next node.

The node that continues is told the tokens that were received; randomness is keyed by seed and
position, so that it draws the same ones the first would have drawn, and the client sees nothing.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import structlog

from gateway import metrics
from gateway.settings import TurnLimits
from gateway.turn.domain import Frame
from gateway.upstreams.inference import Inference, Job, NodeError
from gateway.upstreams.pool import NodeState, Pool, counted

log = structlog.get_logger()


class Generator:
    """Generates answers at the nodes of a pool."""

    def __init__(self, inference: Inference, pool: Pool, limits: TurnLimits) -> None:
        self._inference, self._pool, self._limits = inference, pool, limits

    async def generate(
        self, job: Job, emitted: Sequence[int] = (), first_attempt: int = 0
    ) -> AsyncGenerator[Frame, None]:
        """Streams an answer to its end, behind the tokens that were `emitted` before.

        The first frame of each attempt is empty: a node accepted. Attempts are numbered from
        `first_attempt`.

        Raises:
            MeshError: OVERLOADED, SERVICE_UNAVAILABLE, CONTEXT_LENGTH_EXCEEDED, …: no node would,
                or each one broke.
        """
        token_ids, tried = list(emitted), set[str]()
        for attempt in range(self._limits.node_attempt_count_max):
            node = self._pool.choose(job.request.model, job.affinity, tried)
            node = node or self._pool.choose(job.request.model, job.affinity)
            try:
                stream = self._at(node, job, first_attempt + attempt, token_ids)
                async with aclosing(stream) as frames:
                    async for frame in frames:
                        token_ids += frame.token_ids
                        yield frame
                return
            except NodeError as error:
                failure = error
            if not failure.is_movable:
                raise failure.public
            if node:
                tried.add(node.key)
            await self._turn_elsewhere(failure, job, attempt, tried)
        raise failure.public

    async def _at(
        self, node: NodeState | None, job: Job, attempt: int, emitted: Sequence[int]
    ) -> AsyncGenerator[Frame, None]:
        with counted(node):
            name = node.name if node else ""
            async with aclosing(self._inference.generate(job, name, attempt, emitted)) as frames:
                async for frame in frames:
                    yield frame

    async def _turn_elsewhere(
        self, failure: NodeError, job: Job, attempt: int, tried: set[str]
    ) -> None:
        """Returns when the next attempt may be made; raises when none should."""
        others = self._pool.has_other(job.request.model, tried)
        if not others and failure.is_refusal:
            raise failure.public
        metrics.CONTINUATIONS.labels(failure.reason).inc()
        turn_id = job.request.turn_id
        log.warning("generation_moved", turn_id=turn_id, reason=failure.reason, attempt=attempt)
        if not others:  # the one that is being restarted is worth waiting for
            await asyncio.sleep(self._limits.node_backoff_s * 2**attempt)
