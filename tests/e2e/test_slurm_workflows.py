"""Arrays as programs for workflows send them to Slurm and follow them, on real processes.

The command lines are those of the programs: Snakemake's plugin for Slurm 2.8
(`submit_string.py`, `job_status_query.py`), and the cluster functions of batchtools 0.9.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.e2e.disaster_world import kill, processes_of
from tests.e2e.slurm_world import SLEEP, Tools

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("slurm-workflows")]

RUN = "6f1d3b52-run"
GREEDY = f"""#!/bin/sh
[ "$SLURM_ARRAY_TASK_ID" = 3 ] || exit 0
exec {sys.executable} -c 'import time; block = bytearray(256 << 20); time.sleep(100)'
"""
ENDED = {"COMPLETED", "OUT_OF_MEMORY", "FAILED"}
QUEUED, ON_NODES = "--states=PD,CF,RF,RH,RQ", "--states=R,S,CG,RS,SI,SO,ST"


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[Tools]:
    shell = Shell(tmp_path)
    shell.up("--listen", "127.0.0.1:0")
    try:
        yield Tools(shell)
    finally:
        shell.down()
        kill(processes_of(shell.data))


def at(instant: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(instant))


def test_a_workflow_follows_the_tasks_of_its_array_by_the_name_of_the_run(tools: Tools) -> None:
    submitted = tools.run(
        "sbatch", "--parsable", "--job-name", RUN, "--output", "logs/%a.log", "--export=ALL",
        "--comment", "rule_align", "-t", "10", "--mem", "64", "--ntasks=1", "--cpus-per-task=1",
        "-D", str(tools.shell.root), "--array=1-4", "/dev/stdin", stdin=GREEDY,
    )  # fmt: skip
    number = submitted.out.strip()
    tasks = [f"{number}_{index}" for index in range(1, 5)]
    plain = ("sbatch", "--parsable", "--job-name", RUN, "--cpus-per-task=1", "--wrap=true")
    jobs = [tools.run(*plain).out.strip() for _ in range(16)]

    def listed() -> dict[str, str]:
        out = tools.run("squeue", "--format=%i|%T", "--states=all", "--noheader", "--name", RUN).out
        return dict(line.split("|") for line in out.split())

    eventually(lambda: [listed().get(each) in ENDED for each in (*tasks, *jobs)], [True] * 20)
    wanted = dict.fromkeys((*tasks, *jobs), "COMPLETED") | {f"{number}_3": "OUT_OF_MEMORY"}
    assert listed() == wanted
    by_name = (
        "sacct", "-X", "--parsable2", "--clusters", "all", "--noheader",
        "--starttime", at(time.time() - 2 * 86_400)[:14] + "00", "--endtime", "now",
    )  # fmt: skip
    rows = tools.run(*by_name, "--format=JobIdRaw,State", "--name", RUN).out.split()
    assert sorted(row.split("|")[1] for row in rows) == sorted(wanted.values())
    assert len({row.split("|")[0] for row in rows}) == 20
    ids = tools.run(*by_name, "--format=JobID,State", "--name", RUN).out.split()
    assert dict(row.split("|") for row in ids) == wanted
    assert tools.run(*by_name, "--format=JobIdRaw,State", "--name", "another-run").out == ""


def test_a_task_that_began_before_the_window_is_shown_while_it_runs_and_not_after(
    tools: Tools,
) -> None:
    """A run over midnight asks from the start of the day on."""
    array = tools.submit(SLEEP, "--array=0-1", "-J", RUN)
    both = [f"{array}_0 R", f"{array}_1 R"]
    eventually(lambda: tools.queue("-r", "-j", str(array)), both)

    def since(instant: float) -> list[str]:
        form = ("-X", "-n", "-P", "-o", "JobID,State", "--name", RUN)
        return tools.run("sacct", *form, "-S", at(instant), "-E", "now").out.split()

    begun = time.time()
    eventually(lambda: time.time() > begun + 1, expected=True)  # sacct has no fractions
    midnight = time.time()
    assert since(midnight) == [f"{array}_0|RUNNING", f"{array}_1|RUNNING"]
    tools.run("scancel", f"{array}_0")
    eventually(lambda: tools.queue("-r", "-j", str(array)), both[1:])
    assert sorted(since(midnight)) == [f"{array}_0|CANCELLED", f"{array}_1|RUNNING"]
    eventually(lambda: since(time.time()), [f"{array}_1|RUNNING"])


def test_a_task_that_is_queued_again_is_listed_as_queued_or_on_its_node_all_the_time(
    tools: Tools,
) -> None:
    array = tools.submit(SLEEP, "--array=1-2", "-J", "registry")
    task = f"{array}_1"

    def ids(states: str) -> list[str]:
        user = tools.run("id", "-un").out.strip()
        words = ("--noheader", "--format=%i", f"--user={user}", states, "-r", "--clusters=")
        return tools.run("squeue", *words).out.split()

    eventually(lambda: ids(ON_NODES), [f"{array}_1", f"{array}_2"])
    tools.run("scontrol", "requeue", task)

    def restarts() -> str:
        assert task in ids(f"{QUEUED},{ON_NODES.partition('=')[2]}")
        shown = tools.run("scontrol", "-o", "show", "job", task).out
        return shown.partition("Restarts=")[2].split()[0]

    eventually(restarts, "1")
    eventually(lambda: ids(ON_NODES), [f"{array}_1", f"{array}_2"])
    tools.run("scancel", "--clusters=", str(array))
    eventually(lambda: ids(f"{QUEUED},{ON_NODES.partition('=')[2]}"), [])
