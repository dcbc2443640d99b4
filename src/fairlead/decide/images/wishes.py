"""Which images are wished where: of jobs whose nodes are known, and of image sets (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fairlead.api import names
from fairlead.api.cluster.image_set import ImageOnNodes, ImageSet, ImageSetPhase, ImageSetStatus
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import Placement, RolePlacement
from fairlead.api.kubernetes.core import PodSpec
from fairlead.api.kubernetes.resource_quota import ResourceQuota
from fairlead.api.meta import Condition, set_condition
from fairlead.api.values.quantity import PODS, QuantityError, to_base
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.images.plan import ImageTally, PullHold
from fairlead.decide.images.policy import ImagesPolicy
from fairlead.decide.images.view import ImageNode, Owner, Wish
from fairlead.decide.words import plural

JOB, IMAGE_SET = "Job", "ImageSet"
#: What a quota may count of a pod that asks for nothing: all but requests.
_COUNTED = ("pods", "count/pods")
_LIMITS = "limits."


@dataclass(frozen=True, slots=True)
class ExpectedJob:
    """A waiting job, and where it is going to be: nodes by role, or those of all roles under ""."""

    job: Job
    nodes: Mapping[str, tuple[str, ...]]

    @classmethod
    def of_roles(cls, job: Job, roles: Sequence[RolePlacement]) -> ExpectedJob:
        """Return it of a nomination or a placement."""
        return cls(job, {role.role: role.nodes for role in roles})


def is_starting(job: Job) -> bool:
    """True while the members of a job that has nodes do not all run yet."""
    status = job.status
    if status.placement is None or job.is_finished:
        return False
    return status.members.running + status.members.succeeded < sum(r.count for r in job.spec.roles)


def images_by_node(job: Job, place: Placement) -> Iterator[tuple[str, str]]:
    """Yield (node, image) of the members of a job."""
    roles = {role.name: role for role in job.spec.roles}
    for placed in place.roles:
        role = roles.get(placed.role)
        for image in _images(role.template.spec) if role is not None else ():
            for node in set(placed.nodes):
                yield node, image


def wishes_of_job(
    expected: ExpectedJob, policy: ImagesPolicy, quotas: Iterable[ResourceQuota], pulls: int
) -> Iterator[Wish]:
    """Yield the wishes of a waiting job, each image once.

    `quotas` are those of its namespace, and `pulls` the pods of pulls that they count already.
    """
    job, meta = expected.job, expected.job.metadata
    owner = Owner(JOB, meta.namespace, meta.name, meta.uid)
    found: dict[str, tuple[str, dict[str, None]]] = {}
    for role in job.spec.roles:
        nodes = (*expected.nodes.get(role.name, ()), *expected.nodes.get("", ()))
        for image in _images(role.template.spec):
            if image in found or len(found) < policy.images_per_job_max:
                found.setdefault(image, (role.name, {}))[1].update(dict.fromkeys(nodes))
    members = sum(role.count for role in job.spec.roles)
    room = _pods_left(quotas, members, pulls)
    for image, (role_name, distinct) in found.items():
        yield Wish(owner, image, tuple(distinct), role_name, room)


def _images(spec: PodSpec) -> Iterator[str]:
    for container in (*spec.init_containers, *spec.containers):
        if container.image:
            yield container.image


def _pods_left(quotas: Iterable[ResourceQuota], members: int, pulls: int) -> int | None:
    """Return how many pulls a namespace may have beside the members of a job; None: any number.

    A quota of limits leaves none: what a pull would take of it the job may need at its start.
    """
    least: int | None = None
    for quota in quotas:
        for name, limit in quota.status.hard.items() or quota.spec.hard.items():
            if name.startswith(_LIMITS):
                return 0
            if name in _COUNTED:
                try:
                    used = to_base(PODS, quota.status.used.get(name, limit))
                    left = to_base(PODS, limit) - used + pulls - members
                except QuantityError:
                    left = 0
                least = max(0, left if least is None else min(least, left))
    return least


def wishes_of_set(image_set: ImageSet, nodes: Iterable[str]) -> Iterator[Wish]:
    """Yield the wishes of an image set for its nodes."""
    meta, ordered = image_set.metadata, tuple(sorted(nodes))
    owner = Owner(IMAGE_SET, "", meta.name, meta.uid)
    for image in dict.fromkeys(image_set.spec.images):
        yield Wish(owner, image, ordered)


def is_expired(image_set: ImageSet, now: float) -> bool:
    """True once nothing is pulled for a set any more."""
    until = image_set.spec.keep_until
    return until is not None and parse_time(until) <= now


def is_of_set(image_set: ImageSet, labels: Mapping[str, str]) -> bool:
    """True for the labels of a node that a set is for."""
    spec = image_set.spec
    if spec.pools and labels.get(names.POOL, "") not in spec.pools:
        return False
    return all(labels.get(key) == value for key, value in spec.node_selector.items())


def status_of_set(
    image_set: ImageSet,
    nodes: Mapping[str, ImageNode],
    tallies: Mapping[tuple[str, str], ImageTally],
    now: float,
) -> ImageSetStatus:
    """Return how far a set is. `nodes` are its own."""
    uid, generation = image_set.metadata.uid, image_set.metadata.generation
    if is_expired(image_set, now):
        said = ("False", "Expired", "no image is pulled any more")
        ended = _with_ready(image_set, said, now)
        return ImageSetStatus(generation, ended, ImageSetPhase.EXPIRED, len(nodes))
    images: list[ImageOnNodes] = []
    lacking = 0
    for image in dict.fromkeys(image_set.spec.images):
        tally = tallies.get((uid, image), ImageTally())
        present = tally.holds.get(PullHold.PRESENT, 0)
        size = max((node.size_of(image) for node in nodes.values()), default=0)
        pulling = tally.holds.get(PullHold.PULLING, 0)
        images.append(ImageOnNodes(image, present, pulling, size, tally.words))
        lacking = max(lacking, len(nodes) - present)
    phase, ready = ImageSetPhase.READY, ("True", "ImagesPresent", "")
    if lacking:
        words = f"{lacking} of {plural(len(nodes), 'node')} lack an image"
        phase, ready = ImageSetPhase.PENDING, ("False", "ImagesLacking", words)
    conditions = _with_ready(image_set, ready, now)
    return ImageSetStatus(generation, conditions, phase, len(nodes), lacking, tuple(images))


def _with_ready(
    image_set: ImageSet, said: tuple[str, str, str], now: float
) -> tuple[Condition, ...]:
    """Return the conditions with Ready as it is said: status, reason, message."""
    generation = image_set.metadata.generation or None
    ready = Condition(names.READY, *said, generation, format_time(now))
    return set_condition(image_set.status.conditions, ready)
