"""salloc, and what is done in an allocation: srun and sbcast from what is no batch script."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.e2e.disaster_world import kill, processes_of
from tests.e2e.slurm_world import Tools
from tests.e2e.test_interactive import Terminal, until_gone
from tests.patience import PATIENCE_SECONDS
from tests.unit.member.test_launchers import LIGHTNING

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("slurm-tools")]


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    shell = Shell(tmp_path_factory.mktemp("salloc"))
    shell.up("--nodes", "1", "--listen", "127.0.0.1:0")
    try:
        yield Tools(shell, forked=False)
    finally:
        shell.down()
        kill(processes_of(shell.data))


@pytest.fixture(scope="module")
def forked(tools: Tools) -> Tools:
    """The same tools for the words of one command, without a process that imports all of it."""
    return Tools(tools.shell)


def test_a_command_of_salloc_starts_tasks_on_all_nodes_and_its_end_releases_them(
    tools: Tools,
) -> None:
    (tools.root / "table").write_text("copied\n")
    inner = (
        "sbcast table there && srun -inone -n4 sh -c 'echo $SLURM_PROCID/$SLURM_NTASKS on "
        "$SLURM_NODEID'; srun -N1 -n1 -inone cat there; "
        "echo $SLURM_NNODES nodes, step $SLURM_STEP_ID., given $(cat)"
    )
    done = tools.run("salloc", "-N2", "sh", "-c", inner, stdin="text")
    number = done.err.split("Granted job allocation ")[1].split()[0]
    assert sorted(done.out.splitlines()) == [
        "0/4 on 0", "1/4 on 0", "2 nodes, step ., given text", "2/4 on 1", "3/4 on 1", "copied",
    ]  # fmt: skip
    assert done.err.endswith(f"salloc: Relinquishing job allocation {number}\n")
    assert tools.queue("-j", number) == []
    form = ("-X", "-n", "-P", "-o", "JobName,State,NNodes")
    assert tools.run("sacct", *form, "-j", number).out == "sh|COMPLETED|1\n"
    failed = tools.run("salloc", "-Q", "srun", "sh", "-c", "exit 5", code=5)
    assert failed.err == "srun: error: task 0: Exited with exit code 5\n"


def test_a_shell_of_salloc_has_the_terminal_and_scancel_ends_it_with_its_steps(
    tools: Tools,
) -> None:
    terminal = Terminal(tools, "salloc", "-N2")
    terminal.until(b"Granted job allocation")
    terminal.type(b"stty size; srun -l sh -c 'echo has $RANK'; echo na'me' $SLURM_JOB_NAME.\n")
    for text in (b"31 97", b"0: has 0", b"1: has 1", b"name interactive."):
        terminal.until(text)
    terminal.resize(40, 100)
    terminal.process.send_signal(signal.SIGWINCH)
    terminal.type(b"until [ \"$(stty size)\" = '40 100' ]; do :; done; echo re'sized'\n")
    terminal.until(b"resized")
    terminal.type(b"srun -N1 -n1 sh -c 'echo pid=$$=; exec sleep 1000'\n")
    terminal.until(b"=\r\n")
    pid = int(terminal.shown.rsplit(b"pid=", 1)[1].split(b"=")[0])
    [number] = tools.queue(form="%i")
    tools.run("scancel", number)
    assert terminal.end() != 0
    until_gone(pid)
    eventually(lambda: tools.queue("-t", "all", "-j", number), [f"{number} CA"])


def test_a_killed_salloc_leaves_an_allocation_that_attach_goes_on_with(tools: Tools) -> None:
    terminal = Terminal(tools, "salloc", "-N2", "-J", "kept")
    terminal.until(b"Granted job allocation")
    terminal.type(b"x=5; srun -N1 -n1 sh -c 'echo pid=$$=; exec sleep 1000'\n")
    terminal.until(b"=\r\n")
    terminal.process.send_signal(signal.SIGKILL)
    terminal.process.wait(PATIENCE_SECONDS)
    again = Terminal(tools.shell, "attach", "kept")
    again.until(b"=\r\n")
    pid = int(again.shown.rsplit(b"pid=", 1)[1].split(b"=")[0])
    again.type(b"\x03")
    until_gone(pid)
    again.type(b"srun -l sh -c 'echo has $RANK'; exit $x\n")
    again.until(b"1: has 1")
    assert again.end() == 5
    eventually(tools.queue, [])


def test_ranks_of_lightning_are_those_of_the_steps_of_an_allocation(tools: Tools) -> None:
    """It says so where an allocation has tasks, and not how many a node has."""
    (tools.root / "fit.py").write_text(LIGHTNING.replace("= 4, 2", "= 1, 2"))
    fit = ("srun", sys.executable, "-S", "fit.py")
    done = tools.run("salloc", "-Q", "-N2", "--ntasks-per-node=1", *fit)
    found = sorted(line.split()[:3] for line in done.out.splitlines())
    assert found == [["0", "0", "0"], ["1", "0", "1"]]
    failed = tools.run("salloc", "-Q", "-n2", *fit, code=1)
    assert "set `ntasks-per-node` instead" in failed.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--no-shell",), "an allocation ends with its command"),
        (("-I10", "true"), "--test-only"),
        (("--array=1-3", "true"), "--array is an option of sbatch"),
        (("--frobnicate", "true"), "--frobnicate is not an option"),
        (("--bb=x", "true"), "there are no burst buffers"),
        (("-N99", "true"), "99 members"),
    ],
)
def test_what_no_allocation_can_be_is_refused_with_what_to_do(
    forked: Tools, words: tuple[str, ...], said: str
) -> None:
    assert said in forked.run("salloc", *words, code=1).err
    assert forked.queue() == []


def test_variables_of_salloc_give_options_a_value_and_those_of_sbatch_do_not(tools: Tools) -> None:
    done = tools.run(
        "salloc", "true", SALLOC_TIMELIMIT="00:07:00", SBATCH_TIMELIMIT="1", SBATCH_JOB_NAME="no"
    )
    number = done.err.split("Granted job allocation ")[1].split()[0]
    form = ("-X", "-n", "-P", "-o", "JobName,Timelimit", "-j", number)
    eventually(lambda: tools.run("sacct", *form).out, "true|00:07:00\n")


def test_srun_by_itself_starts_tasks_in_an_allocation_of_its_own(tools: Tools) -> None:
    tasks = "read word; echo $word $SLURM_PROCID/$SLURM_NTASKS on $SLURM_NODEID $LR; exit 3"
    done = tools.run(
        "srun", "-l", "-N2", "-n2", "--mem=64M", "-t", "5", "-J", "alone", "-p", "all",
        "--export=ALL,LR=0.1", "sh", "-c", tasks, stdin="read\n", code=3,
    )  # fmt: skip
    assert sorted(done.out.splitlines()) == ["0: read 0/2 on 0 0.1", "1: read 1/2 on 1 0.1"]
    number = done.err.split("srun: job ")[1].split()[0]
    assert f"srun: job {number} has been allocated resources\n" in done.err
    form = ("-X", "-n", "-P", "-o", "JobName,State,ExitCode,Timelimit", "-j", number)
    eventually(lambda: tools.run("sacct", *form).out, "alone|FAILED|3:0|00:05:00\n")
    quiet = tools.run(
        "srun", "-Q", "-n1", "-o", "task-%t.out", "echo", "written", SLURM_TIMELIMIT="9"
    )
    assert (quiet.out, quiet.err) == ("", "")
    assert (tools.root / "task-0.out").read_text() == "written\n"
    assert tools.run("srun", "--mpi=list").out.split()[-3:] == ["none", "pmi2", "pmix"]


def test_srun_with_a_terminal_has_it_for_its_first_task_and_goes_with_it(tools: Tools) -> None:
    terminal = Terminal(tools, "srun", "-n1", "--pty", "bash", "--norc")
    terminal.until(b"has been allocated resources")
    terminal.type(b"stty size; echo ta'sk' $SLURM_PROCID of $SLURM_NTASKS $TERM\n")
    for text in (b"31 97", b"task 0 of 1 xterm"):
        terminal.until(text)
    terminal.resize(40, 100)
    terminal.process.send_signal(signal.SIGWINCH)
    terminal.type(b"until [ \"$(stty size)\" = '40 100' ]; do :; done; echo re'sized'\n")
    terminal.until(b"resized")
    terminal.type(b"sleep 1000\n")
    terminal.type(b"\x03")  # ends the program, not the shell
    terminal.type(b"sleep 1000 & echo pid=$!=; echo st'ill'\n")
    terminal.until(b"still")
    pid = int(terminal.shown.rsplit(b"pid=", 1)[1].split(b"=")[0])
    terminal.type(b"exit 7\n")
    assert terminal.end() == 7
    until_gone(pid)
    eventually(tools.queue, [])


def test_a_terminal_in_an_allocation_is_on_the_node_that_is_named(tools: Tools) -> None:
    terminal = Terminal(tools, "salloc", "-N2")
    terminal.until(b"Granted job allocation")
    terminal.type(
        b"srun --pty -N1 -n1 -r1 sh -c 'tty; echo index=$FAIRLEAD_INDEX; read a; exit $a'\n"
    )
    terminal.until(b"index=1")
    terminal.type(b"5\n")
    terminal.until(b"Exited with exit code 5")  # what is typed before is for the task
    terminal.type(b"echo code=$?; stty -a | grep -ow echo; exit\n")
    terminal.until(b"code=5")
    terminal.until(b"\necho\r")  # the terminal is as it was
    assert terminal.end() == 0


def test_a_command_joins_a_job_that_runs_by_its_number(tools: Tools) -> None:
    number = str(tools.submit("#!/bin/sh\nsleep 1000\n", "-J", "joined"))
    eventually(lambda: tools.queue("-j", number), [f"{number} R"])
    [node] = tools.queue("-j", number, form="%B")
    words = ("srun", "--jobid", number, "--overlap", "-w", node)
    done = tools.run(*words, "sh", "-c", "echo $SLURM_JOB_ID $(cat); exit 4", stdin="in", code=4)
    assert done.out == f"{number} in\n"
    terminal = Terminal(tools, *words, "--pty", "sh", "-c", "tty; echo job=$SLURM_JOB_NAME")
    terminal.until(b"job=joined")
    assert terminal.end() == 0
    for more, said in (("-n2", "exec JOB --all"), ("-wgone", "none of the nodes gone")):
        assert said in tools.run("srun", f"--jobid={number}", more, "true", code=1).err
    tools.run("scancel", number)
    eventually(lambda: tools.queue("-j", number), [])
    assert "Invalid job id" in tools.run("srun", "--jobid=99999", "true", code=1).err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-N99", "true"), "99 members"),
        (("--frobnicate", "true"), "--frobnicate"),
        (("--mpi=openmpi", "true"), "srun has none, pmi2, pmix"),
        (("-I", "true"), "--test-only"),
        (("-n2",), "no program is given"),
        (("--bb=x", "true"), "there are no burst buffers"),
    ],
)
def test_what_srun_cannot_have_is_refused_before_anything_is_queued(
    forked: Tools, words: tuple[str, ...], said: str
) -> None:
    assert said in forked.run("srun", *words, code=1).err
    assert forked.queue() == []
