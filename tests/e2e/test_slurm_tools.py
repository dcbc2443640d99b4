"""Slurm's commands on a cluster of real processes, as people and strangers' programs call them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.e2e.disaster_world import kill, processes_of
from tests.e2e.slurm_world import SLEEP, Tools
from tests.patience import PATIENCE_SECONDS

from fairlead.cli.script.slurm_names import COMMANDS

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("slurm-tools")]

#: Lines that contradict each other, values that are not filled in, and what there is not.
BAD = """#!/bin/sh
#SBATCH --job-name=bad --mem=4G
#SBATCH --mem-per-cpu=1G
#SBATCH --ntasks=<tasks>
#SBATCH --constraint=     # your nodes
#SBATCH --bb=capacity=1G
true
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("slurm-tools"))
    shell.up("--nodes", "3", "--listen", "127.0.0.1:0")
    try:
        yield shell
    finally:
        shell.down()
        kill(processes_of(shell.data))


@pytest.fixture
def tools(cluster: Shell) -> Iterator[Tools]:
    tools = Tools(cluster)
    yield tools
    tools.run("scancel", *tools.queue(form="%A"), code=None)
    eventually(tools.queue, [])


def test_a_script_is_queued_from_a_file_from_stdin_and_by_wrap_and_only_its_number_is_said(
    tools: Tools,
) -> None:
    (tools.shell.root / "train.sh").write_text("#!/bin/sh\n#SBATCH --job-name=cpu-imdb -N1\ntrue\n")
    said = tools.run("sbatch", "train.sh").out
    assert re.fullmatch(r"Submitted batch job \d+\n", said)
    for words, given in (
        (("sbatch", "--parsable"), "#!/bin/sh\ntrue\n"),
        (("sbatch", "--parsable", "/dev/stdin"), "#!/bin/sh\ntrue\n"),
        (("sbatch", "--parsable", "--wrap", "true"), ""),
        (("sbatch", "--parsable", "--wrap=true", "-J", "x", "-t", "00:30:00", "-N1"), ""),
    ):
        assert re.fullmatch(r"\d+\n", tools.run(*words, stdin=given).out), words


def test_a_script_without_an_interpreter_is_refused_before_queueing_in_the_words_of_slurm(
    tools: Tools,
) -> None:
    refused = tools.run("sbatch", stdin="# Copyright\n#!/bin/sh\ntrue\n", code=1)
    assert refused.out == ""
    assert refused.err.splitlines()[0] == (
        "sbatch: error: This does not look like a batch script.  The first"
    )
    assert "Unable to open file gone.sh" in tools.run("sbatch", "gone.sh", code=1).err
    assert "Batch script is empty!" in tools.run("sbatch", code=1).err
    wrong = tools.run("sbatch", "--frobnicate=1", "--wrap", "true", code=1)
    assert "sbatch: error: " in wrong.err
    assert "--frobnicate" in wrong.err
    several = tools.run("sbatch", stdin=BAD, code=1)
    for word in ("--mem-per-cpu contradict", "<tasks>", "--constraint needs", "--bb cannot"):
        assert word in several.err
    assert (several.out, tools.queue("-n", "bad")) == ("", [])


def test_sbatch_with_wait_ends_with_the_exit_code_of_the_job(tools: Tools) -> None:
    ended = tools.run("sbatch", "--wait", "--parsable", "--wrap", "exit 7", code=7)
    assert ended.out.strip().isdigit()
    tools.run("sbatch", "-W", "--wrap", "true")
    tools.run("sbatch", "-W", "--array=0-2", "--wrap", "exit $SLURM_ARRAY_TASK_ID", code=1)


def test_squeue_shows_states_reasons_and_nodes_and_forgets_what_ended(tools: Tools) -> None:
    running, held = tools.submit(SLEEP, "-J", "busy"), tools.submit(SLEEP, "-J", "held", "-H")
    eventually(lambda: tools.queue("-j", f"{running},{held}"), [f"{running} R", f"{held} PD"])
    [line] = tools.queue("-j", str(running), form="%T %B %R %j %D %l %P")
    host = line.split()[1]
    assert re.fullmatch(r"[\w.-]+", host)
    assert line.split() == ["RUNNING", host, host, "busy", "1", "UNLIMITED", "all"]
    [job] = json.loads(tools.run("squeue", "--json", "-n", "busy").out)["jobs"]
    assert (job["job_id"], job["job_state"], job["batch_host"]) == (running, ["RUNNING"], host)
    [line] = tools.queue("-j", str(held), form="%.5i|%.2t|%-8j|%R")
    assert line.endswith("|(JobHeldUser)")
    assert tools.queue("--name", "busy,nothing") == [f"{running} R"]
    assert tools.queue("--states=PD", "-n", "held") == [f"{held} PD"]
    tools.run("scontrol", "release", str(held))
    eventually(lambda: tools.queue("-j", str(held)), [f"{held} R"])
    tools.run("scancel", str(running), str(held))
    shown = f"{running} CA"
    eventually(lambda: shown in tools.queue("-t", "all"), True)
    assert shown not in tools.queue(), "what has ended is shown where it is asked for"
    unknown = tools.run("squeue", "-h", "-j", "999999", code=1)
    assert unknown.err == "slurm_load_jobs error: Invalid job id specified\n"


def test_squeue_has_the_header_that_programs_read_and_the_long_names_with_any_suffix(
    tools: Tools,
) -> None:
    number = tools.submit(SLEEP, "-J", "named")
    eventually(lambda: tools.queue("-j", str(number)), [f"{number} R"])
    header = tools.run("squeue").out.splitlines()[0].split()
    assert header == ["JOBID", "PARTITION", "NAME", "USER", "ST", "TIME", "NODES",
                      "NODELIST(REASON)"]  # fmt: skip
    wide = "JobArrayID:\x1f,Name:\x1f,State:\x1f,tres-per-node:\x1f"
    lines = tools.run("squeue", "--all", "--noconvert", "-j", str(number), "-O", wide).out
    names, values = (line.split("\x1f")[:-1] for line in lines.rstrip("\n").split("\n"))
    assert names == ["JOBARRAYID", "NAME", "STATE", "TRES_PER_NODE"]
    assert values == [str(number), "named", "RUNNING", "N/A"]
    padded = tools.run("squeue", "-h", "-j", str(number), "-O", "JobID:8,Name:.8,State:4").out
    assert padded == f"{number:<8}   namedRUNN\n"
    form = tools.run("squeue", "-h", "-j", str(number), SQUEUE_FORMAT="%i;%j").out
    assert form == f"{number};named\n"
    assert "%" not in tools.run("squeue", "-o", "%?", code=1).out
    tools.run("scancel", str(number))


def test_an_array_is_folded_expanded_throttled_and_cancelled_by_element(tools: Tools) -> None:
    array = tools.submit(SLEEP, "--array=1-12%2", "-J", "sweep")
    pending = f"{array}_[3-12%2] PD"
    eventually(lambda: tools.queue("-j", str(array)),
               [pending, f"{array}_1 R", f"{array}_2 R"])  # fmt: skip
    [line] = tools.queue("-j", str(array), "-t", "PD", form="%i %R %K %F")
    assert line == f"{array}_[3-12%2] (JobArrayTaskLimit) [3-12%2] {array}"
    expanded = tools.queue("-r", "-j", str(array), form="%i")
    assert sorted(expanded) == sorted(f"{array}_{index}" for index in range(1, 13))
    tools.run("scontrol", "update", f"JobId={array}", "ArrayTaskThrottle=3")
    eventually(lambda: f"{array}_[3-12%3] PD" in tools.queue("-j", str(array)), True)
    tools.run("scancel", f"{array}_[5-12]", f"{array}_1")
    eventually(lambda: tools.queue("-j", f"{array}_1", "-t", "R"), [])
    raw = tools.queue("-j", f"{array}_2", form="%A")
    tools.run("scancel", "--clusters=", raw[0])
    eventually(lambda: tools.queue("-j", f"{array}_2", "-t", "R"), [])
    tools.run("scancel", str(array))
    eventually(lambda: tools.queue("-j", str(array)), [])
    states = tools.run("sacct", "-X", "-n", "-P", "-o", "JobID,State", "-j", str(array)).out
    assert f"{array}_2|CANCELLED\n" in states


def test_the_limit_of_an_array_is_raised_while_it_runs_and_each_task_has_its_own_log(
    tools: Tools,
) -> None:
    gate, logs = tools.shell.root / "gate", tools.shell.root / "logs"
    script = (
        "#!/bin/bash\n#SBATCH --array=1-6%1\n#SBATCH --output=logs/%A_%a.out\n"
        f'until [ -e "{gate}" ]; do sleep 0.1; done\n'
        'echo "task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT"\n'
    )
    array = tools.submit(script, "-J", "throttled")

    def running() -> int:
        return len(tools.queue("-j", str(array), "-t", "R"))

    eventually(running, 1)
    tools.run("scontrol", "update", f"JobId={array}", "ArrayTaskThrottle=2")
    eventually(running, 2)
    assert tools.queue("-j", str(array), "-t", "PD") == [f"{array}_[3-6%2] PD"]
    gate.touch()
    eventually(lambda: tools.queue("-j", str(array)), [])
    written = {path.name: path.read_text() for path in logs.iterdir()}
    assert written == {f"{array}_{n}.out": f"task {n} of 6\n" for n in range(1, 7)}


def restarts(tools: Tools, task: str) -> str:
    """Return how often a job or task has begun again, as scontrol shows it."""
    shown = tools.run("scontrol", "-o", "show", "job", task).out
    return shown.partition("Restarts=")[2].split()[0]


def test_a_task_that_is_at_its_limit_requeues_itself_and_goes_on_from_its_checkpoint(
    tools: Tools,
) -> None:
    """As submitit and Lightning do it: of the task alone, which ends by itself meanwhile."""
    script = (
        "#!/bin/bash\n#SBATCH --array=0-1\n#SBATCH --output=logs/%A_%a.out\n"
        "#SBATCH --open-mode=append\n"
        'task="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" saved="saved_$SLURM_ARRAY_TASK_ID"\n'
        'echo "run $SLURM_RESTART_COUNT from $(cat "$saved" 2>/dev/null || echo 0)"\n'
        '[ "$SLURM_ARRAY_TASK_ID" = 1 ] || exit 0\n'
        '[ "$SLURM_RESTART_COUNT" = 0 ] || exit 0\n'
        'echo 7 > "$saved"\nscontrol requeue "$task" && echo queued\n'
    )
    array = tools.submit(script, "-J", "checkpointed")
    eventually(lambda: tools.queue("-j", str(array)), [])
    logs = tools.shell.root / "logs"
    assert (logs / f"{array}_0.out").read_text() == "run 0 from 0\n"
    first, *_, last = (logs / f"{array}_1.out").read_text().splitlines()
    assert (first, last) == ("run 0 from 0", "run 1 from 7")
    states = tools.run("sacct", "-X", "-n", "-P", "-o", "JobID,State", "-j", str(array)).out
    assert sorted(states.split()) == [f"{array}_0|COMPLETED", f"{array}_1|COMPLETED"]


def test_what_waits_is_not_queued_again(tools: Tools) -> None:
    number = tools.submit(SLEEP, "-J", "waiting", "-H")
    refused = tools.run("scontrol", "requeue", str(number), code=1)
    assert "Job is pending execution" in refused.err
    tools.run("scancel", str(number))


def test_a_task_that_is_queued_again_stays_known_under_its_id(tools: Tools) -> None:
    array = tools.submit(SLEEP, "--array=0-1", "-J", "again")
    both = [f"{array}_0 R", f"{array}_1 R"]
    eventually(lambda: tools.queue("-r", "--clusters=", "-j", str(array)), both)
    tools.run("scontrol", "requeue", f"{array}_1")
    seen: list[str] = []

    def looked_at() -> str:
        seen.extend(tools.queue("-r", "-j", f"{array}_1", form="%i"))
        return restarts(tools, f"{array}_1")

    eventually(looked_at, "1")
    assert set(seen) == {f"{array}_1"}
    eventually(lambda: tools.queue("-r", "-j", str(array)), both)


def test_sacct_tells_ends_apart_and_never_cuts_what_has_room(tools: Tools) -> None:
    good = tools.submit("#!/bin/sh\ntrue\n", "-J", "good")
    bad = tools.submit("#!/bin/sh\nexit 3\n", "-J", "bad")
    late = tools.submit(SLEEP, "-t", "00:00:02", "-J", "late")
    gone = tools.submit("#!/bin/bash\ntrap 'exit 0' EXIT\nsleep 1000 & wait\n", "-J", "gone")
    ids = f"{good},{bad},{late},{gone}"
    eventually(lambda: tools.queue("-j", str(gone)), [f"{gone} R"])
    tools.run("scancel", str(gone))
    ends = [f"{good}|COMPLETED|0:0", f"{bad}|FAILED|3:0", f"{late}|TIMEOUT|0:15",
            f"{gone}|CANCELLED|0:15"]  # fmt: skip

    def shown() -> list[str]:
        words = ("sacct", "-X", "-n", "-P", "-o", "JobID,State,ExitCode", "-j", ids)
        return [re.sub(r"\|\d+:\d+$", "", line) for line in tools.run(*words).out.splitlines()]

    eventually(shown, [re.sub(r"\|\d+:\d+$", "", line) for line in ends])
    padded = tools.run(
        "sacct", "-X", "--noheader", "--format=jobid,state%20", "--job", f"{good},{gone}"
    )
    assert [len(line) for line in padded.out.splitlines()] == [12 + 1 + 20 + 1] * 2
    assert "+" not in padded.out
    table = tools.run("sacct", "-j", str(bad), "-j", str(good), "--parsable2",
                      "-o", "JobID,State,NodeList").out.splitlines()  # fmt: skip
    assert table[0] == "JobID|State|NodeList"
    assert [line.split("|")[0] for line in table[1:]] == [
        str(good), f"{good}.batch", str(bad), f"{bad}.batch",
    ]  # fmt: skip
    assert "None assigned" not in table[1]
    since = time.strftime("%Y-%m-%dT%H:00", time.localtime(time.time() - 3600))
    named = tools.run("sacct", "-X", "--parsable2", "--clusters", "all", "--noheader",
                      "--format=JobIdRaw,State", "--starttime", since, "--endtime", "now",
                      "--name", "bad", TZ=os.environ.get("TZ", "UTC")).out  # fmt: skip
    assert named == f"{bad}|FAILED\n"
    assert tools.run("sacct", "-n", "-X", "-s", "TO", "-o", "JobName", "-j", ids).out.split() == [
        "late"
    ]
    [job] = json.loads(tools.run("sacct", "--json", "-j", str(bad)).out)["jobs"]
    assert job["exit_code"]["return_code"]["number"] == 3
    assert "Invalid field requested" in tools.run("sacct", "-o", "nonsense", code=1).err


def test_scancel_says_which_id_is_wrong_and_what_is_no_signal(tools: Tools) -> None:
    assert "No job identification" in tools.run("scancel", code=1).err
    assert "Invalid job id" in tools.run("scancel", "999999", code=1).err
    assert "Invalid job id" in tools.run("scancel", "train-1", code=1).err
    number = tools.submit(SLEEP, "-J", "signalled")
    said = tools.run("scancel", str(number), "--signal", "USR3", code=1).err
    assert said == "scancel: error: Unknown job signal: USR3\n"
    eventually(lambda: tools.queue("-j", str(number)), [f"{number} R"])
    for signal in ("USR1", "TERM"):
        assert "it has no steps" in tools.run("scancel", str(number), "-s", signal, code=1).err
    tools.run("scancel", "--name", "signalled", "--state=RUNNING", "--me")
    eventually(lambda: tools.queue("-j", str(number)), [])
    assert tools.run("scancel", str(number)).err == "", "what has ended is no error"
    said = tools.run("scancel", str(number), "--signal=USR1", code=1).err
    assert said == f"scancel: error: Kill job error on job id {number}: Invalid job id specified\n"


CATCHES = """\
for n in USR1 USR2; do trap "echo $1 has $n >>signals; [ $n != USR2 ] || exit 0" $n; done
touch "up-$1"; while :; do sleep 0.05; done
"""


def test_scancel_sends_a_signal_to_steps_to_one_of_them_to_the_script_or_to_all(
    tools: Tools,
) -> None:
    (tools.root / "catch").write_text(CATCHES.replace("USR1 USR2", "USR1 USR2 TERM"))
    number = tools.submit(
        "#!/bin/bash\nfor i in 0 1; do srun -n1 bash catch step$i &\n"
        "until [ -e up-step$i ]; do sleep 0.1; done; done; set -- script; . ./catch\n",
        "-J", "stepped",
    )  # fmt: skip
    eventually(lambda: len(list(tools.root.glob("up-*"))), 3)
    signals = tools.root / "signals"

    def reach(names: list[str], *options: str) -> None:
        signals.write_text("")
        tools.run("scancel", *options)
        eventually(lambda: sorted(line.split()[0] for line in signals.open()), names)

    reach(["script"], "--signal=USR1", "-b", str(number))
    reach(["step0", "step1"], str(number), "--signal", "USR1")
    reach(["step0", "step1"], "--signal=TERM", str(number))
    assert tools.queue("-j", str(number)) == [f"{number} R"], "TERM is for the steps"
    reach(["step0"], "-s", "SIGUSR2", f"{number}.0")
    eventually(
        lambda: "completed" in tools.run("scancel", "-s10", f"{number}.0", code=None).err,
        expected=True,
    )
    reach(["step1"], "-s", "10", "--name=stepped", "--me")
    tools.run("scancel", f"{number}.1")
    tools.run("scancel", "--signal=USR2", "--full", str(number))
    eventually(lambda: tools.queue("-t", "all", "-j", str(number)), [f"{number} CD"])


def test_scancel_signals_a_script_without_steps_and_the_elements_of_an_array_that_run(
    tools: Tools,
) -> None:
    (tools.root / "catch").write_text(CATCHES)
    script = "#!/bin/bash\nset -- task$SLURM_ARRAY_TASK_ID\n. ./catch\n"
    number = tools.submit(script, "--array=0-2%2")
    eventually(lambda: len(list(tools.root.glob("up-task*"))), 2)
    tools.run("scancel", "--batch", "-s", "USR2", str(number))
    eventually(
        lambda: tools.queue("-t", "CD,R", "-r", "-j", str(number)),
        [f"{number}_0 CD", f"{number}_1 CD", f"{number}_2 R"],
    )
    assert sorted((tools.root / "signals").read_text().splitlines())[-2:] == [
        "task0 has USR2", "task1 has USR2",
    ]  # fmt: skip


def test_scontrol_shows_jobs_hosts_and_partitions_and_changes_a_running_job(tools: Tools) -> None:
    files = ("-o", "logs/%x-%j.out", "-e", "%j.err", "--comment", "run 7")
    number = tools.submit(SLEEP, "-J", "shown", "-t", "01:00:00", *files)
    eventually(lambda: tools.queue("-j", str(number)), [f"{number} R"])
    text = tools.run("scontrol", "show", "job", str(number)).out
    assert text.startswith(f"JobId={number} JobName=shown\n")
    line = tools.run("scontrol", "-o", "show", "job", str(number)).out
    parts = [word.partition("=") for word in line.split()]
    values = {name: value for name, _, value in parts}
    assert (values["JobState"], values["TimeLimit"]) == ("RUNNING", "01:00:00")
    assert values["StdOut"] == str(tools.root / f"logs/shown-{number}.out")
    assert values["StdErr"] == str(tools.root / f"{number}.err")
    assert "Comment=run 7" in line
    tools.run("scontrol", "update", f"JobId={number}", "TimeLimit=30")
    assert tools.queue("-j", str(number), form="%l") == ["30:00"]
    assert tools.run("scontrol", "requeue", str(number)).out == ""
    eventually(lambda: restarts(tools, str(number)), "1")
    eventually(lambda: tools.queue("-j", str(number)), [f"{number} R"])
    hosts = tools.run("scontrol", "show", "hostnames", "n[01-03],m-0-[7,9]").out.split()
    assert hosts == ["n01", "n02", "n03", "m-0-7", "m-0-9"]
    hosts = tools.run("scontrol", "show", "hostname", SLURM_JOB_NODELIST="v[0-1]").out
    assert hosts == "v0\nv1\n"
    config = tools.run("scontrol", "show", "config").out
    assert re.search(r"^MinJobAge +=.300 sec$", config, re.MULTILINE)
    partition = tools.run("scontrol", "show", "partition", "-o").out.splitlines()[0]
    assert "PartitionName=all" in partition
    assert "Default=YES" in partition
    assert tools.run("sinfo", "-h", "-o", "%P").out.split()[0] == "all*"
    assert "Invalid job id specified" in tools.run("scontrol", "hold", "999999", code=1).err
    tools.run("scancel", str(number))


def test_programs_that_read_json_get_nodes_partitions_jobs_and_the_step_of_the_script(
    tools: Tools,
) -> None:
    number = tools.submit(SLEEP, "-J", "held-up", "-c", "1")
    eventually(lambda: tools.queue("-j", str(number)), [f"{number} R"])

    def asked(*words: str) -> dict[str, Any]:
        return json.loads(tools.run(*words).out)

    [node] = [
        each for each in asked("scontrol", "show", "nodes", "--json")["nodes"]
        if each["alloc_cpus"] > 0
    ]  # fmt: skip
    assert node["state"] in (["MIXED"], ["ALLOCATED"])
    assert node["cpus"] == node["alloc_cpus"] + node["alloc_idle_cpus"]
    assert "all" in node["partitions"]
    assert tools.queue("-j", str(number), form="%N") == [node["name"]]
    [partition] = asked("scontrol", "show", "--json", "partition", "all")["partitions"]
    assert partition["nodes"]["total"] == len(asked("scontrol", "show", "node", "--json")["nodes"])
    [job] = asked("scontrol", "show", "job", str(number), "--json")["jobs"]
    assert (job["name"], job["job_state"]) == ("held-up", ["RUNNING"])
    lines = asked("sinfo", "-p", "all", "--json")["sinfo"]
    [line] = [each for each in lines if node["name"] in each["nodes"]["nodes"]]
    assert line["partition"]["name"] == "all"
    assert line["cpus"]["allocated"] == node["alloc_cpus"]
    assert line["node"]["state"] == node["state"]
    [account] = asked("sacct", "--json", "-j", str(number))["jobs"]
    assert [each["step"]["id"] for each in account["steps"]] == [f"{number}.batch"]


def test_without_a_controller_the_words_are_those_that_programs_wait_on(tools: Tools) -> None:
    away = tools.shell.root / "away"
    away.write_text((tools.shell.data / "kubeconfig").read_text().replace("127.0.0.1", "127.0.0.9"))
    shown = tools.run("squeue", "-h", "-j", "1", code=1, FAIRLEAD_KUBECONFIG=str(away))
    assert shown.err.startswith("slurm_load_jobs error: Unable to contact slurm controller")
    queued = tools.run("sbatch", "--wrap", "true", code=1, FAIRLEAD_KUBECONFIG=str(away))
    assert "Unable to contact slurm controller" in queued.err


def test_a_command_of_a_real_slurm_is_never_replaced(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "squeue").write_text("#!/bin/sh\necho real\n")
    refused = tools.shell.run("slurm", "install", str(tmp_path), code=2)
    assert "exists and is not of Fairlead" in refused.err
    assert {each.name for each in tmp_path.iterdir()} == {"squeue"}
    assert {each.name for each in tools.bin.iterdir()} >= set(COMMANDS)


#: srun passes on the signal that comes before the time limit once a task waits for it.
SUBMITIT = """
import os, pathlib, sys, time, submitit

class Add:
    def __init__(self, runs=0):
        self.runs = runs

    def __call__(self, a, b):
        if a == 3:
            raise ValueError("three")
        if a == 2 and not self.runs:
            pathlib.Path("waits").touch()
            time.sleep(1000)
        return a + b, self.runs, os.environ["SLURM_JOB_ID"], os.environ["SLURM_RESTART_COUNT"]

    def checkpoint(self, a, b):
        return submitit.helpers.DelayedSubmission(Add(self.runs + 1), a, b)

SIGNALS = (
    "[ $SLURM_ARRAY_TASK_ID/$SLURM_RESTART_COUNT != 1/0 ] || (until [ -e waits ]; do sleep 0.1;"
    " done; kill -USR2 $(pgrep -P $$ -f member.srun)) &"
)
executor = submitit.AutoExecutor(folder=sys.argv[1] + "/%j", slurm_max_num_timeout=1)
assert executor.cluster == "slurm", executor.cluster
executor.update_parameters(
    timeout_min=5, cpus_per_task=1, slurm_array_parallelism=2, slurm_setup=[SIGNALS]
)
job = executor.submit(Add(), 1, 2)
value, _, number, _ = job.result()
assert (value, number) == (3, job.job_id), (value, number, job.job_id)
jobs = executor.map_array(Add(), [1, 2, 3, 4], [5, 6, 7, 8])
assert [each.job_id.partition("_")[2] for each in jobs] == ["0", "1", "2", "3"]
assert "three" in str(jobs[2].exception())
results = [each.result() for each in jobs if each is not jobs[2]]
assert [(value, runs, count) for value, runs, _, count in results] == [
    (6, 0, "0"), (8, 1, "1"), (12, 0, "0"),
], results
states = [""]
while not {"COMPLETED", "FAILED"}.issuperset(states):  # a result is there before its job has ended
    states = [each.watcher.get_state(each.job_id, mode="force") for each in (job, *jobs)]
print(*states)
"""


def test_submitit_runs_an_array_with_one_that_fails_and_one_that_requeues_itself_in_time(
    tools: Tools,
) -> None:
    (tools.shell.root / "driver.py").write_text(SUBMITIT)
    done = tools.run(sys.executable, "driver.py", str(tools.shell.root / "log"))
    assert done.out.split() == ["COMPLETED", "COMPLETED", "COMPLETED", "FAILED", "COMPLETED"]
    form = ("-X", "-n", "-P", "-o", "JobID,Restarts", "--name", "submitit")
    rows = [row.partition("_")[2] for row in tools.run("sacct", *form).out.split()]
    assert rows == ["", "0|0", "1|1", "2|0", "3|0"]
    [log] = (tools.shell.root / "log").glob("*_1/*_1_0_log.out")
    assert log.read_text().count("Starting with JobEnvironment") == 2, "both runs are in its log"


SIMPLE_SLURM = """
from simple_slurm import Slurm

slurm = Slurm(cpus_per_task=1, job_name="simple", time="00:10:00")
number = slurm.sbatch("sleep 1000", shell="/bin/bash")
assert type(number) is int, number
slurm.squeue.update_squeue()
while number not in slurm.squeue.jobs or slurm.squeue.jobs[number]["ST"] != "R":
    slurm.squeue.update_squeue()
shown = slurm.squeue.jobs[number]
assert shown["NAME"] == "simple", shown
slurm.scancel.cancel_job(number)
while number in slurm.squeue.jobs:
    slurm.squeue.update_squeue()
print(number)
"""


def test_simple_slurm_submits_finds_and_cancels_a_job(tools: Tools) -> None:
    (tools.shell.root / "simple.py").write_text(SIMPLE_SLURM)
    done = tools.run(sys.executable, "simple.py")
    assert done.out.split()[-1].isdigit()


def test_sprio_shows_what_waits_with_the_priority_of_its_class(tools: Tools) -> None:
    number, running = tools.submit(SLEEP, "-J", "waits", "-H"), tools.submit(SLEEP)
    eventually(lambda: tools.queue("-j", f"{number},{running}"),
               [f"{number} PD", f"{running} R"])  # fmt: skip
    title, line = tools.run("sprio").out.splitlines()
    assert title == "          JOBID PARTITION   PRIORITY       SITE        QOS"
    assert line.split() == [str(number), "all", "0", "0", "0"]
    assert tools.run("sprio", "-h", "-o", "%i|%Y", "-j", str(number)).out == f"{number}|0\n"
    assert "Unable to find jobs" in tools.run("sprio", "-j", str(running), code=1).err
    assert "Invalid job format" in tools.run("sprio", "-o", "%Z", code=1).err


def test_sshare_shows_the_weights_of_teams_and_what_they_use(tools: Tools) -> None:
    assert tools.run("sshare", "-h").out == ""
    head, rule = tools.run("sshare", "-o", "account%8,rawshares,levelfs").out.splitlines()
    assert head == " Account  RawShares    LevelFS "
    assert rule == "-------- ---------- ---------- "
    assert "shares are of teams" in tools.run("sshare", "-u", "ana", code=1).err


def test_programs_that_ask_for_accounts_find_none_where_there_are_no_teams(tools: Tools) -> None:
    """As Snakemake asks before it submits, and Open OnDemand for its forms."""
    of_user = ("sacctmgr", "-n", "-s", "list", "user", "ada", "format=account%256")
    of_form = ("sacctmgr", "-nP", "show", "users", "withassoc", "format=account,qos", "where",
               "user=ada", "cluster=fairlead")  # fmt: skip
    shares = ("sshare", "-U", "--format", "Account%256", "--noheader")
    for words in (of_user, of_form, shares):
        assert tools.run(*words).out == "", words
    for words, said in (
        (("-i", "add", "account", "nlp"), "invalid keyword: add"),
        (("show", "tres"), "invalid keyword: tres"),
        (("show", "user", "format=shoe"), "Unknown field 'shoe'"),
    ):
        assert said in tools.run("sacctmgr", *words, code=1).err


def test_sattach_shows_what_a_job_writes_and_ends_as_it_does(tools: Tools) -> None:
    number = tools.submit("#!/bin/sh\necho step of $SLURM_JOB_ID\nsleep 1\nexit 3\n")
    attached = tools.run("sattach", f"{number}.0", code=3)
    assert attached.out == f"step of {number}\n"
    gate = tools.shell.root / "attached"
    script = f'#!/bin/sh\necho $SLURM_ARRAY_TASK_ID; until [ -e "{gate}" ]; do sleep 0.1; done\n'
    element = tools.submit(script, "--array=4-5")
    eventually(lambda: tools.queue("-j", str(element)), [f"{element}_4 R", f"{element}_5 R"])
    with subprocess.Popen(
        ["sattach", f"{element}_4"], cwd=tools.shell.root, env=tools.environment, text=True,
        stdout=subprocess.PIPE,
    ) as follower:  # fmt: skip
        assert follower.stdout is not None
        assert follower.stdout.readline() == "4\n"
        gate.touch()
        assert (follower.stdout.read(), follower.wait(PATIENCE_SECONDS)) == ("", 0)
    assert "Invalid job id" in tools.run("sattach", "9999.0", code=1).err
    assert "need to specify" in tools.run("sattach", code=1).err


#: Uses half a second of the processor, then 50 MiB for two seconds.
_BUSY = f"""#!/bin/sh
exec {sys.executable} -S -c '
import time
while time.process_time() < 0.5: pass
held = bytearray(50 << 20)
for at in range(0, len(held), 4096): held[at] = 1
time.sleep(2)
'
"""


def test_seff_and_sacct_say_what_a_job_used_and_eff_says_it_in_our_words(tools: Tools) -> None:
    number = tools.submit(_BUSY, "-J", "busier", "--mem", "200M")

    def columns(*names: str) -> list[list[str]]:
        words = ("sacct", "-n", "-P", "--delimiter", "^", "-o", ",".join(names), "-j", str(number))
        return [line.split("^") for line in tools.run(*words).out.splitlines()]

    eventually(lambda: [row[0] for row in columns("State")], ["COMPLETED"] * 2)
    eventually(lambda: [bool(row[0]) for row in columns("TotalCPU")], [True] * 2)
    whole, step = columns("TotalCPU", "MaxRSS", "AveRSS", "TRESUsageInTot", "JobName")
    assert re.fullmatch(r"00:0\d\.\d{3}", whole[0])
    assert 0.5 <= float(whole[0].removeprefix("00:")) <= 5
    assert whole[1:4] == ["", "", ""], "of steps alone, as in Slurm"
    kilobytes = int(step[1].removesuffix("K"))
    assert 50 * 1_024 <= kilobytes <= 120 * 1_024
    assert step[2:4] == [step[1], f"cpu=00:{whole[0].partition('.')[0]},mem={step[1]}"]
    lines = tools.run("seff", str(number)).out.splitlines()
    labels = [line.partition(":")[0] for line in lines]
    assert labels == [
        "Job ID", "Cluster", "User/Group", "State", "Cores", "CPU Utilized", "CPU Efficiency",
        "Job Wall-clock time", "Memory Utilized", "Memory Efficiency",
    ]  # fmt: skip
    assert lines[3] == "State: COMPLETED (exit code 0)"
    assert lines[8] == f"Memory Utilized: {kilobytes / 1_024:.2f} MB"
    assert re.fullmatch(
        r"Memory Efficiency: \d\d\.\d\d% of 200\.00 MB \(200\.00 MB/node\)", lines[9]
    )
    assert tools.run("seff", "999999", code=2).err == "seff: error: Job not found.\n"
    facts = json.loads(tools.shell.run("eff", str(number), "-o", "json").out)
    assert facts["memoryPeakBytes"] == pytest.approx(kilobytes * 1_024, abs=1_024)
    assert facts["memoryAskedBytes"] == 200 << 20
    assert facts["advice"] == {}, "it ran for two seconds"
    shown = tools.shell.run("eff", str(number), "--plot").out
    assert re.search(r"^memory    \d\d%: \d+(\.\d)?Mi of 200Mi \(worker-0\)", shown, re.MULTILINE)


def test_seff_of_an_array_wants_one_of_its_tasks_and_unknown_is_no_zero(tools: Tools) -> None:
    array = tools.submit("#!/bin/sh\ntrue\n", "--array=0-1")
    held = tools.submit("#!/bin/sh\ntrue\n", "-H")
    ended = ("sacct", "-X", "-n", "-P", "-o", "State", "-j", str(array))
    eventually(lambda: tools.run(*ended).out.split(), ["COMPLETED"] * 2)
    assert "name one of its tasks" in tools.run("seff", str(array), code=3).err
    lines = tools.run("seff", f"{array}_1").out.splitlines()
    assert lines[1] == f"Array Job ID: {array}_1"
    waits = tools.run("seff", str(held)).out.splitlines()
    assert waits[-1] == "Efficiency not available for jobs in the PENDING state."


def test_jobs_may_have_one_name_in_any_spelling_and_are_found_by_it(tools: Tools) -> None:
    """Snakemake gives all jobs of a run one name; people write blanks, dollars and bars."""
    for name in ("5f0c-run", "CPU imdb", "a|b$USER"):
        numbers = [tools.submit(SLEEP, "-J", name) for _ in range(2)]
        script = f"#!/bin/sh\n#SBATCH --job-name='{name}' -c 1\nsleep 1000\n"
        numbers.append(int(tools.run("sbatch", "--parsable", stdin=script).out))
        shown = tools.queue("--name", name, form="%i %j")
        assert shown == [f"{number} {name}" for number in sorted(numbers)]
        tools.run("scancel", "--name", name)
        eventually(lambda name=name: tools.queue("--name", name), [])
        ended = ("sacct", "-X", "-n", "-P", "-o", "JobID,JobName", "--name", name)
        wanted = [f"{number}|{name}" for number in sorted(numbers)]
        eventually(lambda ended=ended: tools.run(*ended).out.splitlines(), wanted)


def test_scancel_ends_only_what_matches_all_that_is_asked(tools: Tools) -> None:
    number = str(tools.submit(SLEEP, "-J", "kept", "--comment", "run 7"))
    assert tools.queue("-n", "kept", form="%k,%A") == [f"run 7,{number}"]
    array = str(tools.submit(SLEEP, "-J", "kept", "--array=0-3%1", "--mem=8M"))
    eventually(lambda: tools.queue("-j", number), [f"{number} R"])
    [qos, account] = tools.queue("-j", number, form="%q %a")[0].split()
    waiting = f"{array}_[1-3%1]"
    eventually(lambda: waiting in tools.queue("-j", array, form="%i"), expected=True)
    for other in (("-q", "other"), ("-A", "other"), ("-p", "gone"), ("-A", account, "-q", "other")):
        tools.run("scancel", "--me", *other)
        tools.run("scancel", number, *other)
    assert tools.queue("-j", number) == [f"{number} R"]
    tools.run("scancel", "-t", "PENDING", array)
    eventually(lambda: tools.queue("-r", "-j", array), [f"{array}_0 R"])
    tools.run("scancel", "--name=kept", "-q", qos, "-A", account)
    eventually(lambda: tools.queue("-n", "kept"), [])


HET = """#!/bin/bash
#SBATCH --job-name=het --mem=64M --time=10
#SBATCH hetjob
#SBATCH -n2 -N1 --mem=32M
of_first=${SLURM_NTASKS-its}
echo "script $FAIRLEAD_ROLE of $SLURM_HET_SIZE, $of_first and $SLURM_NTASKS_HET_GROUP_1 tasks"
srun sh -c 'echo first $RANK/$WORLD_SIZE $FAIRLEAD_ROLE $SLURM_JOB_ID $SLURM_MEM_PER_NODE'
srun --het-group=1 sh -c 'echo second $RANK/$WORLD_SIZE $FAIRLEAD_ROLE $SLURM_MEM_PER_NODE'
srun -l sh -c 'echo $FAIRLEAD_ROLE of $WORLD_SIZE' : -n2 sh -c 'echo $FAIRLEAD_ROLE; exit $RANK'
echo "code $?"
srun --het-group=2 true || echo "no component 2"
touch at-the-end
until [ -e go ]; do sleep 0.1; done
"""


def test_the_components_of_a_job_run_together_and_steps_are_on_one_or_on_both(
    tools: Tools,
) -> None:
    asked = ("sbatch", "-a0-1", ":", "-n1")
    assert "an array of heterogeneous jobs" in tools.run(*asked, code=1, stdin=HET).err
    number = tools.submit(HET, ":", "--cpus-per-task=1", "--ntasks=1")
    form = "%i %t %D %C"
    root = tools.shell.root
    eventually((root / "at-the-end").exists, expected=True)
    assert tools.queue("-j", str(number), form=form) == [f"{number}+0 R 1 1", f"{number}+1 R 1 1"]
    assert tools.queue("-j", f"{number}+1", form="%i %j") == [f"{number}+1 het"]
    shown = tools.run("scontrol", "-o", "show", "job", str(number)).out.splitlines()
    assert [re.findall(r"^JobId=\d+ HetJobId=\d+ HetJobOffset=(\d)", line) for line in shown] == [
        ["0"], ["1"]
    ]  # fmt: skip
    refused = tools.run("scancel", f"{number}+1", code=1).err
    assert "its components start and end together; name the job" in refused
    assert tools.queue("-j", str(number), form="%t") == ["R", "R"]
    (root / "go").touch()
    eventually(lambda: tools.queue("-j", str(number)), [])
    said = tools.run("sattach", str(number)).out.splitlines()
    lines = sorted(line.partition("] ")[2] or line for line in said)
    for line in (
        "script het0 of 2, its and 1 tasks",
        f"first 0/1 het0 {number} 64",
        "second 0/1 het1 32",
        "0: het0 of 3",
        "1: het1",
        "2: het1",
        "code 2",
        "no component 2",
    ):
        assert any(each.endswith(line) for each in lines), (line, said)
    accounts = ("sacct", "-X", "-n", "-P", "-o", "JobID,State", "-j", str(number))
    assert tools.run(*accounts).out.splitlines() == [
        f"{number}+0|COMPLETED", f"{number}+1|COMPLETED"
    ]  # fmt: skip
    assert tools.run(*accounts, "--whole-hetjob=no").out.count("COMPLETED") == 1
    two = ("srun", "-n1", "sh", "-c", "echo a $RANK", ":", "-n1", "sh", "-c", "echo b $RANK")
    assert sorted(tools.run(*two).out.splitlines()) == ["a 0", "b 1"]
