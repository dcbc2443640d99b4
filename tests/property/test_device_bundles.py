"""Gangs whose devices are to be alike (`matchAttribute`), a GPU and a network card of one root, or
to differ (`distinctAttribute`), cards of several roots, on generated clusters, against a counter
that knows each device.

Others take devices of the same kinds, whichever they find. What gets places finds its devices; and
as long as no others have any, a gang gets places if and only if there are bundles for its members.
Of devices that differ some that are there may be left out, but not where one member asks alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.property.placement_world import BOUNDED
from tests.property.test_devices import pod_of

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.devices import ResourceClaimTemplate
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

#: Devices of a node: what each is, and its root; None for one that has none.
Devices = list[tuple[str, str | None]]
#: What a member wants: so many GPUs and so many cards, "alike", of one root, or of "any"; or so
#: many cards that "differ": each of a root of its own.
Wish = tuple[int, int, str]


@dataclass
class Case:
    """A cluster, and for each job how many members want what."""

    nodes: dict[str, Devices]
    jobs: dict[str, tuple[int, Wish]]
    seed: int
    taken: dict[str, set[int]] = field(default_factory=dict[str, set[int]])

    def free(self, node: str, what: str, root: str | None = None) -> list[int]:
        """Return the free devices of a node, of one root where one is given."""
        return [
            i
            for i, (kind, at) in enumerate(self.nodes[node])
            if kind == what and i not in self.taken.get(node, set()) and root in (None, at)
        ]

    def find(self, node: str, wish: Wish, rng: random.Random) -> set[int] | None:
        """Return devices for a member, any that will do; None where there are none."""
        gpus, cards, how = wish
        roots = sorted({at for _, at in self.nodes[node] if at is not None})
        rng.shuffle(roots)
        if how == "differ":
            found = [of_root for root in roots if (of_root := self.free(node, "card", root))]
            return {rng.choice(each) for each in found[:cards]} if len(found) >= cards else None
        for root in roots if how == "alike" else [None]:
            of_gpus, of_cards = self.free(node, "gpu", root), self.free(node, "card", root)
            if len(of_gpus) >= gpus and len(of_cards) >= cards:
                return {*rng.sample(of_gpus, gpus), *rng.sample(of_cards, cards)}
        return None

    def bundles(self, node: str, wish: Wish) -> int:
        """Return how many members that want devices of one root a node has room for."""
        gpus, cards, _ = wish
        roots = {at for _, at in self.nodes[node] if at is not None}
        amounts = ((self.free(node, "gpu", r), self.free(node, "card", r)) for r in roots)
        return sum(
            min(n for n in (len(a) // gpus if gpus else 99, len(b) // cards if cards else 99))
            for a, b in amounts
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    device = st.tuples(
        st.sampled_from(["gpu", "card"]), st.sampled_from(["a", "b", "a", "c", None])
    )
    nodes = {f"n{i}": draw(st.lists(device, max_size=10)) for i in range(draw(st.integers(1, 3)))}
    wish = st.one_of(
        st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from(["alike", "any"])).filter(
            lambda each: any(each[:2])
        ),
        st.tuples(st.just(0), st.integers(2, 3), st.just("differ")),
    )
    jobs = {f"j{i}": (draw(st.integers(1, 3)), draw(wish)) for i in range(draw(st.integers(1, 5)))}
    return Case(nodes, jobs, draw(st.integers(0, 99)))


def template(name: str, wish: Wish) -> ResourceClaimTemplate:
    gpus, cards, how = wish
    requests = [
        device_request(what, count, name=what)
        for what, count in (("gpu", gpus), ("card", cards))
        if count
    ]
    if how == "differ":
        requests = [device_request("card", name=f"card{i}") for i in range(cards)]
    made = make_device_template(name, *requests)
    if how == "any":
        return made
    kind = "distinctAttribute" if how == "differ" else "matchAttribute"
    devices = replace(made.spec.spec.devices, constraints=({kind: f"{DRIVER}/root"},))
    return replace(made, spec=replace(made.spec, spec=replace(made.spec.spec, devices=devices)))


def state_of(case: Case) -> ClusterState:
    slices = [
        make_slice(node, [
            make_device(f"d{i}", {"what": what} | ({"root": root} if root else {}))
            for i, (what, root) in enumerate(devices)
        ])
        for node, devices in case.nodes.items()
    ]  # fmt: skip
    classes = [
        make_device_class(what, f'device.attributes["{DRIVER}"].what == "{what}"')
        for what in ("gpu", "card")
    ]
    templates = [template(name, wish) for name, (_, wish) in case.jobs.items()]
    nodes = [make_node(node, cpu="64") for node in case.nodes]
    return ClusterState.of(nodes, devices=DeviceTable(slices, classes, templates))


@given(cases(), st.booleans())
@settings(BOUNDED)
def test_members_find_devices_that_are_alike_or_differ_whichever_others_got(
    case: Case, is_late: bool,
) -> None:  # fmt: skip
    """`is_late`: the members of a gang get their devices after the next one was placed."""
    state, rng = state_of(case), random.Random(case.seed)
    placement = PlacementState(state)
    waiting: list[tuple[Job, Wish]] = []
    are_all_alike = not is_late
    for age, (name, (count, wish)) in enumerate(case.jobs.items()):
        job = make_job(name, count=count, gpus=0, cpu="1", created=EPOCH - 99 + age)
        job = with_device_claims(job, name)
        state.job_changed(job)
        decision = decide(placement, PlacementPolicy(), EPOCH)
        placed = [each for each in decision.actions if isinstance(each, PlaceJob)]
        are_all_alike &= wish[2] == "alike" and wish[:2] == case.jobs["j0"][1][:2]
        if count == 1 and wish[2] == "differ" and not (case.taken or waiting):
            assert bool(placed) == any(case.find(node, wish, rng) for node in case.nodes)
        if are_all_alike:
            room = sum(case.bundles(node, wish) for node in case.nodes)
            assert bool(placed) == (room >= count), (room, decision.verdicts)
        if placed:
            job = replace(job, status=replace(job.status, placement=placed[0].placement))
            state.job_changed(job)
            waiting.append((job, wish))
        else:
            state.job_deleted(job.metadata.key)
        while len(waiting) > is_late:
            allocate(state, case, *waiting.pop(rng.randrange(len(waiting))), rng=rng)
    while waiting:
        allocate(state, case, *waiting.pop(rng.randrange(len(waiting))), rng=rng)


def allocate(state: ClusterState, case: Case, job: Job, wish: Wish, *, rng: random.Random) -> None:
    """Give the members of a job devices, one after the other, as kube-scheduler may."""
    assert job.status.placement is not None
    for i, node in enumerate(job.status.placement.roles[0].nodes):
        found = case.find(node, wish, rng)
        assert found is not None, "a member has no devices where it was placed"
        case.taken.setdefault(node, set()).update(found)
        pod = pod_of(job, i, node)
        state.pod_changed(pod)
        claim = make_device_claim(
            f"{pod.metadata.name}-gpu", pod=pod.metadata.name,
            has=[(node, f"d{d}") for d in sorted(found)],
        )  # fmt: skip
        state.devices.put_claim(claim.metadata.key, claim)
