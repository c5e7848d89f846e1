"""kill -9 of each Python process in turn, under load.

It is restarted, requests that do not need it keep working, nothing hangs past its deadline, and
after it is back everything works again.
"""

import pytest

from tests.support.chaos import Load, kill_and_watch

pytestmark = pytest.mark.mesh
PROCESSES = [
    "billing-1",
    "conversation-1",
    "safety-1",
    "tokenizer-1",
    "inference-1",
    "gateway-1",
    "edge-1",
    "control-1",
]
# Processes with a twin, or which no running request needs: nobody may notice their death but the
# streams that ran through them.
UNNEEDED = {"edge-1", "control-1", "inference-1"}


@pytest.mark.parametrize("process", PROCESSES)
def test_a_killed_process_comes_back(mesh_copy, process):
    with Load(mesh_copy, client_count=4) as load:
        seen = kill_and_watch(mesh_copy, load, process)
    assert seen.restarted, mesh_copy.logs()
    assert seen.slowest_s < 30
    assert not seen.unexplained, seen.unexplained
    assert seen.ok_after >= 8
    assert seen.failed_after == 0
    if process in UNNEEDED:
        assert seen.failed_during == 0, seen
