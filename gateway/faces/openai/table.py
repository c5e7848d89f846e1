"""Every field of a chat completion and what becomes of it: `python -m gateway.faces.openai.table`.

Written from the models that read a body, so that it says what is done. Fields that are in none of
them are ignored: those that are known stand in `WITHOUT_EFFECT` with the reason why that is right.
"""

import sys
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel

from gateway.faces.openai.fields import Only, Refused
from gateway.faces.openai.requests import Body

HONOURED, REFUSED, ONLY, IGNORED = "honoured", "refused", "only", "ignored"
# They change who pays, what is noted or how fast it goes, never the answer.
WITHOUT_EFFECT = {
    "metadata": "nothing is looked up by it",
    "messages[].content[].prompt_cache_breakpoint": "every prefix is cached",
    "prediction": "drafts are made from the text so far; the answer is the same",
    "prompt_cache_key": "a conversation finds its cache by itself",
    "prompt_cache_options": "every prefix is cached",
    "prompt_cache_retention": "every prefix is cached",
    "response_format.json_schema.description": "no model is shown it; the schema binds",
    "safety_identifier": "safety knows the account",
    "service_tier": "the account's tier says who goes first",
    "stream_options.include_obfuscation": "chunks are not padded",
}
# What a field of another name, or a checked one, covers with all that is in it.
READ_WHOLE = {
    "messages[].content": "text, or parts of type text and refusal; others are refused",
    "logit_bias": "by token id",
    "tools[].function.parameters": "a JSON schema",
    "response_format.json_schema.schema": "a JSON schema",
}
TITLE = """# The fields of a chat completion

Written by `python -m gateway.faces.openai.table`; a test holds it to the code, and to the list of
OpenAI's own fields. A field that would change the answer is honoured, or refused with its name.

| field | |
|---|---|"""


def decided() -> dict[str, str]:
    """What is done about each field, by its path; lists are []."""
    found = dict(_fields(Body, ""))
    found |= {path: f"{HONOURED}: {what}" for path, what in READ_WHOLE.items()}
    return found | {path: f"{IGNORED}: {why}" for path, why in WITHOUT_EFFECT.items()}


def decision(path: str) -> str | None:
    """What is done about a field, or about the whole that it is in; None: nobody decided."""
    known, end = decided(), len(path)
    while end > 0:
        what = known.get(path[:end].removesuffix("[]"))
        if what is not None:
            return what if end == len(path) or what != HONOURED else None
        end = path.rfind(".", 0, end)
    return None


def markdown() -> str:
    """The table."""
    rows = (f"| `{path}` | {what} |" for path, what in sorted(decided().items()))
    return "\n".join([TITLE, *rows]) + "\n"


def _fields(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        path = prefix + (field.alias or name)
        yield path, _what(field.metadata)
        for many, inner in _models(field.annotation):
            yield from _fields(inner, path + ("[]." if many else "."))


def _what(metadata: list[Any]) -> str:
    for each in metadata:
        if isinstance(each, Refused):
            return REFUSED
        if isinstance(each, Only):
            return f"{ONLY} {each.shown}"
    return HONOURED


def _models(annotation: Any) -> Iterator[tuple[bool, type[BaseModel]]]:
    """The models in a type, and whether they are the items of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield False, annotation
        return
    many = get_origin(annotation) is list
    inner = get_args(annotation)
    for each in inner[:1] if get_origin(annotation) is Annotated else inner:
        for is_item, found in _models(each):
            yield many or is_item, found


if __name__ == "__main__":
    sys.stdout.write(markdown())
