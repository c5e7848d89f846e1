"""What the control plane is told at start."""

from pathlib import Path

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from mesh.topology import TOPOLOGY_FILE


class Settings(BaseSettings):
    """Read from the environment (`CONTROL_…`); frozen and checked at start.

    Raises:
        pydantic.ValidationError: a value is missing or out of its range.
    """

    model_config = SettingsConfigDict(env_prefix="CONTROL_", frozen=True)

    state_dir: Path = Field(description="private folder: CA, registry, addresses")
    address: str = Field(
        default="127.0.0.1:0",
        pattern=r"^.+:\d{1,5}$",
        description="where peers with certificates are served; port 0: free, kept at restarts",
    )
    join_address: str = Field(
        default="127.0.0.1:0",
        pattern=r"^.+:\d{1,5}$",
        description="where join tokens are taken; port 0: free, kept at restarts",
    )
    names: tuple[str, ...] = Field(
        default=("localhost", "127.0.0.1"),
        description="DNS names and IP addresses of the control plane's certificate, as JSON",
    )
    topology: Path = TOPOLOGY_FILE
    operator_token_file: Path | None = Field(
        default=None, description="one-time join token of the identity 'operator'"
    )
    cert_lifetime_s: int = Field(default=3600, ge=2, le=30 * 24 * 3600)
    lease_ttl_ms: int = Field(default=3000, ge=300, le=60_000)
    restore_grace_s: float = Field(
        default=5.0, ge=0, le=60, description="how long endpoints of a former life are believed"
    )
    log_level: str = "info"


class EdgeSettings(BaseSettings):
    """What the edge is to be (`EDGE_…`); frozen and checked at start.

    Raises:
        pydantic.ValidationError: a value is missing or out of its range.
    """

    model_config = SettingsConfigDict(env_prefix="EDGE_", frozen=True)

    port: int = Field(default=8080, ge=1, le=65_535, description="plain HTTP on loopback")
    tls_port: int = Field(default=8443, ge=1, le=65_535)
    cert_file: Path | None = Field(default=None, description="public certificate chain (PEM)")
    key_file: Path | None = Field(default=None, description="its key (PEM)")
    host: str = Field(default="127.0.0.1", description="where TLS is served; 0.0.0.0: everywhere")
    names: tuple[str, ...] = Field(
        default=("localhost", "127.0.0.1", "::1"),
        description="names of the certificate that is made when none is given, as JSON",
    )
    cors_origins: tuple[str, ...] = Field(
        default=(), description="origins of browser pages that may call, as JSON"
    )

    @model_validator(mode="after")
    def _both_or_none(self) -> "EdgeSettings":
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("give EDGE_CERT_FILE and EDGE_KEY_FILE, or neither")
        return self
