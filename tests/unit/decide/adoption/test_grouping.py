"""Which pods belong together, by what ten tools write on them, and what their objects say."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import ObjectMeta, OwnerReference
from fairlead.decide.adoption.sources import Ended, read_source
from fairlead.model.pools.grouping import Group, GroupSource, Tool, is_concerned, membership_of
from fairlead.testing.builders import make_job, make_pod


def pod(
    name: str = "p-0",
    labels: dict[str, str] | None = None,
    notes: dict[str, str] | None = None,
    owner: tuple[str, str, str] | None = None,
) -> Pod:
    owners: tuple[OwnerReference, ...] = ()
    if owner is not None:
        api_version, kind, owner_name = owner
        owners = (OwnerReference(api_version, kind, owner_name, f"uid-{owner_name}", True),)
    meta = ObjectMeta(
        namespace="team", name=name, uid=f"uid-{name}", labels=labels or {},
        annotations=notes or {}, owner_references=owners,
    )  # fmt: skip
    return Pod(metadata=meta)


BATCH = "batch.kubernetes.io"
JOB_SET = "jobset.sigs.k8s.io"
LWS = "leaderworkerset.sigs.k8s.io"
KUBEFLOW = "training.kubeflow.org"
#: The pod, its tool, the name of its group, its role, its index and the size that it says.
TOLD: list[tuple[str, Pod, Tool, str, str, int | None, int | None]] = [
    (
        "indexed job",
        pod("t-3-x", {f"{BATCH}/job-completion-index": "3"}, owner=("batch/v1", "Job", "t")),
        Tool.JOB, "t", "worker", 3, None,
    ),
    (
        "plain job", pod("t-abc", owner=("batch/v1", "Job", "t")),
        Tool.JOB, "t", "worker", None, None,
    ),
    (
        "stateful set",
        pod("web-12", notes={names.GROUP_SIZE: "16"}, owner=("apps/v1", "StatefulSet", "web")),
        Tool.STATEFUL_SET, "web", "worker", 12, 16,
    ),
    (
        "job set",
        pod(
            labels={
                f"{JOB_SET}/jobset-name": "s", f"{JOB_SET}/replicatedjob-name": "ps",
                "batch.kubernetes.io/job-completion-index": "1",
            },
            owner=("batch/v1", "Job", "s-ps-0"),
        ),
        Tool.JOB_SET, "s", "ps", None, None,
    ),
    (
        "leader of a leader-worker set",
        pod(
            labels={f"{LWS}/name": "l", f"{LWS}/group-index": "2", f"{LWS}/worker-index": "0"},
            notes={f"{LWS}/size": "4"}, owner=("apps/v1", "StatefulSet", "l"),
        ),
        Tool.LEADER_WORKER_SET, "l-2", "leader", 0, 4,
    ),
    (
        "worker of a leader-worker set",
        pod(
            labels={f"{LWS}/name": "l", f"{LWS}/group-index": "2", f"{LWS}/worker-index": "3"},
            owner=("apps/v1", "StatefulSet", "l-2"),
        ),
        Tool.LEADER_WORKER_SET, "l-2", "worker", 2, None,
    ),
    (
        "PyTorchJob",
        pod(
            labels={
                f"{KUBEFLOW}/job-name": "bert", f"{KUBEFLOW}/replica-type": "master",
                f"{KUBEFLOW}/replica-index": "0",
                f"{KUBEFLOW}/operator-name": "pytorchjob-controller",
            },
            owner=("kubeflow.org/v1", "PyTorchJob", "bert"),
        ),
        Tool.KUBEFLOW, "bert", "master", 0, None,
    ),
    (
        "launcher of an MPIJob, which is the pod of a job",
        pod(
            labels={
                f"{KUBEFLOW}/job-name": "pi", f"{KUBEFLOW}/job-role": "launcher",
                f"{KUBEFLOW}/operator-name": "mpi-operator",
            },
            owner=("batch/v1", "Job", "pi-launcher"),
        ),
        Tool.KUBEFLOW, "pi", "launcher", None, None,
    ),
    (
        "scheduler-plugins",
        pod(labels={"scheduling.x-k8s.io/pod-group": "g"}, owner=("batch/v1", "Job", "t")),
        Tool.POD_GROUP, "g", "worker", None, None,
    ),
    (
        "Volcano",
        pod(
            labels={"volcano.sh/task-spec": "ps", "volcano.sh/task-index": "1"},
            notes={
                "scheduling.k8s.io/group-name": "v",
                "scheduling.volcano.sh/group-min-member": "5",
            },
        ),
        Tool.VOLCANO, "v", "ps", 1, 5,
    ),
    (
        "Ray head",
        pod(
            labels={"ray.io/cluster": "r", "ray.io/node-type": "head", "ray.io/group": "headgroup"},
            owner=("ray.io/v1", "RayCluster", "r"),
        ),
        Tool.RAY, "r", "head", None, None,
    ),
    (
        "Kueue's plain pods",
        pod(
            labels={"kueue.x-k8s.io/pod-group-name": "k"},
            notes={"kueue.x-k8s.io/pod-group-total-count": "3"},
        ),
        Tool.NAMED, "k", "worker", None, 3,
    ),
    (
        "our own label",
        pod(labels={names.GANG_NAME: "mine"}, notes={names.GROUP_SIZE: "2"}),
        Tool.NAMED, "mine", "worker", None, 2,
    ),
    (
        "a deployment that says its size",
        pod("d-1", notes={names.GROUP_SIZE: "6"}, owner=("apps/v1", "ReplicaSet", "d")),
        Tool.OWNED, "d", "worker", None, 6,
    ),
    (
        "nothing said", pod("d-1", owner=("apps/v1", "ReplicaSet", "d")),
        Tool.POD, "d-1", "worker", 0, 1,
    ),
]  # fmt: skip


@pytest.mark.parametrize("told", TOLD, ids=lambda told: told[0])
def test_a_pod_is_known_by_what_its_tool_writes(told: Any) -> None:
    _, given, tool, name, role, index, size = told
    found = membership_of(given)
    assert (found.group.tool, found.group.name) == (tool, name)
    assert (found.role, found.index, found.size) == (role, index, size)
    assert found.group.key[0] == "team"
    assert found.group.key[1].startswith(name)


def test_groups_of_equal_names_and_other_tools_or_owners_have_other_jobs() -> None:
    pods = [given for _, given, tool, *_ in TOLD if tool is not Tool.LEADER_WORKER_SET]
    pods.append(pod("t-0", owner=("apps/v1", "StatefulSet", "t")))
    other = OwnerReference("batch/v1", "Job", "t", "another-uid", True)
    pods.append(Pod(metadata=ObjectMeta(namespace="team", name="t-1", owner_references=(other,))))
    keys = [membership_of(each).group.key for each in pods]
    assert len(dict.fromkeys(keys)) == len(keys) - 1  # both pods of job t, with one uid, are one


#: Pods of tools that make objects of other kinds, or that put their names on labels.
NAMED_BY_LABELS = [
    told for told in TOLD
    if told[2] in (Tool.JOB_SET, Tool.LEADER_WORKER_SET, Tool.KUBEFLOW, Tool.RAY)
]  # fmt: skip
#: A controller that is the tool's in kind but not in name, others that are not, and none.
STRANGERS: list[tuple[str, str, str] | None] = [
    None,
    ("batch/v1", "Job", "stranger"), ("apps/v1", "StatefulSet", "stranger"),
    ("kubeflow.org/v1", "PyTorchJob", "stranger"), ("ray.io/v1", "RayCluster", "stranger"),
    ("example.com/v1", "RayCluster", "r"), ("example.com/v1", "PyTorchJob", "bert"),
    ("example.com/v1", "StatefulSet", "l"), ("example.com/v1", "Job", "s-ps-0"),
    ("batch/v1", "Job", "s-ps-x"), ("batch/v1", "Job", "s-other-0"),
    ("apps/v1", "StatefulSet", "l-3"), ("batch/v1", "Job", "bert-launcher"),
]  # fmt: skip


@pytest.mark.parametrize("told", NAMED_BY_LABELS, ids=lambda told: told[0])
@pytest.mark.parametrize("stranger", STRANGERS, ids=str)
def test_a_pod_that_its_tool_does_not_control_is_no_member_whatever_it_says(
    told: Any, stranger: tuple[str, str, str] | None
) -> None:
    _, given, tool, *_ = told
    meta = given.metadata
    forged = pod("forged", dict(meta.labels), dict(meta.annotations), stranger)
    genuine, found = membership_of(given), membership_of(forged)
    assert genuine.group.tool is tool
    assert found.group.key != genuine.group.key
    assert found.group.tool in (Tool.POD, Tool.JOB, Tool.STATEFUL_SET, Tool.OWNED)


def test_a_reference_that_controls_nothing_makes_no_member() -> None:
    labels = {"ray.io/cluster": "r", "ray.io/node-type": "head"}
    genuine = pod("p", labels, owner=("ray.io/v1", "RayCluster", "r"))
    (owner,) = genuine.metadata.owner_references
    loose = replace(owner, controller=False)
    forged = replace(genuine, metadata=replace(genuine.metadata, owner_references=(loose,)))
    assert membership_of(genuine).group.tool is Tool.RAY
    assert membership_of(forged).group.tool is Tool.POD


def test_a_job_of_a_tool_made_anew_by_the_same_name_is_another_group() -> None:
    first = pod("p", {f"{KUBEFLOW}/job-name": "b"}, owner=("kubeflow.org/v1", "PyTorchJob", "b"))
    (owner,) = first.metadata.owner_references
    later = replace(owner, uid="later")
    second = replace(first, metadata=replace(first.metadata, owner_references=(later,)))
    assert membership_of(first).group.tool is membership_of(second).group.tool is Tool.KUBEFLOW
    assert membership_of(first).group.key != membership_of(second).group.key


NAMING = [
    {names.GANG_NAME: "g"}, {"kueue.x-k8s.io/pod-group-name": "g"},
    {"scheduling.x-k8s.io/pod-group": "g"}, {"scheduling.k8s.io/group-name": "g"},
]  # fmt: skip


def keys_of(naming: dict[str, str], *pods: Pod) -> list[tuple[str, str]]:
    """The groups of pods that all name the same one."""
    out: list[tuple[str, str]] = []
    for each in pods:
        meta = replace(each.metadata, labels={**each.metadata.labels, **naming})
        membership = membership_of(replace(each, metadata=meta))
        assert membership.group.name == "g"
        out.append(membership.group.key)
    return out


@pytest.mark.parametrize("naming", NAMING, ids=str)
def test_two_owners_that_use_one_name_have_two_groups(naming: dict[str, str]) -> None:
    job = ("batch/v1", "Job", "a")
    one, same, other, set_, bare, bare_too = keys_of(
        naming, pod("p-0", owner=job), pod("p-1", owner=job), pod(owner=("batch/v1", "Job", "b")),
        pod(owner=("apps/v1", "StatefulSet", "a")), pod("p-2"), pod("p-3"),
    )  # fmt: skip
    assert one == same
    assert bare == bare_too
    assert len(dict.fromkeys((one, other, set_, bare))) == 4


@pytest.mark.parametrize("naming", NAMING, ids=str)
def test_the_pods_of_one_object_are_one_owners_whichever_controllers_made_them(
    naming: dict[str, str],
) -> None:
    mpi = {f"{KUBEFLOW}/job-name": "pi", f"{KUBEFLOW}/operator-name": "mpi-operator"}
    launcher, worker = keys_of(
        naming, pod(labels=mpi, owner=("batch/v1", "Job", "pi-launcher")),
        pod(labels=mpi, owner=("kubeflow.org/v2beta1", "MPIJob", "pi")),
    )  # fmt: skip
    assert launcher == worker
    in_set = {f"{JOB_SET}/jobset-name": "s", f"{JOB_SET}/replicatedjob-name": "w"}
    first, second = keys_of(
        naming, *(pod(labels=in_set, owner=("batch/v1", "Job", f"s-w-{i}")) for i in range(2))
    )
    assert first == second
    old, new, other = keys_of(
        naming,
        *(
            pod(
                labels={"pod-template-hash": revision},
                owner=("apps/v1", "ReplicaSet", f"{name}-{revision}"),
            )
            for name, revision in (("d", "5f"), ("d", "6c"), ("e", "5f"))
        ),
    )
    assert old == new != other


def test_a_name_that_is_no_label_still_gives_a_job_a_name() -> None:
    key = membership_of(pod(labels={names.GANG_NAME: "Run_42." + "x" * 80})).group.key[1]
    assert len(key) <= 63
    assert key.startswith("run-42")


def test_members_of_fairleads_own_jobs_take_no_part() -> None:
    owned = make_pod("m", owner=make_job("j"), labels={names.JOB_UID: "u"})
    assert not is_concerned(owned)
    assert not is_concerned(pod())
    assert is_concerned(pod(labels={names.GANG_SCHEDULING: "enabled"}))


def read(
    tool: Tool, spec: dict[str, Any], conditions: Any = (), notes: dict[str, str] | None = None
) -> Any:
    group = Group(("team", "g"), tool, "g", GroupSource("x/v1", "X", "g"))
    meta = {"uid": "u", "annotations": notes or {}}
    document = {"metadata": meta, "spec": spec, "status": {"conditions": conditions}}
    return read_source(group.tool, document)


SIZES: list[tuple[Tool, dict[str, Any], dict[str, int]]] = [
    (Tool.JOB, {"parallelism": 4, "completions": 9}, {"worker": 4}),
    (Tool.JOB, {"parallelism": 8, "completions": 3}, {"worker": 3}),
    (Tool.JOB, {}, {"worker": 1}),
    (Tool.STATEFUL_SET, {"replicas": 5, "podManagementPolicy": "Parallel"}, {"worker": 5}),
    (
        Tool.JOB_SET,
        {
            "replicatedJobs": [
                {"name": "ps", "template": {"spec": {"parallelism": 1}}},
                {
                    "name": "w", "replicas": 3,
                    "template": {"spec": {"parallelism": 4, "completions": 4}},
                },
            ]
        },
        {"ps": 1, "w": 12},
    ),
    (Tool.LEADER_WORKER_SET, {"leaderWorkerTemplate": {"size": 4}}, {"leader": 1, "worker": 3}),
    (Tool.LEADER_WORKER_SET, {"leaderWorkerTemplate": {"size": 1}}, {"leader": 1}),
    (
        Tool.KUBEFLOW,
        {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 7}}},
        {"master": 1, "worker": 7},
    ),
    (
        Tool.KUBEFLOW,
        {
            "mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 2}},
            "launcherCreationPolicy": "WaitForWorkersReady",
        },
        {"worker": 2},
    ),
    (
        Tool.RAY,
        {"workerGroupSpecs": [{"groupName": "gpu", "replicas": 3, "numOfHosts": 2}]},
        {"head": 1, "gpu": 6},
    ),
    (
        Tool.RAY,
        {
            "workerGroupSpecs": [
                {"groupName": "gpu", "replicas": 9, "minReplicas": 1, "maxReplicas": 4},
                {"groupName": "cpu", "replicas": 0, "minReplicas": 2, "maxReplicas": 4},
                {"groupName": "out", "replicas": 3, "suspend": True},
            ]
        },
        {"head": 1, "gpu": 4, "cpu": 2},
    ),
    (
        Tool.RAY,
        {
            "enableInTreeAutoscaling": True,
            "workerGroupSpecs": [{"groupName": "gpu", "replicas": 3, "minReplicas": 1}],
        },
        {"head": 1, "gpu": 1},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "spec", "roles"), SIZES)
def test_an_owner_says_how_many_members_each_role_has(
    tool: Tool, spec: dict[str, Any], roles: dict[str, int]
) -> None:
    facts = read(tool, spec)
    assert (dict(facts.roles), facts.problem, facts.uid) == (roles, "", "u")


def test_pod_groups_say_how_many_are_enough() -> None:
    assert read(Tool.POD_GROUP, {"minMember": 3}).total == 3
    assert read(Tool.VOLCANO, {"minMember": 5}).total == 5


@pytest.mark.parametrize(
    ("tool", "spec", "words"),
    [
        (Tool.STATEFUL_SET, {"replicas": 2}, "podManagementPolicy: Parallel"),
        (Tool.LEADER_WORKER_SET, {"startupPolicy": "LeaderReady"}, "LeaderCreated"),
        (Tool.JOB_SET, {"startupPolicy": {"startupPolicyOrder": "InOrder"}}, "InOrder"),
        (Tool.JOB_SET, {"replicatedJobs": [{"name": "b", "dependsOn": [{}]}]}, "dependsOn"),
    ],
)  # fmt: skip
def test_what_starts_one_after_another_is_no_gang_and_is_told_why(
    tool: Tool, spec: dict[str, Any], words: str
) -> None:
    assert words in read(tool, spec).problem


def test_pods_that_are_created_once_a_first_one_has_its_node_are_no_gang() -> None:
    exclusive, own_nodes = (
        f"alpha.{JOB_SET}/{each}" for each in ("exclusive-topology", "node-selector")
    )
    jobs = [{"name": "w", "template": {"spec": {"parallelism": 2}}}]
    set_, zone = {"replicatedJobs": jobs}, {exclusive: "zone"}
    assert "job w" in read(Tool.JOB_SET, set_, notes=zone).problem
    assert read(Tool.JOB_SET, set_, notes={**zone, own_nodes: "true"}).problem == ""
    template = {"metadata": {"annotations": zone}, "spec": {"parallelism": 2}}
    one = {"replicatedJobs": [{"name": "w", "template": template}]}
    assert "job w" in read(Tool.JOB_SET, one).problem
    single = {"replicatedJobs": [{"name": "w", "template": {"spec": {"parallelism": 1}}}]}
    assert read(Tool.JOB_SET, single, notes=zone).problem == ""
    zone = {f"{LWS}/exclusive-topology": "zone"}
    four, lone = ({"leaderWorkerTemplate": {"size": size}} for size in (4, 1))
    assert "leader" in read(Tool.LEADER_WORKER_SET, four, notes=zone).problem
    assert read(Tool.LEADER_WORKER_SET, lone, notes=zone).problem == ""


def test_an_owner_says_that_it_is_suspended() -> None:
    for spec in ({"suspend": True}, {"runPolicy": {"suspend": True}}):
        assert read(Tool.KUBEFLOW, spec).is_suspended
        assert not read(Tool.KUBEFLOW, {"suspend": False, "runPolicy": {}}).is_suspended


@pytest.mark.parametrize(
    ("type_", "ended"),
    [
        ("Complete", Ended.SUCCEEDED), ("Completed", Ended.SUCCEEDED),
        ("Succeeded", Ended.SUCCEEDED), ("Failed", Ended.FAILED), ("Running", None),
    ],
)  # fmt: skip
def test_an_owner_says_that_it_has_ended(type_: str, ended: Ended | None) -> None:
    assert read(Tool.JOB, {}, [{"type": type_, "status": "True"}]).ended is ended
    assert read(Tool.JOB, {}, [{"type": type_, "status": "False"}]).ended is None


def test_a_job_with_more_completions_than_room_goes_in_rounds() -> None:
    assert read(Tool.JOB, {"parallelism": 2, "completions": 5}).has_more_rounds
    assert not read(Tool.JOB, {"parallelism": 5, "completions": 5}).has_more_rounds
    assert not read(Tool.JOB, {"parallelism": 5}).has_more_rounds
