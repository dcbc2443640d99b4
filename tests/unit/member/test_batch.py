"""Batch scripts and srun: real processes, members of one machine."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from tests.patience import PATIENCE_SECONDS
from tests.ports import free_port
from tests.unit.member.test_mpirun import variables

from fairlead.member import batch
from fairlead.member.end_signal import EndSignal
from fairlead.member.steps import Steps


def job(
    tmp_path: Path, script: str, *, nodes: int = 2, tasks: str = "", name: str = "j",
    options: tuple[str, ...] = (), **more: str,
) -> list[subprocess.Popen[str]]:  # fmt: skip
    """Start the members of a batch script, the first one last."""
    key, hosts, file = tmp_path / f"{name}.key", tmp_path / f"{name}.hosts", tmp_path / f"{name}.sh"
    key.write_bytes(os.urandom(32))
    hosts.write_text("".join(f"127.0.0.{i + 1} slots=1\n" for i in range(nodes)))
    file.write_text(f"#!/bin/bash\n{script}\n")
    port = free_port()
    slurm = {
        "FAIRLEAD_MPI_KEY_FILE": str(key), "FAIRLEAD_HOSTFILE": str(hosts),
        "SLURM_TASKS_PER_NODE": tasks or f"1(x{nodes})", "SLURM_JOB_ID": name,
        "SLURM_CPUS_ON_NODE": "2", "TMPDIR": str(tmp_path), "FAIRLEAD_JOB_UID": name,
        "SLURM_JOB_NODELIST": f"127.0.0.[1-{nodes}]", **more,
    }  # fmt: skip
    command = [sys.executable, "-m", "fairlead.member.batch", *options, "--", "bash", str(file)]
    return [
        subprocess.Popen(
            command, env=variables(rank, nodes, port, **{**slurm, "FAIRLEAD_INDEX": str(rank)}),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        )
        for rank in reversed(range(nodes))
    ]  # fmt: skip


def ends(members: list[subprocess.Popen[str]]) -> tuple[list[int], str, str]:
    """Return the exit codes in rank order, and what the first member wrote."""
    said = [member.communicate(timeout=PATIENCE_SECONDS) for member in members]
    return [member.returncode for member in reversed(members)], *said[-1]


def run(tmp_path: Path, script: str, **more: object) -> tuple[list[int], list[str], str]:
    """Run a script to its end; return the codes, the sorted lines, and the errors."""
    codes, out, errors = ends(job(tmp_path, script, **more))  # pyright: ignore[reportArgumentType]
    return codes, sorted(out.splitlines()), errors


def test_the_script_runs_once_and_srun_starts_a_task_on_each_node(tmp_path: Path) -> None:
    script = (
        "echo script on $RANK$LOCAL_RANK$WORLD_SIZE of $SLURM_PROCID.\n"
        "srun sh -c 'echo task $SLURM_PROCID of $SLURM_NTASKS on $SLURM_NODEID $FAIRLEAD_INDEX "
        "$SLURM_STEP_ID $SLURMD_NODENAME $RANK $WORLD_SIZE'"
    )
    codes, lines, errors = run(tmp_path, script)
    assert (codes, errors) == ([0, 0], "")
    assert lines == [
        "script on of .",
        "task 0 of 2 on 0 0 0 127.0.0.1 0 2",
        "task 1 of 2 on 1 1 0 127.0.0.2 1 2",
    ]


def test_tasks_are_in_blocks_and_each_step_has_a_number(tmp_path: Path) -> None:
    script = (
        "task='echo $SLURM_STEP_ID: $SLURM_PROCID $SLURM_NODEID.$SLURM_LOCALID $FAIRLEAD_INDEX'\n"
        'srun -n 3 sh -c "$task"\n'
        'srun -N1 -n1 -w 127.0.0.2 sh -c "$task"\n'
        'srun --ntasks-per-node=2 --exclude=127.0.0.1 sh -c "$task"\n'
        'srun sh -c "$task"\n'
    )
    codes, lines, _ = run(tmp_path, script, tasks="2,1")
    assert codes == [0, 0]
    assert lines == [
        "0: 0 0.0 0", "0: 1 0.1 0", "0: 2 1.0 1", "1: 0 0.0 1", "2: 0 0.0 1", "2: 1 0.1 1",
        "3: 0 0.0 0", "3: 1 0.1 0", "3: 2 1.0 1",
    ]  # fmt: skip


def test_a_program_that_takes_slurms_variables_away_still_starts_steps(tmp_path: Path) -> None:
    """As Snakemake does before its srun."""
    script = "unset SLURM_TASKS_PER_NODE\nsrun -n1 echo one\nsrun sh -c 'echo of $SLURM_NTASKS'"
    assert run(tmp_path, script, tasks="2(x2)")[:2] == ([0, 0], ["of 2", "of 2", "one"])


def test_lines_are_labelled_with_the_task(tmp_path: Path) -> None:
    codes, lines, errors = run(
        tmp_path, "srun -l -n2 sh -c 'echo a; printf b; echo c $SLURM_PROCID >&2'"
    )
    assert codes == [0, 0]
    assert lines == ["0: a", "0: b", "1: a", "1: b"]
    assert sorted(errors.splitlines()) == ["0: c 0", "1: c 1"]


def test_the_exit_code_of_srun_is_the_highest_one_and_that_of_the_script_its_own(
    tmp_path: Path,
) -> None:
    script = (
        "srun sh -c 'exit $((SLURM_PROCID + 3))'\necho code $?\n"
        "srun -n1 sh -c 'kill -9 $$'\necho code $?\nsrun -n1 nosuchprogram\necho code $?\nexit 7"
    )
    codes, lines, errors = run(tmp_path, script)
    assert codes == [7, 75]
    assert lines == ["code 127", "code 137", "code 4"]
    assert "srun: error: task 1: Exited with exit code 4" in errors
    assert "cannot start 'nosuchprogram'" in errors


def test_a_bad_exit_ends_the_other_tasks_where_that_is_asked_for(tmp_path: Path) -> None:
    script = "srun -K sh -c '[ $SLURM_PROCID = 1 ] && exit 3; sleep 10000'; echo code $?\n"
    codes, lines, _ = run(tmp_path, script)
    assert (codes, lines) == ([0, 0], ["code 137"])


def test_steps_run_side_by_side_and_exclusive_ones_wait_for_cpus(tmp_path: Path) -> None:
    """Of two CPUs a node, three exclusive steps on one node are never together; others are."""
    script = (
        "busy='mkdir lock 2>/dev/null || { echo together; exit 0; }; sleep 0.3; rmdir lock'\n"
        'for i in 1 2 3; do srun --exclusive -N1 -n1 -c2 sh -c "$busy" & done; wait\n'
        "mkfifo a b\n"
        "srun -N1 -n1 sh -c 'echo > a; cat b' & srun -N1 -n1 sh -c 'cat a; echo met > b' & wait\n"
    )
    codes, lines, _ = run(tmp_path, script)
    assert (codes, [line for line in lines if line]) == ([0, 0], ["met"])


def test_output_files_follow_their_patterns(tmp_path: Path) -> None:
    script = "srun --output=%j_%t.out --error %x.%s.err sh -c 'echo $SLURM_PROCID; echo e >&2'"
    codes, lines, _ = run(tmp_path, script, SLURM_JOB_NAME="name")
    assert (codes, lines) == ([0, 0], [])
    assert [(tmp_path / f"j_{i}.out").read_text() for i in (0, 1)] == ["0\n", "1\n"]
    assert (tmp_path / "name.0.err").read_text() == "e\ne\n"


def test_a_file_of_a_step_is_gone_on_with_where_the_job_or_the_step_asks_for_it(
    tmp_path: Path,
) -> None:
    """submitit relies on it: the log of the run before a requeue stays."""
    for name in ("of-job", "of-step", "cut"):
        (tmp_path / name).write_text("before\n")
    script = (
        "srun -n1 --output=of-job echo after\n"
        "export SLURM_OPEN_MODE=t\nsrun -n1 --output=of-step --open-mode=append echo after\n"
        "srun -n1 --output=cut echo after"
    )
    assert run(tmp_path, script, SLURM_OPEN_MODE="a")[0] == [0, 0]
    texts = [(tmp_path / name).read_text() for name in ("of-job", "of-step", "cut")]
    assert texts == ["before\nafter\n", "before\nafter\n", "after\n"]


def test_what_a_script_writes_is_in_its_log_and_in_its_files(tmp_path: Path) -> None:
    script = "echo out; echo err >&2; srun echo task; sleep 1000 & exit 3"
    files = ("--output", "logs/%x-%j.%t.out")
    codes, lines, errors = run(tmp_path, script, options=files, SLURM_JOB_NAME="name")
    assert (codes, lines, errors) == ([3, 75], ["out", "task", "task"], "err\n")
    both = (tmp_path / "logs/name-j.0.out").read_text()
    assert sorted(both.splitlines()) == ["err", "out", "task", "task"]
    apart = ("--output", "%A_%a", "--error", "e", "--open-mode", "append")
    (tmp_path / "e").write_text("before\n")
    run(tmp_path, script, options=apart, SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="2")
    assert sorted((tmp_path / "7_2").read_text().splitlines()) == ["out", "task", "task"]
    assert (tmp_path / "e").read_text() == "before\nerr\n"


def test_each_task_has_its_program_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "progs").write_text("0 echo first %t\n1-2 echo other %t %o # rest\n")
    codes, lines, _ = run(tmp_path, "srun -n3 --multi-prog progs", tasks="2,1")
    assert (codes, lines) == ([0, 0], ["first 0", "other 1 0", "other 2 1"])


def test_signals_reach_the_tasks_of_all_members(tmp_path: Path) -> None:
    script = (
        "trap 'echo script' USR1\n"
        'srun sh -c \'trap "echo task; exit 0" USR1; touch up-$SLURM_PROCID; '
        "while :; do sleep 0.1; done' &\nwait; wait"
    )
    members = job(tmp_path, script)
    while not all((tmp_path / f"up-{i}").exists() for i in (0, 1)):
        assert members[-1].poll() is None
    members[-1].send_signal(signal.SIGUSR1)
    codes, out, _ = ends(members)
    assert (codes, sorted(out.splitlines())) == ([0, 0], ["script", "task", "task"])


def test_a_program_beside_the_script_signals_a_step_all_of_them_or_the_script(
    tmp_path: Path,
) -> None:
    (tmp_path / "catch").write_text(
        "trap 'echo $1 has 10' USR1; trap 'echo $1 has 12; exit 0' USR2\n"
        'touch "up-$1"; while :; do sleep 0.05; done\n'
    )
    script = (
        "trap 'echo script has 10' USR1; trap 'echo script has 12' USR2\n"
        "srun -N1 -n1 bash catch 0 & until [ -e up-0 ]; do sleep 0.05; done\n"
        "srun -N1 -n1 bash catch 1 & touch up-script; until wait; do :; done"
    )
    own = f"s{os.getpid()}"  # directories of steps are those of all tests
    members = job(tmp_path, script, name=own)
    while not all((tmp_path / f"up-{i}").exists() for i in ("0", "1", "script")):
        assert members[-1].poll() is None
    environment = {**os.environ, "TMPDIR": str(tmp_path), "FAIRLEAD_ATTEMPT": "1"}

    def signalled(name: str, target: str, uid: str = own) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "fairlead.member.step_signal", name, target], text=True,
            env={**environment, "FAIRLEAD_JOB_UID": uid}, capture_output=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stderr

    assert signalled("USR1", "batch") == (0, "")
    assert signalled("USR2", "0") == (0, "")
    assert signalled("USR1", "7") == (1, "Job/step already completing or completed\n")
    assert signalled("USR1", "full", uid="another")[0] == 1
    assert signalled("USR2", "full") == (0, "")
    codes, out, _ = ends(members)
    said = sorted(out.splitlines())
    assert (codes, said) == ([0, 0], ["0 has 12", "1 has 12", "script has 10", "script has 12"])


def test_a_signal_to_the_script_alone_comes_before_its_time_limit(tmp_path: Path) -> None:
    script = "trap 'echo script; exit 0' USR1; srun -n1 sleep 1000 & wait"
    options = ("--signal", "B:USR1@1", "--time", "6")
    assert run(tmp_path, script, nodes=1, options=options)[:2] == ([0], ["script"])


@pytest.mark.parametrize(
    ("target", "said"),
    [("B:", ["script has 10", "script has 15", "task 0 has 15", "task 1 has 15"]),
     ("", ["script has 15", "task 0 has 10", "task 0 has 15", "task 1 has 10", "task 1 has 15"])],
)  # fmt: skip
def test_a_signal_comes_before_sigterm_where_a_job_is_asked_to_end_early(
    tmp_path: Path, target: str, said: list[str]
) -> None:
    """As kubelets and nodes end all members: each gets SIGTERM by itself."""
    (tmp_path / "catch").write_text(
        'for n in 10 15; do trap "echo $1 has $n; [ $n = 10 ] || { wait; exit 0; }" $n; done\n'
        'touch "up-$2"; while :; do sleep 0.05; done\n'
    )
    script = "srun sh -c 'exec bash catch \"task $RANK\" $RANK' & set -- script 2; . ./catch"
    members = job(tmp_path, script, options=("--signal", f"{target}USR1@1"))
    while not all((tmp_path / f"up-{i}").exists() for i in range(3)):
        assert members[-1].poll() is None
    for member in members:
        member.send_signal(signal.SIGTERM)
    codes, out, _ = ends(members)
    lines = out.splitlines()
    assert (codes, sorted(lines)) == ([0, 0], said)
    first = 1 if target else 2
    assert all(line.endswith("10") for line in lines[:first])


async def test_who_ignores_sigterm_after_the_signal_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "KILL_SECONDS", 0)
    script = "trap '' TERM; trap 'echo saved' USR1; touch up; while :; do sleep 0.05; done"
    with subprocess.Popen(  # noqa: ASYNC220 # what a member starts
        ["bash", "-c", script], cwd=tmp_path, process_group=0, stdout=subprocess.PIPE, text=True
    ) as process:
        while not (tmp_path / "up").exists():
            assert process.poll() is None
        asked = batch.AskedTasks(EndSignal(signal.SIGUSR1, 1, is_to_script=True))
        await batch.ScriptSignals(process, Steps([1]), asked).pass_on(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        assert process.stdout is not None
        assert process.stdout.read() == "saved\n"


def test_what_the_script_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    script = (
        "srun sh -c 'echo $$ > pid-$SLURM_PROCID; exec sleep 1000' &\n"
        "until [ -s pid-0 ] && [ -s pid-1 ]; do sleep 0.05; done"
    )
    codes, _, _ = run(tmp_path, script)
    assert codes == [0, 0]
    for rank in (0, 1):
        pid = int((tmp_path / f"pid-{rank}").read_text())
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert list(tmp_path.glob("steps-*")) == []


def test_a_step_that_the_script_leaves_running_ends_quietly_in_every_member(
    tmp_path: Path,
) -> None:
    """As scripts for Ray do it: daemons run in steps in the background until the script ends."""
    script = (
        "srun sh -c 'touch up-$SLURM_PROCID; echo up; exec sleep 1000' &\n"
        "until [ -e up-0 ] && [ -e up-1 ]; do sleep 0.05; done\n"
    )
    members = job(tmp_path, script)
    said = [member.communicate(timeout=PATIENCE_SECONDS) for member in members]
    assert [member.returncode for member in members] == [0, 0]
    own = [line for _, errors in said for line in errors.splitlines()]
    assert [line for line in own if not line.startswith("srun: ")] == []


def test_a_lost_member_ends_the_script_and_says_so(tmp_path: Path) -> None:
    members = job(tmp_path, "touch up; sleep 1000")
    while not (tmp_path / "up").exists():
        assert members[-1].poll() is None
    members[0].kill()
    codes, _, errors = ends(members)
    assert codes == [75, -9]
    assert "a member of the job is lost" in errors


# Who may start tasks


def test_another_job_of_the_same_user_starts_nothing_here(tmp_path: Path) -> None:
    """It knows the directory, and may even read the key: its own job is another one."""
    victim = job(tmp_path, "echo $FAIRLEAD_STEPS > steps; until [ -e over ]; do sleep 0.05; done")
    while not (tmp_path / "steps").exists() or not (tmp_path / "steps").read_text():
        assert victim[-1].poll() is None
    attack = "FAIRLEAD_STEPS=$(cat steps) srun -n1 touch stolen; echo code $?; touch over"
    codes, lines, errors = run(tmp_path, attack, name="k", nodes=1)
    assert (codes, lines) == ([0], ["code 1"])
    assert "the steps of another job are none of this one's" in errors
    assert ends(victim)[0] == [0, 0]
    assert not (tmp_path / "stolen").exists()


def test_nobody_else_may_enter_the_directory_of_steps(tmp_path: Path) -> None:
    script = (
        'stat -c %a $FAIRLEAD_STEPS; stat -c %a $FAIRLEAD_STEPS/key; env | grep -c "$(cat key)"'
    )
    _, lines, _ = run(tmp_path, script, nodes=1)
    assert lines[-2:] == ["600", "700"]


@pytest.mark.skipif(os.getuid() != 0, reason="another user is needed")
def test_another_user_of_the_machine_does_not_reach_the_socket(tmp_path: Path) -> None:
    for directory in (tmp_path, *tmp_path.parents[:3]):
        directory.chmod(0o755)
    script = (
        "attack='import os, socket; os.setuid(65534); "
        's = socket.socket(socket.AF_UNIX); s.connect(os.environ["FAIRLEAD_STEPS"] + "/socket")\'\n'
        f'{sys.executable} -c "$attack" 2>&1 | tail -n 1'
    )
    _, lines, _ = run(tmp_path, script, nodes=1)
    assert lines == ["PermissionError: [Errno 13] Permission denied"]


@pytest.mark.parametrize("sent", [b"", b"1 00\n", b"x" * 5000, b"1 aa\n00\n"])
def test_a_stranger_at_the_socket_is_not_heard(tmp_path: Path, sent: bytes) -> None:
    (tmp_path / "sent").write_bytes(sent)
    script = (
        f"{sys.executable} -c '\nimport os, socket\n"
        's = socket.socket(socket.AF_UNIX); s.connect(os.environ["FAIRLEAD_STEPS"] + "/socket")\n'
        's.sendall(open("sent", "rb").read()); s.shutdown(1)\n'
        'print(b"launch" in s.recv(9999))\'\nsrun -n1 echo served'
    )
    codes, lines, _ = run(tmp_path, script, nodes=1)
    assert (codes, lines) == ([0], ["False", "served"])


@pytest.mark.parametrize("nodes", [1, 2])
def test_tasks_of_a_step_are_ranks_of_one_communicator(tmp_path: Path, nodes: int) -> None:
    """Two steps side by side have one each; a job of one node has no key of a gang."""
    (tmp_path / "ranks.py").write_text(
        "import sys\nfrom mpi4py import MPI\nworld = MPI.COMM_WORLD\n"
        "print(sys.argv[1], world.size, world.allreduce(world.rank), sys.stdin.read())\n"
    )
    script = "".join(
        f"echo read | srun --mpi=pmi2 -n {2 * nodes} {sys.executable} ranks.py {name} &\n"
        for name in "ab"
    )
    codes, lines, errors = run(tmp_path, f"cd {tmp_path}\n{script}wait", nodes=nodes)
    size = 2 * nodes
    said = [f"{name} {size} {sum(range(size))} read" for name in "ab" for _ in range(size)]
    assert (codes, sorted(filter(None, lines))) == ([0] * nodes, said), errors


def test_tasks_have_the_variables_that_a_step_exports(tmp_path: Path) -> None:
    script = (
        'export A=1 B=2\nsay() { srun -N1 -n1 "$@" sh -c '
        "'echo $A,$B,$C,$HOME. $SLURM_PROCID ${FAIRLEAD_INDEX+member}'; }\n"
        "HOME=/h\nsay --export=ALL,C='x y'\nsay --export=B,C=\"'3,4'\"\nsay --export=none\nsay\n"
    )
    codes, lines, errors = run(tmp_path, script)
    assert (codes, errors) == ([0, 0], "")
    assert lines == sorted([
        "1,2,x y,/h. 0 member", ",2,3,4,. 0 member", ",,,. 0 member", "1,2,,/h. 0 member",
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("srun", "no program is given"),
        ("srun -N 3 true", "the step asks for 3 nodes, 2 can be used"),
        ("srun -w elsewhere true", "'elsewhere' is no node of this job"),
        ("srun --frobnicate true", "'--frobnicate' is not an option of srun"),
        ("srun -n1 -i absent true", "No such file"),
        ("srun --mpi=openmpi ./a.out", "srun has none, pmi2, pmix"),
        ("srun -n x true", "'x' is not a whole number"),
        ("env -u FAIRLEAD_STEPS srun true", "this is no batch script"),
        ("srun --multi-prog absent", "No such file"),
        ("scontrol show job 3", "in a job this is only"),
    ],
)
def test_what_no_step_can_be_is_refused(tmp_path: Path, command: str, said: str) -> None:
    codes, lines, errors = run(tmp_path, f"{command}\necho code $?")
    assert (codes, lines) == ([0, 0], ["code 1"])
    assert said in errors


def test_srun_says_which_options_it_reads(tmp_path: Path) -> None:
    codes, lines, _ = run(tmp_path, "srun --help && srun --usage | head -n 1", nodes=1)
    assert codes == [0]
    assert {"Usage: srun [OPTIONS] PROGRAM [ARGS]", "  -n, --ntasks"} <= set(lines)


def test_the_names_of_nodes_are_shown(tmp_path: Path) -> None:
    codes, lines, _ = run(tmp_path, "scontrol show hostnames; scontrol show hostname n[1-2]")
    assert (codes, lines) == ([0, 0], ["127.0.0.1", "127.0.0.2", "n1", "n2"])


def test_tasks_see_all_gpus_unless_they_are_shared_out(tmp_path: Path) -> None:
    script = (
        "srun -n2 -N1 sh -c 'echo all $CUDA_VISIBLE_DEVICES'\n"
        "srun -n2 -N1 --gpus-per-task=2 sh -c 'echo own $CUDA_VISIBLE_DEVICES'"
    )
    _, lines, _ = run(tmp_path, script, nodes=1, CUDA_VISIBLE_DEVICES="4,5,6,7", tasks="2")
    assert lines == ["all 4,5,6,7", "all 4,5,6,7", "own 4,5", "own 6,7"]


def test_all_tasks_read_what_srun_reads_byte_for_byte(tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(os.urandom(3 << 20))
    script = (
        "srun -n3 sha256sum < input\nsrun -n2 --input=1 wc -c < input\n"
        "srun -n2 -i input sh -c 'head -c 9 | wc -c'\nsrun -n1 -i none wc -c < input\n"
        "srun -n1 sh -c 'exec cat /dev/stdin' <<< here\nsrun -n1 true < input; sha256sum < input"
    )
    codes, lines, errors = run(tmp_path, script, tasks="2,1")
    digest = hashlib.sha256((tmp_path / "input").read_bytes()).hexdigest()
    assert (codes, errors) == ([0, 0], "")
    assert lines == sorted([*[f"{digest}  -"] * 4, "0", str(3 << 20), "9", "9", "0", "here"])


def test_a_task_with_a_terminal_has_its_size_its_keys_and_its_session(tmp_path: Path) -> None:
    """Where srun has no terminal itself, its input is typed, and Ctrl-D at its end."""
    script = (
        "printf 'first\\nsecond' | srun --pty -N1 -n1 -w 127.0.0.2 sh -c '"
        'echo "<$(tty) $(stty size)>"; cat; echo "<$FAIRLEAD_INDEX>"; nohup sleep 1000 & '
        "echo \"<$!>\"; exit 3'\necho code $?\nsrun --pty -n2 sh -c 'echo only $SLURM_PROCID'"
    )
    codes, out, errors = ends(job(tmp_path, script))
    assert codes == [0, 0]
    shown, on, left = re.findall("<(.*)>", out)
    assert shown.startswith("/dev/pts/")
    assert shown.endswith(" 24 80")
    assert on == "1"
    assert out.count("first") == out.count("second") == 2  # the terminal echoes
    assert out.endswith("code 3\nonly 0\n")
    assert errors == "srun: error: task 0: Exited with exit code 3\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int(left), 0)


def test_a_terminal_of_srun_is_that_of_its_task_and_is_as_it_was_afterwards(
    tmp_path: Path,
) -> None:
    ours, theirs = pty.openpty()
    size(ours, 31, 97)
    before = termios.tcgetattr(theirs)
    path = os.ttyname(theirs)
    inner = (
        'trap "echo caught" INT; stty size; until [ "$(stty size)" = "40 100" ]; do sleep 0.05; '
        "done; read line; echo got $line; exit 7"
    )
    script = f"srun --pty -N1 -n1 -w 127.0.0.2 sh -c '{inner}' < {path} > {path}; echo code $?"
    members = job(tmp_path, script)
    until(ours, b"31 97")
    os.write(ours, b"\x03")
    until(ours, b"caught")
    size(ours, 40, 100)
    [srun] = [
        int(line.split()[0])
        for line in subprocess.run(
            ["pgrep", "-af", "fairlead.member.srun --pty"], capture_output=True, text=True,
            check=True,
        ).stdout.splitlines()
        if str(tmp_path) in Path(f"/proc/{line.split()[0]}/environ").read_text()
    ]  # fmt: skip
    os.kill(srun, signal.SIGWINCH)  # it is none of the terminal's session
    os.write(ours, b"typed\r")
    until(ours, b"got typed")
    codes, out, _ = ends(members)
    assert (codes, out) == ([0, 0], "code 7\n")
    assert termios.tcgetattr(theirs) == before


def size(descriptor: int, rows: int, columns: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def until(descriptor: int, text: bytes) -> None:
    """Read a terminal until it shows a text."""
    shown = b""
    while text not in shown:
        assert select.select([descriptor], [], [], PATIENCE_SECONDS)[0], shown
        shown += os.read(descriptor, 65536)
