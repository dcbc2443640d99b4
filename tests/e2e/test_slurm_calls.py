"""The calls that programs make which the tests cannot run themselves, as their sources have them.

Sources: nextflow-io/nextflow executor/SlurmExecutor.groovy; jupyterhub/batchspawner
batchspawner/batchspawner.py; OSC/ood_core lib/ood_core/job/adapters/slurm.rb; Parsl/parsl
providers/slurm/slurm.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.e2e.disaster_world import kill, processes_of
from tests.e2e.slurm_world import SLEEP, Tools

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("slurm-calls")]


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    shell = Shell(tmp_path_factory.mktemp("slurm-calls"))
    shell.up("--nodes", "1", "--listen", "127.0.0.1:0")
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
