"""The example clients do what they say, against a whole running mesh."""

import shutil
import subprocess
import sys

import pytest

from tests.support.running import PROJECT

pytestmark = pytest.mark.mesh


def run(mesh_copy, *command):
    lines = (mesh_copy.home / "dev.env").read_text().splitlines()
    environment = {**mesh_copy.environment, **dict(line.split("=", 1) for line in lines)}
    done = subprocess.run(
        command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_shell_client(mesh_copy):
    said = run(mesh_copy, "clients/shell/chat.sh", 'Say "hello".')
    assert said.rstrip().endswith("data: [DONE]")


def test_the_openai_client(mesh_copy):
    assert run(mesh_copy, sys.executable, "clients/python/openai_chat.py", "Hello!").strip()


def test_the_resuming_client(mesh_copy):
    assert run(mesh_copy, sys.executable, "clients/python/resume.py", "Hello!").strip()


def test_the_grpc_client_goes_on_with_its_conversation(mesh_copy):
    said = run(mesh_copy, sys.executable, "clients/python/grpc_chat.py", "Hello!", "And now?")
    assert said.count("> ") == 2
    assert all(part.strip() for part in said.split("> ")[1:])
