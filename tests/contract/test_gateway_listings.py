"""Models, conversations and usage over HTTP: shapes, pages, strangers."""

import json

import pytest
from google.api import httpbody_pb2

from chatmesh.gateway.v1 import gateway_pb2 as pb
from tests.support.fakes import MODEL, Fakes
from tests.support.gateway_turns import identity, running_gateway


async def test_models():
    async with running_gateway() as gateway:
        listed = await gateway.get("ListModels", pb.ListModelsRequest())
        one = await gateway.get("GetModel", pb.GetModelRequest(model=MODEL))
        none = await gateway.get("GetModel", pb.GetModelRequest(model="x"))
    model = {
        "id": MODEL,
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "chatmesh",
        "context_window": 4096,
    }
    assert listed.json == {"object": "list", "data": [model]}
    assert one.json == model
    assert (none.status, none.json["error"]["code"]) == (404, "model_not_found")


async def test_models_of_all_nodes_are_merged_and_a_lost_node_is_remembered():
    fakes = Fakes()
    async with running_gateway(fakes) as gateway:
        gateway.pool.replace({"inference-1": "a", "inference-2": "b"})
        fakes.inference.models = ["b-model", "a-model"]
        listed = await gateway.get("ListModels", pb.ListModelsRequest())
        assert [model["id"] for model in listed.json["data"]] == ["a-model", "b-model"]
        assert all(node.models == {"a-model", "b-model"} for node in gateway.pool.nodes)


async def test_conversations():
    async with running_gateway() as gateway:
        thread = (await gateway.post({"store": True})).json["conversation_id"]
        listed = await gateway.get("ListConversations", pb.ListConversationsRequest())
        got = await gateway.get(
            "GetConversation", pb.GetConversationRequest(conversation_id=thread)
        )
        body = httpbody_pb2.HttpBody(data=json.dumps({"title": "Neu ✓"}).encode())
        rename = pb.RenameConversationRequest(conversation_id=thread, body=body)
        renamed = await gateway.get("RenameConversation", rename)
        delete = pb.DeleteConversationRequest(conversation_id=thread)
        deleted = await gateway.get("DeleteConversation", delete)
        again = await gateway.get("DeleteConversation", delete)
    shown = {
        "id": thread,
        "object": "conversation",
        "title": "A title",
        "model": MODEL,
        "created_at": 1_700_000_000,
        "updated_at": 1_700_000_100,
        "total_tokens": 12,
        "message_count": 0,
        "background": False,
    }
    assert listed.json == {"object": "list", "data": [shown], "next_page_token": "next"}
    assert got.json["messages"] == [
        {
            "id": "msg_0",
            "role": "user",
            "content": "How are you?",
            "created_at": 1_700_000_000,
            "token_count": 3,
            "turn_id": "T",
        },
        {
            "id": "msg_1",
            "role": "assistant",
            "content": "Hello wide world.",
            "created_at": 1_700_000_001,
            "token_count": 4,
            "turn_id": "T",
            "finish_reason": "stop",
            "model": MODEL,
        },
    ]
    assert got.json["total_tokens"] == 12
    assert renamed.json["title"] == "Neu ✓"
    assert deleted.json == {"id": thread, "object": "conversation", "deleted": True}
    assert (again.status, again.json["error"]["code"]) == (404, "conversation_not_found")


def change(thread: str, **fields: object) -> pb.RenameConversationRequest:
    body = httpbody_pb2.HttpBody(data=json.dumps(fields).encode())
    return pb.RenameConversationRequest(conversation_id=thread, body=body)


async def test_a_conversation_asks_for_background_turns():
    async with running_gateway() as gateway:
        thread = (await gateway.post({"store": True})).json["conversation_id"]
        asked = change(thread, background=True, title="Neu")
        asking = await gateway.get("RenameConversation", asked)
        renaming = await gateway.get("RenameConversation", change(thread, title="Neuer"))
        listed = await gateway.get("ListConversations", pb.ListConversationsRequest())
        ending = await gateway.get("RenameConversation", change(thread, background=False))
    assert (asking.json["background"], asking.json["title"]) == (True, "Neu")
    assert (renaming.json["background"], renaming.json["title"]) == (True, "Neuer")
    assert [each["background"] for each in listed.json["data"]] == [True]
    assert ending.json["background"] is False


async def test_a_finish_reason_of_a_store_of_the_version_before_is_shown():
    fakes = Fakes()
    async with running_gateway(fakes) as gateway:
        thread = (await gateway.post({"store": True})).json["conversation_id"]
        for kept in fakes.conversation.threads.values():
            kept[-1].ClearField("finish")
        got = await gateway.get(
            "GetConversation", pb.GetConversationRequest(conversation_id=thread)
        )
    assert got.json["messages"][-1]["finish_reason"] == "stop"


async def test_another_accounts_conversation_is_not_found():
    async with running_gateway() as gateway:
        thread = (await gateway.post({"store": True})).json["conversation_id"]
        stranger = identity(account="acc_2")
        for method, request in (
            ("GetConversation", pb.GetConversationRequest(conversation_id=thread)),
            ("DeleteConversation", pb.DeleteConversationRequest(conversation_id=thread)),
        ):
            answer = await gateway.get(method, request, stranger)
            assert (answer.status, answer.json["error"]["param"]) == (404, "conversation_id")


@pytest.mark.parametrize("size", ["0", "101", "x", "-1", "1.5", "99999999999999999999", "٣"])
async def test_a_wrong_page_size(size):
    async with running_gateway() as gateway:
        answer = await gateway.get("ListConversations", pb.ListConversationsRequest(page_size=size))
    assert (answer.status, answer.json["error"]["param"]) == (400, "page_size")


async def test_a_wrong_page_token():
    async with running_gateway() as gateway:
        request = pb.ListConversationsRequest(page_token="forged")
        answer = await gateway.get("ListConversations", request)
    assert (answer.status, answer.json["error"]["param"]) == (400, "page_token")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{}", "invalid_parameter"),
        (b'{"title":""}', "invalid_parameter"),
        (b'{"title":"%s"}' % (b"x" * 201), "invalid_parameter"),
        (b'{"background":"yes"}', "invalid_parameter"),
        (b'{"background":true,"title":""}', "invalid_parameter"),
        (b"x", "invalid_body"),
    ],
)
async def test_a_wrong_change(body, code):
    async with running_gateway() as gateway:
        request = pb.RenameConversationRequest(
            conversation_id="thr_1", body=httpbody_pb2.HttpBody(data=body)
        )
        answer = await gateway.get("RenameConversation", request)
    assert (answer.status, answer.json["error"]["code"]) == (400, code)


async def test_usage():
    async with running_gateway() as gateway:
        answer = await gateway.get("GetUsage", pb.GetUsageRequest())
    assert answer.json["period"] == "2026-11"
    assert answer.json["input_tokens"] == 100
    assert answer.json["cached_input_tokens"] == 40
    assert answer.json["output_tokens"] == 25
    assert answer.json["cost_usd"] == 0.0015
    assert answer.json["budget_usd"] is None
    assert answer.json["models"][0]["model"] == MODEL
