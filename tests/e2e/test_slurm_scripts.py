"""Scripts of Slurm as real processes: srun over the members of a gang, and what ends with what."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.e2e.disaster_world import kill, processes_of

from fairlead.api.values.times import parse_time

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("slurm")]

DDP = """#!/bin/bash
#SBATCH --job-name=ddp
#SBATCH --nodes=2 --ntasks-per-node=2
#SBATCH --time=00:10:00
#SBATCH --partition=gpu      # there is none
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
echo "script of $SLURM_JOB_ID: $SLURM_NNODES nodes, $SLURM_NTASKS tasks, $LR, in $PWD"
srun -l sh -c 'echo $SLURM_PROCID/$SLURM_NTASKS $SLURM_LOCALID@$SLURM_NODEID $RANK $MASTER_ADDR'
srun -N1 -n1 sh -c 'exit 4'
exit $?
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    shell.up("--nodes", "2", "--listen", "127.0.0.1:0")
    try:
        yield shell
    finally:
        shell.down()
        kill(processes_of(shell.data))


def test_srun_starts_the_tasks_of_a_batch_script_on_all_its_nodes(shell: Shell) -> None:
    (shell.root / "ddp.sh").write_text(DDP)
    given = shell.run("submit", "ddp.sh", "--cpus", "100m", environment={"LR": "0.1"})
    assert "note: this is one machine: the 2 members share it" in given.err
    assert "worker-0 (rank 0, " in shell.run("wait", "ddp", "--timeout", "100s", code=4).out
    lines = shell.run("logs", "ddp").out.splitlines()
    first = next(line for line in lines if "script of" in line)
    assert first.endswith(f"script of 1: 2 nodes, 4 tasks, 0.1, in {shell.root}")
    address = next(line for line in lines if "0: 0/4" in line).split()[-1]
    tasks = sorted(line.partition(": ")[2] for line in lines if "/4 " in line)
    assert tasks == [
        f"0/4 0@0 0 {address}", f"1/4 1@0 1 {address}", f"2/4 0@1 2 {address}",
        f"3/4 1@1 3 {address}",
    ]  # fmt: skip


def test_a_cancelled_script_leaves_no_task_behind(shell: Shell) -> None:
    script = "#!/bin/bash\n#SBATCH -N 2\nsrun sh -c 'echo $$ > up-$SLURM_PROCID; exec sleep 1000'\n"
    (shell.root / "long.sh").write_text(script)
    shell.run("submit", "long.sh", "--cpus", "100m")
    files = [shell.root / f"up-{i}" for i in (0, 1)]
    eventually(lambda: [file.exists() and file.read_text() != "" for file in files], [True, True])
    shell.run("cancel", "long-1")
    shell.run("wait", "long-1", "--timeout", "100s", code=None)
    for file in files:
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)


def test_a_script_begins_no_earlier_than_it_says_and_is_cancelled_when_it_is_too_late(
    shell: Shell,
) -> None:
    header = "#!/bin/bash\n#SBATCH --begin=now+5\n#SBATCH --cpus-per-task=1\n"
    (shell.root / "later.sh").write_text(f"{header}date +%s\n")
    shell.run("submit", "later.sh", "--name", "later")
    shell.run("submit", "later.sh", "--name", "far", "--begin", "now+3600")
    begin = shell.job("far")["spec"]["notBefore"]
    eventually(lambda: "NotBefore" in shell.run("why", "far").out, expected=True)
    assert f"may not start before {begin}" in shell.run("why", "far").out
    begin = shell.job("later")["spec"]["notBefore"]
    shell.run("wait", "later", "--timeout", "100s")
    assert int(shell.run("logs", "later").out) >= parse_time(begin)
    late = header.replace("--begin=now+5", "--hold --deadline=now+63 --time=1")
    (shell.root / "late.sh").write_text(f"{late}true\n")
    shell.run("submit", "late.sh", "--name", "late")
    eventually(lambda: shell.state("late"), "Cancelled")
    assert "DeadlineMissed: with its time limit of 1m it" in shell.run("why", "late").out
