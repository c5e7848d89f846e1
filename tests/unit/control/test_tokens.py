"""Join tokens: once, in time, by digest."""

import pytest

from mesh.control import tokens
from mesh.control.tokens import JoinTokens


def test_a_token_works_once():
    store = JoinTokens()
    token = store.create("gateway", 60, 1000.0)
    assert store.redeem(token, 1001.0) == "gateway"
    assert store.redeem(token, 1001.0) is None


def test_a_token_expires():
    store = JoinTokens()
    token = store.create("gateway", 0, 1000.0)
    late = store.create("gateway", 0, 1000.0)
    assert store.redeem(token, 1000.0 + tokens.LIFETIME_S_DEFAULT - 1) == "gateway"
    assert store.redeem(late, 1000.0 + tokens.LIFETIME_S_DEFAULT) is None


def test_unknown_tokens_stand_for_nobody():
    assert JoinTokens().redeem("guess", 0.0) is None


def test_only_digests_are_kept_and_survive():
    store = JoinTokens()
    token = store.create("gateway", 60, 1000.0)
    assert token not in repr(store.outstanding)
    assert JoinTokens(store.outstanding).redeem(token, 1001.0) == "gateway"


@pytest.mark.parametrize("lifetime_s", [-1, tokens.LIFETIME_S_MAX + 1])
def test_the_lifetime_has_a_range(lifetime_s):
    with pytest.raises(ValueError, match="lifetime_s must be"):
        JoinTokens().create("gateway", lifetime_s, 0.0)


def test_outstanding_tokens_are_bounded_and_expired_ones_make_room(monkeypatch):
    monkeypatch.setattr(tokens, "OUTSTANDING_MAX", 3)
    store = JoinTokens()
    for _ in range(3):
        store.create("gateway", 60, 1000.0)
    with pytest.raises(tokens.TooManyTokensError):
        store.create("gateway", 60, 1059.0)
    assert store.create("gateway", 60, 1061.0)
