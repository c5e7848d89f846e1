"""Constrained answers of the shipped model, through the whole engine."""

import asyncio
import json
import re
from dataclasses import replace

import jsonschema
import pytest
from tokenizers import Tokenizer

from inference_svc.engine.protocol import (
    BadFormatError,
    EngineRequest,
    FinishReason,
    FormatKind,
    ResponseFormat,
    Sampling,
    StopRule,
)
from inference_svc.engine.torch.engine import TorchEngine, TorchOptions

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "colours": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2},
    },
    "required": ["name", "age", "colours"],
    "additionalProperties": False,
}
FORMATS = {
    "schema": ResponseFormat(FormatKind.JSON_SCHEMA, json.dumps(SCHEMA)),
    "object": ResponseFormat(FormatKind.JSON_OBJECT),
    "regex": ResponseFormat(FormatKind.REGEX, r"([a-zA-Z]{1,9} ){1,6}\d{1,3}\."),
    "choice": ResponseFormat(FormatKind.CHOICE, choices=("yes", "no", "I do not know")),
}
PROMPT = (
    "<|im_start|>user\nTell me about a boy who is ten years old.<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def prompt(shipped) -> list[int]:
    return Tokenizer.from_file(str(shipped.folder / "tokenizer.json")).encode(PROMPT).ids


def asked(shipped, prompt, kind: str, seed: int) -> EngineRequest:
    return EngineRequest(
        f"{kind} {seed}",
        prompt,
        StopRule(60, shipped.eos_token_ids),
        sampling=Sampling(temperature=(0.0, 0.7, 1.3)[seed % 3], seed=seed),
        response_format=FORMATS[kind],
    )


def answers(model, requests, speculation: str = "off") -> dict:
    """(tokens, text, how it ended) by request."""
    options = TorchOptions(
        kv_cache_bytes=32 << 20,
        queue_depth_max=64,
        running_count_max=16,
        step_token_count_max=256,
        thread_count=1,
        backend="torch",
        speculation=speculation,
    )

    async def one(engine, request):
        stream, ids, text = engine.submit(request), [], ""
        while True:
            delta = await stream.take()
            ids, text = ids + delta.token_ids, text + delta.text
            if delta.finish:
                return request.request_id, (ids, text + delta.finish.text, delta.finish.reason)

    async def run():
        engine = TorchEngine(model, options)
        await engine.start()
        try:
            return dict(await asyncio.gather(*(one(engine, request) for request in requests)))
        finally:
            await engine.stop()

    return asyncio.run(run())


@pytest.fixture(scope="module")
def written(shipped, prompt) -> dict:
    requests = [asked(shipped, prompt, kind, seed) for kind in FORMATS for seed in range(3)]
    return answers(shipped, requests)


def test_a_finished_answer_has_its_form(written) -> None:
    finished = {name: text for name, (_, text, why) in written.items() if why is FinishReason.STOP}
    for name, text in finished.items():
        kind = name.split()[0]
        if kind == "schema":
            jsonschema.validate(json.loads(text), SCHEMA)
        elif kind == "object":
            assert isinstance(json.loads(text), dict)
        elif kind == "regex":
            assert re.fullmatch(FORMATS["regex"].text, text)
        else:
            assert text in FORMATS["choice"].choices
    for kind in ("schema", "regex", "choice"):
        assert sum(name.startswith(kind) for name in finished) == 3, kind


def test_an_answer_without_room_ends_at_its_length(shipped, prompt) -> None:
    short = EngineRequest(
        "short", prompt, StopRule(4, shipped.eos_token_ids), response_format=FORMATS["schema"]
    )
    ids, text, reason = answers(shipped, [short])["short"]
    assert (len(ids), reason) == (4, FinishReason.LENGTH)
    assert '{"name": "'.startswith(text[:10])


def test_drafts_and_company_change_nothing(shipped, prompt, written) -> None:
    """Alone, with prompt lookup, and with the tokens that a grammar forces."""
    requests = [asked(shipped, prompt, kind, seed) for kind in FORMATS for seed in (0, 1)]
    speculated = answers(shipped, requests, "ngram")
    assert speculated == {name: written[name] for name in speculated}
    alone = answers(shipped, requests[1:2])
    assert alone == {name: written[name] for name in alone}


def test_a_continuation_goes_on_inside_the_form(shipped, prompt, written) -> None:
    whole = written["schema 1"][0]
    rests = [
        replace(
            asked(shipped, prompt, "schema", 1),
            request_id=str(cut),
            emitted_token_ids=whole[:cut],
        )
        for cut in (1, 7, len(whole) - 2)
    ]
    assert {int(name): ids for name, (ids, _, _) in answers(shipped, rests).items()} == {
        cut: whole[cut:] for cut in (1, 7, len(whole) - 2)
    }


def test_what_cannot_be_enforced_fails_its_own_request(shipped, prompt) -> None:
    bad = EngineRequest(
        "bad",
        prompt,
        StopRule(5),
        response_format=ResponseFormat(FormatKind.JSON_SCHEMA, '{"not": {}}'),
    )
    with pytest.raises(BadFormatError, match="not"):
        answers(shipped, [bad, asked(shipped, prompt, "choice", 0)])
