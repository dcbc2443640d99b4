"""Pulls of images: what a kubelet says of them, which pods are some, and what quotas leave."""

from __future__ import annotations

import itertools
import random
from collections.abc import Container
from typing import Any

import msgspec
import pytest

from fairlead.api.kubernetes.core import ContainerImage, Node, Pod
from fairlead.api.kubernetes.resource_quota import ResourceQuota
from fairlead.decide.images.book import PullBook
from fairlead.decide.images.plan import EndPull, PullHold, StartPull, plan
from fairlead.decide.images.pods import Taken, of_job, pull_pod
from fairlead.decide.images.policy import RATE_SECONDS, ImagesPolicy
from fairlead.decide.images.view import (
    ImageNode,
    ImagesView,
    Owner,
    PullState,
    SeenPull,
    Wish,
    pulls_for,
)
from fairlead.decide.images.wishes import ExpectedJob, wishes_of_job
from fairlead.model.asks.image_pulls import is_pull
from fairlead.model.cluster import ClusterState
from fairlead.model.pools.pool_nodes import uses_node
from fairlead.testing.builders import make_job, make_node

ACTION = StartPull(Owner("Job", "default", "train", "u1"), "r.example/i:1", "main", "n0", "un0")


def a_pull(**spec: Any) -> Pod:
    body = pull_pod(ACTION, Taken({}), ImagesPolicy())
    body["spec"] |= spec
    return msgspec.convert(body, Pod)


def an_image_node(name: str, **images: int) -> ImageNode:
    return ImageNode(name, name, images, len(images), sum(images.values()), 0, is_open=True)


def with_status(pod: Pod, **status: Any) -> Pod:
    return msgspec.structs.replace(pod, status=msgspec.convert(status, type(pod.status)))


def container(state: dict[str, Any], image_id: str = "") -> dict[str, Any]:
    return {"containerStatuses": [{"name": "pull", "imageID": image_id, "state": state}]}


@pytest.mark.parametrize(
    ("runtime", "pulls"),
    [("containerd://2.1.4", True), ("cri-o://1.34.0", True), ("process://1", False), ("", False)],
)
def test_a_new_node_pulls_where_it_has_a_runtime_that_does(runtime: str, pulls: bool) -> None:
    node = make_node("n0")
    info = msgspec.structs.replace(node.status.node_info, container_runtime_version=runtime)
    status = msgspec.structs.replace(node.status, node_info=info)
    assert ImageNode.of(msgspec.structs.replace(node, status=status)).is_open is pulls


def test_nodes_that_report_the_same_images_share_their_names_and_sizes() -> None:
    def reported(size: int) -> ImageNode:
        images = (ContainerImage(("r.example/a:1", "r.example/a@sha256:0"), size),)
        node = make_node("n")
        status = msgspec.structs.replace(node.status, images=images)
        return ImageNode.of(msgspec.structs.replace(node, status=status))

    first, second, other = reported(5), reported(5), reported(6)
    assert first.images is second.images
    assert other.images is not first.images
    assert (first.size_of("r.example/a:1"), other.size_of("r.example/a:1")) == (5, 6)


def test_only_what_asks_for_nothing_counts_as_a_pull() -> None:
    def changed(**fields: Any) -> dict[str, Any]:
        body = pull_pod(ACTION, Taken({}), ImagesPolicy())
        return {"containers": [{**body["spec"]["containers"][0], **fields}]}

    assert is_pull(a_pull())
    gpu = {"nvidia.com/gpu": "8"}
    for spec in (
        changed(command=["sleep", "1"]),
        changed(resources={"requests": {"cpu": "1"}}),
        changed(resources={"limits": gpu}),
        changed(resources={"requests": {"cpu": "many"}}),
        changed(ports=[{"containerPort": 80}]),
        {"volumes": [{"name": "v"}]},
        {"initContainers": [{"name": "i", "image": "i"}]},
        {"overhead": {"cpu": "1"}},
        {"resources": {"requests": gpu}},
        {"nodeName": ""},
    ):
        assert not is_pull(a_pull(**spec)), spec


def test_a_pull_holds_no_room_and_no_node() -> None:
    state = ClusterState.of([make_node("n0")], [], [a_pull()])
    assert (state.table.free() == state.table.allocatable).all()
    assert not uses_node(a_pull())


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({}, PullState.PULLING),
        (container({"waiting": {"reason": "ContainerCreating"}}), PullState.PULLING),
        (container({"waiting": {"reason": "ImagePullBackOff"}}), PullState.FAILED),
        (container({"waiting": {"reason": "InvalidImageName"}}), PullState.FAILED),
        (container({"waiting": {"reason": "CreateContainerError"}}), PullState.PULLED),
        (container({"waiting": {"reason": "RunContainerError"}}), PullState.PULLED),
        (container({"terminated": {"exitCode": 128}}, "sha256:1"), PullState.PULLED),
        ({"phase": "Failed",
          **container({"terminated": {"reason": "StartError"}})}, PullState.PULLED),
        (container({"running": {}}, "sha256:1"), PullState.PULLED),
        ({"phase": "Failed", "reason": "Evicted"}, PullState.LOST),
        ({"phase": "Failed", "reason": "DeadlineExceeded",
          **container({"terminated": {"exitCode": 137}})}, PullState.LOST),
    ],
)  # fmt: skip
def test_how_far_a_pull_is_follows_from_what_the_kubelet_says(
    status: dict[str, Any], state: PullState
) -> None:
    assert SeenPull.of(with_status(a_pull(), **status)).state is state


#: As containerd 1.6 and 2.x say them.
_UNPACK = 'failed to pull and unpack image "docker.io/library/torch:1": '


@pytest.mark.parametrize(("said", "shown"), [
    (_UNPACK + 'failed to resolve reference "docker.io/library/torch:1": pulling from host r failed'
     " with status code [manifests 1]: 429 Too Many Requests",
     "pulling from host r failed with status code [manifests 1]: 429 Too Many Requests"),
    (f"rpc error: code = FailedPrecondition desc = {_UNPACK}failed commit on ref x: unexpected "
     "commit digest sha256:1, expected sha256:2: failed precondition",
     "failed commit on ref x: unexpected commit digest sha256:1, expected sha256:2: failed "
     "precondition"),
    ('Back-off pulling image "torch:1"', 'Back-off pulling image "torch:1"'),
])  # fmt: skip
def test_of_a_failure_the_cause_is_kept_and_not_the_name_before_it(said: str, shown: str) -> None:
    image = a_pull().spec.containers[0].image
    waiting = {"reason": "ErrImagePull", "message": said.replace("torch:1", image)}
    pod = with_status(a_pull(), **container({"waiting": waiting}))
    assert SeenPull.of(pod).message == shown.replace("torch:1", image)


def test_a_pod_that_starts_keeps_its_node_for_the_images_that_it_lacks() -> None:
    spec = {
        "nodeName": "n0", "initContainers": [{"name": "a", "image": "init"}],
        "containers": [{"name": "b", "image": "main:2"}],
    }  # fmt: skip
    pod = msgspec.convert({"metadata": {"name": "p"}, "spec": spec}, Pod)
    init, main = "docker.io/library/init:latest", "docker.io/library/main:2"
    assert pulls_for(pod) == {init, main}
    running = {"initContainerStatuses": [{"name": "a", "imageID": "x"}]}
    assert pulls_for(with_status(pod, **running)) == {main}
    stuck = [{"name": "b", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]
    assert pulls_for(with_status(pod, containerStatuses=stuck)) == set()
    assert pulls_for(with_status(pod, phase="Succeeded")) == set()


@pytest.mark.parametrize(
    ("change", "is_open"),
    [
        ({}, True),
        ({"images": []}, False),
        ({"conditions": [{"type": "Ready", "status": "Unknown"}]}, False),
        ({"conditions": [{"type": "Ready", "status": "True"},
                         {"type": "DiskPressure", "status": "True"}]}, False),
    ],
)  # fmt: skip
def test_a_node_is_open_to_pulls_while_it_is_ready_has_disk_and_reports_images(
    change: dict[str, Any], is_open: bool
) -> None:
    status = {
        "conditions": [{"type": "Ready", "status": "True"}],
        "images": [{"names": ["pause:3"], "sizeBytes": 300}, {"names": None, "sizeBytes": 7}],
        "capacity": {"ephemeral-storage": "1Gi"}, **change,
    }  # fmt: skip
    node = msgspec.convert({"metadata": {"name": "n0"}, "status": status}, Node)
    seen = ImageNode.of(node)
    assert seen.is_open is is_open
    if "images" not in change:
        assert (seen.used_bytes, seen.size_of("pause:3"), seen.disk_bytes) == (307, 300, 1 << 30)


@pytest.mark.parametrize(
    ("hard", "used", "room"),
    [
        ({}, {}, None),
        ({"requests.cpu": "1"}, {}, None),
        ({"pods": "10"}, {"pods": "3"}, 3),
        ({"pods": "10", "count/pods": "8"}, {"pods": "3", "count/pods": "3"}, 1),
        ({"pods": "5"}, {"pods": "3"}, 0),
        ({"limits.cpu": "100"}, {}, 0),
        ({"pods": "many"}, {}, 0),
    ],
)
def test_pulls_leave_a_quota_the_room_that_the_job_needs(
    hard: dict[str, str], used: dict[str, str], room: int | None
) -> None:
    quota = msgspec.convert({"spec": {"hard": hard}, "status": {"hard": hard, "used": used}},
                            ResourceQuota)  # fmt: skip
    expected = ExpectedJob(make_job("train", count=4), {"": ("n0",)})
    (wish,) = wishes_of_job(expected, ImagesPolicy(), [quota], 0)
    assert wish.quota == room


def test_a_pull_for_a_job_takes_its_secrets_and_account_and_nothing_that_runs() -> None:
    template = {
        "imagePullSecrets": [{"name": "key"}], "serviceAccountName": "trainer",
        "tolerations": [{"key": "gpu", "operator": "Exists"}], "hostNetwork": True,
        "hostPID": True, "priorityClassName": "high", "runtimeClassName": "kata",
        "volumes": [{"name": "home", "hostPath": {"path": "/"}}],
        "containers": [{"name": "main", "securityContext": {"privileged": True}}],
    }  # fmt: skip
    job = {"spec": {"team": "a", "roles": [{"name": "main", "template": {"spec": template}}]}}
    body = pull_pod(ACTION, of_job(job, "main"), ImagesPolicy(priority_class="low"))
    assert body["metadata"]["labels"]["fairlead.dev/team"] == "a"
    spec = body["spec"]
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert spec["imagePullSecrets"] == [{"name": "key"}]
    assert spec["serviceAccountName"] == "trainer"
    assert spec["priorityClassName"] == "low"
    assert spec["automountServiceAccountToken"] is False
    assert {"hostNetwork", "hostPID", "volumes", "runtimeClassName"} & set(spec) == set()
    (only,) = spec["containers"]
    assert only["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "privileged" not in only["securityContext"]


def test_every_way_to_hold_a_pull_has_words_of_its_own() -> None:
    assert len({hold.value for hold in PullHold}) == len(PullHold)


def test_a_thousand_nodes_pull_one_image_within_the_rate_of_the_registry() -> None:
    """Pulls take from 20 to 90 s; 32 at a time may be under way, and 120 begin in a minute."""
    policy, rng, image = ImagesPolicy(), random.Random(7), "r.example/torch:1"
    nodes = {f"n{i}": an_image_node(f"n{i}") for i in range(1000)}
    wish = Wish(Owner("ImageSet", "", "base", "u1"), image, tuple(nodes))
    book, pulls, ends = PullBook(0.0), dict[str, Pod](), dict[str, float]()
    starts: list[float] = []
    most, now = 0, 0.0
    while any(image not in node.images for node in nodes.values()):
        assert now < 3600.0
        for name in [name for name, at in ends.items() if at <= now]:
            pulls[name] = with_status(pulls[name], **container({"running": {}}, "sha256:1"))
            nodes[name] = an_image_node(name, **{image: 17 * 10**9})
            del ends[name]
        view = ImagesView(nodes, (wish,), [SeenPull.of(pod) for pod in pulls.values()])
        for action in plan(view, book, policy, now).actions:
            if isinstance(action, EndPull):
                del pulls[action.pod.spec.node_name]
                continue
            body = pull_pod(action, Taken({}), policy)
            body["metadata"]["name"] = action.node
            pulls[action.node] = msgspec.convert(body, Pod)
            ends[action.node] = now + rng.uniform(20.0, 90.0)
            starts.append(now)
        most = max(most, len(ends))
        now += 5.0
    assert (len(starts), most) == (1000, policy.pulls_per_registry_max)
    in_minute = [sum(at - RATE_SECONDS < other <= at for other in starts) for at in set(starts)]
    assert max(in_minute) <= policy.starts_per_registry_max


def test_no_more_pulls_of_a_registry_begin_in_a_minute_than_its_rate() -> None:
    policy = ImagesPolicy(pulls_per_registry_max=1000, pulls_max=1000, starts_per_registry_max=9)
    image = "r.example/torch:1"
    nodes = {f"n{i}": an_image_node(f"n{i}") for i in range(50)}
    nodes["has"] = an_image_node("has", **{image: 10**9})
    wish = Wish(Owner("ImageSet", "", "base", "u1"), image, tuple(nodes))
    book, begun = PullBook(-RATE_SECONDS), list[str]()
    for now, expected in ((0.0, 9), (59.0, 9), (60.0, 18), (90.0, 18), (120.0, 27)):
        left = {name: node for name, node in nodes.items() if name not in begun}
        found = plan(ImagesView(left, (wish,)), book, policy, now)
        begun += [each.node for each in found.actions if isinstance(each, StartPull)]
        assert len(begun) == expected, now


def pulls_of_a_day(removed_at: Container[int]) -> list[float]:
    """Return when a node is asked for an image, in seconds; it has it after a minute, until its
    kubelet removes it.
    """
    image, policy, book = "r.example/torch:1", ImagesPolicy(), PullBook(-RATE_SECONDS)
    wish = Wish(Owner("ImageSet", "", "base", "u1"), image, ("n0",))
    node, pulls, asked = an_image_node("n0"), list[Pod](), list[float]()
    for now in range(0, 86_400, 15):
        if now in removed_at:
            node = an_image_node("n0")
        if pulls and now >= asked[-1] + 60:
            pulls = [with_status(pulls[0], **container({"running": {}}, "sha256:1"))]
            node = an_image_node("n0", **{image: 17 * 10**9})
        seen = [SeenPull.of(pod) for pod in pulls]
        for action in plan(ImagesView({"n0": node}, (wish,), seen), book, policy, now).actions:
            if isinstance(action, EndPull):
                pulls = []
                continue
            pulls = [msgspec.convert(pull_pod(action, Taken({}), policy), Pod)]
            asked.append(now)
    return asked


def test_an_image_that_the_kubelet_removes_again_and_again_is_pulled_ever_more_rarely() -> None:
    asked = pulls_of_a_day(range(0, 86_400, 300))
    waits = [after - before for before, after in itertools.pairwise(asked)]
    assert waits[0] < 600
    assert waits[-1] >= ImagesPolicy().retry_seconds_max
    assert len(asked) <= 30, "17 GB each"


def test_an_image_that_is_removed_once_is_pulled_again_soon() -> None:
    first, again = pulls_of_a_day([43_200])
    assert first == 0
    assert again <= 43_200 + 4 * ImagesPolicy().retry_seconds
