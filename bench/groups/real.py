"""The embedded API beside a real kube-apiserver with etcd: same machine, same run, same clients.

What is compared is the CPU time of all server processes (etcd and kube-apiserver; the one embedded
process) by the number of requests, from the same raw clients over HTTP/1.1, as an ordinary user.
Rounds alternate between the servers, and medians are compared: load of others meets all of them.

A real server speaks TLS only, and that is part of what it costs. The embedded one is measured both
ways: plain, as `fairlead up` runs it on loopback (`real.*_ratio`), and with TLS and the same
certificates (`real.tls_*_ratio`). A ratio is the real server's cost by ours. The controllers that
the control plane brings for tests are ended first, so that nobody but the clients watches.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, SIGTERM

import msgspec
from tests.kubernetes.controlplane import (
    ControlPlane,
    NoControlPlane,
    control_plane,
    find_binaries,
)

from bench.cluster import JOBS, cluster, wait_until
from bench.cluster import PODS as ALL_PODS
from bench.exchange import NODES, PODS, Plan, Target
from bench.harness import Report
from bench.objects import encoded, gang_body
from bench.processes import Child, child, cpu_seconds, resident_bytes
from bench.server import TOKEN

CLIENTS, CONNECTIONS, ROUNDS = 2, 64, 3
NODE_COUNT, POD_COUNT = 7_500, 20_000
WRITES, GETS, LISTS = 2_000, 4_000, 6
WATCHERS, EVENTS_PER_SECOND, EVENTS = 100, 200, 300
GANGS, MEMBERS = 20, 1_000
SETTLE_SECONDS = 4.0
READY_SECONDS_MAX = 60.0


@dataclass
class Side:
    """A server under test: where it listens, and the processes that it consists of."""

    name: str
    target: Target
    pids: tuple[int, ...]
    #: CPU microseconds of each round, by operation.
    costs: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    def cpu(self) -> float:
        """Return the CPU seconds of all its processes so far."""
        return sum(cpu_seconds(pid) for pid in self.pids)

    def resident_megabytes(self) -> float:
        """Return the resident memory of all its processes."""
        return sum(resident_bytes(pid) for pid in self.pids) / 1e6

    def note(self, operation: str, seconds: float, count: int) -> None:
        """Keep the cost of one round."""
        self.costs.setdefault(operation, []).append(seconds / count * 1e6)

    def cost(self, operation: str) -> float:
        """Return the median CPU microseconds of one operation."""
        return statistics.median(self.costs[operation])


def run(report: Report) -> None:
    """Measure requests, watches and memory of both; one line where there is no real one."""
    try:
        find_binaries()
    except NoControlPlane as reason:
        report.skip("real", str(reason))
        return
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlead-bench-")))
        plane = _start_real(stack, root / "real")
        real = Side("real", _target_of(plane), tuple(pid for _, pid in plane.processes[:2]))
        plain, plain_child = _start_embedded(stack, root / "plain")
        tls, _ = _start_embedded(stack, root / "tls", plane)
        sides = (real, plain, tls)
        for side in sides:
            _send(side, "create-node", NODE_COUNT, tag="node")
            assert _count(side, NODES) == NODE_COUNT
        for turn in range(ROUNDS):
            for side in sides:
                _requests(side, turn)
        _report_costs(report, sides)
        kept = (real, plain)
        for side in kept:
            _send(side, "create-pod", POD_COUNT - ROUNDS * WRITES, tag="fill")
            assert _count(side, PODS) == POD_COUNT
        time.sleep(SETTLE_SECONDS)
        grown = {side.name: side.resident_megabytes() for side in kept}
        plain_child.end()
        fresh = {"real": _restart_real(stack, real, plane), "embedded": _restart_embedded(root)}
    with_controllers = _with_controllers()
    report.add("real.memory", grown["real"], "MB")
    report.add("real.memory_embedded", grown["embedded"], "MB")
    report.add("real.memory_ratio", grown["embedded"] / grown["real"], "x")
    report.add("real.memory_restarted", fresh["real"], "MB")
    report.add("real.memory_restarted_embedded", fresh["embedded"], "MB")
    report.add("real.memory_restarted_ratio", fresh["embedded"] / fresh["real"], "x")
    report.add("real.memory_controllers_embedded", with_controllers, "MB")
    report.add("real.memory_controllers_ratio", with_controllers / grown["real"], "x")


# --- the servers


def _start_real(stack: ExitStack, directory: Path) -> ControlPlane:
    """Start etcd and kube-apiserver, and end the controllers that come with them."""
    directory.mkdir()
    plane = stack.enter_context(control_plane(directory))
    others = [pid for name, pid in plane.processes if name not in ("etcd", "kube-apiserver")]
    for pid in others:
        os.kill(pid, SIGTERM)
    return plane


def _target_of(plane: ControlPlane) -> Target:
    return Target(int(plane.url.rpartition(":")[2]), plane.token, str(plane.ca_file))


class _Ending:
    """An embedded server that may be ended before its block is left."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._stack = ExitStack()
        self.child: Child = self._stack.enter_context(child(module, *arguments))

    def end(self) -> None:
        """End it in order; a second call does nothing."""
        self._stack.close()


def _start_embedded(
    stack: ExitStack, directory: Path, certificates: ControlPlane | None = None
) -> tuple[Side, _Ending]:
    directory.mkdir()
    extra = [] if certificates is None else [str(certificates.directory)]
    server = _Ending("bench.server", str(directory), *extra)
    stack.callback(server.end)
    ca_file = "" if certificates is None else str(certificates.ca_file)
    name = "embedded" if certificates is None else "tls"
    return Side(name, Target(server.child.read(), TOKEN, ca_file), (server.child.pid,)), server


def _restart_real(stack: ExitStack, side: Side, plane: ControlPlane) -> float:
    """Start both processes anew as they were started before; return their memory when settled."""
    commands = [
        Path(f"/proc/{pid}/cmdline").read_bytes().decode().strip("\0").split("\0")
        for pid in side.pids
    ]
    for pid in side.pids:
        os.kill(pid, SIGKILL)  # in order, the one would wait for the other; the log is on the disk
    for pid in side.pids:  # to the end of the last thread, and left for their parent to collect
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    started = tuple(stack.enter_context(_process(each, plane.directory)) for each in commands)
    again = Side(side.name, side.target, started)
    try:
        wait_until(lambda: _is_ready(again), seconds=READY_SECONDS_MAX)
    except AssertionError as late:
        late.add_note((plane.directory / "restarted.log").read_text()[-2_000:])
        raise
    assert _count(again, PODS) == POD_COUNT, "nothing is lost"
    time.sleep(SETTLE_SECONDS)
    return again.resident_megabytes()


@contextmanager
def _process(command: list[str], directory: Path) -> Generator[int]:
    with (directory / "restarted.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=directory)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(READY_SECONDS_MAX)


def _is_ready(side: Side) -> bool:
    try:
        return _get(side, "/readyz", seconds_max=1.0)[0] == 200
    except OSError:
        return False


def _restart_embedded(root: Path) -> float:
    with child("bench.server", str(root / "plain")) as server:
        side = Side("embedded", Target(server.read(), TOKEN), (server.pid,))
        assert _count(side, PODS) == POD_COUNT, "nothing is lost"
        time.sleep(SETTLE_SECONDS)
        return side.resident_megabytes()


def _with_controllers() -> float:
    """Return the memory of a whole `fairlead up` that runs as many pods, in gangs."""
    with cluster() as made:
        made.up("--nodes", str(NODE_COUNT))
        for turn in range(GANGS):
            made.call("POST", JOBS, encoded(gang_body(f"gang-{turn}", MEMBERS)))
        wait_until(lambda: made.count(ALL_PODS) == POD_COUNT, seconds=180, look_seconds=0.5)
        wait_until(lambda: _running_jobs(made.call) == GANGS, seconds=180, look_seconds=0.5)
        return resident_bytes(made.pid) / 1e6


def _running_jobs(get: Callable[[str, str], dict[str, list[dict[str, dict[str, str]]]]]) -> int:
    items = get("GET", JOBS)["items"]
    return sum(item.get("status", {}).get("state") == "Running" for item in items)


# --- the operations


def _requests(side: Side, turn: int) -> None:
    """Do one round of everything; pods are new in each, as a patch without effect is no write."""
    tag = f"pod{turn}"
    lists = LISTS if side.name == "real" else 2 * LISTS  # CPU time is counted in steps of 10 ms
    side.note("create", *_send(side, "create-pod", WRITES, tag=tag))
    side.note("get", *_send(side, "get-pod", GETS, tag=tag, serials=WRITES))
    side.note("status_patch", *_send(side, "patch-status", WRITES, tag=tag))
    side.note("list", *_send(side, "list-nodes", lists, tag=tag, connections=1))
    alone = _paced_patches(side, tag=tag, offset=1 << 20)
    watched = _watched_patches(side, tag=tag)
    side.note("watch", max(watched - alone, 1e-9), EVENTS * WATCHERS)
    side.note("watch_with_writes", watched, EVENTS * WATCHERS)


def _send(
    side: Side, kind: str, count: int, *, tag: str, connections: int = CONNECTIONS, serials: int = 0
) -> tuple[float, int]:
    """Send requests as fast as they are answered; return the servers' CPU seconds and how many."""
    clients = min(CLIENTS, connections)
    plans = [
        Plan(
            kind, side.target, count // clients, connections // clients, f"{tag}-{index}",
            serials=serials // clients,
        )
        for index in range(clients)
    ]  # fmt: skip
    return _measured(side, plans), count


def _measured(side: Side, plans: list[Plan]) -> float:
    """Let clients carry out the plans, and return the CPU seconds that the servers took."""
    with ExitStack() as stack:
        clients = [stack.enter_context(_client(plan)) for plan in plans]
        for client in clients:
            client.read()
        cpu = side.cpu()
        for client in clients:
            client.tell()
        results = [client.read() for client in clients]
        cpu = side.cpu() - cpu
    for plan, result in zip(plans, results, strict=True):
        assert not result["wrong"], f"{side.name}, {plan.kind}: {result['refusal']}"
    return cpu


def _client(plan: Plan) -> AbstractContextManager[Child]:
    return child("bench.exchange", msgspec.json.encode(plan).decode())


def _paced(side: Side, tag: str, offset: int) -> Plan:
    return Plan(
        "patch-status", side.target, EVENTS, 8, f"{tag}-0",
        per_second=EVENTS_PER_SECOND, offset=offset,
    )  # fmt: skip


def _paced_patches(side: Side, *, tag: str, offset: int) -> float:
    """Return the CPU seconds of the writes alone, at the rate at which they are watched next."""
    return _measured(side, [_paced(side, tag, offset)])


def _watched_patches(side: Side, *, tag: str) -> float:
    """Return the CPU seconds of the same writes with all watchers; each must see every event."""
    version = str(_get_json(side, f"{PODS}?limit=1")["metadata"]["resourceVersion"])
    plan = Plan("watch-pods", side.target, EVENTS, WATCHERS // CLIENTS, version=version)
    with ExitStack() as stack:
        watching = [stack.enter_context(_client(plan)) for _ in range(CLIENTS)]
        for client in watching:
            client.read()
        writing = stack.enter_context(_client(_paced(side, tag, 1 << 21)))
        writing.read()
        cpu = side.cpu()
        for client in (writing, *watching):
            client.tell()
        assert not writing.read()["wrong"], f"{side.name}: a patch was refused"
        seen = [client.read() for client in watching]
        cpu = side.cpu() - cpu
    complete = sum(result["complete"] for result in seen)
    assert complete == WATCHERS, f"{side.name}: {complete} of {WATCHERS} watchers saw all events"
    return cpu


def _report_costs(report: Report, sides: tuple[Side, Side, Side]) -> None:
    real, plain, tls = sides
    for operation in ("create", "get", "status_patch", "list", "watch", "watch_with_writes"):
        cost = real.cost(operation)
        report.add(f"real.{operation}", cost, "us CPU")
        report.add(f"real.{operation}_embedded", plain.cost(operation), "us CPU")
        report.add(f"real.{operation}_tls", tls.cost(operation), "us CPU")
        report.add(f"real.{operation}_ratio", cost / plain.cost(operation), "x")
        report.add(f"real.tls_{operation}_ratio", cost / tls.cost(operation), "x")


# --- single requests


def _get(side: Side, path: str, *, seconds_max: float = 10.0) -> tuple[int, bytes]:
    context = side.target.context
    made = (
        http.client.HTTPConnection("127.0.0.1", side.target.port, timeout=seconds_max)
        if context is None
        else http.client.HTTPSConnection(
            "127.0.0.1", side.target.port, context=context, timeout=seconds_max
        )
    )
    try:
        made.request("GET", path, headers={"Authorization": f"Bearer {side.target.token}"})
        answer = made.getresponse()
        return answer.status, answer.read()
    finally:
        made.close()


def _get_json(side: Side, path: str) -> dict[str, dict[str, int | str]]:
    status, raw = _get(side, path)
    assert status == 200, raw[:500]
    return json.loads(raw)


def _count(side: Side, path: str) -> int:
    """Return how many objects a list would have."""
    metadata = _get_json(side, f"{path}?limit=1")["metadata"]
    return 1 + int(metadata.get("remainingItemCount", 0))
