"""Makes the engine that the settings name. An engine's own imports happen only here, when chosen:
a simulated node never loads torch. A further engine is one more line in `ENGINES`.
"""

import dataclasses
from collections.abc import Callable, Mapping

from inference_svc.engine.protocol import Engine, EngineError
from inference_svc.model_folder import ModelFolder
from inference_svc.settings import Settings


def _simulated(settings: Settings, model: ModelFolder) -> Engine:
    from inference_svc.engine.simulated import AnswerLength, SimulatedEngine, Timing

    return SimulatedEngine(
        model.vocabulary,
        model.eos_token_ids,
        timing=Timing(
            prefill_tokens_per_s=settings.simulated_prefill_tokens_per_s,
            token_interval_ms=settings.simulated_token_interval_ms,
            batch_token_count=settings.simulated_batch_token_count,
        ),
        length=AnswerLength(
            token_count_min=settings.simulated_answer_token_count_min,
            token_count_max=settings.simulated_answer_token_count_max,
            ignore_eos=settings.simulated_ignore_eos,
        ),
        block_count=settings.kv_block_count or settings.simulated_kv_block_count,
        queue_depth_max=settings.queue_depth_max,
        running_count_max=settings.simulated_running_count_max,
    )


def _torch(settings: Settings, model: ModelFolder) -> Engine:
    from inference_svc.engine.torch.engine import TorchEngine, TorchOptions

    names = (field.name for field in dataclasses.fields(TorchOptions))
    return TorchEngine(model, TorchOptions(**{name: getattr(settings, name) for name in names}))


ENGINES: Mapping[str, Callable[[Settings, ModelFolder], Engine]] = {
    "simulated": _simulated,
    "torch": _torch,
}


def choose_engine(settings: Settings, model: ModelFolder) -> Engine:
    """The engine `settings.engine`, not started.

    Raises:
        EngineError: no engine has this name.
    """
    make = ENGINES.get(settings.engine)
    if make is None:
        names = ", ".join(sorted(ENGINES))
        raise EngineError(f"INFERENCE_ENGINE={settings.engine} is unknown; choose one of: {names}.")
    return make(settings, model)
