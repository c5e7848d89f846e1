"""Made conversations: every skill renders, facts are consistent, wordings are held out."""

import itertools
import random
import re

import pytest

from training.data import conversations, evaluation, phrasing, preferences
from training.data.evaluation import build
from training.data.skills import (
    base,
    household,
    language,
    limits,
    numbers,
    safety,
    stories,
    transforms,
    world,
)
from training.data.skills.base import Draw, Material

NOTHING = Material(harmful=(), queries={}, too_hard=(), strange=(), support=())
TABLES = ("advice", "explain", "facts", "identity", "lookalikes", "smalltalk")


@pytest.mark.parametrize("name", list(conversations.SKILLS))
def test_every_skill_fills_its_slots(name: str) -> None:
    draw = Draw(random.Random(1), NOTHING)
    skill = conversations.SKILLS[name][0]
    for exchange in itertools.chain.from_iterable(skill(draw) for _ in range(150)):
        for text in (exchange.ask, exchange.say, exchange.more):
            assert "{" not in text, exchange
            assert "}" not in text, exchange
        assert exchange.ask.strip(), exchange
        assert exchange.say.strip(), exchange
        lower = name in {"word form", "transform", "copying"} or exchange.say.startswith(
            ("chatmesh", "xDS")
        )
        assert lower or not exchange.say[0].islower(), exchange


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_clean(name: str) -> None:
    for entry in base.entries(name):
        for text in (*entry.questions, *entry.answers, entry.more):
            assert text == text.strip()
            assert text.isascii(), text
        assert all(answer[-1] in ".!?`" for answer in entry.answers), entry


def test_no_question_has_two_answers() -> None:
    answers: dict[str, tuple[str, ...]] = {}
    for name in TABLES:
        for entry in base.entries(name):
            for question in entry.questions:
                key = evaluation.normalised(question)
                known = answers.setdefault(key, entry.answers)
                assert known == entry.answers, f"{question}: {known} or {entry.answers}"


def test_a_right_answer_is_judged_right() -> None:
    draw = Draw(random.Random(2), NOTHING)
    for name, (skill, _) in conversations.SKILLS.items():
        for exchange in itertools.chain.from_iterable(skill(draw) for _ in range(60)):
            if exchange.answers and name != "list":
                assert evaluation.matches(exchange.say, list(exchange.answers)), exchange


def test_sums_are_right() -> None:
    draw = Draw(random.Random(3), NOTHING)
    for skill in (numbers.arithmetic, numbers.tens):
        for _ in range(300):
            for sum_, value in re.findall(r"(\d+ [-+*/] \d+) = (-?\d+)", skill(draw)[0].say):
                left, sign, right = sum_.split()
                a, b = int(left), int(right)
                expected = {"+": a + b, "-": a - b, "*": a * b, "/": a // max(b, 1)}[sign]
                assert int(value) == expected, sum_


def test_wordings_of_the_evaluation_are_not_in_the_training() -> None:
    modules = (phrasing, household, language, limits, numbers, safety, stories, transforms, world)
    found = [w for m in modules for w in vars(m).values() if isinstance(w, phrasing.Wordings)]
    assert len(found) > 40
    for wording in found:
        if wording.held != ("{q}",):
            assert not set(wording.train) & set(wording.held), wording


def test_questions_are_reworded_in_grammar() -> None:
    slots = [phrasing.variants(q) for q in ("Why is the sky blue?", "How do I boil an egg?")]
    assert {"s": "the sky is blue"} in [slot for _, slot in slots[0]]
    assert {"x": "boil an egg"} in [slot for _, slot in slots[1]]
    assert base.article("a owl and a unicorn") == "an owl and a unicorn"


def test_typing_noise_keeps_sums_readable() -> None:
    rng = random.Random(4)
    for _ in range(300):
        assert re.search(r"12 ?\+ ?30", phrasing.typed(rng, "What is 12 + 30?"))


def test_conversations_follow_their_system_message() -> None:
    found = set()
    for made in itertools.islice(conversations.stream(NOTHING, 5), 3000):
        first = made.messages[0]
        said = [m["content"] for m in made.messages if m["role"] == "assistant"]
        if first["content"] in conversations.OPENERS:
            assert all(s.startswith(conversations.OPENERS[first["content"]]) for s in said)
            found.add("opener")
        if first["content"] in conversations.BRIEF:
            assert all(base.first_sentence(s) == s for s in said)
            found.add("brief")
        for name in conversations.PERSONAS:
            if first["content"] == f"Your name is {name}.":
                assert f"My name is {name}." in said[0]
                found.add("name")
    assert found == {"opener", "brief", "name"}


def test_the_skills_are_balanced() -> None:
    made = list(itertools.islice(conversations.stream(NOTHING, 6), 4000))
    counts = {name: sum(c.kind == name for c in made) for name in conversations.SKILLS}
    assert min(counts.values()) >= 3, counts
    assert max(counts.values()) < 0.2 * len(made), counts
    system = sum(c.messages[0]["role"] == "system" for c in made) / len(made)
    assert 0.2 < system < 0.4


def test_pairs_are_spoilt_as_they_say() -> None:
    for pair in itertools.islice(preferences.stream(NOTHING, 7), 1500):
        assert pair.chosen != pair.rejected
        if pair.kind == "unsafe":
            assert evaluation.is_refusal(pair.chosen)
            assert not evaluation.is_refusal(pair.rejected)
        if pair.kind == "refused":
            assert evaluation.is_refusal(pair.rejected)
            assert not evaluation.is_refusal(pair.chosen)
        if pair.kind == "shuffled":
            assert sorted(pair.chosen.split()) == sorted(pair.rejected.split())
        if pair.kind == "wrong sum":
            assert pair.chosen.split()[:-1] == pair.rejected.split()[:-1]


def test_the_committed_questions_are_what_the_skills_make() -> None:
    assert build.questions() == evaluation.load("qa")
