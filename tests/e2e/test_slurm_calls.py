"""The calls that programs make which the tests cannot run themselves, as their sources have them.

Sources: nextflow-io/nextflow executor/SlurmExecutor.groovy; jupyterhub/batchspawner
batchspawner/batchspawner.py; OSC/ood_core lib/ood_core/job/adapters/slurm.rb; Parsl/parsl
providers/slurm/slurm.py; Lightning-AI/pytorch-lightning fabric/plugins/environments/slurm.py and
pytorch/trainer/connectors/signal_connector.py.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.e2e.disaster_world import kill, processes_of
from tests.e2e.slurm_world import SLEEP, Tools

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("slurm-calls")]


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    shell = Shell(tmp_path_factory.mktemp("slurm-calls"))
    shell.up("--nodes", "2", "--listen", "127.0.0.1:0")
    try:
        yield Tools(shell)
    finally:
        shell.down()
        kill(processes_of(shell.data))


WRAPPER = """#!/bin/sh
sbatch --parsable <<EOT
#!/bin/sh
#SBATCH --job-name=run-$1 -c 1
#SBATCH --output=wrapped-$1.out
echo "given $1, nodes '$SLURM_JOB_NODELIST' then, '\\$SLURM_JOB_NODELIST' now"
EOT
"""


def test_a_wrapper_that_feeds_a_script_has_its_variables_expanded_at_submission(
    tools: Tools,
) -> None:
    wrapper = tools.shell.root / "wrap.sh"
    wrapper.write_text(WRAPPER)
    number = int(tools.run("sh", "wrap.sh", "7").out)
    eventually(lambda: tools.queue("-j", str(number)), [])
    [name] = tools.run("sacct", "-X", "-n", "-P", "-o", "JobName", "-j", str(number)).out.split()
    assert name == "run-7"
    written = (tools.shell.root / "wrapped-7.out").read_text()
    assert re.fullmatch(r"given 7, nodes '' then, '[\w.-]+' now\n", written)


NEXTFLOW = """#!/bin/bash
#SBATCH -J nf-align_(1)
#SBATCH -o {log}
#SBATCH --no-requeue
#SBATCH --signal B:USR2@30
#SBATCH -c 1
#SBATCH -t 72:00:00
#SBATCH --mem 64M
#SBATCH -p somewhere
{array}sleep 1000
"""


def test_the_calls_of_nextflow_find_jobs_of_any_partition_and_elements_by_their_ids(
    tools: Tools,
) -> None:
    log = str(tools.shell.root / ".command.log")
    (tools.shell.root / ".command.run").write_text(NEXTFLOW.format(log=log, array=""))
    said = tools.run("sbatch", ".command.run").out
    [number] = re.findall(r"^Submitted batch job (\d+)$", said, re.MULTILINE)
    user = tools.run("squeue", "-h", "-j", number, "-o", "%u").out.strip()

    def states() -> dict[str, str]:
        told = tools.run("squeue", "--noheader", "-o", "%i %t", "-t", "all", "-u", user).out
        return dict(line.split() for line in told.splitlines())

    def shows(wanted: dict[str, str]) -> bool:
        return wanted.items() <= states().items()

    eventually(lambda: shows({number: "R"}), True)
    assert tools.queue("-j", number, form="%l") == ["3-00:00:00"]
    tools.run("scancel", number)
    eventually(lambda: shows({number: "CA"}), True)
    listed = NEXTFLOW.format(log=log, array="#SBATCH --array 0-1\n")
    array = tools.run("sbatch", stdin=listed).out.split()[-1]
    eventually(lambda: shows({f"{array}_0": "R", f"{array}_1": "R"}), True)
    tools.run("scancel", array)
    eventually(lambda: shows({f"{array}_0": "CA", f"{array}_1": "CA"}), True)


def test_the_calls_of_parsl_work_with_sacct_and_are_told_plainly_where_there_is_none(
    tools: Tools,
) -> None:
    jobs = [tools.submit(SLEEP), tools.submit("#!/bin/sh\ntrue\n")]
    eventually(lambda: tools.queue("-j", str(jobs[0])), [f"{jobs[0]} R"])
    tools.run("sacct", "-X")
    tools.run("scancel", str(jobs[0]))
    listed = f"{jobs[0]},{jobs[1]}"

    def states() -> list[list[str]]:
        words = ("sacct", "-X", "--noheader", "--format=jobid,state%20", "--clusters", "all",
                 "--job", listed)  # fmt: skip
        return [line.split() for line in tools.run(*words).out.splitlines()]

    eventually(states, [[str(jobs[0]), "CANCELLED"], [str(jobs[1]), "COMPLETED"]])
    away = tools.shell.root / "away"
    away.write_text((tools.shell.data / "kubeconfig").read_text().replace("127.0.0.1", "127.0.0.9"))
    tools.run("sacct", "-X", code=1, FAIRLEAD_KUBECONFIG=str(away))


def test_the_calls_of_batchspawner_show_a_name_to_connect_to_and_that_a_job_has_gone(
    tools: Tools,
) -> None:
    script = "#!/bin/bash\n#SBATCH --output=hub_%j.log\n#SBATCH --get-user-env=L\nsleep 1000\n"
    said = tools.run("sbatch", "--parsable", "--chdir", str(tools.shell.root), "--export=PATH",
                     "-c", "1", stdin=script).out  # fmt: skip
    number = str(int(said.splitlines()[-1].partition(";")[0]))
    query = ("squeue", "-h", "-j", number, "-o", "%T %B")
    eventually(lambda: tools.run(*query).out.split()[0], "RUNNING")
    assert re.search(r"([\w_-]+\.?)+$", tools.run(*query).out.strip())
    tools.run("scancel", number)
    eventually(lambda: tools.run(*query, code=None).out.split()[:1] in ([], ["CANCELLED"]), True)


OOD_FIELDS = (
    "Account", "JobID", "BatchHost", "MinCpus", "NumCPUs", "MinTmpDisk", "NumNodes", "EndTime",
    "Dependency", "Feature", "ArrayJobID", "GroupName", "GroupID", "OverSubscribe", "Sockets",
    "JobArrayID", "Cores", "Name", "Threads", "Comment", "ArrayTaskID", "TimeLimit", "TimeLeft",
    "MinMemory", "TimeUsed", "ReqNodes", "NodeList", "Command", "Contiguous", "QOS", "Partition",
    "PriorityLong", "Reason", "StartTime", "StateCompact", "State", "UserName", "UserID",
    "Reservation", "SubmitTime", "WCKey", "Licenses", "CoreSpec", "Nice", "SchedNodes", "SCT",
    "WorkDir", "tres-per-node",
)  # fmt: skip
#: The letters of the same, as older versions ask for them.
OOD_LETTERS = "aAbBcCdDeEfFgGhHiIjJkKlLmMnNoOqPQrStTuUvVwWxXyYzZ"


def test_the_calls_of_open_ondemand_get_every_field_and_an_unknown_job_has_completed(
    tools: Tools,
) -> None:
    script = "#!/bin/bash\nsleep 1000\n"
    number = tools.run("sbatch", "-H", "-D", str(tools.shell.root), "-J", "sys/dashboard", "-A",
                       "vision", "-t", "01:00:00", "--export", "NONE", "-c", "1", "--parsable",
                       stdin=script).out.strip()  # fmt: skip
    form = ",".join(f"{field}:\x1f" for field in OOD_FIELDS)
    words = ("squeue", "--all", "--states=all", "--noconvert", "-O", form, "-j", number)

    def job() -> dict[str, str]:
        titles, values = tools.run(*words).out.rstrip("\n").split("\n")
        cells = values.split("\x1f")
        assert len(titles.split("\x1f")) == len(cells) == len(OOD_FIELDS) + 1
        return dict(zip(OOD_FIELDS, cells, strict=False))

    shown = job()
    assert (shown["State"], shown["Name"], shown["TimeLimit"]) == (
        "PENDING", "sys/dashboard", "1:00:00",
    )  # fmt: skip
    letters = "\x1f".join(f"%{letter}" for letter in OOD_LETTERS)
    old = tools.run("squeue", "-h", "--all", "--states=all", "-o", letters, "-j", number).out
    assert len(old.split("\x1f")) == len(OOD_LETTERS)
    tools.run("scontrol", "release", number)
    eventually(lambda: job()["State"], "RUNNING")
    tools.run("scancel", number)
    gone = tools.run("squeue", "--all", "--states=all", "--noconvert", "-O", form, "-j", "99999",
                     code=1)  # fmt: skip
    assert "Invalid job id specified" in gone.err
    assert re.fullmatch(r"\d+/\d+/\d+/\d+ *\n", tools.run("sinfo", "-aho", "%F").out.splitlines(
        keepends=True)[0])  # fmt: skip
    nodes = tools.run("sinfo", "-ahNO", "nodehost:100,gres:512,gresused:512,statelong").out
    assert all(len(line.split()) == 4 for line in nodes.splitlines())


PARTITIONED = "#!/bin/sh\n#SBATCH -p late,early\n#FAIRLEAD --simulate 600s --gpus 8\ntrue\n"


SMALL = "#!/bin/sh\n#FAIRLEAD --cpus 50m\n#SBATCH -p local --mem=16M\n"
UNTIL = """\
until [ -e "$SLURM_JOB_NAME$SLURM_ARRAY_TASK_ID.end" ]; do sleep 0.1; done
. "./$SLURM_JOB_NAME$SLURM_ARRAY_TASK_ID.end"
"""


def test_every_form_of_dependency_starts_a_job_when_it_holds_and_never_earlier(
    tools: Tools,
) -> None:
    def queued(name: str, dependency: str, *more: str) -> int:
        return tools.submit(SMALL, "-J", name, f"--dependency={dependency}", *more)

    good, bad, slow = (tools.submit(SMALL + UNTIL, "-J", name) for name in ("good", "bad", "slow"))
    array = tools.submit(SMALL + UNTIL, "--array=0-1", "-J", "array")
    jobs = {
        "after": queued("after", f"after:{slow}"),
        "delayed": queued("delayed", f"after:{slow}+90"),
        "ok": queued("ok", f"afterok:{good}"),
        "notok": queued("notok", f"afternotok:{bad}"),
        "any": queued("any", f"afterany:{good}:{bad}"),
        "never": queued("never", f"afterok:{bad}"),
        "either": queued("either", f"afterok:{bad}?afterok:{good}"),
        "both": queued("both", f"afterok:{good},afterany:{slow}"),
        "single": queued("slow", "singleton"),
        "begun": queued("begun", f"after:{array}_0:{array}_1"),
        "last": queued("last", f"afterok:{array}"),
    }
    pairs = queued("pairs", f"aftercorr:{array}", "--array=0-1")

    def states(*names: str) -> list[str]:
        chosen = ",".join(str(jobs[name]) for name in names)
        return tools.queue("-t", "all", "-j", chosen, form="%t")

    eventually(lambda: states("after", "begun"), ["CD", "CD"])
    waiting = ("delayed", "ok", "notok", "any", "never", "either", "both", "single", "last")
    assert states(*waiting) == ["PD"] * 9
    assert tools.queue("-j", str(jobs["ok"]), form="%T %r") == ["PENDING Dependency"]
    assert tools.queue("-j", str(jobs["delayed"]), form="%E") == ["after:slow+90"]
    assert tools.queue("-j", str(jobs["either"]), form="%E") == ["afterok:bad?afterok:good"]
    (tools.root / "bad.end").write_text("exit 3\n")
    eventually(lambda: states("notok", "never"), ["CD", "CA"])
    assert states("ok", "any", "either", "both") == ["PD"] * 4
    (tools.root / "good.end").write_text("exit 0\n")
    eventually(lambda: states("ok", "any", "either"), ["CD"] * 3)
    assert states("both", "single", "last") == ["PD"] * 3
    (tools.root / "array1.end").write_text("exit 0\n")
    pair = ("-t", "all", "-r", "-j", str(pairs))
    eventually(lambda: tools.queue(*pair), [f"{pairs}_0 PD", f"{pairs}_1 CD"])
    (tools.root / "array0.end").write_text("exit 0\n")
    (tools.root / "slow.end").write_text("exit 0\n")
    eventually(lambda: states("both", "single", "last"), ["CD"] * 3)
    eventually(lambda: tools.queue(*pair), [f"{pairs}_0 CD", f"{pairs}_1 CD"])
    assert states("delayed") == ["PD"], "a delay goes on after the end of the other job"
    tools.run("scontrol", "update", f"JobId={jobs['delayed']}", f"Dependency=after:{slow}+0")
    eventually(lambda: states("delayed"), ["CD"])
    said = tools.run("sbatch", "--dependency=afterok:1?afterok:2,afterok:3", "--wrap=true", code=1)
    assert "'?' (any) goes with no ',' (all)" in said.err


def test_the_first_partition_of_a_list_in_which_a_job_can_start_wins_and_is_shown(
    tools: Tools,
) -> None:
    virtual = tools.run("sinfo", "-h", "-o", "%n", "-p", "virtual").out.strip().split(",")
    for node, pool in zip(virtual, ("early", "late"), strict=True):
        tools.shell.patch(
            f"/api/v1/nodes/{node}", {"metadata": {"labels": {"fairlead.dev/pool": pool}}}
        )
    (tools.root / "list.sh").write_text(PARTITIONED)
    numbers = [int(tools.run("sbatch", "--parsable", "list.sh").out) for _ in range(3)]
    shown = [f"{numbers[0]} R late", f"{numbers[1]} R early", f"{numbers[2]} PD late,early"]
    eventually(lambda: tools.queue(form="%i %t %P"), shown)
    tools.run("scancel", *map(str, numbers))


def test_nodes_that_differ_are_shown_apart_or_with_the_least_of_them(tools: Tools) -> None:
    def shown(form: str, *options: str) -> list[str]:
        lines = tools.run("sinfo", "-h", "-p", "all", "-o", form, *options).out.splitlines()
        return [" ".join(line.split()) for line in lines]

    eventually(lambda: shown("%t"), ["idle"])
    [together] = shown("%P %D %c")
    assert re.fullmatch(r"all\* 3 \d+\+", together)
    exact = shown("%P %D %c", "-e")
    assert sorted(line.split()[1] for line in exact) == ["1", "2"]
    assert sum(int(line.split()[1]) for line in shown("%P %D %G")) == 3
    assert {line.split()[2] for line in shown("%P %D %G")} == {"(null)", "gpu:8"}
    assert shown("%P %D %F") == ["all* 3 0/3/0/3"]


CHECKPOINTING = """#!/bin/bash
#SBATCH --time=1 --signal=B:TERM@55 --requeue --open-mode=append --output=chain-%j.out -c 1
trap 'echo saved; [ -e saved-once ] && exit 1; touch saved-once' TERM
echo "run $SLURM_RESTART_COUNT of $SLURM_JOB_ID"
[ $SLURM_RESTART_COUNT = 0 ] || exit 0
srun sh -c 'trap "echo task has it" TERM; echo up; while :; do sleep 0.1; done' &
while :; do wait; done
"""


def test_a_signal_before_the_end_is_for_the_batch_shell_and_a_second_run_has_the_same_id(
    tools: Tools,
) -> None:
    number = int(tools.run("sbatch", "--parsable", stdin=CHECKPOINTING).out)
    out = tools.root / f"chain-{number}.out"
    first = [f"run 0 of {number}", "up", "saved"]
    eventually(lambda: out.exists() and out.read_text().splitlines()[:3], first)
    assert tools.queue("-j", str(number)) == [f"{number} R"]
    tools.run("scontrol", "requeue", str(number))
    eventually(lambda: tools.queue("-t", "all", "-j", str(number)), [f"{number} CD"])
    assert out.read_text().splitlines()[-1] == f"run 1 of {number}"
    form = ("-X", "-n", "-P", "-o", "JobID,State,Restarts", "-j", str(number))
    eventually(lambda: tools.run("sacct", *form).out, f"{number}|COMPLETED|1\n")


#: What Lightning reads of a job and does on the signal before its end, in the order of its sources.
LIGHTNING = """
import os, pathlib, signal, subprocess, time
assert os.environ["SLURM_JOB_NAME"] not in ("bash", "interactive")
assert int(os.environ["SLURM_NTASKS"]) == int(os.environ["SLURM_NTASKS_PER_NODE"]) == 2
assert int(os.environ["SLURM_NNODES"]) == 1
rank, job = int(os.environ["SLURM_PROCID"]), os.environ["SLURM_JOB_ID"]
port, saved = int(job[-4:]) + 15000, pathlib.Path("hpc_ckpt_1")
assert os.environ["SLURM_NODELIST"].split(" ")[0].split(",")[0]
if saved.exists():
    print(f"rank {rank} goes on from {saved.read_text()}\\n", end="")  # one write: two ranks print
    raise SystemExit
def requeue(_number, _frame):
    if rank == 0:
        saved.write_text("step 7")
        subprocess.call(["scontrol", "requeue", str(int(job))])
assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
signal.signal(signal.SIGUSR1, requeue)
pathlib.Path(f"under-way-{rank}").touch()
while True:
    time.sleep(0.1)
"""
#: srun passes the signal on once both ranks wait for it: what time it comes at, other tests decide.
FITS = """#!/bin/bash
srun {python} -S fit.py & step=$!
if [ $SLURM_RESTART_COUNT = 0 ]; then
  until [ -e under-way-0 ] && [ -e under-way-1 ]; do sleep 0.1; done
  kill -USR1 $step
fi
wait $step
"""


def test_the_calls_of_lightning_save_and_requeue_a_job_at_the_signal_before_its_end(
    tools: Tools,
) -> None:
    (tools.root / "fit.py").write_text(LIGHTNING)
    number = int(tools.run(
        "sbatch", "--parsable", "-J", "fit", "--ntasks-per-node=2", "-t", "1", "-o", "fit.out",
        "--signal=SIGUSR1@30", "--open-mode=append", stdin=FITS.format(python=sys.executable),
    ).out)  # fmt: skip
    eventually(lambda: tools.queue("-t", "all", "-j", str(number)), [f"{number} CD"])
    lines = (tools.root / "fit.out").read_text().splitlines()
    gone_on = sorted(line for line in lines if line.startswith("rank"))
    assert gone_on == ["rank 0 goes on from step 7", "rank 1 goes on from step 7"]
    form = ("-X", "-n", "-P", "-o", "JobID,State,Restarts", "-j", str(number))
    eventually(lambda: tools.run("sacct", *form).out, f"{number}|COMPLETED|1\n")
