"""What an answer is to be held to: OpenAI's `response_format`, or vLLM's fields for the rest."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gateway.errors import bad_parameter
from gateway.faces.openai.fields import NotSupported, Strict, fault
from gateway.turn.domain import ResponseFormat


def _schema_text(schema: Any) -> str | None:
    """A schema, given as an object or as its text, as text."""
    if schema is None or isinstance(schema, str):
        return schema
    if not isinstance(schema, dict):
        raise fault("", "must be a JSON schema, which is an object")
    return json.dumps(schema, ensure_ascii=False)


Schema = Annotated[str | None, BeforeValidator(_schema_text)]


class JsonSchema(Strict):
    """`response_format.json_schema`; every answer is held to it, `strict` or not."""

    name: str | None = Field(default=None, max_length=64)
    schema_: Schema = Field(default=None, alias="schema")
    strict: bool | None = None


class OpenAIFormat(Strict):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Strict):
    """`structured_outputs`, as vLLM has it."""

    json_: Schema = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: NotSupported = None
    structural_tag: NotSupported = None


class FormatFields(Strict):
    """The fields of a body that constrain the answer; at most one of them."""

    response_format: OpenAIFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: NotSupported = None


def wanted_format(fields: FormatFields) -> ResponseFormat | None:
    """The format of a body; None: free text.

    Raises:
        MeshError: INVALID_PARAMETER when there are two.
    """
    first, *others = [*_found(fields), None]
    if first and others[0]:
        message = f"Give {first.param} or {others[0].param}, not both."
        raise bad_parameter(others[0].param, message)
    return first


def _found(fields: FormatFields) -> Iterator[ResponseFormat]:
    asked = fields.response_format
    if asked and asked.type == "json_object":
        yield ResponseFormat("json_object")
    if asked and asked.type == "json_schema":
        param = "response_format.json_schema"
        if asked.json_schema is None:
            raise bad_parameter(param, f"{param} is missing.")
        schema = asked.json_schema.schema_
        kind = "json_object" if schema is None else "json_schema"
        yield ResponseFormat(kind, schema or "", param=f"{param}.schema")
    vllm = fields.structured_outputs or StructuredOutputs()
    if vllm.json_object:
        yield ResponseFormat("json_object", param="structured_outputs.json_object")
    for schema, param in (
        (vllm.json_, "structured_outputs.json"),
        (fields.guided_json, "guided_json"),
    ):
        if schema is not None:
            yield ResponseFormat("json_schema", schema, param=param)
    for regex, param in (
        (vllm.regex, "structured_outputs.regex"),
        (fields.guided_regex, "guided_regex"),
    ):
        if regex is not None:
            yield ResponseFormat("regex", regex, param=param)
    for choice, param in (
        (vllm.choice, "structured_outputs.choice"),
        (fields.guided_choice, "guided_choice"),
    ):
        if choice is not None:
            yield ResponseFormat("choice", choices=tuple(choice), param=param)
