"""What the watchdog takes for stuck, on a clock that is a number."""

from gateway.turn.watchdog import Watchdog

BEGIN = 5_000.0  # the machine has run for a while


def test_the_first_look_finds_nothing_stuck_however_late_it_comes():
    assert not Watchdog(10, BEGIN).is_stuck(BEGIN, -1, is_due=True)
    assert not Watchdog(10, BEGIN).is_stuck(BEGIN + 1_000, -1, is_due=True)


def test_what_is_due_and_does_not_move_is_stuck_after_its_patience():
    watchdog = Watchdog(10, BEGIN)
    looks = [watchdog.is_stuck(BEGIN + second, 3, is_due=True) for second in (0, 5, 10, 10.5, 60)]
    assert looks == [False, False, False, True, True]


def test_progress_begins_the_patience_anew():
    watchdog = Watchdog(10, BEGIN)
    for second in range(100):
        assert not watchdog.is_stuck(BEGIN + second, second // 9, is_due=True)


def test_what_waits_for_others_is_never_stuck_and_has_its_patience_after():
    watchdog = Watchdog(10, BEGIN)
    for second in range(100):
        assert not watchdog.is_stuck(BEGIN + second, 3, is_due=False)
    assert not watchdog.is_stuck(BEGIN + 105, 3, is_due=True)
    assert watchdog.is_stuck(BEGIN + 110, 3, is_due=True)
