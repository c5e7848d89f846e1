"""The model that ships with the repository, on each exact back end: a chat through the engine."""

import asyncio
import json
import re

import pytest
from tokenizers import Tokenizer

from inference_svc.engine.protocol import (
    EngineRequest,
    FinishReason,
    FormatKind,
    ResponseFormat,
    Sampling,
    StopRule,
)
from inference_svc.engine.torch.engine import TorchEngine, TorchOptions
from inference_svc.model_folder import ModelFolder
from tests.support.backends import EXACT_CASES

CASES = [case for case in EXACT_CASES if case[1] in (("f32", "f32"), ("int8", "int8"))]
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
QUESTIONS = ("Hello!", "What is the capital of France?", "Tell me a story about a cat and a boat.")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Ben"]}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def asking(model: ModelFolder, question: str, limit: int = 20, **fields) -> EngineRequest:
    tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
    ids = tokenizer.encode(CHAT.format(question), add_special_tokens=False).ids
    rule = StopRule(limit, token_ids=model.eos_token_ids)
    fields = {"sampling": Sampling(temperature=0), **fields}
    return EngineRequest(question, ids, rule, **fields)


async def read(stream) -> tuple[list[int], FinishReason]:
    ids: list[int] = []
    while True:
        delta = await stream.take()
        ids += delta.token_ids
        if delta.finish:
            return ids, delta.finish.reason


@pytest.mark.parametrize(("backend", "kinds"), CASES)
async def test_it_answers_the_same_alone_together_and_speculated(shipped, backend, kinds) -> None:
    requests = [asking(shipped, question) for question in QUESTIONS]
    options = TorchOptions(
        kv_cache_bytes=8 << 20, queue_depth_max=9, running_count_max=8, thread_count=1,
        backend=backend, weights=kinds[0], kv=kinds[1], speculation="ngram",
    )  # fmt: skip
    engine = TorchEngine(shipped, options)
    await engine.start()
    alone = [await read(engine.submit(one)) for one in requests]
    together = await asyncio.gather(*[read(engine.submit(one)) for one in requests])
    assert together == alone
    assert all(len(ids) > 1 for ids, _ in alone)
    load = engine.load()
    assert load.kv_block_free_count == load.kv_block_count
    await engine.stop()


async def test_a_constrained_answer_of_it_validates(shipped) -> None:
    wanted = ResponseFormat(FormatKind.JSON_SCHEMA, json.dumps(SCHEMA))
    options = TorchOptions(
        kv_cache_bytes=8 << 20, queue_depth_max=9, running_count_max=8, thread_count=1
    )
    engine = TorchEngine(shipped, options)
    await engine.start()
    for seed in range(3):
        one = asking(
            shipped, "Who?", 60, response_format=wanted, sampling=Sampling(temperature=1, seed=seed)
        )
        ids, reason = await read(engine.submit(one))
        text = shipped.vocabulary.join(ids).decode()
        assert reason is FinishReason.STOP
        assert json.loads(text)["name"] in ("Ada", "Ben")
        assert re.search(r'"age": -?\d+', text)
    await engine.stop()
