"""The PyTorch example under a real torchrun, where an interpreter of this machine has torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.ports import free_port

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "torch"
INTERPRETERS = (sys.executable, "/usr/bin/python3")
ASKS = (
    "import torch, torch.distributed as d; assert d.is_gloo_available(); print(torch.__version__)"
)


def version(interpreter: str) -> str:
    """Return the version of the interpreter's torch; "" when it has none that can be used."""
    if not Path(interpreter).exists():
        return ""
    done = subprocess.run([interpreter, "-c", ASKS], capture_output=True, text=True, check=False)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def python() -> str:
    """An interpreter that has torch."""
    found = next((each for each in INTERPRETERS if version(each)), "")
    if not found:
        pytest.skip("no interpreter of this machine has torch (on Debian: python3-torch)")
    return found


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory, python: str) -> Iterator[Shell]:
    own = Shell(tmp_path_factory.mktemp("torch"))
    (own.root / "examples").mkdir()
    (own.root / "examples" / "torch").symlink_to(EXAMPLE)
    own.environment["PYTHON"] = python
    own.up("--nodes", "0", "--listen", "127.0.0.1:0")
    yield own
    own.down()


def trainers(uid: str) -> list[int]:
    """Return the processes that torchrun has started for a job."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if f"FAIRLEAD_JOB_UID={uid}".encode() in environment and b"distributed.run" not in command:
            found.append(int(process.name))
    return sorted(found)


def test_torchrun_starts_two_processes_on_each_member_and_goes_on_from_the_checkpoint(
    shell: Shell, python: str
) -> None:
    if version(python).startswith("1."):  # its torchrun does not read its own defaults on 3.11
        shell.environment |= {"PET_REDIRECTS": "9:1", "PET_TEE": "9:1"}
    passed = [f"--env={name}" for name in ("PYTHON", "PET_REDIRECTS", "PET_TEE")]
    shell.run("submit", "examples/torch/train.sh", "--name", "torch", "--retries", "1", *passed,
              "--", "--steps", "200", "--step-seconds", "0.05")  # fmt: skip

    def said(text: str) -> bool:
        return text in shell.run("logs", "torch", code=None).out

    eventually(lambda: said("step 50"), True)
    members = trainers(shell.job("torch")["metadata"]["uid"])
    assert len(members) >= 4, "two members, two processes on each"
    os.kill(members[-1], signal.SIGKILL)
    eventually(lambda: shell.state("torch"), "Succeeded")
    assert shell.job("torch")["status"]["attempt"] == 2
    assert said("rank 3: resumed from the checkpoint of step")
    assert said("on unseen samples after 200 steps")


#: The script of pytorch/examples distributed/ddp-tutorial-series/slurm/sbatch_run.sh, with a port
#: and a program of the test: a step on the first node says its address, and launchers meet there.
SBATCH = """#!/bin/bash

#SBATCH --job-name=multinode-example
#SBATCH --nodes=4
#SBATCH --ntasks=4
#SBATCH --cpus-per-task=4
#FAIRLEAD --cpus 50m

nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
nodes_array=($nodes)
head_node=${nodes_array[0]}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)

echo Node IP: $head_node_ip
export LOGLEVEL=INFO

srun ./torchrun \\
--nnodes 4 \\
--nproc_per_node 1 \\
--rdzv_id $RANDOM \\
--rdzv_backend c10d \\
--rdzv_endpoint $head_node_ip:PORT \\
./train.sh 50 10
"""


def test_launchers_that_srun_starts_meet_at_the_address_that_a_step_has_looked_up(
    shell: Shell, python: str
) -> None:
    (shell.root / "run.sbatch").write_text(SBATCH.replace("PORT", str(free_port())))
    of_version = "--redirects 9:1 --tee 9:1 " if version(python).startswith("1.") else ""
    for name, line in {
        "torchrun": f'exec {python} -m torch.distributed.run --no_python {of_version}"$@"',
        "train.sh": "echo trainer $RANK of $WORLD_SIZE trains for $1",
    }.items():
        (shell.root / name).write_text(f"#!/bin/sh\n{line}\n")
        (shell.root / name).chmod(0o755)
    shell.run("submit", "run.sbatch")
    shell.run("wait", "multinode-example", "--timeout", "110s")
    lines = shell.run("logs", "multinode-example").out.splitlines()
    said = sorted(line.partition("trainer ")[2] for line in lines if "trainer " in line)
    assert said == [f"{rank} of 4 trains for 50" for rank in range(4)]
