"""What the supervisor tells every process about its place in the mesh."""

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class NodeSettings(BaseSettings):
    """Read from the environment (`CHATMESH_…`); frozen and checked at start.

    Raises:
        pydantic.ValidationError: a value is missing or out of its range.
    """

    model_config = SettingsConfigDict(env_prefix="CHATMESH_", frozen=True)

    service: str = Field(min_length=1, description="service of the topology, such as 'inference'")
    instance: str = Field(min_length=1, description="unique name, such as 'inference-1'")
    control_address: str = Field(description="host:port of the control plane (mTLS)")
    join_address: str = Field(default="", description="host:port where join tokens are taken")
    join_token: SecretStr = Field(description="one-time token for the first certificate")
    trust_bundle: Path = Field(description="PEM roots that sign the control plane's certificate")
    state_dir: Path = Field(description="private folder of this process, mode 0700")
    bind_host: str = "127.0.0.1"
    log_level: str = "info"
    drain_grace_s: float = Field(default=20.0, ge=0, le=3600)
    # A connection is cut (new calls move on, streams finish) at this age, so that a peer whose
    # certificate has expired does not stay connected for ever.
    connection_age_max_s: float = Field(default=900.0, gt=0)
    # Calls to and from others share one stream (mesh/chassis/link); off: each is an RPC of its own.
    link: bool = True
