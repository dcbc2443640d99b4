"""What a member is made of, and how the pods of a gang are counted."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Checkpoint, Job, Progress
from fairlead.api.kubernetes.core import Container, EnvVar, Pod, PodStatus, Volume
from fairlead.api.kubernetes.pod_parts import EnvFromSource, EnvironmentReference
from fairlead.decide.jobs.following.pods import NO_PODS, JobPods, MemberPhase, read_member
from fairlead.decide.jobs.policy import JobsPolicy, PeerNaming
from fairlead.decide.jobs.rendering.checkpoints import checkpoint_volume
from fairlead.decide.jobs.rendering.members import gang_map, missing_pods
from fairlead.embedded.local.containers import launch_of
from fairlead.testing.builders import make_job, make_placement, make_role

from .jobs_world import World, new_job


def _placed(**kwargs: object) -> Job:
    roles = (make_role("master", count=1), make_role("worker", count=3))
    placement = make_placement({"master": ["a"], "worker": ["b", "b", "c"]})
    return make_job("train", roles=roles, placement=placement, **kwargs)  # type: ignore[arg-type] # passed on


def _pods(job: Job, policy: JobsPolicy | None = None, step: int | None = None) -> list[Pod]:
    return list(missing_pods(job, policy or JobsPolicy(), NO_PODS, resume_step=step))


class _Maps:
    """ConfigMaps by name, as containers find them."""

    def __init__(self, data: Mapping[str, Mapping[str, str]]) -> None:
        self._data = data

    def config_map(self, name: str) -> Mapping[str, str] | None:
        return self._data.get(name)

    def secret(self, name: str) -> Mapping[str, str] | None:
        del name
        return None


def _env(
    job: Job, pod: Pod, container: int = 0, policy: JobsPolicy | None = None, **maps: dict[str, str]
) -> dict[str, str]:
    """Return the variables of a member's container, made as a kubelet makes them."""
    known = dict[str, Mapping[str, str]](maps)
    if job.member_count > 1:
        named = JobPods.of(replace(p, status=PodStatus(pod_ip="10.0.0.1")) for p in _pods(job))
        shared = gang_map(job, policy or JobsPolicy(), named.attempt(1))
        known[shared.metadata.name] = shared.data
    spec = replace(pod.spec.containers[container], command=("true",))
    launch = launch_of(pod, spec, _Maps(known), pod_ip="10.0.0.9", mounts=(), base={}, cwd="/")
    return launch.env


def _with_container(job: Job, container: Container) -> Job:
    """Return the job with this container in the templates of all roles."""
    roles = tuple(
        replace(
            r, template=replace(r.template, spec=replace(r.template.spec, containers=(container,)))
        )
        for r in job.spec.roles
    )
    return replace(job, spec=replace(job.spec, roles=roles))


def test_members_are_ranked_by_role_order_then_index() -> None:
    pods = _pods(_placed())
    assert [p.metadata.name for p in pods] == [
        "train-1-master-0", "train-1-worker-0", "train-1-worker-1", "train-1-worker-2",
    ]  # fmt: skip
    assert [p.spec.node_name for p in pods] == ["a", "b", "b", "c"]
    assert [p.metadata.labels[names.RANK] for p in pods] == ["0", "1", "2", "3"]
    assert [p.metadata.labels[names.INDEX] for p in pods] == ["0", "0", "1", "2"]


def test_a_member_knows_its_gang_from_its_environment() -> None:
    job, policy = _placed(), JobsPolicy(checkpoint_root="/ckpt")
    job = replace(job, status=replace(job.status, number=36))
    pod = _pods(job, policy, step=40)[2]
    assert _env(job, pod, policy=policy) == {
        "FAIRLEAD_JOB": "train",
        "FAIRLEAD_JOB_UID": "job-default-train",
        "SLURM_JOB_ID": "36",
        "SLURM_JOBID": "36",
        "FAIRLEAD_ATTEMPT": "1",
        "FAIRLEAD_ROLE": "worker",
        "FAIRLEAD_INDEX": "1",
        "FAIRLEAD_HOSTFILE": "/etc/fairlead/hostfile",
        "FAIRLEAD_PROGRESS_FILE": "/dev/termination-log",
        "FAIRLEAD_RUN_FILE": "/dev/termination-log",
        "FAIRLEAD_CHECKPOINT_DIR": "/ckpt/default/train-job-defa",
        "FAIRLEAD_RESUME_STEP": "40",
        "RANK": "2",
        "GROUP_RANK": "2",
        "NODE_RANK": "2",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "PET_NNODES": "4",
        "PET_NODE_RANK": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": "10.0.0.1",
        "PET_MASTER_PORT": "29500",
    }
    assert pod.spec.restart_policy == "Never"
    [owner] = pod.metadata.owner_references
    assert (owner.kind, owner.uid, owner.controller) == ("Job", "job-default-train", True)
    mounts = {m.name: m.mount_path for m in pod.spec.containers[0].volume_mounts}
    assert mounts == {
        "fairlead-peers": "/etc/fairlead",
        "fairlead-checkpoint": "/ckpt/default/train-job-defa",
    }


def test_a_member_is_of_the_team_that_its_place_was_given_to() -> None:
    job = _placed()
    assert job.status.placement is not None
    placement = replace(job.status.placement, team="vision")
    for own in ("", "speech"):
        moved = replace(
            job,
            spec=replace(job.spec, team=own),
            status=replace(job.status, placement=placement),
        )
        assert {pod.metadata.labels[names.TEAM] for pod in _pods(moved)} == {"vision"}


def test_a_member_of_a_gang_carries_only_what_distinguishes_it() -> None:
    [container] = _pods(_placed())[2].spec.containers
    assert [(v.name, v.value) for v in container.env] == [
        ("FAIRLEAD_ROLE", "worker"), ("FAIRLEAD_INDEX", "1"),
        ("RANK", "2"), ("GROUP_RANK", "2"), ("NODE_RANK", "2"), ("PET_NODE_RANK", "2"),
    ]  # fmt: skip
    assert container.env_from == (
        EnvFromSource(config_map_ref=EnvironmentReference("train-1-gang")),
    )


def test_a_lone_member_sees_the_same_variables_and_needs_no_config_map() -> None:
    lone = make_job("train", count=1, placement=make_placement(["n1"]))
    gang = make_job("train", count=2, placement=make_placement(["n1", "n2"]))
    [pod] = _pods(lone, step=40)
    own, shared = _env(lone, pod), _env(gang, _pods(gang, step=40)[0])
    differing = {"WORLD_SIZE": "1", "PET_NNODES": "1"} | dict.fromkeys(
        ("MASTER_ADDR", "PET_MASTER_ADDR"), "10.0.0.9"
    )
    assert own == shared | differing, "its own address keeps the ports of two jobs apart"
    [dns] = _pods(lone, JobsPolicy(peer_naming=PeerNaming.DNS))
    assert _env(lone, dns)["MASTER_ADDR"] == "localhost"
    [volume] = pod.spec.volumes
    assert (volume.name, volume.config_map) == ("fairlead-peers", None)
    assert volume.downward_api is not None
    [file] = volume.downward_api.items
    assert file.path == "hostfile"
    assert file.field_ref is not None
    assert file.field_ref.field_path == "metadata.annotations['fairlead.dev/hostfile']"
    assert pod.metadata.annotations["fairlead.dev/hostfile"] == "localhost slots=1\n"


@pytest.mark.parametrize("count", [1, 2])
def test_ours_wins_over_the_template_but_for_what_the_user_may_set(count: int) -> None:
    placement = make_placement([f"n{i}" for i in range(count)])
    job = make_job("train", count=count, placement=placement)
    [container] = job.spec.roles[0].template.spec.containers
    named = ("RANK", "MASTER_PORT", "MASTER_ADDR", "FAIRLEAD_JOB", "FAIRLEAD_ROLE", "MINE")
    theirs = tuple(EnvVar(name, "theirs") for name in named)
    sums = (EnvVar("SUM", "$(RANK) of $(WORLD_SIZE) at $(MASTER_ADDR)"),)
    source = (EnvFromSource(config_map_ref=EnvironmentReference("mine")),)
    container = replace(container, env=theirs + sums, env_from=source)
    job = _with_container(job, replace(container))
    pod = _pods(job)[0]
    env = _env(job, pod, mine={"WORLD_SIZE": "mine", "RANK": "mine", "OTHER": "mine"})
    assert (env["RANK"], env["FAIRLEAD_JOB"], env["FAIRLEAD_ROLE"]) == ("0", "train", "worker")
    assert (env["WORLD_SIZE"], env["OTHER"]) == (str(count), "mine")
    assert (env["MASTER_PORT"], env["MINE"]) == ("theirs", "theirs")
    assert env["MASTER_ADDR"] != "theirs"
    assert env["SUM"] == f"0 of {count} at {env['MASTER_ADDR']}"
    once = [v.name for v in pod.spec.containers[0].env]
    assert len(once) == len(set(once))


def test_every_container_of_a_member_has_our_variables_and_volumes_of_ours_replace_others() -> None:
    job = _placed()
    master, worker = job.spec.roles
    template = worker.template
    [container] = template.spec.containers
    own_file = replace(container, name="other", termination_message_path="/tmp/end")
    spec = replace(
        template.spec,
        containers=(container, own_file),
        volumes=(Volume("data"), Volume("fairlead-peers")),
    )
    worker = replace(worker, template=replace(template, spec=spec))
    job = replace(job, spec=replace(job.spec, roles=(master, worker)))
    pod = _pods(job)[1]
    first, second = (_env(job, pod, at) for at in (0, 1))
    assert first["FAIRLEAD_PROGRESS_FILE"] == "/dev/termination-log"
    ends = dict.fromkeys(("FAIRLEAD_PROGRESS_FILE", "FAIRLEAD_RUN_FILE"), "/tmp/end")
    assert second == first | ends
    assert [v.name for v in pod.spec.volumes] == ["data", "fairlead-peers"]


def test_only_missing_pods_are_made_and_absent_members_stay_away() -> None:
    job = _placed()
    have = JobPods.of(_pods(job)[:2])
    made = missing_pods(
        job, JobsPolicy(), have.attempt(1), resume_step=None, absent=[("worker", 2)]
    )
    assert [p.metadata.name for p in made] == ["train-1-worker-1"]


@pytest.mark.parametrize(
    ("checkpoint", "root", "directory", "source"),
    [
        (Checkpoint(path="/shared/run1"), "/ckpt", "/shared/run1", "host_path"),
        (
            Checkpoint(claim_name="data"),
            "/ckpt",
            "/var/lib/fairlead/checkpoint",
            "persistent_volume_claim",
        ),
        (Checkpoint(), "/ckpt", "/ckpt/default/train-job-defa", "host_path"),
        (None, "/ckpt", "/ckpt/default/train-job-defa", "host_path"),
        (None, "", None, ""),
    ],
)
def test_checkpoints_go_where_the_job_says_then_where_the_policy_says(
    checkpoint: Checkpoint | None, root: str, directory: str | None, source: str
) -> None:
    job = _placed(spec={"checkpoint": checkpoint})
    place = checkpoint_volume(job, JobsPolicy(checkpoint_root=root))
    assert (place.directory if place else None) == directory
    if place:
        assert getattr(place.volume, source) is not None
    again = checkpoint_volume(
        replace(job, status=replace(job.status, attempt=7)), JobsPolicy(checkpoint_root=root)
    )
    assert again == place, "the same for all attempts"


def test_a_directory_below_the_root_is_made_with_the_mode_of_the_root() -> None:
    place = checkpoint_volume(_placed(), JobsPolicy(checkpoint_root="/ckpt"))
    assert place is not None
    assert place.volume.host_path is not None
    assert place.volume.host_path.path == "/ckpt"
    assert place.mount.mount_path == place.directory
    assert place.mount.sub_path == "default/train-job-defa", "a kubelet copies the root's mode"


def test_with_dns_the_service_and_the_peers_come_with_the_pods() -> None:
    world = World(new_job(count=2), JobsPolicy(peer_naming=PeerNaming.DNS))
    world.settle()
    world.schedule()
    world.settle()
    [service] = world.services.values()
    assert (service.metadata.name, service.spec.cluster_ip) == ("train-peers", "None")
    shared = world.config_maps["train-1-gang"]
    assert shared.data["MASTER_ADDR"] == "worker-0.train-peers.default.svc"
    files = {name: b64decode(text).decode() for name, text in shared.binary_data.items()}
    assert files["hostfile"].splitlines()[1] == "worker-1.train-peers.default.svc slots=1"
    listed = json.loads(files["peers"])
    assert listed[1] == {
        "rank": 1, "role": "worker", "index": 1, "name": "train-1-worker-1",
        "address": "worker-1.train-peers.default.svc", "node": "n1",
    }  # fmt: skip
    spec = world.pods["train-1-worker-1"].spec
    assert (spec.hostname, spec.subdomain) == ("worker-1", "train-peers")
    world.run_pods()
    for name in sorted(world.pods):
        world.end_pod(name)
    world.settle()
    assert not world.services
    assert not world.config_maps


def test_with_dns_the_service_stays_from_attempt_to_attempt() -> None:
    world = World(new_job(count=2), JobsPolicy(peer_naming=PeerNaming.DNS))
    world.start()
    services = dict(world.services)
    world.end_pod("train-1-worker-0", signal=9)
    world.settle()
    world.reap_pods()
    world.settle()
    assert world.services == services, "in the back-off, too"
    assert not world.config_maps
    world.restart()
    assert (world.status.attempt, world.services) == (2, services)


def test_with_dns_a_member_alone_needs_no_service() -> None:
    world = World(new_job(count=1), JobsPolicy(peer_naming=PeerNaming.DNS))
    world.settle()
    world.schedule()
    world.settle()
    assert not world.services
    assert not world.config_maps
    [pod] = world.pods.values()
    assert (pod.spec.hostname, pod.spec.subdomain) == ("", "")


def test_the_list_of_peers_is_left_out_where_a_config_map_could_not_hold_it() -> None:
    nodes = [f"n{i}" for i in range(6000)]
    job = make_job("big", count=6000, placement=make_placement(nodes))
    shared = gang_map(job, JobsPolicy(peer_naming=PeerNaming.DNS), NO_PODS)
    files = {name: b64decode(text) for name, text in shared.binary_data.items()}
    assert sorted(files) == ["hostfile", "machinefile"]
    assert files["hostfile"].count(b"\n") == 6000
    assert sum(map(len, (*files.values(), *shared.data.values()))) < 1024 * 1024


def test_counts_follow_every_change_and_end_empty() -> None:
    job = _placed()
    pods = _pods(job)
    book = JobPods.of(pods)
    current = book.attempts[1]
    running = replace(pods[0], status=PodStatus(phase="Running", pod_ip="10.0.0.1"))
    failed = replace(pods[1], status=PodStatus(phase="Failed"))
    for pod in (running, running, failed):
        book.put(pod)
    assert current.counts == {
        MemberPhase.PENDING: 2,
        MemberPhase.RUNNING: 1,
        MemberPhase.SUCCEEDED: 0,
        MemberPhase.FAILED: 1,
    }
    assert (current.addressed_count, list(current.troubled)) == (1, ["train-1-worker-0"])
    assert book.nodes == {"a": 1, "b": 2, "c": 1}
    fresh = JobPods.of([running, failed, *pods[2:]])
    assert fresh == book, "counting as one goes gives what counting anew gives"
    recovered = replace(failed, status=PodStatus(phase="Running", pod_ip="10.0.0.2"))
    book.put(recovered)
    assert not current.troubled
    assert book == JobPods.of([running, recovered, *pods[2:]])
    moved = replace(pods[2], spec=replace(pods[2].spec, node_name="d"))  # not seen before its end
    for pod in (running, failed, moved, *pods[3:], pods[2]):
        book.drop(pod)
    assert (book.attempts, book.nodes, book.count) == ({}, {}, 0)


def test_progress_begins_again_with_the_first_report_of_a_later_attempt() -> None:
    job = _placed()
    later = replace(job, status=replace(job.status, attempt=2))

    def reporting(pod: Pod, step: int) -> Pod:
        annotations = {names.PROGRESS: json.dumps({"step": step, "checkpointStep": step})}
        return replace(pod, metadata=replace(pod.metadata, annotations=annotations))

    first, second = _pods(job)[0], _pods(later)[0]
    book = JobPods.of([reporting(first, 50), second])
    assert (book.progress_attempt, book.progress) == (1, Progress(50, 50))
    book.put(reporting(second, 3))
    assert (book.progress_attempt, book.progress) == (2, Progress(3, 3))
    book.put(reporting(first, 60))  # a late report of the earlier attempt
    assert (book.progress_attempt, book.progress) == (2, Progress(3, 3))


def test_labels_that_are_no_numbers_are_read_as_no_attempt() -> None:
    [pod, *_] = _pods(_placed())
    labels = {**pod.metadata.labels, names.ATTEMPT: "x", names.RANK: "-1"}
    member = read_member(replace(pod, metadata=replace(pod.metadata, labels=labels)))
    assert (member.attempt, member.rank) == (0, -1)


def test_members_of_a_role_share_what_is_the_same_for_all() -> None:
    first, second = _pods(_placed())[1:3]
    assert first.spec.volumes is second.spec.volumes
    assert first.metadata.owner_references is second.metadata.owner_references
    [one], [two] = first.spec.containers, second.spec.containers
    assert one.volume_mounts is two.volume_mounts
    assert one.resources is two.resources
    assert one.env[0] is two.env[0]
    assert one.env_from is two.env_from
