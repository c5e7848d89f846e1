"""The contract of the conversation store, over a real wire, PostgreSQL and Redis."""

import asyncio
import json
from datetime import timedelta

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ulid import ULID

from chatmesh.conversation.v1 import conversation_pb2 as pb
from conversation_svc.purge import purge_once
from tests.support.conversation import (
    World,
    answer,
    as_bytes,
    message,
    refused,
    system,
    user,
)

KEEP = timedelta(days=30)


async def test_create_read_rename(world: World) -> None:
    made = await world.write.CreateThread(
        pb.CreateThreadRequest(account_id=world.account, request_id="r", title="Bread", model="m")
    )
    thread = made.thread
    assert (thread.title, thread.model, thread.message_count) == ("Bread", "m", 0)
    assert thread.id.startswith("thr_")
    get = pb.GetThreadRequest(account_id=world.account, thread_id=thread.id)
    assert (await world.read.GetThread(get)).thread == thread
    assert await world.all_messages(thread.id) == []
    renamed = await world.write.RenameThread(
        pb.RenameThreadRequest(account_id=world.account, thread_id=thread.id, title=" Rye\n")
    )
    assert renamed.thread.title == "Rye"
    assert (await world.read.GetThread(get)).thread == renamed.thread
    assert renamed.thread.update_time == thread.update_time  # time of the last message


async def test_append_makes_the_thread_and_counts(world: World) -> None:
    thread_id = f"thr_{ULID()}"
    first = await world.append(
        thread_id, user("How do I bake bread?", 5), answer("Slowly.", 3), create_if_missing=True
    )
    assert first.thread.id == thread_id
    assert first.thread.title == "How do I bake bread?"
    assert (first.thread.message_count, first.thread.total_token_count) == (2, 8)
    second = await world.append(thread_id, user("And rye?", 2), request_id="turn-2", model="n")
    assert (second.thread.message_count, second.thread.total_token_count) == (3, 10)
    assert (second.thread.title, second.thread.model) == ("How do I bake bread?", "n")
    assert second.thread.update_time.ToDatetime() > first.thread.update_time.ToDatetime()
    stored = await world.all_messages(thread_id)
    assert stored == [*first.messages, *second.messages]
    assert [m.content for m in stored] == ["How do I bake bread?", "Slowly.", "And rye?"]
    assert stored[2].turn_id == "turn-2"
    assert (stored[1].finish_reason, stored[1].model) == ("stop", "m")
    assert all(m.id.startswith("msg_") for m in stored)
    assert len({m.id for m in stored}) == 3


async def test_the_same_request_again_has_the_same_answer(world: World) -> None:
    create = pb.CreateThreadRequest(account_id=world.account, request_id="r1", model="m")
    created = await world.write.CreateThread(create)
    thread_id = created.thread.id
    append = {"request_id": "r1"}  # the same id for another method is another request
    appended = await world.append(thread_id, **append)
    rename = pb.RenameThreadRequest(
        account_id=world.account, thread_id=thread_id, title="One", request_id="r1"
    )
    renamed = await world.write.RenameThread(rename)
    later = pb.RenameThreadRequest(account_id=world.account, thread_id=thread_id, title="Two")
    await world.write.RenameThread(later)
    await world.append(thread_id)

    assert as_bytes(await world.write.CreateThread(create)) == as_bytes(created)
    assert as_bytes(await world.append(thread_id, **append)) == as_bytes(appended)
    assert as_bytes(await world.write.RenameThread(rename)) == as_bytes(renamed)
    get = pb.GetThreadRequest(account_id=world.account, thread_id=thread_id)
    now = (await world.read.GetThread(get)).thread
    assert (now.title, now.message_count) == ("Two", 4)
    await world.delete(thread_id, "d")
    await world.delete(thread_id, "d")
    assert as_bytes(await world.append(thread_id, **append)) == as_bytes(appended)


async def test_a_request_id_is_for_one_content(world: World) -> None:
    thread_id, other = await world.thread(), await world.thread()
    await world.append(thread_id, user("a"), request_id="r")
    for call in (
        world.append(thread_id, user("b"), request_id="r"),
        world.append(other, user("a"), request_id="r"),
        world.append(thread_id, user("a"), user("a"), request_id="r"),
    ):
        await refused(call, "REQUEST_REUSED", "ALREADY_EXISTS")
    create = pb.CreateThreadRequest(account_id=world.account, request_id="c", title="a")
    await world.write.CreateThread(create)
    create.title = "b"
    await refused(world.write.CreateThread(create), "REQUEST_REUSED", "ALREADY_EXISTS")
    await world.delete(thread_id, "d")
    await refused(world.delete(other, "d"), "REQUEST_REUSED", "ALREADY_EXISTS")
    # Another account's ids are its own.
    await world.append(other, user("c"), request_id="r", account_id="acc_z", create_if_missing=True)


async def test_a_failed_request_takes_no_request_id(world: World) -> None:
    thread_id = f"thr_{ULID()}"
    await refused(
        world.append(thread_id, user("a"), request_id="r"), "THREAD_NOT_FOUND", "NOT_FOUND"
    )
    assert await world.append(thread_id, user("a"), request_id="r", create_if_missing=True)


async def test_deleted_is_gone_at_once_and_its_id_stays_taken(world: World) -> None:
    thread_id = await world.thread()
    await world.tail(thread_id)
    await world.delete(thread_id)
    for call in (
        world.delete(thread_id),
        world.tail(thread_id),
        world.all_messages(thread_id),
        world.append(thread_id, create_if_missing=True),
        world.read.GetThread(pb.GetThreadRequest(account_id=world.account, thread_id=thread_id)),
        world.write.RenameThread(
            pb.RenameThreadRequest(account_id=world.account, thread_id=thread_id, title="x")
        ),
    ):
        metadata = await refused(call, "THREAD_NOT_FOUND", "NOT_FOUND")
        assert metadata == {"thread_id": thread_id}
    assert await world.hot.get(world.account, thread_id) is None
    listed = await world.read.ListThreads(pb.ListThreadsRequest(account_id=world.account))
    assert not listed.threads


async def test_another_accounts_thread_is_not_found(world: World) -> None:
    thread_id = await world.thread()
    stranger = World(**{**vars(world), "account": world.account + "x"})
    for call in (
        stranger.tail(thread_id),
        stranger.all_messages(thread_id),
        stranger.append(thread_id),
        stranger.delete(thread_id),
    ):
        await refused(call, "THREAD_NOT_FOUND", "NOT_FOUND")
    # Naming a thread alike makes one of their own and tells nothing.
    theirs = await stranger.append(thread_id, user("mine"), create_if_missing=True)
    assert theirs.thread.message_count == 1
    assert len(await world.all_messages(thread_id)) == 2


async def test_parallel_appends_keep_order_and_counts(world: World) -> None:
    thread_id = f"thr_{ULID()}"
    answers = await asyncio.gather(
        *(
            world.append(
                thread_id,
                *(user(f"{turn}:{n}", tokens=turn) for n in range(3)),
                request_id=f"turn-{turn}",
                create_if_missing=True,
            )
            for turn in range(12)
        )
    )
    stored = await world.all_messages(thread_id, page_size=7)
    assert len(stored) == 36
    for group in zip(*[iter(stored)] * 3, strict=True):  # a turn's messages stay together
        turn = group[0].turn_id.removeprefix("turn-")
        assert [m.content for m in group] == [f"{turn}:{n}" for n in range(3)]
    assert sorted(a.thread.message_count for a in answers) == list(range(3, 37, 3))
    thread = (await world.tail(thread_id)).thread
    assert (thread.message_count, thread.total_token_count) == (36, 3 * sum(range(12)))
    times = [m.create_time.ToDatetime() for m in stored]
    assert times == sorted(times)


async def test_the_same_request_in_parallel_is_done_once(world: World) -> None:
    thread_id = f"thr_{ULID()}"
    calls = (
        world.append(thread_id, user("x"), request_id="r", create_if_missing=True) for _ in range(8)
    )
    answers = await asyncio.gather(*calls)
    assert len({as_bytes(a) for a in answers}) == 1
    create = pb.CreateThreadRequest(account_id=world.account, request_id="r")
    made = await asyncio.gather(*(world.write.CreateThread(create) for _ in range(8)))
    assert len({m.thread.id for m in made}) == 1
    listed = await world.read.ListThreads(pb.ListThreadsRequest(account_id=world.account))
    assert len(listed.threads) == 2


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=0, max_size=8),
    page_size=st.integers(1, 7),
    touched=st.lists(st.integers(0, 7), max_size=4),
)
async def test_pages_put_together_are_the_whole_list(
    world: World, sizes: list[int], page_size: int, touched: list[int]
) -> None:
    world = World(**{**vars(world), "account": f"acc_{ULID()}"})
    threads = [await world.thread(*(user(str(n)) for n in range(size))) for size in sizes]
    for index in touched:
        if index < len(threads):
            await world.append(threads[index], user("again"))
            threads.append(threads.pop(index))
    request = pb.ListThreadsRequest(account_id=world.account, page_size=page_size)
    listed: list[str] = []
    for _ in range(len(threads) + 1):
        page = await world.read.ListThreads(request)
        assert len(page.threads) == page_size or not page.next_page_token
        listed += [thread.id for thread in page.threads]
        request.page_token = page.next_page_token
        if not page.next_page_token:
            break
    assert listed == threads[::-1]
    for thread_id in threads:
        whole = await world.all_messages(thread_id, 1000)
        assert await world.all_messages(thread_id, page_size) == whole
        assert len(whole) == (await world.tail(thread_id)).thread.message_count


async def test_a_page_is_bounded_by_what_it_is_as_json(world: World) -> None:
    # Six bytes each there: what fits a page as text was more than a message may have as JSON.
    texts = [f"{number}" + "\x01" * 100_000 for number in range(12)]
    thread = await world.thread(*map(user, texts))
    request = pb.ListMessagesRequest(
        account_id=world.account, thread_id=thread, page_size=1000, page_token=""
    )
    listed: list[str] = []
    while True:
        page = await world.read.ListMessages(request)
        found = [each.content for each in page.messages]
        assert 1 <= len(found) <= 5
        assert len(json.dumps(found)) < 4 << 20
        listed += found
        request.page_token = page.next_page_token
        if not page.next_page_token:
            break
    assert listed == texts


async def test_bad_page_tokens(world: World) -> None:
    ids = [await world.thread(user("a"), user("b")) for _ in range(2)]
    page = await world.read.ListThreads(
        pb.ListThreadsRequest(account_id=world.account, page_size=1)
    )
    messages = await world.read.ListMessages(
        pb.ListMessagesRequest(account_id=world.account, thread_id=ids[0], page_size=1)
    )
    assert page.next_page_token
    assert messages.next_page_token
    bad = ("INVALID_ARGUMENT",)
    for account, token in [
        (world.account, "nonsense"),
        (world.account, messages.next_page_token),
        (world.account + "x", page.next_page_token),
        (world.account, page.next_page_token[:-1]),
    ]:
        request = pb.ListThreadsRequest(account_id=account, page_token=token)
        await refused(world.read.ListThreads(request), "BAD_PAGE_TOKEN", *bad)
    for thread_id, token in [(ids[1], messages.next_page_token), (ids[0], page.next_page_token)]:
        listing = pb.ListMessagesRequest(
            account_id=world.account, thread_id=thread_id, page_token=token
        )
        await refused(world.read.ListMessages(listing), "BAD_PAGE_TOKEN", *bad)


async def test_bad_requests_name_the_field(world: World) -> None:
    thread_id = await world.thread()
    account = world.account
    cases = [
        (world.read.GetThread(pb.GetThreadRequest(thread_id=thread_id)), "account_id"),
        (world.read.ListThreads(pb.ListThreadsRequest(account_id="a\0")), "account_id"),
        (
            world.read.ListThreads(pb.ListThreadsRequest(account_id=account, page_size=101)),
            "page_size",
        ),
        (
            world.read.ListMessages(
                pb.ListMessagesRequest(account_id=account, thread_id=thread_id, page_size=-1)
            ),
            "page_size",
        ),
        (world.tail(thread_id, message_count_max=4097), "message_count_max"),
        (world.write.CreateThread(pb.CreateThreadRequest(account_id=account)), "request_id"),
        (
            world.write.CreateThread(
                pb.CreateThreadRequest(account_id=account, request_id="r", title="t" * 201)
            ),
            "title",
        ),
        (
            world.write.RenameThread(
                pb.RenameThreadRequest(account_id=account, thread_id=thread_id)
            ),
            "title",
        ),
        (world.append("thr_mine", create_if_missing=True), "thread_id"),
        (world.append(thread_id, message(0, "x")), "messages[0].role"),
        (world.append(thread_id, user("x" * ((1 << 20) + 1))), "messages[0].content"),
        (world.append(thread_id, *[user("x")] * 257), "messages"),
        (
            world.write.AppendMessages(
                pb.AppendMessagesRequest(account_id=account, thread_id=thread_id, request_id="r")
            ),
            "messages",
        ),
    ]
    for call, field in cases:
        assert await refused(call, "BAD_REQUEST", "INVALID_ARGUMENT") == {"field": field}


@pytest.mark.parametrize("content", ["", "a\0b\x1a0\x1a", "🙂" * 100, "x" * (1 << 20), "\ufeff"])
async def test_any_text_is_kept_as_it_is(world: World, content: str) -> None:
    thread_id = await world.thread(user(content), answer(content))
    assert [m.content for m in await world.all_messages(thread_id)] == [content] * 2
    for _ in range(2):  # from PostgreSQL or Redis
        assert [m.content for m in (await world.tail(thread_id)).messages] == [content] * 2


async def test_pages_and_tails_of_large_messages_fit_the_wire(world: World) -> None:
    large = "x" * (1 << 20)
    thread_id = await world.thread(user("first"))
    for _ in range(5):
        await world.append(thread_id, user(large))
    assert len(await world.all_messages(thread_id)) == 6
    tail = await world.tail(thread_id)
    assert (len(tail.messages), tail.omitted_message_count) == (3, 3)


async def test_tail_respects_its_budgets_and_keeps_system_messages(world: World) -> None:
    thread_id = await world.thread(system("be kind", 10), user("old", 50), answer("old", 50))
    await world.append(thread_id, user("new", 5), answer("new", 5))
    for _ in range(2):
        tail = await world.tail(thread_id, token_count_max=30)
        assert [m.content for m in tail.messages] == ["be kind", "new", "new"]
        assert tail.omitted_message_count == 2
        assert [m.content for m in (await world.tail(thread_id)).messages][1] == "old"
        few = await world.tail(thread_id, message_count_max=2)
        assert [m.content for m in few.messages] == ["be kind", "new"]
        none = await world.tail(thread_id, token_count_max=1)
        assert [m.content for m in none.messages] == ["be kind"]
        assert none.omitted_message_count == 4


async def test_a_tail_longer_than_the_hot_copy_comes_from_the_truth(world: World) -> None:
    thread_id = await world.thread(system("s"), *(user(str(n)) for n in range(200)))
    await world.append(thread_id, *(user(str(n)) for n in range(200, 400)))
    for _ in range(2):
        tail = await world.tail(thread_id)
        assert [m.content for m in tail.messages[1:]] == [str(n) for n in range(400)]
        short = await world.tail(thread_id, message_count_max=11)
        assert [m.content for m in short.messages[1:]] == [str(n) for n in range(390, 400)]
    copy = await world.hot.get(world.account, thread_id)
    assert copy is not None
    assert len(copy.messages) == 256


async def test_purge_by_the_clock(world: World, postgres_owner_dsn: str) -> None:
    early, late, live = [await world.thread() for _ in range(3)]
    await world.delete(early)
    deleted = world.clock.now
    world.clock.now += timedelta(days=1)
    await world.delete(late)
    owner = await asyncpg.connect(postgres_owner_dsn)
    count = (
        "SELECT (SELECT count(*) FROM conversation.thread WHERE account_id = $1),"
        " (SELECT count(*) FROM conversation.message WHERE account_id = $1)"
    )
    try:
        await purge_once(world.store, deleted + KEEP, KEEP)
        assert tuple(await owner.fetchrow(count, world.account)) == (3, 6)
        await purge_once(world.store, deleted + KEEP + timedelta(seconds=1), KEEP)
        assert tuple(await owner.fetchrow(count, world.account)) == (2, 4)
        await purge_once(world.store, deleted + KEEP + timedelta(days=2), KEEP)
        assert tuple(await owner.fetchrow(count, world.account)) == (1, 2)
        requests = "SELECT count(*) FROM conversation.request WHERE account_id = $1"
        assert await owner.fetchval(requests, world.account) == 0  # all older than 30 days then
    finally:
        await owner.close()
    assert len(await world.all_messages(live)) == 2
    again = await world.append(early, create_if_missing=True)  # the id is free again
    assert again.thread.message_count == 2
