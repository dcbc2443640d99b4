"""The controllers as services of a supervisor, and the mirrors that they share.

The embedded cluster, the operator and the simulator all compose their controllers here; they differ
in the client, the clock, the random streams and the policies that they pass. Each start of a
service makes a new controller: whatever the one before knew is in the API.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fairlead.api.cluster.team import Team
from fairlead.api.kubernetes.core import PriorityClass
from fairlead.api.names import NODE_LEASES_NAMESPACE
from fairlead.api.resources import FLEETS, IMAGE_SETS, LEASES
from fairlead.app.configuration.notice_senders import notices_asked_for
from fairlead.app.configuration.policies import Policies
from fairlead.app.context import ProcessContext
from fairlead.app.mirrors import SharedMirrors
from fairlead.app.queries.answers import KnownState, PlannerAnswers
from fairlead.app.use_service import use_parts
from fairlead.cloud.registry import ProviderFactory
from fairlead.cloud.registry import providers as own_providers
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.doctor import DoctorController
from fairlead.controllers.egress import EgressController
from fairlead.controllers.elements.arrays import ArraysController
from fairlead.controllers.gangs.adoption import AdoptionController
from fairlead.controllers.gangs.job_index import JobsMirrors
from fairlead.controllers.gangs.jobs import JobsController
from fairlead.controllers.nodes.fleet import FleetController
from fairlead.controllers.nodes.health import HealthController
from fairlead.controllers.nodes.node_exports import NodeExports
from fairlead.controllers.nodes.unreachable_nodes import Connect, UnreachableNodesController
from fairlead.controllers.placing.balloons import BalloonController
from fairlead.controllers.placing.decision_log import DecisionLog
from fairlead.controllers.placing.device_matcher import DeviceMatcher
from fairlead.controllers.placing.images import ImagesController
from fairlead.controllers.placing.scheduler import SchedulerController
from fairlead.controllers.placing.teams import TeamsController
from fairlead.controllers.pods.stored_templates import StoredTemplates
from fairlead.controllers.records.idle import IdleController, Measured
from fairlead.controllers.records.job_traffic import TrafficKeeper
from fairlead.controllers.records.message_tries import NoticeSender
from fairlead.controllers.records.notices import NoticesController
from fairlead.controllers.records.tickets import TicketRecipients, TicketsController
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.verdict import ObjectKey
from fairlead.doctor.examiner import Examiner, Servers
from fairlead.doctor.readers.prometheus import parse_jobs
from fairlead.embedded.own_controllers.unscheduled import report_unscheduled
from fairlead.kube.machine_contact import contact_machine
from fairlead.model.pools.pool_nodes import PoolNodes
from fairlead.runtime.client import Client
from fairlead.runtime.events import Recorder
from fairlead.runtime.kept.audit_book import AuditBook
from fairlead.runtime.kept.audit_export import AuditExport, AuditTarget
from fairlead.runtime.kept.history import History
from fairlead.runtime.kept.numbers import Numbers
from fairlead.runtime.loop import Controller, ControllerLoop, LoopOptions
from fairlead.runtime.supervisor import SupervisedService
from fairlead.runtime.watching.mirror import Mirror, MirrorOptions
from fairlead.runtime.watching.reader import MirrorReader
from fairlead.runtime.watching.set_aside import SetAside

COMPONENT = "fairlead"
#: Of the loop, for what an answer to `fairlead why` has beside the verdict and its numbers.
ANSWER_SECONDS_MAX = 0.05
_SHARED_MIRRORS = LoopOptions(runs_mirrors=False)


class Controllers:
    """Makes the controllers and knows which are ready."""

    def __init__(
        self,
        policies: Policies,
        client: Client,
        history: History,
        *,
        context: ProcessContext,
        priority_classes: Mirror[PriorityClass] | None = None,
        teams: Mirror[Team] | None = None,
        providers: ProviderFactory | None = None,
        connect: Connect = contact_machine,
        notices: NoticeSender | None = None,
        measured: Measured | None = None,
        audit_targets: Sequence[AuditTarget] = (),
        writer: str = COMPONENT,
    ) -> None:
        """`priority_classes` and `teams`: where another part of the process runs those mirrors.

        `providers` makes the providers of node pools; the default knows no simulated cloud.
        `connect` tries the machines of nodes; the default does not know virtual ones. `notices`
        sends those of jobs; without it none are sent. `measured`: nodes say what pods use.
        `writer` names this process in audit records, which go to `audit_targets`.
        """
        self._connect, self._measured = connect, measured
        self._notices = notices
        self._providers = providers or own_providers()
        self._policies = policies
        self._client = client
        self._history = history
        self._context = context
        self._clock = context.clock
        self._metrics = context.metrics
        self._log = context.log
        self._events = Recorder(
            client, context.clock, COMPONENT, rng=context.streams("events"), log=context.log
        )
        self._metrics.watch_events(self._events)
        self._audit = AuditBook(history, writer=writer, clock=self._clock, log=self._log,
                                broken=self._metrics.audit_breaks.inc)  # fmt: skip
        self._audit_targets = audit_targets
        #: What the controllers read, and others may; the services among `services` keep it.
        self.mirrors = SharedMirrors(
            client, self._events, context=context, priority_classes=priority_classes,
            teams=teams, has_reports=policies.doctor.enabled, has_health=policies.health.enabled,
        )  # fmt: skip
        #: The cluster as the mirrors show it, taken in once for all controllers.
        self.world = ClusterWorld(
            self.mirrors.cluster(), clock=self._clock, levels=policies.levels,
            balloon_namespace=policies.own_namespace, conditions=policies.condition_rules,
            set_aside=self._new_set_aside("cluster"), matches_beside=True,
        )  # fmt: skip
        self._numbers = Numbers(client, policies.numbers, highest=self._highest_number)
        self._templates = StoredTemplates(client)
        self._loops: dict[str, ControllerLoop[Any]] = {}
        self._placing: PlacementState | None = None
        #: Of the scheduler; None while it does not run.
        self.decisions: DecisionLog | None = None
        self.answers: PlannerAnswers | None = None

    def services(self) -> list[SupervisedService]:
        """Return the services: mirrors and events first, since the controllers need them."""
        services = [
            *self.mirrors.services(),
            SupervisedService("events", self._events.run),
            SupervisedService("numbers", self._numbers.run),
            SupervisedService(
                "scheduler", self._run_scheduler, is_ready=lambda: self._is_ready("scheduler")
            ),
            SupervisedService("jobs", self._run_jobs, is_ready=lambda: self._is_ready("jobs")),
            SupervisedService(
                "arrays", self._run_arrays, is_ready=lambda: self._is_ready("arrays")
            ),
            SupervisedService("teams", self._run_teams, is_ready=lambda: self._is_ready("teams")),
            SupervisedService("fleet", self._run_fleet),
            SupervisedService("images", self._run_images),
            SupervisedService("unreachable-nodes", self._run_unreachable_nodes),
            SupervisedService("use", self._run_use),
        ]
        if self._notices is not None and self._policies.notices.terms.is_enabled:
            notices = partial(self._run_notices, self._notices)
            services.append(SupervisedService("notices", notices))
        if self._audit_targets:
            export = AuditExport(self._history, self._audit, self._audit_targets,
                                 rng=self._context.streams("audit"), log=self._log,
                                 reported=self._metrics.audit_targets_failing.set)  # fmt: skip
            services.append(SupervisedService("audit", export.run))
        if self._policies.doctor.enabled:
            services.append(SupervisedService("doctor", self._run_doctor))
        if self._policies.health.enabled:
            services.append(SupervisedService("health", self._run_health))
            services.append(SupervisedService("egress", self._run_egress))
            if self._notices is not None and self._policies.tickets.targets:
                tickets = partial(self._run_tickets, self._notices)
                services.append(SupervisedService("tickets", tickets))
        if self._policies.jobs.binding is not None:  # another scheduler binds what is pinned
            ready = partial(self._is_ready, "adoption")
            services.append(SupervisedService("adoption", self._run_adoption, is_ready=ready))
        else:
            services.append(SupervisedService("unscheduled", self._run_unscheduled))
        return services

    def _highest_number(self) -> int:
        shown = (*self.mirrors.jobs.items(), *self.mirrors.arrays.items())
        return max((each.status.number for each in shown), default=0)

    def _is_ready(self, name: str) -> bool:
        loop = self._loops.get(name)
        return loop is not None and loop.ready

    def _new_set_aside(self, name: str) -> SetAside:
        set_aside = SetAside(name, events=self._events, log=self._log)
        self._metrics.watch_set_aside(set_aside)
        return set_aside

    async def _run_scheduler(self) -> None:
        reader = self._begin("scheduler")
        try:
            controller = SchedulerController(
                self._client, self.world, events=self._events, reader=reader,
                policy=replace(
                    self._policies.placement, expects_places=self._policies.images.prefetch_jobs
                ),
                stopwatch=self._metrics.stopwatch, places_changed=self._wake_images,
            )  # fmt: skip
            self.decisions = controller.decisions
            self.answers = self._answers_of(controller.state)
            self._placing = controller.state
            self._metrics.watch_jobs(self.mirrors.jobs.items)
            self._metrics.watch_queue(controller.name, lambda: len(controller.state.queue))
            await self._run(controller, reader, also=[DeviceMatcher(self.world).run])
        except Exception:
            self.world.rebuild()  # the scheduler may have left the cluster state half changed
            raise
        finally:
            self.decisions = self.answers = self._placing = None
            self._metrics.watch_jobs(None)
            self._metrics.forget_queue(SchedulerController.name)

    def _answers_of(self, state: PlacementState) -> PlannerAnswers:
        mirrors, world = self.mirrors, self.world
        return PlannerAnswers(
            state, KnownState(mirrors.nodes.items, mirrors.pools.items, world.health),
            self._policies.placement, self._policies.jobs, stopwatch=time.thread_time,
            seconds=lambda: ANSWER_SECONDS_MAX,
        )  # fmt: skip

    async def _run_jobs(self) -> None:
        reader = self._begin("jobs")
        rng = self._context.streams("own-mirrors/jobs")
        own = JobsMirrors.make(self._client, self._policies.jobs, clock=self._clock, rng=rng)
        controller = JobsController(
            self._client, self.world, own, history=self._history, events=self._events,
            policy=self._policies.jobs, clock=self._clock,
            keys=self._context.streams("gang-keys"), numbers=self._numbers,
            templates=self._templates, reader=reader,
        )  # fmt: skip
        await self._run(controller, reader, own=own.all)

    async def _run_use(self) -> None:
        """Keep what members used, and look after GPUs that are not, where something measures."""
        keeper, measured = use_parts(
            self._policies, self._client, self._history, context=self._context,
            mirrors=self.mirrors, measured=self._measured,
        )  # fmt: skip
        if measured is None:
            return await keeper.run()
        reader = self._begin(IdleController.name)
        controller = IdleController(
            self._client, self.world, measured, events=self._events, clock=self._clock,
            policy=self._policies.idle, reader=reader, log=self._log,
        )  # fmt: skip
        self._metrics.use.watch(lambda: controller.report)
        try:
            await self._run(controller, reader, also=[keeper.run, controller.observe])
        finally:
            self._metrics.use.watch(None)

    async def _run_notices(self, sender: NoticeSender) -> None:
        """Run the controller, from the first job on that asks for notices."""
        reader, policy = self._begin("notices"), self._policies.notices
        await notices_asked_for(self.mirrors.jobs)
        controller = NoticesController(
            self._client, self.world, sender, events=self._events, clock=self._clock,
            policy=policy, counted=self._metrics.notified, reader=reader,
        )  # fmt: skip
        options = replace(_SHARED_MIRRORS, beside_max=policy.sending_max)
        await self._run(controller, reader, options=options)

    async def _run_tickets(self, sender: NoticeSender) -> None:
        reader, shared, policy = self._begin("tickets"), self.mirrors, self._policies.tickets
        assert shared.node_reports is not None
        assert shared.fleets is not None
        controller = TicketsController(
            self._client, self.world, TicketRecipients(sender, self._providers),
            reports=shared.node_reports, fleets=shared.fleets, history=self._history, policy=policy,
            events=self._events, clock=self._clock, counted=self._metrics.notified,
            reader=reader, log=self._log,
        )  # fmt: skip
        options = replace(_SHARED_MIRRORS, beside_max=policy.sending.sending_max)
        self._metrics.tickets.watch(controller.states)
        try:
            await self._run(controller, reader, also=[controller.observe], options=options)
        finally:
            self._metrics.tickets.watch(None)

    async def _run_arrays(self) -> None:
        reader = self._begin("arrays")
        keep = self._policies.jobs.keep_finished_seconds if self._history.is_durable else None
        policy = replace(self._policies.arrays, keep_finished_seconds=keep)
        controller = ArraysController(
            self._client, self.world, events=self._events, policy=policy,
            clock=self._clock, numbers=self._numbers, templates=self._templates, reader=reader,
        )  # fmt: skip
        await self._run(controller, reader)

    async def _run_teams(self) -> None:
        reader = self._begin("teams")
        controller = TeamsController(
            self._client, self.world, events=self._events, policy=self._policies.teams,
            reader=reader,
        )  # fmt: skip
        self._metrics.watch_teams(self.mirrors.teams.items)
        try:
            await self._run(controller, reader)
        finally:
            self._metrics.watch_teams(None)

    async def _run_fleet(self) -> None:
        """Run the fleet controller, and the balloon controller on the nodes that it indexes."""
        reader, balloons, pools = self._begin("fleet"), self._policies.balloons, self.mirrors.pools
        nodes = PoolNodes(balloons.namespace, test_namespace=self._policies.own_namespace)
        shared = self.mirrors.fleets
        fleets = shared or Mirror(
            self._client, FLEETS, clock=self._clock, log=self._log,
            rng=self._context.streams(f"own-mirrors/{FLEETS.plural}"),
        )  # fmt: skip
        controller = FleetController(
            self._client, self.world, pools, fleets, providers=self._providers,
            history=self._history, events=self._events, clock=self._clock,
            policy=self._policies.fleet, reader=reader, reports=self.mirrors.reports,
            metrics=self._metrics.fleet, log=self._log, nodes=nodes,
        )  # fmt: skip
        also = [controller.observe]
        if balloons.namespace:
            beside = BalloonController(
                self._client, self.world, pools, nodes, policy=balloons, clock=self._clock,
                reader=reader,
            )  # fmt: skip
            also.append(self._loop(beside).run)
        self._metrics.fleet.watch(controller.source)
        try:
            await self._run(controller, reader, own=[] if shared else [fleets], also=also)
        finally:
            self._metrics.fleet.watch(None)

    async def _run_health(self) -> None:
        reader, shared = self._begin("health"), self.mirrors
        assert shared.node_reports is not None
        assert shared.fleets is not None
        assert shared.node_tests is not None
        controller = HealthController(
            self._client, self.world, shared.node_reports, shared.fleets, tests=shared.node_tests,
            history=self._history, events=self._events, clock=self._clock,
            policy=self._policies.health_policy, keys=self._context.streams("pair-keys"),
            cluster_reports=shared.reports, reader=reader, log=self._log,
        )  # fmt: skip
        self._metrics.health.watch(lambda: controller.report)
        try:
            await self._run(controller, reader, also=[controller.observe])
        finally:
            self._metrics.health.watch(None)

    async def _run_unreachable_nodes(self) -> None:
        reader, policy = self._begin(UnreachableNodesController.name), self._policies.silence
        options = MirrorOptions(NODE_LEASES_NAMESPACE, is_dormant=not policy.enabled)
        leases = Mirror(
            self._client, LEASES, clock=self._clock, log=self._log, options=options,
            rng=self._context.streams(f"own-mirrors/{LEASES.plural}"),
        )  # fmt: skip
        controller = UnreachableNodesController(
            self._client, self.world, leases, self._connect, events=self._events,
            clock=self._clock, policy=policy, reader=reader, log=self._log,
        )  # fmt: skip
        self._metrics.silence.watch(lambda: controller.report)
        try:
            await self._run(controller, reader, own=[leases])
        finally:
            self._metrics.silence.watch(None)

    async def _run_images(self) -> None:
        reader = self._begin("images")
        sets = Mirror(
            self._client, IMAGE_SETS, clock=self._clock, log=self._log,
            rng=self._context.streams(f"own-mirrors/{IMAGE_SETS.plural}"),
        )  # fmt: skip
        controller = ImagesController(
            self._client, self.world, sets, reserved=self._kept_places, events=self._events,
            policy=self._policies.images, clock=self._clock, reader=reader,
        )  # fmt: skip
        await self._run(controller, reader, own=[sets])

    def _wake_images(self) -> None:
        loop = self._loops.get(ImagesController.name)
        if loop is not None:
            loop.wake()

    def _kept_places(self) -> Mapping[ObjectKey, tuple[str, ...]]:
        """Return where jobs are going to be that the scheduler keeps room for."""
        return {} if self._placing is None else self._placing.kept_places

    async def _run_egress(self) -> None:
        reader, reports = self._begin("egress"), self.mirrors.node_reports
        assert reports is not None
        controller = EgressController(
            self._client, self.world, reports, events=self._events, clock=self._clock,
            policy=self._policies.egress, reader=reader,
        )  # fmt: skip
        exports = NodeExports(self.world, reports, clock=self._clock, reader=reader)
        keeper = TrafficKeeper(
            self._history, self.mirrors.pods, self.mirrors.jobs, reports, clock=self._clock,
            rng=self._context.streams("traffic"), log=self._log,
        )  # fmt: skip
        self._metrics.traffic.watch(lambda: controller.traffic)
        self._metrics.exports.watch(lambda: exports.report)
        try:
            await self._run(controller, reader, also=[exports.observe, keeper.run])
        finally:
            self._metrics.traffic.watch(None)
            self._metrics.exports.watch(None)
            exports.close()

    async def _run_doctor(self) -> None:
        reader, policy = self._begin("doctor"), self._policies.doctor
        reports = self.mirrors.reports
        assert reports is not None
        examiner = Examiner(
            self._client.read, clock=self._clock, metrics=policy.metrics,
            servers=Servers(
                policy.etcd, policy.prometheus, parse_jobs(policy.prometheus_jobs),
                Path(policy.credentials_directory),
            ),
            pause_seconds=policy.pause_seconds, counted=lambda: {"pods": len(self.mirrors.pods)},
        )  # fmt: skip
        controller = DoctorController(
            self._client, reports, examiner, events=self._events, clock=self._clock,
            policy=policy, reader=reader,
        )  # fmt: skip
        self._metrics.doctor.watch(lambda: controller.examination)
        try:
            await self._run(controller, reader)
        finally:
            self._metrics.doctor.watch(None)

    async def _run_adoption(self) -> None:
        reader = self._begin("adoption")
        controller = AdoptionController(
            self._client, self.world, history=self._history, events=self._events,
            clock=self._clock, policy=self._policies.adoption, numbers=self._numbers,
            reader=reader,
        )  # fmt: skip
        await self._run(controller, reader)

    def _begin(self, name: str) -> MirrorReader:
        """Return the reader of a controller that starts now, on a world without faults."""
        self.world.ensure_sound()
        return MirrorReader(self._new_set_aside(name))

    async def _run_unscheduled(self) -> None:
        reader = MirrorReader()
        try:
            report_unscheduled(self.mirrors.pods, self._events, reader)
            await reader.wait_fault()
        finally:
            reader.close()

    def _loop(
        self, controller: Controller[Any], options: LoopOptions = _SHARED_MIRRORS
    ) -> ControllerLoop[Any]:
        """Make the loop of a controller, whose mirrors run elsewhere."""
        loop = self._loops[controller.name] = ControllerLoop(
            controller, clock=self._clock, rng=self._context.streams(f"loop/{controller.name}"),
            observer=self._metrics, log=self._log, options=options, audit=self._audit,
        )  # fmt: skip
        return loop

    async def _run(
        self,
        controller: Controller[Any],
        reader: MirrorReader,
        *,
        own: Sequence[Mirror[Any]] = (),
        also: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
        options: LoopOptions = _SHARED_MIRRORS,
    ) -> None:
        """Run the controller, and mirrors of its own, until a fault of its code or of the world.

        `also` is run beside it.
        """
        loop = self._loop(controller, options)
        unregister = (
            self.world.on_own_change(loop.wake), self.world.admissions.on_change(loop.check)
        )  # fmt: skip
        for mirror in own:
            self._metrics.watch_mirror(mirror)
        try:
            async with asyncio.TaskGroup() as group:
                for mirror in own:
                    mirror.set_aside = self.mirrors.set_aside
                    group.create_task(mirror.run(), name=f"mirror-{mirror.resource.plural}")
                for beside in also:
                    group.create_task(beside())
                group.create_task(reader.wait_fault())
                group.create_task(self.world.wait_fault())
                await loop.run()
        finally:
            for each in unregister:
                each()
            self._metrics.forget_mirrors(own)
            controller.close()
            reader.close()
