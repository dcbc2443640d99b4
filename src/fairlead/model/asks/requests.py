"""What one pod asks of a node: amounts in base units, and the constraints on where it may run.

The amounts follow Kubernetes' rule for a pod's effective request (`api/pods/pod_asks.py`). One of
`pods` comes on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from msgspec import Struct

from fairlead.api.kubernetes.core import (
    NodeSelector,
    Pod,
    PodSpec,
    PreferredSchedulingTerm,
    Toleration,
)
from fairlead.api.pods.pod_asks import add, is_resized, raise_to, requests_of
from fairlead.api.values.bounds import (
    CONSTRAINT_VALUES_MAX,
    LABEL_KEY_MAX,
    RESOURCES_MAX,
    label_integer,
)
from fairlead.api.values.quantity import (
    ATTACHED,
    CPU,
    EPHEMERAL_STORAGE,
    MEMORY,
    PODS,
    QuantityError,
    to_base,
)

#: Amounts in base units by resource name, sorted, zero amounts left out. Hashable.
Request: TypeAlias = tuple[tuple[str, int], ...]
#: Selectors that a node must fulfil, each of them, to reach the volumes of a pod.
Reach: TypeAlias = tuple[NodeSelector, ...]
#: First characters of the names of marks in a request; no name of a resource begins with them.
CARRIED, SHUNNED = "+", "-"
_NO_DEVICES = ("hugepages-", CARRIED, SHUNNED, ATTACHED)
ORDINARY = (CPU, MEMORY, PODS, EPHEMERAL_STORAGE)
#: Column of node names, for `matchFields`. A colon cannot occur in a label key.
NAME_COLUMN = "field:metadata.name"
#: No node has room for more.
MEMBERS_PER_NODE_MAX = 2**31 - 1

_TERMS = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
_AMOUNTS_MAX = 100_000
_REQUESTS_MAX = 4096  # of pods with one container; a gang's members share one


class RequestError(ValueError):
    """A request or a constraint that cannot be read; `field` is its path below the pod spec."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class Constraints(Struct, frozen=True, cache_hash=True):
    """Where a pod may run. Equal constraints compare equal whatever order they were written in."""

    node_selector: tuple[tuple[str, str], ...] = ()
    affinity: NodeSelector | None = None
    tolerations: tuple[Toleration, ...] = ()
    #: Nodes that it would rather have; they decide between nodes that are as good otherwise.
    preferred: tuple[PreferredSchedulingTerm, ...] = ()
    #: How long an attempt may hold its nodes, in seconds; None while no node has a maintenance
    #: window that it could run into.
    hold_seconds: float | None = None
    #: The reservation that it uses (`model/inventory/reserved_nodes.py`); "" for none.
    reservation: str = ""
    #: True for a member that replaces a lost one: it may run on spares.
    takes_spares: bool = False
    #: From where its volumes can be reached (`model/claimed/volumes.py`).
    reach: Reach = ()


#: Without any: most pods have none, and what is the same object compares faster.
ANY_NODE = Constraints()


class NeighbourMark(Struct, frozen=True, order=True, cache_hash=True):
    """What pods may carry and shun (`neighbours.py`), by domain of a label of the nodes."""

    key: str
    name: str


class Spread(Struct, frozen=True, order=True, cache_hash=True):
    """Domains may differ by `max_skew` carriers of the mark; counted where the pod may go."""

    mark: NeighbourMark
    max_skew: int
    min_domains: int
    honors_affinity: bool = True
    honors_taints: bool = False


class Neighbours(Struct, frozen=True, cache_hash=True):
    """The marks that a member carries and shuns, and those that it is spread by, each sorted."""

    carries: tuple[NeighbourMark, ...] = ()
    shuns: tuple[NeighbourMark, ...] = ()
    spreads: tuple[Spread, ...] = ()

    @property
    def apart(self) -> tuple[NeighbourMark, ...]:
        """The marks that keep two such members apart."""
        return tuple(mark for mark in self.shuns if mark in self.carries)

    @property
    def booking(self) -> Request:
        """The marks as amounts; their names sort before those of all resources."""
        carried = [(f"{CARRIED}{mark.name}", 1) for mark in self.carries]
        return (*sorted(carried), *sorted((f"{SHUNNED}{mark.name}", 1) for mark in self.shuns))


class MemberClass(Struct, frozen=True, cache_hash=True):
    """Members that are the same to the planner: equal request, constraints and neighbours."""

    request: Request
    constraints: Constraints = ANY_NODE
    #: None: any pod may be near it.
    neighbours: Neighbours | None = None

    @property
    def booking(self) -> Request:
        """What one member takes: its request, and before it the marks that it has."""
        return self.request if self.neighbours is None else self.neighbours.booking + self.request

    @property
    def per_node_max(self) -> int:
        """How many such members one node may have, whatever room it has."""
        beside = self.neighbours
        is_alone = beside is not None and any(mark.key == NAME_COLUMN for mark in beside.apart)
        return 1 if is_alone else MEMBERS_PER_NODE_MAX

    def amount(self, resource: str) -> int:
        """Return the amount asked of one resource; 0 when none is."""
        return next((amount for name, amount in self.request if name == resource), 0)


def constraints_of(
    spec: PodSpec, *, hold_seconds: float | None = None, reservation: str = ""
) -> Constraints:
    """Return the constraints in canonical order; RequestError where one cannot be judged."""
    if spec.affinity is None and not (spec.node_selector or spec.tolerations):
        if hold_seconds is None and not reservation:
            return ANY_NODE
        return Constraints(hold_seconds=hold_seconds, reservation=reservation)
    node_affinity = spec.affinity.node_affinity if spec.affinity else None
    required = node_affinity.required if node_affinity else None
    preferred = node_affinity.preferred if node_affinity else ()
    count = len(spec.node_selector) + len(spec.tolerations)
    count += _check_affinity(required) if required is not None else 0
    count += sum(_check_affinity(NodeSelector((each.preference,))) for each in preferred)
    if count > CONSTRAINT_VALUES_MAX:
        raise RequestError(
            "affinity",
            f"selectors, affinity and tolerations name {count} values; accepted: "
            f"{CONSTRAINT_VALUES_MAX} at most",
        )
    return Constraints(
        node_selector=tuple(sorted(spec.node_selector.items())),
        affinity=required,
        tolerations=tuple(sorted(set(spec.tolerations), key=_toleration_order)),
        preferred=preferred,
        hold_seconds=hold_seconds,
        reservation=reservation,
    )


def _check_affinity(affinity: NodeSelector) -> int:
    """Return how many values the terms name; RequestError for a bound that is no integer."""
    count = 0
    for i, term in enumerate(affinity.node_selector_terms):
        for field, requirements in (
            ("matchExpressions", term.match_expressions),
            ("matchFields", term.match_fields),
        ):
            for j, requirement in enumerate(requirements):
                count += 1 + len(requirement.values)
                is_bound = requirement.operator in ("Gt", "Lt") and len(requirement.values) == 1
                if is_bound and label_integer(requirement.values[0]) is None:
                    raise RequestError(
                        f"{_TERMS}[{i}].{field}[{j}].values[0]",
                        f"'{requirement.values[0][:20]}' is not a 64-bit integer",
                    )
    return count


def _toleration_order(toleration: Toleration) -> tuple[str, str, str, str, int]:
    seconds = toleration.toleration_seconds
    return (
        toleration.key,
        toleration.operator,
        toleration.value,
        toleration.effect,
        -1 if seconds is None else seconds,
    )


class RequestReader:
    """Reads amounts, remembering texts already parsed: thousands of pods share a few of them."""

    def __init__(self) -> None:
        self._amounts: dict[tuple[str, str | int | float], int] = {}
        self._requests: dict[object, Request] = {}

    def amount(self, resource: str, text: str | float) -> int:
        """Return the amount in base units; QuantityError when the text is none."""
        key = (resource, text)
        known = self._amounts.get(key)
        if known is None:
            if len(self._amounts) >= _AMOUNTS_MAX:
                self._amounts.clear()
            known = self._amounts[key] = to_base(resource, text)
        return known

    def amounts(self, quantities: Mapping[str, str | int | float]) -> dict[str, int]:
        """Return each amount in base units; what cannot be read counts as nothing."""
        out: dict[str, int] = {}
        for name in sorted(quantities):
            try:
                out[name] = self.amount(name, quantities[name])
            except QuantityError:
                out[name] = 0
        return out

    def request(self, spec: PodSpec) -> Request:
        """Return the effective request of a pod, with its one of `pods`; RequestError."""
        is_plain = len(spec.containers) == 1 and spec.resources is None
        if not is_plain or spec.init_containers or spec.overhead:
            _check_names(spec)
            return self._sum(spec)
        resources = spec.containers[0].resources
        key = (tuple(resources.limits.items()), tuple(resources.requests.items()))
        known = self._requests.get(key)
        if known is None:
            _check_names(spec)
            known = self._sum(spec)
            if len(self._requests) >= _REQUESTS_MAX:
                self._requests.clear()
            self._requests[key] = known
        return known

    def pod_request(self, pod: Pod) -> Request:
        """Return the effective request of a pod that exists: during a resize the largest amounts
        count. RequestError.
        """
        if not is_resized(pod):
            return self.request(pod.spec)
        _check_names(pod.spec)
        return self._sum(pod.spec, pod)

    def bound_request(self, spec: PodSpec, resources: Iterable[str]) -> Request:
        """Return what a pod that has no readable request uses of these resources at most.

        Init containers count as if they ran beside the others, and what cannot be read as nothing.
        """
        names = list(resources)

        def known(amounts: Mapping[str, str | int | float]) -> dict[str, int]:
            read = self.amounts({name: amounts[name] for name in names if name in amounts})
            return {name: max(amount, 0) for name, amount in read.items()}

        total: dict[str, int] = {}
        for each in (*spec.init_containers, *spec.containers):
            add(total, known(each.resources.limits | each.resources.requests))
        if spec.resources is not None:
            raise_to(total, known(spec.resources.limits | spec.resources.requests))
        add(total, known(spec.overhead))
        total[PODS] = 1
        return request_of(total.items())

    def _sum(self, spec: PodSpec, pod: Pod | None = None) -> Request:
        asked = requests_of(spec, self._read, pod)
        asked[PODS] = 1
        return request_of(asked.items())

    def _read(self, quantities: Mapping[str, str | int | float], path: str) -> dict[str, int]:
        out: dict[str, int] = {}
        for name, text in quantities.items():
            try:
                out[name] = self.amount(name, text)
            except QuantityError as error:
                raise RequestError(f"{path}.{name}", str(error)) from error
            if out[name] < 0:
                raise RequestError(f"{path}.{name}", f"'{text}' is below zero")
        return out


def _check_names(spec: PodSpec) -> None:
    """Raise RequestError for more resource names, or longer ones, than are looked at."""
    given = [spec.overhead]
    for container in (*spec.init_containers, *spec.containers):
        given += (container.resources.limits, container.resources.requests)
    if spec.resources is not None:
        given += (spec.resources.limits, spec.resources.requests)
    if sum(map(len, given)) > RESOURCES_MAX:
        count = len(set().union(*given))
        if count > RESOURCES_MAX:
            why = f"{count} resources are asked for; accepted: {RESOURCES_MAX} at most"
            raise RequestError("containers", why)
    for name in (name for names in given for name in names):
        if len(name) > LABEL_KEY_MAX:
            why = f"a resource name has {LABEL_KEY_MAX} characters at most"
            raise RequestError("containers", why)
        if name[:1] in ("", CARRIED, SHUNNED):
            raise RequestError("containers", f"'{name}' is not the name of a resource")


def request_of(amounts: Iterable[tuple[str, int]]) -> Request:
    """Return amounts as a request: sorted, zeros left out."""
    return tuple(sorted((name, amount) for name, amount in amounts if amount))


def is_device(resource: str) -> bool:
    """True for what is counted in whole pieces and worth packing for: GPUs, NICs and the like."""
    return resource not in ORDINARY and not resource.startswith(_NO_DEVICES)


def counts(resource: str) -> bool:
    """True for what the fair share between teams looks at: CPU, memory and devices."""
    return resource in (CPU, MEMORY) or is_device(resource)
