"""Wires the gateway."""

import asyncio
from collections.abc import Sequence

from envoy.service.auth.v3.external_auth_pb2_grpc import add_AuthorizationServicer_to_server

from chatmesh.chat.v1 import chat_pb2_grpc
from chatmesh.gateway.v1.gateway_pb2_grpc import add_OpenAIServiceServicer_to_server
from gateway.admission.keys import Keys
from gateway.admission.rate import RateLimiter
from gateway.admission.service import Admission
from gateway.admission.tokens import Tokens
from gateway.settings import Settings
from gateway.turn.background import Background
from gateway.upstreams.pool import Pool
from gateway.upstreams.watch import watch
from gateway.wiring import Services, wire
from mesh.chassis import Node, run
from mesh.chassis.redis_client import connect
from mesh.chassis.server import Registration


async def start(node: Node) -> None:
    """Serves until the process is asked to end and every turn is recorded."""
    settings = Settings()  # type: ignore[call-arg]  # the environment fills it
    background = Background(settings.turn.conclude_duration_s_max)
    pool = Pool()
    services = wire(settings.turn, settings.default_model, node.channel_to, pool, background)
    client = connect(
        settings.redis_url,
        name=node.instance,
        connect_timeout_s=settings.admission.rate_timeout_s,
    )
    keys = Keys(node.channel_to("billing"), settings.admission)
    admission = Admission(keys, Tokens(settings.jwt), RateLimiter(client, settings.admission))
    views = node.watch_instances("inference")
    watching = asyncio.create_task(watch(pool, services.inference, views))
    try:
        await node.serve(_registrations(services, admission))
        await background.finish()
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        await client.aclose()


def _registrations(services: Services, admission: Admission) -> Sequence[Registration]:
    return [
        (add_AuthorizationServicer_to_server, admission),
        (add_OpenAIServiceServicer_to_server, services.openai),
        (chat_pb2_grpc.add_ChatServiceServicer_to_server, services.chat),
        (chat_pb2_grpc.add_ConversationServiceServicer_to_server, services.conversations),
        (chat_pb2_grpc.add_UsageServiceServicer_to_server, services.usage),
    ]


if __name__ == "__main__":
    run(start)
