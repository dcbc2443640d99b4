"""What pods ask in all ways at once, against a judge that tries all places (`asks_world`).

After each decision the members that have places are bound, and their volumes and devices are given
to them as kube-scheduler does; what follows is planned around these. The real one is a third judge
of the same cases in `tests/kubernetes/test_judges.py`.
"""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.property.asks_world import PAGES, UNITS, Case, Gang, Judge, draw_case, planned
from tests.property.placement_world import BOUNDED

from fairlead.api import names
from fairlead.api.jobs.job import Job, Role
from fairlead.api.jobs.placement import Placement
from fairlead.api.kubernetes.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from fairlead.api.kubernetes.volumes import own_claim_name
from fairlead.decide.jobs.following.pods import AttemptPods
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.jobs.rendering.members import missing_pods
from fairlead.model.objects import Objects
from fairlead.testing.device_builders import make_device_claim
from fairlead.testing.volume_builders import ZONE, make_claim, make_volume


@BOUNDED
@given(st.randoms(use_true_random=False), st.integers(1, 2))
def test_gangs_get_places_if_and_only_if_all_that_their_pods_ask_is_there(
    rng: Random, roles_max: int
) -> None:
    case = draw_case(rng, "c", roles_max=roles_max)
    objects = case.objects
    for age, gang in enumerate(case.gangs):
        judge, job = Judge(case, objects), gang.job(age)
        placement = planned(objects, job)
        if placement is None:
            assert len(gang.roles) > 1 or not judge.finds_places(gang), gang
            continue
        assert judge.accepts(gang, [role.nodes for role in placement.roles]), (gang, placement)
        objects = bound(case, objects, gang, job, placement)


@pytest.mark.parametrize(
    "overlooked", ["pods", "csi_nodes", "device_claims", "volumes", "cpu", "memory", PAGES]
)
def test_the_judge_reports_a_planner_that_overlooks_something(overlooked: str) -> None:
    """Volumes are overlooked as if they could be reached from anywhere; of amounts, what pods ask
    for as a whole.
    """
    for seed in range(600):
        case = draw_case(Random(seed), "c")
        objects = case.objects
        for age, gang in enumerate(case.gangs):
            seen, job = objects, gang.job(age)
            seen_job = _without_whole(job, overlooked) if overlooked in UNITS else job
            if overlooked not in UNITS:
                found = {overlooked: _overlooked(objects, overlooked)}
                seen = dataclasses.replace(objects, **found)
            placement = planned(seen, seen_job)
            if placement is None:
                continue
            places = [role.nodes for role in placement.roles]
            if not Judge(case, objects).accepts(gang, places):
                return
            objects = bound(case, objects, gang, job, placement)
    pytest.fail("not reported")


def _without_whole(job: Job, name: str) -> Job:
    """Return the job whose pods ask for an amount by their containers alone."""

    def without(role: Role) -> Role:
        pod = role.template.spec
        if pod.resources is None:
            return role
        limits, requests = (
            {n: a for n, a in each.items() if n != name}
            for each in (pod.resources.limits, pod.resources.requests)
        )
        whole = replace(pod.resources, limits=limits, requests=requests)
        spec = replace(pod, resources=whole)
        return replace(role, template=replace(role.template, spec=spec))

    return replace(job, spec=replace(job.spec, roles=tuple(map(without, job.spec.roles))))


def _overlooked(objects: Objects, kind: str) -> tuple[Any, ...]:
    if kind != "volumes":
        return ()
    return tuple(
        replace(each, spec=replace(each.spec, node_affinity=None)) for each in objects.volumes
    )


def bound(case: Case, objects: Objects, gang: Gang, job: Job, placement: Placement) -> Objects:
    """Return the objects once the members run."""
    judge = Judge(case, objects)
    job = replace(job, status=replace(job.status, placement=placement))
    world = World(case, objects)
    roles = {role.name: role for role in gang.roles}
    for pod in missing_pods(job, JobsPolicy(), AttemptPods(), resume_step=None):
        name, node = pod.metadata.name, pod.spec.node_name
        role, index = roles[pod.metadata.labels[names.ROLE]], int(pod.metadata.labels[names.INDEX])
        world.pods.append(replace(pod, metadata=replace(pod.metadata, uid=f"uid-{name}")))
        if role.devices:
            found = judge.devices.allocate(node, role.devices)
            assert found is not None, "a member has no devices where it was placed"
            judge.devices.taken.setdefault(node, set()).update(found)
            world.device_claims.append(
                make_device_claim(f"{name}-gpu", pod=name, has=[(node, each) for each in found])
            )
        if role.card and role.card not in judge.allocated:
            found = judge.devices.allocate(node, case.cards[role.card])
            assert found is not None, "a claim that is shared has no devices where it was placed"
            world.allocate(role.card, node, found)
            judge.allocated[role.card] = node
        for claim in role.claims:
            world.bind(claim, node)
        if role.disks:
            claim = own_claim_name("data", job.metadata.name, role.name, index)
            world.claims[claim] = make_claim(claim, storage_class=role.disks)
            world.bind(claim, node)
    return world.objects(job)


class World:
    """Objects that change: what kube-scheduler, provisioners and controllers do is done here."""

    def __init__(self, case: Case, objects: Objects) -> None:
        self._before = objects
        self._zones = {node.metadata.name: node.metadata.labels[ZONE] for node in objects.nodes}
        self.pods, self.device_claims = list(objects.pods), list(objects.device_claims)
        self.claims = {each.metadata.name: each for each in objects.claims}
        self.volumes = {each.metadata.name: each for each in objects.volumes}

    def bind(self, name: str, node: str) -> None:
        """Bind a claim for a pod on a node, to the volume of its name, which is made if needed."""
        claim = self.claims[name]
        if claim.is_bound:
            return
        classes = {each.metadata.name: each for each in self._before.storage_classes}
        found = classes[claim.storage_class]
        volume = self.volumes.get(name) or make_volume(
            name, zones=[self._zones[node]], driver=found.provisioner
        )
        spec = replace(volume.spec, claim_ref=make_volume(name, claim=name).spec.claim_ref)
        self.volumes[name] = replace(volume, spec=spec)
        self.claims[name] = make_claim(name, volume=name, storage_class=claim.storage_class)

    def allocate(self, name: str, node: str, devices: list[str]) -> None:
        """Give a claim devices of a node, which then is the only one that reaches them."""
        here = NodeSelectorRequirement("metadata.name", "In", (node,))
        reach = NodeSelector((NodeSelectorTerm(match_fields=(here,)),))
        made = make_device_claim(name, has=[(node, each) for each in devices])
        assert made.status.allocation is not None
        allocation = replace(made.status.allocation, node_selector=reach)
        status = replace(made.status, allocation=allocation)
        self.device_claims = [
            replace(each, status=status) if each.metadata.name == name else each
            for each in self.device_claims
        ]

    def objects(self, job: Job) -> Objects:
        return dataclasses.replace(
            self._before, jobs=(*self._before.jobs, job), pods=tuple(self.pods),
            claims=tuple(self.claims.values()), volumes=tuple(self.volumes.values()),
            device_claims=tuple(self.device_claims),
        )  # fmt: skip
