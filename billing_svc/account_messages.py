"""Accounts and keys on the wire."""

from billing_svc import checks
from billing_svc.accounts import Account, Key
from chatmesh.billing.v1 import billing_pb2 as pb
from chatmesh.content.v1.content_pb2 import Tier


def account_message(account: Account) -> pb.Account:
    """An account."""
    return pb.Account(
        id=account.account_id,
        name=account.name,
        tier=Tier.ValueType(account.tier),
        monthly_budget_nanousd=account.monthly_budget_nanousd,
        create_time=checks.stamp(account.create_time),
        jurisdiction=account.jurisdiction,
        organisation_id=account.organisation_id,
        role=pb.Role.ValueType(account.role),
    )


def key_message(key: Key) -> pb.Key:
    """A key, without its secret."""
    return pb.Key(
        id=key.key_id,
        account_id=key.account_id,
        prefix=key.prefix,
        scopes=key.scopes,
        create_time=checks.stamp(key.create_time),
        expire_time=checks.stamp(key.expire_time),
        revoke_time=checks.stamp(key.revoke_time),
        name=key.name,
    )
