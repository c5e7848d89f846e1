"""What a person may set for `make run`; everything has a default that works."""

from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from mesh.chassis.model_source import served_model_id


def _replicas(text: object) -> object:
    """Reads "gateway=2,inference=2"."""
    if not isinstance(text, str):
        return text
    pairs = [part.split("=", 1) for part in text.split(",") if part.strip()]
    if any(len(pair) != 2 for pair in pairs):  # noqa: PLR2004 - a pair has two
        raise ValueError("write it as service=count,service=count")
    return {service.strip(): count for service, count in pairs}


# The model in this repository.
MODEL_DEFAULT = "chatmesh-tiny"

Count = Annotated[int, Field(ge=0, le=64)]
Port = Annotated[int, Field(ge=1, le=65535)]


class UpSettings(BaseSettings):
    """Read from the environment; frozen and checked at start."""

    model_config = SettingsConfigDict(frozen=True, populate_by_name=True)

    # Plain HTTP on loopback, and TLS.
    edge_port: Port = 8080
    edge_tls_port: Port = 8443
    # Owner's DSN and URL of stores of your own; empty: embedded ones.
    database_url: str = ""
    redis_url: str = ""
    # Processes a service, such as "gateway=2,inference=2".
    replicas: Annotated[dict[str, Count], NoDecode, BeforeValidator(_replicas)] = {}
    # What all files of the copy may take together; more is said, in the log and as a metric.
    chatmesh_disk_mib_max: Annotated[int, Field(ge=512)] = 20_480
    # Folder or hub id of the model; empty: the one in this repository.
    model: str = ""
    model_id: str = ""
    # "torch" or "simulated".
    inference_engine: str = ""

    @property
    def served_model_id(self) -> str:
        """The id under which the model answers."""
        return served_model_id(self.model or MODEL_DEFAULT, self.model_id)

    def replicas_of(self, service: str, default: int) -> int:
        """How many processes of a service to run."""
        return self.replicas.get(service, default)

    def environment(self) -> dict[str, str]:
        """What the processes read of it; what is not set keeps their default."""
        given = {
            "MODEL": self.model,
            "MODEL_ID": self.model_id,
            "INFERENCE_ENGINE": self.inference_engine,
            "EDGE_PORT": str(self.edge_port),
            "EDGE_TLS_PORT": str(self.edge_tls_port),
        }
        return {name: value for name, value in given.items() if value}
