"""What the processes of a whole copy hold: their own secrets, and nobody else's."""

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import redis

from mesh import confinement, topology
from mesh.home import PROJECT
from mesh.redis_users import OWNER
from mesh.supervisor import tied
from tests.support.http import Client
from tests.support.running import JWT_SECRET
from tests.support.waiting import eventually

pytestmark = pytest.mark.mesh
SERVICES = topology.load().services


def environments(copy) -> dict[str, dict[str, str]]:
    """instance -> its environment, of those that are instances of a service."""
    rows = [row for row in copy.status() if row["instance"] not in ("postgres", "redis")]
    return {row["instance"]: psutil.Process(row["pid"]).environ() for row in rows}


def test_a_secret_is_with_the_service_that_it_is_for(mesh_copy):
    assert mesh_copy.environment["GATEWAY_JWT_SECRET"] == JWT_SECRET
    found = environments(mesh_copy)
    holders = {name for name, values in found.items() if JWT_SECRET in values.values()}
    assert holders == {"gateway-1", "gateway-2"}
    for name, values in found.items():
        needs = SERVICES[name.rpartition("-")[0] or "edge"].needs
        assert ("DATABASE_URL" in values, "REDIS_URL" in values) == (
            "postgres" in needs, "redis" in needs
        ), name  # fmt: skip


def test_each_service_is_a_user_of_its_own_in_redis(mesh_copy):
    urls = {name: v["REDIS_URL"] for name, v in environments(mesh_copy).items() if "REDIS_URL" in v}
    users = {name: urlsplit(url).username for name, url in urls.items()}
    assert users == {name: f"chatmesh_{name.rpartition('-')[0]}" for name in urls}
    assert urls["gateway-1"] == urls["gateway-2"]


def readable(copy, group: int, paths) -> set[str]:
    """Which of the files a process that is confined as a service's is may read."""
    code = (
        "import sys\nfor path in sys.argv[1:]:\n"
        "  try: open(path).read(1); print(path)\n  except OSError: pass"
    )
    command = [sys.executable, "-c", code, *map(str, paths)]
    done = subprocess.run(tied(command, PROJECT, group), capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


@pytest.mark.skipif(os.geteuid() != 0, reason="without root all processes are one user")
def test_a_service_reads_its_own_files_and_no_others(mesh_copy):
    home, groups = mesh_copy.home, confinement.groups(SERVICES)
    rows = {row["instance"]: row for row in mesh_copy.status()}
    secrets = [
        *(home / "control" / name for name in ("ca.key", "web-ca.key", "tokens.json")),
        home / "operator" / "identity" / "tls.key",
        home / "operator" / "join-token",
        *(home / "roles").iterdir(),
        *(home / "redis-roles").iterdir(),
        *(home / "redis" / name for name in ("password", "users.acl")),
        home / "postgres" / "password",
    ]
    assert all(path.read_bytes() for path in secrets), "root itself reads them"
    keys = {path.parent.parent.name: path for path in home.glob("nodes/*/identity/tls.key")}
    assert {"gateway-1", "inference-1", "edge-1"} <= keys.keys()
    for instance, key in keys.items():
        service = instance.rpartition("-")[0]
        status = Path(f"/proc/{rows[instance]['pid']}/status").read_text()
        lines = dict(line.split(":", 1) for line in status.splitlines())
        assert int(lines["CapEff"], 16) == int(lines["CapBnd"], 16) == 0, instance
        assert set(lines["Gid"].split()) == {str(groups[service])}, instance
        own = {str(path) for name, path in keys.items() if name.startswith(f"{service}-")}
        wanted = [*secrets, *keys.values()]
        assert readable(mesh_copy, groups[service], wanted) == own, f"{instance}, {key}"


def test_no_service_was_refused_what_it_asked_of_redis(mesh_copy):
    chat = {"model": "chatmesh-tiny", "messages": [{"role": "user", "content": "Hello!"}]}
    client = Client(mesh_copy.plain_address, mesh_copy.api_key)
    for more in ({"stream": True}, {"stream": True, "store": True}, {"n": 2}):
        answer = client.request("POST", "/v1/chat/completions", {**chat, "max_tokens": 8, **more})
        assert answer.status == 200, answer.body
    folder = mesh_copy.home / "redis"
    password, port = ((folder / name).read_text().strip() for name in ("password", "port"))
    with redis.Redis(port=int(port), username=OWNER, password=password) as owner:
        assert [(one["username"], one["reason"], one["object"]) for one in owner.acl_log()] == []
        # The owner's list of clients: every service is connected as itself.
        users = {one["user"] for one in owner.client_list()}
    assert {"chatmesh_gateway", "chatmesh_inference", "chatmesh_billing"} <= users


def test_the_users_come_back_with_a_redis_that_was_killed(mesh_copy):
    url = environments(mesh_copy)["inference-1"]["REDIS_URL"]
    before = mesh_copy.row("redis")["pid"]
    psutil.Process(before).kill()

    def refused() -> bool:
        with redis.Redis.from_url(url) as client:
            try:
                client.ping()
                client.execute_command("FLUSHALL")
            except redis.exceptions.NoPermissionError:
                return True
            except redis.RedisError:
                return False  # not back yet
        raise AssertionError("inference may empty Redis")

    assert eventually(refused, timeout_s=30)
    assert mesh_copy.row("redis")["pid"] != before
