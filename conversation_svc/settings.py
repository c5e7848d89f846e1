"""What the environment says, checked at start."""

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Settings of the conversation store."""

    model_config = SettingsConfigDict(frozen=True)

    # DSN of the role chatmesh_conversation, which must not pass row-level security.
    database_url: SecretStr = Field(validation_alias="DATABASE_URL")
    redis_url: SecretStr = Field(validation_alias="REDIS_URL")
    # Connections to PostgreSQL, opened as they are needed.
    connection_count_max: int = Field(
        default=8, ge=1, le=100, validation_alias="CONVERSATION_CONNECTION_COUNT_MAX"
    )
    # How long the hot copy of a thread's newest messages lives after its last use.
    tail_ttl_s: int = Field(default=3600, ge=1, validation_alias="CONVERSATION_TAIL_TTL_S")
    # How long a deleted thread can still be restored by hand.
    purge_after_days: float = Field(
        default=30, ge=0, validation_alias="CONVERSATION_PURGE_AFTER_DAYS"
    )
    purge_interval_s: float = Field(
        default=3600, gt=0, validation_alias="CONVERSATION_PURGE_INTERVAL_S"
    )
