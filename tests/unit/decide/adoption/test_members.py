"""What of a pod of another tool the planner looks at."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import (
    Pod,
    PodSpec,
    ResourceRequirements,
    SchedulingGate,
    Volume,
)
from fairlead.api.kubernetes.pod_parts import (
    ClaimVolumeSource,
    EmptyDirVolumeSource,
    PodResourceClaim,
    ResourceClaimUse,
)
from fairlead.api.meta import ObjectMeta, OwnerReference
from fairlead.api.validation.validate import validate_job
from fairlead.decide.adoption.group_job import GroupRequest, job_for
from fairlead.decide.adoption.members import (
    OWN_CLAIMS_MAX,
    Expected,
    asks_alike,
    planned_spec,
    read_member,
    shape_of,
)
from fairlead.model.claimed.job_claims import claims_of
from fairlead.model.pools.grouping import Group, Membership, Tool
from fairlead.testing.builders import make_pod_spec


def test_what_a_pod_asks_as_a_whole_distinguishes_it_from_others() -> None:
    plain = make_pod_spec(cpu=1)
    whole = replace(plain, resources=ResourceRequirements({"cpu": 50}))
    assert planned_spec(whole).resources == ResourceRequirements({"cpu": 50})
    assert shape_of(whole) != shape_of(plain)
    assert not asks_alike(whole, plain)
    assert asks_alike(whole, replace(whole, node_name="n1"))


def with_claims(spec: PodSpec, *claims: str) -> PodSpec:
    """Return a pod that has volumes by claims, another volume, and a device that it uses."""
    scratch = Volume("scratch", empty_dir=EmptyDirVolumeSource())
    volumes = [Volume(f"v{i}", persistent_volume_claim=ClaimVolumeSource(claim))
               for i, claim in enumerate(claims)]  # fmt: skip
    main = spec.containers[0]
    used = replace(main.resources, claims=(ResourceClaimUse("gpu"),))
    return replace(
        spec, containers=(replace(main, resources=used),), volumes=(scratch, *volumes),
        resource_claims=(PodResourceClaim("gpu", resource_claim_template_name="one"),),
    )  # fmt: skip


def job_of(*indices: int, is_numbered: bool = True) -> Job:
    """Return the job of a set whose pods share a claim, and have one and a device of their own, or
    of pods with the same claims that nobody numbers or controls.
    """
    tool = Tool.STATEFUL_SET if is_numbered else Tool.NAMED
    group = Group(("default", "db"), tool, "db", None)
    owner = OwnerReference("apps/v1", "StatefulSet", "db", "s", controller=True)
    owners = (owner,) if is_numbered else ()
    members = tuple(
        read_member(
            Pod(
                ObjectMeta(f"db-{i}", namespace="default", owner_references=owners),
                replace(
                    with_claims(make_pod_spec(cpu=1), "shared", f"data-db-{i}"),
                    scheduling_gates=(SchedulingGate(names.GANG_GATE),),
                ),
            ),
            Membership(group, index=i if is_numbered else None),
            0.0,
        )
        for i in indices
    )
    expected = Expected({"worker": len(members)})
    return job_for(GroupRequest(group, members, expected, "uid"))


def test_the_job_of_a_group_names_the_claims_of_its_pods() -> None:
    job = job_of(0, 1)
    assert validate_job(job) == []
    claims = claims_of(job)
    assert claims.shared == (("shared", "data-db-0"), ("shared", "data-db-1"))
    assert [[name.name for name in names] for names in claims.devices] == [["one"], ["one"]]


def test_claims_of_their_own_make_no_more_roles_than_a_job_has() -> None:
    job = job_of(*range(3 * OWN_CLAIMS_MAX))
    counts = [role.count for role in job.spec.roles]
    assert sorted(counts) == [1] * OWN_CLAIMS_MAX + [2 * OWN_CLAIMS_MAX]
    assert ("shared",) in claims_of(job).shared
    (role,) = job_of(*range(300), is_numbered=False).spec.roles
    assert (role.count, len(role.template.spec.resource_claims)) == (300, 1)


def test_devices_are_asked_for_as_resources_are() -> None:
    plain, spec = make_pod_spec(cpu=1), with_claims(make_pod_spec(cpu=1))
    assert not asks_alike(plain, spec)
    assert shape_of(plain) != shape_of(spec)
    assert asks_alike(planned_spec(spec), spec)
