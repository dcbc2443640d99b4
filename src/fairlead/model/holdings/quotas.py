"""The ResourceQuotas of a cluster: would the API server take all pods of a gang now?

The API server counts pod by pod, so a gang may have room for a part of it; here the whole gang is
counted. It counts no place whose pod has ended or does not exist yet; here what the jobs of the
namespace hold beyond their pods counts, too (`held_places.py`). The answer is one-sided: where a
quota cannot be judged (scopes of other kinds, numbers that the server has not counted yet) it
counts as wide enough, and the API server decides when the pods are created.
Claims for devices count with the pods that they are made for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.resource_quota import ResourceQuota, ScopeRequirement
from fairlead.api.pods.pod_asks import is_best_effort
from fairlead.api.values.quantity import (
    CPU,
    EPHEMERAL_STORAGE,
    MEMORY,
    PODS,
    QuantityError,
    to_base,
)
from fairlead.model.asks.priorities import class_names
from fairlead.model.gang.gangs import GangRequest, JobKey, RoleRequest

_COMPUTE = (CPU, MEMORY, EPHEMERAL_STORAGE)


@dataclass(frozen=True, slots=True)
class QuotaExcess:
    """The first limit that a gang exceeds, in base units (milli-CPU, bytes, counts)."""

    quota: str
    resource: str
    requested: int
    used: int
    limit: int
    #: Of `used`, what jobs hold without pods, which the API server does not count.
    held: int = 0
    #: Jobs of the namespace have places: at any moment these may be without pods.
    has_places: bool = False
    #: Claims for devices use of it, without which pods would wait on their nodes.
    is_of_claims: bool = False

    def __str__(self) -> str:
        """Return it in the API server's own words."""
        name = self.resource
        text = (
            f"exceeded quota: {self.quota}, requested: {name}={self.requested}, "
            f"used: {name}={self.used}, limited: {name}={self.limit}"
        )
        if not self.held:
            return text
        what = "claims" if self.is_of_claims else "pods"
        return f"{text}; of what is used, jobs hold {name}={self.held} without {what}"


class QuotaLimit(NamedTuple):
    """A limit that a gang needs something of, in base units."""

    quota: ResourceQuota
    name: str
    resource: str
    requested: int
    used: int
    limit: int
    #: What jobs hold without pods, or without the claims of these, beside `used`.
    held: int
    #: Claims for devices use of it.
    is_of_claims: bool = False


class Memo(NamedTuple):
    """An answer, and the quotas that it was of."""

    quotas: tuple[ResourceQuota, ...]
    #: Of what jobs held.
    version: tuple[int, int]
    limits: tuple[QuotaLimit, ...]
    excess: QuotaExcess | None


@dataclass(frozen=True, slots=True)
class QuotaQuestion:
    """What the answer about a gang depends on, besides the quotas."""

    namespace: str
    classes: tuple[str, ...]  # one for all roles, or one per role
    has_deadline: tuple[bool, ...]  # of each role
    is_best_effort: tuple[bool, ...]  # of each role
    #: Its pods exist and are counted.
    is_adopted: bool = False

    @classmethod
    def of(cls, job: Job) -> QuotaQuestion:
        """Return it of a job."""
        pods = [role.template.spec for role in job.spec.roles]
        return cls(
            job.metadata.namespace, tuple(class_names(job.spec)),
            tuple(pod.active_deadline_seconds is not None for pod in pods),
            tuple(map(is_best_effort, pods)), job.spec.adopts is not None,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class QuotaHolding:
    """What jobs of the namespace that are alike hold beyond their pods; `gang` is one of theirs."""

    asked: QuotaQuestion
    gang: GangRequest
    amounts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Places:
    """What the jobs of a namespace hold, as of `version`: beyond their pods, and in all.

    `taken` is what jobs were given that none of these show yet.
    """

    version: tuple[int, int] = (0, 0)
    held: Iterable[QuotaHolding] = ()
    amounts: Mapping[str, int] = field(default_factory=dict[str, int])
    taken: Collection[QuotaHolding] = ()


NO_PLACES = Places()


class QuotaTable:
    """All ResourceQuotas, by namespace."""

    def __init__(self) -> None:
        self._quotas: dict[str, tuple[ResourceQuota, ...]] = {}

    def put(self, quota: ResourceQuota) -> None:
        """Take in a quota, new or changed."""
        self._replace(quota.metadata.key, (quota,))

    def remove(self, key: JobKey) -> None:
        """Take in that a quota is gone."""
        self._replace(key, ())

    def _replace(self, key: JobKey, new: tuple[ResourceQuota, ...]) -> None:
        before = self._quotas.pop(key[0], ())
        others = (quota for quota in before if quota.metadata.name != key[1])
        after = (*others, *new)
        if after:
            self._quotas[key[0]] = tuple(sorted(after, key=lambda quota: quota.metadata.name))

    def __contains__(self, namespace: str) -> bool:
        """True for a namespace with quotas."""
        return namespace in self._quotas

    def excess(
        self,
        job: Job,
        gang: GangRequest,
        memos: dict[QuotaQuestion, Memo],
        places: Places = NO_PLACES,
    ) -> QuotaExcess | None:
        """Return the limit that a job without pods exceeds, if all of its pods were created now.

        The pods that a job stands for exist and are counted: of such a job it is asked whether
        there is room for them beside what others hold without pods. `places` are those of its
        namespace. `memos` keeps answers about this gang: jobs of one shape wait by the thousand.
        """
        namespace = job.metadata.namespace
        quotas = self._quotas.get(namespace)
        if quotas is None:
            return None
        asked = QuotaQuestion.of(job)
        known = memos.get(asked)
        if known is None or known.quotas is not quotas or known.version != places.version:
            others = tuple(places.held)
            limits = tuple(each for quota in quotas for each in _limits(quota, asked, gang, others))
            first = _first_excess(limits, asked, replace(places, taken=()))
            known = memos[asked] = Memo(quotas, places.version, limits, first)
        if known.excess is not None or not places.taken:
            return known.excess
        return _first_excess(known.limits, asked, places)


def _limits(
    quota: ResourceQuota, asked: QuotaQuestion, gang: GangRequest, others: Iterable[QuotaHolding]
) -> Iterator[QuotaLimit]:
    requested: Counter[str] = Counter()
    for role in _counted(quota, asked, gang):
        for resource, amount in role.member.request:
            requested[resource] += amount * role.count
    by_claims = _of_claims(gang) if not any(_scopes(quota)) and not asked.is_adopted else Counter()
    held = _sum(quota, others)
    for name, limit in sorted(quota.status.hard.items()):
        resource = _resource_of(name)
        amount = requested[resource] + by_claims[name]
        try:
            hard, used = to_base(resource, limit), to_base(resource, quota.status.used[name])
        except (QuantityError, KeyError):
            continue
        if amount:
            used -= amount if asked.is_adopted else 0
            beside = held[resource] + held[name] if name != resource else held[resource]
            yield QuotaLimit(
                quota, name, resource, amount, used, hard, beside, is_of_claims=name in by_claims
            )


def _first_excess(
    limits: Iterable[QuotaLimit], asked: QuotaQuestion, places: Places
) -> QuotaExcess | None:
    for each in limits:
        taken = _sum(each.quota, places.taken)
        now = taken[each.resource] + (taken[each.name] if each.name != each.resource else 0)
        held = each.held + now
        if asked.is_adopted and not held:
            continue  # the API server has taken its pods
        if each.used + held + each.requested > each.limit:
            return QuotaExcess(
                each.quota.metadata.name, each.name, each.requested, each.used + held, each.limit,
                held, has_places=bool(now or places.amounts.get(each.resource)),
                is_of_claims=each.is_of_claims,
            )  # fmt: skip
    return None


def _of_claims(gang: GangRequest) -> Counter[str]:
    """Return what the claims of all members use, by the names of limits."""
    found = Counter[str]()
    for role in gang.roles:
        for name, amount in role.claims:
            found[name] += amount * role.count
    return found


def _sum(quota: ResourceQuota, held: Iterable[QuotaHolding]) -> Counter[str]:
    """Return the sum of what a quota counts."""
    found: Counter[str] = Counter()
    for each in held:
        if len(_counted(quota, each.asked, each.gang)) == len(each.gang.roles):
            found.update(each.amounts)
    return found


def _counted(quota: ResourceQuota, asked: QuotaQuestion, gang: GangRequest) -> list[RoleRequest]:
    """Return the roles whose pods a quota counts."""
    classes = asked.classes
    found: list[RoleRequest] = []
    for index, role in enumerate(gang.roles):
        class_name = classes[index] if len(classes) > index else classes[0]
        pod = _ScopedPod(
            class_name,
            has_deadline=asked.has_deadline[index],
            is_best_effort=asked.is_best_effort[index],
        )
        if all(pod.has(scope) for scope in _scopes(quota)):
            found.append(role)
    return found


def _resource_of(name: str) -> str:
    """Return the resource of a pod that a name in a quota limits.

    A limit is at least the request, so `limits.` is judged by the request: never too strictly.
    """
    if name in (PODS, f"count/{PODS}"):
        return PODS
    for prefix in ("requests.", "limits."):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name if name in _COMPUTE or name.startswith("hugepages-") else ""


def _scopes(quota: ResourceQuota) -> Iterator[ScopeRequirement]:
    for scope in quota.spec.scopes:
        yield ScopeRequirement(scope, "Exists")
    if quota.spec.scope_selector is not None:
        yield from quota.spec.scope_selector.match_expressions


class _ScopedPod:
    """What the scopes of a quota ask of a pod."""

    def __init__(self, class_name: str, *, has_deadline: bool, is_best_effort: bool) -> None:
        self._class_name = class_name
        self._scopes = {
            "Terminating": has_deadline,
            "NotTerminating": not has_deadline,
            "BestEffort": is_best_effort,
            "NotBestEffort": not is_best_effort,
        }

    def has(self, scope: ScopeRequirement) -> bool:
        """True when the pod certainly has the scope; False for one that is not known here."""
        if scope.scope_name != "PriorityClass":
            return scope.operator in ("", "Exists") and self._scopes.get(scope.scope_name, False)
        if not self._class_name:  # the server sets the default class, whose name is not known here
            return False
        match scope.operator:
            case "Exists":
                return True
            case "In":
                return self._class_name in scope.values
            case "NotIn":
                return self._class_name not in scope.values
            case _:
                return False
