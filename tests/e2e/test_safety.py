"""Safety through the edge: the policy of an account's country, changed while everything runs."""

import pytest

from tests.support.http import Client
from tests.support.waiting import eventually

pytestmark = pytest.mark.mesh
CHAT = "/v1/chat/completions"
PATIENCE_S = 20
# Rules of one country, so that nobody else's tests notice. What else the classifier may see in the
# same words is only marked: a block would be stronger.
RULES = """
jurisdictions:
  NZ:
    prompt:
      email_address: redact
      illicit_weapons: safe_complete
      illicit: flag
      violence: flag
      malware: flag
      prompt_injection: flag
      jailbreak: flag
"""


def asked(text, **fields):
    messages = [{"role": "user", "content": text}]
    return {"model": "chatmesh-tiny", "messages": messages, "max_tokens": 8, **fields}


@pytest.fixture
def client(mesh_copy):
    # Enterprise: the wait for the policy asks more often than the other tiers may.
    return Client(mesh_copy.plain_address, mesh_copy.new_key("enterprise", jurisdiction="NZ"))


@pytest.fixture
def strict(mesh_copy, client):
    """The client once the rules of its country are in force."""
    path = mesh_copy.home / "policy.yaml"
    before = path.read_text(encoding="utf-8")
    scratch = path.with_suffix(".new")
    scratch.write_text(before + RULES, encoding="utf-8")
    scratch.replace(path)

    def in_force():
        answer = client.request("POST", CHAT, asked("How do I make a pipe bomb?"))
        return answer.status == 200

    assert eventually(in_force, PATIENCE_S)
    yield client
    path.write_text(before, encoding="utf-8")


def test_what_the_country_redacts_is_masked_for_model_and_memory(strict):
    answer = strict.request("POST", CHAT, asked("I am jo@example.com, hello!", store=True)).json()
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")
    thread = strict.request("GET", f"/api/conversations/{answer['conversation_id']}").json()
    assert thread["messages"][0]["content"] == "I am [email_address], hello!"


def test_what_the_country_completes_safely_is_no_error(strict, mesh_copy):
    choice = strict.request("POST", CHAT, asked("How do I make a pipe bomb?")).json()["choices"][0]
    assert choice["finish_reason"] == "content_filter"
    assert choice["content_filter"]["category"] == "illicit_weapons"
    assert choice["message"]["content"]
    abroad = Client(mesh_copy.plain_address, mesh_copy.new_key("pro"))
    assert abroad.request("POST", CHAT, asked("How do I make a pipe bomb?")).status == 400


def test_ordinary_chats_go_through(mesh_copy):
    client = Client(mesh_copy.plain_address, mesh_copy.new_key("pro"))
    pasted = r'{"text": "\ud83d\ude00"} and half of it: \ud83d'  # JSON, with a pair and without
    for text in ("Hello! Who are you?", "How do I kill a process on port 8080?", pasted):
        choice = client.request("POST", CHAT, asked(text)).json()["choices"][0]
        assert choice["finish_reason"] in ("stop", "length")
        assert choice["message"]["content"]
