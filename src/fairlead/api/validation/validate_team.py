"""What a Team must fulfil beyond its schema: rules that look at several fields at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from fairlead.api.causes import (
    LABEL,
    LABEL_RULE,
    cause,
    duplicate,
    from_msgspec,
    invalid,
    required,
)
from fairlead.api.cluster.team import (
    HALF_LIFE_DAYS_MAX,
    WEIGHT_MAX,
    Budget,
    JobLimits,
    Reservation,
    Share,
    Subjects,
    Team,
    TeamSpec,
)
from fairlead.api.jobs.job_defaults import defaults_causes
from fairlead.api.kubernetes.selectors import is_label_value, is_qualified_name
from fairlead.api.names import POOL
from fairlead.api.status import StatusCause
from fairlead.api.values.egress import TEAM_BITS_MIN, TrafficDirection, egress_bits
from fairlead.api.values.times import parse_time


def validate_team(team: Team | Mapping[str, Any]) -> list[StatusCause]:
    """Return every rule that the team breaks, in the order of its fields; [] when it is valid.

    A mapping is a Team as plain JSON; one that cannot be decoded gives one cause.
    """
    if not isinstance(team, Team):
        spec = team.get("spec")
        try:
            decoded = Team(spec=msgspec.convert(spec if spec is not None else {}, TeamSpec))
        except msgspec.ValidationError as error:
            return [from_msgspec(error, "spec")]
        metadata = team.get("metadata")
        name = str(metadata.get("name") or "") if isinstance(metadata, Mapping) else ""
        return list(_causes(decoded, name))
    return list(_causes(team, team.metadata.name))


def _causes(team: Team, name: str) -> Iterator[StatusCause]:
    spec = team.spec
    if name and not LABEL.fullmatch(name):  # it is the value of labels and taints
        yield invalid("metadata.name", name, LABEL_RULE)
    yield from _subjects(spec.members, "spec.members")
    yield from _subjects(spec.admins, "spec.admins")
    for i, namespace in enumerate(spec.namespaces):
        if not LABEL.fullmatch(namespace):
            yield invalid(f"spec.namespaces[{i}]", namespace, LABEL_RULE)
    yield from _repeated(spec.namespaces, "spec.namespaces")
    seen: dict[tuple[tuple[str, str], ...], int] = {}
    for i, share in enumerate(spec.shares):
        yield from _share(share, f"spec.shares[{i}]")
        selector = tuple(sorted(selector_of(share).items()))
        first = seen.setdefault(selector, i)
        if first != i:
            why = f"selects the same nodes as spec.shares[{first}]: add the amounts to one share"
            yield invalid(f"spec.shares[{i}]", _shown(selector), why)
    for i, reservation in enumerate(spec.reservations):
        yield from _reservation(reservation, f"spec.reservations[{i}]")
    yield from _repeated((each.name for each in spec.reservations), "spec.reservations", ".name")
    if not 1 <= spec.weight <= WEIGHT_MAX:
        yield invalid("spec.weight", spec.weight, f"must be from 1 to {WEIGHT_MAX}")
    for field, value in (
        ("borrowLimitNodes", spec.borrow_limit_nodes),
        ("lendLimitNodes", spec.lend_limit_nodes),
    ):
        if value is not None and value < 0:
            yield invalid(f"spec.{field}", value, "must be greater than or equal to 0")
    yield from _limits(spec.limits, "spec.limits")
    yield from _limits(spec.user_limits, "spec.userLimits")
    yield from _budget(spec.budget)
    for direction in TrafficDirection:
        if text := spec.network.internet(direction):
            try:
                egress_bits(text, least=TEAM_BITS_MIN)
            except ValueError as error:
                field = f"spec.network.internet{direction.value.capitalize()}"
                yield invalid(field, text, str(error))
    yield from defaults_causes(spec.job_defaults, spec.job_maxima, prefix="spec.")
    for i, mount in enumerate(spec.job_defaults.mounts):
        if mount.host_path:
            why = "only the settings of the cluster may name a directory of the nodes"
            field = f"spec.jobDefaults.mounts[{i}].hostPath"
            yield cause("Forbidden", field, f"Forbidden: {why}")


def _limits(limits: JobLimits, path: str) -> Iterator[StatusCause]:
    for field in limits.__struct_fields__:
        value = getattr(limits, field)
        if value is not None and value < 0:
            yield invalid(f"{path}.{field}", value, "must be greater than or equal to 0")


def _budget(budget: Budget) -> Iterator[StatusCause]:
    hours, days = budget.gpu_hours, budget.half_life_days
    if hours is not None and hours < 0:
        yield invalid("spec.budget.gpuHours", hours, "must be greater than or equal to 0")
    if not 1 <= days <= HALF_LIFE_DAYS_MAX:
        why = f"must be from 1 to {HALF_LIFE_DAYS_MAX}"
        yield invalid("spec.budget.halfLifeDays", days, why)


def selector_of(share: Share | Reservation) -> dict[str, str]:
    """Return the labels that the nodes of a share or a reservation have; {}: any node."""
    return {**({POOL: share.pool} if share.pool else {}), **share.node_selector}


def _shown(selector: Iterable[tuple[str, str]]) -> str:
    return ",".join(f"{key}={value}" for key, value in selector) or "all nodes"


def _subjects(subjects: Subjects, path: str) -> Iterator[StatusCause]:
    for field, values in (("users", subjects.users), ("groups", subjects.groups)):
        for i, value in enumerate(values):
            if not value.strip():
                yield required(f"{path}.{field}[{i}]", "a name")
        yield from _repeated(values, f"{path}.{field}")


def _repeated(values: Iterable[str], path: str, field: str = "") -> Iterator[StatusCause]:
    seen: set[str] = set()
    for i, value in enumerate(values):
        if value in seen:
            yield duplicate(f"{path}[{i}]{field}", value)
        seen.add(value)


def _reservation(reservation: Reservation, path: str) -> Iterator[StatusCause]:
    if not LABEL.fullmatch(reservation.name):
        yield invalid(f"{path}.name", reservation.name, LABEL_RULE)
    instants = list[float]()
    for field, value in (
        ("startTime", reservation.start_time),
        ("endTime", reservation.end_time),
    ):
        try:
            instants.append(parse_time(value))
        except ValueError:
            yield invalid(f"{path}.{field}", value, "must be a time as in RFC 3339")
    if len(instants) == 2 and instants[0] >= instants[1]:
        why = f"must be later than startTime, {reservation.start_time}"
        yield invalid(f"{path}.endTime", reservation.end_time, why)
    yield from _selector(reservation, path)
    for i, name in enumerate(reservation.node_names):
        if not name:
            yield required(f"{path}.nodeNames[{i}]", "a name")
    yield from _repeated(reservation.node_names, f"{path}.nodeNames")
    if not (reservation.pool or reservation.node_selector or reservation.node_names):
        why = "pool, nodeSelector or nodeNames, one of them at least"
        yield required(path, why)


def _share(share: Share, path: str) -> Iterator[StatusCause]:
    yield from _selector(share, path)
    if (share.nodes is None) == (share.gpus is None):
        got = "neither" if share.nodes is None else "both"
        yield required(path, f"nodes or gpus, one of them; got {got}")
    for field, amount in (("nodes", share.nodes), ("gpus", share.gpus)):
        if amount is not None and amount < 0:
            yield invalid(f"{path}.{field}", amount, "must be greater than or equal to 0")


def _selector(share: Share | Reservation, path: str) -> Iterator[StatusCause]:
    if share.pool and not is_label_value(share.pool):
        yield invalid(f"{path}.pool", share.pool, "must be the value of a label")
    for key, value in share.node_selector.items():
        at = f"{path}.nodeSelector"
        if not is_qualified_name(key):
            yield invalid(
                at, key, "must be the key of a label, such as topology.kubernetes.io/zone"
            )
        if not is_label_value(value):
            yield invalid(f"{at}[{key[:80]}]", value, "must be the value of a label")
        if key == POOL and share.pool and value != share.pool:
            yield invalid(f"{at}[{POOL}]", value, f"must be {share.pool}, or pool be left out")
