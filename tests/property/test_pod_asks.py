"""What pods ask in all ways at once, against a search that knows wire objects alone.

The judge adds up amounts by itself, from the JSON: containers, init containers, the pod as a whole,
overhead, and of neighbours that are resized what they ask, have and had allocated. It looks for
places by trying all. Gangs of one role are placed exactly when it finds some; with more roles what
is placed is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.property.placement_world import BOUNDED

from fairlead.api.jobs.job import Role
from fairlead.api.kubernetes.core import Pod, PodTemplate
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import EPOCH, make_job, make_node
from fairlead.testing.volume_builders import ZONE, make_claim, make_volume

CPUS = st.integers(0, 4)


@dataclass
class Case:
    """A cluster as it is written, and the pods of a gang."""

    zones: dict[str, str]
    room: dict[str, int]
    neighbours: list[dict[str, Any]]
    #: By role: how many members, their spec, and the zones of their volumes.
    roles: list[tuple[int, dict[str, Any], list[str]]]


@st.composite
def a_container(draw: st.DrawFn, name: str) -> dict[str, Any]:
    amount = str(draw(CPUS))
    kind = draw(st.sampled_from(["requests", "limits"]))
    return {"name": name, "image": "x", "resources": {kind: {"cpu": amount}}}


@st.composite
def a_spec(draw: st.DrawFn) -> dict[str, Any]:
    running = [draw(a_container(f"c{i}")) for i in range(draw(st.integers(1, 2)))]
    initial = [draw(a_container(f"i{i}")) for i in range(draw(st.integers(0, 2)))]
    for each in initial:
        if draw(st.booleans()):
            each["restartPolicy"] = "Always"
    spec: dict[str, Any] = {"containers": running, "initContainers": initial}
    if draw(st.booleans()):
        least = total(spec)
        spec["resources"] = {"requests": {"cpu": str(least + draw(st.integers(0, 2)))}}
    if draw(st.booleans()):
        spec["overhead"] = {"cpu": "1"}
    return spec


@st.composite
def a_neighbour(draw: st.DrawFn, number: int, nodes: list[str]) -> dict[str, Any]:
    """A pod that may be resized: its node may have allocated, and the container have, others."""
    container = draw(a_container("c"))
    status: dict[str, Any] = {"phase": "Running"}
    if draw(st.booleans()):
        has, given_ = str(draw(CPUS)), str(draw(CPUS))
        status["containerStatuses"] = [{
            "name": "c", "resources": {"requests": {"cpu": has}},
            "allocatedResources": {"cpu": given_},
        }]  # fmt: skip
        if draw(st.booleans()):
            reason = draw(st.sampled_from(["Infeasible", "Deferred"]))
            pending = {"type": "PodResizePending", "status": "True", "reason": reason}
            status["conditions"] = [pending]
    metadata = {"name": f"p{number}", "namespace": "default", "uid": f"u{number}"}
    spec = {"containers": [container], "nodeName": draw(st.sampled_from(nodes))}
    return {"metadata": metadata, "spec": spec, "status": status}


@st.composite
def a_case(draw: st.DrawFn) -> Case:
    zones = {f"n{i}": draw(st.sampled_from("ab")) for i in range(draw(st.integers(1, 4)))}
    neighbours = [draw(a_neighbour(i, sorted(zones))) for i in range(draw(st.integers(0, 3)))]
    roles = [
        (draw(st.integers(1, 3)), draw(a_spec()), draw(st.sampled_from([[], ["a"], ["b"]])))
        for _ in range(draw(st.integers(1, 2)))
    ]
    return Case(zones, {node: draw(st.integers(1, 12)) for node in zones}, neighbours, roles)


def amount(container: dict[str, Any]) -> int:
    resources = container["resources"]
    return int((resources.get("requests") or resources.get("limits"))["cpu"])


def total(spec: dict[str, Any]) -> int:
    """CPUs of a pod that is not resized."""
    sidecars = peak = 0
    for each in spec.get("initContainers", ()):
        if "restartPolicy" in each:
            sidecars += amount(each)
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + amount(each))
    need = max(peak, sidecars + sum(map(amount, spec["containers"])))
    if "resources" in spec:
        need = int(spec["resources"]["requests"]["cpu"])
    return need + ("overhead" in spec)


def taken(pod: dict[str, Any]) -> int:
    """CPUs of a pod that has a node."""
    asked = total(pod["spec"])
    for state in pod["status"].get("containerStatuses", ()):
        reasons = [each["reason"] for each in pod["status"].get("conditions", ())]
        parts = [
            int(state["resources"]["requests"]["cpu"]),
            int(state["allocatedResources"]["cpu"]),
        ]
        return max(parts if "Infeasible" in reasons else [asked, *parts])
    return asked


def free(case: Case) -> dict[str, int]:
    used = dict.fromkeys(case.room, 0)
    for pod in case.neighbours:
        used[pod["spec"]["nodeName"]] += taken(pod)
    return {node: room - used[node] for node, room in case.room.items()}


def has_places(members: list[tuple[int, list[str]]], left: dict[str, int], case: Case) -> bool:
    """Whether the members, each with its CPUs and zones, find nodes; all ways are tried."""
    if not members:
        return True
    (need, zones), *rest = members
    for node in sorted(left):
        is_room = not need or left[node] >= need
        is_reached = not zones or case.zones[node] in zones
        if is_room and is_reached and has_places(rest, {**left, node: left[node] - need}, case):
            return True
    return False


def state_of(case: Case) -> ClusterState:
    roles, claims, volumes = list[Role](), [], []
    for number, (count, spec, zones) in enumerate(case.roles):
        whole = dict(spec)
        if zones:
            name = f"data-{number}"
            claims.append(make_claim(name, volume=f"v{number}"))
            volumes.append(make_volume(f"v{number}", zones=zones, claim=name))
            source = {"name": "data", "persistentVolumeClaim": {"claimName": name}}
            whole["volumes"] = [source]
        template = msgspec.convert({"spec": whole}, PodTemplate)
        roles.append(Role(name=f"r{number}", count=count, template=template))
    nodes = [make_node(n, gpus=0, cpu=room, labels={ZONE: case.zones[n]})
             for n, room in case.room.items()]  # fmt: skip
    pods = [msgspec.convert(pod, Pod) for pod in case.neighbours]
    job = make_job("gang", roles=roles, created=EPOCH)
    return ClusterState.of(nodes, [job], pods, claims=claims, volumes=volumes)


@BOUNDED
@given(a_case())
def test_a_gang_gets_places_if_and_only_if_all_that_its_pods_ask_is_there(case: Case) -> None:
    decision = decide(PlacementState(state_of(case)), PlacementPolicy(), EPOCH + 1)
    placed = [action for action in decision.actions if isinstance(action, PlaceJob)]
    members = [(total(spec), zones) for count, spec, zones in case.roles for _ in range(count)]
    left = free(case)
    assert len(placed) <= 1
    if not placed:
        assert len(case.roles) > 1 or not has_places(members, left, case)
        return
    for (_, spec, zones), role in zip(case.roles, placed[0].placement.roles, strict=True):
        for node in role.nodes:
            assert not zones or case.zones[node] in zones
            assert not total(spec) or left[node] >= total(spec)
            left[node] -= total(spec)
