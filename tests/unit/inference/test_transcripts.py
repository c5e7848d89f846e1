"""What the scheduler decides, step by step, against golden files.

After a wanted change of the scheduler: `python -m tests.unit.inference.test_transcripts` writes
them again; read the difference.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from inference_svc.engine.torch.transcript import Limits, replay
from tests.support.engine_core import CoreUnderTest, Guesser, request
from tests.support.toy_backend import ToyBackend

FOLDER = Path(__file__).parent / "transcripts"


def chunked_prefill() -> CoreUnderTest:
    """A long prompt shares each step with two decodes."""
    under_test = CoreUnderTest(Limits(20, 16, 4))
    for name, count in (("short", 4), ("also", 7), ("long", 50)):
        under_test.add(request(name, range(count), 6))
        under_test.step()
    return under_test


def preemption() -> CoreUnderTest:
    """Two outgrow the blocks: the younger gives way, and finds its prompt in the cache."""
    under_test = CoreUnderTest(Limits(6, 32, 4))
    for name in ("old", "young"):
        under_test.add(request(name, range(20), 40, cache_salt=name))
    return under_test


def fork() -> CoreUnderTest:
    """Three answers to one prompt; one goes on from tokens that another node emitted."""
    under_test = CoreUnderTest(Limits(20, 24, 4))
    for name, emitted in (("a", ()), ("b", ()), ("c", (7, 8, 9))):
        under_test.add(request(name, range(40), 6, group="turn", emitted_token_ids=emitted))
    return under_test


def speculation() -> CoreUnderTest:
    """Guesses, some of them right."""
    under_test = CoreUnderTest(Limits(20, 16, 4), ToyBackend(repeat=6), Guesser())
    for name in ("a", "b"):
        under_test.add(request(name, [ord(name) % 40, *range(11)], 40))
    return under_test


def turns() -> CoreUnderTest:
    """Priorities, waiting and tenants: one place, and who gets it."""
    under_test = CoreUnderTest(Limits(20, 16, 1, 0.1))
    arrivals = (("low", -1, "x"), ("much1", 0, "a"), ("much2", 0, "a"), ("much3", 0, "a"))
    arrivals += (("little", 0, "b"), ("high1", 1, "c"), ("high2", 1, "c"), ("high3", 1, "c"))
    under_test.add(request("first", range(10), 3))
    for name, priority, salt in arrivals:
        under_test.add(request(name, range(10), 4, priority=priority, cache_salt=salt))
    return under_test


def cancel() -> CoreUnderTest:
    """One is cancelled while it runs, one while it waits, one fails."""
    under_test = CoreUnderTest(Limits(20, 32, 2), ToyBackend(poison=99))
    sequences = [under_test.add(request(name, range(20), 8)) for name in ("a", "b", "c")]
    under_test.add(request("bad", [99], 8))
    under_test.step()
    under_test.cancel(sequences[0])
    under_test.cancel(sequences[2])
    return under_test


ALL = (chunked_prefill, preemption, fork, speculation, turns, cancel)
SCENES: dict[str, Callable[[], CoreUnderTest]] = {scene.__name__: scene for scene in ALL}


def lines_of(scene: str) -> list[str]:
    under_test = SCENES[scene]()
    under_test.run()
    assert scene != "preemption" or under_test.scheduler.preempted_total
    return under_test.lines


def golden(scene: str) -> list[str]:
    return (FOLDER / f"{scene}.jsonl").read_text().splitlines()


@pytest.mark.parametrize("scene", SCENES)
def test_the_steps_are_those_of_the_golden_file(scene) -> None:
    assert lines_of(scene) == golden(scene)


@pytest.mark.parametrize("scene", SCENES)
def test_a_replay_decides_the_same(scene) -> None:
    assert list(replay(golden(scene))) == golden(scene)


def test_a_replay_notices_another_decision() -> None:
    lines = golden("preemption")
    other = json.loads(lines[0])
    other["begin"]["block_count"] -= 1
    assert list(replay([json.dumps(other), *lines[1:]]))[1:] != lines[1:]


if __name__ == "__main__":
    for name in SCENES:
        (FOLDER / f"{name}.jsonl").write_text("\n".join(lines_of(name)) + "\n")
        print(f"wrote {name}", file=sys.stderr)
