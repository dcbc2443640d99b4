"""Headers of 483 public scripts by their options: nearly all are taken and mean what they say.

`public_headers.txt` has a header in each line, its lines of #SBATCH between tabs: options, their
values with words replaced (names, paths, remarks), and how they are spelt. They were looked for by
single options, rare ones too, after the reader had been written, the last 204 after it had been
mended by the others: the first ten scripts of each of 27 common lines. Features and types are
known, as an import of the site's configuration makes them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairlead.api.values import quantity
from fairlead.cli.cluster.known_nodes import kinds_resolved
from fairlead.cli.job_request.jobspec import Origin, Program, Script, build_job
from fairlead.cli.job_request.node_kinds import KnownNodes
from fairlead.cli.job_request.request import JobRequest, parse_request
from fairlead.cli.script.header import parse_header
from fairlead.testing.builders import EPOCH

HEADERS = (Path(__file__).parent / "public_headers.txt").read_text().splitlines()
#: So many were drawn last.
LAST = 204
FEATURES = tuple(
    "gpu6gb v100-32g avx2 a100 h200 h100 gpu hbm80g cpu haswell hasw mc volta32gb thin l40s "  # noqa: SIM905
    "nvidia_rtx_a6000 A6000 rtxa6000 v100 mig rtx_4090 ib a40 h100-96 t4 ampere80 rtx2080 "
    "broadwell skylake centos7 ivy ivb hsw knl v100-16g a100_80 fat EPYC gpu-P100 "
    "ntasks-per-node-1 ntasks-per-node-6".split()
)
KNOWN = KnownNodes(
    labels=tuple(
        {f"example.org/{each.lower()}": "true", "nvidia.com/gpu.product": each.replace("_", "-")}
        for each in FEATURES
    ),
    partitions={},
)
#: What is refused: files as images, shares of a GPU and other devices, values that are not filled
#: in, no variable, an option of srun, a misspelt one, more tasks than their nodes may have.
REFUSED = {
    "--container-image=/x/x.x": "is a file",
    "--gres=shard:2": "only GPUs are counted",
    "--environment=x": "--environment cannot be honoured",
    "--chdir=": "--chdir needs a value",
    "--export=/usr/local/cuda/bin": "is not a variable's name",
    "--account=[x x]": "'x]' is not an option",
    "--cpu_bind=cores": "is not an option of sbatch",
    "--nodelist=<x>": "is not the name of a host",
    "--nodelist=${X_X}": "is not the name of a host",
    "--mail-user=<x x>": "'x>' is not an option",
    "--partition=\t": "--partition needs a value",
    "--main-user=[X_X]": "--main-user is not an option",
    "--gres=dcu:4": "only GPUs are counted",
    "--gres=gpumem:24G": "only GPUs are counted",
    "--ntasks=16\t": "is more than --nodes=1 times",
}


def read(line: str) -> tuple[JobRequest, list[str]]:
    header = "".join(f"#SBATCH {part}\n" for part in line.split("\t"))
    found = parse_header(f"#!/bin/bash\n{header}srun ./program\n", file="train.sh")
    request, problems = parse_request(found.givens, {}, found.batch, now=EPOCH)
    request, _, unknown = kinds_resolved(request, KNOWN)
    return request, [each.message for each in (*found.problems, *problems, *unknown)]


def last(line: str, *options: str) -> str | None:
    """Return the last value of an option, read by a pattern of its own."""
    spelt = "|".join(f"{each}[= ]" if each[1] == "-" else f"{each} ?" for each in options)
    plain = re.sub(r"(^|\s)#[^\t]*", "", line)
    found = re.findall(rf"(?:^|\s)(?:{spelt})\"?(?:gpu:)?([^\s\"]+)", plain)
    return found[-1] if found else None


def seconds(text: str) -> int:
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, minutes, rest_seconds = (*parts, 0, 0)[:3]
    elif len(parts) < 3:
        hours, (minutes, rest_seconds) = 0, (*parts, 0)[:2]
    else:
        hours, minutes, rest_seconds = parts
    return int(days or 0) * 86_400 + hours * 3600 + minutes * 60 + rest_seconds


def test_nearly_all_headers_are_taken_and_the_others_are_refused_for_what_they_say() -> None:
    refused = {line: found for line in HEADERS if (found := read(line)[1])}
    for line, problems in refused.items():
        expected = [words for part, words in REFUSED.items() if part in line]
        said = [why for why in expected if any(why in problem for problem in problems)]
        assert said, (line, problems)
    assert len(HEADERS) == 483
    assert 1 - len(refused) / len(HEADERS) >= 0.95
    last = [line for line in HEADERS[-LAST:] if line in refused]
    assert 1 - len(last) / LAST >= 0.95


@pytest.mark.parametrize("line", HEADERS, ids=range(len(HEADERS)))
def test_a_header_that_is_taken_means_what_it_says(line: str) -> None:
    request, problems = read(line)
    if problems:
        return
    job = build_job("job", request, Program((), Script("s", "#!/bin/sh\n")), Origin("/", "a", {}))
    [role] = job.spec.roles
    asked = role.template.spec.containers[0].resources.requests
    if (time := last(line, "--time", "-t")) is not None:
        assert job.spec.time_limit_seconds == (seconds(time) or None)  # 0: no limit
    tasks, each = last(line, "--ntasks", "-n"), last(line, "--ntasks-per-node", "--tasks-per-node")
    nodes = int((last(line, "--nodes", "-N") or "0").partition("-")[0])
    if not nodes and tasks and each:
        nodes = -(-int(tasks) // int(each))
    if not (hosts := last(line, "--nodelist", "-w")) or "[" not in hosts:
        assert role.count == max(1, nodes)
    if (memory := last(line, "--mem")) not in (None, "0"):
        number, unit = re.fullmatch(r"(\d+)(\w?)\w?", memory or "").groups()  # pyright: ignore[reportOptionalMemberAccess] # or the test fails
        shift = {"M": 20, "G": 30}[(unit or "M").upper()]
        assert quantity.parse(asked[quantity.MEMORY]) == int(number) << shift
    gpus = last(line, "--gres", "--gpus", "--gpus-per-node", "-G")
    if gpus is not None and gpus != "gpu":
        kind = re.fullmatch(r"(\d+g\.\d+gb):.*", gpus)
        resource = f"nvidia.com/mig-{kind[1]}" if kind else quantity.GPU
        of_job = max(1, nodes) if last(line, "--gpus", "-G") else 1
        assert int(asked.get(resource, 0)) * of_job == int(gpus.rpartition(":")[2])
    if (cpus := last(line, "--cpus-per-task", "-c")) is not None:
        here = -(-int(tasks or 1) // max(1, nodes))
        here = min(int(each), here) if each and tasks else int(each or 0) or here
        assert int(asked[quantity.CPU]) == int(cpus) * here
