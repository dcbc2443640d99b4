"""Limits of pods' traffic to the internet, by a real kernel: rates on the wire, and what stays."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.conformance.http_server import eventually
from tests.e2e.net_world import INTERNAL4, INTERNET4, STORAGE4, NetWorld, ip, net_world, run
from tests.patience import PATIENCE_SECONDS
from tests.unit.node.host_tree import HostTree

from fairlead.api.values.egress import TrafficDirection
from fairlead.api.values.times import format_time
from fairlead.decide.network import divide, safe_share
from fairlead.model.egress_lease import LEASE_TIMES, EgressLeaseTimes
from fairlead.model.health.faults import Moment
from fairlead.node import agent as agent_module
from fairlead.node.agent import Agent
from fairlead.node.reports.state import open_state
from fairlead.node.settings import AgentSettings, ShapingSettings, TrafficSettings
from fairlead.node.shaping import (
    DestinationRate,
    EgressRates,
    MechanismChoice,
    Shaping,
    ShapingFacts,
    ShapingOptions,
    ShapingUsage,
    TeamRate,
    devices,
    remove_shaping,
)
from fairlead.node.shaping.classes import LEAVES
from fairlead.node.shaping.devices import NoSuchQueue, Route
from fairlead.node.sources import shaping as shaping_source
from fairlead.node.traffic import PodArrivals, PodSource, nft

pytestmark = pytest.mark.e2e

DEVICE = "veth-out"
PAYLOAD, FRAME = 1400, 1442
M = 10**6
#: Where what arrives is from or for; the second is a destination with a budget.
NAMES = ("internet", "storage", "internal")
_PULSE_SECONDS = 0.004


def now() -> Moment:
    return Moment(time.time(), time.monotonic())


class Node:
    """A node with pods, and the outside, which counts what arrives by address."""

    def __init__(self, folder: Path, net: NetWorld) -> None:
        self.net = net
        self.file = folder / "pods.json"
        self.rates = folder / "rates.json"
        net.add_addresses(*(f"10.1.0.{n}/16" for n in range(2, 8)))
        self.sinks: list[socket.socket] = []
        self.receiver = net.outside
        with net.outside.inside():
            for address in (INTERNET4, INTERNAL4, STORAGE4):
                sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
                sink.bind((address, 9000))
                self.sinks.append(sink)
            rules = "".join(f"counter {name} {{\n}}\n" for name in NAMES) + (
                "chain in { type filter hook input priority 0;\n"
                f"ip daddr {INTERNET4} counter name internet\n"
                f"ip daddr {STORAGE4} counter name storage\n"
                f"ip daddr {INTERNAL4} counter name internal\n}}\n"
            )
            run("nft", "-f", "-", text=f"table inet arrived {{\n{rules}}}\n")

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()

    def of_pods(
        self, limits: Mapping[str, str | None], *, namespace: str = "team-a", way: str = "egress",
        key: str = "",
    ) -> None:  # fmt: skip
        """Make the kubelet list a pod at each address, with this limit."""
        key = key or f"fairlead.dev/internet-{way}"
        self.file.write_text(json.dumps({"items": [
            {"metadata": {"name": f"pod-{address}", "namespace": namespace, "uid": f"uid-{n}",
                          "annotations": {key: limit} if limit else {}},
             "spec": {}, "status": {"phase": "Running", "podIPs": [{"ip": address}]}}
            for n, (address, limit) in enumerate(limits.items())
        ]}))  # fmt: skip

    def new_agent(
        self, mechanism: MechanismChoice = MechanismChoice.AUTO,
        answers: Callable[[Route, int], bool] | None = None, times: EgressLeaseTimes = LEASE_TIMES,
    ) -> Shaping:  # fmt: skip
        options = ShapingOptions(
            mechanism, rates=str(self.rates), keeps_bandwidth=True, times=times
        )
        made = Shaping(PodSource(str(self.file)), now, options=options)
        if answers is not None:
            made.answers = answers
        return made

    def look(self, agent: Shaping) -> ShapingFacts:
        with self.net.node.inside():
            return agent.read()

    def state(self) -> str:
        """Return all queues, classes and rules of the node, without what they count."""
        with self.net.node.inside():
            ruleset = run("nft", "-s", "list", "ruleset")
            queues = run("tc", "qdisc", "show") + run("tc", "class", "show", "dev", DEVICE)
        return re.sub(r"direct_packets_stat \d+", "", queues) + ruleset

    def receives(self) -> None:
        """Let pods receive, and count what comes to them by where it is from."""
        with self.net.pods.inside():
            for n in (2, 3):
                sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
                sink.bind((f"10.1.0.{n}", 9000))
                self.sinks.append(sink)
            rules = "".join(f"counter {name} {{\n}}\n" for name in NAMES) + (
                "chain in { type filter hook input priority 0;\n"
                f"ip saddr {INTERNET4} counter name internet\n"
                f"ip saddr {STORAGE4} counter name storage\n"
                f"ip saddr {INTERNAL4} counter name internal\n}}\n"
            )
            run("nft", "-f", "-", text=f"table inet arrived {{\n{rules}}}\n")
        self.receiver = self.net.pods

    def arrived(self) -> dict[str, int]:
        """Return the bytes of frames that have arrived, by class of the address."""
        with self.receiver.inside():
            items = json.loads(run("nft", "-j", "list", "counters"))["nftables"]
        return {
            each["counter"]["name"]: each["counter"]["bytes"] + 14 * each["counter"]["packets"]
            for each in items if "counter" in each
        }  # fmt: skip

    def remove(self) -> bool:
        with self.net.node.inside():
            return remove_shaping()


class Sender:
    """Sends at a rate in bits per second, of frames, which can be changed; 0 is none."""

    def __init__(self, node: Node, source: str, to: str, rate: int) -> None:
        self.rate, self._ends = rate, threading.Event()
        is_pod = source.startswith("10.1.")
        with (node.net.pods if is_pod else node.net.outside).inside():
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((source, 0))
        self._socket.connect((to, 9000))
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        data, due, owed = bytes(PAYLOAD), time.monotonic(), 0.0
        while not self._ends.is_set():
            due += _PULSE_SECONDS
            owed += self.rate * _PULSE_SECONDS / 8
            while owed >= FRAME:
                owed -= FRAME
                self._socket.send(data)
            self._ends.wait(max(0.0, due - time.monotonic()))

    def end(self) -> None:
        self._ends.set()
        self._thread.join()
        self._socket.close()


@contextmanager
def sending(node: Node, *flows: tuple[str, str, int]) -> Generator[list[Sender]]:
    """Send flows of (source, destination, rate)."""
    senders = [Sender(node, *flow) for flow in flows]
    try:
        yield senders
    finally:
        for each in senders:
            each.end()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    net = net_world()
    made = Node(tmp_path, net)
    yield made
    made.close()
    net.close()


class Meter:
    """Counts what arrives at nodes from now on. A reading takes its time on a busy machine."""

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = nodes
        self._before, self._start = self._read()

    def _read(self) -> tuple[dict[str, int], float]:
        """Return the sums, and the time in the middle of the reading."""
        begin = time.monotonic()
        found = [each.arrived() for each in self._nodes]
        sums = {name: sum(each[name] for each in found) for name in found[0]}
        return sums, (begin + time.monotonic()) / 2

    def rates(self) -> dict[str, float]:
        """Return bits per second by class."""
        sums, end = self._read()
        return {
            name: (size - self._before[name]) * 8 / (end - self._start)
            for name, size in sums.items()
        }


def measured(nodes: list[Node], seconds: float) -> dict[str, float]:
    """Return bits per second that arrive at all nodes together, by class, over a time."""
    meter = Meter(nodes)
    time.sleep(seconds)
    return meter.rates()


@pytest.mark.parametrize("mechanism", [MechanismChoice.AUTO, MechanismChoice.LIMIT])
def test_a_flow_to_the_internet_keeps_its_rate_and_one_inside_is_untouched(
    node: Node, mechanism: MechanismChoice
) -> None:
    node.of_pods({"10.1.0.2": "20M"})
    inside = ("10.1.0.2", INTERNAL4, 60 * M)
    with sending(node, inside, ("10.1.0.2", INTERNET4, 40 * M)):
        without = measured([node], 1.0)
        assert without["internet"] == pytest.approx(40 * M, rel=0.1)  # nothing is limited yet
        facts = node.look(node.new_agent(mechanism))
        assert facts.usage.mechanism == ("htb" if mechanism is MechanismChoice.AUTO else "limit")
        measured([node], 0.3 if mechanism is MechanismChoice.AUTO else 1.5)  # the burst
        found = measured([node], 5.0)
    assert found["internet"] == pytest.approx(20 * M, rel=0.03)
    assert found["internal"] == pytest.approx(without["internal"], rel=0.05)


def test_a_pod_without_a_limit_is_not_slowed_by_one_that_has_one(node: Node) -> None:
    node.of_pods({"10.1.0.2": "10M", "10.1.0.3": None})
    node.look(node.new_agent())
    with sending(node, ("10.1.0.2", INTERNET4, 30 * M), ("10.1.0.3", INTERNET4, 40 * M)):
        measured([node], 0.3)
        found = measured([node], 2.0)
    assert found["internet"] == pytest.approx(50 * M, rel=0.04)


def test_a_limit_that_is_changed_counts_from_the_next_look(node: Node) -> None:
    agent = node.new_agent()
    with sending(node, ("10.1.0.2", INTERNET4, 40 * M)):
        for limit, rate in (("10M", 10 * M), ("30M", 30 * M), ("1e99", 40 * M), ("5M", 5 * M)):
            node.of_pods({"10.1.0.2": limit})
            facts = node.look(agent)
            assert bool(facts.usage.refused) == (limit == "1e99")
            if limit == "30M":  # what waited below the old rate
                measured([node], 0.3)
            measured([node], 0.2)
            if limit != "1e99":
                assert measured([node], 1.0)["internet"] == pytest.approx(rate, rel=0.05)


async def test_a_pod_that_comes_is_limited_before_the_period_of_looks_is_over(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "TICK_SECONDS", 0.05)
    monkeypatch.setattr(shaping_source, "PERIOD_SECONDS", 10**6)
    tree = HostTree(tmp_path / "tree")
    settings = AgentSettings(traffic=TrafficSettings(pods=str(node.file)),
                             shaping=ShapingSettings(enabled=True))  # fmt: skip
    source = shaping_source.source(tree.host(), settings)
    assert source is not None
    state = open_state(tmp_path / "state")
    agent = Agent(tree.host(), (source,), state, report=tmp_path / "report.json",
                  read_seconds_max=PATIENCE_SECONDS, report_seconds=1)  # fmt: skip

    def limited() -> int:
        usage = source.usage()
        return len(usage.pods) if isinstance(usage, ShapingUsage) else 0

    node.of_pods({"10.1.0.2": "10M"})
    with node.net.node.inside():
        async with asyncio.TaskGroup() as group:
            group.create_task(agent.run())
            await eventually(lambda: limited() == 1)
            tree.passes(10.0)
            node.of_pods({"10.1.0.2": "10M", "10.1.0.3": "10M"})
            ip("link add veth-new type veth peer name veth-peer")
            await eventually(lambda: limited() == 2)
            agent.stop()
    state.close()


def test_devices_that_come_and_go_ask_for_looks_for_a_while(node: Node) -> None:
    uptime = 100.0
    arrivals = PodArrivals(lambda: Moment(time.time(), uptime))
    with node.net.node.inside():
        assert arrivals.is_early(), "what came before is not known"
        uptime += 5.0
        for change in ("add veth-new type veth peer name veth-peer", "del veth-new"):
            assert not arrivals.is_early()
            ip(f"link {change}")
            assert arrivals.is_early()
            uptime += 4.0
            assert arrivals.is_early()
            uptime += 1.0
            assert not arrivals.is_early()


def has_fair_queue(node: Node) -> str:
    """Return the fair queue that the kernel has, "" for none."""
    with node.net.node.inside():
        for leaf in LEAVES[:-1]:
            try:
                devices.change([f"qdisc add dev {DEVICE} root {leaf}"])
            except NoSuchQueue:
                continue
            devices.change([f"qdisc del dev {DEVICE} root"])
            return leaf
    return ""


def test_64_connections_of_one_pod_share_its_rate(node: Node) -> None:
    if not has_fair_queue(node):
        pytest.skip(f"the kernel has none of {', '.join(LEAVES[:-1])}")
    node.of_pods({"10.1.0.2": "40M"})
    node.look(node.new_agent())
    with node.net.outside.inside():
        server = socket.create_server((INTERNET4, 9001), backlog=64)
    with ExitStack() as held:
        held.enter_context(server)
        received = [0] * 64
        senders: list[socket.socket] = []
        for _ in range(64):
            with node.net.pods.inside():
                sender = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            sender.bind(("10.1.0.2", 0))
            sender.connect((INTERNET4, 9001))
            sender.setblocking(False)
            senders.append(sender)
        peers = [held.enter_context(server.accept()[0]) for _ in senders]
        data, end = bytes(1 << 16), time.monotonic() + 4.0
        while time.monotonic() < end:
            for sender, (n, peer) in zip(senders, enumerate(peers), strict=True):
                with suppress(BlockingIOError):
                    sender.send(data)
                peer.setblocking(False)
                with suppress(BlockingIOError):
                    received[n] += len(peer.recv(1 << 18))
    fairness = sum(received) ** 2 / (64 * sum(each**2 for each in received))  # Jain's index
    assert fairness > 0.9


def test_what_pods_receive_from_the_internet_keeps_its_rate_and_what_is_inside_is_untouched(
    node: Node,
) -> None:
    node.receives()
    before = node.state()
    node.of_pods({"10.1.0.2": None, "10.1.0.3": None}, way="ingress")
    tell(node, 10 * M, way="ingress")
    flows = [(INTERNET4, "10.1.0.2", 40 * M), (INTERNET4, "10.1.0.3", 30 * M),
             (INTERNAL4, "10.1.0.2", 30 * M)]  # fmt: skip
    agent = node.new_agent()
    with sending(node, *flows):
        without = measured([node], 1.0)
        assert without["internet"] == pytest.approx(70 * M, rel=0.1)  # nothing is limited yet
        assert node.look(agent).usage.mechanism == "limit"
        measured([node], 2.0)  # the second of its rate that a new limit has
        found = measured([node], 3.0)
        (line,) = node.look(agent).usage.ingress
        node.rates.unlink()  # and now a pod's own limit
        node.of_pods({"10.1.0.2": "20M", "10.1.0.3": None}, way="ingress")
        assert node.look(node.new_agent()).usage.ingress == ()
        measured([node], 2.0)
        own = measured([node], 1.5)
    assert found["internet"] == pytest.approx(9.5 * M, rel=0.04), "what the team may, less 5 %"
    assert own["internet"] == pytest.approx((20 + 30) * M, rel=0.05)
    for each in (found, own):
        assert each["internal"] == pytest.approx(without["internal"], rel=0.05)
    assert (line.team, line.limit, line.pods) == ("team-a", 10 * M, 2)
    assert line.dropped > 0
    assert line.demand > line.limit
    assert "htb" not in node.state()
    node.of_pods({"10.1.0.2": "10M"})  # what it sends alone
    assert node.look(node.new_agent()).usage.mechanism == "htb"
    assert "ingress" not in node.state()
    assert node.remove()
    assert node.state() == before


@pytest.mark.parametrize("way", ["egress", "ingress"])
def test_a_bandwidth_of_a_pod_limits_what_is_inside_as_well(node: Node, way: str) -> None:
    if way == "ingress":
        node.receives()
    before = node.state()
    node.of_pods({"10.1.0.2": "10M", "10.1.0.3": None}, key=f"kubernetes.io/{way}-bandwidth")
    agent = node.new_agent()
    pairs = [("10.1.0.2", INTERNAL4, 20 * M), ("10.1.0.2", STORAGE4, 20 * M),
             ("10.1.0.3", INTERNET4, 30 * M)]  # fmt: skip
    with sending(
        node, *((a, b, rate) if way == "egress" else (b, a, rate) for a, b, rate in pairs)
    ):
        assert node.look(agent).usage.mechanism == "limit"
        measured([node], 2.0)  # the second of its rate that a new limit has
        found = measured([node], 2.0)
        node.look(agent)
    assert found["internal"] + found["storage"] == pytest.approx(10 * M, rel=0.05)
    assert found["internet"] == pytest.approx(30 * M, rel=0.1), "of another pod"
    wanted = node.state()
    node.look(node.new_agent())
    assert node.state() == wanted, "an agent that follows takes the limits for what they are"
    node.remove()
    assert node.state() == before


def exchange(own: socket.socket, peer: socket.socket, data: np.ndarray) -> np.ndarray:
    """Send an array on one connection while one of the same size comes on another; their sum."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(own.sendall, data.tobytes())
        received = bytearray()
        while len(received) < data.nbytes:
            received += peer.recv(1 << 16)
    return data + np.frombuffer(received, dtype=data.dtype)


def test_a_gangs_all_reduce_over_tcp_is_not_touched_beside_a_full_class_of_the_internet(
    node: Node,
) -> None:
    node.of_pods({"10.1.0.2": "2M"})
    with node.net.outside.inside():
        server = socket.create_server((INTERNAL4, 9002))
    with node.net.pods.inside():
        there, back = (socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(2))
    with ExitStack() as held:
        for each in (server, there, back):
            held.enter_context(each)
        pairs: list[tuple[socket.socket, socket.socket]] = []
        for each in (there, back):
            each.bind(("10.1.0.2", 0))
            each.connect((INTERNAL4, 9002))
            pairs.append((each, held.enter_context(server.accept()[0])))
        (out, out_peer), (into, into_peer) = pairs
        node.look(node.new_agent())
        with sending(node, ("10.1.0.2", INTERNET4, 20 * M)):
            measured([node], 0.5)
            start, pool = node.arrived()["internet"], held.enter_context(ThreadPoolExecutor(2))
            ones = np.ones(1 << 16)
            for _ in range(30):  # a ring of two: each sends half a MiB and gets the other's
                other = pool.submit(exchange, into_peer, out_peer, ones)
                assert (exchange(out, into, ones) == 2).all()
                assert (other.result() == 2).all()
            assert node.arrived()["internet"] > start, "the class was full all the time"
        with node.net.node.inside():
            (use,) = devices.read_queues(DEVICE).uses.values()
        # struct tcp_info: tcpi_total_retrans at 100
        lost = [int.from_bytes(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[100:],
                               "little") for each in (out, into_peer)]  # fmt: skip
        assert sum(lost) < 100, "of 10,000 segments; a busy machine sends some twice"
        assert use.drops > 0
        assert use.size < 30 << 19, "no byte of the gang went through the class"


def echo_datagrams(names: socket.socket) -> None:
    """Send back what comes, until an empty datagram does."""
    while (found := names.recvfrom(512))[0]:
        names.sendto(*found)


def echo_stream(api: socket.socket) -> None:
    """Send back what comes on one connection, until its end."""
    peer, _ = api.accept()
    with peer:
        while data := peer.recv(1 << 16):
            peer.sendall(data)


@pytest.mark.parametrize("mechanism", [MechanismChoice.AUTO, MechanismChoice.LIMIT])
def test_names_and_the_api_server_are_answered_while_a_teams_budget_is_full(
    node: Node, mechanism: MechanismChoice
) -> None:
    node.of_pods({"10.1.0.2": None})
    tell(node, 2 * M)
    agent = node.new_agent(mechanism)
    node.look(agent)
    with ExitStack() as held:
        kinds = (socket.SOCK_DGRAM, socket.SOCK_STREAM)
        with node.net.outside.inside():
            names, api = (held.enter_context(socket.socket(socket.AF_INET, k)) for k in kinds)
        with node.net.pods.inside():
            resolver = held.enter_context(socket.socket(socket.AF_INET, kinds[0]))
        with node.net.node.inside():
            kubelet = held.enter_context(socket.socket(socket.AF_INET, kinds[1]))
        names.bind((INTERNAL4, 53))
        api.bind((INTERNET4, 6443))  # a public address: what the node sends there has no limit
        api.listen()
        for serve, at in ((echo_datagrams, names), (echo_stream, api)):
            server = threading.Thread(target=serve, args=(at,), daemon=True)
            server.start()
            held.callback(server.join, PATIENCE_SECONDS)
        resolver.bind(("10.1.0.2", 0))
        resolver.connect((INTERNAL4, 53))
        held.callback(resolver.send, b"")
        with sending(node, ("10.1.0.2", INTERNET4, 20 * M)):
            measured([node], 0.5)
            kubelet.connect((INTERNET4, 6443))
            held.callback(kubelet.shutdown, socket.SHUT_WR)
            for each in (resolver, kubelet):
                each.settimeout(PATIENCE_SECONDS)
            for n in range(100):
                resolver.send(n.to_bytes(60))
                assert resolver.recv(512) == n.to_bytes(60), "each question has its answer"
            for _ in range(10):
                kubelet.sendall(bytes(1 << 16))
                left = 1 << 16
                while left:
                    left -= len(kubelet.recv(left))
            (line,) = node.look(agent).usage.teams
    assert line.dropped > 0
    assert line.demand > line.limit == 2 * M, "the budget was full all the time"
    assert line.sent < 3 * M, "nothing of the node and of names counts for it"


@pytest.mark.parametrize(
    ("mechanism", "way"),
    [(MechanismChoice.AUTO, "egress"), (MechanismChoice.LIMIT, "egress"),
     (MechanismChoice.AUTO, "ingress")],
)  # fmt: skip
def test_all_pods_share_what_a_destination_may_have_and_all_else_is_untouched(
    node: Node, mechanism: MechanismChoice, way: str
) -> None:
    direction = TrafficDirection(way)
    if way == "ingress":
        node.receives()
    before = node.state()
    node.of_pods({"10.1.0.2": None, "10.1.0.3": None}, way=way)
    share = DestinationRate("storage", direction, 10 * M, 10 * M)
    unknown = DestinationRate("elsewhere", direction, M, M)
    rates = EgressRates(1, format_time(time.time()), (), destinations=(share, unknown))
    node.rates.write_bytes(msgspec.json.encode(rates))
    agent = node.new_agent(mechanism)
    pairs = [("10.1.0.2", STORAGE4, 20 * M), ("10.1.0.3", STORAGE4, 15 * M),
             ("10.1.0.2", INTERNET4, 20 * M), ("10.1.0.3", INTERNAL4, 30 * M)]  # fmt: skip
    flows = [(a, b, rate) if way == "egress" else (b, a, rate) for a, b, rate in pairs]
    with sending(node, *flows):
        without = measured([node], 0.7)
        assert without["storage"] == pytest.approx(35 * M, rel=0.1)  # nothing is limited yet
        facts = node.look(agent)
        measured([node], 0.5 if facts.usage.mechanism == "htb" else 2.0)
        found = measured([node], 2.0)
        (line,) = node.look(agent).usage.destinations
    drops = mechanism is MechanismChoice.LIMIT or way == "ingress"
    assert facts.usage.mechanism == ("limit" if drops else "htb")
    assert found["storage"] == pytest.approx((9.5 if drops else 10) * M, rel=0.05)
    for name in ("internet", "internal"):
        assert found[name] == pytest.approx(without[name], rel=0.07)
    assert (line.destination, line.direction) == ("storage", direction)
    assert (line.limit, line.pods, line.dropped > 0) == (10 * M, 2, True)
    assert line.demand > 10 * M, "it is held back, and asks for more"
    assert any("'elsewhere' is no class" in each for each in facts.unreadable)
    node.rates.write_bytes(msgspec.json.encode(EgressRates(1, rates.at, ())))
    with sending(node, *flows[:1]):
        node.look(agent)
        assert measured([node], 0.7)["storage"] > 15 * M, "of 20, of which 10 were let through"
    node.remove()
    assert node.state() == before


def test_a_destination_leaves_a_pods_own_limit_and_its_teams_share_as_they_were(
    node: Node,
) -> None:
    node.of_pods({"10.1.0.2": "8M", "10.1.0.3": None})
    to_storage = DestinationRate("storage", TrafficDirection.EGRESS, 12 * M, 12 * M)
    teams = (TeamRate("team-a", ("team-a",), 20 * M, 20 * M),)
    rates = EgressRates(1, format_time(time.time()), teams, destinations=(to_storage,))
    node.rates.write_bytes(msgspec.json.encode(rates))
    node.look(node.new_agent())
    wanted = node.state()
    assert node.look(node.new_agent()).usage.mechanism == "htb"
    assert node.state() == wanted, "an agent that follows takes all classes for what they are"
    with sending(node, ("10.1.0.2", INTERNET4, 20 * M), ("10.1.0.3", INTERNET4, 30 * M),
                 ("10.1.0.2", STORAGE4, 30 * M)):  # fmt: skip
        measured([node], 0.5)
        found = measured([node], 2.0)
    assert found["internet"] == pytest.approx(20 * M, rel=0.05)
    assert found["storage"] == pytest.approx(12 * M, rel=0.05)


class Killed(BaseException):
    """The agent is killed before it changes something."""


def test_an_agent_that_is_killed_before_any_change_is_followed_by_one_that_goes_on(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.of_pods({"10.1.0.2": "10M", "10.1.0.3": "20M"})
    node.look(node.new_agent())
    wanted = node.state()
    assert wanted.count("class htb") == 2
    real = {(module, name): getattr(module, name)
            for module, name in ((devices, "change"), (nft, "apply"))}  # fmt: skip
    for die_at in itertools.count(1):
        node.remove()
        node.of_pods({"10.1.0.2": "10M", "10.1.0.4": "5M"})
        node.look(node.new_agent())  # others are there already
        node.of_pods({"10.1.0.2": "10M", "10.1.0.3": "20M"})
        count = 0
        for (module, name), call in real.items():

            def step(
                *arguments: object, call: Callable[..., object] = call, last: int = die_at
            ) -> object:
                nonlocal count
                count += 1
                if count == last:
                    raise Killed
                return call(*arguments)

            monkeypatch.setattr(module, name, step)
        try:
            node.look(node.new_agent())
            break  # it was not killed: all steps were
        except Killed:
            pass
        monkeypatch.undo()
        node.look(node.new_agent())
        assert normal(node.state()) == normal(wanted)
    assert die_at > 3


def normal(state: str) -> list[str]:
    """Return the lines of a state with classes by their rate: which number is whose may differ."""
    found = re.sub(r"7a1d:[0-9a-f]+", "7a1d:N", state)
    return sorted(re.sub(r"qdisc (\w+) [0-9a-f]+:|leaf [0-9a-f]+:", r"\1", found).splitlines())


def test_a_running_flow_keeps_its_class_when_the_agent_is_another(node: Node) -> None:
    node.of_pods({"10.1.0.2": "10M", "10.1.0.3": "20M"})
    agent = node.new_agent()
    node.look(agent)
    node.of_pods({"10.1.0.3": "20M"})
    node.look(agent)
    before = node.state()
    node.look(node.new_agent())
    assert node.state() == before


def test_a_root_queue_of_another_is_kept_and_the_next_mechanism_says_so(node: Node) -> None:
    with node.net.node.inside():
        run("tc", "qdisc", "add", "dev", DEVICE, "root", "tbf", "rate", "1gbit", "burst", "1m",
            "latency", "50ms")  # fmt: skip
    before = node.state()
    node.of_pods({"10.1.0.2": "10M"})
    usage = node.look(node.new_agent()).usage
    assert (usage.mechanism, "root qdisc tbf of another" in usage.why) == ("limit", True)
    assert before.split("table")[0] == node.state().split("table")[0]
    with sending(node, ("10.1.0.2", INTERNET4, 30 * M)):
        measured([node], 1.0)
        assert measured([node], 1.0)["internet"] == pytest.approx(10 * M, rel=0.05)
    node.remove()
    assert node.state() == before


@pytest.mark.parametrize(
    "routes",
    [("default nexthop via 10.9.0.2 dev veth-out nexthop via 10.8.0.2 dev other",),
     ("0.0.0.0/1 via 10.8.0.2", "128.0.0.0/1 via 10.8.0.2")],
    ids=["one of two gateways each", "halves of a VPN"],
)  # fmt: skip
def test_classes_of_one_device_are_not_used_where_traffic_leaves_by_another(
    node: Node, routes: tuple[str, ...]
) -> None:
    with node.net.node.inside():
        ip("link add other type veth peer name away")
        ip("addr add 10.8.0.1/30 dev other")
        for each in ("other", "away"):
            ip(f"link set {each} up")
        for each in routes:
            ip(f"route replace {each}")
    node.of_pods({"10.1.0.2": "10M"})
    usage = node.look(node.new_agent()).usage
    assert (usage.mechanism, "lead to other, veth-out" in usage.why) == ("limit", True)


@pytest.mark.parametrize("refused", ["qdisc add", "class replace"])
def test_what_tc_refuses_is_followed_by_limits_and_tried_again(
    node: Node, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    def change(lines: Iterable[str], call: Callable[..., None] = devices.change) -> None:
        given = list(lines)
        if any(each.startswith(refused) for each in given):
            raise OSError("no tc: shaping by classes needs iproute2")
        call(given)

    before = node.state()
    node.of_pods({"10.1.0.2": "10M"})
    agent = node.new_agent()
    monkeypatch.setattr(devices, "change", change)
    facts = node.look(agent)
    assert (facts.usage.mechanism, facts.unreadable) == ("limit", ())
    assert facts.taken_back == facts.usage.why == "no tc: shaping by classes needs iproute2"
    assert "limit name ip saddr" in node.state()
    assert "htb" not in node.state()
    monkeypatch.undo()
    assert node.look(agent).usage.mechanism == "limit", "not at once"
    agent.now = lambda: Moment(time.time(), time.monotonic() + 601)
    facts = node.look(agent)
    assert (facts.usage.mechanism, facts.taken_back) == ("htb", "")
    node.remove()
    assert node.state() == before


def test_a_device_that_says_nothing_may_wait_drops_nothing_that_has_no_class(node: Node) -> None:
    with node.net.node.inside():
        ip("tuntap add dev t0 mode tun")
        ip("link set t0 txqueuelen 0 up")
        ip("route replace default dev t0")
        ip("-6 route del default")
        node.of_pods({"10.1.0.2": "10M"})
        assert node.look(node.new_agent()).usage.device == "t0"
        assert "direct_qlen 1000" in run("tc", "qdisc", "show", "dev", "t0")


@pytest.mark.parametrize("mechanism", [MechanismChoice.AUTO, MechanismChoice.LIMIT])
def test_removal_leaves_all_as_it_was(node: Node, mechanism: MechanismChoice) -> None:
    with node.net.node.inside():
        run("nft", "-f", "-", text="table inet other { chain c { type filter hook forward "
            "priority 0; }\n}\n")  # fmt: skip
    before = node.state()
    node.of_pods({"10.1.0.2": "10M"})
    node.look(node.new_agent(mechanism))
    assert node.state() != before
    assert node.remove()
    assert node.state() == before
    assert not node.remove()


def test_a_mechanism_follows_another_with_nothing_left_of_it(node: Node) -> None:
    node.of_pods({"10.1.0.2": "10M"})
    node.look(node.new_agent(MechanismChoice.LIMIT))
    limited = node.state()
    node.look(node.new_agent())
    assert "limit" not in node.state().split("table")[1]
    node.look(node.new_agent(MechanismChoice.LIMIT))
    assert node.state() == limited


def test_what_the_gateway_does_not_answer_through_is_taken_back_within_5_seconds(
    node: Node,
) -> None:
    asked: list[int] = []

    def answers(_: Route, priority: int) -> bool:
        asked.append(priority)
        return priority == 0

    node.of_pods({"10.1.0.2": "10M"})
    start = time.monotonic()
    facts = node.look(node.new_agent(answers=answers))
    assert time.monotonic() - start < 5
    assert any(asked)
    assert "did not answer to a packet of 7a1d:1" in facts.taken_back
    assert facts.usage.mechanism == "limit"  # never without a limit
    assert "htb" not in node.state()


def test_a_gateway_that_never_answers_says_nothing_against_the_classes(node: Node) -> None:
    node.of_pods({"10.1.0.2": "10M"})
    agent = node.new_agent(answers=lambda _, __: False)
    node.look(agent)
    assert node.look(agent).usage.mechanism == "htb"


def test_the_gateway_is_asked_through_the_class(node: Node) -> None:
    node.of_pods({"10.1.0.2": "10M"})
    agent = node.new_agent()
    node.look(agent)
    with node.net.node.inside():
        sent = devices.read_queues(DEVICE).uses[1].size
        assert sent == 42  # one request
        assert agent.answers(Route(DEVICE, "10.9.0.2"), 0)
    with node.net.outside.inside():
        run("ip", "addr", "del", "10.9.0.2/30", "dev", "eth0")
    with node.net.node.inside():
        assert not agent.answers(Route(DEVICE, "10.9.0.2"), 0)


def test_pods_of_a_team_share_what_the_node_has_of_its_budget(node: Node) -> None:
    node.of_pods({"10.1.0.2": None, "10.1.0.3": "4M", "10.1.0.4": None})
    tell(node, 20 * M)
    facts = node.look(node.new_agent())
    assert [each.limit for each in facts.usage.teams] == [20 * M]
    flows = [(f"10.1.0.{n}", INTERNET4, 25 * M) for n in (2, 3, 4)]
    with sending(node, *flows):
        measured([node], 0.3)
        assert measured([node], 2.0)["internet"] == pytest.approx(20 * M, rel=0.03)


TIMES = EgressLeaseTimes(2.0, 0.5)


def tell(node: Node, bits: int, safe: int = 0, *, way: str = "egress") -> None:
    """Write what a node may send, or receive, of its team's budget, confirmed now."""
    teams = (TeamRate("team-a", ("team-a",), bits, safe or bits),)
    given = {"teams": teams} if way == "egress" else {"teams": (), "ingress": teams}
    rates = EgressRates(1, format_time(time.time()), **given)
    node.rates.write_bytes(msgspec.json.encode(rates))


class Budget:
    """Three nodes under one budget, and the rounds of its divider."""

    def __init__(self, nodes: list[Node], bits: int) -> None:
        self.bits = bits
        self.nodes = dict(enumerate(nodes))
        self.held = np.zeros(len(nodes), dtype=np.int64)
        self.agents = [each.new_agent(times=TIMES) for each in nodes]
        self.demand = np.zeros(len(nodes), dtype=np.int64)
        for each in nodes:
            each.of_pods({"10.1.0.2": None})

    def divide(self) -> None:
        live = sorted(self.nodes)
        ones = np.ones(len(live), dtype=np.int64)
        new = divide(self.bits, self.demand[live], self.held[live], ones)
        for n, bits in zip(live, new.tolist(), strict=True):
            tell(self.nodes[n], bits, safe_share(self.bits, len(live)))
        self.held[live] = new

    def look(self) -> None:
        for n, each in self.nodes.items():
            (line,) = each.look(self.agents[n]).usage.teams
            self.demand[n] = line.demand


def test_three_nodes_under_one_budget_stay_within_it_and_use_it(tmp_path: Path) -> None:
    budget_bits = 30 * M
    with ExitStack() as held:
        nodes: list[Node] = []
        for n in range(3):
            net = net_world()
            held.callback(net.close)
            (tmp_path / str(n)).mkdir()
            nodes.append(Node(tmp_path / str(n), net))
            held.callback(nodes[-1].close)
        budget = Budget(nodes, budget_bits)
        del budget.nodes[2]  # it joins later
        budget.divide()
        budget.look()
        senders = [Sender(each, "10.1.0.2", INTERNET4, 0) for each in nodes]
        for each in senders:
            held.callback(each.end)

        def rounds(seconds: float, *, divides: bool = True) -> float:
            """Return what was sent, as a part of the budget."""
            meter, start = Meter(nodes), time.monotonic()
            while time.monotonic() < start + seconds:
                time.sleep(0.12)
                budget.look()
                if divides:
                    budget.divide()
            return meter.rates()["internet"] / budget_bits

        for demand in ((40, 2, 0), (2, 40, 2), (20, 20, 20)):
            if demand[2]:  # a node joins: its first share is there before its pods send
                budget.nodes[2] = nodes[2]
                budget.divide()
                budget.look()
            for sender, rate in zip(senders, demand, strict=True):
                sender.rate = rate * M
            assert rounds(2.6) <= 1.05
            assert 0.95 <= rounds(1.8) <= 1.05
        senders[2].rate = 0  # a node dies, and its object goes
        with nodes[2].net.node.inside():
            run("ip", "link", "set", DEVICE, "down")
        del budget.nodes[2]
        budget.held[2] = 0
        assert rounds(2.6) <= 1.05
        assert 0.95 <= rounds(1.5) <= 1.05
        for _ in range(6):  # the divider dies
            assert rounds(1.0, divides=False) <= 1.05
        for n, each in budget.nodes.items():
            (line,) = each.look(budget.agents[n]).usage.teams
            assert line.limit == safe_share(budget_bits, 2)
