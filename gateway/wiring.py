"""Puts the gateway together from channels; tests use it with channels to loopback servers."""

from collections.abc import Callable
from dataclasses import dataclass

import grpc

from gateway.context.builder import ContextBuilder
from gateway.context.source import OperatorPromptsFile
from gateway.faces.openai.service import OpenAIService
from gateway.faces.typed import ChatService, ConversationService, UsageService
from gateway.settings import TurnLimits
from gateway.turn.background import Background
from gateway.turn.generation import Generator
from gateway.turn.record import Recorder
from gateway.turn.run import Upstreams
from gateway.turn.threads import Threads
from gateway.upstreams.billing import Billing
from gateway.upstreams.catalogue import Catalogue
from gateway.upstreams.conversation import Conversation
from gateway.upstreams.inference import Inference
from gateway.upstreams.pool import Pool
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
    *,
    operator_prompts: OperatorPromptsFile,
) -> Services:
    """The servicers over `channel_to(service)`."""
    billing = Billing(channel_to("billing"))
    conversation = Conversation(channel_to("conversation"))
    inference = Inference(channel_to("inference"))
    tokenizer = Tokenizer(channel_to("tokenizer"), limits.answer_room_token_count)
    up = Upstreams(
        catalogue=Catalogue(inference, pool, default_model),
        threads=Threads(conversation),
        context=ContextBuilder(tokenizer, operator_prompts),
        safety=Safety(channel_to("safety"), limits),
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
