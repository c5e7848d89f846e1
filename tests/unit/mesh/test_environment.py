"""A process sees of the operator's environment what the topology names, and nothing else."""

import pytest

from mesh import topology
from mesh.settings import UpSettings
from mesh.system import process_environment

TABLE = topology.load()
# What an operator's shell may hold.
SHELL = {
    "PATH": "/bin",
    "LC_ALL": "C",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector",
    "GATEWAY_JWT_SECRET": "a secret",
    "BILLING_BUDGET_FREE_NANOUSD": "1",
    "CONTROL_CERT_LIFETIME_S": "60",
    "INFERENCE_WEIGHTS": "int8",
    "SAFETY_BACKEND": "rules",
    "AWS_SECRET_ACCESS_KEY": "another secret",
    "DATABASE_URL": "postgresql://owner:secret@host/db",
    "REDIS_URL": "redis://owner:secret@host",
    "CHATMESH_JOIN_TOKEN": "stale",
}
COMMON = {"PATH", "LC_ALL", "OTEL_EXPORTER_OTLP_ENDPOINT"}


def seen(service: str, **own: str) -> dict[str, str]:
    settings = UpSettings(model="org/name", edge_port=9000)
    return process_environment(TABLE, settings, service, SHELL, own)


@pytest.mark.parametrize(
    ("service", "names"),
    [
        ("gateway", {"GATEWAY_JWT_SECRET"}),
        ("inference", {"INFERENCE_WEIGHTS", "MODEL"}),
        ("tokenizer", {"MODEL"}),
        ("safety", {"SAFETY_BACKEND"}),
        ("billing", {"BILLING_BUDGET_FREE_NANOUSD"}),
        ("conversation", set()),
        ("edge", {"EDGE_PORT", "EDGE_TLS_PORT"}),
        ("control", {"CONTROL_CERT_LIFETIME_S", "EDGE_PORT", "EDGE_TLS_PORT"}),
    ],
)
def test_each_service_sees_its_own_and_the_common_ones(service: str, names: set[str]) -> None:
    assert seen(service).keys() == COMMON | names


def test_every_service_is_looked_at() -> None:
    assert {"gateway", "inference", "tokenizer", "safety", "billing", "conversation", "edge",
            "control"} == TABLE.services.keys()  # fmt: skip


def test_what_is_given_to_one_process_stands_above_the_shell() -> None:
    environment = seen("billing", REDIS_URL="redis://chatmesh_billing:x@host", PATH="/own")
    assert environment["REDIS_URL"] == "redis://chatmesh_billing:x@host"
    assert environment["PATH"] == "/own"
    assert "DATABASE_URL" not in environment


def test_checked_settings_stand_above_the_shell() -> None:
    assert seen("edge")["EDGE_PORT"] == "9000"
    assert seen("inference")["MODEL"] == "org/name"
