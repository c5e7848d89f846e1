"""The development key: made once, kept in a private file, written to `dev.env` for clients."""

import asyncio
import os
import ssl
import urllib.error
import urllib.request

from chatmesh.billing.v1 import billing_pb2, billing_pb2_grpc
from chatmesh.content.v1.content_pb2 import Tier
from mesh.chassis.enums import words_of
from mesh.chassis.files import write_private
from mesh.home import Home
from mesh.operator import CALL_TIMEOUT_S, Operator
from mesh.settings import UpSettings

HTTP_TIMEOUT_S = 5.0
STATUS_OK = 200
TIER_WORDS = words_of(Tier)
TIERS = {word: number for number, word in TIER_WORDS.items()}


def fetch_status(url: str, key: str = "") -> int:
    """HTTP status of a GET; 0 when nothing answers. Blocks for at most 5 s."""
    request = urllib.request.Request(url)  # noqa: S310 - our own edge
    if key:
        request.add_header("authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT_S) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, ssl.SSLError):
        return 0


def answers(url: str) -> bool:
    """True when a GET gives 200."""
    return fetch_status(url) == STATUS_OK


async def development_key(home: Home, settings: UpSettings) -> str:
    """The key of the last run while the edge accepts it, else a new one.

    It belongs to an account of the tier admin: whoever can read the private folder runs the
    system.
    """
    path = home.folder / "dev-key"
    url = f"http://127.0.0.1:{settings.edge_port}/v1/models"
    if path.exists():
        secret = path.read_text()
        if await asyncio.to_thread(fetch_status, url, secret) == STATUS_OK:
            return secret
    secret = await create_key(Operator(home), "admin", "development", budget_nanousd=-1)
    write_private(path, secret)
    return secret


async def create_key(
    operator: Operator,
    tier: str,
    name: str,
    *,
    budget_nanousd: int | None = None,
    account_id: str = "",
    jurisdiction: str = "",
) -> str:
    """Makes a key, and an account for it unless one is given; returns the secret.

    Raises:
        grpc.aio.AioRpcError: billing refused or does not answer.
    """
    channel = operator.channel_to("billing")
    admin = billing_pb2_grpc.AccountAdminServiceStub(channel)
    if not account_id:
        account = await admin.CreateAccount(
            billing_pb2.CreateAccountRequest(
                request_id=os.urandom(16).hex(),
                name=name,
                tier=TIERS[tier],
                monthly_budget_nanousd=budget_nanousd,
                jurisdiction=jurisdiction,
            ),
            timeout=CALL_TIMEOUT_S,
        )
        account_id = account.account.id
    key = await admin.CreateKey(
        billing_pb2.CreateKeyRequest(
            request_id=os.urandom(16).hex(), account_id=account_id, name=name
        ),
        timeout=CALL_TIMEOUT_S,
    )
    await channel.close()
    return key.secret


def write_environment(home: Home, settings: UpSettings, secret: str) -> str:
    """Writes `dev.env`; returns what a person should read."""
    base_url = f"http://127.0.0.1:{settings.edge_port}/v1"
    values = {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": secret,
        "CHATMESH_EDGE": f"127.0.0.1:{settings.edge_tls_port}",
        "CHATMESH_CA_CERT": str(home.web_ca),
    }
    write_private(home.dev_env, "".join(f"{name}={value}\n" for name, value in values.items()))
    return (
        f"  URL   {base_url}\n"
        f"  Key   {secret}\n\n"
        f"  curl {base_url}/chat/completions -H 'Authorization: Bearer {secret}' "
        "-H 'Content-Type: application/json' "
        f'-d \'{{"model": "{settings.served_model_id}", "stream": true, "temperature": 0.3, '
        '"messages": [{"role": "user", "content": "Hello! Who are you?"}]}\' --no-buffer\n'
    )
