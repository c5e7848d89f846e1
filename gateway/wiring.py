"""Puts the gateway together from channels; tests use it with channels to loopback servers."""

from collections.abc import Callable
from dataclasses import dataclass

import grpc

from gateway.background import Background
from gateway.catalogue import Catalogue
from gateway.generation import Generator
from gateway.openai.service import OpenAIService
from gateway.pool import Pool
from gateway.record import Recorder
from gateway.settings import TurnLimits
from gateway.threads import Threads
from gateway.turn import Upstreams
from gateway.typed import ChatService, ConversationService, UsageService
from gateway.upstreams.billing import Billing
from gateway.upstreams.conversation import Conversation
from gateway.upstreams.inference import Inference
from gateway.upstreams.safety import Safety
from gateway.upstreams.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Services:
    """The servicers, and what the pool's watcher calls."""

    openai: OpenAIService
    chat: ChatService
    conversations: ConversationService
    usage: UsageService
    inference: Inference


def wire(
    limits: TurnLimits,
    default_model: str,
    channel_to: Callable[[str], grpc.aio.Channel],
    pool: Pool,
    background: Background,
) -> Services:
    """The servicers over `channel_to(service)`."""
    billing = Billing(channel_to("billing"))
    conversation = Conversation(channel_to("conversation"))
    inference = Inference(channel_to("inference"))
    up = Upstreams(
        catalogue=Catalogue(inference, pool, default_model),
        threads=Threads(conversation),
        safety=Safety(channel_to("safety"), limits),
        tokenizer=Tokenizer(channel_to("tokenizer"), limits.answer_room_token_count),
        recorder=Recorder(billing, conversation, background, limits),
        generator=Generator(inference, pool, limits),
        limits=limits,
    )
    return Services(
        openai=OpenAIService(up, conversation, billing),
        chat=ChatService(up),
        conversations=ConversationService(conversation),
        usage=UsageService(billing),
        inference=inference,
    )
