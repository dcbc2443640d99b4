"""What the outage tests share: a proxy that does harm, a client that counts, a patient witness.

`Proxy` stands between a client and the API server and passes bytes on; TLS goes through it
unbroken, since the certificate is valid for the address 127.0.0.1 whatever the port. It can cut all
connections, hold everything back (a server that accepts and hangs, or a line that went dead without
a word), and let go again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import msgspec
from tests.kubernetes.controlplane import PATIENCE_SECONDS, ControlPlane
from tests.kubernetes.operating import LOOK_SECONDS, WITNESSED, Seen, Witness, until

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.meta import ObjectMeta
from fairlead.api.resources import JOBS, PODS, Resource
from fairlead.api.status import ApiError, Expired, Forbidden, Unavailable
from fairlead.decide.verdict import ObjectKey
from fairlead.kube.client import HttpClient
from fairlead.kube.kubeconfig import Connection, load_connection
from fairlead.kube.protocol import HttpOptions
from fairlead.runtime.client import Client, EventType, WatchEvent
from fairlead.runtime.watching.mirror import Mirror

_CHUNK_BYTES = 1 << 16
_LINGER_SECONDS = 0.5


class _Named(msgspec.Struct):
    """Of an object that is created."""

    metadata: ObjectMeta


_NAMED = msgspec.json.Decoder(_Named)


class Proxy:
    """Passes TCP connections on to one address. Use `proxied`."""

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        #: Connections that were accepted, and cut.
        self.accepted_count = 0
        self.cut_count = 0
        self.refuses = False
        self._address = (host, port)
        #: For requests and for answers; connections keep those that they began with.
        self._gates = (asyncio.Event(), asyncio.Event())
        self._writers: dict[asyncio.StreamWriter, None] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.flow()

    def hold_requests(self) -> None:
        """From now on nothing that clients send arrives; it is kept, not lost."""
        self._gates[0].clear()

    def hold_answers(self) -> None:
        """From now on nothing that the server says arrives; it is kept, not lost."""
        self._gates[1].clear()

    def flow(self) -> None:
        """Let everything through again, what was kept first."""
        for gate in self._gates:
            gate.set()

    def deaden(self) -> None:
        """Let all connections that there are now go silent for ever; new ones are fine."""
        for gate in self._gates:
            gate.clear()
        self._gates = (asyncio.Event(), asyncio.Event())
        self.flow()

    @property
    def open_count(self) -> int:
        """How many connections there are, from end to end."""
        return len(self._writers) // 2

    def cut(self) -> None:
        """Break all connections, as if the machine between had died."""
        for writer in self._writers:
            self.cut_count += 1
            writer.transport.abort()
        self._writers.clear()

    async def close(self) -> None:
        """Break all connections and return when nothing of them is left."""
        self.cut()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection until either side ends it.

        A client that gives up closes its side; what it had sent is passed on all the same.
        """
        self.accepted_count += 1
        if self.refuses:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        try:
            to_reader, to_writer = await asyncio.open_connection(*self._address)
        except OSError:
            writer.transport.abort()
            return
        self._writers[writer] = self._writers[to_writer] = None
        requests, answers = self._gates
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pass_on(reader, to_writer, requests))
                group.create_task(_pass_on(to_reader, writer, answers))
        finally:
            for each in (writer, to_writer):
                self._writers.pop(each, None)
                each.transport.abort()


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flow: asyncio.Event
) -> None:
    try:
        while data := await reader.read(_CHUNK_BYTES):
            await flow.wait()
            writer.write(data)
            await writer.drain()
        # A server drops what it has not begun when it learns that nobody waits for it.
        await asyncio.sleep(_LINGER_SECONDS)
        writer.close()
    except (ConnectionError, OSError):
        writer.close()


@asynccontextmanager
async def proxied(plane: ControlPlane) -> AsyncIterator[Proxy]:
    """A proxy before the API server, for the length of the block."""
    place = urlsplit(plane.url)
    proxy = Proxy(place.hostname or "", place.port or 0)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()


@dataclass(slots=True)
class Sent:
    """One request: what it asked, when it went out, from which task, and how it went.

    The path of a create ends in the object's name.
    """

    verb: str
    path: str
    at: float
    task: str
    error: ApiError | None = None


@dataclass(slots=True)
class Counts:
    """Requests that a client has sent, in order. Verbs: list, watch, get, create, patch, delete."""

    sent: list[Sent] = field(default_factory=list)

    def note(self, verb: str, path: str) -> Sent:
        """Count one."""
        task = asyncio.current_task()
        name = "" if task is None else task.get_name()
        sent = Sent(verb, path, asyncio.get_running_loop().time(), name)
        self.sent.append(sent)
        return sent

    def of(self, verb: str) -> int:
        """Return how many of this verb."""
        return sum(1 for each in self.sent if each.verb == verb)

    def failed(self, kind: type[ApiError]) -> list[Sent]:
        """Return those that ended with this error."""
        return [each for each in self.sent if isinstance(each.error, kind)]

    @property
    def by_verb(self) -> dict[str, int]:
        """Return all counts."""
        return dict(Counter(each.verb for each in self.sent))


def client_of(
    plane: ControlPlane,
    proxy: Proxy | None = None,
    *,
    options: HttpOptions | None = None,
    change: Callable[[Connection], Connection] = lambda connection: connection,
) -> HttpClient:
    """Return a client as the tester, through the proxy where one is given."""
    connection = change(load_connection(path=plane.kubeconfig()))
    if proxy is not None:
        connection = replace(connection, server=f"https://127.0.0.1:{proxy.port}")
    return HttpClient(connection, options or HttpOptions())


def counted(client: HttpClient) -> Counts:
    """Count what the client sends from now on."""
    counts, request, stream = Counts(), client.request, client.stream
    verbs = {"POST": "create", "PATCH": "patch", "PUT": "replace", "DELETE": "delete"}

    async def counting_request(method: str, path: str, **more: Any) -> bytes:
        params = more.get("params") or {}
        if "continue" in params:  # the pages of a list are one
            return await request(method, path, **more)
        name = f"/{_NAMED.decode(more['body']).metadata.name}" if method == "POST" else ""
        verb = "list" if "limit" in params else verbs.get(method, "get")
        sent = counts.note(verb, path + name)
        try:
            return await request(method, path, **more)
        except ApiError as error:
            sent.error = error
            raise

    def counting_stream(method: str, path: str, **more: Any) -> Any:
        counts.note("watch", path)
        return stream(method, path, **more)

    client.request, client.stream = counting_request, counting_stream
    return counts


def patient(client: HttpClient) -> HttpClient:
    """Let the client take a server that knows no roles yet for one that gives no answer.

    For virtual nodes: kubelets try again, whatever they are told.
    """
    request = client.request

    async def asking(method: str, path: str, **more: Any) -> bytes:
        try:
            return await request(method, path, **more)
        except Forbidden as error:
            raise Unavailable(error.message) from error

    client.request = asking
    return client


async def eventually(
    condition: Callable[[], Coroutine[Any, Any, bool]], seconds_max: float = PATIENCE_SECONDS
) -> None:
    """Return once the condition holds; a server that gives no answer is asked again."""

    async def holds() -> bool:
        try:
            return await condition()
        except ApiError:
            return False

    await until(holds, seconds_max)


async def all_jobs(client: Client) -> list[Job]:
    """Return all jobs, once the server answers."""
    found: list[Job] = []

    async def answered() -> bool:
        found[:] = (await client.list(JOBS)).items
        return True

    await eventually(answered)
    return found


async def equal_to_the_server(mirrors: dict[str, Mirror[Any]], client: Client) -> None:
    """Return once each mirror holds what a fresh list does, object by object and version by
    version.
    """
    for mirror in mirrors.values():

        async def is_equal(mirror: Mirror[Any] = mirror) -> bool:
            now = await client.list(mirror.resource, label_selector=mirror.options.label_selector)
            return versions(mirror.items()) == versions(now.items)

        await eventually(is_equal)


def versions(objects: Any) -> dict[str, str]:
    """Return the version of each object by its uid."""
    return {each.metadata.uid: each.metadata.resource_version for each in objects}


class PatientWitness(Witness):
    """A witness that outlives the server: what it missed it takes from a list.

    While the server is down nothing is committed. What was committed in the last moments before,
    and has been replaced since, is missing; each object's last version is not.
    """

    async def watch(self, resource: Resource[Any], version: str) -> None:
        """Record until cancelled, whatever the server does."""
        known: dict[ObjectKey, Any] = {}
        while True:
            try:
                async for event in self.client.watch(
                    resource, resource_version=version, timeout_seconds=60
                ):
                    version = event.resource_version
                    self.progress[resource.name] = int(version)
                    if event.object is not None:
                        self._note(known, resource, event)
            except Expired:
                version = await self._catch_up(known, resource)
            except ApiError:
                await asyncio.sleep(4 * LOOK_SECONDS)

    def _note(
        self, known: dict[ObjectKey, Any], resource: Resource[Any], event: WatchEvent[Any]
    ) -> None:
        known[event.object.metadata.key] = event.object
        if event.type is EventType.DELETED:
            del known[event.object.metadata.key]
        self.seen.append(Seen(int(event.resource_version), resource, event.type, event.object))

    async def _catch_up(self, known: dict[ObjectKey, Any], resource: Resource[Any]) -> str:
        listed = await self.client.list(resource)
        now = {obj.metadata.key: obj for obj in listed.items}
        for key in [key for key in known if key not in now]:
            event = WatchEvent(EventType.DELETED, known[key], listed.resource_version)
            self._note(known, resource, event)
        for key, obj in now.items():
            before = known.get(key)
            if before is None or before.metadata.version < obj.metadata.version:
                event = WatchEvent(EventType.MODIFIED, obj, obj.metadata.resource_version)
                self._note(known, resource, event)
        self.progress[resource.name] = int(listed.resource_version)
        return listed.resource_version


@asynccontextmanager
async def patiently_witnessed(client: Client) -> AsyncIterator[Witness]:
    """As `witnessed`, for servers that go down meanwhile."""
    witness = PatientWitness(client)
    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[None]] = []
        for resource in WITNESSED:
            version = (await client.list(resource)).resource_version
            tasks.append(group.create_task(witness.watch(resource, version)))
        yield witness
        await witness.caught_up()
        for task in tasks:
            task.cancel()
    witness.judge()


async def each_member_has_its_pod(client: Client, members: int) -> None:
    """Nothing is lost and nothing doubled: each member has its one pod, on its place."""
    pods = (await client.list(PODS, label_selector=names.JOB_UID)).items
    jobs = await all_jobs(client)
    ends = [(a.reason, a.message) for job in jobs for a in job.status.attempts if a.reason]
    assert ends == []
    places = {
        (job.metadata.name, index): node
        for job in jobs
        if job.status.placement is not None
        for index, node in enumerate(job.status.placement.roles[0].nodes)
    }
    found = [
        (pod.metadata.labels[names.JOB_NAME], int(pod.metadata.labels[names.INDEX])) for pod in pods
    ]
    assert len(found) == len(set(found)) == members
    assert {key: pod.spec.node_name for key, pod in zip(found, pods, strict=True)} == places
