"""The back end that the settings name."""

from collections.abc import Callable

import grpc

from safety_svc.backends.base import Backend, BackendError
from safety_svc.backends.guard_llm import GuardLlm
from safety_svc.backends.threads import ThreadBackend
from safety_svc.settings import BackendKind, Settings


def chosen(settings: Settings, channel_to: Callable[[str], grpc.aio.Channel]) -> Backend | None:
    """The back end, loaded; None: the rules judge alone.

    Raises:
        BackendError: it cannot be loaded; the message says what to do.
    """
    limit_s = settings.backend_timeout_ms / 1000
    if settings.backend is BackendKind.RULES:
        return None
    if settings.backend is BackendKind.HUGGINGFACE:
        from safety_svc.backends.huggingface import HuggingFaceModel

        if settings.model_folder is None:
            raise BackendError("SAFETY_MODEL_FOLDER must name the folder of the classifier")
        return ThreadBackend(HuggingFaceModel(settings.model_folder, settings.labels), limit_s)
    if settings.backend is BackendKind.GUARD_LLM:
        if not settings.guard_model:
            raise BackendError("SAFETY_GUARD_MODEL must name a model of the inference nodes")
        style, codes = settings.guard_style, settings.labels
        return GuardLlm(channel_to, settings.guard_model, limit_s, style, codes)
    from safety_svc.classifier.model import shipped

    return ThreadBackend(shipped(), limit_s)
