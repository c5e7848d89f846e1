"""Turns while the journal is away, from one gateway or from all: said, and never made up."""

import asyncio

from tests.support.gateway_turns import TURN, running_gateway
from tests.support.memory_journal import MemoryJournal
from tests.support.turn_streams import (
    WHOLE,
    gated,
    key,
    last_id,
    read_until,
    until,
)


async def test_what_was_sent_without_a_journal_and_lost_with_its_gateway_is_not_made_up():
    """CURSOR_LOST: the next owner drew other tokens."""
    fakes, journal = gated(), MemoryJournal()
    fakes.inference.draws_by_position = False
    async with (
        running_gateway(fakes, journal=journal, reader_grace_s=30) as first,
        running_gateway(fakes, journal=journal, name="gateway-2", reader_grace_s=30) as second,
    ):
        call = first.call({"stream": True})
        await read_until(call, "wörd0")
        await until(lambda: journal.turns[TURN].head.number > 0)
        first.link.is_cut = True  # only the journal: it goes on
        begun = await read_until(call, "wörd5")
        await first.die()
        call.cancel()
        fakes.inference.gate.set()
        await until(lambda: journal.turns[TURN].head.epoch == 1)
        lost = await second.follow(after=last_id(begun))
        whole = await second.follow()
    assert (lost.status, lost.json["error"]["code"]) == (416, "cursor_lost")
    assert whole.text == WHOLE


async def test_without_a_journal_turns_run_on_and_say_so():
    journal = MemoryJournal()
    journal.is_away = True
    async with running_gateway(gated(99), journal=journal) as gateway:
        answer = await gateway.post({"stream": True})
        keyed = await gateway.post({}, key("once", TURN[:-2] + "98"))
        gone = await gateway.follow("01JD0000000000000000000077")
    assert (answer.status, answer.text) == (200, WHOLE)
    assert answer.headers["x-turn-journal"] == "off"
    assert {each.json["error"]["code"] for each in (keyed, gone)} == {"service_unavailable"}
    assert gone.json["error"]["metadata"] == {"service": "journal"}


async def test_a_journal_that_comes_back_gets_the_whole_turn():
    fakes, journal = gated(), MemoryJournal()
    async with running_gateway(fakes, journal=journal, reader_grace_s=30) as gateway:
        journal.is_away = True
        call = gateway.call({"stream": True})
        await read_until(call, "wörd5")
        journal.is_away = False
        await until(lambda: TURN in journal.turns)
        fakes.inference.gate.set()
        await read_until(call, "[DONE]")
        await gateway.background.finish()
        await until(lambda: journal.turns[TURN].head.state == "completed")
        assert (await gateway.follow()).text == WHOLE


async def test_a_background_turn_is_promised_when_every_gateway_can_find_it():
    fakes, journal = gated(), MemoryJournal()
    async with (
        running_gateway(fakes, journal=journal) as first,
        running_gateway(fakes, journal=journal, name="gateway-2") as second,
    ):
        journal.is_away = True
        asked = asyncio.create_task(first.post({"background": True}))
        await until(lambda: fakes.inference.requests)
        await asyncio.sleep(0.05)  # as long as a first write fails, and more
        assert not asked.done()
        journal.is_away = False
        await asked
        found = await second.state()
        fakes.inference.gate.set()
    assert (found.status, found.json["status"]) == (200, "running")


async def test_a_background_turn_is_begun_although_the_journal_stays_away():
    fakes, journal = gated(99), MemoryJournal()
    journal.is_away = True
    async with running_gateway(fakes, journal=journal, store_wait_s=0.05) as gateway:
        accepted = await gateway.post({"background": True})
        assert accepted.headers["x-turn-journal"] == "off"
