"""Group commit of appends: as if each had been written alone, whichever account it is of."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from prometheus_client import REGISTRY
from ulid import ULID

from chatmesh.content.v1.content_pb2 import ROLE_USER
from conversation_svc.appends import Append, Outcome
from conversation_svc.hot_tail import GROUP_COPY_COUNT_MAX, HotTail
from conversation_svc.statements import Request
from conversation_svc.store import Store
from conversation_svc.thread import (
    NewMessage,
    RequestReusedError,
    Tail,
    Thread,
    ThreadNotFoundError,
    appended,
)

START = datetime(2026, 11, 22, tzinfo=UTC)


def text(content: str) -> NewMessage:
    """A user's message."""
    return NewMessage(ROLE_USER, content, len(content), "", "")


class Side:
    """A store with accounts and threads of its own, so that two can be told the same story."""

    def __init__(self, store: Store, owner: asyncpg.Connection) -> None:
        self.store, self.owner = store, owner
        self.accounts = sorted(f"acc_{ULID()}" for _ in range(3))
        self.threads = sorted(f"thr_{ULID()}" for _ in range(6))

    async def append(
        self,
        account: int,
        thread: int,
        request: str,
        contents: tuple[str, ...],
        *,
        create: bool = True,
        at_s: int = 0,
    ) -> Outcome:
        """The outcome of an append; what it raises is its outcome too."""
        try:
            return await self.store.append_messages(
                self.accounts[account],
                self.threads[thread],
                [text(content) for content in contents],
                model="m",
                request=Request("append", request, repr((thread, contents)).encode()),
                now=START + timedelta(seconds=at_s),
                create_if_missing=create,
            )
        except (ThreadNotFoundError, RequestReusedError) as error:
            return error

    def told(self, outcome: Outcome) -> object:
        """The outcome without what differs between sides: ids that were made."""
        if isinstance(outcome, Exception):
            return type(outcome).__name__
        thread, messages, _ = outcome
        return (self.threads.index(thread.id), thread.message_count, thread.title), [
            (message.content, message.turn_id, message.create_time) for message in messages
        ]

    async def tables(self) -> list[object]:
        """All rows of its accounts."""
        found: list[object] = []
        for query in (
            "SELECT account_id, id, title, model, create_time, update_time, total_token_count,"
            " message_count FROM conversation.thread WHERE account_id = $1 ORDER BY id",
            "SELECT account_id, thread_id, position, content, role, token_count, turn_id,"
            " create_time, finish_reason, model FROM conversation.message WHERE account_id = $1"
            " ORDER BY thread_id, position",
            "SELECT account_id, request_id, content_digest, first_position, answer IS NULL,"
            " create_time FROM conversation.request WHERE account_id = $1 ORDER BY request_id",
        ):
            for number, account in enumerate(self.accounts):
                await self.owner.execute(
                    "SELECT set_config('chatmesh.account_id', $1, false)", account
                )
                for row in await self.owner.fetch(query, account):
                    told = repr(tuple(row)).replace(account, f"account {number}")
                    for index, thread in enumerate(self.threads):
                        told = told.replace(thread, f"thread {index}")
                    found.append(told)
        return found


@pytest.fixture
async def owner(postgres_owner_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection beside the stores'."""
    connection = await asyncpg.connect(postgres_owner_dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def sides(
    postgres_dsn_for: Callable[[str], str], owner: asyncpg.Connection
) -> AsyncIterator[tuple[Side, Side]]:
    """Two sides, each with a pool of its own, as processes have."""
    stores = [await Store.connect(postgres_dsn_for("conversation")) for _ in range(2)]
    yield Side(stores[0], owner), Side(stores[1], owner)
    for store in stores:
        await store.close()


def count(name: str, group: str = "append") -> float:
    """A number of the metrics of a group."""
    return REGISTRY.get_sample_value(f"chatmesh_group_commit_{name}", {"group": group}) or 0.0


@pytest.mark.parametrize("seed", range(8))
async def test_groups_do_what_one_by_one_does(sides: tuple[Side, Side], seed: int) -> None:
    grouped, single = sides
    chance = random.Random(seed)
    before = count("rows_count"), count("rows_sum")
    asked, seen = 0, set[str]()
    for number in range(25):
        batch = [
            {
                "account": chance.randrange(3),
                "thread": chance.randrange(6),
                # Some ids are repeated, now and then for something else.
                "request": f"request {chance.randrange(60)}",
                "contents": tuple("ab\0c"[: chance.randint(1, 4)] for _ in range(2)),
                "create": chance.random() < 0.5,
                "at_s": number,
            }
            for _ in range(chance.randint(1, 9))
        ]
        # A group keeps the order within a thread; between threads nobody could tell.
        batch.sort(key=lambda one: (one["account"], one["thread"]))
        asked += len(batch)
        together = await asyncio.gather(*(grouped.append(**one) for one in batch))
        alone = [await single.append(**one) for one in batch]
        told = [grouped.told(one) for one in together]
        assert told == [single.told(one) for one in alone]
        seen.update(type(one).__name__ for one in together)
    assert await grouped.tables() == await single.tables()
    # It was a test: one side in groups, the other alone, and every kind of outcome.
    groups, rows = count("rows_count") - before[0], count("rows_sum") - before[1]
    assert (groups, rows) == (25 + asked, 2 * asked)
    assert seen == {"tuple", "ThreadNotFoundError", "RequestReusedError"}


async def test_a_group_keeps_accounts_apart(sides: tuple[Side, Side]) -> None:
    side = sides[0]
    outcomes = await asyncio.gather(
        side.append(0, 0, "one", ("mine",)),
        side.append(1, 0, "one", ("theirs",), create=False),  # a thread of another account
        side.append(2, 0, "one", ("a third's",)),  # of the same name
    )
    mine, theirs, third = outcomes
    assert isinstance(theirs, ThreadNotFoundError)
    assert isinstance(mine, tuple)
    assert isinstance(third, tuple)
    assert [message.content for message in mine[1] + third[1]] == ["mine", "a third's"]
    found = await side.store.list_messages(side.accounts[2], side.threads[0], 0, 10)
    assert [message.content for _, message in found] == ["a third's"]


async def test_groups_of_two_processes_never_wait_for_each_other(
    sides: tuple[Side, Side],
) -> None:
    one, other = sides
    other.accounts, other.threads = one.accounts, one.threads
    before = count("rows_apart_total")
    for number in range(20):
        names = [(account, thread) for account in range(3) for thread in range(6)]
        outcomes = await asyncio.gather(
            *(one.append(a, t, f"one {number} {t}", ("x",)) for a, t in names),
            *(other.append(a, t, f"other {number} {t}", ("y",)) for a, t in reversed(names)),
        )
        assert all(isinstance(outcome, tuple) for outcome in outcomes)
    # A deadlock would have failed its group, whose appends would have gone apart.
    assert count("rows_apart_total") == before
    for account in range(3):
        for thread in one.threads:
            found = await one.store.list_messages(one.accounts[account], thread, 0, 100)
            assert [position for position, _ in found] == list(range(1, 41))


async def test_one_request_asked_by_two_processes_at_once_is_written_once(
    sides: tuple[Side, Side],
) -> None:
    one, other = sides
    other.accounts, other.threads = one.accounts, one.threads
    for number in range(20):
        outcomes = await asyncio.gather(
            *(side.append(0, t, f"{number} {t}", ("x", "y")) for side in sides for t in range(6))
        )
        first, second = outcomes[:6], outcomes[6:]
        assert [one.told(outcome) for outcome in first] == [one.told(found) for found in second]
        ids = [[message.id for message in outcome[1]] for outcome in outcomes]
        assert ids[:6] == ids[6:]


async def test_a_locked_thread_does_not_hold_up_the_others(
    sides: tuple[Side, Side], owner: asyncpg.Connection
) -> None:
    side = sides[0]
    await asyncio.gather(*(side.append(0, t, f"make {t}", ("a",)) for t in range(2)))
    await owner.execute("SELECT set_config('chatmesh.account_id', $1, false)", side.accounts[0])
    async with owner.transaction():
        await owner.execute(
            "SELECT FROM conversation.thread WHERE account_id = $1 AND id = $2 FOR UPDATE",
            *(side.accounts[0], side.threads[0]),
        )
        waits = asyncio.ensure_future(side.append(0, 0, "waits", ("b",)))
        beside = asyncio.ensure_future(side.append(0, 1, "beside", ("b",)))
        assert isinstance(await beside, tuple)
        assert isinstance(await side.append(0, 1, "after", ("c",)), tuple)
        assert not waits.done()
    assert isinstance(await waits, tuple)


class LosesAnswers(Store):
    """Its first group is committed, and the answer is lost with the connection."""

    lost = False

    async def _append_all(self, appends: Sequence[Append]) -> list[Outcome]:
        outcomes = await super()._append_all(appends)
        if not self.lost:
            self.lost = True
            raise ConnectionResetError("the answer is lost")
        return outcomes


async def test_appends_whose_answer_is_lost_are_repeated_and_written_once(
    sides: tuple[Side, Side], postgres_dsn_for: Callable[[str], str]
) -> None:
    side = sides[0]
    side.store = await LosesAnswers.connect(postgres_dsn_for("conversation"))
    outcomes = await asyncio.gather(*(side.append(0, t, f"{t}", ("a",)) for t in range(6)))
    assert side.store.lost
    found = [
        await side.store.list_messages(side.accounts[0], thread, 0, 10) for thread in side.threads
    ]
    written = [[message for _, message in rows] for rows in found]
    assert written == [outcome[1] for outcome in outcomes if isinstance(outcome, tuple)]
    await side.store.close()


async def test_copies_of_many_threads_are_read_and_written_in_groups(
    redis_url: str, fresh_id: Callable[[str], str]
) -> None:
    hot, account = HotTail.connect(redis_url, 60), fresh_id("acc_")
    tails = []
    for number in range(3 * GROUP_COPY_COUNT_MAX):
        empty = Thread(f"thr_{ULID()}", "", "m", START, START)
        thread, messages = appended(
            empty, [text(f"{number}")], ["msg"], turn_id="t", model="m", now=START
        )
        tails.append(Tail(thread, tuple(messages)))
    before = count("rows_count", "tail_read"), count("rows_count", "tail_write")
    await asyncio.gather(*(hot.put(account, tail) for tail in tails))
    assert await asyncio.gather(*(hot.get(account, t.thread.id) for t in tails)) == tails
    after = count("rows_count", "tail_read"), count("rows_count", "tail_write")
    assert [now - then for now, then in zip(after, before, strict=True)] == [3, 3]
    # In one group, and in its order: forgotten, and written again.
    first, second = tails[:2]
    await asyncio.gather(
        hot.drop(account, first.thread.id),
        hot.put(account, second),
        hot.drop(account, second.thread.id),
        hot.put(account, first),
    )
    found = await asyncio.gather(*(hot.get(account, t.thread.id) for t in (first, second)))
    assert found == [first, None]
    await hot.close()
