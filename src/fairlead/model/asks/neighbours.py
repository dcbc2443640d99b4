"""Which pods may be near which: host ports, anti-affinity and spread, as marks on nodes.

A pod *carries* marks and *shuns* marks. Two pods conflict when one shuns a mark that the other
carries, and both are in one domain of the mark's topology key. All rules come to this form:

    host port           shuns and carries the mark of its port, on its own node
    anti-affinity term  is a mark: who has the term shuns it, pods that match it carry it
    spread              is a mark as well: pods that match carry it and are counted by domain

Marks are booked like resources: a request holds "+mark" where it is carried and "-mark" where it is
shunned. So claims, pods beyond claims, nominations and what-ifs count them by the same rules.
A mark exists while some pod or job has its term. Pods and jobs without any cost nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from fairlead.api import names
from fairlead.api.jobs.job import Job, Role
from fairlead.api.kubernetes.core import Pod, PodSpec
from fairlead.api.kubernetes.pod_parts import (
    PodAffinityTerm,
    PodAntiAffinity,
    TopologySpreadConstraint,
)
from fairlead.api.kubernetes.selectors import OPERATORS, Selector, selector_of
from fairlead.api.meta import LabelSelector, LabelSelectorRequirement
from fairlead.api.names import HOSTNAME
from fairlead.model.asks.requests import (
    CARRIED,
    NAME_COLUMN,
    SHUNNED,
    NeighbourMark,
    Neighbours,
    Request,
    RequestError,
    Spread,
)

#: Terms and constraints of one pod.
TERMS_MAX = 32
_ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 # compared, not bound
_PORT = "port "
_AFFINITY = "affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class Term:
    """Pods that match a selector, in these namespaces (None: in all), by domain of a key."""

    mark: NeighbourMark
    namespaces: tuple[str, ...] | None
    selector: Selector

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """True for the pods that it is about."""
        is_in = self.namespaces is None or namespace in self.namespaces
        return is_in and self.selector.matches(labels)


@dataclass(frozen=True, slots=True)
class Rules:
    """What one pod spec says of its neighbours."""

    ports: tuple[tuple[NeighbourMark, ...], tuple[NeighbourMark, ...]] = ((), ())
    shuns: tuple[Term, ...] = ()
    spreads: tuple[tuple[Term, TopologySpreadConstraint], ...] = ()

    @property
    def terms(self) -> tuple[Term, ...]:
        """All terms, which have to be known for the marks of other pods."""
        return (*self.shuns, *(term for term, _ in self.spreads))


NO_RULES = Rules()


def states_rules(spec: PodSpec) -> bool:
    """True when a spec has a port, an anti-affinity or a spread; asked at every event of a pod."""
    affinity = spec.affinity
    if affinity is not None and affinity.pod_anti_affinity is not None:
        return True
    for container in spec.containers:
        if container.ports:
            return True
    for container in spec.init_containers:
        if container.ports:
            return True
    return bool(spec.topology_spread_constraints)


def rules_of_pod(pod: Pod) -> Rules:
    """Return the rules of a pod that is there, whatever it says.

    Labels of namespaces are taken as all namespaces. Terms beyond `TERMS_MAX` do not count.
    """
    spec = pod.spec
    if not states_rules(spec):
        return NO_RULES
    affinity = spec.affinity
    anti = affinity.pod_anti_affinity if affinity is not None else None
    if affinity is not None and anti is not None:
        terms = [
            structs.replace(term, namespace_selector=LabelSelector())
            if term.namespace_selector is not None
            else term
            for term in anti.required[:TERMS_MAX]
        ]
        affinity = structs.replace(affinity, pod_anti_affinity=PodAntiAffinity(tuple(terms)))
        spec = structs.replace(spec, affinity=affinity)
    if spec.topology_spread_constraints:  # they are about the pod's own placing
        spec = structs.replace(spec, topology_spread_constraints=())
    try:
        return rules_of(spec, pod.metadata.namespace, pod.metadata.labels)
    except RequestError:
        return Rules(_port_marks(spec))


def rules_of(spec: PodSpec, namespace: str, labels: Mapping[str, str]) -> Rules:
    """Return what a spec says of a pod's neighbours; RequestError for what cannot be judged."""
    if not states_rules(spec):
        return NO_RULES
    anti = spec.affinity.pod_anti_affinity if spec.affinity is not None else None
    terms = anti.required if anti is not None else ()
    hard = [
        (i, each)
        for i, each in enumerate(spec.topology_spread_constraints)
        if each.when_unsatisfiable != "ScheduleAnyway"
    ]
    if len(terms) + len(hard) > TERMS_MAX:
        why = f"{len(terms) + len(hard)} rules about other pods; accepted: {TERMS_MAX} at most"
        raise RequestError("affinity", why)
    shuns = (_anti(f"{_AFFINITY}[{i}]", each, namespace, labels) for i, each in enumerate(terms))
    spreads = (
        (_spread(f"topologySpreadConstraints[{i}]", each, namespace, labels), each)
        for i, each in hard
    )
    return Rules(_port_marks(spec), tuple(dict.fromkeys(shuns)), tuple(spreads))


def _anti(path: str, term: PodAffinityTerm, namespace: str, labels: Mapping[str, str]) -> Term:
    spaces: tuple[str, ...] | None = tuple(sorted(set(term.namespaces))) or (namespace,)
    by_label = term.namespace_selector
    if by_label is not None:
        if by_label.match_labels or by_label.match_expressions:
            why = "labels of namespaces are not supported; name the namespaces in `namespaces`"
            raise RequestError(f"{path}.namespaceSelector", why)
        spaces = None
    more = [
        *_own_values(term.match_label_keys, "In", labels),
        *_own_values(term.mismatch_label_keys, "NotIn", labels),
    ]
    return _term(path, term.topology_key, spaces, term.label_selector, more=more)


def _spread(
    path: str, spread: TopologySpreadConstraint, namespace: str, labels: Mapping[str, str]
) -> Term:
    more = _own_values(spread.match_label_keys, "In", labels)
    return _term(path, spread.topology_key, (namespace,), spread.label_selector, more=[*more])


def _own_values(
    keys: Iterable[str], operator: str, labels: Mapping[str, str]
) -> Iterator[LabelSelectorRequirement]:
    for key in keys:
        if key in labels:
            yield LabelSelectorRequirement(key, operator, (labels[key],))


def _term(
    path: str,
    key: str,
    namespaces: tuple[str, ...] | None,
    given: LabelSelector | None,
    *,
    more: list[LabelSelectorRequirement],
) -> Term:
    try:
        selector = selector_of(given)
        extra = selector_of(LabelSelector(match_expressions=tuple(more)))
    except KeyError as error:
        why = f"unknown operator {error}; accepted: {', '.join(OPERATORS)}"
        raise RequestError(f"{path}.labelSelector", why) from error
    if given is None:  # core/v1: a missing selector matches no pod
        namespaces = ()
    found = sorted({*selector.requirements, *extra.requirements}, key=repr)
    selector = Selector(tuple(found))
    column = NAME_COLUMN if key == HOSTNAME else key
    spaces = "*" if namespaces is None else ",".join(namespaces)
    wanted = ";".join(f"{r.key} {r.operator.value} {','.join(r.values)}" for r in found)
    return Term(NeighbourMark(column, f"{column}|{spaces}|{wanted}"), namespaces, selector)


def is_port(mark: NeighbourMark) -> bool:
    """True for the mark of a port of the node."""
    return mark.name.startswith(_PORT)


def _port_marks(spec: PodSpec) -> tuple[tuple[NeighbourMark, ...], tuple[NeighbourMark, ...]]:
    """Return the marks of the ports of the node: those that are carried, those that are shunned.

    A port on one address conflicts with the same one, and with that port on all addresses.
    """
    carried, shunned = dict[NeighbourMark, None](), dict[NeighbourMark, None]()
    sidecars = [c for c in spec.init_containers if c.restart_policy == "Always"]
    for container in (*spec.containers, *sidecars):
        for port in container.ports:
            number = port.host_port or (port.container_port if spec.host_network else 0)
            if not number:
                continue
            everywhere = NeighbourMark(NAME_COLUMN, f"{_PORT}{port.protocol}/{number}")
            carried[everywhere] = None
            if port.host_ip in _ANY_ADDRESS:
                shunned[everywhere] = None
            else:
                own = NeighbourMark(NAME_COLUMN, f"{_PORT}{port.protocol}/{number} {port.host_ip}")
                carried[own] = shunned[own] = None
    return tuple(carried), tuple(shunned)


class TermTable:
    """The terms that some pod or job has. Reading a pod's marks costs nothing while there are
    none.
    """

    def __init__(self) -> None:
        self._terms: dict[str, Term] = {}
        self._counts: Counter[str] = Counter()
        self._held: dict[Hashable, tuple[Term, ...]] = {}
        #: Another number after every change of which terms there are.
        self.version = 0

    def __len__(self) -> int:
        return len(self._terms)

    def has(self, term: Term) -> bool:
        """True for a term that some pod or job has."""
        return term.mark.name in self._terms

    def hold(
        self, owner: Hashable, terms: tuple[Term, ...]
    ) -> tuple[Sequence[Term], Sequence[Term]]:
        """Set which terms a pod or a job has; return those that no other had, and those that none
        has any more.
        """
        before = self._held.get(owner, ())
        if before == terms:
            return (), ()
        new, gone = list[Term](), list[Term]()
        for term in dict.fromkeys(terms):
            if not self._counts[term.mark.name]:
                self._terms[term.mark.name] = term
                new.append(term)
            self._counts[term.mark.name] += 1
        for term in dict.fromkeys(before):
            name = term.mark.name
            self._counts[name] -= 1
            if not self._counts[name]:
                del self._counts[name], self._terms[name]
                gone.append(term)
        if terms:
            self._held[owner] = terms
        else:
            self._held.pop(owner, None)
        self.version += bool(new or gone)
        return new, gone

    def carried(self, namespace: str, labels: Mapping[str, str]) -> tuple[NeighbourMark, ...]:
        """Return the marks that a pod with these labels carries for its labels."""
        found = (t.mark for t in self._terms.values() if t.selects(namespace, labels))
        return tuple(sorted(found)) if self._terms else ()

    def neighbours(
        self, rules: Rules, namespace: str, labels: Mapping[str, str]
    ) -> Neighbours | None:
        """Return what a pod with these rules and labels carries, shuns and counts; None: nothing.

        Its own terms must be held.
        """
        ports, blocked = rules.ports
        carries = (*ports, *self.carried(namespace, labels))
        shuns = (*blocked, *(term.mark for term in rules.shuns))
        if not carries and not shuns and not rules.spreads:
            return None
        spreads = (
            Spread(
                term.mark, max(given.max_skew, 1), given.min_domains or 1,
                honors_affinity=given.node_affinity_policy != "Ignore",
                honors_taints=given.node_taints_policy == "Honor",
            )
            for term, given in rules.spreads
        )  # fmt: skip
        return Neighbours(
            tuple(sorted(set(carries))), tuple(sorted(set(shuns))), tuple(sorted(set(spreads)))
        )

    def of_role(self, job: Job, role: Role) -> Neighbours | None:
        """Return the same of the members of a role."""
        if not self and not states_rules(role.template.spec):
            return None
        namespace, labels = job.metadata.namespace, member_labels(job, role)
        return self.neighbours(rules_of(role.template.spec, namespace, labels), namespace, labels)


def marks_in(request: Request) -> Request:
    """Return the marks of a request, which come first in it."""
    if not request or request[0][0][0] not in (CARRIED, SHUNNED):
        return ()  # of most
    return tuple(entry for entry in request if entry[0][0] in (CARRIED, SHUNNED))


def member_labels(job: Job, role: Role) -> dict[str, str]:
    """Return the labels that all members of a role have: not index, rank and attempt."""
    return {
        **role.template.metadata.labels,
        names.JOB_NAME: job.metadata.name,
        names.JOB_UID: job.metadata.uid,
        names.ROLE: role.name,
    }


def job_terms(job: Job) -> tuple[Term, ...]:
    """Return the terms of all roles; none of a role that cannot be read."""
    found: list[Term] = []
    for role in job.spec.roles:
        if not states_rules(role.template.spec):
            continue
        try:
            labels = member_labels(job, role)
            found += rules_of(role.template.spec, job.metadata.namespace, labels).terms
        except RequestError:
            continue
    return tuple(found)
