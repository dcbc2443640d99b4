"""The webhook of one replica: listener, answers, and the keeper of its certificate."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry

from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job_defaults import JobTerms
from fairlead.api.kubernetes.core import PriorityClass
from fairlead.api.names import OWN_NAMESPACE
from fairlead.api.schema.crd import definition_names
from fairlead.decide.admission.pod_gates import GateRules, system_with
from fairlead.model.asks.priorities import PriorityTable
from fairlead.model.asks.teams import TeamTable
from fairlead.model.holdings.submitted import JOB_OUTLINES, JobOutline, SubmittedTable
from fairlead.model.inventory.node_teams import NODE_OUTLINES
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.watching.mirror import Change, Mirror
from fairlead.webhook.answers import AdmissionAnswers
from fairlead.webhook.certificates import Times
from fairlead.webhook.configuration import PORT, SERVICE
from fairlead.webhook.keeper import CertificateFiles, CertificateKeeper, CertificateKeeperOptions
from fairlead.webhook.server import Handler, WebhookMetrics, WebhookServer


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """Where it listens, and how API servers reach it."""

    host: str = "0.0.0.0"  # noqa: S104 # API servers come from outside the pod
    port: int = PORT
    namespace: str = OWN_NAMESPACE
    #: Namespaces of the cluster's own components, beside kube-system.
    system_namespaces: tuple[str, ...] = ()
    #: What the settings of the cluster say of its jobs.
    terms: JobTerms = field(default_factory=JobTerms)
    #: Convert objects of the kinds that this webhook is named by, between v1alpha1 and v1beta1.
    converts: bool = False
    #: Further names and addresses that the certificate is for, beside those of the Service.
    hosts: tuple[str, ...] = ()
    #: Directory with tls.crt and tls.key kept by another program; None: Fairlead keeps a Secret.
    directory: Path | None = None
    #: How long to answer after the end was asked for: until no request is sent here any more.
    linger_seconds: float = 0.0
    times: Times = field(default_factory=Times)
    look_seconds: float = 60.0

    @property
    def all_hosts(self) -> tuple[str, ...]:
        """Every name and address that the certificate is for."""
        return (f"{SERVICE}.{self.namespace}.svc", f"{SERVICE}.{self.namespace}", *self.hosts)


class Webhook:
    """One replica's webhook. `listening` serves; `run` keeps the certificate."""

    def __init__(
        self,
        options: WebhookOptions,
        client: Client,
        registry: CollectorRegistry,
        *,
        clock: Clock,
        rng: random.Random,
        priority_classes: Mirror[PriorityClass] | None = None,
        teams: Mirror[Team] | None = None,
        log: Logger = SILENT,
        others: Mapping[str, Handler] | None = None,
    ) -> None:
        """`priority_classes` and `teams` are run by the caller; without them they are not judged.

        `others` answer the requests below a path on the same port.
        """
        self.port = 0
        self._priority_classes = priority_classes
        self._priorities = PriorityTable()
        if priority_classes is not None:
            priority_classes.on_change(self._priority_class_changed)
        self._teams = teams
        self._team_table = TeamTable()
        if teams is not None:
            teams.on_change(self._team_changed)
        self._options = options
        self._clock = clock
        rules = GateRules(
            own_namespace=options.namespace,
            system_namespaces=system_with(options.system_namespaces),
        )
        #: Followed from when a team first limits its submitted jobs.
        self._jobs = Mirror(client, JOB_OUTLINES, clock=clock, rng=rng, log=log)
        self._jobs.on_change(self._job_changed)
        self._submitted = SubmittedTable()
        self._is_counting = asyncio.Event()
        #: Followed from when there is a first team.
        self._nodes = Mirror(client, NODE_OUTLINES, clock=clock, rng=rng, log=log)
        self._has_teams = asyncio.Event()
        answers = AdmissionAnswers(
            rules, classes=self._classes, teams=self._known_teams,
            submitted=lambda: self._submitted if self._jobs.synced else None,
            node_team=self._node_team, terms=options.terms, converts=options.converts, log=log,
        )  # fmt: skip
        self._server = WebhookServer(answers, log=log, others=others)
        self._server.measure(WebhookMetrics(registry, lambda: self._server.ends_at))
        self._keeper: CertificateKeeper | CertificateFiles
        if options.directory is not None:
            self._keeper = CertificateFiles(options.directory, self._server.use, log=log)
        else:
            keeping = CertificateKeeperOptions(
                namespace=options.namespace, secret=SERVICE, hosts=options.all_hosts,
                times=options.times, look_seconds=options.look_seconds,
                definitions=definition_names() if options.converts else (),
            )  # fmt: skip
            self._keeper = CertificateKeeper(
                client, keeping, self._server.use, clock=clock, rng=rng, log=log
            )

    @property
    def is_ready(self) -> bool:
        """True while a certificate in date is shown, or no API server is configured to ask."""
        if self._clock.now() < self._server.ends_at:
            return True
        return isinstance(self._keeper, CertificateKeeper) and not self._keeper.is_asked

    def _classes(self) -> PriorityTable | None:
        mirror = self._priority_classes
        return self._priorities if mirror is not None and mirror.synced else None

    def _priority_class_changed(self, change: Change[PriorityClass]) -> None:
        if change.new is None:
            self._priorities.remove(change.key[1])
        else:
            self._priorities.put(change.new)

    def _known_teams(self) -> TeamTable | None:
        mirror = self._teams
        return self._team_table if mirror is not None and mirror.synced else None

    def _team_changed(self, change: Change[Team]) -> None:
        if change.new is None:
            self._team_table.remove(change.key[1])
        else:
            self._team_table.put(change.new)
            self._has_teams.set()
            if any(
                limit.submitted is not None
                for limit in (change.new.spec.limits, change.new.spec.user_limits)
            ):
                self._is_counting.set()

    def _node_team(self, name: str) -> str:
        """Return whose a node is; "" also while that is not known: the teams controller looks."""
        node = self._nodes.get("", name)
        return node.team if node is not None else ""

    def _job_changed(self, change: Change[JobOutline]) -> None:
        if change.new is None:
            self._submitted.remove(change.key)
        else:
            self._submitted.put(change.new)

    async def run(self) -> None:
        """Keep the certificate until cancelled."""
        await self._keeper.run()

    async def follow_jobs(self) -> None:
        """Follow the jobs that are counted, once a team limits them, until cancelled."""
        await self._is_counting.wait()
        await self._jobs.run()

    async def follow_nodes(self) -> None:
        """Follow whose the nodes are, once there is a team, until cancelled."""
        await self._has_teams.wait()
        await self._nodes.run()

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[int]:
        """Serve until the end of the block; yields the port. OSError."""
        options = self._options
        async with self._server.listening(
            options.host, options.port, linger_seconds=options.linger_seconds
        ) as port:
            self.port = port
            yield port
