"""Tool calls as a grammar: text, and behind it nothing but whole calls of the tools that there are.

llguidance's Lark dialect. Before the calls stands a lazy lexeme, any text up to the first piece of
markup that begins them; a text without calls may not hold that piece, so that whoever reads the
answer finds exactly the calls that were generated as such.
"""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from inference_svc.engine.protocol import BadFormatError, Calls, Tool

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# White space is fixed, so that no model can go on with it for ever.
JSON_OPTIONS: "JsonCompileOptions" = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": False,
    "lenient": False,
}
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
ANY = "/(.|\\n)*/"


def calls_grammar(calls: Calls, text_schema: str) -> str:
    """The grammar in Lark.

    Args:
        calls: what may be called, and how that is written.
        text_schema: JSON schema of an answer without calls; empty: any text.

    Raises:
        BadFormatError: a schema is no JSON object.
    """
    return "\n".join(["%llguidance {}", *_rules(calls, text_schema)])


def _rules(calls: Calls, text_schema: str) -> Iterator[str]:
    syntax = calls.syntax
    opening = syntax.before_calls or syntax.before_name
    mark = json.dumps(opening)
    alternatives = []
    if not calls.is_required:
        alternatives.append("text")
        yield _text_rule(text_schema, mark)
    if calls.tools:
        # Text before the calls has no form to be held to.
        is_free = not calls.is_required and not text_schema
        alternatives.append("lead calls")
        yield f"lead[lazy]: {ANY} {mark}" if is_free else f"lead: {mark}"
        yield from _call_rules(calls, first_begin=syntax.before_name if syntax.before_calls else "")
    yield f"start: {' | '.join(alternatives)}"


def _text_rule(schema: str, mark: str) -> str:
    if schema:
        return f"text: %json {_json(_object(schema, 'The JSON schema'))}"
    return f"text: TEXT\nTEXT: {ANY} & ~({ANY} {mark} {ANY})"


def _call_rules(calls: Calls, first_begin: str) -> Iterator[str]:
    """The first call, whose beginning may have been said, and those behind it."""
    syntax, numbers = calls.syntax, range(len(calls.tools))
    more = "" if calls.is_single else f" ({_text(syntax.between_calls)} next)*"
    yield f"calls: first{more} {_text(syntax.after_calls)}"
    yield "first: " + " | ".join(f"first_{n}" for n in numbers)
    if more:
        yield "next: " + " | ".join(f"next_{n}" for n in numbers)
    for n, tool in enumerate(calls.tools):
        rest = f"arguments_{n} {_text(syntax.after_arguments)}"
        named = tool.name + syntax.before_arguments
        yield f"first_{n}: {_text(first_begin + named)} {rest}"
        if more:
            yield f"next_{n}: {_text(syntax.before_name + named)} {rest}"
        yield f"arguments_{n}: %json {_json(_parameters(tool), is_lenient=not tool.strict)}"


def _parameters(tool: Tool) -> dict[str, Any]:
    if not tool.parameters:
        return NO_ARGUMENTS
    schema = _object(tool.parameters, f"The parameters of {tool.name}")
    # Whoever reads the call finds its end by its braces.
    if schema.setdefault("type", "object") != "object":
        raise BadFormatError(f'The parameters of {tool.name} must have the type "object".')
    return schema


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFormatError(f"{what}: no JSON: {error}.") from error
    if not isinstance(schema, dict):
        raise BadFormatError(f"{what}: no JSON object.")
    return schema


def _json(schema: dict[str, Any], *, is_lenient: bool = False) -> str:
    """A schema that cannot choose its own options."""
    return json.dumps(schema | {"x-guidance": JSON_OPTIONS | {"lenient": is_lenient}})


def _text(text: str) -> str:
    return json.dumps(text) if text else ""
