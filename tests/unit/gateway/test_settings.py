"""What the environment may say."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from gateway.settings import AdmissionSettings, Settings


def test_the_environment_fills_every_part(monkeypatch):
    monkeypatch.setenv("REDIS_URL", "redis://somewhere:1/0")
    monkeypatch.setenv("GATEWAY_HEARTBEAT_S", "5")
    monkeypatch.setenv("GATEWAY_REQUESTS_PER_MINUTE", '{"free": 3}')
    monkeypatch.setenv("GATEWAY_JWT_ISSUER", "me")
    monkeypatch.setenv("GATEWAY_JWT_AUDIENCE", "you")
    monkeypatch.setenv("GATEWAY_DEFAULT_MODEL", "m")
    settings = Settings()
    assert settings.redis_url == "redis://somewhere:1/0"
    assert settings.turn.heartbeat_s == 5
    assert settings.admission.requests_per_minute == {"free": 3}
    assert settings.jwt.issuer == "me"
    assert settings.default_model == "m"
    with pytest.raises(ValidationError):
        settings.redis_url = "x"


@pytest.mark.parametrize(("value", "path"), [("p.yaml", Path("p.yaml")), ("", None)])
def test_the_operators_prompts_are_a_file_or_none(monkeypatch, value, path):
    monkeypatch.setenv("REDIS_URL", "redis://somewhere:1/0")
    assert Settings().operator_prompts_file is None
    monkeypatch.setenv("GATEWAY_OPERATOR_PROMPTS_FILE", value)
    assert Settings().operator_prompts_file == path


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GATEWAY_REQUESTS_PER_MINUTE", '{"free": 0}'),
        ("GATEWAY_KEY_FRESH_S", "1"),
        ("GATEWAY_RATE_TIMEOUT_S", "0"),
    ],
)
def test_values_out_of_range_are_refused_at_start(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError):
        AdmissionSettings()
