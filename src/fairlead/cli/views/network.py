"""The tables of `fairlead network` (pure): traffic, budgets of it, and pods that send most."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Self

import msgspec

from fairlead.api.cluster.node_report import (
    EgressShare,
    NodeReport,
    ReportedFlow,
    ReportedPodEgress,
)
from fairlead.api.cluster.team import Team
from fairlead.api.jobs.use import JobTraffic
from fairlead.api.kubernetes.core import Pod
from fairlead.api.names import (
    EGRESS_BANDWIDTH,
    INGRESS_BANDWIDTH,
    INTERNET_EGRESS,
    INTERNET_INGRESS,
    TEAM,
)
from fairlead.api.values.egress import TEAM_BITS_MIN, TrafficDirection, egress_bits, rate_text
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.cli.formats.text import bytes_text
from fairlead.decide.network import CountingState, counting_state, team_of
from fairlead.decide.words import duration, plural

BUDGET_COLUMNS = (
    Column("TEAM"),
    Column("DIRECTION"),
    Column("BUDGET", Align.RIGHT),
    Column("USED", Align.RIGHT),
    Column("GIVEN", Align.RIGHT),
    Column("WANTED", Align.RIGHT),
    Column("DROPPED", Align.RIGHT, wide_only=True),
    Column("PODS", Align.RIGHT),
    Column("NODES", Align.RIGHT),
    Column("UNLIMITED NODES", Align.RIGHT),
)
POD_COLUMNS = (
    Column("NAMESPACE"),
    Column("POD"),
    Column("TEAM"),
    Column("LIMIT", Align.RIGHT),
    Column("SENT", Align.RIGHT),
    Column("DROPPED", Align.RIGHT),
    Column("NODE"),
)
DESTINATION_COLUMNS = (Column("DESTINATION"), *BUDGET_COLUMNS[1:])
TRAFFIC_COLUMNS = (
    Column("TEAM"),
    Column("NAMESPACE"),
    Column("JOB"),
    Column("CLASS"),
    Column("SENDS", Align.RIGHT),
    Column("RECEIVES", Align.RIGHT),
    Column("SENT", Align.RIGHT),
    Column("RECEIVED", Align.RIGHT),
    Column("NODES", Align.RIGHT),
)
#: Pods of a team that are named as those who use its budget.
_USERS_MAX = 5


class BudgetLine(msgspec.Struct, frozen=True, rename="camel"):
    """A team's budget and its use over all nodes, in bits per second.

    `unlimited_nodes` have pods of the team, and agents that keep no limits.
    """

    team: str
    direction: str
    budget: int
    used: int
    given: int
    wanted: int
    dropped: int
    pods: int
    nodes: int
    unlimited_nodes: tuple[str, ...]


class DestinationLine(msgspec.Struct, frozen=True, rename="camel"):
    """The budget of a destination and its use over all nodes, in bits per second.

    `unlimited_nodes` count traffic of pods with it, and have no share of the budget.
    """

    destination: str
    direction: str
    budget: int
    used: int
    given: int
    wanted: int
    dropped: int
    pods: int
    nodes: int
    unlimited_nodes: tuple[str, ...]


class PodEgress(msgspec.Struct, frozen=True, rename="camel"):
    """What a pod sends, and where it is."""

    node: str
    line: ReportedPodEgress


class TrafficBy(Enum):
    """What a line of traffic is of; `columns` are the cells before those of figures."""

    _value_: str
    columns: int

    def __new__(cls, value: str, columns: int) -> Self:
        """Make a member."""
        member = object.__new__(cls)
        member._value_, member.columns = value, columns
        return member

    TEAM = "team", 1
    NAMESPACE = "namespace", 2
    JOB = "job", 3


class TrafficLine(msgspec.Struct, frozen=True, rename="camel"):
    """Traffic over all nodes with a class of addresses: bits per second, and bytes so far.

    Bytes are since each node began to count, which is at most since it started.
    """

    team: str
    namespace: str
    job: str
    traffic_class: str
    sends: int
    receives: int
    sent: int
    received: int
    nodes: int


def traffic_lines(
    reports: Iterable[NodeReport], teams_of: Callable[[str], Iterable[str]], by: TrafficBy,
    *, wants: Callable[[str, ReportedFlow], bool] = lambda _, __: True,
) -> list[TrafficLine]:  # fmt: skip
    """Return the traffic that nodes report, what has the highest rates first.

    `teams_of` a namespace; `wants` says which flows of a team are added up. The traffic of nodes
    themselves has the namespace "(node)", that of namespaces without a line of their own "-".
    """
    sums: dict[tuple[str, ...], list[int]] = {}
    for report in reports:
        seen: set[tuple[str, ...]] = set()
        for flow in report.status.traffic.flows if report.status.traffic else ():
            team = team_of(teams_of(flow.namespace), flow.team)
            if not wants(team, flow):
                continue
            of = (team, flow.namespace or "(node)", flow.job)[: by.columns]
            key = (*of, *("" for _ in range(3 - by.columns)), flow.traffic_class)
            figures = sums.setdefault(key, [0] * 5)
            for n, figure in enumerate(
                (flow.sent_rate, flow.received_rate, flow.sent, flow.received)
            ):
                figures[n] += figure
            figures[4] += key not in seen
            seen.add(key)
    found = [TrafficLine(key[0], key[1], key[2], key[3], *sums[key]) for key in sorted(sums)]
    return sorted(found, key=lambda each: -(each.sends + each.receives))


def with_ended(
    lines: Iterable[TrafficLine], team: str, key: tuple[str, str], traffic: JobTraffic
) -> list[TrafficLine]:
    """Return the lines of a job with what its members that ended had exchanged; `key` is its
    namespace and name.
    """
    left = {each.traffic_class: each for each in traffic.classes}
    found: list[TrafficLine] = []
    for line in lines:
        ended = left.pop(line.traffic_class, None)
        if ended is not None:
            sent, received = line.sent + ended.sent, line.received + ended.received
            line = msgspec.structs.replace(line, sent=sent, received=received)
        found.append(line)
    return found + [
        TrafficLine(team, *key, each.traffic_class, 0, 0, each.sent, each.received, 0)
        for each in left.values()
    ]


def traffic_columns(by: TrafficBy) -> tuple[Column, ...]:
    """Return the columns of a table of traffic."""
    return TRAFFIC_COLUMNS[: by.columns] + TRAFFIC_COLUMNS[3:]


def traffic_rows(lines: Iterable[TrafficLine], by: TrafficBy) -> list[Row]:
    """Return a row for each line."""
    return [
        (*(text or "-" for text in (each.team, each.namespace, each.job)[: by.columns]),
         each.traffic_class, rate_text(each.sends), rate_text(each.receives),
         bytes_text(each.sent), bytes_text(each.received), f"{each.nodes:,}")
        for each in lines
    ]  # fmt: skip


def uncounted_words(reports: Sequence[NodeReport], nodes: Iterable[str] = ()) -> list[str]:
    """Return what is not in the figures: nodes that count no traffic, or a part of it.

    `nodes` are all that there are; those without a report have no agent.
    """
    silent = sorted(set(nodes) - {each.metadata.name for each in reports})
    found = [f"no agent reports of {_some(silent)}"] if silent else []
    states: dict[CountingState, list[str]] = {}
    for each in sorted(reports, key=lambda each: each.metadata.name):
        states.setdefault(counting_state(each.status), []).append(each.metadata.name)
    said = {
        CountingState.OFF: "the agents of {} count no traffic (traffic.pods in their settings)",
        CountingState.BLIND: "{} should count traffic and cannot: fairlead node NAME",
        CountingState.PARTLY: "{} see less of their pods' traffic than is expected: "
                              "fairlead node NAME",
    }  # fmt: skip
    return found + [
        words.format(_some(states[state])) for state, words in said.items() if state in states
    ]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3:,} more"


def budget_lines(
    teams: Iterable[Team], reports: Sequence[NodeReport], nodes: Mapping[str, frozenset[str]]
) -> list[BudgetLine]:
    """Return a line for each budget of a team; `nodes` are those that have pods of each team."""
    limiting = {each.metadata.name for each in reports if each.status.shaping is not None}
    found: list[BudgetLine] = []
    for team in sorted(teams, key=lambda each: each.metadata.name):
        name = team.metadata.name
        for direction in TrafficDirection:
            text = team.spec.network.internet(direction)
            if not text:
                continue
            lines = [
                line
                for report in reports
                if report.status.shaping is not None
                for line in report.status.shaping.lines(direction)
                if line.team == name
            ]
            found.append(BudgetLine(
                name, direction.value, egress_bits(text, least=TEAM_BITS_MIN),
                sum(each.sent for each in lines), sum(each.limit for each in lines),
                sum(each.demand for each in lines), sum(each.dropped for each in lines),
                sum(each.pods for each in lines), len(lines),
                tuple(sorted(nodes.get(name, frozenset()) - limiting)),
            ))  # fmt: skip
    return found


def destination_lines(reports: Sequence[NodeReport]) -> list[DestinationLine]:
    """Return a line for each budget of a destination, as the nodes' shares say."""
    budgets: dict[tuple[str, TrafficDirection], int] = {}
    for report in reports:
        for share in report.spec.destinations:
            of = share.destination, share.direction
            budgets[of] = max(share.budget, budgets.get(of, 0))
    found: list[DestinationLine] = []
    for of, budget in sorted(budgets.items(), key=lambda item: (item[0][0], item[0][1].value)):
        lines = [
            line
            for report in reports
            if report.status.shaping is not None
            for line in report.status.shaping.destinations
            if (line.destination, line.direction) == of
        ]
        unlimited = tuple(sorted(
            each.metadata.name for each in reports if _passes_without_share(each, of)
        ))  # fmt: skip
        found.append(DestinationLine(
            of[0], of[1].value, budget, sum(each.sent for each in lines),
            sum(each.limit for each in lines), sum(each.demand for each in lines),
            sum(each.dropped for each in lines), sum(each.pods for each in lines), len(lines),
            unlimited,
        ))  # fmt: skip
    return found


def _passes_without_share(report: NodeReport, of: tuple[str, TrafficDirection]) -> bool:
    """True where pods exchange traffic with a destination that no share of the node limits."""
    if any((each.destination, each.direction) == of for each in report.spec.destinations):
        return False
    flows = report.status.traffic.flows if report.status.traffic else ()
    return any(
        flow.sent_rate if of[1] is TrafficDirection.EGRESS else flow.received_rate
        for flow in flows
        if flow.traffic_class == of[0] and flow.namespace
    )


def pod_lines(reports: Iterable[NodeReport]) -> list[PodEgress]:
    """Return the pods that agents report, those that send most first."""
    found = [
        PodEgress(report.metadata.name, line)
        for report in reports
        if report.status.shaping is not None
        for line in report.status.shaping.pods
    ]
    return sorted(found, key=lambda e: (-e.line.sent, e.line.namespace, e.line.name))


def budget_rows(lines: Iterable[BudgetLine | DestinationLine]) -> list[Row]:
    """Return a row for each team or destination."""
    return [
        (each.team if isinstance(each, BudgetLine) else each.destination, each.direction,
         rate_text(each.budget), rate_text(each.used),
         rate_text(each.given),
         rate_text(each.wanted), f"{each.dropped:,}", f"{each.pods:,}", f"{each.nodes:,}",
         f"{len(each.unlimited_nodes):,}")
        for each in lines
    ]  # fmt: skip


def pod_rows(pods: Iterable[PodEgress]) -> list[Row]:
    """Return a row for each pod."""
    return [
        (e.line.namespace, e.line.name, e.line.team or "-",
         rate_text(e.line.limit) if e.line.limit else "-", rate_text(e.line.sent),
         f"{e.line.dropped:,}", e.node)
        for e in pods
    ]  # fmt: skip


def why_lines(
    pod: Pod, report: NodeReport | None, teams: Sequence[Team], reports: Sequence[NodeReport]
) -> list[str]:
    """Return which limits a pod has, what it sends, and who uses its team's budget."""
    meta, node = pod.metadata, pod.spec.node_name
    if not node:
        return ["It is on no node yet."]
    if pod.spec.host_network:
        return [f"It has the network of node {node}: nothing of that is limited."]
    shaping = report.status.shaping if report is not None else None
    if report is None or shaping is None:
        return [f"The agent of node {node} keeps no limits (shaping.enabled in its settings)."]
    found = [f"Node {node} limits by {shaping.mechanism or 'nothing yet: no pod has a limit'}."]
    if shaping.why:
        found.append(f"Not by classes: {shaping.why}.")
    found += _own_words(pod)
    share = _share_of(pod, report.spec.egress)
    into = _share_of(pod, report.spec.ingress)
    if share is None and into is None:
        found.append("No budget of a team applies to it here.")
    if share is not None:
        found += _share_words(share, TrafficDirection.EGRESS, teams, reports)
    if into is not None:
        found += _share_words(into, TrafficDirection.INGRESS, teams, reports)
    found += _destination_words(report, reports)
    lines = pod_lines(reports)
    own = [e.line for e in lines if (e.line.namespace, e.line.name) == meta.key]
    if own:
        found.append(f"It sends {rate_text(own[0].sent)}bit/s; {own[0].dropped:,} packets were "
                     "dropped at the last look.")  # fmt: skip
        held = own[0].held_back_seconds
        found.append(f"It has been held back for {duration(held)}." if held
                     else "It is not held back.")  # fmt: skip
    else:
        found.append("It is not among the pods that send most from this node.")
    if share is not None:
        users = [e for e in lines if e.line.team == share.team and e.line.sent][:_USERS_MAX]
        found += [
            f"  {rate_text(e.line.sent)}bit/s  {e.line.namespace}/{e.line.name} on {e.node}"
            for e in users
        ]
    return found


def _share_words(
    share: EgressShare, direction: TrafficDirection, teams: Iterable[Team],
    reports: Sequence[NodeReport],
) -> list[str]:  # fmt: skip
    """Return a node's share of a team's budget, and what the team uses and wants over all nodes."""
    is_egress = direction is TrafficDirection.EGRESS
    verb, uses, where = ("send", "sends", "from") if is_egress else ("receive", "receives", "on")
    of = [each for each in budget_lines(teams, reports, {})
          if (each.team, each.direction) == (share.team, direction.value)]  # fmt: skip
    budget = f"{rate_text(of[0].budget)}bit/s" if of else "no budget any more"
    may = f"may {verb} {rate_text(share.bits_per_second)}bit/s {where} this node, of {budget}"
    return [f"Team {share.team} {may}.", *(
        f"Over {plural(each.nodes, 'node')} it {uses} {rate_text(each.used)}bit/s and wants "
        f"{rate_text(each.wanted)}bit/s."
        for each in of
    )]  # fmt: skip


def _destination_words(report: NodeReport, reports: Sequence[NodeReport]) -> list[str]:
    """Return what all pods of a node may exchange with destinations, and how much of it passes."""
    over = {(each.destination, each.direction): each for each in destination_lines(reports)}
    found: list[str] = []
    for share in report.spec.destinations:
        is_egress = share.direction is TrafficDirection.EGRESS
        verb, done, way = (
            ("send", "sent", "to") if is_egress else ("receive", "received", "from")
        )  # fmt: skip
        line = over[share.destination, share.direction.value]
        found.append(
            f"All pods of this node together may {verb} {rate_text(share.bits_per_second)}bit/s "
            f"{way} {share.destination}, of {rate_text(share.budget)}bit/s. Over "
            f"{plural(line.nodes, 'node')} {rate_text(line.used)}bit/s are {done}, and "
            f"{rate_text(line.wanted)}bit/s are wanted."
        )
    return found


def _own_words(pod: Pod) -> list[str]:
    found: list[str] = []
    for annotation, what in ((INTERNET_EGRESS, ""), (INTERNET_INGRESS, " of what it receives")):
        text = pod.metadata.annotations.get(annotation)
        if text is None:
            continue
        try:
            found.append(f"Its own limit{what} is {rate_text(egress_bits(text))}bit/s.")
        except ValueError as error:
            found.append(f"Its own limit{what} counts for nothing: {error}.")
    found = found or [f"It has no limit of its own ({INTERNET_EGRESS}, {INTERNET_INGRESS})."]
    return [*found, *_bandwidth_words(pod)]


def _bandwidth_words(pod: Pod) -> list[str]:
    """Return what Kubernetes' own annotations ask for, and what keeps it."""
    return [
        f"All that it {verb} is to be at most {pod.metadata.annotations[annotation][:40]}bit/s "
        f"({annotation}): of the network plugin, or of agents with shaping.bandwidthAnnotations."
        for annotation, verb in ((EGRESS_BANDWIDTH, "sends"), (INGRESS_BANDWIDTH, "receives"))
        if annotation in pod.metadata.annotations
    ]


def _share_of(pod: Pod, shares: Iterable[EgressShare]) -> EgressShare | None:
    """Return the share that the agent takes for the pod's: of its label's team, else the first."""
    own = [each for each in shares if pod.metadata.namespace in each.namespaces]
    label = pod.metadata.labels.get(TEAM, "")
    named = [each for each in own if each.team == label]
    return next(iter(named or sorted(own, key=lambda each: each.team)), None)
