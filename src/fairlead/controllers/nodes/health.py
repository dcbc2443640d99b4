"""The health controller: reads the reports of the nodes, and does what was decided about them.

It keeps by event which nodes may need something; a decision looks at those alone. Decisions are
paced like those of the fleet controller, whose books it shares.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, assert_never

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.cluster.cluster_report import REPORT_NAME, ClusterReport
from fairlead.api.cluster.fleet import FLEET_NAME, Fleet
from fairlead.api.cluster.node_report import NodeReport
from fairlead.api.cluster.node_test import NodeTest
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.meta import to_wire
from fairlead.api.resources import FLEETS, NODE_REPORTS, NODE_TESTS, NODES, PODS
from fairlead.api.status import ApiError, TooManyRequests
from fairlead.controllers import takings
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.nodes.fleet_books import FleetBooks, TimedRequests
from fairlead.controllers.nodes.fleet_records import FleetRecords
from fairlead.controllers.nodes.node_patches import record_patch
from fairlead.controllers.nodes.node_tests import NodeTests, perform_test
from fairlead.decide.health.actions import (
    Action,
    DeleteOverduePod,
    DeleteReport,
    EvictPod,
    Note,
    SetRecord,
)
from fairlead.decide.health.cycle import HealthMemory, HealthReport, HealthView, decide_health
from fairlead.decide.health.need import urgency_of
from fairlead.decide.health.node_step import NodeView
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.health.proving.gate import LiftTaint
from fairlead.decide.health.proving.testing import (
    BeginTest,
    CreateTest,
    DeleteTest,
    DeleteTestPod,
    SetTest,
    TestAction,
    fault_of,
)
from fairlead.decide.removal.books import CreateFleet, WriteFleet
from fairlead.decide.takings import Taking
from fairlead.decide.verdict import Decision, ObjectKey
from fairlead.model.health.idle_nodes import DueNodes
from fairlead.model.health.node_record import record_of
from fairlead.model.health.windows import drain_of
from fairlead.model.pools.pool_nodes import PoolNodes
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock, loop_time
from fairlead.runtime.events import EventKind, EventSink
from fairlead.runtime.kept.history import History
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.object_writer import ObjectWriter
from fairlead.runtime.watching.barrier import Written
from fairlead.runtime.watching.mirror import Change, Mirror
from fairlead.runtime.watching.reader import MirrorReader, follow, set_aside_of
from fairlead.runtime.watching.set_aside import AsideStage

#: What changes together is decided on together; and the time between two decisions at least.
_TOGETHER_SECONDS, _SOON_SECONDS = 0.02, 0.1
#: Taints of nodes that may need something.
_MARKS = (names.TAINT_UNHEALTHY, names.TAINT_PREFLIGHT)


class HealthController:
    """One per process and leader. After a crash, create a new one: its state is in the objects."""

    name = "health"

    def __init__(
        self,
        client: Client,
        world: ClusterWorld,
        reports: Mirror[NodeReport],
        fleets: Mirror[Fleet],
        *,
        tests: Mirror[NodeTest],
        history: History,
        events: EventSink,
        clock: Clock,
        policy: HealthPolicy,
        keys: random.Random,
        cluster_reports: Mirror[ClusterReport] | None = None,
        reader: MirrorReader | None = None,
        log: Logger = SILENT,
    ) -> None:
        """`keys` is where the keys of pairs that are tested are drawn from."""
        self.report = HealthReport()
        self._world = world
        self._reports, self._fleets, self._tests = reports, fleets, tests
        self._book = NodeTests(world, policy)
        self._cluster_reports = cluster_reports
        self._client = client
        self._objects = ObjectWriter(client)
        self._books = FleetBooks(client)
        self._events = events
        self._records = FleetRecords(history, events, log)
        self._clock, self._policy, self._rules = clock, policy, policy.condition_rules()
        self._memory = HealthMemory()
        self._requests = TimedRequests()
        self._set_aside = set_aside_of(reader)
        self._use = PoolNodes(test_namespace=policy.test_namespace)
        self._keys = keys
        #: Nodes with a report that asks for something, a record or a drain.
        self._open: dict[str, None] = {}
        #: What decisions see of them, until it changes; and what of the pools that was made from.
        self._views, self._views_of = dict[str, NodeView](), tuple[object, ...]()
        #: Reports of nodes that are not there, by name, and since when.
        self._orphans: dict[str, float] = {}
        self._joining: dict[str, None] = {}
        self._scopes: dict[str, tuple[str, ...]] = {}
        self._sizes: Counter[str] = Counter()
        #: The names of all nodes; empty until a decision asks for them after one came or went.
        self._node_names = frozenset[str]()
        self._decided_at = self._next_at = float("-inf")
        self._is_changed = True
        self._wake_at: float | None = None
        self._followed = ExitStack()
        seen = world.mirrors
        for undo in (
            follow(seen.nodes, self._node_changed, reader),
            follow(seen.jobs, self._job_changed, reader),
            follow(seen.pods, self._pod_changed, reader),
            follow(reports, self._report_changed, reader),
            follow(tests, self._test_changed, reader),
            follow(fleets, lambda _: self._decide_soon(), reader),
        ):
            self._followed.callback(undo)

    @property
    def mirrors(self) -> Sequence[Mirror[Any]]:
        """Return what it reads."""
        seen = self._world.mirrors
        more = () if self._cluster_reports is None else (self._cluster_reports,)
        own = (self._reports, self._fleets, self._tests)
        return (*own, seen.nodes, seen.jobs, seen.pods, seen.pools, *more)

    def close(self) -> None:
        """Detach from the mirrors, which live longer than the controller."""
        self._followed.close()

    async def observe(self) -> None:
        """Write what was decided to the history, until cancelled."""
        await self._records.run()

    # What it sees

    def _node_changed(self, change: Change[Node]) -> None:
        name, node = change.key[1], change.new
        if change.old is None or node is None:
            self._node_names = frozenset()
        for scope in self._scopes.pop(name, ()):
            self._sizes[scope] -= 1
        self._joining.pop(name, None)
        if node is not None:
            pool, zone = (node.metadata.labels.get(key, "") for key in (names.POOL, names.ZONE))
            self._scopes[name] = (pool, f"{pool}/{zone}")
            self._sizes.update(self._scopes[name])
            if any(taint.key == names.TAINT_JOINING for taint in node.spec.taints):
                self._joining[name] = None
        else:
            self._book.remove(name)
        self._judge(name)

    def _report_changed(self, change: Change[NodeReport]) -> None:
        self._judge(change.key[1])

    def _test_changed(self, change: Change[NodeTest]) -> None:
        for name in self._book.changed(change):
            self._judge(name)

    def _job_changed(self, change: Change[Job]) -> None:
        self._used(self._use.job_changed(change.key, change.new, loop_time()))

    def _pod_changed(self, change: Change[Pod]) -> None:
        self._used(self._use.pod_changed(change.key, change.new, loop_time()))
        pod = change.new or change.old
        if pod is not None and names.NODE_TEST in pod.metadata.labels:
            self._judge(pod.spec.node_name)

    def _used(self, nodes: frozenset[str]) -> None:
        """Take in that use of some nodes may have begun or ended."""
        self._is_changed |= bool(self._open)
        for name in nodes:
            self._views.pop(name, None)
            is_used = self._use.is_used(name)
            self._book.set_used(name, loop_time(), is_used=is_used)
            if is_used and name in self._world.yielding.nodes:
                self._decide_soon()

    def _judge(self, name: str) -> None:
        """Note whether a node may need something."""
        self._views.pop(name, None)
        node, report = self._world.mirrors.nodes.get("", name), self._reports.get("", name)
        notes = node.metadata.annotations if node is not None else {}
        is_open = names.HEALTH in notes or drain_of(notes) is not None
        if node is not None:
            now, tests = self._clock.now(), self._book.of(node)
            self._book.looked(node, tests, now=now, instant=loop_time())
        view = self._node_view(name)
        if node is not None and view is not None:
            is_open |= any(taint.key in _MARKS for taint in node.spec.taints)
            is_open |= view.change is not None or any(map(urgency_of, view.stated))
            tests = view.tests
            is_open |= any(each.is_open or self._book.pod(each) is not None for each in tests)
            is_open |= fault_of(node, tests) is not None
        if report is None or node is not None:
            self._orphans.pop(name, None)
        else:
            self._orphans.setdefault(name, loop_time())
        if report is not None:
            is_open |= any(urgency_of(fault) is not None for fault in report.status.faults)
        was_open = name in self._open
        if node is not None and is_open:
            self._open[name] = None
        else:
            self._open.pop(name, None)
            self._views.pop(name, None)
        if is_open or was_open:
            self._decide_soon()

    def _decide_soon(self) -> None:
        self._is_changed = True
        soon = max(loop_time() + _TOGETHER_SECONDS, self._decided_at + _SOON_SECONDS)
        self._next_at = min(self._next_at, soon)

    # Decisions

    def decide(self, now: float) -> Decision[Action]:
        """Decide about all nodes that may need something, unless it was done a moment ago."""
        instant = loop_time()
        self._is_changed, self._wake_at = False, None
        if self._reports.is_undefined or self._fleets.is_undefined:
            self._next_at = instant + self._policy.idle_loop_seconds
        if instant < self._next_at:
            self._wake_at = now + self._next_at - instant
            return Decision(wake_at=self._wake_at)
        view = self._view(now, instant)
        decision, self.report = decide_health(view, self._policy, self._memory)
        wait = _SOON_SECONDS if decision.actions else (decision.wake_at or now) - now
        self._decided_at, self._next_at, self._wake_at = instant, instant + wait, now + wait
        return replace(decision, wake_at=self._wake_at)

    def due_at(self) -> float | None:
        """Return when to decide again: after a change, but not before the pace allows."""
        if not self._is_changed:
            return self._wake_at
        return self._clock.now() + max(0.0, self._next_at - loop_time())

    def _view(self, now: float, instant: float) -> HealthView:
        mirrors, fleet = self._world.mirrors, self._fleets.get("", FLEET_NAME)
        contact = mirrors.nodes.seconds_since_contact
        pulse = self._requests.pulse(instant)
        pools = {pool.metadata.name: pool for pool in mirrors.pools.items()}
        of_pools = ((name, pool.is_active, pool.spec) for name, pool in pools.items())
        views_of = (self._tests.is_undefined, *of_pools)
        if views_of != self._views_of:
            self._views_of = views_of
            self._views.clear()
        repaired = () if fleet is None else fleet.status.repairs
        open_, views = self._open | dict.fromkeys(each.node for each in repaired), self._views
        for name in open_.keys() - views.keys():
            self._node_view(name)
        nodes = {name: views[name] for name in open_ if name in views}
        cluster_reports, is_dark = self._cluster_reports, self._tests.is_undefined
        partners = self._book.partners(nodes.values())
        self._node_names = self._node_names or frozenset(self._scopes)
        tests = [*(test for view in nodes.values() for test in view.tests), *partners.values()]
        return HealthView(
            fleet=fleet, nodes=nodes,
            pods={name: self._others(name) for name, view in nodes.items()
                  if view.drain is not None},
            pools={name: pool for name, pool in pools.items() if pool.is_active},
            sizes={scope: count for scope, count in self._sizes.items() if count},
            node_names=self._node_names,
            now=now, instant=instant,
            unready=len(self._world.health.unready_since.keys() - self._joining.keys()),
            nodes_age_seconds=float("inf") if contact is None else contact,
            api_latency_seconds=pulse.latency_seconds, api_error_share=pulse.error_share,
            report=None if cluster_reports is None else cluster_reports.get("", REPORT_NAME),
            test_pods=self._book.pods(tests), peers=self._book.peers, partners=partners,
            due=DueNodes() if is_dark else self._book.due(now, instant), pairs=self._book.pairs,
            due_pairs=DueNodes() if is_dark else self._book.due_pairs(now, instant),
            orphans=self._orphaned(instant),
        )  # fmt: skip

    def _orphaned(self, instant: float) -> Sequence[NodeReport]:
        """Return the reports whose nodes have been gone for long."""
        latest = instant - self._policy.orphan_seconds
        found = (self._reports.get("", name) for name, at in self._orphans.items() if at <= latest)
        return [report for report in found if report is not None]

    def _node_view(self, name: str) -> NodeView | None:
        """Return what decisions see of a node: the view that there is, unless it is of before."""
        node, report = self._world.mirrors.nodes.get("", name), self._reports.get("", name)
        if node is None:
            return None
        known = self._views.get(name)
        if known is not None and known.node is node and known.report is report:
            return known
        meta = node.metadata
        pool = self._world.mirrors.pools.get("", meta.labels.get(names.POOL, ""))
        is_ours = pool is not None and pool.is_active and not pool.is_external
        is_replaceable = is_ours and bool(node.spec.provider_id)
        of_pool = pool.spec.test_suite if pool is not None else ""
        suite = self._policy.gate_suite(meta.labels, of_pool)
        view = self._views[name] = NodeView(
            node, record_of(meta.annotations), report,
            is_used=self._use.is_used(name), idle_since=self._book.idle.idle_since(name),
            is_replaceable=is_replaceable,
            is_restartable=is_replaceable and pool is not None
            and pool.spec.provider.type.restarts,
            tests=self._book.of(node), stated=self._rules.faults_of(node),
            suite="" if self._tests.is_undefined else suite,
        )  # fmt: skip
        return view

    def _others(self, name: str) -> list[Pod]:
        """Return the pods on a node that no job of ours stops, and that are not on their way."""
        pods = self._world.mirrors.pods
        found = (pods.get(*key) for key in self._use.pods_on(name))
        return [
            pod for pod in found
            if pod is not None and pod.metadata.deletion_timestamp is None and not _is_ours(pod)
        ]  # fmt: skip

    # Actions

    def key_of(self, action: Action) -> ObjectKey:
        """Actions with the same key run in order, others side by side."""
        match action:
            case CreateFleet() | WriteFleet():
                return ("", f"/{FLEET_NAME}")
            case SetRecord(node) | LiftTaint(node):
                return ("", f"node/{node.metadata.name}")
            case CreateTest():
                return ("", f"test/{action.name}")
            case BeginTest(test) | SetTest(test) | DeleteTest(test):
                return ("", f"test/{test.metadata.name}")
            case DeleteTestPod(pod) | EvictPod(pod) | DeleteOverduePod(pod):
                return pod.metadata.key
            case DeleteReport(report):
                return ("", f"report/{report.metadata.name}")
            case Note():
                return ("", "/note")
            case _:
                assert_never(action)

    def takings(self, action: Action) -> Sequence[Taking]:
        """Return what an action takes, for the record before it."""
        match action:
            case SetRecord():
                return takings.node_out(action)
            case EvictPod() | DeleteOverduePod():
                return (takings.eviction(action),)
            case WriteFleet(fleet=fleet, decided=decided):
                return takings.fleet_decisions(fleet.metadata, FLEETS.kind, decided)
            case _:
                return ()

    async def perform(self, action: Action) -> Written | None:
        """Carry out one action; safe to repeat."""
        with self._requests.timed():
            return await self._perform(action)

    async def _perform(self, action: Action) -> Written | None:
        match action:
            case CreateFleet():
                return await self._books.create()
            case WriteFleet(fleet, _, decided):
                written = await self._books.write(action)
                self._records.note(FLEETS, fleet.metadata, decided)
                return written
            case SetRecord(node, _, decided):
                written = await self._objects.patch(NODES, node.metadata, record_patch(action))
                self._records.note(NODES, node.metadata, decided)
                return written
            case LiftTaint(node, decided):
                taints = [each for each in node.spec.taints if each.key != names.TAINT_PREFLIGHT]
                patch = {"spec": {"taints": [to_wire(taint) for taint in taints] or None}}
                written = await self._objects.patch(NODES, node.metadata, patch)
                self._records.note(NODES, node.metadata, decided)
                return written
            case BeginTest() if action.yields:
                return await self._begin(action)
            case CreateTest() | BeginTest() | SetTest() | DeleteTestPod() | DeleteTest():
                return await self._test(action)
            case EvictPod(pod, node):
                return await self._evict(pod, node)
            case DeleteOverduePod(pod, node):
                text = f"Node {node.metadata.name} was to be empty"
                self._warn(pod, "DrainDeadline", text)
                return await self._objects.delete(PODS, pod.metadata.key, uid=pod.metadata.uid)
            case DeleteReport(NodeReport(meta)):
                return await self._objects.delete(NODE_REPORTS, meta.key, uid=meta.uid)
            case Note(node, decided):
                fleet = self._fleets.get("", FLEET_NAME)
                if node is not None:
                    self._records.note(NODES, node.metadata, (decided,))
                elif fleet is not None:
                    self._records.note(FLEETS, fleet.metadata, (decided,))
                return None
            case _:
                assert_never(action)

    async def _test(self, action: TestAction) -> Written | None:
        return await perform_test(
            action, self._client, self._objects, self._policy,
            keys=self._keys, now=self._clock.now(),
        )  # fmt: skip

    async def _begin(self, action: BeginTest) -> Written | None:
        """Begin a test that leaves for work, unless work has come to the node meanwhile.

        From here on members wait for it, so none comes while the pod is being made.
        """
        name, test = action.node.metadata.name, action.test
        if self._use.is_used(name):
            return None
        key, written = (self._policy.test_namespace, test.metadata.name), None
        self._world.yielding.begin(key, name)
        try:
            written = await self._test(action)
            return written
        finally:
            if written is None:  # as far as is known, no pod was made
                pod = self._book.pod(test)
                if pod is not None:
                    self._world.yielding.put(pod)
                else:
                    self._world.yielding.remove(key)

    async def _evict(self, pod: Pod, node: Node) -> Written | None:
        try:
            return await self._objects.evict(pod.metadata)
        except TooManyRequests as error:  # a budget; the next decision asks again
            text = f"Not evicted from node {node.metadata.name} yet: {error.message}"
            self._warn(pod, "EvictionRefused", text)
            return None

    def _warn(self, pod: Pod, reason: str, text: str) -> None:
        self._events.record(PODS, pod.metadata, EventKind.WARNING, reason=reason, message=text)

    def changed(self, key: ObjectKey) -> None:
        """Decide again soon."""
        self._decide_soon()

    def failed(self, action: Action, error: ApiError) -> None:
        """An answer that no retry can mend; the next decisions come back to it."""

    def faulted(self, action: Action, error: Exception) -> None:
        """Our own code raised over this object: set it aside, so that the others go on."""
        match action:
            case SetRecord(node) | LiftTaint(node) | CreateTest(node):
                self._set_aside.note(NODES, node.metadata, AsideStage.ACT, error)
            case BeginTest(test) | SetTest(test) | DeleteTest(test):
                self._set_aside.note(NODE_TESTS, test.metadata, AsideStage.ACT, error)
            case EvictPod(pod) | DeleteOverduePod(pod) | DeleteTestPod(pod):
                self._set_aside.note(PODS, pod.metadata, AsideStage.ACT, error)
            case DeleteReport(report):
                self._set_aside.note(NODE_REPORTS, report.metadata, AsideStage.ACT, error)
            case CreateFleet() | WriteFleet() | Note():
                raise error
            case _:
                assert_never(action)


def _is_ours(pod: Pod) -> bool:
    """True for a member of a job, which the jobs controller stops with its gang."""
    return any(
        owner.controller and owner.api_version.startswith(f"{names.GROUP}/")
        for owner in pod.metadata.owner_references
    )
