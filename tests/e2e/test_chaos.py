"""A short seed of `make chaos`: every kind of process is killed or paused once under clients that
resume; their bytes and the ledger are those of an undisturbed run.
"""

import pytest

from mesh.home import Home
from tests.chaos.experiment import ENGINES, REPLICAS, Options, run
from tests.chaos.strikes import processes
from tests.support.running import running_mesh

pytestmark = pytest.mark.mesh
# check_gaps: figures are for a machine that does nothing else.
OPTIONS = Options(
    seconds=26, interval_s=2, clients=6, seed=2, wish_count=32, pause_share=0.2, check_gaps=False
)


@pytest.fixture(scope="module")
def paced_copy(tmp_path_factory):
    with running_mesh(
        tmp_path_factory.mktemp("chaos"), REPLICAS=REPLICAS, **ENGINES[OPTIONS.engine]
    ) as copy:
        yield copy


@pytest.mark.timeout(300)
def test_answers_and_ledger_survive_the_death_of_every_kind_of_process(paced_copy):
    result = run(paced_copy, OPTIONS, print)
    repeat = f"the same again: {OPTIONS.command()}"
    assert not result.violations, (result.violations[:10], repeat)
    assert {one.blow.kind for one in result.struck} == set(processes(Home(paced_copy.home)))
    killed = {one.blow.kind for one in result.struck if one.blow.how == "kill"}
    assert {"gateway", "envoy", "redis", "postgres", "inference"} <= killed
    assert len(result.outcomes) > OPTIONS.wish_count
