"""What each public path needs. Pure; paths are those that the stranger sent, HTTP or gRPC."""

from dataclasses import dataclass
from urllib.parse import unquote

from gateway import errors
from gateway.errors import public


@dataclass(frozen=True, slots=True)
class Rule:
    """What a request needs."""

    # Scope of the key; "" for any key.
    scope: str
    # Counts against the requests per minute. Only turns do: they are what costs.
    limited: bool = False


CHAT = Rule("chat", limited=True)
# To follow or stop a turn costs nothing new.
TURNS = Rule("chat")
MODELS = Rule("")
# Generic clients find the contracts by themselves.
CONTRACTS = Rule("")
CONVERSATIONS = Rule("conversations")
USAGE = Rule("usage")

_EXACT = {
    "/v1/chat/completions": CHAT,
    "/api/chat/completions": CHAT,
    "/v1/models": MODELS,
    "/api/models": MODELS,
    "/api/conversations": CONVERSATIONS,
    "/api/usage": USAGE,
    "/chatmesh.chat.v1.ChatService/Chat": CHAT,
    "/chatmesh.chat.v1.ChatService/Follow": TURNS,
    "/chatmesh.chat.v1.ChatService/Cancel": TURNS,
    "/chatmesh.chat.v1.ChatService/GetTurn": TURNS,
    "/chatmesh.chat.v1.ChatService/ListModels": MODELS,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": CONTRACTS,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": CONTRACTS,
    "/chatmesh.gateway.v1.OpenAIService/CreateChatCompletion": CHAT,
    "/chatmesh.gateway.v1.OpenAIService/FollowTurn": TURNS,
    "/chatmesh.gateway.v1.OpenAIService/GetTurn": TURNS,
    "/chatmesh.gateway.v1.OpenAIService/CancelTurn": TURNS,
    "/chatmesh.gateway.v1.OpenAIService/ListModels": MODELS,
    "/chatmesh.gateway.v1.OpenAIService/GetModel": MODELS,
    "/chatmesh.gateway.v1.OpenAIService/ListConversations": CONVERSATIONS,
    "/chatmesh.gateway.v1.OpenAIService/GetConversation": CONVERSATIONS,
    "/chatmesh.gateway.v1.OpenAIService/RenameConversation": CONVERSATIONS,
    "/chatmesh.gateway.v1.OpenAIService/DeleteConversation": CONVERSATIONS,
    "/chatmesh.gateway.v1.OpenAIService/GetUsage": USAGE,
}
_PREFIXES = (
    ("/api/turns/", TURNS),
    ("/v1/models/", MODELS),
    ("/api/models/", MODELS),
    ("/api/conversations/", CONVERSATIONS),
    ("/chatmesh.chat.v1.ConversationService/", CONVERSATIONS),
    ("/chatmesh.chat.v1.UsageService/", USAGE),
)


def rule_of(path: str) -> Rule:
    """The rule for a path with its query.

    Raises:
        MeshError: INSUFFICIENT_SCOPE: no scope opens a path that is not public.
    """
    plain = unquote(path.partition("?")[0])
    if rule := _EXACT.get(plain):
        return rule
    for prefix, rule in _PREFIXES:
        if plain.startswith(prefix):
            return rule
    raise public(errors.INSUFFICIENT_SCOPE, "This path is not public; check it for typos.")
