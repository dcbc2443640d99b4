"""Programs of others that call Slurm, unchanged, on a cluster of real processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.e2e.disaster_world import kill, processes_of
from tests.e2e.slurm_world import Tools

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("slurm-strangers")]


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    shell = Shell(tmp_path_factory.mktemp("slurm-strangers"))
    shell.up("--nodes", "1", "--listen", "127.0.0.1:0")
    try:
        tools = Tools(shell)
        programs = Path(sys.executable).parent  # reportseff is one
        tools.environment["PATH"] = f"{tools.bin}:{programs}:{os.environ['PATH']}"
        yield tools
    finally:
        shell.down()
        kill(processes_of(shell.data))


def run(tools: Tools, text: str, *words: str) -> str:
    (tools.shell.root / "driver.py").write_text(text)
    return tools.run(sys.executable, "driver.py", *words).out


DASK = """
import os
from dask.distributed import Client
from dask_jobqueue import SLURMCluster

def where():
    return os.environ["SLURM_JOB_NAME"], os.environ["SLURM_CPUS_PER_TASK"]

if __name__ == "__main__":
    with SLURMCluster(
        cores=1, memory="256MiB", processes=1, walltime="00:05:00", queue="all", account="vision",
        scheduler_options={"host": "127.0.0.1", "dashboard_address": None},
        log_directory="dask-logs", local_directory=os.getcwd(),
    ) as cluster, Client(cluster) as client:
        cluster.scale(jobs=1)
        assert client.submit(pow, 2, 5).result(timeout=100) == 32
        print(*client.submit(where).result(timeout=100))
"""


def test_dask_jobqueue_starts_workers_that_compute_and_takes_them_back(tools: Tools) -> None:
    assert run(tools, DASK).split()[-2:] == ["dask-worker", "1"]
    eventually(tools.queue, [])
    ended = tools.run("sacct", "-X", "-n", "-P", "-o", "State", "--name", "dask-worker").out
    assert set(ended.split()) == {"CANCELLED"}


PARSL = """
import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.launchers import SrunLauncher
from parsl.providers import SlurmProvider

@parsl.python_app
def square(number):
    import os
    return number * number, os.environ["SLURM_PROCID"]

provider = SlurmProvider(
    partition="all", nodes_per_block=1, cores_per_node=1, init_blocks=1, max_blocks=1,
    walltime="00:10:00", exclusive=False, launcher=SrunLauncher(),
)
executor = HighThroughputExecutor(
    label="htex", address="127.0.0.1", loopback_address="127.0.0.1", max_workers_per_node=1,
    provider=provider,
)
if __name__ == "__main__":
    with parsl.load(Config(run_dir="parsl", executors=[executor], strategy="none")):
        print([square(number).result(timeout=100) for number in range(3)])
        job = next(iter(provider.resources))
        provider._status()
        print(provider.resources[job]["status"].state.name)
"""


def test_parsl_runs_its_workers_through_srun_and_reads_the_state_of_its_block(
    tools: Tools,
) -> None:
    said = run(tools, PARSL).splitlines()
    assert said[-2:] == ["[(0, '0'), (1, '0'), (4, '0')]", "RUNNING"]
    eventually(tools.queue, [])


HYDRA = """
import os
import hydra

@hydra.main(version_base=None, config_path=None, config_name=None)
def main(config):
    with open(os.path.join(os.environ["RESULTS"], os.environ["SLURM_ARRAY_TASK_ID"]), "w") as out:
        out.write(f"{config.lr} {hydra.core.hydra_config.HydraConfig.get().job.id}")

main()
"""


def test_the_submitit_launcher_of_hydra_sweeps_as_an_array(tools: Tools, tmp_path: Path) -> None:
    tools.environment["RESULTS"] = str(tmp_path)
    run(tools, HYDRA, "-m", "hydra/launcher=submitit_slurm", "+lr=1,2", "hydra.sweep.dir=sweep",
        "hydra.launcher.cpus_per_task=1", "hydra.launcher.timeout_min=5")  # fmt: skip
    results = {path.name: path.read_text().split() for path in tmp_path.iterdir()}
    assert {index: lr for index, (lr, _) in results.items()} == {"0": "1", "1": "2"}
    arrays = {id_.partition("_") for _, id_ in results.values()}
    assert len({array for array, _, _ in arrays}) == 1
    assert {index for _, _, index in arrays} == {"0", "1"}


def test_reportseff_shows_what_ended_jobs_used_and_no_use_of_those_that_have_never_run(
    tools: Tools,
) -> None:
    busy = f"{sys.executable} -S -c 'held = b\"1\" * (60 << 20); import time; time.sleep(1)'"
    array = tools.submit(f"#!/bin/sh\n{busy}\n", "--array=0-1", "--mem=200M", "-J", "seen")
    held = tools.submit("#!/bin/sh\ntrue\n", "-H", "-J", "unseen")
    ended = ("sacct", "-n", "-P", "-o", "MaxRSS", "-j", str(array))
    eventually(lambda: len(tools.run(*ended).out.split()), 2)
    tools.run("scancel", str(held))
    eventually(lambda: tools.queue("-j", str(held), "-t", "PD"), [])

    def table(*words: str) -> list[list[str]]:
        shown = tools.run("reportseff", "--no-color", "--format=+jobname", *words).out
        return [line.split() for line in shown.splitlines() if line.strip()]

    head, *rows = table(str(array), str(held))
    assert head == ["JobID", "State", "Elapsed", "TimeEff", "CPUEff", "MemEff", "JobName"]
    by_id = {row[0]: row for row in rows}
    assert set(by_id) == {f"{array}_0", f"{array}_1", str(held)}
    for index in range(2):
        row = by_id[f"{array}_{index}"]
        assert (row[1], row[6]) == ("COMPLETED", "seen")
        assert 25 <= float(row[5].rstrip("%")) <= 60
    assert by_id[str(held)][1:5] == ["CANCELLED", "00:00:00", "---", "---"]
