"""What strangers' launchers do with srun in a batch script: the calls as their sources have them.

Sources: ray-project/ray doc_code/slurm-basic.sh; open-mpi/prrte src/mca/plm/slurm;
Lightning-AI/pytorch-lightning fabric/plugins/environments/slurm.py; NVIDIA/NeMo
nemo/collections/diffusion/vae/train_vae.sh; MPICH's hydra, whose mpiexec is run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.ports import free_port
from tests.unit.member.test_batch import run

#: All tasks tell the first one their ranks, and it tells them the sum.
AGREE = """
import os, socket
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert (rank, size) == (int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"]))
assert rank == int(os.environ["SLURM_NODEID"]) * 8 + int(os.environ["LOCAL_RANK"])
at = (os.environ["MASTER_ADDR"], int(os.environ["MEETING"]))
if rank == 0:
    server = socket.create_server(at, backlog=size)
    others = [server.accept()[0] for _ in range(size - 1)]
    total = sum(int(other.recv(9)) for other in others)
    for other in others:
        other.sendall(str(total).encode())
else:
    while True:
        try:
            server = socket.create_connection(at)
            break
        except ConnectionRefusedError:
            pass
    server.sendall(str(rank).encode())
    total = int(server.recv(9))
print(total)
"""


def test_sixteen_tasks_of_two_nodes_agree_on_their_ranks(tmp_path: Path) -> None:
    (tmp_path / "agree.py").write_text(AGREE)
    script = f"srun --overcommit --mem=0 {sys.executable} -S agree.py"
    codes, lines, errors = run(tmp_path, script, tasks="8(x2)", MEETING=str(free_port()))
    assert (codes, errors) == ([0, 0], "")
    assert lines == ["120"] * 16


def test_two_steps_of_a_node_each_run_side_by_side_until_both_have_ended(tmp_path: Path) -> None:
    """A head and a worker: neither ends without the other."""
    os.mkfifo(tmp_path / "to-head")
    os.mkfifo(tmp_path / "to-worker")
    script = (
        "nodes=($(scontrol show hostnames $SLURM_JOB_NODELIST))\n"
        "srun --nodes=1 --ntasks=1 -w ${nodes[0]} sh -c "
        "'read a <to-head; echo head $a; echo $SLURMD_NODENAME >to-worker' &\n"
        "srun --nodes=1 --ntasks=1 -w ${nodes[1]} sh -c "
        "'echo $SLURMD_NODENAME >to-head; read a <to-worker; echo worker $a' &\n"
        "wait\necho over"
    )
    codes, lines, _ = run(tmp_path, script)
    assert (codes, lines) == ([0, 0], ["head 127.0.0.2", "over", "worker 127.0.0.1"])


def test_the_daemons_of_prrte_are_started_one_on_each_node(tmp_path: Path) -> None:
    daemon = tmp_path / "prted"
    daemon.write_text('#!/bin/sh\necho "$SLURM_NODEID of $SLURM_NNODES: $@"\n')
    daemon.chmod(0o755)
    script = (
        "srun --ntasks-per-node=1 --kill-on-bad-exit --mpi=none --cpu-bind=none --nodes=2 "
        f'--nodelist=127.0.0.1,127.0.0.2 --ntasks=2 {daemon} --prtemca ess "slurm" '
        '--prtemca prte_hnp_uri "1;tcp://127.0.0.1:9"'
    )
    codes, lines, errors = run(tmp_path, script, tasks="4(x2)")
    assert (codes, errors) == ([0, 0], "")
    said = "--prtemca ess slurm --prtemca prte_hnp_uri 1;tcp://127.0.0.1:9"
    assert lines == [f"0 of 2: {said}", f"1 of 2: {said}"]


def test_an_mpirun_that_is_given_no_hosts_starts_its_daemons_through_srun(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(
        "import os\nfrom mpi4py import MPI\nranks = MPI.COMM_WORLD.allgather(MPI.COMM_WORLD.rank)\n"
        "print(MPI.COMM_WORLD.rank, ranks, os.environ['SLURM_NODEID'])\n"
    )
    mpiexec = Path(sys.executable).with_name("mpiexec.hydra")
    codes, lines, errors = run(
        tmp_path, f"{mpiexec} {sys.executable} ranks.py", tasks="2(x2)",
        SLURM_NODELIST="127.0.0.[1-2]", SLURM_NNODES="2", SLURM_JOB_NUM_NODES="2", SLURM_JOBID="7",
    )  # fmt: skip
    assert (codes, errors) == ([0, 0], "")
    assert lines == [f"{rank} [0, 1, 2, 3] {rank // 2}" for rank in range(4)]


#: What Lightning asks of the environment for `devices` tasks on each of `num_nodes` nodes. A line
#: is one write, also where PYTHONUNBUFFERED is set.
LIGHTNING = """
import os, sys
devices, num_nodes = 4, 2
given = os.environ
def say(*words): os.write(1, (" ".join(map(str, words)) + "\\n").encode())
assert "SLURM_NTASKS" in given
if given["SLURM_JOB_NAME"] in ("bash", "interactive"):  # it passes Slurm over, as in salloc's shell
    assert "LOCAL_RANK" in given, "it starts processes of its own"
    rank = int(given["NODE_RANK"]) * devices + int(given["LOCAL_RANK"])
    say(rank, given["LOCAL_RANK"], given["NODE_RANK"], given["MASTER_ADDR"])
    sys.exit()
if int(given["SLURM_NTASKS"]) > 1 and "SLURM_NTASKS_PER_NODE" not in given:
    sys.exit("You set `ntasks` in your SLURM script, set `ntasks-per-node` instead")
assert int(given["SLURM_NTASKS_PER_NODE"]) == devices, "devices do not match `ntasks-per-node`"
assert int(given["SLURM_NNODES"]) == num_nodes, "num_nodes does not match `nodes`"
root = given["SLURM_NODELIST"].split("[")[0].split(",")[0]
say(given["SLURM_PROCID"], given["SLURM_LOCALID"], given["SLURM_NODEID"], root)
"""


def test_lightning_finds_its_ranks_in_the_shell_of_an_allocation_where_it_ignores_slurm(
    tmp_path: Path,
) -> None:
    (tmp_path / "fit.py").write_text(LIGHTNING)
    script = f"srun {sys.executable} -S fit.py"
    codes, lines, _ = run(tmp_path, script, tasks="4(x2)", SLURM_JOB_NAME="interactive")
    assert codes == [0, 0]
    assert lines == [f"{rank} {rank % 4} {rank // 4} 127.0.0.1" for rank in range(8)]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"SLURM_NTASKS_PER_NODE": "4"}, ""),
        ({}, "set `ntasks-per-node` instead"),
        ({"SLURM_NTASKS_PER_NODE": "2"}, "devices do not match"),
    ],
)
def test_lightning_finds_its_ranks_and_says_what_does_not_match(
    tmp_path: Path, asked: dict[str, str], said: str
) -> None:
    (tmp_path / "fit.py").write_text(LIGHTNING)
    codes, lines, errors = run(
        tmp_path, f"srun {sys.executable} -S fit.py", tasks="4(x2)",
        SLURM_JOB_NAME="ddp", SLURM_NODELIST="127.0.0.[1-2]", **asked,
    )  # fmt: skip
    if said:
        assert (codes[0], lines) == (1, [])
        assert said in errors
        return
    assert codes == [0, 0]
    assert lines == [f"{rank} {rank % 4} {rank // 4} 127.0.0." for rank in range(8)]
