"""The rate while Redis is away: the same algorithm, for a bounded number of accounts."""

from gateway.admission.rate import LocalRate


def test_a_minute_may_be_used_at_once_and_is_regained_evenly() -> None:
    now = [100.0]
    rate = LocalRate(10, lambda: now[0])
    left = [rate.take("a", 3)[1] for _ in range(3)]
    assert left == [2, 1, 0]
    allowed, _, wait_us, _ = rate.take("a", 3)
    assert (allowed, wait_us) == (0, 20_000_000)
    assert rate.take("b", 3)[0] == 1  # each has its own
    now[0] += 20
    assert [rate.take("a", 3)[0] for _ in range(2)] == [1, 0]
    now[0] += 600
    assert [rate.take("a", 3)[0] for _ in range(4)] == [1, 1, 1, 0]


def test_accounts_are_forgotten_the_least_recently_seen_first() -> None:
    rate = LocalRate(2, lambda: 0.0)
    for account in ("a", "b", "a", "c"):
        rate.take(account, 1)
    assert [rate.take(account, 1)[0] for account in ("a", "c")] == [0, 0]
    assert rate.take("b", 1)[0] == 1
