"""What the machine should reach: names, registries of images, and a few of its peers.

Programs of all jobs fail where a name does not resolve or no image comes, and nothing else of the
machine shows it. One failure says little, so two in a row count; of peers none of a sample has to
answer, as each of them may be away. Only what is named is tried.
"""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from fairlead.model.health.faults import (
    Action,
    Moment,
    Observation,
    Severity,
    identity,
    observed,
    steady,
)
from fairlead.node.running.host import Host
from fairlead.node.running.probe_settings import ReachSettings
from fairlead.node.running.probes import Answer, Probes, Strikes, failures
from fairlead.node.settings import AgentSettings
from fairlead.node.source import Judged, SignalSource, skipped

SOURCE = "reach"
NAMES, REGISTRIES, PEERS = "name-resolution", "registry", "peers"
_PERIOD_SECONDS = 60
_CONNECT_SECONDS = 5.0
_STRIKES = 2
#: In the place of a probe: the sample of peers as a whole.
_SAMPLE = f"{PEERS} sample"


@dataclass(frozen=True, slots=True)
class ReachFacts:
    """What came of each probe, as `name-resolution NAME`, `registry URL` and `peers HOST:PORT`."""

    answers: dict[str, Answer]


def conflicts(settings: ReachSettings) -> Iterator[tuple[str, str]]:
    """Yield (path, message) of what cannot be tried."""
    for i, url in enumerate(settings.registries):
        if not _is_url(url):
            yield f"reach.registries[{i}]", f"'{url}' is no URL, such as https://registry.k8s.io"
    for i, peer in enumerate(settings.peers):
        if not _address(peer)[1]:
            yield f"reach.peers[{i}]", f"'{peer}' is not HOST:PORT, such as 10.0.0.7:10250"


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _address(peer: str) -> tuple[str, int]:
    """Return host and port; the port is 0 where there is none."""
    host, _, port = peer.rpartition(":")
    is_port = bool(host) and port.isascii() and port.isdecimal() and len(port) < 6
    return host.strip("[]"), int(port) if is_port and int(port) < 1 << 16 else 0


def resolve(name: str) -> None:
    """Resolve a name as programs do, with the resolvers of this process; OSError."""
    socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)


def ask_registry(url: str) -> None:
    """Ask a registry for its version; OSError for no answer, or one of 500 or more.

    Nothing is sent but the path and nothing is believed, so its certificate is not verified: the
    container runtime has authorities of its own.
    """
    import http.client

    parts = urlsplit(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host = parts.hostname or ""
    connection = (
        http.client.HTTPSConnection(host, parts.port, timeout=_CONNECT_SECONDS, context=context)
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, parts.port, timeout=_CONNECT_SECONDS)
    )
    try:
        connection.request("GET", "/v2/")
        status = connection.getresponse().status
    except http.client.HTTPException as error:
        raise OSError(f"does not speak HTTP: {str(error)[:80]!r}") from error
    finally:
        connection.close()
    if status >= http.client.INTERNAL_SERVER_ERROR:
        raise OSError(f"answers {status}")


def connect(peer: str) -> None:
    """Make a connection and close it; OSError, but not where the machine refuses it."""
    try:
        socket.create_connection(_address(peer), timeout=_CONNECT_SECONDS).close()
    except ConnectionRefusedError:  # the machine is there
        return


class ReachReader:
    """Tries what is named. Used by one thread."""

    def __init__(self, host: Host, settings: AgentSettings, probes: Probes | None = None) -> None:
        self._host, self._settings = host, settings.reach
        self._probes = probes or Probes(
            lambda: host.now().uptime_seconds, settings.reach.seconds_max + 1.0
        )

    def read(self) -> ReachFacts:
        """Return what came of all names and registries, and of a sample of peers."""
        given = self._settings
        calls: dict[str, Callable[[], object]] = {}
        for check, targets, call in (
            (NAMES, given.names, resolve),
            (REGISTRIES, given.registries, ask_registry),
            (PEERS, self._sample(), connect),
        ):
            calls |= {f"{check} {each}": partial(call, each) for each in targets}
        return ReachFacts(self._probes.look(calls))

    def _sample(self) -> list[str]:
        """Return some of the peers: others at each look, and on each machine."""
        peers = self._settings.peers
        turn = int(self._host.now().uptime_seconds) // _PERIOD_SECONDS
        rng = random.Random(f"{self._host.boot_id()}/{turn}")  # noqa: S311 # no secret
        return rng.sample(peers, min(self._settings.peer_sample, len(peers)))


def judge(
    facts: ReachFacts, memory: Strikes, at: Moment, *, settings: AgentSettings
) -> Judged[Strikes]:
    """Give a fault for each name and registry, and one where no peer of a sample answers."""
    limits, stable = settings.reach, settings.stable_seconds
    answers = {key: value for key, value in facts.answers.items() if not _is_peer(key)}
    peers = [value for key, value in facts.answers.items() if _is_peer(key)]
    if len(peers) > 1:
        is_cut_off = all(each.error or each.is_pending for each in peers)
        why = next((each.error for each in peers if each.error), "no answer")
        answers[_SAMPLE] = Answer(f"none of {len(peers)} peers: {why}" if is_cut_off else "")
    late = {  # a look waits for longer than an answer may take
        key: Answer(f"no answer within {limits.seconds_max} s") if each.is_pending else each
        for key, each in answers.items()
    }
    found, strikes = failures(late, memory, seconds_max=limits.seconds_max, strikes=_STRIKES)
    observations: list[Observation] = []
    for key, why in found.items():
        check, _, component = key.partition(" ")
        action = Action.ASK_PERSON if check == PEERS else Action.WATCH
        verdict = steady(Severity.WARNING, action, stable)
        observations.append(observed(identity(check, component), verdict, why, at))
    return Judged(
        strikes, tuple(observations), frozenset(key.partition(" ")[2] for key in late),
        skipped=(*skipped([(NAMES, bool(limits.names))], "reach.names is not set"),
                 *skipped([(REGISTRIES, bool(limits.registries))], "reach.registries is not set"),
                 *skipped([(PEERS, len(limits.peers) > 1)], "reach.peers has no two machines")),
    )  # fmt: skip


def _is_peer(key: str) -> bool:
    return key.startswith(f"{PEERS} ")


def source(host: Host, settings: AgentSettings) -> SignalSource[ReachFacts, Strikes] | None:
    """Return the source of what the machine should reach; None where nothing is named."""
    given = settings.reach
    if not (given.names or given.registries or given.peers):
        return None
    return SignalSource(
        SOURCE, (NAMES, REGISTRIES, PEERS), Strikes, ReachReader(host, settings).read,
        partial(judge, settings=settings), period_seconds=_PERIOD_SECONDS,
    )  # fmt: skip
