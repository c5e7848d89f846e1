"""The operator asks whether the books are right, of a whole running copy."""

import asyncio
import contextlib

import asyncpg
import pytest

from tests.support.http import Client, events
from tests.support.waiting import eventually

pytestmark = pytest.mark.mesh
LEDGER_TIMEOUT_S = 60
BODY = {
    "model": "chatmesh-tiny",
    "messages": [{"role": "user", "content": "Hello! Tell me about the sea."}],
    "max_tokens": 120,
}


def test_the_books_are_right_and_are_put_right(mesh_copy):
    key = mesh_copy.new_key("admin")
    client, account = Client(mesh_copy.plain_address, key), mesh_copy.account_of(key)
    assert client.request("POST", "/v1/chat/completions", BODY).status == 200
    assert client.request("POST", "/v1/chat/completions", {**BODY, "n": 2}).status == 200
    _leave(client)
    found = eventually(lambda: _whole(mesh_copy.audit(account), 3), LEDGER_TIMEOUT_S)
    assert found, mesh_copy.audit(account)
    for row in found["turns"]:
        assert row["generated"] == row["released"] + row["withheld"] + row["unsent"], row
        assert (row["ledger"], row["ledger_prompt"]) == (row["generated"], row["prompt"])
        assert row["findings"] == []
    usage = client.request("GET", "/api/usage").json()
    assert usage["output_tokens"] == sum(row["generated"] for row in found["turns"])

    turn = found["turns"][0]
    asyncio.run(_charge_twice(mesh_copy.database_url, turn["turn"]))
    wrong = mesh_copy.ctl("audit", "--account", account, check=False)
    assert f"overcharged ({turn['generated']} output)" in wrong
    assert "1 differ" in wrong.splitlines()[-1]
    repaired = mesh_copy.audit(account, "--repair")
    (repair,) = repaired["repairs"]
    assert (repair["turn"], repair["tokens"]) == (turn["turn"], -turn["generated"])
    assert repaired["summary"]["differing_turns"] == 0
    assert client.request("GET", "/api/usage").json() == usage
    mesh_copy.ctl("audit", "--account", account, "--repair")  # once more: nothing to do, status 0


def _leave(client: Client) -> None:
    """Reads the beginning of an answer and goes."""
    with client.stream({**BODY, "stream": True}) as (status, _, pieces, connection):
        assert status == 200
        with contextlib.suppress(OSError, EOFError):
            next(events(pieces))
        connection.close()


def _whole(audit: dict, turn_count: int) -> dict | None:
    """The audit, once all turns have ended and the ledger has them."""
    summary = audit["summary"]
    done = (summary["turns"], summary["running_turns"], summary["differing_turns"])
    return audit if done == (turn_count, 0, 0) else None


async def _charge_twice(dsn: str, turn: str) -> None:
    """As nobody but the database's owner could: a second charge that no sum knows of."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(
            "INSERT INTO billing.ledger (account_id, turn_id, choice_index, kind, first_position,"
            " end_position, model, cost_nanousd, price_version, create_time, source,"
            " key_id)"
            " SELECT account_id, turn_id, choice_index, kind, first_position, end_position, model,"
            " cost_nanousd, price_version, create_time, 'gateway', key_id FROM billing.ledger"
            " WHERE turn_id = $1 AND kind = 3",
            turn,
        )
    finally:
        await connection.close()
