"""The plane and what feeds it: changes, refusals, restarts."""

import asyncio
import datetime
import os
import socket
import stat
import time

import pytest
from structlog.testing import capture_logs

from mesh import topology
from mesh.chassis.identity import new_key
from mesh.control import serving, snapshot, watch
from mesh.control.edge import WEB_CERTIFICATE_LIFETIME, WebCertificate
from mesh.control.issuer import BadJoinTokenError
from mesh.control.registry import Instance, State
from mesh.control.settings import EdgeSettings
from mesh.control.store import StateFolder
from mesh.xds import CLUSTER, ROUTES, SECRET
from tests.unit.control.conftest import Clock

INSTANCE = Instance("safety", "safety-1", "127.0.0.1:1000", 1, State.SERVING)


@pytest.fixture
def control(make_control):
    return make_control()


def register(control, instance=INSTANCE, holder=1):
    control.plane.renew(instance, holder, time.monotonic(), time.time())


def test_versions_rise_only_when_what_is_served_changes(control):
    version = control.plane.snapshot.version
    register(control)
    assert control.plane.snapshot.version == version + 1
    control.plane.refresh()
    assert control.plane.snapshot.version == version + 1


async def test_listeners_hear_of_changes_only(control):
    wake = asyncio.Event()
    with control.plane.listening(wake):
        register(control)
        assert wake.is_set()
        wake.clear()
        register(control)
        assert not wake.is_set()
    control.plane.drain("safety-1")
    assert not wake.is_set()


def test_a_snapshot_that_fails_its_check_is_not_served(control):
    before = control.plane.snapshot
    register(control, Instance("safety", "safety-1", "127.0.0.1:0", 1, State.SERVING))
    assert control.plane.snapshot is before
    register(control)
    assert control.plane.snapshot is not before


def test_a_restart_loses_nothing(make_control):
    first = make_control()
    register(first)
    first.plane.drain("safety-1")
    token = first.issuer.create_token("gateway", 60, first.clock())
    used = first.issuer.create_token("gateway", 60, first.clock())
    assert first.issuer.issue(used, new_key()[1], first.clock())

    second = make_control()
    assert second.plane.instances() == first.plane.instances()
    assert second.plane.get("safety-1").effective_state is State.DRAINING
    assert second.plane.snapshot.version > first.plane.snapshot.version
    assert second.plane.snapshot.resources("grpc", CLUSTER) == first.plane.snapshot.resources(
        "grpc", CLUSTER
    )
    assert second.authority.trust_bundle_pem == first.authority.trust_bundle_pem
    with pytest.raises(BadJoinTokenError):
        second.issuer.issue(used, new_key()[1], second.clock())
    assert second.issuer.issue(token, new_key()[1], second.clock())


def test_streams_that_end_with_us_do_not_take_their_instances_along(make_control):
    first = make_control()
    register(first)
    first.plane.freeze()
    first.plane.release("safety-1", 1)
    first.plane.expire(time.monotonic() + 1e6)
    assert make_control().plane.get("safety-1") is not None


def test_a_damaged_registry_file_is_no_reason_not_to_start(make_control):
    first = make_control()
    register(first)
    (first.folder.path / "registry.json").write_text("{")
    assert make_control().plane.instances() == ()


def test_a_damaged_token_file_is_one(make_control):
    control = make_control()
    (control.folder.path / "tokens.json").write_text("{}")
    with pytest.raises(ValueError, match="remove it to start anew"):
        make_control()


def test_state_is_private(control):
    control.issuer.create_token("gateway", 60, control.clock())
    register(control)
    assert stat.S_IMODE(control.folder.path.stat().st_mode) == 0o700
    for name in ("registry.json", "tokens.json", "ca.key", "web-ca.key"):
        assert stat.S_IMODE((control.folder.path / name).stat().st_mode) == 0o600


# The topology file


def write(path, text):
    scratch = path.with_suffix(".new")
    scratch.write_text(text)
    os.replace(scratch, path)


async def test_a_changed_topology_is_taken_up(control, tmp_path):
    path = tmp_path / "topology.yaml"
    good = topology.TOPOLOGY_FILE.read_text()
    write(path, good)
    file = watch.TopologyFile(path)
    wake = asyncio.Event()
    follower = asyncio.create_task(file.follow(control.plane))
    try:
        with control.plane.listening(wake):
            old = "ScreenPrompt: {callers: [gateway]"
            write(path, good.replace(old, "ScreenPrompt: {callers: [edge]"))
            await asyncio.wait_for(wake.wait(), 10)
            assert "safety" in control.plane.topology.callees("edge")
            wake.clear()
            write(path, good)
            await asyncio.wait_for(wake.wait(), 10)
            assert "safety" not in control.plane.topology.callees("edge")
    finally:
        follower.cancel()


@pytest.mark.parametrize("content", [b"services: {}", b"\xff", None], ids=["bad", "bytes", "gone"])
def test_a_topology_that_is_no_good_leaves_the_old_one(control, tmp_path, content):
    path = tmp_path / "topology.yaml"
    path.write_bytes(topology.TOPOLOGY_FILE.read_bytes())
    file = watch.TopologyFile(path)
    before = control.plane.topology
    path.unlink() if content is None else path.write_bytes(content)
    with capture_logs() as logs:
        assert not file.take(control.plane)
        assert not file.take(control.plane)
    assert control.plane.topology is before
    assert len([one for one in logs if one["event"].startswith("topology_")]) == 1


def test_a_topology_that_cannot_be_served_leaves_the_old_one(control, monkeypatch):
    before = control.plane.topology
    monkeypatch.setattr(snapshot, "check", lambda resources: ["no good"])
    with pytest.raises(snapshot.SnapshotError, match="no good"):
        control.plane.set_topology(topology.load())
    assert control.plane.topology is before


def test_the_backstop_follows_the_topology(control):
    before = control.plane.snapshot.resources("grpc", ROUTES)["safety"].digest
    text = topology.TOPOLOGY_FILE.read_text()
    changed = topology.parse(text.replace("deadline_ms: 600000}", "deadline_ms: 5}"))
    control.plane.set_topology(changed)
    assert control.plane.snapshot.resources("grpc", ROUTES)["safety"].digest != before


# The public certificate


def pem_files(folder, name, clock):
    own = WebCertificate(EdgeSettings(), StateFolder(folder / name), clock)
    (folder / f"{name}.crt").write_text(own.chain_pem)
    (folder / f"{name}.key").write_text(own.key_pem)


def test_the_public_certificate_renews_itself(control, tmp_path):
    certificate = WebCertificate(EdgeSettings(), control.folder, control.clock)
    first = certificate.chain_pem
    assert not certificate.refresh()
    control.clock.now += WEB_CERTIFICATE_LIFETIME / 2
    assert certificate.refresh()
    assert certificate.chain_pem != first


def test_given_files_are_followed_and_half_written_ones_are_not(tmp_path):
    clock = Clock()
    pem_files(tmp_path, "a", clock)
    pem_files(tmp_path, "b", clock)
    settings = EdgeSettings(cert_file=tmp_path / "a.crt", key_file=tmp_path / "a.key")
    certificate = WebCertificate(settings, StateFolder(tmp_path / "state"), clock)
    assert not certificate.refresh()
    old = certificate.chain_pem
    (tmp_path / "a.crt").write_text((tmp_path / "b.crt").read_text())
    assert not certificate.refresh()
    assert certificate.chain_pem == old
    (tmp_path / "a.key").write_text((tmp_path / "b.key").read_text())
    assert certificate.refresh()
    assert certificate.chain_pem != old
    assert not (tmp_path / "state" / "web-ca.crt").exists()


def test_files_that_do_not_fit_are_refused_at_start(tmp_path):
    clock = Clock()
    pem_files(tmp_path, "a", clock)
    pem_files(tmp_path, "b", clock)
    settings = EdgeSettings(cert_file=tmp_path / "a.crt", key_file=tmp_path / "b.key")
    with pytest.raises(ValueError, match="do not fit"):
        WebCertificate(settings, StateFolder(tmp_path / "state"), clock)


def test_one_file_without_the_other_is_refused(tmp_path):
    with pytest.raises(ValueError, match="EDGE_KEY_FILE"):
        EdgeSettings(cert_file=tmp_path / "a.crt")


def test_a_new_public_certificate_reaches_the_snapshot(control):
    before = control.plane.snapshot.resources("envoy", SECRET)["web-cert"].digest
    control.clock.now += datetime.timedelta(days=40)
    assert control.certificate.refresh()
    control.plane.refresh()
    assert control.plane.snapshot.resources("envoy", SECRET)["web-cert"].digest != before


# Ports


async def test_ports_are_kept_over_restarts_and_never_shared(control):
    def credentials():
        return control.own.credentials(require_client_certificate=False)

    first = serving.join_server()
    address = serving.bind(first, credentials(), "127.0.0.1:0", control.folder, "p")
    await first.start()
    assert int(address.rpartition(":")[2]) in serving.FREE_PORTS
    other = serving.join_server()
    with pytest.raises(OSError, match="is taken"):
        serving.bind(other, credentials(), address, control.folder, "p")
    moved = serving.bind(other, credentials(), "127.0.0.1:0", StateFolder(control.folder.path), "p")
    assert moved != address
    await first.stop(0)
    again = serving.join_server()
    control.folder.save_address("p", address.rpartition(":")[2])
    assert serving.bind(again, credentials(), "127.0.0.1:0", control.folder, "p") == address
    await again.stop(0)
    await other.stop(0)


def test_a_taken_port_is_seen():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert not serving._is_free("127.0.0.1", taken.getsockname()[1])
