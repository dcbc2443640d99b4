"""Incidents of large clusters, rebuilt in small on a real control plane: the doctor names them.

In each, the first finding of the report is the incident, with who or what causes it. Every "node"
that polls LIST events and a webhook that fails closed are in test_doctor.py, an explosion of
metrics is in test_prometheus.py.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import struct
import subprocess
import urllib.parse
from collections.abc import Generator, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.cli_world import Shell
from tests.kubernetes.audited import (
    agent,
    answered,
    audited_plane,
    create,
    make_account,
    may_read_all,
    size,
    written_since,
)
from tests.kubernetes.controlplane import (
    ControlPlane,
    NoControlPlane,
    find_binaries,
    free_ports,
)
from tests.kubernetes.operating import http_client, until
from tests.kubernetes.own_plane import own_plane

from fairlead.api.resources import Resource
from fairlead.api.status import ApiError
from fairlead.kube.client import HttpClient

pytestmark = pytest.mark.kubernetes
QUOTA_BYTES = 56 << 20
#: Of each fdatasync of the slow disk; the limit of ETCD-01 is 100 ms.
SYNC_DELAY_MICROSECONDS = 130_000
ENDPOINTS: Resource[Any] = Resource("", "v1", "endpoints", "Endpoints", dict)
FLOW = "/apis/flowcontrol.apiserver.k8s.io/v1"


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, Path]]:
    yield from audited_plane(tmp_path_factory)


@pytest.fixture
def small_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory, etcd_flags=[f"--quota-backend-bytes={QUOTA_BYTES}"])


@pytest.fixture
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory, syncs=True)


async def report_of(
    plane: ControlPlane, directory: Path, *arguments: str, interval: float = 1
) -> dict[str, Any]:
    """Return the report of a full run of the doctor."""
    shell = Shell(directory)
    shell.environment["FAIRLEAD_KUBECONFIG"] = str(plane.kubeconfig())
    words = ("doctor", "-o", "json", "--interval", str(interval), *arguments)
    return json.loads((await asyncio.to_thread(shell.run, *words, code=None)).out)


def ids(report: dict[str, Any]) -> list[str]:
    return [each["id"] for each in report["findings"]]


def etcd_page(plane: ControlPlane) -> tuple[str, str]:
    return ("--metrics", f"etcd={plane.etcd_url}/metrics")


async def write(client: HttpClient, name: str, kilobytes: int) -> None:
    body = {"metadata": {"name": name}, "data": {"text": "x" * kilobytes * 1000}}
    await create(client, "/api/v1/namespaces/default/configmaps", body)


async def test_an_etcd_that_is_full_and_alarmed(small_etcd: ControlPlane, tmp_path: Path) -> None:
    client = http_client(small_etcd)
    refusal = ""
    for number in range(100):
        try:
            await write(client, f"large-{number}", 900)
        except ApiError as error:
            refusal = str(error)
            break
    await client.close()
    assert "database space exceeded" in refusal
    report = await report_of(small_etcd, tmp_path, *etcd_page(small_etcd))
    instance = urllib.parse.urlsplit(small_etcd.etcd_url).netloc
    worst = [(each["id"], each["subject"], each["severity"]) for each in report["findings"][:2]]
    assert worst == [("ETCD-04", instance, "critical"), ("ETCD-08", instance, "critical")]


@contextmanager
def slow_disk(plane: ControlPlane) -> Generator[None]:
    """Delay each fdatasync of etcd while the block runs, by a tracer: its disk seems slow."""
    command = [
        "strace", "-f", "-qq", "--seccomp-bpf", "-e", "trace=fdatasync", "-e",
        f"inject=fdatasync:delay_exit={SYNC_DELAY_MICROSECONDS}", "-o", "/dev/null", "-p",
        str(dict(plane.processes)["etcd"]),
    ]  # fmt: skip
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield
        if tracer.poll() is not None:
            assert tracer.stderr is not None
            pytest.skip(f"etcd cannot be traced here: {tracer.stderr.read()}")
    finally:
        tracer.terminate()
        tracer.wait()


@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace to slow a disk down with")
async def test_an_etcd_on_a_slow_disk(plain: ControlPlane, tmp_path: Path) -> None:
    client = http_client(plain)

    async def load(worker: int) -> None:
        for number in range(10_000):
            await write(client, f"w{worker}-{number}", 1)

    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(load(worker)) for worker in range(4)]
        with slow_disk(plain):
            await asyncio.sleep(2)
            report = await report_of(plain, tmp_path, *etcd_page(plain), interval=10)
        for each in workers:
            each.cancel()
    await client.close()
    worst = report["findings"][0]
    assert (worst["id"], worst["severity"]) == ("ETCD-01", "critical"), ids(report)
    assert worst["subject"] == urllib.parse.urlsplit(plain.etcd_url).netloc


async def test_clients_that_watch_endpoints(
    audited: tuple[ControlPlane, Path], tmp_path: Path
) -> None:
    plane, log = audited
    client = http_client(plane)
    await may_read_all(client, "mesh")
    await make_account(client, "mesh", "proxy")
    offset = size(log)
    watching: list[asyncio.Task[None]] = []

    async def watch(proxy: HttpClient) -> None:
        while True:
            async for _ in proxy.watch(ENDPOINTS.only_metadata, resource_version="0"):
                pass

    async with AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        for number in range(10):
            node = f"n{number:05d}"
            await create(client, "/api/v1/nodes", {"metadata": {"name": node}})
            proxy = await agent(plane, client, "mesh", "proxy", node=node)
            stack.push_async_callback(proxy.close)
            group = await stack.enter_async_context(asyncio.TaskGroup())
            watching.append(group.create_task(watch(proxy)))

        async def watches() -> bool:
            page = (await client.request("GET", "/metrics")).decode()
            rows = [each for each in page.splitlines()
                    if each.startswith("apiserver_longrunning_requests{")
                    and 'resource="endpoints"' in each]  # fmt: skip
            return sum(float(each.rpartition(" ")[2]) for each in rows) >= 10

        await until(watches)
        open_ = await report_of(plane, tmp_path)
        for each in watching:
            each.cancel()
    assert ids(open_)[0] == "NET-09", ids(open_)
    part = tmp_path / "part.log"
    await written_since(
        log, offset, part, lambda events: len(answered(events, account="mesh:proxy")) >= 10
    )
    ended = await report_of(plane, tmp_path, "--audit", str(part), "--only", "AUD-*")
    worst = ended["findings"][0]
    assert (worst["id"], worst["severity"]) == ("AUD-18", "critical"), ids(ended)
    assert worst["subject"].startswith("mesh/proxy: watch endpoints")


async def test_events_that_share_the_main_etcd_of_a_large_cluster(
    plain: ControlPlane, tmp_path: Path
) -> None:
    client = http_client(plain)
    container = {"name": "kube-apiserver", "image": "apiserver",
                 "command": list(dict(plain.commands)["kube-apiserver"])}  # fmt: skip
    await create(client, "/api/v1/namespaces/kube-system/pods", {
        "metadata": {"name": "kube-apiserver-0", "labels": {"tier": "control-plane"}},
        "spec": {"containers": [container]},
    })  # fmt: skip
    small = await report_of(plain, tmp_path)
    assert "ETCD-16" in small["passed"]
    for number in range(501):
        await create(client, "/api/v1/nodes", {"metadata": {"name": f"n{number:05d}"}})
    await client.close()
    large = await report_of(plain, tmp_path)
    assert large["nodes"] == 501
    (found,) = [each for each in large["findings"] if each["id"] == "ETCD-16"]
    assert (found["subject"], found["severity"]) == ("events", "warning")
    larger = await report_of(plain, tmp_path, "--nodes", "3000")
    assert larger["findings"][0]["id"] == "ETCD-16"
    assert larger["findings"][0]["severity"] == "critical"


async def test_a_caller_that_starves_its_priority_level(
    audited: tuple[ControlPlane, Path], tmp_path: Path
) -> None:
    plane, log = audited
    client = http_client(plane)
    await may_read_all(client, "research")
    queuing = {"queues": 1, "handSize": 1, "queueLengthLimit": 5}
    limited = {"nominalConcurrencyShares": 1, "lendablePercent": 0, "borrowingLimitPercent": 0,
               "limitResponse": {"type": "Queue", "queuing": queuing}}  # fmt: skip
    await create(client, f"{FLOW}/prioritylevelconfigurations", {
        "metadata": {"name": "research"}, "spec": {"type": "Limited", "limited": limited},
    })  # fmt: skip
    rule = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": True,
            "namespaces": ["*"]}  # fmt: skip
    subject = {"kind": "Group", "group": {"name": "system:serviceaccounts:research"}}
    await create(client, f"{FLOW}/flowschemas", {
        "metadata": {"name": "research"},
        "spec": {"matchingPrecedence": 100, "priorityLevelConfiguration": {"name": "research"},
                 "rules": [{"subjects": [subject], "resourceRules": [rule]}]},
    })  # fmt: skip
    for number in range(400):
        await write(client, f"data-{number}", 20)
    callers: dict[str, HttpClient] = {}
    for name in ("exporter", "trainer"):
        await make_account(client, "research", name)
        callers[name] = await agent(plane, client, "research", name)

    async def send(name: str, path: str) -> None:
        while True:
            with suppress(ApiError):
                await callers[name].request("GET", path)

    offset = size(log)
    async with asyncio.TaskGroup() as group:
        hogs = [group.create_task(send("exporter", "/api/v1/configmaps")) for _ in range(30)]
        victims = [group.create_task(send("trainer", "/api/v1/namespaces/default"))
                   for _ in range(4)]  # fmt: skip
        metrics = await report_of(plane, tmp_path, interval=4)
        for each in (*hogs, *victims):
            each.cancel()
    for each in (client, *callers.values()):
        await each.close()
    assert ids(metrics)[0] == "API-01", ids(metrics)
    part = tmp_path / "part.log"
    await written_since(
        log, offset, part, lambda events: bool(answered(events, account="research:trainer"))
    )
    report = await report_of(plane, tmp_path, "--audit", str(part), "--only", "AUD-13")
    found = {each["subject"].partition(":")[0]: each for each in report["findings"]}
    assert found["research/trainer"]["severity"] == "critical"
    assert "most seats: research/exporter: list configmaps" in found["research/trainer"]["evidence"]


def question(name: str) -> bytes:
    """Return a look-up of the address of a name (RFC 1035)."""
    labels = b"".join(bytes([len(each)]) + each.encode() for each in name.split("."))
    return struct.pack("!6H", 1, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", 1, 1)


def look_up(port: int, count: int) -> None:
    """Send look-ups one after the other to a server on loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.settimeout(5)
        sender.connect(("127.0.0.1", port))
        for number in range(count):
            sender.send(question(f"name-{number}.example.com"))
            with suppress(OSError):
                sender.recv(512)


async def listens(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    return True


@contextmanager
def dns_replicas(
    directory: Path, count: int, *, asks_first: bool = False
) -> Generator[list[tuple[int, str]]]:
    """Run CoreDNS `count` times; yield the port of each and where its metrics are.

    With `asks_first`, the others ask the first one instead of answering themselves.
    """
    try:
        binary = find_binaries() / "coredns"
    except NoControlPlane as reason:
        pytest.skip(f"no CoreDNS: {reason}")
    if not binary.exists():
        pytest.skip("CoreDNS not built: make kubernetes")
    ports = free_ports(2 * count)
    found: list[tuple[int, str]] = []
    with ExitStack() as stack:
        for number in range(count):
            port, metrics = ports[2 * number : 2 * number + 2]
            corefile = directory / f"Corefile-{number}"
            answers = '  template IN A {\n    answer "{{ .Name }} 60 IN A 10.0.0.1"\n  }\n'
            if asks_first and number:
                answers = f"  forward . 127.0.0.1:{ports[0]}\n"
            corefile.write_text(
                f".:{port} {{\n  bind 127.0.0.1\n  prometheus 127.0.0.1:{metrics}\n{answers}}}\n"
            )
            log = stack.enter_context((directory / f"coredns-{number}.log").open("wb"))
            process = subprocess.Popen([binary, "-conf", corefile], stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            found.append((port, f"127.0.0.1:{metrics}"))
        yield found


async def test_a_dns_replica_that_gets_most_of_the_look_ups(
    plain: ControlPlane, tmp_path: Path
) -> None:
    with dns_replicas(tmp_path, 3) as replicas:
        for _, address in replicas:
            await until(lambda address=address: listens(address))
        pages = [word for _, address in replicas
                 for word in ("--metrics", f"coredns=http://{address}/metrics")]  # fmt: skip
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(report_of(plain, tmp_path, *pages, interval=4))
            hot, *others = (port for port, _ in replicas)
            while not reading.done():
                group.create_task(asyncio.to_thread(look_up, others[0], 5))
                await asyncio.to_thread(look_up, hot, 300)
    report = reading.result()
    worst = report["findings"][0]
    assert worst["id"] in ("DNS-05", "DNS-14"), ids(report)  # a fast machine exceeds both
    (uneven,) = [each for each in report["findings"] if each["id"] == "DNS-14"]
    assert worst["subject"] == uneven["subject"] == replicas[0][1]


async def test_a_dns_replica_that_asks_upstream_almost_as_often_as_clouds_allow(
    plain: ControlPlane, tmp_path: Path
) -> None:
    with dns_replicas(tmp_path, 2, asks_first=True) as replicas:
        for _, address in replicas:
            await until(lambda address=address: listens(address))
        (_, upstream), (port, address) = replicas
        pages = [word for each in (upstream, address)
                 for word in ("--metrics", f"coredns=http://{each}/metrics")]  # fmt: skip
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(
                report_of(plain, tmp_path, *pages, "--only", "DNS-09", interval=4)
            )
            while not reading.done():
                await asyncio.to_thread(look_up, port, 300)
    (found,) = reading.result()["findings"]
    assert (found["id"], found["subject"]) == ("DNS-09", address)
    assert found["value"] > 140
