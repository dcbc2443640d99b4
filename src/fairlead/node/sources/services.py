"""The kubelet and the container runtime: whether they answer, and how often they start again.

The kubelet is asked for its own health. The runtime is greeted as by any client of gRPC (HTTP/2's
preface) and has to greet back: a daemon that hangs still takes connections, as the kernel does that
for it. Restarts are seen in /proc, as another process of the name that process 1 has started.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec

from fairlead.model.health.faults import (
    Action,
    Moment,
    Observation,
    Severity,
    identity,
    observed,
    steady,
)
from fairlead.node.exports import fetch_page
from fairlead.node.running.host import Host, whole_number
from fairlead.node.running.probes import Answer, Probes, Strikes, failures
from fairlead.node.settings import AgentSettings
from fairlead.node.source import Judged, SignalSource, skipped

SOURCE = "services"
KUBELET, RUNTIME, RESTARTS = "kubelet", "container-runtime", "service-restarts"
#: As node-problem-detector counts restarts.
WINDOW_SECONDS = 1200.0
_PERIOD_SECONDS = 30
_GREET_SECONDS = 5.0
#: A service that starts again is away for some seconds.
_STRIKES = 3
_STARTS_MAX = 64
#: The parent of services.
_INIT = "1"
#: RFC 9113: the preface and a frame SETTINGS without any; the answer begins with such a frame.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_HEAD_BYTES, _SETTINGS = 9, 4


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """What came of the kubelet and the runtime, and which process each name is (pid@start)."""

    answers: dict[str, Answer]
    processes: dict[str, str]


class ServiceMemory(msgspec.Struct, frozen=True):
    """Strikes; the process of each name that was seen last, and the uptimes of restarts."""

    strikes: Strikes = Strikes()
    processes: dict[str, str] = {}
    restarts: dict[str, tuple[float, ...]] = {}


def greet(path: str) -> None:
    """Greet a server of gRPC on a socket; OSError where it does not greet back."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_GREET_SECONDS)
        connection.connect(path)
        connection.sendall(_GREETING)
        head = bytearray()
        while len(head) < _HEAD_BYTES and (more := connection.recv(_HEAD_BYTES - len(head))):
            head += more
    if len(head) < _HEAD_BYTES or head[3] != _SETTINGS:
        raise OSError("what listens there does not speak HTTP/2")


class ServiceReader:
    """Asks the services. Used by one thread."""

    def __init__(self, host: Host, settings: AgentSettings) -> None:
        self._host, self._settings = host, settings.services
        self._probes = Probes(lambda: host.now().uptime_seconds, _GREET_SECONDS + 1.0)

    def read(self) -> ServiceFacts:
        """Return what came of both, and the processes; OSError."""
        calls: dict[str, Callable[[], object]] = {}
        if url := self._settings.kubelet:
            calls[KUBELET] = partial(fetch_page, url)
        if path := self._settings.runtime_socket:
            calls[RUNTIME] = partial(greet, str(self._host.path(path)))
        return ServiceFacts(self._probes.look(calls), self._processes())

    def _processes(self) -> dict[str, str]:
        """Return the oldest service of each name that was asked for."""
        found: dict[str, tuple[int, str]] = {}
        for number in filter(str.isdecimal, self._host.names("proc")):
            name, started_at = self._service(number)
            if name in self._settings.processes:
                key = started_at, f"{number}@{started_at}"
                found[name] = min(key, found.get(name, key))
        return {name: key for name, (_, key) in sorted(found.items())}

    def _service(self, number: str) -> tuple[str, int]:
        """Return the name of a service and its start, in ticks since boot; "" of what is none."""
        try:
            stat = self._host.text("proc", number, "stat")
        except OSError:  # it has ended
            return "", 0
        name, _, rest = stat.partition("(")[2].rpartition(") ")
        fields = rest.split()
        started_at = whole_number(fields[19]) if len(fields) > 19 else None
        is_service = started_at is not None and fields[1] == _INIT
        return (name if is_service else ""), started_at or 0


def judge(
    facts: ServiceFacts, memory: ServiceMemory, at: Moment, *, settings: AgentSettings
) -> Judged[ServiceMemory]:
    """Give a fault for a service that does not answer, and for one that starts again and again."""
    limits, stable = settings.services, settings.stable_seconds
    found, strikes = failures(
        facts.answers, memory.strikes, seconds_max=_STRIKES * _PERIOD_SECONDS, strikes=_STRIKES
    )
    observations: list[Observation] = []
    for check, why in found.items():
        verdict = steady(Severity.WARNING, Action.REBOOT, stable)
        observations.append(observed(identity(check, "machine"), verdict, why, at))
    restarts = _restarts(facts.processes, memory, at.uptime_seconds)
    for name, times in restarts.items():
        if len(times) > limits.restarts_max:
            text = f"{len(times)} restarts within 20 minutes; accepted: {limits.restarts_max}"
            verdict = steady(Severity.WARNING, Action.WATCH, stable)
            observations.append(observed(identity(RESTARTS, name), verdict, text, at))
    return Judged(
        ServiceMemory(strikes, {**memory.processes, **facts.processes}, restarts),
        tuple(observations),
        skipped=(*skipped([(KUBELET, bool(limits.kubelet))], "services.kubelet is not set"),
                 *skipped([(RUNTIME, bool(limits.runtime_socket))],
                          "services.runtimeSocket is not set")),
    )  # fmt: skip


def _restarts(
    processes: Mapping[str, str], memory: ServiceMemory, uptime: float
) -> dict[str, tuple[float, ...]]:
    """Return when each name was seen as another process, within the window."""
    found: dict[str, tuple[float, ...]] = {}
    for name in {*processes, *memory.restarts}:
        times = memory.restarts.get(name, ())
        before, now = memory.processes.get(name), processes.get(name)
        if before is not None and now is not None and before != now:
            times = (*times, uptime)
        latest = tuple(each for each in times if uptime - each < WINDOW_SECONDS)[-_STARTS_MAX:]
        if latest:
            found[name] = latest
    return dict(sorted(found.items()))


def source(host: Host, settings: AgentSettings) -> SignalSource[ServiceFacts, ServiceMemory]:
    """Return the source of the kubelet and the container runtime."""
    return SignalSource(
        SOURCE, (KUBELET, RUNTIME, RESTARTS), ServiceMemory, ServiceReader(host, settings).read,
        partial(judge, settings=settings), period_seconds=_PERIOD_SECONDS,
    )  # fmt: skip
