"""`python -m mesh.ctl`: look at a running copy and steer it.

status [--json]        every process: service, instance, pid, address, SPIFFE id, health, restarts
keys create|list|revoke
orgs create|list|add|remove
limits ID              shows or sets what a key, an account or an organisation may use
drain INSTANCE         takes an instance out of balancing; its streams finish
snapshot [--json]      what xDS serves, and who accepted or refused it
audit [--repair]       generated = released + withheld + unsent = the ledger, turn by turn
upgrade-postgres       brings the embedded PostgreSQL's data to the newest version
down                   ends the copy that runs in the background
"""

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import psutil
from google.protobuf.json_format import MessageToDict

from chatmesh.billing.v1 import billing_pb2, billing_pb2_grpc
from chatmesh.mesh.v1 import mesh_pb2
from mesh import credentials
from mesh.audit import audit, since
from mesh.home import Home
from mesh.limits import add_verbs, nano
from mesh.operator import CALL_TIMEOUT_S, Operator, describe
from mesh.postgres_upgrade import upgrade_postgres
from mesh.tables import print_table

DOWN_TIMEOUT_S = 60.0

Command = Callable[[Home, argparse.Namespace], Awaitable[int]]


async def status(home: Home, arguments: argparse.Namespace) -> int:
    """Prints the processes; exit status 1 when one of them is not well."""
    rows = await status_rows(home)
    if arguments.json:
        print(json.dumps(rows, indent=2))
    else:
        columns = ("service", "instance", "pid", "address", "health", "restarts", "spiffe_id")
        print_table(columns, [[str(row[name]) for name in columns] for row in rows])
    return 0 if rows and all(row["health"] in ("serving", "running") for row in rows) else 1


async def status_rows(home: Home) -> list[dict[str, Any]]:
    """One row a process: what the supervisor knows, joined with what the registry knows."""
    with contextlib.suppress(OSError, ValueError):
        processes = json.loads(home.table.read_text())
        registered: dict[str, mesh_pb2.Instance] = {}
        with contextlib.suppress(grpc.aio.AioRpcError, OSError):
            async with Operator(home).admin() as admin:
                answer = await admin.GetStatus(mesh_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S)
            registered = {instance.name: instance for instance in answer.instances}
        return [_row(process, registered.get(process["name"])) for process in processes]
    return []


def _row(process: dict[str, Any], instance: mesh_pb2.Instance | None) -> dict[str, Any]:
    alive = bool(process["pid"]) and psutil.pid_exists(process["pid"])
    health = "running" if alive else "down"
    if instance is not None and alive:
        name = mesh_pb2.InstanceState.Name(instance.state)
        health = name.removeprefix("INSTANCE_STATE_").lower()
    return {
        "service": process["service"],
        "instance": process["name"],
        "pid": process["pid"],
        "address": instance.address if instance else process["address"],
        "spiffe_id": instance.spiffe_id if instance else process["spiffe_id"],
        "metrics_address": instance.metrics_address if instance else "",
        "health": health,
        "restarts": process["restarts"],
    }


async def keys_create(home: Home, arguments: argparse.Namespace) -> int:
    """Prints a new key; its secret is shown only here."""
    budget = nano(arguments.budget_usd)
    secret = await credentials.create_key(
        Operator(home),
        arguments.tier,
        arguments.name,
        budget_nanousd=budget,
        account_id=arguments.account,
        jurisdiction=arguments.jurisdiction,
    )
    print(json.dumps({"secret": secret, "tier": arguments.tier}) if arguments.json else secret)
    return 0


async def keys_list(home: Home, arguments: argparse.Namespace) -> int:
    """Prints accounts and their keys, without secrets."""
    admin = billing_pb2_grpc.AccountAdminServiceStub(Operator(home).channel_to("billing"))
    rows: list[dict[str, str]] = []
    async for account in _accounts(admin):
        request = billing_pb2.ListKeysRequest(account_id=account.id, page_size=100)
        answer = await admin.ListKeys(request, timeout=CALL_TIMEOUT_S)
        rows += [_key_row(account, key) for key in answer.keys]
    if arguments.json:
        print(json.dumps(rows, indent=2))
    else:
        columns = ("account", "tier", "country", "key", "prefix", "name", "scopes", "state")
        print_table(columns, [[row[name] for name in columns] for row in rows])
    return 0


async def _accounts(admin: Any) -> Any:
    token = ""
    while True:
        request = billing_pb2.ListAccountsRequest(page_size=100, page_token=token)
        answer = await admin.ListAccounts(request, timeout=CALL_TIMEOUT_S)
        for account in answer.accounts:
            yield account
        token = answer.next_page_token
        if not token:
            return


def _key_row(account: billing_pb2.Account, key: billing_pb2.Key) -> dict[str, str]:
    return {
        "account": account.id,
        "tier": credentials.TIER_WORDS.get(account.tier, str(account.tier)),
        "country": account.jurisdiction,
        "key": key.id,
        "prefix": key.prefix,
        "name": key.name,
        "scopes": ",".join(key.scopes),
        "state": "revoked" if key.HasField("revoke_time") else "active",
    }


async def keys_revoke(home: Home, arguments: argparse.Namespace) -> int:
    """Ends a key; admission sees it within 1 s."""
    admin = billing_pb2_grpc.AccountAdminServiceStub(Operator(home).channel_to("billing"))
    await admin.RevokeKey(
        billing_pb2.RevokeKeyRequest(key_id=arguments.key), timeout=CALL_TIMEOUT_S
    )
    print(f"revoked {arguments.key}")
    return 0


async def drain(home: Home, arguments: argparse.Namespace) -> int:
    """Asks an instance to take no new calls."""
    async with Operator(home).admin() as admin:
        request = mesh_pb2.DrainInstanceRequest(instance=arguments.instance)
        await admin.DrainInstance(request, timeout=CALL_TIMEOUT_S)
    print(f"{arguments.instance} is draining; `mesh.ctl status` shows it")
    return 0


async def snapshot(home: Home, arguments: argparse.Namespace) -> int:
    """Prints what xDS serves; exit status 1 while a client refuses it."""
    async with Operator(home).admin() as admin:
        answer = await admin.GetSnapshot(
            mesh_pb2.GetSnapshotRequest(include_resources=arguments.json), timeout=CALL_TIMEOUT_S
        )
    refused = [line for line in answer.subscriptions if line.nacked_version]
    if arguments.json:
        print(json.dumps(MessageToDict(answer, preserving_proto_field_name=True), indent=2))
        return 1 if refused else 0
    print(f"version {answer.version}, {len(answer.resources)} resources")
    rows = [[r.client_kind, _kind(r.type_url), r.name] for r in answer.resources]
    print_table(("client", "type", "name"), rows)
    print()
    columns = ("node", "client", "type", "acked", "nacked", "message")
    print_table(columns, [_subscription(line) for line in answer.subscriptions])
    return 1 if refused else 0


def _subscription(line: mesh_pb2.Subscription) -> list[str]:
    refused = str(line.nacked_version or "-")
    kind = _kind(line.type_url)
    acked = str(line.acked_version or "-")
    return [line.node_id, line.client_kind, kind, acked, refused, line.nack_message]


def _kind(type_url: str) -> str:
    return type_url.rsplit(".", 1)[-1]


async def down(home: Home, _arguments: argparse.Namespace) -> int:
    """Ends the running copy and waits until it has ended."""
    pid = running_pid(home)
    if pid is None:
        print("chatmesh is not running here")
        return 0
    os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + DOWN_TIMEOUT_S
    while running_pid(home) is not None:
        if time.monotonic() > end:
            print(f"chatmesh (pid {pid}) does not end; see {home.log}", file=sys.stderr)
            return 1
        await asyncio.sleep(0.05)
    print("stopped")
    return 0


def running_pid(home: Home) -> int | None:
    """Pid of the supervisor that holds the lock of this copy; None when none runs."""
    with contextlib.suppress(OSError, ValueError), home.lock.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(file.read())
    return None


def parser() -> argparse.ArgumentParser:
    """The command line."""
    root = argparse.ArgumentParser(prog="mesh.ctl", description=__doc__.splitlines()[0])
    verbs = root.add_subparsers(required=True, metavar="COMMAND")

    def verb(group: Any, name: str, run: Command, text: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = group.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    added = verb(verbs, "status", status, "every process")
    added.add_argument("--json", action="store_true")
    keys = verbs.add_parser("keys", help="API keys").add_subparsers(required=True)
    added = verb(keys, "create", keys_create, "make an account and a key, print the secret")
    added.add_argument("--tier", choices=list(credentials.TIERS), default="free")
    added.add_argument("--name", default="made with mesh.ctl")
    added.add_argument("--account", default="", help="add a key to this account instead")
    added.add_argument("--jurisdiction", default="", help="country whose rules hold, such as DE")
    added.add_argument("--budget-usd", type=float, help="a month's budget; -1: no limit")
    added.add_argument("--json", action="store_true")
    added = verb(keys, "list", keys_list, "accounts and their keys")
    added.add_argument("--json", action="store_true")
    added = verb(keys, "revoke", keys_revoke, "end a key")
    added.add_argument("key", metavar="KEY_ID")
    add_verbs(verbs, verb)
    added = verb(verbs, "drain", drain, "take an instance out of balancing")
    added.add_argument("instance")
    added = verb(verbs, "snapshot", snapshot, "what xDS serves")
    added.add_argument("--json", action="store_true", help="with the resources themselves")
    _audit_options(verb(verbs, "audit", audit, "compare turns with the ledger"))
    verb(verbs, "upgrade-postgres", upgrade_postgres, "bring the data to the newest PostgreSQL")
    verb(verbs, "down", down, "end the running copy")
    return root


def _audit_options(added: argparse.ArgumentParser) -> None:
    added.add_argument("--account", default="", help="only of this account")
    added.add_argument("--turn", default="", help="only this turn")
    added.add_argument("--since", type=since, help="90s, 15m, 2h, 7d ago, or ISO 8601")
    added.add_argument("--findings", action="store_true", help="only what the audit has found")
    added.add_argument("--repair", action="store_true", help="write entries that correct it")
    added.add_argument("--json", action="store_true")


def main() -> int:
    """Entry point; returns the exit status."""
    arguments = parser().parse_args()
    home = Home.find()
    try:
        return int(asyncio.run(arguments.run(home, arguments)))
    except grpc.aio.AioRpcError as error:
        print(f"chatmesh: {describe(error)}", file=sys.stderr)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except FileNotFoundError:
        print("chatmesh has not run here yet; start it with `make up`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
