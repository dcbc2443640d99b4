"""One candidate for the leadership: elects, and runs the controllers while it leads.

    client -> LeaderElector -> LeaderClient (writes during the term only) -> controllers, supervised

The controllers exist while this replica leads, and are new in each term: whatever those of an
earlier term knew is in the API. The operator runs one replica per process; a simulated world runs
several of them on one API.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from fairlead.api.cluster.team import Team
from fairlead.api.kubernetes.core import PriorityClass
from fairlead.api.resources import PRIORITY_CLASSES, TEAMS, Resource
from fairlead.app.configuration.policies import Policies
from fairlead.app.context import ProcessContext
from fairlead.app.controllers import Controllers
from fairlead.app.queries.answers import PlannerAnswers
from fairlead.cloud.registry import ProviderFactory
from fairlead.controllers.nodes.unreachable_nodes import Connect
from fairlead.controllers.placing.decision_log import DecisionLog
from fairlead.controllers.records.idle import Measured
from fairlead.controllers.records.logs import KeeperOptions, KeepingClient, LogKeeper
from fairlead.controllers.records.message_tries import NoticeSender
from fairlead.decide.jobs.policy import JobsPolicy, PeerNaming
from fairlead.kube.machine_contact import contact_machine
from fairlead.runtime.client import Client
from fairlead.runtime.kept.audit_export import AuditTarget
from fairlead.runtime.kept.history import History, LogReader, LogStore
from fairlead.runtime.leading.fencing import LeaderClient, fence
from fairlead.runtime.leading.leader import LeaderElector, LeaderOptions, LeaderTerm
from fairlead.runtime.supervisor import SupervisedService, Supervisor
from fairlead.runtime.watching.discovery import discover_groups
from fairlead.runtime.watching.mirror import HasMetadata, Mirror

T = TypeVar("T", bound=HasMetadata)


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """`identity` must be unique to the process."""

    identity: str
    leader: LeaderOptions = field(default_factory=LeaderOptions)
    policies: Policies = field(
        default_factory=lambda: Policies(JobsPolicy(peer_naming=PeerNaming.DNS))
    )


@dataclass(frozen=True, slots=True)
class ReplicaLogSource:
    """Where logs of members are kept, and how they are read before they are gone."""

    store: LogStore
    reader: LogReader
    options: KeeperOptions = field(default_factory=KeeperOptions)
    #: False when records and logs end with the leader.
    is_durable: bool = True


class Replica:
    """The election and what the leader runs; `services` are for the process's supervisor."""

    def __init__(
        self,
        settings: ReplicaSettings,
        client: Client,
        history: History,
        *,
        context: ProcessContext,
        archive: ReplicaLogSource | None = None,
        providers: ProviderFactory | None = None,
        connect: Connect = contact_machine,
        notices: NoticeSender | None = None,
        measured: Measured | None = None,
        audit_targets: Sequence[AuditTarget] = (),
        fenced: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`fenced` is called at the start of each term with the number of jobs touched.

        `providers` makes the providers of node pools, `connect` tries the machines of nodes,
        `notices` sends those of jobs; without it none are sent; `measured` reads simulated nodes;
        audit records go to `audit_targets`.
        """
        self._connect, self._measured = connect, measured
        self._notices, self._audit_targets = notices, audit_targets
        self._settings = settings
        self._client = client
        self._history = history
        self._context = context
        self._archive = archive
        self._fenced = fenced
        self._providers = providers
        self._rng = context.streams("leader")
        self.elector = LeaderElector(
            client, settings.identity, clock=context.clock, rng=self._rng,
            options=settings.leader, log=context.log,
        )  # fmt: skip
        #: What supervises the controllers; None while this replica does not lead.
        self.controllers: Supervisor | None = None
        self._parts: Controllers | None = None
        #: Read by every replica, since each answers API servers that ask about jobs.
        self.priority_classes: Mirror[PriorityClass] = self._mirror(PRIORITY_CLASSES)
        self.teams: Mirror[Team] = self._mirror(TEAMS)

    def _mirror(self, resource: Resource[T]) -> Mirror[T]:
        context = self._context
        rng = context.streams(f"mirrors/{resource.plural}")
        mirror = Mirror(self._client, resource, clock=context.clock, rng=rng, log=context.log)
        context.metrics.watch_mirror(mirror)
        return mirror

    @property
    def decisions(self) -> DecisionLog | None:
        """The log of the scheduler's decisions; None while no scheduler runs here."""
        return self._parts.decisions if self._parts is not None else None

    @property
    def answers(self) -> PlannerAnswers | None:
        """What the scheduler's state says; None while no scheduler runs here."""
        return self._parts.answers if self._parts is not None else None

    def services(self) -> list[SupervisedService]:
        """Return what this replica runs, leader or not."""
        return [
            SupervisedService("leader", lambda: self.elector.run(self._lead)),
            SupervisedService("mirror-priorityclasses", self.priority_classes.run),
            SupervisedService("mirror-teams", self.teams.run),
        ]

    async def _lead(self, term: LeaderTerm) -> None:
        context, policies = self._context, self._settings.policies
        client = LeaderClient(self._client, term)
        keeper: LogKeeper | None = None
        if (archive := self._archive) is not None:
            keeper = LogKeeper(
                archive.reader, archive.store, clock=context.clock, options=archive.options,
                log=context.log,
            )  # fmt: skip
            client = KeepingClient(self._client, term, keeper)
        if policies.jobs.binding is not None:
            served = await discover_groups(client)
            policies = replace(policies, jobs=replace(policies.jobs, groups=served))
            context.log.info("Discovered", pod_groups=served.value if served else "")
        controllers = Controllers(
            policies, client, self._history, context=context,
            priority_classes=self.priority_classes, teams=self.teams, providers=self._providers,
            connect=self._connect, notices=self._notices, measured=self._measured,
            audit_targets=self._audit_targets, writer=self._settings.identity,
        )  # fmt: skip
        jobs = controllers.mirrors.jobs
        touched = await fence(client, jobs, term, rng=self._rng, options=self._settings.leader)
        self._fenced(touched)
        context.log.info("Fenced", jobs=touched, term=term.token)
        services = controllers.services()
        if keeper is not None:
            mirrors = controllers.mirrors
            services.append(
                SupervisedService("logs", partial(keeper.run, mirrors.pods, mirrors.jobs))
            )
        self.controllers = Supervisor(
            services, clock=context.clock, rng=self._rng, log=context.log,
            crashed=context.metrics.crashed,
        )  # fmt: skip
        self._parts = controllers
        try:
            await self.controllers.run()
        finally:
            self.controllers = self._parts = None
