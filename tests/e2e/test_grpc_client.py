"""gRPC clients through the edge: generated stubs, and one that knows only reflection."""

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from chatmesh.chat.v1 import chat_pb2, chat_pb2_grpc
from chatmesh.content.v1 import content_pb2
from mesh.chassis.errors import MeshError

pytestmark = pytest.mark.mesh


def metadata(mesh_copy):
    return (("authorization", f"Bearer {mesh_copy.api_key}"),)


@pytest.fixture
def tls(mesh_copy):
    credentials = grpc.ssl_channel_credentials(mesh_copy.ca_cert.read_bytes())
    address = mesh_copy.tls_address.replace("127.0.0.1", "localhost")
    with grpc.secure_channel(address, credentials) as channel:
        yield channel


@pytest.fixture(params=["tls", "plain"])
def channel(request, mesh_copy):
    if request.param == "tls":
        yield request.getfixturevalue("tls")
        return
    with grpc.insecure_channel(mesh_copy.plain_address) as channel:
        yield channel


def chat(**fields):
    message = chat_pb2.Message(role=content_pb2.ROLE_USER, content="Hello! Tell me about the sea.")
    return chat_pb2.ChatRequest(messages=[message], max_tokens=30, seed=7, **fields)


def test_a_typed_turn(mesh_copy, channel):
    stub = chat_pb2_grpc.ChatServiceStub(channel)
    events = list(stub.Chat(chat(), metadata=metadata(mesh_copy), timeout=30))
    numbers = [event.sequence for event in events]
    assert numbers[0] == 0
    assert numbers == sorted(set(numbers))
    assert events[0].WhichOneof("event") == "started"
    assert events[-1].WhichOneof("event") == "finished"
    text = "".join(event.delta.text for event in events)
    assert text
    usage = events[-1].finished.usage
    assert 0 < usage.completion_token_count <= 30


def test_a_conversation_from_first_to_last(mesh_copy, tls):
    stub = chat_pb2_grpc.ChatServiceStub(tls)
    conversations = chat_pb2_grpc.ConversationServiceStub(tls)
    arguments = {"metadata": metadata(mesh_copy), "timeout": 30}
    events = list(stub.Chat(chat(store=True), **arguments))
    name = events[0].started.conversation_id
    text = "".join(event.delta.text for event in events)

    request = chat_pb2.GetConversationRequest(conversation_id=name)
    stored = conversations.GetConversation(request, **arguments).conversation
    assert [m.role for m in stored.messages] == [content_pb2.ROLE_USER, content_pb2.ROLE_ASSISTANT]
    assert stored.messages[1].content == text

    renamed = conversations.RenameConversation(
        chat_pb2.RenameConversationRequest(conversation_id=name, title="The sea"), **arguments
    )
    assert renamed.conversation.title == "The sea"
    listed = conversations.ListConversations(chat_pb2.ListConversationsRequest(), **arguments)
    assert name in [one.id for one in listed.conversations]

    conversations.DeleteConversation(
        chat_pb2.DeleteConversationRequest(conversation_id=name), **arguments
    )
    with pytest.raises(grpc.RpcError) as caught:
        conversations.GetConversation(request, **arguments)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert MeshError.from_rpc(caught.value).reason == "CONVERSATION_NOT_FOUND"


def test_a_conversation_of_another_account_is_not_found(mesh_copy, tls):
    stub = chat_pb2_grpc.ChatServiceStub(tls)
    events = list(stub.Chat(chat(store=True), metadata=metadata(mesh_copy), timeout=30))
    name = events[0].started.conversation_id
    other = (("authorization", f"Bearer {mesh_copy.new_key()}"),)
    conversations = chat_pb2_grpc.ConversationServiceStub(tls)
    with pytest.raises(grpc.RpcError) as caught:
        conversations.GetConversation(
            chat_pb2.GetConversationRequest(conversation_id=name), metadata=other, timeout=10
        )
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Chat(chat(conversation_id=name), metadata=other, timeout=10))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_bad_key_is_unauthenticated(mesh_copy, tls):
    stub = chat_pb2_grpc.ChatServiceStub(tls)
    wrong = (("authorization", "Bearer cm-wrong"),)
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Chat(chat(), metadata=wrong, timeout=10))
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_an_unknown_model_has_its_reason(mesh_copy, tls):
    stub = chat_pb2_grpc.ChatServiceStub(tls)
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Chat(chat(model="gpt-none"), metadata=metadata(mesh_copy), timeout=10))
    error = MeshError.from_rpc(caught.value)
    assert (error.code, error.reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
    assert error.metadata["param"] == "model"


def test_internal_services_are_not_reachable(mesh_copy, tls):
    for method in (
        "/chatmesh.billing.v1.AccountAdminService/CreateKey",
        "/chatmesh.inference.v1.InferenceService/Generate",
        "/envoy.service.auth.v3.Authorization/Check",
        "/grpc.health.v1.Health/Check",
    ):
        call = tls.unary_unary(method)
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", metadata=metadata(mesh_copy), timeout=10)
        assert caught.value.code() in (
            grpc.StatusCode.UNIMPLEMENTED,
            grpc.StatusCode.NOT_FOUND,
            grpc.StatusCode.PERMISSION_DENIED,
        ), method


def test_a_client_that_knows_only_reflection_chats(mesh_copy, tls):
    authorised = grpc.intercept_channel(tls, _WithKey(metadata(mesh_copy)))
    database = ProtoReflectionDescriptorDatabase(authorised)
    assert "chatmesh.chat.v1.ChatService" in database.get_services()
    pool = descriptor_pool.DescriptorPool(database)
    method = pool.FindServiceByName("chatmesh.chat.v1.ChatService").FindMethodByName("Chat")
    request_class = message_factory.GetMessageClass(method.input_type)
    response_class = message_factory.GetMessageClass(method.output_type)
    request = request_class()
    request.messages.add(role=2, content="Hello!")
    request.max_tokens = 5
    call = authorised.unary_stream(
        "/chatmesh.chat.v1.ChatService/Chat",
        request_serializer=request_class.SerializeToString,
        response_deserializer=response_class.FromString,
    )
    events = list(call(request, timeout=30))
    assert events[-1].finished.usage.completion_token_count > 0


class _WithKey(grpc.UnaryStreamClientInterceptor, grpc.StreamStreamClientInterceptor):
    """Adds the key to each call, as grpcurl -H does."""

    def __init__(self, pairs):
        self._pairs = pairs

    def _details(self, details):
        return details._replace(metadata=(*(details.metadata or ()), *self._pairs))

    def intercept_unary_stream(self, continuation, details, request):
        return continuation(self._details(details), request)

    def intercept_stream_stream(self, continuation, details, requests):
        return continuation(self._details(details), requests)
