"""An array beside an Indexed Job on a real server: what each element costs it.

The same pods of one GPU and one second, 100 at a time, as a JobArray of the operator and as a
`batch/v1` Job with `completionMode: Indexed` of kube-controller-manager and kube-scheduler; from
their creation until no object of them is left. Both run on one server with virtual nodes, one after
the other, and the server's audit log says who asked for what. What nodes and users ask for is not
counted: it is the same for both. It is part of the CPU time of the servers and of what etcd writes.
Then elements of both run for long, and what is asked for meanwhile is the cost of waiting. The
table goes to `bench/out/real_arrays.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import urllib.request
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from tests.kubernetes.kubelet import kubelet
from tests.kubernetes.operating import virtual_nodes

from bench.harness import OUT, Report
from bench.objects import gang_body
from bench.processes import cpu_seconds
from bench.real.ground import SECONDS_MAX, USER_AGENT, Ground, on_ground
from bench.real.operator import operator
from fairlead.api.resources import JOB_ARRAYS, JOBS, PODS, Resource
from fairlead.kube.client import HttpClient
from fairlead.kube.kubeconfig import load_connection
from fairlead.kube.protocol import HttpOptions
from fairlead.runtime.client import Propagation

ELEMENTS, AT_ONCE, NODES = 500, 100, 25
IDLE_SECONDS = 60.0
#: The audit log is written behind the answers, and the last watchers see the end a little later.
REST_SECONDS = 5.0
LOOK_SECONDS = 0.5
NODES_AGENT = "bench-nodes"
#: What processes ask for whatever they run: their leases, and which kinds there are.
_OF_PROCESS = ("leases", "")
SERVERS = ("etcd", "kube-apiserver")
WRITTEN = "etcd_disk_wal_write_bytes_total"


class _Thing(msgspec.Struct, frozen=True):
    """An Indexed Job."""

    metadata: dict[str, Any]
    status: dict[str, Any] = {}


INDEXED = Resource("batch", "v1", "jobs", "Job", _Thing)
KINDS: tuple[Resource[Any], ...] = (INDEXED, JOB_ARRAYS, JOBS, PODS)
#: Who, verb and kind.
Asked = tuple[str, str, str]


class _Reference(msgspec.Struct):
    resource: str = ""
    subresource: str = ""


class _Event(msgspec.Struct, rename="camel"):
    stage: str = ""
    verb: str = ""
    user_agent: str = ""
    object_ref: _Reference | None = None

    @property
    def asked(self) -> Asked:
        """Return what it counts as; the controllers of kube-controller-manager by their names."""
        program, _, rest = self.user_agent.partition("/")
        account = rest.rpartition(":")[2] if "system:serviceaccount:" in rest else ""
        of = self.object_ref or _Reference()
        kind = f"{of.resource}/{of.subresource}" if of.subresource else of.resource
        return (account or program, self.verb, kind)


_DECODER = msgspec.json.Decoder(_Event)


@dataclass
class _Window:
    """What was used from one moment to another."""

    asked: Counter[Asked] = field(default_factory=Counter[Asked])
    server_seconds: float = 0.0
    own_seconds: float = 0.0
    written_bytes: float = 0.0


@dataclass(frozen=True)
class _Way:
    """How the elements are run. `pids` are the processes that do it."""

    name: str
    resource: Resource[Any]
    pids: tuple[int, ...]
    body: Callable[[str, int], dict[str, Any]]
    has_ended: Callable[[Any], bool]


def run(report: Report) -> None:
    """Measure both; one line where there is no server."""
    windows: dict[tuple[str, str], _Window] = {}

    async def measure(ground: Ground) -> None:
        async with _nodes(ground):
            pids = (ground.pids["kube-scheduler"], ground.pids["kube-controller-manager"])
            indexed = _Way("indexed", INDEXED, pids, _indexed_body, _is_complete)
            await _measure(ground, indexed, windows)
            async with operator(ground.plane.kubeconfig()) as ours:
                pids = (ours.pid, ground.pids["kube-controller-manager"])
                array = _Way("array", JOB_ARRAYS, pids, _array_body, lambda a: a.is_finished)
                await _measure(ground, array, windows)

    on_ground(
        report, "real_arrays", measure, scheduler=True, controllers=["job-controller"],
        is_audited=True, flags=["--kubelet-preferred-address-types=InternalIP"],
    )  # fmt: skip
    if not windows:
        return
    text = _table(windows)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    (OUT.parent / "real_arrays.md").write_text(text)
    print(text)
    _report(report, windows)


def _report(report: Report, windows: dict[tuple[str, str], _Window]) -> None:
    array, indexed = windows["array", "run"], windows["indexed", "run"]
    for window, name in ((array, "array"), (indexed, "indexed")):
        requests = window.asked.total() / ELEMENTS
        report.add(f"real_arrays.{name}_requests", requests, "per element")
    for name, ours, theirs in (
        ("requests", array.asked.total(), indexed.asked.total()),
        ("server", array.server_seconds, indexed.server_seconds),
        ("controllers", array.own_seconds, indexed.own_seconds),
        ("written", array.written_bytes, indexed.written_bytes),
    ):
        report.add(f"real_arrays.{name}_ratio", ours / theirs, "x Indexed")
    idle = windows["array", "idle"].asked.total() * 60 / IDLE_SECONDS
    report.add("real_arrays.idle_requests", idle, "1/min")


@contextlib.asynccontextmanager
async def _nodes(ground: Ground) -> AsyncGenerator[None]:
    """Virtual nodes, which ask by a client of their own; what their pods wrote can be read."""
    options = HttpOptions(user_agent=NODES_AGENT)
    client = HttpClient(load_connection(path=ground.plane.kubeconfig()), options)
    try:
        with kubelet(ground.plane) as served:
            for index in range(ELEMENTS):
                served.logs[f"short-{index}-1-worker-0"] = b"done\n"
            async with virtual_nodes(client, NODES):
                await served.serve_nodes(client)
                yield
    finally:
        await client.close()


async def _measure(ground: Ground, way: _Way, windows: dict[tuple[str, str], _Window]) -> None:
    client = ground.client

    async def to_the_end() -> None:
        await client.create(way.resource, way.body("short", 1), namespace="default")
        await _until(lambda: _ended(ground, way))
        await client.delete(
            way.resource, "short", namespace="default", propagation=Propagation.BACKGROUND
        )
        await _until(lambda: _is_empty(ground))

    async def idle() -> None:
        await asyncio.sleep(IDLE_SECONDS)

    windows[way.name, "run"] = await _window(ground, way, to_the_end)
    await client.create(way.resource, way.body("long", 86_400), namespace="default")
    await _until(lambda: _run_at_once(ground))
    await asyncio.sleep(REST_SECONDS)
    windows[way.name, "idle"] = await _window(ground, way, idle)
    await client.delete(
        way.resource, "long", namespace="default", propagation=Propagation.BACKGROUND
    )
    await _until(lambda: _is_empty(ground))


async def _window(ground: Ground, way: _Way, work: Callable[[], Awaitable[None]]) -> _Window:
    """Return what was used while `work` was done."""
    servers = [ground.pids[name] for name in SERVERS]

    def used() -> tuple[float, float, float]:
        written = _metric(ground.plane.etcd_url, WRITTEN)
        return sum(map(cpu_seconds, servers)), sum(map(cpu_seconds, way.pids)), written

    log = ground.audit_log
    begin, before = log.stat().st_size, used()
    await work()
    await asyncio.sleep(REST_SECONDS)
    after = used()
    lines = log.read_bytes()[begin:].splitlines()
    events = [_DECODER.decode(line) for line in lines if line.endswith(b"}")]
    asked = Counter(
        event.asked for event in events
        if event.stage == "ResponseComplete" and event.verb != "watch"
    )  # fmt: skip
    counted = Counter({
        key: count for key, count in asked.items()
        if key[0] not in (NODES_AGENT, USER_AGENT, "kube-apiserver") and key[2] not in _OF_PROCESS
    })  # fmt: skip
    return _Window(counted, *(b - a for a, b in zip(before, after, strict=True)))


def _metric(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    raise AssertionError(f"etcd has no {name}")


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not await condition():  # noqa: ASYNC110 -- other processes do the work
            await asyncio.sleep(LOOK_SECONDS)


async def _ended(ground: Ground, way: _Way) -> bool:
    return way.has_ended(await ground.client.get(way.resource, "short", namespace="default"))


async def _is_empty(ground: Ground) -> bool:
    lists = [await ground.client.list(each) for each in KINDS]
    return not any(each.items for each in lists)


async def _run_at_once(ground: Ground) -> bool:
    pods = (await ground.client.list(PODS)).items
    return sum(pod.status.phase == "Running" for pod in pods) == AT_ONCE


def _is_complete(job: _Thing) -> bool:
    return any(each["type"] == "Complete" for each in job.status.get("conditions", ()))


def _array_body(name: str, seconds: int) -> dict[str, Any]:
    template = gang_body("x", 1, run_seconds=seconds)["spec"]
    spec = {"indices": f"0-{ELEMENTS - 1}", "parallelism": AT_ONCE, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


def _indexed_body(name: str, seconds: int) -> dict[str, Any]:
    (role,) = gang_body("x", 1, run_seconds=seconds)["spec"]["roles"]
    spec = {
        "completionMode": "Indexed", "completions": ELEMENTS, "parallelism": AT_ONCE,
        "template": role["template"],
    }  # fmt: skip
    return {"metadata": {"name": name}, "spec": spec}


def _table(windows: dict[tuple[str, str], _Window]) -> str:
    """Return what was asked for as one Markdown table: per element, or in a minute of waiting."""
    lines = ["| Way | When | Who | Asks | Requests |", "| --- | --- | --- | --- | --- |"]
    for (way, when), window in windows.items():
        divisor, per = (ELEMENTS, "element") if when == "run" else (IDLE_SECONDS / 60, "minute")
        for (who, verb, kind), count in sorted(window.asked.items()):
            cells = f"{who} | {verb} {kind} | {count / divisor:.3g}"
            lines.append(f"| {way} | {when}, per {per} | {cells} |")
        total = f"{window.asked.total() / divisor:.3g}"
        lines.append(f"| {way} | {when}, per {per} | all | | {total} |")
        used = f"servers {window.server_seconds:.2f}, controllers {window.own_seconds:.2f}"
        lines.append(f"| {way} | {when} | CPU seconds | {used} | |")
        lines.append(f"| {way} | {when} | etcd writes | {window.written_bytes / 1e6:.2f} MB | |")
    return "\n".join(lines) + "\n"
