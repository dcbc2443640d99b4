"""Headers as people write them for Slurm: each is taken whole, and the job means what they say.

The headers were written for this test, after the shares of options in 242 public scripts. Each case
has what the job must be, worked out by hand from the manual of sbatch.
"""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.api import names
from fairlead.api.jobs.job import RestartPolicy
from fairlead.api.kubernetes.core import PodSpec
from fairlead.api.values import quantity
from fairlead.cli.cluster.known_nodes import kinds_resolved
from fairlead.cli.job_request.jobspec import Origin, Program, Script, build_job
from fairlead.cli.job_request.node_kinds import KnownNodes
from fairlead.cli.job_request.request import JobRequest, parse_request
from fairlead.cli.script.header import parse_header
from fairlead.testing.builders import EPOCH

PRODUCT = "nvidia.com/gpu.product"
KNOWN = KnownNodes(
    labels=(
        {PRODUCT: "NVIDIA-A100-SXM4-80GB", names.POOL: "batch", "example.org/ib": "true"},
        {PRODUCT: "NVIDIA-H100-80GB-HBM3", names.POOL: "gpu", "example.org/ib": "true"},
        {PRODUCT: "NVIDIA-L40S", names.POOL: "debug"},
        {names.POOL: "cpu", "node.kubernetes.io/instance-type": "c5.large", "arch": "skylake"},
    ),
    partitions={"long": {"example.org/queue": "long"}},
)
A100 = f"{PRODUCT} In NVIDIA-A100-SXM4-80GB"
H100 = f"{PRODUCT} In NVIDIA-H100-80GB-HBM3"
L40S = f"{PRODUCT} In NVIDIA-L40S"
EITHER = f"{PRODUCT} In NVIDIA-A100-SXM4-80GB,NVIDIA-H100-80GB-HBM3"
HOUR, DAY = 3600, 86_400
#: What a job is of which nothing is said.
PLAIN: dict[str, Any] = {
    "nodes": 1, "least": 1, "apart": "", "cpus": "1", "gpus": 0, "memory": "", "seconds": None,
    "labels": [], "after": [], "restarts": True, "tasks": (1, None),
}  # fmt: skip

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a lone process": (
        "#SBATCH --job-name=hello\n#SBATCH --time=00:10:00\n#SBATCH --output=%x-%j.out\n"
        "#SBATCH --error=%x-%j.err\n#SBATCH --ntasks=1\n#SBATCH --cpus-per-task=4\n",
        {"cpus": "4", "seconds": 600, "tasks": (1, 1)},
    ),
    "short letters": (
        "#SBATCH -J short\n#SBATCH -t 30\n#SBATCH -o log\n#SBATCH -n 1\n#SBATCH -c 8\n"
        "#SBATCH -p gpu\n#SBATCH -N 1\n",
        {"cpus": "8", "seconds": 1800, "labels": [f"{names.POOL} In gpu"], "tasks": (1, 1)},
    ),
    "letters with their values attached": (
        "#SBATCH -N1 -n4 -c2 -t2:00:00\n#SBATCH --mem=10gb\n",
        {"cpus": "8", "seconds": 2 * HOUR, "memory": "10Gi", "tasks": (4, 4)},
    ),
    "one GPU": (
        "#SBATCH --gres=gpu:1\n#SBATCH --mem=32G\n#SBATCH --cpus-per-task=6\n"
        "#SBATCH --time=1-00:00:00\n#SBATCH --account=lab01\n",
        {"gpus": 1, "memory": "32Gi", "cpus": "6", "seconds": DAY},
    ),
    "four GPUs of a type": (
        "#SBATCH --gres=gpu:a100:4\n#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=4\n"
        "#SBATCH --cpus-per-task=8\n",
        {"gpus": 4, "cpus": "32", "labels": [A100], "tasks": (4, None)},
    ),
    "a type in capitals": (
        "#SBATCH --gres=gpu:H100:2\n", {"gpus": 2, "labels": [H100]},
    ),
    "a type with a long name": (
        "#SBATCH --gres=gpu:nvidia_h100_80gb_hbm3:1\n", {"gpus": 1, "labels": [H100]},
    ),
    "GPUs without a number": (
        "#SBATCH --gres=gpu\n#SBATCH -c 4\n", {"gpus": 1, "cpus": "4"},
    ),
    "training on two nodes": (
        "#SBATCH --job-name=ddp\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n"
        "#SBATCH --gres=gpu:8\n#SBATCH --cpus-per-task=96\n#SBATCH --mem=0\n"
        "#SBATCH --exclusive\n#SBATCH --time=24:00:00\n",
        {"nodes": 2, "least": 2, "apart": "all", "gpus": 8, "cpus": "96", "seconds": DAY},
    ),
    "one process for each GPU of four nodes": (
        "#SBATCH -N 4\n#SBATCH --ntasks-per-node=8\n#SBATCH --gpus-per-node=8\n"
        "#SBATCH --cpus-per-task=12\n#SBATCH --mem=500G\n#SBATCH --partition=batch\n",
        {"nodes": 4, "least": 4, "apart": "own", "gpus": 8, "cpus": "96", "memory": "500Gi",
         "labels": [f"{names.POOL} In batch"], "tasks": (8, None)},
    ),
    "GPUs of each task": (
        "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-task=1\n"
        "#SBATCH --cpus-per-task=10\n",
        {"nodes": 2, "least": 2, "apart": "own", "gpus": 4, "cpus": "40", "tasks": (4, None)},
    ),
    "GPUs of the job": (
        "#SBATCH --gpus=2\n#SBATCH --time=0-00:30\n", {"gpus": 2, "seconds": 1800},
    ),
    "GPUs of the job on two nodes": (
        "#SBATCH -N 2\n#SBATCH -G l40s:4\n",
        {"nodes": 2, "least": 2, "apart": "own", "gpus": 2, "labels": [L40S]},
    ),
    "GPUs of the job and of each node": (
        "#SBATCH --gpus=16\n#SBATCH --gpus-per-node=8\n",
        {"nodes": 2, "least": 2, "apart": "own", "gpus": 8},
    ),
    "CPUs and memory of each GPU": (
        "#SBATCH --gpus-per-node=4\n#SBATCH --cpus-per-gpu=6\n#SBATCH --mem-per-gpu=40G\n",
        {"gpus": 4, "cpus": "24", "memory": "160Gi"},
    ),
    "memory of each CPU": (
        "#SBATCH --ntasks=1\n#SBATCH --cpus-per-task=8\n#SBATCH --mem-per-cpu=4G\n",
        {"cpus": "8", "memory": "32Gi", "tasks": (1, 1)},
    ),
    "memory of each CPU in mebibytes": (
        "#SBATCH -n 4\n#SBATCH --mem-per-cpu=4000\n",
        {"cpus": "4", "memory": "16000Mi", "tasks": (4, 4)},
    ),
    "sixteen tasks on two nodes": (
        "#SBATCH --nodes=2\n#SBATCH --ntasks=16\n#SBATCH --mem-per-cpu=2G\n",
        {"nodes": 2, "least": 2, "apart": "own", "cpus": "8", "memory": "16Gi",
         "tasks": (8, 16)},
    ),
    "tasks that do not divide": (
        "#SBATCH --nodes=2\n#SBATCH --ntasks=5\n#SBATCH --cpus-per-task=2\n",
        {"nodes": 2, "least": 2, "apart": "own", "cpus": "6", "tasks": (3, 5)},
    ),
    "nodes that follow from the tasks": (
        "#SBATCH --ntasks=64\n#SBATCH --ntasks-per-node=16\n",
        {"nodes": 4, "least": 4, "apart": "own", "cpus": "16", "tasks": (16, 64)},
    ),
    "more nodes than tasks": (
        "#SBATCH --nodes=4\n#SBATCH --ntasks=2\n",
        {"nodes": 2, "least": 2, "apart": "own", "tasks": (1, 2)},
    ),
    "a range of nodes": (
        "#SBATCH --nodes=2-8\n#SBATCH --gpus-per-node=8\n#SBATCH --ntasks-per-node=8\n",
        {"nodes": 8, "least": 2, "apart": "own", "gpus": 8, "cpus": "8", "tasks": (8, None)},
    ),
    "MPI on whole nodes": (
        "#SBATCH --nodes=16\n#SBATCH --ntasks-per-node=32\n#SBATCH --exclusive\n"
        "#SBATCH --hint=nomultithread\n#SBATCH --time=48:00:00\n#SBATCH --qos=normal\n",
        {"nodes": 16, "least": 16, "apart": "all", "cpus": "32", "seconds": 2 * DAY,
         "tasks": (32, None)},
    ),
    "a week": ("#SBATCH --time=7-00:00:00\n", {"seconds": 7 * DAY}),
    "days and hours": ("#SBATCH --time=1-12\n", {"seconds": DAY + 12 * HOUR}),
    "minutes and seconds": ("#SBATCH -t 90:30\n", {"seconds": 90 * 60 + 30}),
    "no limit": ("#SBATCH --time=UNLIMITED\n", {}),
    "one of two types": (
        "#SBATCH --constraint=a100|h100\n#SBATCH --gres=gpu:1\n", {"gpus": 1, "labels": [EITHER]},
    ),
    "two features": (
        '#SBATCH -C "a100&ib"\n#SBATCH --gres=gpu:8\n',
        {"gpus": 8, "labels": [A100, "example.org/ib In true"]},
    ),
    "two features with a comma": (
        "#SBATCH --constraint=h100,ib\n", {"labels": [H100, "example.org/ib In true"]},
    ),
    "nodes that are alike, of which there is one": (
        '#SBATCH -N1 --constraint="[a100|h100]"\n', {"labels": [EITHER]},
    ),
    "a feature of CPUs": ("#SBATCH -C skylake\n", {"labels": ["arch In skylake"]}),
    "whole nodes, one job of the name at a time": (
        "#SBATCH -N 2\n#SBATCH --ntasks-per-node=8\n#SBATCH --gpus-per-node=8\n"
        "#SBATCH --exclusive\n#SBATCH --mem=0\n#SBATCH --overcommit\n"
        "#SBATCH --dependency=singleton\n#SBATCH -t 4:00:00\n#SBATCH -J vae:train\n",
        {"nodes": 2, "least": 2, "apart": "all", "cpus": "8", "gpus": 8, "seconds": 4 * HOUR,
         "tasks": (8, None)},
    ),
    "any of several partitions": (
        "#SBATCH --partition=gpu,gone,batch\n",
        {"labels": [f"{names.POOL} In gpu", "or", f"{names.POOL} In batch"]},
    ),
    "a partition of the settings": (
        "#SBATCH -p long\n", {"labels": ["example.org/queue In long"]},
    ),
    "a partition that nobody knows": ("#SBATCH --partition=standard\n", {}),
    "nodes by name": (
        "#SBATCH --nodelist=n[01-02]\n",
        {"nodes": 2, "least": 2, "apart": "own", "labels": [f"{names.HOSTNAME} In n01,n02"]},
    ),
    "more nodes by name than are used": (
        "#SBATCH --nodelist=gpu-[01-06]\n#SBATCH --nodes=1\n",
        {"labels": [f"{names.HOSTNAME} In gpu-01"]},
    ),
    "file systems of a site as licences, and its cluster": (
        "#SBATCH --licenses=cfs,SCRATCH\n#SBATCH -M snowy\n#SBATCH --mem_bind=local\n"
        "#SBATCH --ear=off\n#SBATCH -c 3\n",
        {"cpus": "3"},
    ),
    "nodes to avoid": (
        "#SBATCH --exclude=compute-0-[0-2,6]\n#SBATCH --ntasks=1\n",
        {"labels": [f"{names.HOSTNAME} NotIn compute-0-0,compute-0-1,compute-0-2,compute-0-6"],
         "tasks": (1, 1)},
    ),
    "comments after directives": (
        "#SBATCH --nodes=1            # one node\n#SBATCH --mem=64G# all that it needs\n"
        "#SBATCH --time=05:00:00      # hours\n",
        {"memory": "64Gi", "seconds": 5 * HOUR},
    ),
    "directives that are switched off": (
        "##SBATCH --nodes=8\n# SBATCH --gres=gpu:8\n#SBATCH --mem=1g\n", {"memory": "1Gi"},
    ),
    "quotes": (
        "#SBATCH --job-name=\"CPU imdb\"\n#SBATCH --comment='a # b'\n#SBATCH --mem=\"4G\"\n",
        {"memory": "4Gi"},
    ),
    "values after a blank": (
        "#SBATCH --time 01:00:00\n#SBATCH --mem 80000\n#SBATCH --cpus-per-task 16\n",
        {"seconds": HOUR, "memory": "80000Mi", "cpus": "16"},
    ),
    "options cut to a prefix": (
        "#SBATCH --job=x --out=log --err=log --cpus-per-t=3\n", {"cpus": "3"},
    ),
    "mail": (
        "#SBATCH --mail-type=BEGIN,END,FAIL\n#SBATCH --mail-user=me@example.org\n"
        "#SBATCH --mail-type=ALL\n#SBATCH -n 2\n",
        {"cpus": "2", "tasks": (2, 2)},
    ),
    "wishes": (
        "#SBATCH --wait-all-nodes=1\n#SBATCH --open-mode=append\n#SBATCH --overcommit\n"
        "#SBATCH --nice\n#SBATCH --distribution=block:cyclic\n#SBATCH --requeue\n"
        "#SBATCH --switches=1@10:00\n#SBATCH --gpu-bind=none\n#SBATCH --export=ALL\n",
        {},
    ),
    "a job that does not restart": (
        "#SBATCH --no-requeue\n#SBATCH --hold\n", {"restarts": False},
    ),
    "after two jobs": (
        "#SBATCH --dependency=afterok:prep-1:prep-2,afterany:clean\n",
        {"after": ["prep-1 Succeeded", "prep-2 Succeeded", "clean Finished"]},
    ),
    "tasks by the other name": (
        "#SBATCH --tasks-per-node=4\n#SBATCH --nodes=1\n", {"cpus": "4", "tasks": (4, None)},
    ),
    "a template with an empty account": (
        "#SBATCH --account=   # your project\n#SBATCH --mail-user=\n#SBATCH --mem=2G\n",
        {"memory": "2Gi"},
    ),
    "a container": (
        "#SBATCH --container-image=nvcr.io#nvidia/pytorch:24.01-py3\n"
        "#SBATCH --container-mounts=/data:/data:ro,/scratch\n#SBATCH --gpus-per-node=1\n",
        {"gpus": 1},
    ),
    "a licence in front": (
        "# Copyright of somebody\n#\n\n#SBATCH --mem-per-gpu=20G --gpus=1\n",
        {"gpus": 1, "memory": "20Gi"},
    ),
}  # fmt: skip

#: Refused, since the result would be another one, with the words that say why.
REFUSED = {
    "#SBATCH --mem=4G\n#SBATCH --mem-per-cpu=1G\n": "--mem and --mem-per-cpu contradict",
    "#SBATCH -i table.csv\n": "--input cannot be honoured",
    "#SBATCH --environment=pytorch\n": "--environment cannot be honoured",
    "#SBATCH -N2 -C [a100|h100]\n": "nodes that are all alike",
}


def request_of(header: str) -> tuple[JobRequest, list[str]]:
    """Return the request of a header, and the messages of all problems."""
    read = parse_header(f"#!/bin/bash\n{header}\npython train.py\n", file="train.sh")
    request, problems = parse_request(read.givens, {}, read.batch, now=EPOCH)
    request, _, unknown = kinds_resolved(request, KNOWN)
    return request, [each.message for each in (*read.problems, *problems, *unknown)]


def summary(request: JobRequest) -> dict[str, Any]:
    """Return what the job of a request is, in the words of CASES."""
    script = Program((), Script("train.sh", "#!/bin/bash\ntrue\n"))
    job = build_job("job", request, script, Origin("/", "ana", {}))
    (role,), batch = job.spec.roles, request.batch
    assert batch is not None
    spec = role.template.spec
    asked = spec.containers[0].resources.requests
    return {
        "nodes": role.count,
        "least": role.least,
        "apart": apart(spec),
        "cpus": str(asked[quantity.CPU]),
        "gpus": int(asked.get(quantity.GPU, 0)),
        "memory": str(asked.get(quantity.MEMORY, "")),
        "seconds": job.spec.time_limit_seconds,
        "labels": labels(spec),
        "after": [f"{each.job} {each.state.value}" for each in job.spec.after],
        "restarts": job.spec.restart.policy is not RestartPolicy.NEVER,
        "tasks": (batch.tasks_per_node, batch.tasks),
    }


def apart(spec: PodSpec) -> str:
    """Return of which members a member keeps off: of its own job, or of all."""
    rules = spec.affinity.pod_anti_affinity if spec.affinity else None
    if rules is None:
        return ""
    (term,) = rules.required
    assert term.topology_key == names.HOSTNAME
    return "own" if term.match_label_keys == (names.JOB_UID, names.ROLE) else "all"


def labels(spec: PodSpec) -> list[str]:
    """Return what labels of a node must be."""
    node = spec.affinity.node_affinity if spec.affinity else None
    found = [f"{key} In {value}" for key, value in spec.node_selector.items()]
    if node is not None and node.required is not None:
        for number, term in enumerate(node.required.node_selector_terms):
            found += ["or"] if number else []
            found += [f"{r.key} {r.operator} {','.join(r.values)}" for r in term.match_expressions]
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_header_is_taken_whole_and_means_what_it_says(case: str) -> None:
    header, expected = CASES[case]
    request, problems = request_of(header)
    assert problems == []
    assert summary(request) == PLAIN | expected


@pytest.mark.parametrize("header", REFUSED)
def test_what_would_give_another_result_is_refused(header: str) -> None:
    assert [REFUSED[header] in problem for problem in request_of(header)[1]] == [True]
