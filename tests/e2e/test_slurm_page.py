"""The page for people who know Slurm: each row of its tables does what it says.

A row without a case fails, and so does a case without a row.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.e2e.disaster_world import kill, processes_of
from tests.e2e.slurm_world import Tools

from fairlead.api.names import NODE_TYPE
from fairlead.api.resources import NODES, PRIORITY_CLASSES, TEAMS
from fairlead.cli.connection.connect import Choice, find_connection
from fairlead.cli.connection.transport import Api
from fairlead.cli.script.slurm_names import COMMANDS

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("slurm-page")]

PAGE = Path(__file__).parents[2] / "docs/howto/coming-from-slurm.md"
#: A command with a terminal of its own.
IN_TERMINAL = f"{sys.executable} -c 'import pty, sys; sys.exit(pty.spawn(sys.argv[1:]))'"
STEPS = "#!/bin/bash\n#SBATCH --job-name=steps -N1\nsrun -n2 sh -c 'echo task $SLURM_PROCID'\n"
OWN = "#FAIRLEAD --cpus 50m\n"
FILES = {
    "train.sh": f"#!/bin/sh\n#SBATCH -c 1\n{OWN}echo trained\n",
    "ended.sh": f"#!/bin/sh\n#SBATCH -c 1 -J ended\n{OWN}echo trained\n",
    "sweep.sh": f"#!/bin/sh\n#SBATCH -c 1\n{OWN}exit $SLURM_ARRAY_TASK_ID\n",
    "held.sh": f"#!/bin/sh\n#SBATCH -c 1 -J held -H -b now+1hour\n{OWN}true\n",
    "sleeper.sh": f"#!/bin/sh\n#SBATCH -c 1 -J sleeper\n{OWN}exec sleep 1000\n",
    "steps.sh": STEPS.replace("-N1\n", f"-N1\n{OWN}"),
}


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table under a heading, without its head."""
    text = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


#: Of each row, by its first cell: what is typed, and what is shown then.
CASES: dict[str, tuple[str, str]] = {
    "`sbatch train.sh`": (
        "sbatch train.sh; fairlead submit train.sh -q", r"Submitted batch job \d+\ntrain-2",
    ),
    "`sbatch --array=0-99%10 sweep.sh`": (
        "id=$(sbatch --parsable --array=0-3%2 -H sweep.sh); squeue -h -o %i -j $id;"
        "fairlead submit -q sweep.sh --array 0-3%2 --hold --name waits", r"\d+_\[0-3%2\]\nwaits",
    ),
    "`sbatch -n1 : -N2 --gres=gpu:4 t.sh`, `#SBATCH hetjob`, `srun --het-group=1`, `srun A : B`": (
        "printf '%s\\n' '#!/bin/sh' '#SBATCH -J pair' '#SBATCH hetjob' '#SBATCH -n1' "
        "'srun -l echo A : echo B' 'srun --het-group=1 echo C' | sbatch --wait -Q;"
        "fairlead logs pair", r"(?=.*0: A)(?=.*1: B).*C\n",
    ),
    "`sbatch --wrap 'CMD'`": (
        "sbatch -c1 --wrap 'echo wrapped'; fairlead run --cpus 50m -- sh -c 'echo ran'", r"\nran",
    ),
    "`srun CMD`": (
        "sbatch --wait --parsable steps.sh; fairlead logs steps;"
        "fairlead run -q --cpus 50m --nodes 2 -- sh -c 'echo rank $RANK';"
        "srun -n1 -l echo alone", r"task 1.*rank 1.*0: alone",
    ),
    "`srun --pty CMD`": (
        f"{IN_TERMINAL} fairlead run --cpus 50m --pty -- tty;"
        f"{IN_TERMINAL} srun -n1 --pty sh -c 'tty; echo task $SLURM_PROCID'",
        "/dev/pts/.*/dev/pts/.*task 0",
    ),
    "`salloc -N 2`": ("salloc -N 2 srun -l echo here", "1: here"),
    "`sbcast FILE PATH`": ("salloc sbcast train.sh copied.sh; cat copied.sh", "echo trained"),
    "`screen`, `tmux` around `srun --pty` or `salloc`": (
        "{ until fairlead sessions sleeper | grep sleeper/; do sleep 1; done >&2;"
        f" printf '\\035d'; }} | {IN_TERMINAL} fairlead shell sleeper; fairlead sessions sleeper",
        r"sleeper/worker-0:\d+ +shell .* no\n",
    ),
    "`srun --jobid=36 --overlap --pty bash`": (
        "id=$(squeue -h -o %i -n sleeper);"
        f"{IN_TERMINAL} srun --jobid=$id --overlap --pty sh -c 'tty; echo $SLURM_JOB_NAME'",
        "/dev/pts/.*sleeper",
    ),
    "`ssh NODE` into a job of yours": ("fairlead ssh-config", r"ProxyCommand .* ssh-proxy"),
    "`scp` to and from a node of a job": (
        "fairlead cp train.sh sleeper:sent.sh; fairlead cp sleeper:sent.sh back.sh; cat back.sh",
        "echo trained",
    ),
    "`squeue`, `squeue --me`": (
        "squeue --me -h -o %j -n sleeper; fairlead ps --me", r"sleeper.*sleeper .*Running",
    ),
    "`squeue --start`": ("fairlead why held", "Held"),
    "`squeue -w gpu-7 -S -time -o FORMAT`, `squeue -i 5`": (
        "node=$(squeue -h -o %B -n sleeper); fairlead ps --node $node --sort -time -o name,state;"
        "fairlead ps --name 'sleep*' -o csv; timeout 3 fairlead ps --watch || echo $?",
        r"NAME +STATE\n.*sleeper +Running.*NAME,GPUS,.*\nsleeper,0,Running,.*124\n",
    ),
    "`scontrol show job`": (
        "scontrol show job $(squeue -h -o %i -n sleeper); fairlead why sleeper;"
        "kubectl get fj sleeper -o yaml", r"JobState=RUNNING.*Running.*kind: Job",
    ),
    "`scontrol hold`, `release`": (
        "id=$(squeue -h -o %i -n held); scontrol release $id; scontrol hold $id;"
        "fairlead release held; fairlead hold held", "held",
    ),
    "`scontrol requeue JOB`": (
        "id=$(squeue -h -o %i -n sleeper); scontrol requeue $id;"
        "until sleep 0.1; fairlead ps sleeper -o state,attempt | grep 'Running *2'; do :; done;"
        "fairlead requeue sleeper; fairlead requeue held || echo refused",
        "sleeper queued again.*it is in the queue.*",
    ),
    "`scontrol requeue JOB` of one that ended, `sbatch --array=3,7`": (
        "fairlead resubmit ended -q; fairlead resubmit failing --failed -q",
        "ended-retry-1.*failing-retry-1",
    ),
    "`scontrol update TimeLimit=`, `StartTime=`, `Deadline=`, `Dependency=`": (
        "id=$(squeue -h -o %i -n held); scontrol update JobId=$id TimeLimit=30; "
        "squeue -h -o %l -j $id; fairlead update held --time 1h; squeue -h -o %l -j $id;"
        "scontrol update JobId=$id StartTime=now+2hours Deadline=now+9hours "
        "Dependency=afterok:$(squeue -h -o %i -n sleeper); squeue -h -o %E -j $id;"
        "scontrol update JobId=$id Dependency=; squeue -h -o %E. -j $id",
        "30:00.*1:00:00.*afterok:sleeper\n\\.\n",
    ),
    "`scontrol update QOS=high`": (
        "id=$(squeue -h -o %i -n held); scontrol update JobId=$id QOS=high; squeue -h -o %q -j $id;"
        "fairlead priority held urgent || fairlead priority held urgent",
        "urgent\n",
    ),
    "`scancel JOB`": (
        "scancel $(sbatch --parsable -H train.sh); n=$(fairlead submit -q --hold train.sh);"
        "fairlead cancel $n; squeue -h -n train -t PD; echo none", "none",
    ),
    "`scancel 36_[3-9]`, `squeue -r`": (
        "id=$(sbatch --parsable --array=0-5%1 -J many sleeper.sh); scancel ${id}_[3-5];"
        "fairlead cancel -q 'many[2]'; until squeue -r -h -o '%i %t' -j $id | grep R; do :; done;"
        "squeue -r -h -o %i -j $id; fairlead ps many; scancel $id",
        r"(\d+)_0 R\n\1_0\n\1_1\n.*many",
    ),
    "`scontrol update ArrayTaskThrottle=4`": (
        "id=$(sbatch --parsable --array=0-5%1 -H -J wide sweep.sh);"
        "scontrol update JobId=$id ArrayTaskThrottle=4; squeue -h -o %i -j $id;"
        """kubectl patch fja wide --type=merge -p '{"spec": {"parallelism": 3}}';"""
        "squeue -h -o %i -j $id", r"\[0-5%4\].*\[0-5%3\]",
    ),
    "`scancel --me --state=PENDING`": (
        "sbatch -Q -J one -H train.sh; scancel -n one --state=PENDING; squeue -h -n one;"
        "fairlead submit -q --name two-3 --hold train.sh;"
        "until fairlead cancel --me --state Held --name 'two*' | grep cancelled; do :; done;"
        "fairlead cancel 'two-*'; echo gone",
        "two-3 cancelled\n.*gone",
    ),
    "`sattach`, `tail -f slurm-1.out`": (
        "id=$(sbatch --parsable -o slurm-%j.out train.sh); sattach $id.0; cat slurm-$id.out",
        "trained.*trained",
    ),
    "`sinfo`": ("sinfo -h -o '%R %t'; fairlead nodes", r"all (idle|mix|alloc).*local"),
    "`sacct`": (
        "sacct -X -n -P -o JobName,State; fairlead history ended -o name,exit,end",
        r"ended\|COMPLETED.*NAME +EXIT +END\nended +0 +20",
    ),
    "`seff`": (
        "seff $(sacct -X -n -P -o JobIDRaw --name ended | tail -n 1); fairlead eff ended",
        r"State: COMPLETED.*ended",
    ),
    "`sstat`": ("fairlead top; fairlead top -A --idle", "sleeper"),
    "`sreport`, `sstat`": (
        "fairlead usage --by team,user; fairlead usage --by job; fairlead why sleeper", "sleeper",
    ),
    "`sprio`, `sshare`": (
        "sprio -h -o %i; sshare; fairlead ps -o wide; fairlead quota vision",
        "vision.*PRIO.*vision",
    ),
    "`sacctmgr show associations`": (
        "sacctmgr -nP show users withassoc format=account,qos where user=ada cluster=fairlead;"
        "sacctmgr -P show associations where user=ada; sacctmgr -n list user x format=account%9;"
        "sshare -U --format Account%8 --noheader; fairlead teams",
        r"^vision\|\nCluster\|Account\|User\|QOS\nfairlead\|vision\|ada\|\n   vision \n"
        r"  vision \n.*vision",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    shell = Shell(tmp_path_factory.mktemp("slurm-page"))
    (shell.root / "settings.yaml").write_text(
        "slurm: {qos: {high: urgent}}\n"
        "notices: {smtpHost: 127.0.0.1, mailFrom: c@example.com, mailDomains: [example.com]}\n"
    )
    shell.up("--nodes", "5", "--listen", "127.0.0.1:0",
             "--settings", str(shell.root / "settings.yaml"))  # fmt: skip
    try:
        tools = Tools(shell)
        path = f"{Path(sys.executable).parent}:{tools.environment['PATH']}"
        tools.environment["PATH"] = f"{tools.bin}:{path}"
        tools.environment["KUBECONFIG"] = str(shell.data / "kubeconfig")
        for name, text in FILES.items():
            (shell.root / name).write_text(text)
        _prepare(shell)
        shell.run("submit", "held.sh")
        shell.run("submit", "ended.sh")
        shell.run("submit", "sweep.sh", "--name", "failing", "--array", "0-1")
        shell.run("wait", "ended", "failing", code=None)
        yield tools
    finally:
        shell.down()
        kill(processes_of(shell.data))


def _prepare(shell: Shell) -> None:
    """Give a virtual node the label of an a100; make a class, and an array to wait for."""
    api = Api(find_connection(Choice(str(shell.data / "kubeconfig")), {}))
    api.create(PRIORITY_CLASSES.raw, {"metadata": {"name": "urgent"}, "value": 5})
    api.create(TEAMS.raw, {"metadata": {"name": "vision"}, "spec": {"weight": 3}})
    node = next(
        each for each in api.list(NODES) if each.metadata.labels.get(NODE_TYPE) == "virtual"
    )
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    shell.patch(f"/api/v1/nodes/{node.metadata.name}", {"metadata": {"labels": labels}})
    shell.run("submit", "sweep.sh", "--name", "prep", "--array", "0-9", "--hold")


def test_each_row_of_commands_has_a_case_and_each_of_slurms_commands_is_tried() -> None:
    assert [row[0] for row in rows("Commands")] == list(CASES)
    typed = {word for command, _ in CASES.values() for word in re.findall(r"[a-z]+", command)}
    assert set(COMMANDS) - typed == set()


@pytest.mark.parametrize("row", CASES)
def test_a_command_of_slurm_and_ours_do_what_the_row_says(tools: Tools, row: str) -> None:
    command, shown = CASES[row]
    if "sleeper" in command and tools.shell.state("sleeper") != "Running":
        tools.run("sbatch", "sleeper.sh")  # not before salloc had the whole machine
        eventually(lambda: tools.shell.state("sleeper"), "Running")
    done = tools.run("sh", "-e", "-c", command)
    assert re.search(shown, done.out + done.err, re.DOTALL), done


# Header lines

#: What a cell means that names no value, or a value that is not here.
WRITTEN = {
    "`--container-image`, `--container-mounts=/data:/data:ro` (pyxis)": (
        "--container-image=example.org/a:1 --container-mounts=/tmp:/data:ro",
        "--image example.org/a:1 --mount /tmp:/data:ro",
    ),
    "`--dependency=after:prep+10`": (
        "--dependency=after:held+10", "--after started:held+10m",
    ),
    "`--dependency=afterok:prep?afterok:rest`": (
        "--dependency=afterok:prep?afterok:held", "--after ok?:prep --after ok?:held",
    ),
    "`--dependency=aftercorr:prep`": (
        "--dependency=aftercorr:prep --array=0-9", "--after each:prep --array 0-9",
    ),
    "`--qos=high`": ("--qos=high", "--priority urgent"),
}  # fmt: skip
#: Rows of lines that only show what they do when a process runs.
OF_PROCESSES = {"`--output`, `--error`"}
TOMORROW = str(date.today() + timedelta(days=1))  # noqa: DTZ011 # as the person reads it


def meaning(shell: Shell, header: str) -> dict[str, Any]:
    """Return what a script with a header would be stored as, without how it is started."""
    (shell.root / "header.sh").write_text(f"#!/bin/sh\n{header}\ntrue\n")
    given = shell.run("submit", "header.sh", "--on", "virtual", "--dry-run", "-o", "json",
                      environment={"LR": "0.1"})  # fmt: skip
    listed = json.loads(given.out)
    job = next(item for item in listed["items"] if item["kind"] != "ConfigMap")
    spec = job["spec"].get("template", job["spec"])
    [role] = spec["roles"]
    pod = role["template"]["spec"]
    [container] = pod["containers"]
    env = [each for each in container.get("env", ()) if not each["name"].startswith("SLURM_")]
    plain = {key: value for key, value in pod.items() if key != "containers"}
    whole = {key: value for key, value in spec.items() if key != "roles"}
    of_array = {key: value for key, value in job["spec"].items() if key not in ("template", *spec)}
    return {
        "name": job["metadata"]["name"], "count": role.get("count"), "pod": plain, "spec": whole,
        "resources": container["resources"], "image": container.get("image"), "env": env,
        "mounts": container.get("volumeMounts"), "array": of_array,
    }  # fmt: skip


@pytest.mark.parametrize("row", [row[0] for row in rows("Header lines")])
def test_a_line_of_sbatch_and_ours_are_the_same_job(tools: Tools, row: str) -> None:
    [cells] = [each for each in rows("Header lines") if each[0] == row]
    theirs, ours = WRITTEN.get(row, tuple(cell.strip("`") for cell in cells[:2]))
    if row in OF_PROCESSES:
        assert ours == ""
        return
    theirs, ours = (re.sub(r"20\d\d-\d\d-\d\d", TOMORROW, text) for text in (theirs, ours))
    shell = tools.shell
    found = meaning(shell, f"#SBATCH {theirs}")
    assert found == meaning(shell, f"#FAIRLEAD {ours}")
    assert found != meaning(shell, "#FAIRLEAD --cpus 1"), "the line changes the job"


def test_lines_that_any_machine_can_honour_do_so_when_the_script_runs(tools: Tools) -> None:
    script = (
        "#!/bin/sh\n#SBATCH --job-name=lines --time=00:05:00 --cpus-per-task=1 --mem=64M\n"
        "#SBATCH --array=2,3%1 --export=LR --output=%x-%a.out --dependency=afterany:ended\n"
        "echo $SLURM_JOB_NAME $SLURM_ARRAY_TASK_ID $SLURM_CPUS_PER_TASK $SLURM_MEM_PER_NODE $LR\n"
    )
    assert tools.run("sbatch", "--wait", stdin=script, LR="0.1").out.startswith("Submitted batch")
    written = [(tools.root / f"lines-{index}.out").read_text() for index in (2, 3)]
    assert written == ["lines 2 1 64 0.1\n", "lines 3 1 64 0.1\n"]
