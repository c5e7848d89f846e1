"""The unmodified OpenAI Node SDK against a whole running mesh."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "node"
pytestmark = [
    pytest.mark.mesh,
    pytest.mark.skipif(shutil.which("npm") is None, reason="Node.js and npm are not installed"),
]


@pytest.fixture(scope="module")
def sdk(tmp_path_factory):
    """A folder with the script and the SDK that the lock file names."""
    folder = tmp_path_factory.mktemp("node")
    for name in ("package.json", "package-lock.json", "chat.mjs"):
        shutil.copy(FOLDER / name, folder)
    command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=110)
    return folder


def test_the_node_sdk_chats(mesh_copy, sdk):
    environment = {
        **mesh_copy.environment,
        "OPENAI_BASE_URL": mesh_copy.base_url,
        "OPENAI_API_KEY": mesh_copy.api_key,
    }
    done = subprocess.run(
        ["node", "chat.mjs", "chatmesh-tiny"],
        cwd=sdk,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["text"] == said["whole"]["choices"][0]["message"]["content"]
    # What the prefix cache had may differ from one request to the next.
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert said["usage"][count] == said["whole"]["usage"][count]
    assert said["refusal"] == {"status": 404, "code": "model_not_found", "param": "model"}
    assert "chatmesh-tiny" in said["models"]
