"""Nodes, reports and books as values: decisions about them are carried out in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.cluster.fleet import Fleet
from fairlead.api.cluster.node_report import (
    Action,
    NodeReport,
    NodeReportStatus,
    Recovery,
    ReportedFault,
    ReportedSource,
    RequestAnswer,
    Severity,
)
from fairlead.api.kubernetes.core import Node, Pod, Taint
from fairlead.api.values.times import format_time
from fairlead.controllers.nodes.node_patches import record_patch
from fairlead.decide.health import actions
from fairlead.decide.health.cycle import HealthMemory, HealthReport, HealthView, decide_health
from fairlead.decide.health.node_step import NodeView
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.removal.books import CreateFleet, WriteFleet
from fairlead.model.health.node_record import NodeRecord, NodeState, record_of
from fairlead.model.health.windows import drain_of
from fairlead.testing.builders import EPOCH, make_node

ACTING = HealthPolicy(enabled=True, act_on=("*",))


def fault(
    check: str = "gpu-xid",
    *,
    severity: Severity = Severity.CRITICAL,
    action: Action = Action.RESET_GPU,
    at: float = EPOCH,
    last: float | None = None,
    component: str = "0000:3b:00",
    codes: tuple[str, ...] = ("79",),
) -> ReportedFault:
    """Return an open fault; `at` and `last` are its first and last sight."""
    return ReportedFault(
        check, component, severity, action, action.recovery, format_time(at),
        format_time(at if last is None else last), codes,
    )  # fmt: skip


@dataclass(slots=True)
class HealthWorld:
    """A fleet of nodes; `step` decides once and carries the decision out."""

    count: int = 20
    policy: HealthPolicy = ACTING
    now: float = EPOCH + 3600.0
    fleet: Fleet | None = None
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    reports: dict[str, NodeReport] = field(default_factory=dict[str, NodeReport])
    used: set[str] = field(default_factory=set[str])
    pods: dict[str, list[Pod]] = field(default_factory=dict[str, list[Pod]])
    replaceable: bool = False
    restartable: bool = False
    memory: HealthMemory = field(default_factory=HealthMemory)
    report: HealthReport = field(default_factory=HealthReport)
    decided: list[Any] = field(default_factory=list[Any])
    evicted: list[str] = field(default_factory=list[str])
    deleted: list[str] = field(default_factory=list[str])
    api_error_share: float = 0.0
    unready: int = 0
    #: Instants at which nodes went out, by name.
    went_out: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    _version: int = 1
    _views: dict[str, NodeView] = field(default_factory=dict[str, NodeView])

    def __post_init__(self) -> None:
        for index in range(self.count):
            name = f"n{index:02}"
            self.nodes[name] = make_node(name)
            self.tell(name)

    # What happens

    def tell(
        self, name: str, *faults: ReportedFault, boot: str = "boot-1", uid: str | None = None,
        sources: Iterable[ReportedSource] = (), answered: RequestAnswer | None = None,
    ) -> None:  # fmt: skip
        """Let the agent of a node report."""
        worst = tuple(sorted(faults, key=lambda f: (-f.severity.rank, -f.action.rank, f.words)))
        status = NodeReportStatus(
            observed_at=format_time(self.now),
            node_uid=self.nodes[name].metadata.uid if uid is None else uid, boot_id=boot,
            critical=sum(f.severity is Severity.CRITICAL for f in faults), faults=worst,
            warning=sum(f.severity is Severity.WARNING for f in faults),
            sources=tuple(sources), answered=answered,
        )  # fmt: skip
        self.reports[name] = NodeReport(make_node(name).metadata, status=status)

    def confirm(self) -> None:
        """Let the agents say that all is as it was."""
        at = format_time(self.now)
        for name, each in self.reports.items():
            self.reports[name] = replace(each, status=replace(each.status, observed_at=at))

    def annotate(self, name: str, **notes: str | None) -> None:
        """Write annotations of a node, by the names of the constants in `api.names`."""
        self._patch(name, {getattr(names, key): text for key, text in notes.items()})

    def cordon(self, name: str, *, unschedulable: bool = True) -> None:
        """Cordon a node as a person does."""
        node = self.nodes[name]
        spec = replace(node.spec, unschedulable=unschedulable)
        self._put(name, replace(node, spec=spec))

    def restart(self) -> None:
        """Let another process take over."""
        self.memory = HealthMemory()

    # Decisions

    def view(self) -> HealthView:
        for name, node in self.nodes.items():
            view = NodeView(
                node, record_of(node.metadata.annotations), self.reports.get(name),
                is_used=name in self.used, is_replaceable=self.replaceable,
                is_restartable=self.restartable,
                stated=self.policy.condition_rules().faults_of(node),
            )  # fmt: skip
            if self._views.get(name) != view:  # of what is as it was, the view is the same one
                self._views[name] = view
        return HealthView(
            self.fleet, {name: self._views[name] for name in self.nodes},
            {name: self.pods.get(name, []) for name, node in self.nodes.items()
             if drain_of(node.metadata.annotations) is not None},
            {}, dict(Counter({"": len(self.nodes), "/": len(self.nodes)})),
            frozenset(self.nodes), self.now, self.now, unready=self.unready,
            api_error_share=self.api_error_share,
        )  # fmt: skip

    def decide(self) -> tuple[actions.Action, ...]:
        """Decide, and carry nothing out."""
        decision, self.report = decide_health(self.view(), self.policy, self.memory)
        return decision.actions

    def step(self, seconds: float = 5.0) -> None:
        """Let time pass, decide, and carry it out."""
        self.now += seconds
        for action in self.decide():
            self.perform(action)

    def perform(self, action: actions.Action) -> None:
        """Carry out one action."""
        match action:
            case CreateFleet():
                self.fleet = self.fleet or Fleet(make_node("fleet").metadata)
            case WriteFleet(fleet, status, decided):
                assert self.fleet is fleet
                meta = replace(fleet.metadata, resource_version=self._next())
                self.fleet = replace(fleet, metadata=meta, status=status)
                self.decided += decided
            case actions.SetRecord(node, record, decided):
                assert self.nodes[node.metadata.name] is node
                was_out = drain_of(node.metadata.annotations) is not None
                if record is not None and record.is_out and not was_out:
                    self.went_out.append((self.now, node.metadata.name))
                patch = record_patch(action)
                self._patch(node.metadata.name, patch["metadata"]["annotations"])
                if "spec" in patch:
                    now = self.nodes[node.metadata.name]
                    taints = msgspec.convert(patch["spec"]["taints"] or [], tuple[Taint, ...])
                    self.nodes[node.metadata.name] = replace(
                        now, spec=replace(now.spec, taints=taints)
                    )
                self.decided += decided
            case actions.EvictPod(pod):
                self.evicted.append(pod.metadata.name)
            case actions.DeleteOverduePod(pod):
                self.deleted.append(pod.metadata.name)
            case actions.Note(_, decided):
                self.decided.append(decided)

    def run(self, seconds: float, step: float = 5.0) -> None:
        """Let time pass in steps, with agents that confirm what they said."""
        ends = self.now + seconds
        while self.now < ends:
            self.confirm()
            self.step(min(step, ends - self.now))

    def until(self, name: str, state: NodeState, seconds: float = 3600.0) -> NodeRecord:
        """Run until a node has a state, and return its record."""
        ends = self.now + seconds
        while self.state(name) is not state:
            assert self.now < ends, f"{name} is {self.state(name)} and not {state}"
            self.confirm()
            self.step()
        record = self.record(name)
        return record or NodeRecord(NodeState.READY, format_time(self.now))

    # What is so

    def record(self, name: str) -> NodeRecord | None:
        return record_of(self.nodes[name].metadata.annotations)

    def state(self, name: str) -> NodeState:
        record = self.record(name)
        return record.state if record is not None else NodeState.READY

    def is_tainted(self, name: str) -> bool:
        return any(t.key == names.TAINT_UNHEALTHY for t in self.nodes[name].spec.taints)

    def out(self) -> list[str]:
        return [name for name in self.nodes if self.is_tainted(name)]

    def said(self, action: str) -> list[Any]:
        return [each for each in self.decided if each.action == action]

    def _patch(self, name: str, notes: dict[str, str | None]) -> None:
        node = self.nodes[name]
        merged = {**node.metadata.annotations, **notes}
        kept = {key: text for key, text in merged.items() if text is not None}
        self._put(name, replace(node, metadata=replace(node.metadata, annotations=kept)))

    def _put(self, name: str, node: Node) -> None:
        meta = replace(node.metadata, resource_version=self._next())
        self.nodes[name] = replace(node, metadata=meta)

    def _next(self) -> str:
        self._version += 1
        return str(self._version)


__all__ = ["ACTING", "Action", "HealthWorld", "Recovery", "Severity", "fault"]
