"""The cluster put together: store, API, nodes and controllers in one process.

    store -> service -> HTTP server
                     -> in-process client -> virtual nodes, local node, scheduler, jobs controller

What only controllers need is started by the supervisor and restarted after a crash, each time
from new objects: whatever it knew is in the API. The store is different: when it cannot write, the
process ends, since nothing more can be promised (docs/design/architecture.md).
"""

from __future__ import annotations

import asyncio
import errno
import random
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import msgspec
from prometheus_client import CollectorRegistry

from fairlead import __version__
from fairlead.api.meta import merge_diff
from fairlead.api.names import OWN_NAMESPACE
from fairlead.api.resources import CRDS
from fairlead.api.schema import crd
from fairlead.api.status import AlreadyExists
from fairlead.app.configuration.notice_senders import audit_targets, notice_senders
from fairlead.app.configuration.policies import Policies
from fairlead.app.configuration.settings import OPEN_ADDRESS, Settings
from fairlead.app.context import ProcessContext
from fairlead.app.controllers import Controllers
from fairlead.app.extensions import Extensions, Parts
from fairlead.app.local.listen_address import ListenFailed
from fairlead.app.local.nodes import Nodes
from fairlead.app.local.server_tls import server_tls
from fairlead.app.mirrors import SharedMirrors
from fairlead.app.run_file import STORE_DIRECTORY
from fairlead.app.use_service import looks_of
from fairlead.cloud.registry import Clouds, provider_of
from fairlead.controllers.records.message_tries import NoticeSender
from fairlead.decide.health.unreachable_nodes import Contact
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.use.use_samples import UsePolicy
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.http.server import Server, serve
from fairlead.embedded.own_controllers.device_allocator import DeviceAllocator
from fairlead.embedded.own_controllers.volume_binder import VolumeBinder
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.embedded.verbs.sweeps.cluster_objects import Address
from fairlead.embedded.verbs.uids import Uids
from fairlead.embedded.virtual.contact import VirtualContact
from fairlead.history import HISTORY_FILE
from fairlead.history.sqlite import SqliteHistory
from fairlead.runtime.clock import Clock
from fairlead.runtime.exported.metrics import Metrics
from fairlead.runtime.kept.audit_export import AuditTarget
from fairlead.runtime.logs import Logger
from fairlead.runtime.supervisor import OnCrash, SupervisedService, Supervisor
from fairlead.webhook.configuration import SERVICE
from fairlead.webhook.definitions import converted_definition

READY_LOOK_SECONDS = 0.02
START_CRASHES_MAX = 3
SHUTDOWN_GRACE_SECONDS = 10.0
_PODS_SHOWN_MAX = 5


class StartFailed(Exception):
    """A service keeps crashing, so the cluster never becomes ready."""

    def __init__(self, service: str, error: str) -> None:
        super().__init__(f"service {service} keeps crashing: {error}")
        self.service = service


class StoreLost(Exception):
    """The store can no longer write; what was acknowledged is safe."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(f"the store cannot be written: {cause}")
        self.cause = cause


class Cluster:
    """One cluster, run once. `stop` ends it in order."""

    def __init__(
        self,
        settings: Settings,
        token: str,
        *,
        clock: Clock,
        log: Logger,
        say: Callable[[str], None],
    ) -> None:
        """`say` is given sentences for the person at the terminal."""
        self.token = token
        self.nodes_kept = 0  # virtual nodes beyond those that were asked for
        self.authority = b""  # of the server's certificate; known once it listens
        self._settings = settings
        self._clouds = Clouds()
        self._clock = clock
        self._log = log
        self._say = say
        self._rng = random.Random()  # noqa: S311 # jitter, not secrets
        self._metrics = Metrics(CollectorRegistry(), version=__version__)
        self._supervisor: Supervisor | None = None
        self._is_stopping = False
        self._contact: VirtualContact | None = None  # known once there are nodes

    def stop(self) -> None:
        """Begin the orderly end, at any time; `run` returns when it is done."""
        self._is_stopping = True
        if self._supervisor is not None:
            self._supervisor.stop()

    async def run(self, announce: Callable[[Server], None]) -> None:
        """Run until stopped; `announce(server)` is called once when everything is ready.

        Raises StoreError, HistoryError, ListenFailed, StoreLost or OSError when it cannot go on.
        """
        data = self._settings.data
        async with AsyncExitStack() as stack:
            store = self._open_store(stack)
            history = SqliteHistory.open(data / HISTORY_FILE, runner=asyncio.to_thread)
            stack.push_async_callback(history.close)
            service = ApiService(
                store, Registry.with_builtins(), self._clock,
                ids=Uids(), rng=self._rng, terms=self._policies().terms,
            )  # fmt: skip
            await service.bootstrap()
            client = InProcessClient(service)
            await install_crds(client, serves_beta=self._settings.serves_beta)
            controllers = Controllers(
                self._policies(), client, history,
                context=ProcessContext(self._clock, self._metrics, self._log),
                providers=lambda pool: provider_of(pool, self._clouds, nodes.cloud),
                connect=self._connect,
                notices=self._senders(), measured=lambda: list(looks_of(nodes.measured_pods())),
                audit_targets=self._targets(),
            )  # fmt: skip
            nodes: Nodes = Nodes(
                self._settings, client, self._clock, pods=controllers.mirrors.pods,
                nodes=controllers.mirrors.nodes, log=self._log,
            )  # fmt: skip
            self._contact, self.nodes_kept = nodes.contact, await nodes.shrink()
            lost: asyncio.Future[OSError] = asyncio.get_running_loop().create_future()
            store.on_failure(lost.set_result)
            supervisor = Supervisor(
                [
                    SupervisedService("store", lambda: _watch_store(lost), OnCrash.FATAL),
                    SupervisedService("api", service.run),
                    SupervisedService("past-versions", store.pack_past),
                    *nodes.services(),
                    *controllers.services(),
                    *self._binders(client, controllers.mirrors),
                ],
                clock=self._clock,
                rng=self._rng,
                log=self._log,
                crashed=self._metrics.crashed,
            )
            self._supervisor = supervisor
            if self._is_stopping:  # during the start
                supervisor.stop()
            parts = Parts(
                self._settings, client, store, history, self._metrics, supervisor, nodes.archive,
                lambda: controllers.decisions, lambda: controllers.answers,
            )  # fmt: skip
            extensions = Extensions(parts, self._clock)
            server = await stack.enter_async_context(
                self._listen(service, nodes, extensions, supervisor)
            )
            await self._supervise(supervisor, lambda: announce(server))
            if not lost.done():
                await self._shut_down(nodes)

    def _senders(self) -> NoticeSender:
        settings = self._settings.controllers.notices
        return notice_senders(settings, self._clock, runs_commands=True)

    def _targets(self) -> list[AuditTarget]:
        settings = self._settings.controllers
        return audit_targets(settings.audit, settings.notices)

    async def _connect(self, address: str, port: int, seconds: float) -> Contact:
        contact = self._contact
        return Contact.UNKNOWN if contact is None else await contact.connect(address, port, seconds)

    def _binders(self, client: InProcessClient, mirrors: SharedMirrors) -> list[SupervisedService]:
        """Return what elsewhere kube-controller-manager, kube-scheduler and provisioners do."""

        async def bind_volumes() -> None:
            binder = VolumeBinder(
                client, mirrors.pods, mirrors.nodes, clock=self._clock, rng=self._rng
            )
            await binder.run()

        async def allocate_devices() -> None:
            allocator = DeviceAllocator(
                client, mirrors.pods, mirrors.nodes, clock=self._clock, rng=self._rng
            )
            await allocator.run()

        return [
            SupervisedService("volume-binder", bind_volumes),
            SupervisedService("device-allocator", allocate_devices),
        ]

    def _policies(self) -> Policies:
        # Store and controllers end together, so no write arrives late after a start.
        checkpoints = str(self._settings.data / "checkpoints")
        jobs = JobsPolicy(checkpoint_root=checkpoints, late_pod_seconds=1.0)
        # The local node runs commands of this machine: this very program.
        program = (sys.executable, "-m", "fairlead")
        policies = self._settings.controllers.policies(replace(jobs, preflight_command=program))
        # Its one owner may run any program of this machine in a job.
        terms = msgspec.structs.replace(policies.notices.terms, has_commands=True)
        return replace(
            policies, health=replace(policies.health, test_command=program),
            notices=replace(policies.notices, terms=terms),
            terms=msgspec.structs.replace(policies.terms, notices=terms),
            use=UsePolicy(),  # its nodes say what members used
        )  # fmt: skip

    def _open_store(self, stack: AsyncExitStack) -> Store:
        store = Store.open(self._settings.data / STORE_DIRECTORY)
        stack.push_async_callback(store.close)
        store.on_compaction(self._compacted)
        return store

    def _compacted(self, error: OSError | MemoryError | None) -> None:
        self._metrics.compacted(is_failing=error is not None)
        if error is not None:
            self._log.error(
                "Data directory grows, its log cannot be compacted",
                directory=str(self._settings.data / STORE_DIRECTORY),
                error=f"{type(error).__name__}: {error}",
            )

    async def _shut_down(self, nodes: Nodes) -> None:
        if living := nodes.living():
            self._say(waiting_for(living))
        await nodes.shut_down(SHUTDOWN_GRACE_SECONDS)

    async def _supervise(self, supervisor: Supervisor, announce: Callable[[], None]) -> None:
        async def announce_when_ready() -> None:
            # Readiness is a question to many parts; during the start it is asked again and again.
            while not (health := supervisor.health()).ready:
                for service in health.services:
                    if service.crash_count >= START_CRASHES_MAX:
                        raise StartFailed(service.name, service.last_error)
                await asyncio.sleep(READY_LOOK_SECONDS)
            announce()

        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(announce_when_ready())
            try:
                await supervisor.run()
            finally:
                waiting.cancel()

    @asynccontextmanager
    async def _listen(
        self,
        service: ApiService,
        nodes: Nodes,
        extensions: Extensions,
        supervisor: Supervisor,
    ) -> AsyncGenerator[Server]:
        """Serve on the address; on a free port when a busy one was not asked for."""
        host, port = self._settings.host, self._settings.port
        if port and not self._settings.is_port_asked and not await _is_free(host, port):
            self._log.warning("Port is in use, taking a free one", port=port)
            port = 0
        tls = server_tls(self._settings.data, host, self._clock.now())
        self.authority = tls.authority

        def not_ready() -> tuple[str, ...]:
            return tuple(s.name for s in supervisor.health().services if not s.ready)

        async with AsyncExitStack() as stack:
            try:
                server = await stack.enter_async_context(
                    serve(
                        service, token=self.token, host=host, port=port,
                        extensions=extensions.handlers(), logs=nodes.archive,
                        streams=nodes.streams, metrics=nodes, not_ready=not_ready,
                        clock=self._clock, tls=tls.context, log=self._log,
                    )
                )  # fmt: skip
            except OSError as error:
                raise ListenFailed(host, port, error) from error
            service.serves_at(Address(server.host, server.port, tls.authority.decode()))
            if not self._settings.is_loopback:
                self._log.warning(OPEN_ADDRESS, host=host)
            yield server


def waiting_for(pods: tuple[str, ...]) -> str:
    """Return what to say of the processes that the end of the cluster waits for."""
    count = "1 member" if len(pods) == 1 else f"{len(pods)} members"
    shown = ", ".join(pods[:_PODS_SHOWN_MAX]) + (" ..." if len(pods) > _PODS_SHOWN_MAX else "")
    return (
        f"Stopping {count} on this machine, for {SHUTDOWN_GRACE_SECONDS:g}s at most: {shown}. "
        "Ctrl-C again ends the cluster at once and leaves them running until the next start."
    )


async def _watch_store(lost: asyncio.Future[OSError]) -> None:
    raise StoreLost(await asyncio.shield(lost))


async def _is_free(host: str, port: int) -> bool:
    try:
        listener = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise ListenFailed(host, port, error) from error
    listener.close()
    await listener.wait_closed()
    return True


async def install_crds(client: InProcessClient, *, serves_beta: bool = False) -> None:
    """Create our kinds' definitions, or bring those of an earlier version up to date."""
    manifests = crd.manifests()
    if serves_beta:
        manifests = [converted_definition(each, OWN_NAMESPACE, SERVICE) for each in manifests]
    for manifest in manifests:
        try:
            await client.create(CRDS, manifest)
        except AlreadyExists:
            name = str(manifest["metadata"]["name"])
            stored = await client.get(CRDS, name)
            patch = merge_diff({"spec": stored.spec}, {"spec": manifest["spec"]})
            if patch:
                await client.patch(CRDS, name, patch)
