"""What is flat, and what only looks so."""

import math

import pytest

from tests.soak.plot import draw
from tests.soak.sample import Sample, Usage, percentile_ms
from tests.soak.verdict import judge


def run(count=120, step_s=5.0, **series):
    """Samples of one process whose values are functions of the number of the sample."""
    samples = []
    for number in range(count):
        values = {name: function(number) for name, function in series.items()}
        used = Usage(
            int(values.get("pid", 1)),
            values.get("memory", 100.0),
            int(values.get("descriptors", 50)),
            values.get("lag", 1.0),
        )
        disk = {"log": values.get("log", 10.0), "postgres": 100.0 * number}
        keys = int(values.get("keys", 5)), int(values.get("forever", 5))
        samples.append(Sample(number * step_s, {"gateway-1": used}, disk, keys))
    return samples


def growing(samples):
    return [one.name for one in judge(samples) if not one.is_flat]


def test_what_only_warms_up_or_swings_is_flat():
    assert growing(run()) == []
    assert growing(run(memory=lambda n: 100 + min(n, 20) * 10)) == []
    assert growing(run(memory=lambda n: 300 + 30 * math.sin(n))) == []
    # Rows are what people pay to keep; keys with a time to live go by themselves.
    assert growing(run(keys=lambda n: 100 * n)) == []


@pytest.mark.parametrize(
    ("series", "name"),
    [
        ({"memory": lambda n: 100 + n}, "memory_mib of gateway-1"),
        ({"descriptors": lambda n: 50 + n}, "descriptors of gateway-1"),
        ({"lag": lambda n: 1.0 if n < 80 else 250.0}, "lag_ms of gateway-1"),
        ({"log": lambda n: 10 + n}, "disk_mib of log"),
        ({"forever": lambda n: 5 + 10 * n}, "keys_without_expiry of redis"),
    ],
)
def test_what_grows_is_named(series, name):
    assert growing(run(**series)) == [name]


def test_a_process_that_was_killed_is_judged_by_its_longest_life():
    """A life that begins small again hides no growth, and is none."""
    assert growing(run(pid=lambda n: 1 if n < 30 else 2, memory=lambda n: 100 + n)) == [
        "memory_mib of gateway-1"
    ]
    short = run(pid=lambda n: n // 10, memory=lambda n: 100 + 30 * (n % 10))
    assert not [one for one in judge(short) if one.name.startswith("memory")]


def test_the_percentile_is_of_what_came_between():
    before = {"0.001": 100.0, "0.01": 110.0, "+Inf": 110.0}
    after = {"0.001": 100.0, "0.01": 209.0, "+Inf": 210.0}
    assert percentile_ms(before, after, 0.5) == 10
    assert percentile_ms(before, after, 1.0) == math.inf
    assert percentile_ms(after, before, 0.5) == 1  # another process: counted from its begin
    assert percentile_ms(before, before, 0.5) == 0


def test_the_picture_has_a_line_for_each(tmp_path):
    draw(run(20), tmp_path / "soak.svg")
    text = (tmp_path / "soak.svg").read_text()
    assert text.count("<!-- gateway-1 -->") == 3
    assert "<!-- postgres -->" in text
