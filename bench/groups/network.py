"""What counting and shaping cost: a packet, a look at 250 pods, and setting the rules up.

A packet goes from a namespace of pods through the node, which counts, to the outside, all within
the sender's system call, so the CPU time of the sender is that of the whole path. Cases alternate,
and each is compared with the bare kernel measured beside it.
"""

from __future__ import annotations

import ipaddress
import json
import random
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import repeat
from pathlib import Path

import msgspec
import numpy as np
from tests.e2e.net_world import INTERNET4, NetWorld

from bench.harness import Report, cpu_slowness
from fairlead.api.values.egress import BITS_MAX, TrafficDirection
from fairlead.api.values.times import format_time
from fairlead.decide.network import divide
from fairlead.node.running.host import Host
from fairlead.node.shaping import (
    EgressRates,
    MechanismChoice,
    Shaping,
    ShapingOptions,
    remove_shaping,
)
from fairlead.node.shaping.limits import DestinationRate
from fairlead.node.traffic import Counting, PodSource, PrefixList, plan_of, read_usage, remove_table
from fairlead.node.traffic.nft import apply
from fairlead.node.traffic.ruleset import AddressOwner, CountingRules, prepare, put_into_force

PODS, PREFIXES, MANY = 250, 1_000, 10_000
NODES = 7_500
ROUNDS, PACKETS, TRIES, READS, TRIPS = 9, 20_000, 3, 20, 40
_FIRST = ipaddress.ip_address("10.1.0.2")


def run(report: Report) -> None:
    """Measure in namespaces of their own; only the division where these are not permitted."""
    _division(report)
    try:
        world = NetWorld()
    except PermissionError as error:
        print(f"network: left out, as namespaces need root: {error}")
        return
    try:
        world.add_addresses(f"{_FIRST}/16")
        _packets(report, world)
        _looks(report, world)
        _small_flow(report, world)
    finally:
        world.close()


def _prefixes(count: int) -> list[PrefixList]:
    """Return prefixes of 24 bits: one shares 16 bits with the address that packets are sent to."""
    draw = random.Random(1)
    beside = int(ipaddress.ip_address(INTERNET4)) >> 8 ^ 1
    first = [beside, *draw.sample(range(11 << 16, 100 << 16), count)][:count]
    return [
        PrefixList(("peered", "storage")[n % 2], (ipaddress.IPv4Network((number << 8, 24)),))
        for n, number in enumerate(first)
    ]


def _counts(pods: int, prefixes: int) -> Callable[[], None]:
    """Return what makes the node count for so many pods and prefixes."""
    plan = plan_of(_prefixes(prefixes))
    owners = {_FIRST + n: AddressOwner("team-a", f"uid-{n}") for n in range(pods)}
    rules = CountingRules(1, owners)

    def count() -> None:
        apply(prepare(plan, rules))
        apply(put_into_force(plan, rules))

    return count


def _shapes(mechanism: MechanismChoice, first: int) -> Callable[[], None]:
    """Return what makes the node limit pods from one on, to more than is sent."""

    def shape() -> None:
        with tempfile.TemporaryDirectory() as name:
            file = Path(name) / "pods.json"
            file.write_text(_listed(first, {"fairlead.dev/internet-egress": "10T"}))
            options = ShapingOptions(mechanism)
            found = Shaping(PodSource(str(file)), Host().now, _prefixes(PREFIXES), options).read()
        wanted = "limit" if mechanism is MechanismChoice.LIMIT else "htb"
        assert found.usage.mechanism == wanted

    return shape


def _named(mechanism: MechanismChoice, *to: str) -> Callable[[], None]:
    """Return what makes the node limit all pods to a destination of 500 prefixes and those given,
    to more than is sent.
    """

    def shape() -> None:
        own = [*_prefixes(PREFIXES), *(PrefixList("storage", (ipaddress.IPv4Network(each),))
                                       for each in to)]  # fmt: skip
        share = DestinationRate("storage", TrafficDirection.EGRESS, BITS_MAX, BITS_MAX)
        rates = EgressRates(1, format_time(time.time()), (), destinations=(share,))
        with tempfile.TemporaryDirectory() as name:
            file, given = Path(name) / "pods.json", Path(name) / "rates.json"
            file.write_text(_listed(0, {}))
            given.write_bytes(msgspec.json.encode(rates))
            options = ShapingOptions(mechanism, rates=str(given))
            found = Shaping(PodSource(str(file)), Host().now, own, options).read()
        assert found.usage.mechanism == ("limit" if mechanism is MechanismChoice.LIMIT else "htb")
        assert [each.pods for each in found.usage.destinations] == [PODS]

    return shape


def _listed(first: int, annotations: dict[str, str], end: int = PODS) -> str:
    return json.dumps({"items": [
        {"metadata": {"name": f"pod-{n}", "namespace": f"team-{n % 8}", "uid": f"uid-{n}",
                      "annotations": annotations},
         "spec": {}, "status": {"phase": "Running", "podIPs": [{"ip": str(_FIRST + n)}]}}
        for n in range(first, end)
    ]})  # fmt: skip


def _division(report: Report) -> None:
    """Measure a round of a budget over nodes, beside the sort that it cannot do without."""
    draw = np.random.default_rng(1)
    ones, held = np.ones(NODES, dtype=np.int64), np.zeros(NODES, dtype=np.int64)
    costs: list[float] = []
    ratios: list[float] = []
    for _ in range(READS):
        demand = (draw.pareto(1.0, NODES) * 10**6).astype(np.int64)
        start = time.thread_time()
        held = divide(10**9, demand, held, ones)
        costs.append(time.thread_time() - start)
        start = time.thread_time()
        np.argsort(demand / ones, kind="stable")
        ratios.append(costs[-1] / (time.thread_time() - start))
    report.add("network.divide", statistics.median(costs) / cpu_slowness() * 1000, "ms CPU")
    report.add("network.divide_ratio", statistics.median(ratios), "x sort")


def _packets(report: Report, world: NetWorld) -> None:
    cases: dict[str, Callable[[], None]] = {
        "bare": lambda: None, "one": _counts(1, 0), "pods": _counts(PODS, PREFIXES),
        "many": _counts(MANY, MANY), "free": _shapes(MechanismChoice.AUTO, 1),
        "htb": _shapes(MechanismChoice.AUTO, 0), "limit": _shapes(MechanismChoice.LIMIT, 0),
        "named_htb": _named(MechanismChoice.AUTO, f"{INTERNET4}/32"),
        "named_limit": _named(MechanismChoice.LIMIT, f"{INTERNET4}/32"),
        "beside_named": _named(MechanismChoice.AUTO),
    }  # fmt: skip
    with world.outside.inside():
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.bind((INTERNET4, 9))
    sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    with world.pods.inside():
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.bind((str(_FIRST), 0))
    sender.connect((INTERNET4, 9))
    ratios: dict[tuple[str, str], list[float]] = {}
    with sink, sender:
        for _ in range(ROUNDS):
            costs: dict[str, float] = {}
            for name, count in cases.items():
                with world.node.inside():
                    remove_table()
                    remove_shaping()
                    count()
                _sent(sender, PACKETS // 10)
                costs[name] = min(_sent(sender, PACKETS) for _ in range(TRIES))
            for pair in (
                ("pods", "bare"), ("many", "one"), ("free", "bare"), ("htb", "bare"),
                ("limit", "bare"), ("named_htb", "bare"), ("named_limit", "bare"),
                ("beside_named", "bare"),
            ):  # fmt: skip
                ratios.setdefault(pair, []).append(costs[pair[0]] / costs[pair[1]])
    report.add("network.packet_ratio", statistics.median(ratios["pods", "bare"]), "x bare")
    for name in ("free", "htb", "limit", "named_htb", "named_limit", "beside_named"):
        report.add(f"network.{name}_ratio", statistics.median(ratios[name, "bare"]), "x bare")
    report.add("network.flat_ratio", statistics.median(ratios["many", "one"]), "x one pod")


def _sent(sender: socket.socket, count: int) -> float:
    """Return the CPU seconds of a packet."""
    data, send = bytes(64), sender.send
    start = time.thread_time()
    for _ in repeat(None, count):
        send(data)
    return (time.thread_time() - start) / count


def _read() -> float:
    """Return the CPU seconds of a dump of all counters, added up."""
    start = time.thread_time()
    found = read_usage((), top=0)
    assert found is not None
    return time.thread_time() - start


def _looks(report: Report, world: NetWorld) -> None:
    """Measure looks at 250 pods that have not changed; each reads list, addresses and counters."""
    with tempfile.TemporaryDirectory() as name, world.node.inside():
        file = Path(name) / "pods.json"
        file.write_text(_listed(0, {}))
        remove_table()
        remove_shaping()
        counting = Counting(Host(), PodSource(str(file)), _prefixes(PREFIXES))
        slow, start = cpu_slowness(), time.perf_counter()
        counting.read()
        report.add("network.set_up", (time.perf_counter() - start) / slow, "s")
        costs: list[float] = []
        for _ in range(READS):
            start = time.thread_time()
            counting.read()
            costs.append(time.thread_time() - start)
        reads = [_read() for _ in range(READS)]
        report.add("network.read", statistics.median(reads) / slow * 1000, "ms CPU")
        report.add("network.look", statistics.median(costs) / slow * 1000, "ms CPU")


def _small_flow(report: Report, world: NetWorld) -> None:
    """Measure round trips of a small flow while a pod sends twice what it may, 20 Mbit/s."""
    full, other = (str(_FIRST + n) for n in range(2))
    world.add_addresses(f"{other}/16")
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "pods.json"
        file.write_text(_listed(0, {"fairlead.dev/internet-egress": "20M"}, 2))
        with world.node.inside():
            remove_shaping()
            usage = Shaping(PodSource(str(file)), Host().now).read().usage
    with world.outside.inside():
        sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    for n, each in enumerate(sockets):
        each.bind((INTERNET4, 9100 + n))
    ends = threading.Event()
    threads = [threading.Thread(target=_echo, args=(sockets[0], ends)),
               threading.Thread(target=_flood, args=(_bound(world, full), ends))]  # fmt: skip
    for each in threads:
        each.start()
    try:
        time.sleep(1.0)
        for of, source in (("other_pod", other), ("same_pod", full)):
            trips = _trips(_bound(world, source))
            report.add(f"network.small_flow_{of}", statistics.median(trips) * 1000, "ms")
    finally:
        ends.set()
        for each in threads:
            each.join()
        for each in sockets:
            each.close()
    print(f"network.small_flow: queues of pods are {usage.queue}")


def _bound(world: NetWorld, source: str) -> socket.socket:
    with world.pods.inside():
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((source, 0))
    made.settimeout(5.0)
    return made


def _echo(own: socket.socket, ends: threading.Event) -> None:
    own.settimeout(0.1)
    while not ends.is_set():
        with suppress(TimeoutError):
            data, peer = own.recvfrom(100)
            own.sendto(data, peer)


def _flood(own: socket.socket, ends: threading.Event) -> None:
    """Send 40 Mbit/s."""
    data, sent, start = bytes(1400), 0, time.monotonic()
    with own:
        while not ends.wait(0.002):
            while sent * 1442 * 8 < (time.monotonic() - start) * 40e6:
                own.sendto(data, (INTERNET4, 9101))
                sent += 1


def _trips(own: socket.socket) -> list[float]:
    """Return the seconds of round trips; a datagram that is dropped counts as the time-out."""
    found: list[float] = []
    with own:
        for n in range(TRIPS):
            start = time.perf_counter()
            own.sendto(n.to_bytes(4, "big"), (INTERNET4, 9100))
            with suppress(TimeoutError):
                while own.recv(100) != n.to_bytes(4, "big"):
                    pass
            found.append(time.perf_counter() - start)
            time.sleep(0.005)
    return found
