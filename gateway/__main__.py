"""Wires the gateway."""

import contextlib
from collections.abc import Sequence

from envoy.service.auth.v3.external_auth_pb2_grpc import add_AuthorizationServicer_to_server

from chatmesh.chat.v1 import chat_pb2_grpc
from chatmesh.gateway.v1.gateway_pb2_grpc import add_OpenAIServiceServicer_to_server
from gateway.admission.admit import Admission
from gateway.admission.keys import Keys
from gateway.admission.rate import RateLimiter
from gateway.admission.service import Authorization
from gateway.admission.tokens import Tokens
from gateway.context.source import OperatorPromptsFile
from gateway.settings import Settings
from gateway.turn.background import Background
from gateway.upstreams.journal import RedisJournal
from gateway.upstreams.pool import Pool
from gateway.upstreams.watch import watch
from gateway.wiring import Place, Services, wire
from mesh.chassis import Node, run
from mesh.chassis.redis_client import connect
from mesh.chassis.server import Registration


async def start(node: Node) -> None:
    """Serves until the process is asked to end and every turn is recorded."""
    settings = Settings()  # type: ignore[call-arg]  # the environment fills it
    background, pool = Background(settings.turn.conclude_duration_s_max), Pool()
    prompts = OperatorPromptsFile(settings.operator_prompts_file)
    client = connect(
        settings.redis_url,
        name=node.instance,
        connect_timeout_s=settings.admission.rate_timeout_s,
    )
    journal = RedisJournal(client, settings.turn)
    keys = Keys(node.channel_to("billing"), settings.admission)
    admission = Admission(keys, Tokens(settings.jwt), RateLimiter(client, settings.admission))
    place = Place(
        name=node.instance,
        limits=settings.turn,
        pool=pool,
        background=background,
        journal=journal,
        operator_prompts=prompts,
        default_model=settings.default_model,
        queue=settings.queue,
        admission=admission,
    )
    services = wire(place, node.channel_to)

    async def watch_nodes() -> None:
        await watch(pool, services.inference, node.watch_instances("inference"))

    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(client.aclose)
        await stack.enter_async_context(
            node.keeping(
                nodes=watch_nodes, turns=services.turns.keep, operator_prompts=prompts.follow
            )
        )
        await journal.prepare()
        await node.serve(_registrations(services, admission))
        await services.turns.close()
        await background.finish()


def _registrations(services: Services, admission: Admission) -> Sequence[Registration]:
    return [
        (add_AuthorizationServicer_to_server, Authorization(admission)),
        (add_OpenAIServiceServicer_to_server, services.openai),
        (chat_pb2_grpc.add_ChatServiceServicer_to_server, services.chat),
        (chat_pb2_grpc.add_ConversationServiceServicer_to_server, services.conversations),
        (chat_pb2_grpc.add_UsageServiceServicer_to_server, services.usage),
    ]


if __name__ == "__main__":
    run(start)
