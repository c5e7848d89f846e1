"""What an operator may set; read from the environment, checked at start, then frozen."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    PositiveInt,
    SecretStr,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

HMAC_SECRET_BYTES_MIN = 32
# A request a microsecond: rates are counted in whole ones.
RATE_MAX = 60_000_000


class WhenAway(BaseSettings):
    """What each limit does while its store is away, by tier: the one table of it.

    A request that cannot be asked about is refused ("closed"), counted by this gateway alone
    ("local"), or it waits for the store ("queue"). A tier that is not named is closed.
    """

    model_config = SettingsConfigDict(env_prefix="GATEWAY_AWAY_", frozen=True)

    # Requests a minute, in Redis. Local: each gateway grants an account its whole rate.
    requests: dict[str, Literal["closed", "local"]] = {
        "free": "closed",
        "pro": "local",
        "enterprise": "local",
        "admin": "local",
    }
    # Money, tokens a minute and turns at once, in billing's PostgreSQL. Never local: what several
    # gateways grant by themselves cannot be taken back.
    hold: dict[str, Literal["closed", "queue"]] = {
        "free": "closed",
        "pro": "queue",
        "enterprise": "queue",
        "admin": "queue",
    }
    hold_wait_s: float = Field(default=5.0, gt=0, le=60)
    # Accounts that a gateway counts by itself; the least recently seen is forgotten first.
    local_count_max: int = Field(default=10_000, ge=1)


class TurnLimits(BaseSettings):
    """Bounds of a turn."""

    model_config = SettingsConfigDict(env_prefix="GATEWAY_", frozen=True)

    turn_duration_s_max: float = Field(default=580.0, gt=0, le=600)
    # A client that takes nothing for so long is gone.
    reader_stall_s_max: float = Field(default=30.0, gt=0)
    heartbeat_s: float = Field(default=15.0, gt=0)
    # Renewed at half of it while the turn runs.
    hold_lifetime_s: float = Field(default=120.0, ge=2, le=3600)
    # Room for an answer whose length the client left open, where the context has it.
    answer_room_token_count: int = Field(default=512, ge=1)
    answer_token_count_max: dict[str, PositiveInt] = {
        "free": 4_096,
        "pro": 16_384,
        "enterprise": 65_536,
        "admin": 131_072,
    }
    node_attempt_count_max: int = Field(default=7, ge=1, le=32)
    # Doubles with each attempt: 7 attempts wait 12.6 s in all, longer than a node needs to return.
    node_backoff_s: float = Field(default=0.2, ge=0)
    # How long an answer that has begun, or whose turn has, waits for full nodes before it fails.
    full_wait_s_max: float = Field(default=60.0, ge=0, le=600)
    # Doubles too: 6 attempts wait 6.3 s in all. Nothing leaves meanwhile.
    safety_attempt_count_max: int = Field(default=6, ge=0, le=32)
    safety_backoff_s: float = Field(default=0.1, ge=0)
    # Silence of safety that is due nothing more of an answer; then its stream is opened anew. Far
    # above any wait of a busy safety service: it ends what would never end.
    safety_stall_s: float = Field(default=20.0, gt=0, le=600)
    # The last resort: a turn whose nodes are through, and of which nothing leaves for so long,
    # fails. Longer than all attempts at safety's stream together.
    turn_stall_s: float = Field(default=180.0, gt=0, le=600)
    # How long the last byte waits for the turn to be recorded; then recording goes on without it.
    conclude_wait_s: float = Field(default=2.0, ge=0)
    # The same for a turn that is kept: who has heard its end may go on with its conversation. Also
    # how long the promise of a background turn waits for the journal.
    store_wait_s: float = Field(default=10.0, ge=0)
    conclude_duration_s_max: float = Field(default=30.0, gt=0)
    # A turn without readers goes on for so long; then it ends as cancelled.
    reader_grace_s: float = Field(default=5.0, ge=0, le=600)
    # What a turn that can be made again may have sent before it is written to the journal.
    journal_flush_s: float = Field(default=0.25, gt=0, le=10)
    # A write or read of the journal that takes longer has failed.
    journal_timeout_s: float = Field(default=0.25, gt=0, le=10)
    # A gateway that is silent for so long has lost its turns to whoever adopts them.
    owner_lease_ms: int = Field(default=600, ge=100, le=60_000)
    # How long a turn that ended can still be followed, in all and for one account.
    turn_retention_s: int = Field(default=600, ge=1, le=86_400)
    turn_retention_bytes_max: int = Field(default=256 << 20, ge=0)
    account_retention_bytes_max: int = Field(default=16 << 20, ge=0)
    # Turns that this gateway takes over at once from one that is no more.
    adoption_count_max: int = Field(default=64, ge=1)
    away: WhenAway = Field(default_factory=WhenAway)


class QueueLimits(BaseSettings):
    """Bounds of the queue in which turns wait to begin, where more is asked than can be done."""

    model_config = SettingsConfigDict(env_prefix="GATEWAY_", frozen=True)

    # Enough for 1,000 turns a second at 30 ms of planning each; more would only wait in the
    # services behind, each call under its own deadline.
    planning_count_max: int = Field(default=32, ge=1)
    # What would wait longer is refused at once.
    queue_wait_s_max: float = Field(default=10.0, gt=0, le=60)
    waiting_count_max: int = Field(default=4_096, ge=0)
    account_waiting_count_max: int = Field(default=1_024, ge=0)
    # Share of an account of each tier beside others that wait.
    tier_weight: dict[str, Annotated[float, Field(gt=0)]] = {
        "free": 1.0,
        "pro": 4.0,
        "enterprise": 16.0,
        "admin": 16.0,
    }


class JwtSettings(BaseSettings):
    """Whose tokens are taken; none when no issuer is set."""

    model_config = SettingsConfigDict(env_prefix="GATEWAY_JWT_", frozen=True)

    issuer: str = ""
    audience: str = ""
    # HS256.
    secret: SecretStr = SecretStr("")
    # RS256 and ES256, by the type of each key; read again when it changes.
    jwks_file: Path | None = None
    role_claim: str = "role"
    leeway_s: float = Field(default=5.0, ge=0, le=300)

    @model_validator(mode="after")
    def _consistent(self) -> "JwtSettings":
        secret = self.secret.get_secret_value()
        if secret and len(secret.encode()) < HMAC_SECRET_BYTES_MIN:
            raise ValueError(
                f"GATEWAY_JWT_SECRET must have at least {HMAC_SECRET_BYTES_MIN} bytes."
            )
        if self.issuer and not self.audience:
            raise ValueError("GATEWAY_JWT_AUDIENCE must be set with GATEWAY_JWT_ISSUER.")
        if (secret or self.jwks_file) and not self.issuer:
            raise ValueError("GATEWAY_JWT_ISSUER must be set with a secret or a JWKS file.")
        return self


class AdmissionSettings(BaseSettings):
    """Limits of admission."""

    model_config = SettingsConfigDict(env_prefix="GATEWAY_", frozen=True)

    requests_per_minute: dict[str, Annotated[int, Field(ge=1, le=RATE_MAX)]] = {
        "free": 10,
        "pro": 60,
        "enterprise": 600,
    }
    away: WhenAway = Field(default_factory=WhenAway)
    # Of a round trip: far above what a busy event loop may add to it.
    rate_timeout_s: float = Field(default=1.0, gt=0)
    # A revoked key works for at most so long; the contract says 1 s.
    key_fresh_s: float = Field(default=0.8, gt=0, le=0.9)
    key_refresh_s: float = Field(default=0.4, gt=0)
    key_unknown_s: float = Field(default=0.5, ge=0)
    # While billing is away, a key that worked goes on for so long.
    key_stale_s: float = Field(default=30.0, ge=0)
    key_count_max: int = Field(default=20_000, ge=1)


class Settings(BaseSettings):
    """All of it."""

    model_config = SettingsConfigDict(frozen=True)

    redis_url: str = Field(validation_alias=AliasChoices("REDIS_URL", "redis_url"))
    # Answers requests that name no model; empty: the first by name.
    default_model: str = Field(default="", validation_alias="GATEWAY_DEFAULT_MODEL")
    # What the operator says to the models (`context/operator.py`); read again when it changes.
    operator_prompts_file: Annotated[Path | None, BeforeValidator(lambda path: path or None)] = (
        Field(default=None, validation_alias="GATEWAY_OPERATOR_PROMPTS_FILE")
    )
    turn: TurnLimits = Field(default_factory=TurnLimits)
    queue: QueueLimits = Field(default_factory=QueueLimits)
    jwt: JwtSettings = Field(default_factory=JwtSettings)
    admission: AdmissionSettings = Field(default_factory=AdmissionSettings)
