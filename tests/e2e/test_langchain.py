"""LangChain against a whole running mesh."""

import pytest
from langchain_openai import ChatOpenAI

pytestmark = pytest.mark.mesh


@pytest.fixture
def model(mesh_copy):
    return ChatOpenAI(
        model="chatmesh-tiny",
        base_url=mesh_copy.base_url,
        api_key=mesh_copy.api_key,
        max_retries=0,
        max_tokens=30,
        seed=11,
        stream_usage=True,
    )


def test_invoke_and_stream_agree(model):
    messages = [("system", "Be brief."), ("user", "Tell me about the sea.")]
    whole = model.invoke(messages)
    chunks = list(model.stream(messages))
    assert whole.content
    assert "".join(chunk.content for chunk in chunks) == whole.content
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    assert total.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]


async def test_batches(model):
    answers = await model.abatch([f"Count to {n}." for n in range(4)])
    assert all(answer.content for answer in answers)
