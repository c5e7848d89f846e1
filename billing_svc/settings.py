"""What the environment says, checked at start."""

import datetime as dt
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from billing_svc.audit import Bounds
from billing_svc.kept_events import Bounds as KeptBounds
from billing_svc.limits import NO_LIMIT, TierLimits
from chatmesh.content.v1 import content_pb2

LIMIT_MAX = 2**31 - 1


class Settings(BaseSettings):
    """Settings of the meter; each BILLING_… unless it names another."""

    model_config = SettingsConfigDict(frozen=True, env_prefix="BILLING_", populate_by_name=True)

    # The role chatmesh_billing; the tables are there before (mesh.schema).
    database_url: str = Field(min_length=1, validation_alias="DATABASE_URL")
    redis_url: str = Field(min_length=1, validation_alias="REDIS_URL")
    prices: Path = Path(__file__).with_name("prices.yaml")
    connection_count_max: int = Field(default=16, ge=2, le=100)

    # What a new account may spend in a month, nano-USD; -1: no limit.
    budget_free_nanousd: int = Field(default=1_000_000_000, ge=-1)
    budget_pro_nanousd: int = Field(default=20_000_000_000, ge=-1)
    budget_enterprise_nanousd: int = Field(default=1_000_000_000_000, ge=-1)
    budget_admin_nanousd: int = Field(default=-1, ge=-1)

    # And what it may use: tokens of prompts and answers in a minute, turns at once. A tier that is
    # not named has no limit.
    tokens_per_minute: dict[str, Annotated[int, Field(ge=0, le=LIMIT_MAX)]] = {
        "free": 200_000,
        "pro": 2_000_000,
    }
    parallel_max: dict[str, Annotated[int, Field(ge=0, le=LIMIT_MAX)]] = {"free": 32, "pro": 256}

    # A settled turn whose nodes did not report in this time is charged by the gateway's count.
    reconcile_delay_s: float = Field(default=30.0, gt=0)
    # An event waits so long for the hold of its turn, then it goes to the dead letters.
    pending_age_max_s: float = Field(default=600.0, gt=0)
    # A charged event stays in the stream for so long: longer than a replica of PostgreSQL may lag
    # that can take over; and no longer than the stream has so many events, 200 bytes each.
    usage_keep_s: float = Field(default=900.0, ge=0)
    usage_keep_count_max: int = Field(default=100_000, ge=0)
    # A closed turn is forgotten after this; its ledger entries stay.
    turn_retention_days: int = Field(default=90, ge=1)
    job_interval_s: float = Field(default=1.0, gt=0)

    # The audit of ended turns: how often, and when an unsettled one is a finding: after its hold
    # expired (or its settlement, if the ledger still lacks some of it); while it is still open.
    audit_interval_s: float = Field(default=2.0, gt=0)
    audit_unsettled_s: float = Field(default=600.0, gt=0)
    audit_unended_s: float = Field(default=86_400.0, gt=0)

    @property
    def usage_keep(self) -> KeptBounds:
        """How long, and how many, charged events stay in the stream."""
        return KeptBounds(dt.timedelta(seconds=self.usage_keep_s), self.usage_keep_count_max)

    @property
    def audit_bounds(self) -> Bounds:
        """When the audit stops waiting for a turn."""
        return Bounds(
            unsettled=dt.timedelta(seconds=self.audit_unsettled_s),
            unended=dt.timedelta(seconds=self.audit_unended_s),
        )

    @property
    def tiers(self) -> dict[int, TierLimits]:
        """Limits of new accounts by number of content.v1.Tier."""
        budgets = {
            "free": self.budget_free_nanousd,
            "pro": self.budget_pro_nanousd,
            "enterprise": self.budget_enterprise_nanousd,
            "admin": self.budget_admin_nanousd,
        }
        return {
            content_pb2.Tier.Value(f"TIER_{tier.upper()}"): TierLimits(
                budget,
                self.tokens_per_minute.get(tier, NO_LIMIT),
                self.parallel_max.get(tier, NO_LIMIT),
            )
            for tier, budget in budgets.items()
        }
