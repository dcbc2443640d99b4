"""The priority of a job: the value of the PriorityClass that its pods carry.

`spec.priority` shows that value and never sets it, so a job cannot give itself a place in the queue
that its pods would not have: the right to use a class is decided where pods are created, by the
ResourceQuota scopes of the namespace. A role's class is the job's, else its template's, else the
cluster's default; a job whose roles differ has the lowest value of them. While a job holds nodes,
it has at most the priority that it was placed with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter

from fairlead.api.jobs.job import Job, JobSpec
from fairlead.api.kubernetes.core import PriorityClass

#: Classes of the cluster's own components; usable in their namespace only.
SYSTEM_PREFIX = "system-"
SYSTEM_NAMESPACE = "kube-system"
#: The `preemptionPolicy` of a class whose pods preempt no others.
_NEVER = "Never"


@dataclass(frozen=True, slots=True)
class MissingClass:
    """The job names a PriorityClass that does not exist."""

    name: str


@dataclass(frozen=True, slots=True)
class ReservedClass:
    """The job names a class that is reserved for the cluster's own components."""

    name: str


Unresolved = MissingClass | ReservedClass


class PriorityTable:
    """All PriorityClasses of a cluster, by name."""

    def __init__(self, classes: Iterable[PriorityClass] = ()) -> None:
        self._values: dict[str, int] = {}
        self._defaults: dict[str, int] = {}
        #: Classes whose pods wait for room instead of taking it from others.
        self._patient: dict[str, None] = {}
        for each in classes:
            self.put(each)

    def put(self, priority_class: PriorityClass) -> None:
        """Take in a class, new or changed."""
        name = priority_class.metadata.name
        self._values[name] = priority_class.value
        self._patient.pop(name, None)
        if priority_class.preemption_policy == _NEVER:
            self._patient[name] = None
        if priority_class.global_default:
            self._defaults[name] = priority_class.value
        else:
            self._defaults.pop(name, None)

    def remove(self, name: str) -> None:
        """Take in that a class is gone."""
        self._values.pop(name, None)
        self._defaults.pop(name, None)
        self._patient.pop(name, None)

    def value(self, name: str) -> int | None:
        """Return the value of a class, of the default one for ""; None when it does not exist.

        Of several defaults the lowest counts, and without one the value is 0, as for pods.
        """
        if name:
            return self._values.get(name)
        return min(self._defaults.values(), default=0)

    def may_preempt(self, spec: JobSpec) -> bool:
        """True unless one of the job's classes says `preemptionPolicy: Never`."""
        lowest = min(self._defaults.items(), key=itemgetter(1, 0), default=("", 0))[0]
        return not any((name or lowest) in self._patient for name in class_names(spec))

    def resolve(self, spec: JobSpec, namespace: str) -> int | Unresolved:
        """Return the priority of a job, or what keeps it from having one."""
        lowest: int | None = None
        for name in dict.fromkeys(class_names(spec)):
            if name.startswith(SYSTEM_PREFIX) and namespace != SYSTEM_NAMESPACE:
                return ReservedClass(name)
            value = self.value(name)
            if value is None:
                return MissingClass(name)
            lowest = value if lowest is None else min(lowest, value)
        return lowest or 0


def placed_priority(job: Job, resolved: int | Unresolved) -> int | Unresolved:
    """Return the priority of a job whose spec and classes give `resolved`.

    While the attempt that it was placed for lasts, it has at most the priority that it was placed
    with: a higher class has to be granted to pods first, and those of this attempt exist already. A
    class that is gone leaves it that priority, as it leaves pods theirs.
    """
    placement = job.status.placement
    if placement is None or placement.priority is None:
        return resolved
    if placement.attempt != job.status.attempt:
        return resolved  # it is to be placed again, and its next pods are of the class of now
    return min(resolved, placement.priority) if isinstance(resolved, int) else placement.priority


def class_names(spec: JobSpec) -> Iterator[str]:
    """Yield the class of each role's pods; "" is the cluster's default."""
    if spec.priority_class_name or not spec.roles:
        yield spec.priority_class_name
        return
    for role in spec.roles:
        yield role.template.spec.priority_class_name
