"""What pods ask for beside CPU and GPUs, on real nodes: volumes, devices, a resize."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.kubernetes.nodes.node_plugins import (
    DRIVER,
    LOCAL_PATH,
    Devices,
    create,
    device_driver,
    local_path_provisioner,
)
from tests.kubernetes.nodes.running import (
    IMAGE,
    MOST_OF_A_NODE,
    STAYS,
    apply,
    places,
    pods,
    until,
)
from tools.cluster.cluster import Cluster
from tools.cluster.jobs import Client

from fairlead.api import names
from fairlead.api.values.quantity import to_base

pytestmark = pytest.mark.kubernetes
#: A data set is fetched once, and found by every later attempt.
CACHES = f"""if [ -e /data/cache ]; then echo "$(cat /data/cache) is here"
else echo "the cache of rank $RANK" > /data/cache; fi
{STAYS}"""
#: What tells the first process of a container from others: `sh -ec SCRIPT`.
SHELL = "-ec"
#: A claim of its own for each member.
OWN = ("resourceClaimTemplateName", "one")


def container(script: str, cpu: str = "100m", **more: Any) -> dict[str, Any]:
    return {
        "name": "main", "image": IMAGE, "command": ["sh", "-ec", script],
        "resources": {"requests": {"cpu": cpu}}, **more,
    }  # fmt: skip


def runs_in(attempt: int) -> Any:
    return lambda status: (status.get("attempt"), status.get("state")) == (attempt, "Running")


def waits_with_words(client: Client, name: str, *words: str) -> None:
    """Wait until `fairlead why` says these words of a job."""
    said = ""

    def says_so() -> bool:
        nonlocal said
        said = client.run("why", name, code=None)
        return all(word in said for word in words)

    try:
        until(f"{name} says why", says_so)
    except AssertionError as error:
        error.add_note(said)
        raise


# --- volumes


def test_members_come_back_to_the_nodes_of_their_data(cluster: Cluster, client: Client) -> None:
    mounts = [{"name": "cache", "mountPath": "/data"}]
    size = {"requests": {"storage": "1Mi"}}
    template = {
        "metadata": {"name": "cache"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": LOCAL_PATH,
            "resources": size,
        },
    }
    role = {
        "name": "worker",
        "count": 2,
        "volumeClaimTemplates": [template],
        "template": {
            "spec": {"containers": [container(CACHES, MOST_OF_A_NODE, volumeMounts=mounts)]}
        },
    }
    with local_path_provisioner(cluster):
        create(cluster, {
            "apiVersion": names.API_VERSION, "kind": "Job",
            "metadata": {"name": "caches", "namespace": "default"},
            "spec": {"roles": [role], "restart": {"limit": 3, "backoffSeconds": 0}},
        })  # fmt: skip
        job = client.until("caches", "the first attempt", runs_in(1))
        before = places(job)
        client.kill("caches", 1, SHELL)
        job = client.until("caches", "the second attempt", runs_in(2))
        assert places(job) == before
        found = [f"the cache of rank {rank} is here" for rank in (0, 1)]
        until("each finds its own", lambda: _are_said(client, found))

        # A free node is no place for a member whose data are on another one.
        client.run("hold", "caches")
        until("the nodes are given back", lambda: not pods(cluster, "caches"))
        here = {"nodeSelector": {"kubernetes.io/hostname": before[0]}}
        apply(cluster, "in-the-way", {**here, "containers": [container(STAYS, MOST_OF_A_NODE)]})
        client.until_state("in-the-way", "Running")
        client.run("release", "caches")
        waits_with_words(client, "caches", "VolumesInTheWay", before[0], "in-the-way")
        client.run("cancel", "in-the-way")
        job = client.until("caches", "the third attempt", runs_in(3))
        assert places(job) == before
        until("each finds its own", lambda: _are_said(client, found))
        client.run("cancel", "caches")
        cluster.kubectl("delete", "jobs.fairlead.dev", "caches", "--timeout=60s")


def _are_said(client: Client, lines: list[str]) -> bool:
    said = client.run("logs", "caches")
    return all(line in said for line in lines)


# --- devices


def with_claim(source: str, name: str) -> dict[str, Any]:
    """Return a member's spec with one claim, of a template or shared."""
    claims = [{"name": "gpu"}]
    main = container(STAYS)
    main["resources"]["claims"] = claims
    return {"containers": [main], "resourceClaims": [{"name": "gpu", source: name}]}


def test_gangs_get_devices_of_a_driver_and_none_that_has_vanished(
    cluster: Cluster, client: Client
) -> None:
    asks = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}}
    api = {"apiVersion": "resource.k8s.io/v1"}
    with device_driver(cluster, 2) as devices:
        create(
            cluster,
            {**api, "kind": "ResourceClaimTemplate",
             "metadata": {"name": "one", "namespace": "default"}, "spec": {"spec": asks}},
            {**api, "kind": "ResourceClaim",
             "metadata": {"name": "shared", "namespace": "default"}, "spec": asks},
        )  # fmt: skip
        try:
            each_has_a_device_of_its_own(cluster, client, devices)
            a_gang_of_another_tool_gets_devices(cluster, client)
            members_share_one_device(cluster, client)
            a_vanished_device_is_given_to_no_member(cluster, client, devices)
            client.run("cancel", "five")
            until("the nodes have given all back", lambda: not devices.prepared())
        finally:
            cluster.kubectl("delete", "jobs.fairlead.dev", "--all", "--timeout=60s")
            until("no pod is left", lambda: not cluster.kubectl("get", "pods", "-o", "name"))
            cluster.kubectl("delete", "resourceclaimtemplates/one", "resourceclaims/shared")


def allocated(cluster: Cluster) -> dict[str, tuple[str, str]]:
    """Return pool and device of each claim that has one; the pool of a node has its name."""
    items = json.loads(cluster.kubectl("get", "resourceclaims", "-o", "json"))["items"]
    found: dict[str, tuple[str, str]] = {}
    for each in items:
        if allocation := each.get("status", {}).get("allocation"):
            (result,) = allocation["devices"]["results"]
            found[each["metadata"]["name"]] = (result["pool"], result["device"])
    return found


def each_has_a_device_of_its_own(cluster: Cluster, client: Client, devices: Devices) -> None:
    apply(cluster, "three", with_claim(*OWN), count=3)
    job = client.until_state("three", "Running")
    assert job["status"]["attempt"] == 1
    had = allocated(cluster)
    assert len(set(had.values())) == 3, had
    assert sorted(pool for pool, _ in had.values()) == sorted(places(job)), had
    claims = json.loads(cluster.kubectl("get", "resourceclaims", "-o", "json"))["items"]
    uids = {claim["metadata"]["name"]: claim["metadata"]["uid"] for claim in claims}
    assert devices.prepared() == {uids[name]: pool for name, (pool, _) in had.items()}


def a_gang_of_another_tool_gets_devices(cluster: Cluster, client: Client) -> None:
    """It waits for the devices of `three` as a whole, and is bound at its first attempt."""
    pod = with_claim(*OWN) | {"restartPolicy": "Never"}
    pod["containers"][0]["command"] = ["true"]
    labels = {"fairlead.dev/gang-scheduling": "enabled"}
    create(cluster, {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "others"},
        "spec": {"parallelism": 5, "completions": 5, "completionMode": "Indexed",
                 "template": {"metadata": {"labels": labels}, "spec": pod}},
    })  # fmt: skip
    try:
        waits_with_words(client, "others", "5 members", DRIVER)
        client.run("cancel", "three")
        cluster.kubectl("wait", "--for=condition=Complete", "job/others", "--timeout=120s")
        items = json.loads(cluster.kubectl("get", "jobs.fairlead.dev", "-o", "json"))["items"]
        (stand_in,) = (each for each in items if "adopts" in each["spec"])
        assert len(stand_in["status"]["attempts"]) == 1, stand_in["status"]
    finally:
        cluster.kubectl("delete", "job", "others")


def members_share_one_device(cluster: Cluster, client: Client) -> None:
    """A gang whose claim has no devices is on one node that has one, and a later pod follows it."""
    shared = with_claim("resourceClaimName", "shared")
    apply(cluster, "together", shared, count=2)
    job = client.until_state("together", "Running")
    apply(cluster, "later", shared)
    later = client.until_state("later", "Running")
    assert (later["status"]["attempt"], job["status"]["attempt"]) == (1, 1)
    where = allocated(cluster)["shared"][0]
    assert {*places(later), *places(job)} == {where}
    claim = json.loads(cluster.kubectl("get", "resourceclaims", "shared", "-o", "json"))
    assert len(claim["status"]["reservedFor"]) == 3
    client.run("cancel", "later", "together")
    until("the claim gives its device back", lambda: "shared" not in allocated(cluster))


def a_vanished_device_is_given_to_no_member(
    cluster: Cluster, client: Client, devices: Devices
) -> None:
    apply(cluster, "five", with_claim(*OWN), count=5,
          restart={"limit": 3, "backoffSeconds": 0})  # fmt: skip
    client.until("five", "the first attempt", runs_in(1))
    lost = next(pool for pool, device in allocated(cluster).values() if device == "gpu-1")
    before = {pod["metadata"]["uid"] for pod in pods(cluster, "five")}
    devices.serve(lost, 1)
    until("the device has vanished", devices.published)
    apply(cluster, "six", with_claim(*OWN), count=6)
    waits_with_words(client, "six", DRIVER)
    assert client.job("five")["status"]["state"] == "Running"
    assert {pod["metadata"]["uid"] for pod in pods(cluster, "five")} == before
    client.kill("five", 0, SHELL)
    client.until("five", "the second attempt", runs_in(2))
    had = allocated(cluster)
    assert len(set(had.values())) == 5, had
    assert (lost, "gpu-1") not in had.values(), had
    client.run("cancel", "six")


# --- a resize


def test_a_resize_counts_as_the_kubelet_has_it(cluster: Cluster, client: Client) -> None:
    """First allocated and carried out, then deferred for want of room, then given back."""
    node = cluster.layout.nodes[0]
    grows = {"nodeSelector": {"kubernetes.io/hostname": node}}

    def submit(name: str, cpu: int) -> None:
        apply(cluster, name, {**grows, "containers": [container(STAYS, f"{cpu}m")]})

    submit("grows", 300)
    client.until_state("grows", "Running")
    (pod,) = pods(cluster, "grows")
    name = pod["metadata"]["name"]
    resize(cluster, name, 500)
    until("it is carried out", lambda: _had(cluster, name) == ("500m", "500m", "500m", None))
    free = free_cpu(cluster, node)
    submit("too-large", free + 10)
    waits_with_words(client, "too-large", "CPU")
    submit("beside", free - 100)
    assert client.until_state("beside", "Running")["status"]["attempt"] == 1

    # 100m are left, it asks for 200m more: nothing else gets what it waits for.
    resize(cluster, name, 700)
    until("it is deferred", lambda: _had(cluster, name) == ("700m", "500m", "500m", "Deferred"))
    submit("small", 100)
    waits_with_words(client, "small", "CPU")

    # A wish that is withdrawn takes nothing, and another one gets the rest of the node.
    resize(cluster, name, 500)
    job = client.until_state("small", "Running")
    assert (job["status"]["attempt"], places(job)) == (1, [node])
    assert free_cpu(cluster, node) == 0

    # What it gives back is free once the container has given it back.
    resize(cluster, name, 300)
    until("it is carried out", lambda: _had(cluster, name) == ("300m", "300m", "300m", None))
    submit("again", 200)
    job = client.until_state("again", "Running")
    assert job["status"]["attempt"] == 1
    for each in ("too-large", "beside", "small", "again", "grows"):
        assert len(client.job(each)["status"].get("attempts", [])) == (each != "too-large")


def resize(cluster: Cluster, pod: str, cpu: int) -> None:
    """Ask for other CPUs of a container that runs."""
    main = {"name": "main", "resources": {"requests": {"cpu": f"{cpu}m"}}}
    cluster.kubectl("patch", "pod", pod, "--subresource=resize", "--type=strategic",
                    "--patch", json.dumps({"spec": {"containers": [main]}}))  # fmt: skip


def _had(cluster: Cluster, name: str) -> tuple[str, str, str, str | None]:
    """Return what a pod asks for, has allocated and has; why not what it asks for."""
    pod = json.loads(cluster.kubectl("get", "pod", name, "-o", "json"))
    (status,) = pod["status"]["containerStatuses"]
    pending = [each.get("reason", each["type"]) for each in pod["status"]["conditions"]
               if each["type"] in ("PodResizePending", "PodResizeInProgress")]  # fmt: skip
    asked = pod["spec"]["containers"][0]["resources"]["requests"]["cpu"]
    has = status["resources"]["requests"]["cpu"]
    return asked, status["allocatedResources"]["cpu"], has, next(iter(pending), None)


def free_cpu(cluster: Cluster, node: str) -> int:
    """Return the millicores of a node that its kubelet has not allocated to pods."""
    whole = json.loads(cluster.kubectl("get", "node", node, "-o", "json"))["status"]["allocatable"]
    chosen = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
    items = json.loads(
        cluster.kubectl("get", "pods", "-A", "-o", "json", f"--field-selector={chosen}")
    )["items"]
    taken = sum(
        to_base("cpu", status["allocatedResources"]["cpu"])
        for pod in items
        for status in pod["status"]["containerStatuses"]
        if "cpu" in status.get("allocatedResources", {})
    )
    return to_base("cpu", whole["cpu"]) - taken
