"""`mesh.ctl orgs` and `mesh.ctl limits`: who pays with whom, and how much."""

import argparse
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.json_format import MessageToDict

from chatmesh.billing.v1 import billing_pb2, billing_pb2_grpc
from mesh.home import Home
from mesh.operator import CALL_TIMEOUT_S, Operator
from mesh.tables import print_table

NANO = 1_000_000_000  # money travels in billionths of a dollar
ROLES = {"member": billing_pb2.ROLE_MEMBER, "owner": billing_pb2.ROLE_OWNER}
COLUMNS = (
    "id",
    "budget_usd",
    "spent_usd",
    "held_usd",
    "tokens_per_minute",
    "this_minute",
    "parallel",
    "running",
)

Command = Callable[[Home, argparse.Namespace], Awaitable[int]]
Verb = Callable[[Any, str, Command, str], argparse.ArgumentParser]


def nano(usd: float | None) -> int | None:
    """Dollars as nano-dollars; any negative number is -1, no limit."""
    if usd is None:
        return None
    return -1 if usd < 0 else round(usd * NANO)


def add_verbs(verbs: Any, verb: Verb) -> None:
    """Adds the commands to the command line."""
    orgs = verbs.add_parser("orgs", help="organisations").add_subparsers(required=True)
    added = verb(orgs, "create", orgs_create, "make an organisation, print its id")
    added.add_argument("name")
    added.add_argument("--budget-usd", type=float, help="a month's budget; -1: no limit")
    added = verb(orgs, "list", orgs_list, "organisations, their limits and members")
    added.add_argument("--json", action="store_true")
    added = verb(orgs, "add", orgs_add, "make an account a member")
    added.add_argument("organisation", metavar="ORG_ID")
    added.add_argument("account", metavar="ACC_ID")
    added.add_argument("--role", choices=list(ROLES), default="member")
    added = verb(orgs, "remove", orgs_remove, "take an account out of its organisation")
    added.add_argument("account", metavar="ACC_ID")
    added = verb(
        verbs, "limits", limits, "show or set what a key, an account or an organisation may use"
    )
    added.add_argument("id", metavar="KEY_ID|ACC_ID|ORG_ID")
    added.add_argument("--budget-usd", type=float, help="a month's budget; -1: no limit")
    added.add_argument("--tokens-per-minute", type=int, help="-1: no limit")
    added.add_argument("--parallel", type=int, help="turns at once; -1: no limit")
    added.add_argument("--json", action="store_true")


async def orgs_create(home: Home, arguments: argparse.Namespace) -> int:
    """Makes an organisation."""
    request = billing_pb2.CreateOrganisationRequest(
        request_id=os.urandom(16).hex(),
        name=arguments.name,
        monthly_budget_nanousd=nano(arguments.budget_usd),
    )
    made = await _admin(home).CreateOrganisation(request, timeout=CALL_TIMEOUT_S)
    print(made.organisation.id)
    return 0


async def orgs_list(home: Home, arguments: argparse.Namespace) -> int:
    """Prints organisations."""
    admin, found, token = _admin(home), list[billing_pb2.Organisation](), ""
    while True:
        request = billing_pb2.ListOrganisationsRequest(page_size=100, page_token=token)
        answer = await admin.ListOrganisations(request, timeout=CALL_TIMEOUT_S)
        found += answer.organisations
        token = answer.next_page_token
        if not token:
            break
    if arguments.json:
        shown = [MessageToDict(each, preserving_proto_field_name=True) for each in found]
        print(json.dumps(shown, indent=2))
        return 0
    words = {number: word for word, number in ROLES.items()}
    for each in found:
        members = (f"{m.account_id} ({words.get(m.role, '?')})" for m in each.members)
        print(f"{each.name}: {', '.join(members) or 'no members'}")
    print_table(COLUMNS, [_row(each.limits) for each in found])
    return 0


async def orgs_add(home: Home, arguments: argparse.Namespace) -> int:
    """Makes an account a member."""
    request = billing_pb2.SetMemberRequest(
        account_id=arguments.account,
        organisation_id=arguments.organisation,
        role=ROLES[arguments.role],
    )
    await _admin(home).SetMember(request, timeout=CALL_TIMEOUT_S)
    return 0


async def orgs_remove(home: Home, arguments: argparse.Namespace) -> int:
    """Takes an account out of its organisation."""
    request = billing_pb2.SetMemberRequest(account_id=arguments.account)
    await _admin(home).SetMember(request, timeout=CALL_TIMEOUT_S)
    return 0


async def limits(home: Home, arguments: argparse.Namespace) -> int:
    """Sets what is named, and prints all of it."""
    request = billing_pb2.SetLimitsRequest(
        id=arguments.id,
        monthly_budget_nanousd=nano(arguments.budget_usd),
        tokens_per_minute=arguments.tokens_per_minute,
        parallel_max=arguments.parallel,
    )
    found = (await _admin(home).SetLimits(request, timeout=CALL_TIMEOUT_S)).limits
    if arguments.json:
        print(json.dumps(dict(zip(COLUMNS, _values(found), strict=True)), indent=2))
    else:
        print_table(COLUMNS, [_row(found)])
    return 0


def _admin(home: Home) -> Any:
    return billing_pb2_grpc.AccountAdminServiceStub(Operator(home).channel_to("billing"))


def _values(found: billing_pb2.Limits) -> list[Any]:
    """By COLUMNS; None: no limit."""
    return [
        found.id,
        None if found.monthly_budget_nanousd < 0 else found.monthly_budget_nanousd / NANO,
        found.spent_nanousd / NANO,
        found.held_nanousd / NANO,
        None if found.tokens_per_minute < 0 else found.tokens_per_minute,
        found.minute_token_count,
        None if found.parallel_max < 0 else found.parallel_max,
        found.running_count,
    ]


def _row(found: billing_pb2.Limits) -> list[str]:
    return ["no limit" if value is None else str(value) for value in _values(found)]
