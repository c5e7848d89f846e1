"""One answer, whichever nodes it takes: a stream that breaks goes on at the next node.

The node that continues is told the tokens that were received; randomness is keyed by seed and
position, so that it draws the same ones the first would have drawn, and the client sees nothing.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import grpc
import structlog

from gateway import metrics
from gateway.settings import TurnLimits
from gateway.turn.domain import Frame
from gateway.upstreams.failures import translate
from gateway.upstreams.inference import BrokenStreamError, Inference, Job
from gateway.upstreams.pool import NodeState, Pool, counted
from mesh.chassis.errors import MeshError

# What another node may mend. INTERNAL without details is a transport that broke; with details it is
# the node's own failure, which would follow the request.
MOVABLE_CODES = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
MOVABLE_REASONS = {
    "QUEUE_FULL",
    "DEADLINE_UNREACHABLE",
    "DRAINING",
    "MODEL_NOT_FOUND",
    "REQUEST_TOO_LARGE",
}
# Refusals that no wait of ours will mend: with no other node left, the client is told at once.
REFUSALS = {"QUEUE_FULL", "DEADLINE_UNREACHABLE", "MODEL_NOT_FOUND", "REQUEST_TOO_LARGE"}

log = structlog.get_logger()


class Generator:
    """Generates answers at the nodes of a pool."""

    def __init__(self, inference: Inference, pool: Pool, limits: TurnLimits) -> None:
        self._inference, self._pool, self._limits = inference, pool, limits

    async def generate(self, job: Job, emitted: list[int]) -> AsyncGenerator[Frame, None]:
        """Streams an answer to its end; appends each token to `emitted`.

        The first frame of each attempt is empty: a node accepted.

        Raises:
            MeshError: OVERLOADED, SERVICE_UNAVAILABLE, CONTEXT_LENGTH_EXCEEDED, …: no node would,
                or each one broke.
        """
        tried: set[str] = set()
        for attempt in range(self._limits.node_attempt_count_max):
            node = self._pool.choose(job.request.model, job.affinity, tried)
            node = node or self._pool.choose(job.request.model, job.affinity)
            try:
                async with aclosing(self._at(node, job, attempt, emitted)) as frames:
                    async for frame in frames:
                        yield frame
                return
            except (grpc.aio.AioRpcError, BrokenStreamError, MeshError) as error:
                failure = _failure(error)
            if not _is_movable(failure):
                raise translate("inference", failure)
            if node:
                tried.add(node.key)
            await self._turn_elsewhere(failure, job, attempt, tried)
        raise translate("inference", failure)

    async def _at(
        self, node: NodeState | None, job: Job, attempt: int, emitted: list[int]
    ) -> AsyncGenerator[Frame, None]:
        with counted(node):
            name = node.name if node else ""
            async with aclosing(self._inference.generate(job, name, attempt, emitted)) as frames:
                async for frame in frames:
                    yield frame

    async def _turn_elsewhere(
        self, failure: MeshError, job: Job, attempt: int, tried: set[str]
    ) -> None:
        """Returns when the next attempt may be made; raises when none should."""
        others = self._pool.has_other(job.request.model, tried)
        if not others and failure.reason in REFUSALS:
            raise translate("inference", failure)
        reason = failure.reason or failure.code.name
        metrics.CONTINUATIONS.labels(reason).inc()
        log.warning("generation_moved", turn_id=job.request.turn_id, reason=reason, attempt=attempt)
        if not others:  # the one that is being restarted is worth waiting for
            await asyncio.sleep(self._limits.node_backoff_s * 2**attempt)


def _failure(error: Exception) -> MeshError:
    if isinstance(error, grpc.aio.AioRpcError):
        failure = MeshError.from_rpc(error)
        if failure.code is grpc.StatusCode.INTERNAL and not _has_details(error):
            failure.code = grpc.StatusCode.UNAVAILABLE
        return failure
    if isinstance(error, MeshError):
        return error
    return MeshError(grpc.StatusCode.UNAVAILABLE, "", str(error))


def _has_details(error: grpc.aio.AioRpcError) -> bool:
    return "grpc-status-details-bin" in (error.trailing_metadata() or {})


def _is_movable(failure: MeshError) -> bool:
    if failure.reason:
        return failure.reason in MOVABLE_REASONS
    return failure.code in MOVABLE_CODES
