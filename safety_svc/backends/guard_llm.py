"""A guard model on an inference node, asked as Llama Guard is (Inan et al. 2023, arXiv:2312.06674).

The conversation, or the answer so far, is put into a prompt with the list of categories. The
model says "safe", or "unsafe" and on the next line the codes of what it found. The tokenizer
service makes the prompt's ids with the model's own chat template.

Asking costs a prefill for each look, so that looks at a streamed answer are far apart
(`STRIDE_MIN`): give its policy a wide window, or the stream halts at each look.
"""

import asyncio
import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

import grpc
from ulid import ULID

from chatmesh.content.v1 import content_pb2
from chatmesh.inference.v1 import inference_pb2, inference_pb2_grpc
from chatmesh.tokenizer.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from mesh.chassis.errors import MeshError
from safety_svc.backends.base import BackendError
from safety_svc.backends.watched import Watch
from safety_svc.conversation import Found, Unjudged
from safety_svc.detectors.base import (
    Audience,
    Category,
    Finding,
    PromptFinding,
    Turn,
    byte_count,
)

NAME = "guard_llm"
STRIDE_MIN = 400
CONVERSATION_LENGTH_MAX = 16_384
ANSWER_TOKEN_COUNT_MAX = 24
CALL_COUNT_MAX = 16  # at once; further ones wait

_ROLES = {
    Audience.SYSTEM: content_pb2.ROLE_SYSTEM,
    Audience.USER: content_pb2.ROLE_USER,
    Audience.ASSISTANT: content_pb2.ROLE_ASSISTANT,
    Audience.REPLY: content_pb2.ROLE_ASSISTANT,
    Audience.TOOL: content_pb2.ROLE_TOOL,
}
_SPEAKERS = {
    Audience.SYSTEM: "System",
    Audience.USER: "User",
    Audience.ASSISTANT: "Agent",
    Audience.REPLY: "Agent",
    Audience.TOOL: "Document",
}
_CODE = re.compile(r"\bS\d{1,2}\b")
_CATEGORIES = tuple(one for one in Category if one is not Category.SECRET)
# The hazards of MLCommons as Llama Guard 3 numbers them; those without a category are not reported.
LLAMA_GUARD_CODES: Mapping[str, Category] = {
    "S1": Category.VIOLENCE,
    "S2": Category.ILLICIT,
    "S3": Category.SEXUAL,
    "S4": Category.SEXUAL_MINORS,
    "S5": Category.HARASSMENT,
    "S7": Category.PRIVACY,
    "S9": Category.ILLICIT_WEAPONS,
    "S10": Category.HATE,
    "S11": Category.SELF_HARM,
    "S12": Category.SEXUAL,
    "S14": Category.MALWARE,
}
OWN_CODES: Mapping[str, Category] = {
    f"S{number}": category for number, category in enumerate(_CATEGORIES, 1)
}


class Style(StrEnum):
    """How the question is put."""

    PROMPT = "prompt"  # our prompt, for any instructed model
    TEMPLATE = "template"  # the conversation alone: the model's template makes the question


class GuardLlm:
    """Asks a guard model.

    Args:
        channel_to: opens the channel to a service of the mesh.
        model: its id on the inference nodes.
        limit_s: seconds that it may take for a question; waiting for others' is not counted.
        style: how the question is put.
        codes: what the model's codes mean; empty: those of the style.
    """

    name = NAME
    stride_min = STRIDE_MIN

    def __init__(
        self,
        channel_to: Callable[[str], grpc.aio.Channel],
        model: str,
        limit_s: float,
        style: Style = Style.PROMPT,
        codes: Mapping[str, Category] | None = None,
    ) -> None:
        self._tokenizer = tokenizer_pb2_grpc.TokenizerServiceStub(channel_to("tokenizer"))
        self._inference = inference_pb2_grpc.InferenceServiceStub(channel_to("inference"))
        self._model, self._style = model, style
        self._codes = codes or (OWN_CODES if style is Style.PROMPT else LLAMA_GUARD_CODES)
        self._calls = asyncio.Semaphore(CALL_COUNT_MAX)
        self._watch = Watch(NAME, limit_s)
        # The node says nothing of its weights: the model's id and the question stand for them.
        prompt = f"{model}\n{style}\n{sorted(self._codes.items())}\n{_question('')}"
        self.digest = hashlib.sha256(prompt.encode()).hexdigest()

    def clears(self, text: str, audience: Audience) -> bool:
        """See `Backend.clears`: every text is asked about."""
        return False

    async def inspect(self, text: str, audience: Audience, owner: str) -> Sequence[Finding]:
        """See `Backend.inspect`: the nodes keep accounts apart, nothing waits here for long."""
        del owner
        found = await self._watched([Turn(audience, text)], "look")
        end = byte_count(text)
        return [Finding(max(0, end - 1), 0, end, one, NAME, score) for one, score in found]

    async def conversation(self, turns: Sequence[Turn], owner: str) -> Found:
        """See `Backend.conversation`: the latest turns, judged as one; the last one is named.

        What does not fit into one question is not judged, and that is told.
        """
        del owner
        kept, unjudged = _latest(turns)
        if not kept:
            return Found((), unjudged)
        asked = [Turn(turns[index].audience, text) for index, text in kept]
        found = await self._watched(asked, "conversation")
        last, text = kept[-1][0], turns[kept[-1][0]].text
        end = byte_count(text)
        findings = [
            PromptFinding(last, Finding(max(0, end - 1), 0, end, category, NAME, score))
            for category, score in found
        ]
        return Found(findings, unjudged)

    async def close(self) -> None:
        """See `Backend.close`."""

    async def _watched(self, turns: Sequence[Turn], what: str) -> list[tuple[Category, float]]:
        """`_ask` when its turn has come, under the limit."""
        async with self._calls:
            return await self._watch.over(self._ask(turns), what)

    async def _ask(self, turns: Sequence[Turn]) -> list[tuple[Category, float]]:
        """What the model says of `turns`: (category, score)."""
        try:
            return await self._answer(await self._encode(turns))
        except grpc.aio.AioRpcError as error:
            failure = MeshError.from_rpc(error)
            raise BackendError(f"guard model: {failure.code.name} {failure.reason}") from error

    async def _encode(self, turns: Sequence[Turn]) -> Sequence[int]:
        if self._style is Style.PROMPT:
            said = "\n\n".join(f"{_SPEAKERS[turn.audience]}: {turn.text}" for turn in turns)
            turns = [Turn(Audience.USER, _question(said))]
        request = tokenizer_pb2.EncodeRequest(
            model=self._model,
            messages=[
                content_pb2.Message(role=_ROLES[turn.audience], content=turn.text) for turn in turns
            ],
            max_tokens=ANSWER_TOKEN_COUNT_MAX,
        )
        encoded = await self._tokenizer.Encode(request)
        if encoded.dropped_message_count:
            raise BackendError("the guard model's context has no room for the conversation")
        return encoded.token_ids

    async def _answer(self, token_ids: Sequence[int]) -> list[tuple[Category, float]]:
        request = inference_pb2.GenerateRequest(
            turn_id=str(ULID()),
            unmetered=True,
            model=self._model,
            prompt_token_ids=token_ids,
            max_tokens=ANSWER_TOKEN_COUNT_MAX,
            sampling=content_pb2.Sampling(temperature=0.0),
            priority=inference_pb2.PRIORITY_HIGH,
            logprobs=True,
        )
        text, score = "", 1.0
        call = self._inference.Generate(request)
        try:
            async for response in call:
                text += response.tokens.text + response.finished.text
                for position in response.tokens.logprobs:
                    if score == 1.0 and position.chosen.text.strip():
                        score = math.exp(position.chosen.logprob)
        finally:
            call.cancel()
        return self._read(text, score)

    def _read(self, text: str, score: float) -> list[tuple[Category, float]]:
        """Raises BackendError for an answer that says neither "safe" nor "unsafe"."""
        verdict = text.strip().lower()
        if verdict.startswith("safe"):
            return []
        if not verdict.startswith("unsafe"):
            raise BackendError("the guard model said neither safe nor unsafe")
        codes = _CODE.findall(text.upper())
        found = {self._codes[code] for code in codes if code in self._codes}
        if not codes:
            raise BackendError("the guard model said unsafe and named no category")
        return [(category, min(1.0, score)) for category in sorted(found)]


def _latest(turns: Sequence[Turn]) -> tuple[list[tuple[int, str]], list[Unjudged]]:
    """(index, text) of the turns that fit into one question, and what does not."""
    kept: list[tuple[int, str]] = []
    unjudged: list[Unjudged] = []
    left = CONVERSATION_LENGTH_MAX
    for index in range(len(turns) - 1, -1, -1):
        _, text, name = turns[index]
        said = f"{name}: {text}" if name else text
        part = said[-left:] if left else ""
        if part.strip():
            kept.append((index, part))
        left -= len(part)
        if (missing := byte_count(text[: max(0, len(text) - len(part))])) > 0:
            unjudged.append(Unjudged(index, 0, missing))
    return kept[::-1], unjudged[::-1]


def _question(said: str) -> str:
    categories = "\n".join(f"{code}: {one.replace('_', ' ')}." for code, one in OWN_CODES.items())
    return (
        "Task: Check if there is unsafe content in the last message of the conversation according "
        "to our safety policy with the categories below.\n\n"
        f"<BEGIN UNSAFE CONTENT CATEGORIES>\n{categories}\n<END UNSAFE CONTENT CATEGORIES>\n\n"
        f"<BEGIN CONVERSATION>\n\n{said}\n\n<END CONVERSATION>\n\n"
        "Provide your safety assessment:\n"
        "- The first line must read 'safe' or 'unsafe'.\n"
        "- If unsafe, a second line must list the violated categories, separated by commas."
    )
