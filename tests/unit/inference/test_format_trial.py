"""Formats that cost too much to compile end in a process of their own."""

import asyncio
import json

import pytest

from inference_svc.engine.protocol import (
    BadFormatError,
    Calls,
    CallSyntax,
    FormatKind,
    QueueFullError,
    ResponseFormat,
    Tool,
)
from inference_svc.engine.torch.format_trial import TENANT_WAITING_COUNT_MAX, FormatTrials, Verdict

DEADLINE_S = 60


def schema(**fields: object) -> ResponseFormat:
    return ResponseFormat(FormatKind.JSON_SCHEMA, json.dumps({"type": "integer", **fields}))


# Its automaton has ten million states: minutes of a thread that nothing can end.
HOSTILE = schema(multipleOf=9999991)


@pytest.fixture
async def trials(model):
    found = FormatTrials(model)
    yield found
    await found.close()
    assert found._process is None


async def refusal(trials: FormatTrials, wanted: ResponseFormat, tenant: str = "a") -> str:
    with pytest.raises(BadFormatError) as refused:
        await trials.passed(wanted, tenant)
    return str(refused.value)


@pytest.mark.timeout(DEADLINE_S)
async def test_a_hostile_schema_is_refused_and_the_next_one_passes(trials) -> None:
    await trials.passed(schema(), "a")
    before = trials._process
    assert "too much time or memory" in await refusal(trials, HOSTILE)
    assert before.returncode is not None
    await trials.passed(schema(minimum=1), "a")
    again = trials._process
    assert "too much" in await refusal(trials, HOSTILE)  # it is remembered
    assert trials._process is again


async def test_what_the_library_refuses_says_why(trials) -> None:
    assert "cannot be enforced" in await refusal(trials, schema(type="none of these"))
    process = trials._process
    assert "JSON" in await refusal(trials, ResponseFormat(FormatKind.JSON_SCHEMA, "[" * 5000))
    assert trials._process is process


@pytest.mark.timeout(DEADLINE_S)
async def test_the_schemas_of_tools_are_tried_too(trials) -> None:
    syntax = CallSyntax("<call>", "", "(", ")", ",", "")

    def calling(**argument: object) -> ResponseFormat:
        parameters = {"type": "object", "properties": {"a": {"type": "integer", **argument}}}
        tool = Tool("f", json.dumps(parameters), strict=True)
        return ResponseFormat(FormatKind.CALLS, calls=Calls(syntax, (tool,)))

    await trials.passed(calling(), "a")
    assert "too much time or memory" in await refusal(trials, calling(multipleOf=9999991))


class Slow(FormatTrials):
    """Answers when it is told to, and notes the order."""

    def __init__(self, model) -> None:
        super().__init__(model)
        self.asked: list[str] = []
        self.may_answer = asyncio.Event()

    async def _asked(self, wanted: ResponseFormat) -> Verdict:
        self.asked.append(wanted.text)
        await self.may_answer.wait()
        return Verdict()


def plain(text: str) -> ResponseFormat:
    return ResponseFormat(FormatKind.REGEX, text)


async def test_tenants_are_served_in_turn_and_none_waits_without_end(model) -> None:
    trials = Slow(model)
    many = [f"a{number}" for number in range(TENANT_WAITING_COUNT_MAX)]
    waiting = [asyncio.create_task(trials.passed(plain(text), "a")) for text in many]
    await asyncio.sleep(0)
    waiting += [asyncio.create_task(trials.passed(plain(text), "b")) for text in ("b0", "b1")]
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError):
        await trials.passed(plain("a too many"), "a")
    same = asyncio.create_task(trials.passed(plain("a0"), "c"))  # one trial is enough for both
    trials.may_answer.set()
    await asyncio.gather(same, *waiting)
    assert trials.asked[:4] == ["a0", "b0", "a1", "b1"]
    assert sorted(trials.asked) == sorted([*many, "b0", "b1"])
    assert (trials._waiting, trials._turns, trials._running) == ({}, {}, {})


async def test_a_caller_that_leaves_does_not_end_the_trial_of_another(model) -> None:
    trials = Slow(model)
    leaving, staying = (asyncio.create_task(trials.passed(plain("x"), each)) for each in "ab")
    await asyncio.sleep(0)
    leaving.cancel()
    trials.may_answer.set()
    await staying
    assert leaving.cancelled()
    assert trials.asked == ["x"]
