"""Settings of an inference node, from the environment; frozen and checked at start."""

from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

MODEL_DEFAULT = Path(__file__).resolve().parent / "models" / "chatmesh-tiny"


class Settings(BaseSettings):
    """Read from `INFERENCE_…`, and `MODEL`, `MODEL_ID`, `REDIS_URL`.

    Raises:
        pydantic.ValidationError: a value is missing or out of its range.
    """

    model_config = SettingsConfigDict(
        env_prefix="INFERENCE_",
        frozen=True,
        populate_by_name=True,
        env_ignore_empty=True,  # an empty variable is as none
    )

    model: str = Field(
        default=str(MODEL_DEFAULT),
        validation_alias=AliasChoices("MODEL", "INFERENCE_MODEL"),
        description="folder with config.json, tokenizer.json and safetensors, or a hub id",
    )
    model_id: str = Field(
        default="",
        validation_alias=AliasChoices("MODEL_ID", "INFERENCE_MODEL_ID"),
        description="id that requests use; empty: the folder's name",
    )
    redis_url: str = Field(
        validation_alias=AliasChoices("REDIS_URL", "INFERENCE_REDIS_URL"),
        description="where the usage stream is",
    )
    engine: str = Field(default="torch", description="an engine of inference_svc.engine.choose")

    queue_depth_max: int = Field(default=256, ge=0, le=100_000, description="requests that wait")
    running_count_max: int = Field(default=64, ge=1, le=100_000, description="requests that run")
    kv_cache_bytes: int = Field(default=256 << 20, ge=1 << 16, description="memory of the KV cache")
    kv_block_count: int = Field(default=0, ge=0, description="KV blocks; 0: as many as fit")
    step_token_count_max: int = Field(
        default=0, ge=0, le=65_536, description="tokens of one step; 0: 256 on a CPU, 2048 on a GPU"
    )
    wait_s_max: float = Field(
        default=10.0, gt=0, description="seconds after which lower priorities get their turn"
    )
    thread_count: int = Field(
        default=0, ge=0, le=1024, description="0: the CPU quota, less one for the event loop"
    )
    backend: Literal["auto", "kernels", "torch", "cuda"] = Field(
        default="auto", description="what computes; auto: the fastest that works here"
    )
    weights: Literal["auto", "f32", "bf16", "int8"] = Field(
        default="auto", description="how weights are kept; auto: docs/decisions/0011"
    )
    kv: Literal["auto", "f32", "bf16", "int8"] = Field(
        default="auto", description="how keys and values are kept; auto: as the weights"
    )
    speculation: Literal["off", "ngram", "draft"] = Field(
        default="ngram", description="who drafts tokens: nobody, the prompt, or a smaller model"
    )
    speculation_model: str = Field(
        default="", description="the smaller model: folder or hub id, of the same tokenizer"
    )
    speculation_token_count_max: int = Field(
        default=8, ge=1, le=16, description="tokens drafted at once for a sequence, at most"
    )
    speculation_batch_max: int = Field(
        default=8, ge=1, le=64, description="nobody drafts when more sequences decode"
    )
    transcript_file: Path | None = Field(
        default=None,
        description="where arrivals and decisions of the scheduler are written, token ids of "
        "prompts and answers among them; none: nowhere",
    )
    flush_window_ms: float = Field(default=25.0, ge=0, le=1000)
    usage_flush_interval_s: float = Field(default=1.0, gt=0, le=60)
    usage_spool_bytes_max: int = Field(default=64 << 20, ge=1 << 12)
    usage_pending_event_count_max: int = Field(default=100_000, ge=1)
    redis_timeout_s: float = Field(default=1.0, gt=0, le=30)

    simulated_prefill_tokens_per_s: float = Field(default=0.0, ge=0, description="0: no time")
    simulated_token_interval_ms: float = Field(default=0.0, ge=0, description="0: no time")
    simulated_batch_token_count: int = Field(
        default=32, ge=1, le=4096, description="tokens handed over at once when they need no time"
    )
    simulated_ignore_eos: bool = Field(default=False, description="run to max_tokens")
    simulated_answer_token_count_min: int = Field(default=24, ge=1)
    simulated_answer_token_count_max: int = Field(default=160, ge=1)
    simulated_kv_block_count: int = Field(default=65_536, ge=1)
    simulated_running_count_max: int = Field(default=4096, ge=1)
