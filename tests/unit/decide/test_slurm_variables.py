"""The variables of Slurm in the members of a batch script."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Job, Role
from fairlead.api.jobs.placement import RolePlacement
from fairlead.api.kubernetes.core import EnvVar, Pod
from fairlead.decide.jobs.following.pods import AttemptPods
from fairlead.decide.jobs.policy import JobsPolicy, PeerNaming
from fairlead.decide.jobs.rendering.members import gang_map, missing_pods
from fairlead.decide.jobs.rendering.slurm_variables import (
    NTASKS,
    OF_LAUNCHERS,
    SLURM_VARIABLES,
    compressed,
    het_name,
    repeated,
    slurm_variables,
)
from fairlead.member import batch as member_batch
from fairlead.member.hostlist import expand_hosts
from fairlead.testing.builders import make_job, make_placement

DNS = JobsPolicy(peer_naming=PeerNaming.DNS)


def batch(tasks: str, nodes: int, attempt: int = 1) -> Job:
    """A placed job of a batch script with so many nodes."""
    hosts = [f"n{i}" for i in range(nodes)]
    job = make_job("ddp", count=nodes, placement=make_placement(hosts, attempt=attempt))
    (role,) = job.spec.roles
    metadata = replace(role.template.metadata, annotations={names.SLURM_TASKS: tasks})
    role = replace(role, template=replace(role.template, metadata=metadata))
    spec = replace(job.spec, roles=(role,))
    return replace(job, spec=spec, status=replace(job.status, attempt=attempt))


def asking(role: Role, **variables: str) -> Role:
    """A role whose script asked for something, as variables of its template say."""
    (container,) = role.template.spec.containers
    env = tuple(EnvVar(name, value) for name, value in variables.items())
    spec = replace(role.template.spec, containers=(replace(container, env=env),))
    return replace(role, template=replace(role.template, spec=spec))


def pods_of(job: Job) -> list[Pod]:
    return list(missing_pods(job, DNS, AttemptPods(), resume_step=None))


def test_members_of_a_batch_script_see_the_variables_of_slurm() -> None:
    found = gang_map(batch("3/5", 2, attempt=3), DNS, AttemptPods()).data
    assert {name: found[name] for name in SLURM_VARIABLES} == {
        "SLURM_NNODES": "2",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_CPUS_PER_NODE": "1(x2)",
        "SLURM_NTASKS": "5",
        "SLURM_NPROCS": "5",
        "SLURM_TASKS_PER_NODE": "3,2",
        "SLURM_RESTART_COUNT": "2",
        "SLURM_JOB_NODELIST": "worker-[0-1].ddp-peers.default.svc",
        "SLURM_NODELIST": "worker-[0-1].ddp-peers.default.svc",
        "SLURMD_NODENAME": "worker-0.ddp-peers.default.svc",
    }
    assert expand_hosts(found["SLURM_NODELIST"])[0] == found["MASTER_ADDR"]


def test_each_component_of_a_heterogeneous_job_has_its_own_and_the_script_those_of_the_first() -> (
    None
):
    (first,), (second,) = (batch(tasks, n).spec.roles for tasks, n in (("1/1", 1), ("2/3", 2)))
    second = asking(second, SLURM_CPUS_ON_NODE="8")
    roles = (replace(first, name="het0"), replace(second, name="het1"))
    job = batch("1", 1)
    placed = tuple(RolePlacement(r.name, tuple(f"n{i}" for i in range(r.count))) for r in roles)
    placement = replace(job.status.placement, roles=placed)
    status = replace(job.status, placement=placement, number=7)
    job = replace(job, spec=replace(job.spec, roles=roles), status=status)
    found = gang_map(job, DNS, AttemptPods()).data
    of_slurm = {name: value for name, value in found.items() if name.startswith("SLURM_")}
    own = {
        "SLURM_NNODES": ("1", "2"), "SLURM_JOB_NUM_NODES": ("1", "2"), "SLURM_NTASKS": ("1", "3"),
        "SLURM_NPROCS": ("1", "3"), "SLURM_TASKS_PER_NODE": ("1", "2,1"),
        "SLURM_JOB_CPUS_PER_NODE": ("1", "8(x2)"),
        "SLURM_JOB_ID": ("7", "7"), "SLURM_JOBID": ("7", "7"),
    }  # fmt: skip
    lists = "het0-0.ddp-peers.default.svc", "het1-[0-1].ddp-peers.default.svc"
    own |= dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), lists)
    assert of_slurm == {
        **{name: values[0] for name, values in own.items()},
        **{het_name(name, i): values[i] for name, values in own.items() for i in (0, 1)},
        "SLURM_HET_SIZE": "2", "SLURM_RESTART_COUNT": "0",
    }  # fmt: skip
    assert found["WORLD_SIZE"] == "3", "RANK and WORLD_SIZE are of the whole gang"
    lone = asking(roles[0], SLURM_HET_SIZE="9")
    forged = replace(job, spec=replace(job.spec, roles=(lone, roles[1])))
    env = {each.name for each in pods_of(forged)[0].spec.containers[0].env}
    assert "SLURM_HET_SIZE" not in env, "a template does not say how many components there are"


def test_a_lone_member_has_them_in_its_pod() -> None:
    (pod,) = pods_of(batch("4", 1))
    found = {each.name: each.value for each in pod.spec.containers[0].env}
    assert (found["SLURM_NTASKS"], found["SLURM_TASKS_PER_NODE"]) == ("4", "4")
    assert found["SLURM_JOB_NODELIST"] == found["SLURMD_NODENAME"] == "localhost"


@pytest.mark.parametrize("nodes", [1, 2])
def test_tasks_are_counted_where_they_were_asked_for(nodes: int) -> None:
    """Lightning takes the variable for the sign that srun has started it."""
    job = batch("1", nodes)
    (role,) = job.spec.roles
    asked = asking(role, SLURM_NTASKS_PER_NODE="1")
    for each, count in ((role, None), (asked, str(nodes))):
        found = slurm_variables(replace(job, spec=replace(job.spec, roles=(each,))))
        assert found["SLURM_TASKS_PER_NODE"]
        assert {found.get(name) for name in NTASKS} == {count}


def test_a_script_that_runs_as_it_is_has_no_rank_since_no_launcher_started_it() -> None:
    """torchvision and accelerate would join a gang of one, Lightning would start no processes."""

    def seen(job: Job) -> set[str]:
        return {each.name for each in pods_of(job)[0].spec.containers[0].env}

    lone = batch("1", 1)
    assert not seen(lone) & OF_LAUNCHERS
    assert seen(lone) >= {"PET_NNODES", "PET_NODE_RANK", "MASTER_ADDR"}
    assert seen(make_job("own", placement=make_placement(["n0"]))) >= OF_LAUNCHERS
    (role,) = lone.spec.roles
    notes = {**role.template.metadata.annotations, names.MPI: "true"}
    metadata = replace(role.template.metadata, annotations=notes)
    role = replace(role, template=replace(role.template, metadata=metadata))
    started = replace(lone, spec=replace(lone.spec, roles=(role,)))
    assert seen(started) >= OF_LAUNCHERS, "fairlead.member.batch reads them"
    assert member_batch.OF_LAUNCHERS == OF_LAUNCHERS, "and its script does not"


@pytest.mark.parametrize("tasks", ["", "0", "x", "1/0", "-1"])
def test_other_jobs_have_none_of_them(tasks: str) -> None:
    (pod,) = pods_of(batch(tasks, 1))
    assert [v.name for v in pod.spec.containers[0].env if v.name.startswith("SLURM_")] == []
    data = gang_map(batch(tasks, 2), DNS, AttemptPods()).data
    assert [name for name in data if name.startswith("SLURM_")] == []


def test_names_of_hosts_survive_the_way_into_brackets_and_back() -> None:
    rng = random.Random(0)
    for _ in range(300):
        hosts = [
            f"{rng.choice(['n', 'gpu-', 'rack1-n', '127.0.3.'])}{number:0{rng.choice([1, 2, 3])}d}"
            + rng.choice(["", "", "-ib", ".example.org"])
            for number in (rng.randrange(120) for _ in range(rng.randrange(1, 12)))
        ]
        assert list(expand_hosts(compressed(hosts))) == hosts
    assert compressed(f"n{i:03d}" for i in range(1, 65)) == "n[001-064]"


def test_counts_are_written_as_slurm_does() -> None:
    assert repeated([8, 8, 4]) == "8(x2),4"
    assert repeated([1]) == "1"
