"""What is new beside the text of a conversation: background, how an answer ended, parts."""

from typing import Any

from ulid import ULID

from chatmesh.content.v1 import content_pb2
from chatmesh.conversation.v1 import conversation_pb2 as pb
from tests.support.conversation import World, answer, as_bytes, refused, user


async def test_update_changes_what_is_given(world: World) -> None:
    thread_id = await world.thread()
    named = {"account_id": world.account, "thread_id": thread_id}
    before = (await world.read.GetThread(pb.GetThreadRequest(**named))).thread
    assert not before.background

    async def update(**changes: Any) -> pb.Thread:
        return (await world.write.UpdateThread(pb.UpdateThreadRequest(**named, **changes))).thread

    first = await update(background=True, request_id="u")
    assert (first.background, first.title) == (True, before.title)
    assert (await update(title=" Rye\n")).title == "Rye"
    both = await update(title="Spelt", background=False)
    assert (both.background, both.title) == (False, "Spelt")
    again = await update(background=True, request_id="u")
    assert as_bytes(again) == as_bytes(first)
    assert (await world.read.GetThread(pb.GetThreadRequest(**named))).thread == both
    await refused(update(background=False, request_id="u"), "REQUEST_REUSED", "ALREADY_EXISTS")
    assert await refused(update(), "BAD_REQUEST", "INVALID_ARGUMENT") == {"field": "title"}
    assert await refused(update(title=""), "BAD_REQUEST", "INVALID_ARGUMENT") == {"field": "title"}
    named["account_id"] = "acc_other"
    await refused(update(background=True), "THREAD_NOT_FOUND", "NOT_FOUND")


async def test_background_survives_an_append_and_comes_with_the_tail(world: World) -> None:
    thread_id = await world.thread()
    assert not (await world.tail(thread_id)).thread.background
    named = {"account_id": world.account, "thread_id": thread_id}
    await world.write.UpdateThread(pb.UpdateThreadRequest(**named, background=True))
    assert (await world.tail(thread_id)).thread.background  # although the hot copy is older
    assert (await world.append(thread_id)).thread.background
    assert (await world.tail(thread_id)).thread.background
    await world.write.RenameThread(pb.RenameThreadRequest(**named, title="x"))
    (listed,) = (
        await world.read.ListThreads(pb.ListThreadsRequest(account_id=world.account))
    ).threads
    assert (listed.background, listed.title) == (True, "x")


async def test_an_end_is_stored_whichever_way_it_is_said(world: World) -> None:
    by_word, by_number, unknown, both = answer("a"), answer("b"), answer("c"), answer("d")
    by_number.finish_reason, by_number.finish = "", content_pb2.FINISH_REASON_LENGTH
    unknown.finish_reason = "tired"
    both.finish_reason, both.finish = "stop", content_pb2.FINISH_REASON_STOP
    thread_id = await world.thread(user("q"), by_word, by_number, unknown, both)
    stored = await world.all_messages(thread_id)
    assert [(each.finish_reason, each.finish) for each in stored] == [
        ("", content_pb2.FINISH_REASON_UNSPECIFIED),
        ("stop", content_pb2.FINISH_REASON_STOP),
        ("length", content_pb2.FINISH_REASON_LENGTH),
        ("tired", content_pb2.FINISH_REASON_UNSPECIFIED),
        ("stop", content_pb2.FINISH_REASON_STOP),
    ]


async def test_parts_are_refused_not_lost(world: World) -> None:
    made = user("x")
    made.parts.add(text="x")
    metadata = await refused(
        world.append(f"thr_{ULID()}", user("a"), made, create_if_missing=True),
        *("BAD_REQUEST", "INVALID_ARGUMENT"),
    )
    assert metadata == {"field": "messages[1].parts"}
