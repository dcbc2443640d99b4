"""Gangs with claims for devices on generated clusters, against a counter that knows each device.

A request has options: of these a member gets the first one of which its node has enough devices,
whoever has them. An option for all devices takes those that can be had, if none is spoilt.

The judge shares nothing with the planner: a kind is a Python predicate of a device's properties,
and members find devices by augmenting paths. Kinds overlap and lie within each other. After each
decision the members that got places get devices one after the other, each the first one that will
do, as kube-scheduler allocates; what follows is planned around these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.property.placement_world import BOUNDED

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.api.kubernetes.devices import Device, DeviceTaint
from fairlead.api.meta import ObjectMeta, OwnerReference
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.claimed.devices import DeviceTable
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import EPOCH, make_job, make_node
from fairlead.testing.device_builders import (
    DRIVER,
    device_request,
    make_device,
    make_device_claim,
    make_device_class,
    make_device_template,
    make_slice,
    with_device_claims,
)

_AT = f'device.attributes["{DRIVER}"]'


@dataclass(frozen=True)
class Gpu:
    """A device as the judge knows it."""

    name: str
    model: str
    memory: int
    is_tainted: bool


#: By name: the expression, and the same in Python.
KINDS: dict[str, tuple[tuple[str, ...], Callable[[Gpu], bool]]] = {
    "any": ((), lambda gpu: True),
    "a": ((f'{_AT}.model == "a"',), lambda gpu: gpu.model == "a"),
    "b": ((f'{_AT}.model == "b"',), lambda gpu: gpu.model == "b"),
    "large": ((f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0',),
              lambda gpu: gpu.memory >= 40),
    "large a": ((f'{_AT}.model == "a"', f"{_AT}.memory > 39"),
                lambda gpu: gpu.model == "a" and gpu.memory > 39),
    "none": ((f'{_AT}.model == "z"',), lambda gpu: False),
    "any, tolerant": ((), lambda gpu: True),
    "a, tolerant": ((f'{_AT}.model == "a"',), lambda gpu: gpu.model == "a"),
}  # fmt: skip


def will_do(kind: str, gpu: Gpu) -> bool:
    """Return whether a device is of a kind and can be had."""
    return KINDS[kind][1](gpu) and (not gpu.is_tainted or "tolerant" in kind)


#: Options of a request in their order: kind and count; `ALL` for all devices of the kind.
Options = list[tuple[str, int]]
ALL = 0


@dataclass
class Case:
    """A cluster, and what is asked of it: by job the members, and the requests of each."""

    nodes: dict[str, list[Gpu]]
    jobs: dict[str, tuple[int, list[Options]]]
    taken: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    #: By name of a claim: its node, and the devices that it has.
    claims: dict[str, tuple[str, list[str]]] = field(
        default_factory=dict[str, tuple[str, list[str]]]
    )

    def free(self, node: str) -> list[Gpu]:
        return [gpu for gpu in self.nodes[node] if gpu.name not in self.taken.get(node, set())]

    def match(self, node: str, asks: list[tuple[str, int]]) -> list[str] | None:
        """Return devices of a node for these requests, each the first that will do; or None."""
        slots = [kind for kind, count in asks for _ in range(count)]
        free = self.free(node)
        owner: dict[str, int] = {}

        def find(slot: int, seen: set[str]) -> bool:
            for gpu in free:
                if gpu.name in seen or not will_do(slots[slot], gpu):
                    continue
                seen.add(gpu.name)
                if gpu.name not in owner or find(owner[gpu.name], seen):
                    owner[gpu.name] = slot
                    return True
            return False

        return list(owner) if all(find(i, set()) for i in range(len(slots))) else None

    def count(self, node: str, kind: str, count: int) -> int:
        """Return how many devices an option is for, on this node; 0 where it can never be."""
        there = [gpu for gpu in self.nodes[node] if KINDS[kind][1](gpu)]
        had = sum(will_do(kind, gpu) for gpu in there)
        if count != ALL:
            return count if had >= count else 0
        return had if had == len(there) else 0

    def chosen(self, node: str, requests: list[Options]) -> list[tuple[str, int]] | None:
        """Return the option of each request that the node serves; None where it lacks one."""
        found: list[tuple[str, int]] = []
        for options in requests:
            counts = [(kind, self.count(node, kind, count)) for kind, count in options]
            option = next((each for each in counts if each[1]), None)
            if option is None:
                return None
            found.append(option)
        return found

    def room(self, node: str, requests: list[Options], most: int) -> int:
        """Return how many members with these requests a node has devices for, at most `most`."""
        asks = self.chosen(node, requests)
        if asks is None:
            return 0
        return next((n for n in range(most, 0, -1) if self.match(node, asks * n)), 0)

    def allocate(self, node: str, requests: list[Options]) -> list[str] | None:
        """Return devices as kube-scheduler does: options in order, going back where one fails."""
        for options in product(*requests):
            counts = [(kind, self.count(node, kind, count)) for kind, count in options]
            if all(count for _, count in counts) and (found := self.match(node, counts)):
                return found
        return None


@st.composite
def cases(draw: st.DrawFn) -> Case:
    gpu = st.tuples(
        st.sampled_from("abc"), st.sampled_from([16, 40, 80]), st.sampled_from([False, False, True])
    )
    nodes = {
        f"n{i}": [Gpu(f"d{j}", *each) for j, each in enumerate(draw(st.lists(gpu, max_size=5)))]
        for i in range(draw(st.integers(1, 4)))
    }
    ask = st.tuples(st.sampled_from(sorted(KINDS)), st.sampled_from([1, 2, 1, 2, ALL]))
    options = st.lists(ask, min_size=1, max_size=draw(st.integers(1, 3)))
    jobs = {
        f"j{i}": (draw(st.integers(1, 4)), draw(st.lists(options, min_size=1, max_size=2)))
        for i in range(draw(st.integers(1, 5)))
    }
    return Case(nodes, jobs)


def device(gpu: Gpu) -> Device:
    attributes = {"model": gpu.model, "memory": gpu.memory, "uuid": f"{gpu.name}-{gpu.memory}"}
    made = make_device(gpu.name, attributes, {"memory": f"{gpu.memory}Gi"})
    return replace(made, taints=(DeviceTaint("old", "", "NoSchedule"),) * gpu.is_tainted)


def request(options: Options, name: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    for kind, count in options:
        each = device_request("gpu", count, *KINDS[kind][0])["exactly"]
        if count == ALL:
            each = {key: value for key, value in each.items() if key != "count"}
            each["allocationMode"] = "All"
        if "tolerant" in kind:
            each["tolerations"] = [{"key": "old", "operator": "Exists"}]
        found.append(each)
    if len(found) == 1:
        return {"name": name, "exactly": found[0]}
    return {"name": name, "firstAvailable": [{"name": f"o{i}", **e} for i, e in enumerate(found)]}


def state_of(case: Case) -> ClusterState:
    templates = [
        make_device_template(name, *(
            request(options, f"r{i}") for i, options in enumerate(requests)
        ))
        for name, (_, requests) in case.jobs.items()
    ]  # fmt: skip
    slices = [make_slice(node, [*map(device, gpus)]) for node, gpus in case.nodes.items()]
    classes = [make_device_class("gpu", f'device.driver == "{DRIVER}"')]
    nodes = [make_node(node, cpu="64") for node in case.nodes]
    return ClusterState.of(nodes, devices=DeviceTable(slices, classes, templates))


def pod_of(job: Job, index: int, node: str) -> Pod:
    role, name = job.spec.roles[0], f"{job.metadata.name}-1-worker-{index}"
    owner = OwnerReference("fairlead.dev/v1alpha1", "Job", job.metadata.name, job.metadata.uid,
                           controller=True)  # fmt: skip
    labels = {"fairlead.dev/role": "worker", "fairlead.dev/index": str(index)}
    meta = ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", labels=labels,
                      owner_references=(owner,))  # fmt: skip
    return Pod(meta, replace(role.template.spec, node_name=node))


@given(cases(), st.booleans())
@settings(BOUNDED)
def test_a_gang_gets_places_if_and_only_if_there_are_devices_for_all_its_members(
    case: Case, ends: bool,
) -> None:  # fmt: skip
    state = state_of(case)
    placement = PlacementState(state)
    holders: list[Job] = []
    for age, (name, (count, requests)) in enumerate(case.jobs.items()):
        job = make_job(name, count=count, gpus=0, cpu="1", created=EPOCH - 99 + age)
        job = with_device_claims(job, name)
        state.job_changed(job)
        decision = decide(placement, PlacementPolicy(), EPOCH)
        placed = [each for each in decision.actions if isinstance(each, PlaceJob)]
        room = {node: case.room(node, requests, count) for node in case.nodes}
        assert bool(placed) == (sum(room.values()) >= count), (room, decision.verdicts)
        if not placed:
            state.job_deleted(job.metadata.key)
            continue
        nodes = placed[0].placement.roles[0].nodes
        job = replace(job, status=replace(job.status, placement=placed[0].placement))
        state.job_changed(job)
        for i, node in enumerate(nodes):
            found = case.allocate(node, requests)
            assert found is not None, "a member has no devices where it was placed"
            case.taken.setdefault(node, set()).update(found)
            pod = pod_of(job, i, node)
            state.pod_changed(pod)
            case.claims[f"{pod.metadata.name}-gpu"] = (node, found)
            claim = make_device_claim(
                f"{pod.metadata.name}-gpu", pod=pod.metadata.name, has=[(node, d) for d in found]
            )
            state.devices.put_claim(claim.metadata.key, claim)
        holders.append(job)
        if ends and len(holders) > 1:
            end(state, case, holders.pop(0))


def end(state: ClusterState, case: Case, job: Job) -> None:
    """Delete a job, its pods and their claims, in this order, as a cluster does."""
    assert job.status.placement is not None
    state.job_deleted(job.metadata.key)
    for i, node in enumerate(job.status.placement.roles[0].nodes):
        pod = pod_of(job, i, node)
        name = f"{pod.metadata.name}-gpu"
        state.pod_deleted(pod.metadata.key)
        state.devices.put_claim(("default", name), None)
        case.taken[node] -= set(case.claims.pop(name)[1])
