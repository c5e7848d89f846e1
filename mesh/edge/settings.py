"""How Envoy is run on this machine."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class EnvoySettings(BaseSettings):
    """Read from the environment (`EDGE_…`); frozen and checked at start.

    Raises:
        pydantic.ValidationError: a value is out of its range.
    """

    model_config = SettingsConfigDict(env_prefix="EDGE_", frozen=True)

    # One worker carries about 30 000 events a second, more than a gateway produces.
    concurrency: int = Field(default=1, ge=1, le=64)
    heap_mib_max: int = Field(default=1024, ge=64, le=65_536)
    # Longer than the longest answer.
    drain_s: int = Field(default=3600, ge=1, le=86_400)
    log_level: str = Field(default="warning", pattern="^(trace|debug|info|warning|error|critical)$")
    log_flush_ms: int = Field(default=1000, ge=10, le=60_000)
