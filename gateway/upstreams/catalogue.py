"""Which models answer: merged from what each node serves, asked again every few seconds."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import grpc
import structlog

from gateway import errors
from gateway.errors import public
from gateway.turn.domain import ModelInfo
from gateway.upstreams.failures import translate
from gateway.upstreams.inference import Inference, fingerprint_of
from gateway.upstreams.pool import Pool
from mesh.chassis import deadlines
from mesh.chassis.errors import MeshError

FRESH_S = 2.0
# An unknown name is worth asking the nodes again, but not by every request.
UNKNOWN_FRESH_S = 0.2
# While no node answers, the list goes on for so long.
STALE_S = 30.0

log = structlog.get_logger()


class Catalogue:
    """The models of all nodes; a list that is a little old is served while a new one is fetched."""

    def __init__(
        self,
        inference: Inference,
        pool: Pool,
        default_model: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inference, self._pool, self._clock = inference, pool, clock
        self._default_model = default_model
        self._models: dict[str, ModelInfo] = {}
        self._told: dict[str, list[ModelInfo]] = {}  # by node, what it last answered
        self._fetched_at = float("-inf")
        self._fetching: asyncio.Task[None] | None = None

    async def models(self) -> list[ModelInfo]:
        """All models, sorted by id.

        Raises:
            MeshError: SERVICE_UNAVAILABLE, TIMEOUT: no node answers, and none did lately.
        """
        age_s = self._clock() - self._fetched_at
        if age_s > FRESH_S:
            fetching = self._fetch()
            if age_s > STALE_S:
                await asyncio.shield(fetching)
        return sorted(self._models.values(), key=lambda model: model.id)

    async def find(self, model_id: str) -> ModelInfo:
        """One model; "" is the default one.

        Raises:
            MeshError: MODEL_NOT_FOUND, and as `models`.
        """
        models = await self.models()
        if not model_id and models:
            return self._models.get(self._default_model, models[0])
        if model_id not in self._models and self._clock() - self._fetched_at > UNKNOWN_FRESH_S:
            await asyncio.shield(self._fetch())
        if model_id not in self._models:
            message = "No such model; GET /v1/models lists those that answer."
            raise public(errors.MODEL_NOT_FOUND, message, param="model")
        return self._models[model_id]

    def _fetch(self) -> "asyncio.Task[None]":
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.create_task(self._fetch_all())
            self._fetching.add_done_callback(_note)
        return self._fetching

    async def _fetch_all(self) -> None:
        deadlines.enter(None)  # many requests wait for it, not only the one that came first
        names = [node.name for node in self._pool.nodes] or [""]
        found = await asyncio.gather(*map(self._of_node, names))
        if all(models is None for models in found):
            failure = MeshError(grpc.StatusCode.UNAVAILABLE, "", "no node answers")
            raise translate("inference", failure)
        self._told = {
            # A node that is being restarted still serves what it served.
            name: self._told.get(name, []) if models is None else models
            for name, models in zip(names, found, strict=True)
        }
        self._models = merged(self._told.values())
        self._fetched_at = self._clock()

    async def _of_node(self, name: str) -> list[ModelInfo] | None:
        try:
            models = await self._inference.list_models(name)
        except (grpc.aio.AioRpcError, MeshError):
            return None
        self._pool.serves(name, frozenset(model.id for model in models))
        return models


def merged(told: Iterable[Sequence[ModelInfo]]) -> dict[str, ModelInfo]:
    """The models by id, each as what holds at any of its nodes.

    An answer may go on at any node. So where these differ (other weights, another precision), no
    answer can be drawn again, and the model has another fingerprint than each of them.

    Args:
        told: the models of each node.
    """
    by_id: dict[str, list[ModelInfo]] = {}
    for model in (model for models in told for model in models):
        by_id.setdefault(model.id, []).append(model)
    return {model_id: _common(models) for model_id, models in by_id.items()}


def _common(models: Sequence[ModelInfo]) -> ModelInfo:
    fingerprints = sorted({model.fingerprint for model in models})
    smallest = min(models, key=lambda model: model.context_token_count_max)
    common = replace(smallest, binds_calls=all(each.binds_calls for each in models))
    if len(fingerprints) == 1:
        return replace(common, draws_by_position=all(each.draws_by_position for each in models))
    fingerprint = fingerprint_of(" ".join(fingerprints))
    return replace(common, fingerprint=fingerprint, draws_by_position=False)


def _note(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()):
        log.warning("models_unknown", error=repr(error)[:200])
