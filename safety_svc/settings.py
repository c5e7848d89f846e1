"""Settings of the safety service, checked at start."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from safety_svc.backends.guard_llm import Style
from safety_svc.detectors.base import Category

POLICY = Path(__file__).with_name("policies") / "default.yaml"


class BackendKind(StrEnum):
    """What judges behind the rules."""

    CLASSIFIER = "classifier"  # the one that ships with the service
    RULES = "rules"  # nothing
    HUGGINGFACE = "huggingface"  # a folder
    GUARD_LLM = "guard_llm"  # a model on the inference nodes


class Settings(BaseSettings):
    """Read from the environment; SAFETY_ is the prefix of what is ours alone.

    `backend_timeout_ms` is for the classifier at one batch of looks or one conversation; waiting
    for others is not counted. `labels` is a JSON object: labels of the Hugging Face model, or codes
    of the guard model, and the category that each means.
    """

    model_config = SettingsConfigDict(frozen=True, env_prefix="SAFETY_", protected_namespaces=())

    database_url: str = Field(validation_alias="DATABASE_URL")
    policy_file: Path = POLICY
    policy_poll_interval_s: float = Field(default=1.0, gt=0, le=60)
    # Decisions are kept so long; the database keeps the last 30 days whatever stands here.
    decision_retention_days: int = Field(default=90, ge=31, le=3_650)
    purge_interval_s: float = Field(default=3_600, gt=0)
    audit_timeout_ms: int = Field(default=1_500, ge=10, le=10_000)
    backend: BackendKind = BackendKind.CLASSIFIER
    backend_timeout_ms: int = Field(default=1_000, ge=10, le=60_000)
    model_folder: Path | None = None
    labels: Mapping[str, Category] = {}
    guard_model: str = ""
    guard_style: Style = Style.PROMPT
