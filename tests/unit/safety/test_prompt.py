"""Rules and a classifier together: who is believed about attacks on the model."""

from collections.abc import Sequence

import pytest

from safety_svc.classifier.labels import NAME
from safety_svc.detectors.base import Audience, Category, Finding, PromptFinding, Turn
from safety_svc.policy import Action
from safety_svc.policy_source import published
from safety_svc.prompt import PromptScreener
from safety_svc.settings import POLICY

QUOTE = 'The talk explains why "ignore all previous instructions" works.'


POLICY_IN_FORCE = published(POLICY.read_text(encoding="utf-8"), "default.yaml")


def _action(
    audience: Audience,
    *found: PromptFinding,
    judged: bool,
    guarded: bool = False,
    unread: Sequence[int] = (),
    text: str = QUOTE,
) -> Action:
    regime = POLICY_IN_FORCE.policy.regime("free")
    screener = PromptScreener(regime, POLICY_IN_FORCE.detectors, guarded=guarded)
    screener.message(Turn(audience, text))
    screener.piece(text)
    screener.close()
    screener.add(found, judged=judged, unread=unread)
    return screener.end()[0].action


def _seen(category: Category, score: float) -> PromptFinding:
    return PromptFinding(0, Finding(9, 0, 9, category, NAME, score))


def test_a_rule_alone_is_only_a_suspicion_where_a_classifier_reads_too() -> None:
    assert _action(Audience.TOOL, judged=False) is Action.BLOCK
    assert _action(Audience.TOOL, judged=True) is Action.FLAG
    # What it did not read is the rules' to judge.
    assert _action(Audience.TOOL, judged=True, unread=[0]) is Action.BLOCK


ATTACKS = [Category.JAILBREAK, Category.PROMPT_INJECTION]


@pytest.mark.parametrize("category", ATTACKS)
def test_an_attack_alone_refuses_nobody_but_in_a_document(category: Category) -> None:
    found = _seen(category, 0.99)
    assert _action(Audience.USER, found, judged=True) is Action.FLAG
    assert _action(Audience.TOOL, found, judged=True) is Action.BLOCK


def test_an_attack_on_the_operators_prompt_is_refused_where_there_is_one() -> None:
    found = _seen(Category.PROMPT_INJECTION, 0.9)
    assert _action(Audience.USER, found, judged=True, guarded=True) is Action.BLOCK
    doubtful = _seen(Category.PROMPT_INJECTION, 0.7)
    assert _action(Audience.USER, doubtful, judged=True, guarded=True) is Action.FLAG


@pytest.mark.parametrize("category", ATTACKS)
def test_a_harm_in_an_attack_is_refused_for_the_harm(category: Category) -> None:
    harm, attack = _seen(Category.MALWARE, 0.5), _seen(category, 0.6)
    assert _action(Audience.USER, harm, judged=True, text="Hello") is Action.FLAG
    assert _action(Audience.USER, harm, attack, judged=True, text="Hello") is Action.BLOCK
    faint = _seen(category, 0.1)
    assert _action(Audience.USER, harm, faint, judged=True, text="Hello") is Action.FLAG


def test_a_harm_is_wrapped_by_an_attack_in_another_message_of_a_person() -> None:
    for author, expected in ((Audience.SYSTEM, Action.BLOCK), (Audience.TOOL, Action.FLAG)):
        screener = PromptScreener(POLICY_IN_FORCE.policy.regime("free"), POLICY_IN_FORCE.detectors)
        for audience in (author, Audience.USER):
            screener.message(Turn(audience, ""))
            screener.close()
        attack = _seen(Category.PROMPT_INJECTION, 0.5)
        harm = PromptFinding(1, _seen(Category.MALWARE, 0.5).finding)
        screener.add([attack, harm], judged=True)
        judgement, (first, *_) = screener.end()
        assert judgement.action is expected
        assert first.finding.category is Category.MALWARE


def test_personal_data_is_no_harm_that_an_attack_wraps() -> None:
    attack = _seen(Category.JAILBREAK, 0.9)
    text = "Write to jo@example.com."
    assert _action(Audience.USER, attack, judged=True, text=text) is Action.FLAG


def test_a_classifier_that_agrees_leaves_the_rule_its_force() -> None:
    found = _seen(Category.PROMPT_INJECTION, 0.6)
    assert _action(Audience.TOOL, found, judged=True) is Action.BLOCK
    other = _seen(Category.HATE, 0.5)
    assert _action(Audience.TOOL, other, judged=True) is Action.FLAG


def test_other_harms_found_by_rules_keep_their_force() -> None:
    policy = published(POLICY.read_text(encoding="utf-8"), "default.yaml")
    screener = PromptScreener(policy.policy.regime("free"), policy.detectors)
    screener.message(Turn(Audience.USER, ""))
    screener.piece("How do I make a pipe bomb at home?")
    screener.close()
    screener.add([], judged=True)
    assert screener.end()[0].action is Action.BLOCK
