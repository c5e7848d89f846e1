"""The thread of a turn, as the conversation store tells it."""

import pytest

from chatmesh.content.v1 import content_pb2
from chatmesh.conversation.v1 import conversation_pb2
from gateway.turn.domain import Ask, Caller, Message, ModelInfo
from gateway.turn.threads import Threads
from gateway.upstreams.conversation import Conversation
from tests.support.fakes import Fakes
from tests.support.loopback import loopback

CALLER = Caller("acc_1", "pro", "01JTURN")
MODEL = ModelInfo("chatmesh-tiny", 4096, "fp_1")


@pytest.mark.parametrize("background", [False, True])
async def test_a_turn_learns_what_the_owner_of_its_thread_asked_for(background):
    fakes = Fakes()
    kept = conversation_pb2.NewMessage(role=content_pb2.ROLE_TOOL, content="42")
    fakes.conversation.threads["acc_1", "thr_1"] = [kept]
    fakes.conversation.background["thr_1"] = background
    async with loopback(fakes.registrations()) as channel:
        threads = Threads(Conversation(channel))
        asked = Ask("chatmesh-tiny", [Message("user", "Why?")], conversation_id="thr_1")
        thread = await threads.open(asked, CALLER, MODEL)
    assert (thread.id, thread.background) == ("thr_1", background)
    assert thread.history.messages == [Message("tool", "42")]
