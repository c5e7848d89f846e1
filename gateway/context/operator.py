"""The operator's system prompt: a checked document, and the text for one turn. Pure.

    default: "You are Ada, the assistant of Example Ltd. Today is {date}."
    models: {chatmesh-tiny: "You are {model}. Answer in one sentence."}
    tiers: {free: "…"}
    accounts: {acc_01JD0000000000000000000000: ""}

One text speaks in a turn, the most special one: the account's, else the tier's, else the model's,
else the default. An empty text is one too: then the operator says nothing.
"""

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date

import yaml

from gateway.content import TIERS
from mesh.chassis import checked_yaml
from mesh.chassis.checked_yaml import Value, YamlError, hint

ROOT_FIELDS = ("default", "models", "tiers", "accounts")
# The UTC date (ISO 8601) and the id of the model.
PLACEHOLDERS = ("date", "model")
TEXT_BYTE_COUNT_MAX = 32 << 10
TEXT_COUNT_MAX = 10_000
# What a problem may show of a text: a word, never a sentence.
SHOWN_LENGTH_MAX = 32


@dataclass(frozen=True, slots=True)
class OperatorPrompts:
    """Texts with placeholders; without any the operator says nothing."""

    default: str = ""
    by_model: Mapping[str, str] = field(default_factory=dict)
    by_tier: Mapping[str, str] = field(default_factory=dict)
    by_account: Mapping[str, str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many texts there are."""
        special = len(self.by_model) + len(self.by_tier) + len(self.by_account)
        return special + bool(self.default)

    def text(self, model: str, account_id: str, tier: str, today: date) -> str:
        """What the operator says in a turn; empty: nothing.

        Args:
            model: id of the model that answers.
            account_id, tier: of who asks.
            today: the UTC date.
        """
        chosen = self.by_account.get(account_id)
        if chosen is None:
            chosen = self.by_tier.get(tier)
        if chosen is None:
            chosen = self.by_model.get(model, self.default)
        # Checked by `parse`: no other placeholder is in it.
        return chosen.format(date=today.isoformat(), model=model)


def parse(text: str, file: str) -> OperatorPrompts:
    """Checks a document; `file` names it in problems.

    Raises:
        YamlError: all its problems, each with line and remedy.
    """
    if not text.strip():
        remedy = 'write default: "…", or unset GATEWAY_OPERATOR_PROMPTS_FILE'
        raise YamlError([f"{file}:1: file: empty; {remedy}"])
    root = checked_yaml.parse(text, file, collect=True)
    fields = root.fields(ROOT_FIELDS)
    found = OperatorPrompts(
        default=_text(fields["default"]) if "default" in fields else "",
        by_model=_texts(fields.get("models")),
        by_tier=_texts(fields.get("tiers"), tuple(TIERS)),
        by_account=_texts(fields.get("accounts")),
    )
    if found.count > TEXT_COUNT_MAX:
        root.complain(f"has {found.count} texts; use at most {TEXT_COUNT_MAX}")
    if root.problems:
        raise YamlError(root.problems)
    return found


def _texts(value: Value | None, allowed: tuple[str, ...] | None = None) -> dict[str, str]:
    if value is None:
        return {}
    return {name: _text(each) for name, each in value.fields(allowed).items()}


def _text(value: Value) -> str:
    """A text with known placeholders only; its mistakes are noted."""
    node = value.node
    if not isinstance(node, yaml.ScalarNode) or node.tag == "tag:yaml.org,2002:null":
        value.complain('must be a text: quote it, or write "" for none')
        return ""
    text = str(node.value)
    if problem := _characters(text) or _braces(text):
        value.complain(problem)
        return ""
    return text


def _characters(text: str) -> str:
    """What is wrong with the characters of a text; empty when nothing is."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:  # YAML can write "\\ud800"
        return "has half of a surrogate pair; write the character itself"
    if size > TEXT_BYTE_COUNT_MAX:
        return f"is too long; use at most {TEXT_BYTE_COUNT_MAX} bytes"
    return "has a NUL character; remove it" if "\0" in text else ""


def _braces(text: str) -> str:
    """What is wrong with the braces of a text; empty when nothing is."""
    remedy = "write {date}, {model}, or {{ and }} for braces that are text"
    try:
        fields = [parts[1:] for parts in string.Formatter().parse(text) if parts[1] is not None]
    except ValueError:
        return f"has a single brace or an unfinished placeholder; {remedy}"
    for name, spec, conversion in fields:
        if name not in PLACEHOLDERS or spec or conversion:
            is_word = str(name).isidentifier() and len(str(name)) <= SHOWN_LENGTH_MAX
            shown = f"{{{name}}}" if is_word else "text in braces"
            near = hint(str(name), PLACEHOLDERS) if is_word else ""
            return f"has {shown}, which is no placeholder{near}; {remedy}"
    return ""
