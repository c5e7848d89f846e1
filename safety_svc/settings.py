"""Settings of the safety service, checked at start."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

POLICY = Path(__file__).with_name("policies") / "default.yaml"


class Settings(BaseSettings):
    """Read from the environment; SAFETY_ is the prefix of what is ours alone."""

    model_config = SettingsConfigDict(frozen=True, env_prefix="SAFETY_")

    database_url: str = Field(validation_alias="DATABASE_URL")
    policy_file: Path = POLICY
    policy_poll_interval_s: float = Field(default=1.0, gt=0, le=60)
    audit_timeout_ms: int = Field(default=1_500, ge=10, le=10_000)
