"""Puts the gateway together from channels; tests use it with channels to loopback servers."""

from collections.abc import Callable
from dataclasses import dataclass, field

import grpc

from gateway.admission.admit import Admission
from gateway.context.builder import ContextBuilder
from gateway.context.source import OperatorPromptsFile
from gateway.faces.entry import ChatAdmission
from gateway.faces.openai.service import OpenAIService
from gateway.faces.typed import ChatService, ConversationService, UsageService
from gateway.settings import QueueLimits, TurnLimits
from gateway.turn.background import Background
from gateway.turn.conclude import Concluder
from gateway.turn.fair_queue import FairQueue
from gateway.turn.generation import Generator
from gateway.turn.journal import JournalStore, JournalWriter, Lease
from gateway.turn.plan import Planner
from gateway.turn.run import Means
from gateway.turn.threads import Threads
from gateway.turn.turns import Turns
from gateway.upstreams.billing import Billing
from gateway.upstreams.catalogue import Catalogue
from gateway.upstreams.conversation import Conversation
from gateway.upstreams.inference import Inference
from gateway.upstreams.pool import Pool
from gateway.upstreams.safety import Safety
from gateway.upstreams.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Services:
    """The servicers, what keeps the turns, and what the pool's watcher calls."""

    openai: OpenAIService
    chat: ChatService
    conversations: ConversationService
    usage: UsageService
    turns: Turns
    inference: Inference


@dataclass(frozen=True, slots=True)
class Place:
    """What a gateway has of its own."""

    # Of this process and no other.
    name: str
    limits: TurnLimits
    pool: Pool
    background: Background
    journal: JournalStore
    operator_prompts: OperatorPromptsFile
    default_model: str = ""
    queue: QueueLimits = field(default_factory=QueueLimits)
    # Of requests that the edge did not admit; None: it admits all.
    admission: Admission | None = None


def wire(place: Place, channel_to: Callable[[str], grpc.aio.Channel]) -> Services:
    """The servicers over `channel_to(service)`."""
    limits, background = place.limits, place.background
    queue = FairQueue(place.queue, place.pool.is_crowded)
    place.pool.on_change = queue.advance
    chat_admission = ChatAdmission(place.admission, queue)
    billing = Billing(channel_to("billing"))
    conversation = Conversation(channel_to("conversation"))
    inference = Inference(channel_to("inference"))
    catalogue = Catalogue(inference, place.pool, place.default_model)
    safety = Safety(channel_to("safety"), limits)
    tokenizer = Tokenizer(channel_to("tokenizer"), limits.answer_room_token_count)
    planner = Planner(
        catalogue=catalogue,
        threads=Threads(conversation),
        safety=safety,
        context=ContextBuilder(tokenizer, place.operator_prompts),
        billing=billing,
        background=background,
        queue=queue,
        limits=limits,
    )
    means = Means(
        generator=Generator(inference, place.pool, limits),
        safety=safety,
        billing=billing,
        concluder=Concluder(billing, conversation),
        writer=JournalWriter(place.journal),
        lease=Lease(),
        background=background,
        limits=limits,
    )
    turns = Turns(planner, means, place.journal, place.name)
    return Services(
        openai=OpenAIService(
            chat_admission,
            turns,
            catalogue=catalogue,
            conversation=conversation,
            billing=billing,
            limits=limits,
        ),
        chat=ChatService(chat_admission, turns, catalogue, limits),
        conversations=ConversationService(conversation),
        usage=UsageService(billing),
        turns=turns,
        inference=inference,
    )
