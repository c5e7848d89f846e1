"""The requests of an experiment are the same for the same seed, distinct, and of every shape."""

import json

import pytest

from tests.chaos.wishes import PROMPTS, SHAPES, SHAPES_BY_ENGINE, STREAMED, plan


def test_the_same_seed_gives_the_same_requests():
    assert plan(5, 60, SHAPES) == plan(5, 60, SHAPES)
    assert plan(5, 60, SHAPES) != plan(6, 60, SHAPES)


def test_prompts_are_distinct_even_when_there_are_more_requests_than_prompts():
    wishes = plan(1, 3 * len(PROMPTS), ("stream",))
    texts = [wish.bodies[0]["messages"][0]["content"] for wish in wishes]
    assert len(set(texts)) == len(texts)
    assert len(PROMPTS) >= 40


@pytest.mark.parametrize("engine", SHAPES_BY_ENGINE)
def test_every_shape_has_its_turn_and_every_request_its_seed(engine):
    shapes = SHAPES_BY_ENGINE[engine]
    wishes = plan(2, 2 * len(shapes), shapes)
    assert [wish.shape for wish in wishes] == [*shapes, *shapes]
    for wish in wishes:
        assert len(wish.bodies) == (2 if wish.shape == "conversation" else 1)
        for body in wish.bodies:
            assert isinstance(body["seed"], int)
            json.dumps(body)
    by_shape = {wish.shape: wish.bodies[0] for wish in wishes}
    assert by_shape["choices"]["n"] == 2
    assert by_shape["background"]["background"]
    assert by_shape["conversation"]["store"]
    assert by_shape["stops"]["stop"]
    assert set(shapes) >= STREAMED - {"formats"}
