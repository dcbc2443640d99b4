"""Jobs for parts of devices on generated layouts, against a search that knows every counter.

Layouts are any: parts lie over slices as they like, consume of a counter that all share, and
profiles overlap. Jobs are placed one after the other without anything being allocated, so that only
the rows hold them. Then they get parts in an order that is bad luck: those that are left at the
end, or the first ones, or some in between, the largest kinds first.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.property.placement_world import BOUNDED

from fairlead.api.kubernetes.devices import (
    CounterConsumption,
    CounterSet,
    Device,
    DeviceCounter,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from fairlead.api.meta import ObjectMeta
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.claimed.devices import DeviceTable
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import EPOCH, make_job, make_node
from fairlead.testing.device_builders import (
    DRIVER,
    make_device,
    make_device_class,
    mig_template,
    with_device_claims,
)

PROFILES = "abc"


@dataclass(frozen=True)
class Part:
    """What one device consumes: its slices, and so much of the counter that all share."""

    profile: str
    slices: frozenset[int]
    amount: int


@dataclass
class Gpu:
    """What a GPU has left."""

    slices: set[int]
    amount: int


@dataclass(frozen=True)
class Case:
    """The parts and the shared counter of a GPU, the GPUs of each node, and jobs by profile."""

    parts: list[Part]
    total: int
    nodes: list[int]
    jobs: list[tuple[str, int]]
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sizes = draw(st.permutations([1, 1, 2, 3, 4]))
    parts: list[Part] = []
    for profile, size in zip(PROFILES, sizes, strict=False):
        amount = draw(st.integers(1, size))
        starts = draw(st.sets(st.integers(0, 6 - size), min_size=1, max_size=4))
        parts += [Part(profile, frozenset(range(i, i + size)), amount) for i in starts]
    job = st.tuples(st.sampled_from(PROFILES), st.integers(1, 3))
    return Case(
        parts,
        draw(st.integers(4, 8)),
        draw(st.lists(st.integers(1, 2), min_size=1, max_size=2)),
        draw(st.lists(job, min_size=1, max_size=6)),
        draw(st.integers(0, 9)),
    )


def slices_of(case: Case, node: str, gpus: int) -> list[ResourceSlice]:
    devices: list[Device] = []
    sets: list[CounterSet] = []
    for gpu in range(gpus):
        counters = {f"s{i}": DeviceCounter(1) for i in range(6)}
        sets.append(CounterSet(f"g{gpu}", {"all": DeviceCounter(case.total)} | counters))
        for i, part in enumerate(case.parts):
            used = {"all": DeviceCounter(part.amount)} | {
                f"s{i}": DeviceCounter(1) for i in part.slices
            }
            made = make_device(f"g{gpu}-{i}", {"profile": part.profile})
            uses = (CounterConsumption(f"g{gpu}", used),)
            devices.append(replace(made, consumes_counters=uses))
    pool = ResourcePool(node, resource_slice_count=2)
    specs = (
        ResourceSliceSpec(DRIVER, pool, node, tuple(devices)),
        ResourceSliceSpec(DRIVER, pool, node, shared_counters=tuple(sets)),
    )
    return [
        ResourceSlice(ObjectMeta(name=f"{node}-{i}"), spec) for i, spec in enumerate(specs)
    ]  # fmt: skip


@given(cases())
@settings(BOUNDED)
def test_members_find_parts_whichever_those_before_them_have_taken(case: Case) -> None:
    names = [f"n{i}" for i in range(len(case.nodes))]
    slices = [
        each for name, n in zip(names, case.nodes, strict=True) for each in slices_of(case, name, n)
    ]
    classes = [make_device_class(DRIVER)]
    table = DeviceTable(slices, classes, [mig_template(p) for p in PROFILES])
    state = ClusterState.of([make_node(name, cpu="64") for name in names], devices=table)
    wanted = [make_job(f"w{p}", gpus=0, cpu="999", created=EPOCH - 999) for p in PROFILES]
    for profile, job in zip(PROFILES, wanted, strict=True):
        state.job_changed(with_device_claims(job, profile))  # all kinds are told apart throughout
    members: dict[str, list[str]] = {profile: [] for profile in PROFILES}
    placement = PlacementState(state)
    for i, (profile, count) in enumerate(case.jobs):
        job = make_job(f"j{i}", count=count, gpus=0, cpu="1", created=EPOCH - 99 + i)
        job = with_device_claims(job, profile)
        state.job_changed(job)
        for action in decide(placement, PlacementPolicy(), EPOCH).actions:
            if isinstance(action, PlaceJob):
                nodes = action.placement.roles[0].nodes
                status = replace(job.status, placement=action.placement)
                state.job_changed(replace(job, status=status))
                members[profile] += nodes
                break
        else:
            state.job_deleted(job.metadata.key)
    allocate(case, names, members)


@given(cases(), st.integers(-1, 2))
@settings(BOUNDED)
def test_a_profile_alone_is_offered_as_often_as_it_is_found_whatever_the_order(
    case: Case, more: int
) -> None:
    names = [f"n{i}" for i in range(len(case.nodes))]
    slices = [
        each for name, n in zip(names, case.nodes, strict=True) for each in slices_of(case, name, n)
    ]
    table = DeviceTable(slices, [make_device_class(DRIVER)], [mig_template("a")])
    there_are = most(case, "a") * sum(case.nodes)
    job = make_job("j", count=max(1, there_are + more), gpus=0, cpu="1")
    nodes = [make_node(name, cpu="64") for name in names]
    state = ClusterState.of(nodes, [with_device_claims(job, "a")], devices=table)
    decision = decide(PlacementState(state), PlacementPolicy(), EPOCH)
    is_placed = any(isinstance(action, PlaceJob) for action in decision.actions)
    assert is_placed == (job.spec.roles[0].count <= there_are)


def most(case: Case, profile: str) -> int:
    """Return how few parts of a profile may be all that a GPU gives."""
    own = [part for part in case.parts if part.profile == profile]

    def fewest(free: set[int], left: int) -> int:
        fitting = [part for part in own if part.slices <= free and part.amount <= left]
        return min(
            (1 + fewest(free - part.slices, left - part.amount) for part in fitting), default=0
        )

    return fewest(set(range(6)), case.total)


def allocate(case: Case, names: list[str], members: dict[str, list[str]]) -> None:
    """Give each member a part on its node, whichever; AssertionError where none is left."""
    rng = random.Random(case.seed)
    gpus = {
        name: [Gpu(set(range(6)), case.total) for _ in range(n)]
        for name, n in zip(names, case.nodes, strict=True)
    }
    for profile in sorted(PROFILES, key=lambda each: (most(case, each), each)):
        for node in members[profile]:
            choices = [
                (gpu, part)
                for gpu in gpus[node]
                for part in case.parts
                if part.profile == profile
                and part.slices <= gpu.slices
                and part.amount <= gpu.amount
            ]
            assert choices, (profile, node, members)
            gpu, part = rng.choice(choices)
            gpu.slices -= part.slices
            gpu.amount -= part.amount
