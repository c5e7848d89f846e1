"""Policies are checked whole, published whole, and kept when a new one is bad."""

from pathlib import Path

import pytest

from mesh.chassis.checked_yaml import YamlError
from mesh.chassis.errors import MeshError
from safety_svc.detectors.base import Category, Finding
from safety_svc.policy import Action, Direction, Failure, Judgement, Quoting
from safety_svc.policy_file import read
from safety_svc.policy_source import PolicySource
from tests.unit.safety.scanning import edited

MINIMAL = """
version: "1"
message: no
base:
  window_token_count: 8
  audit_failure: closed
  prompt: {violence: {flag: 0.3, block: 0.8}}
  reply: {}
"""


def finding(category: Category, score: float) -> Finding:
    return Finding(1, 0, 1, category, "test", score)


def test_thresholds_choose_the_action() -> None:
    regime = read(MINIMAL, "p.yaml").regime("free")
    actions = [
        regime.action(Direction.PROMPT, finding(Category.VIOLENCE, score))
        for score in (0.2, 0.3, 0.8)
    ]
    assert actions == [Action.ALLOW, Action.FLAG, Action.BLOCK]
    assert regime.action(Direction.REPLY, finding(Category.VIOLENCE, 1)) is Action.ALLOW
    assert regime.action(Direction.PROMPT, finding(Category.HATE, 1)) is Action.ALLOW


def test_tiers_and_jurisdictions_override_single_lines() -> None:
    text = MINIMAL + (
        "tiers: {pro: {window_token_count: 4, prompt: {hate: redact}}}\n"
        "jurisdictions: {DE: {audit_failure: open, prompt: {violence: allow}}}\n"
    )
    policy = read(text, "p.yaml")
    pro, german = policy.regime("pro"), policy.regime("pro", "DE")
    assert pro.window_token_count == german.window_token_count == 4
    assert pro.action(Direction.PROMPT, finding(Category.HATE, 1)) is Action.REDACT
    assert pro.halts(Direction.PROMPT, finding(Category.VIOLENCE, 1))
    assert not german.halts(Direction.PROMPT, finding(Category.VIOLENCE, 1))
    assert german.unrecorded is Failure.OPEN
    assert policy.regime("pro", "FR") is pro
    assert policy.regime("free").window_token_count == 8


def test_the_strongest_action_decides() -> None:
    text = MINIMAL.replace("reply: {}", "reply: {}\n  document: {}")
    text = text.replace("{violence: {flag: 0.3, block: 0.8}}", "{privacy: flag, malware: block}")
    regime = read(text, "p.yaml").regime("free")
    judgement = regime.judge(
        Direction.PROMPT,
        [finding(Category.PRIVACY, 1), finding(Category.MALWARE, 1), finding(Category.HATE, 1)],
    )
    assert (judgement.action, judgement.category) == (Action.BLOCK, Category.MALWARE)


@pytest.mark.parametrize(
    ("old", "new", "line", "problem"),
    [
        (
            "window_token_count: 8",
            "window_token_count: 0",
            5,
            "base.window_token_count: must be a whole number; write 1 to",
        ),
        ("window_token_count: 8", "window_token_count: x", 5, "must be a whole number"),
        ("  window_token_count: 8\n", "", 4, "base: window_token_count is missing; add it"),
        (
            "violence: {flag",
            "voilence: {flag",
            7,
            "base.prompt.voilence: unknown key; did you mean violence?",
        ),
        ("flag: 0.3", "flag: 0.9", 7, "flag needs a lower score than block"),
        ("flag: 0.3", "flag: 1.3", 7, "base.prompt.violence.flag: must be a number"),
        ("flag: 0.3", "flagg: 0.3", 7, "violence.flagg: unknown key; did you mean flag?"),
        ("{flag: 0.3, block: 0.8}", "stop", 7, "base.prompt.violence: is stop; must be one of"),
        ("reply: {}", "reply: []", 8, "base.reply: must be a mapping"),
        ("closed", "sometimes", 6, "base.audit_failure: is sometimes; must be one of"),
        ("message: no", "version: 2", 3, "version: stands here twice"),
        ("reply: {}", "reply: {", 9, "mend the indentation"),
    ],
)
def test_a_bad_policy_names_file_line_and_remedy(
    old: str, new: str, line: int, problem: str
) -> None:
    assert old in MINIMAL
    with pytest.raises(YamlError) as caught:
        read(MINIMAL.replace(old, new), "p.yaml")
    assert str(caught.value).startswith(f"p.yaml:{line}: ")
    assert problem in str(caught.value)
    assert "; " in str(caught.value)


def test_a_bad_country_and_an_empty_document_are_refused() -> None:
    with pytest.raises(YamlError, match=r"jurisdictions\.germany: is no country"):
        read(MINIMAL + "jurisdictions: {germany: {}}\n", "p.yaml")
    with pytest.raises(YamlError, match="empty"):
        read("# nothing\n", "p.yaml")


def test_a_changed_file_is_published_and_a_bad_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    source = PolicySource(path)
    assert not source.refresh()
    with pytest.raises(MeshError, match=r"policy\.yaml") as caught:
        _ = source.current
    assert caught.value.reason == "NO_POLICY"

    path.write_text(edited(), encoding="utf-8")
    assert source.refresh()
    first = source.current
    assert not source.refresh()

    path.write_text("version: 1", encoding="utf-8")
    assert not source.refresh()
    assert source.current is first
    path.unlink()
    assert not source.refresh()
    assert source.current is first

    path.write_text(edited(window_token_count="16>5"), encoding="utf-8")
    assert source.refresh()
    assert source.current.policy.regime("free").window_token_count == 5
    assert source.current.policy.digest != first.policy.digest


def span(kind: str, category: Category = Category.PRIVACY) -> Finding:
    return Finding(1, 0, 1, category, kind)


def test_a_type_goes_before_its_category_and_documents_fall_back_to_prompts() -> None:
    text = MINIMAL.replace(
        "prompt: {violence: {flag: 0.3, block: 0.8}}",
        "prompt: {privacy: block, email_address: allow, prompt_injection: flag}\n"
        "  document: {prompt_injection: block}",
    )
    regime = read(text, "p.yaml").regime("free")
    prompt, document = Direction.PROMPT, Direction.DOCUMENT
    assert regime.action(prompt, span("email_address")) is Action.ALLOW
    assert regime.action(prompt, span("phone_number")) is Action.BLOCK
    assert regime.action(document, span("phone_number")) is Action.BLOCK
    assert regime.action(prompt, finding(Category.PROMPT_INJECTION, 1)) is Action.FLAG
    assert regime.action(document, finding(Category.PROMPT_INJECTION, 1)) is Action.BLOCK
    acted_on = regime.acted_on(prompt)
    assert "phone_number" in acted_on
    assert "email_address" not in acted_on


def test_a_wrapped_harm_and_a_guarded_attack_fall_back_to_prompts() -> None:
    text = MINIMAL.replace(
        "prompt: {violence: {flag: 0.3, block: 0.8}}",
        "prompt: {violence: {flag: 0.3, block: 0.8}, hate: block, jailbreak: flag}\n"
        "  wrapped: {violence: {block: 0.4}}\n"
        "  guarded: {prompt_injection: block}",
    )
    regime = read(text, "p.yaml").regime("free")
    wrapped, guarded = Direction.WRAPPED, Direction.GUARDED
    assert regime.action(Direction.PROMPT, finding(Category.VIOLENCE, 0.5)) is Action.FLAG
    assert regime.action(wrapped, finding(Category.VIOLENCE, 0.5)) is Action.BLOCK
    assert regime.action(wrapped, finding(Category.HATE, 1)) is Action.BLOCK
    assert regime.action(guarded, finding(Category.PROMPT_INJECTION, 1)) is Action.BLOCK
    assert regime.action(guarded, finding(Category.JAILBREAK, 1)) is Action.FLAG
    assert regime.action(Direction.PROMPT, finding(Category.PROMPT_INJECTION, 1)) is Action.ALLOW


def test_accounts_override_jurisdictions_which_override_tiers() -> None:
    text = MINIMAL + (
        "tiers: {pro: {prompt: {hate: flag, sexual: flag, illicit: flag}}}\n"
        "jurisdictions: {DE: {prompt: {hate: redact, sexual: redact}}}\n"
        "accounts: {acc_1: {prompt: {hate: block}, audit_text: full, backend_failure: open}}\n"
    )
    policy = read(text, "p.yaml")
    regime = policy.regime("pro", "DE", "acc_1")
    actions = [
        regime.action(Direction.PROMPT, finding(category, 1))
        for category in (Category.HATE, Category.SEXUAL, Category.ILLICIT)
    ]
    assert actions == [Action.BLOCK, Action.REDACT, Action.FLAG]
    assert (regime.quoting, regime.unjudged) == (Quoting.FULL, Failure.OPEN)
    assert policy.regime("pro", "DE", "acc_2") is policy.regime("pro", "DE")
    assert policy.regime("pro", "DE").quoting is Quoting.NONE


def test_shadow_rules_are_judged_beside_those_in_force() -> None:
    shadowed = read(MINIMAL + "  shadow: {prompt: {hate: block}}\n", "p.yaml").regime("free")
    pairs = [(Direction.PROMPT, finding(Category.HATE, 1))]
    assert shadowed.judge_all(pairs).action is Action.ALLOW
    assert shadowed.judge_shadow(pairs) == Judgement(Action.BLOCK, Category.HATE)
    assert read(MINIMAL, "p.yaml").regime("free").judge_shadow(pairs) is None

    observed = read(MINIMAL + "  mode: shadow\n", "p.yaml").regime("free")
    pairs = [(Direction.PROMPT, finding(Category.VIOLENCE, 1))]
    assert observed.judge_all(pairs).action is Action.ALLOW
    assert observed.judge_shadow(pairs) == Judgement(Action.BLOCK, Category.VIOLENCE)


def test_texts_for_people_are_templates() -> None:
    text = MINIMAL.replace("message: no", "message: No {category} here.\nreplacement: '<{type}>'")
    policy = read(text, "p.yaml")
    assert policy.message(Category.SELF_HARM) == "No self harm here."
    assert policy.mask("email_address") == "<email_address>"


@pytest.mark.parametrize(
    ("more", "line", "problem"),
    [
        ("replacement: '{kind}'", 9, "unknown placeholder {kind}; use {type}"),
        ("replacement: '{'", 9, "a brace stands alone"),
        ("accounts: {'a b': {}}", 9, "accounts.a b: is no account id"),
        ("allow: [x, {}]", 9, "allow: must be a text"),
        (
            "tiers: {free: {mode: maybe}}",
            9,
            "tiers.free.mode: is maybe; must be one of: enforce, shadow",
        ),
        ("tiers: {free: {shadow: {output: {}}}}", 9, "tiers.free.shadow.output: unknown key"),
        ("tiers: {free: {reply: {email: flag}}}", 9, "tiers.free.reply.email: unknown key"),
        ("tiers: {free: {wrapped: {jailbreak: flag}}}", 9, "wrapped.jailbreak: unknown key"),
        ("tiers: {free: {wrapped: {us_ssn: flag}}}", 9, "wrapped.us_ssn: unknown key"),
        ("tiers: {free: {guarded: {hate: flag}}}", 9, "guarded.hate: unknown key"),
        ("tiers: {free: {unread_text: never}}", 9, "unread_text: is never; must be one of"),
    ],
)
def test_a_bad_override_names_its_line(more: str, line: int, problem: str) -> None:
    with pytest.raises(YamlError) as caught:
        read(MINIMAL + more + "\n", "p.yaml")
    assert str(caught.value).startswith(f"p.yaml:{line}: ")
    assert problem in str(caught.value)
