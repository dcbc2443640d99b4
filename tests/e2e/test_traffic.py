"""Traffic is counted exactly, by a real kernel: against what the senders themselves count."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import pytest
from tests.e2e.net_world import (
    INTERNAL4,
    INTERNAL6,
    INTERNET4,
    INTERNET6,
    STORAGE4,
    NetWorld,
    net_world,
    run,
)
from tests.patience import PATIENCE_SECONDS

from fairlead.api.names import JOB_NAME
from fairlead.node.running.host import Host
from fairlead.node.traffic import (
    Counting,
    EndedTrafficLine,
    PodSource,
    TrafficFacts,
    nft,
    parse_lists,
    read_pods,
    read_usage,
    remove_table,
)

pytestmark = pytest.mark.e2e

PORT = 9000
#: An answer that has not come by then was dropped, or it or its datagram waits: another follows.
_LOST_SECONDS = 0.5
IP_UDP = {socket.AF_INET: 28, socket.AF_INET6: 48}
#: IP and TCP headers with the option of time stamps; the first segment has 8 bytes more of options.
IP_TCP, SYN_MORE = {socket.AF_INET: 52, socket.AF_INET6: 72}, 8
#: sched.h, mount.h: CLONE_NEWNS, CLONE_FS, MS_REC | MS_PRIVATE.
_NEWNS, _FS, _PRIVATE = 0x20000, 0x200, 0x44000

Sums = dict[tuple[str, str, str], int]


class World:
    """Pods, a node that counts, and the outside, which answers each datagram with one byte."""

    def __init__(self, net: NetWorld, folder: Path) -> None:
        self.net = net
        self.file = folder / "pods.json"
        self.counting = self.new_counting()
        self.of_pods(())

    def new_counting(self, *lists: tuple[str, tuple[str, ...]]) -> Counting:
        return Counting(Host(), PodSource(str(self.file)), parse_lists(lists)[0])

    def of_pods(self, pods: Iterable[tuple[str, str, tuple[str, ...]]], *, job: str = "") -> None:
        """Make the kubelet list pods of (namespace, uid, addresses), all of `job`."""
        labels = {JOB_NAME: job} if job else {}
        self.file.write_text(json.dumps({"items": [
            {"metadata": {"name": f"pod-{uid}", "namespace": namespace, "uid": uid,
                          "labels": labels},
             "spec": {}, "status": {"phase": "Running", "podIPs": [{"ip": a} for a in addresses]}}
            for namespace, uid, addresses in pods
        ]}))  # fmt: skip

    def look(self, counting: Counting | None = None) -> TrafficFacts:
        with self.net.node.inside():
            return (counting or self.counting).read()

    def sums(self) -> Sums:
        lines = self.look().usage.lines
        return {(e.namespace, e.traffic_class, e.direction): e.bytes for e in lines}

    def becomes(self, wanted: Sums, *, of: Iterable[str] | None = None) -> None:
        """Look until the sums are those: the last packets may be on their way."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            found = {k: v for k, v in self.sums().items() if of is None or k[0] in of}
            if found == wanted or time.monotonic() > deadline:
                assert found == wanted
                return

    def socket(self, source: str, kind: socket.SocketKind) -> socket.socket:
        family = socket.AF_INET6 if ":" in source else socket.AF_INET
        with self.net.pods.inside():
            made = socket.socket(family, kind)
        made.settimeout(PATIENCE_SECONDS)
        made.bind((source, 0))
        return made

    def datagrams(self, source: str, target: str, count: int, size: int) -> tuple[int, int]:
        """Send datagrams, each after the answer to the one before; return bytes of IP (out, in)."""
        with self.socket(source, socket.SOCK_DGRAM) as sender:
            for _ in range(count):
                sender.sendto(bytes(size), (target, PORT))
                sender.recv(64)
            headers = IP_UDP[sender.family]
        return count * (size + headers), count * (1 + headers)

    def stream(self, source: str, target: str, sent: int) -> tuple[int, int]:
        """Send a stream; return bytes of IP (out, in) by the kernel's own counts of the socket."""
        with self.socket(source, socket.SOCK_STREAM) as sender:
            sender.connect((target, PORT))
            sender.sendall(bytes(sent))
            sender.shutdown(socket.SHUT_WR)
            received = 0
            while data := sender.recv(1 << 16):
                received += len(data)
            info = sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            headers = IP_TCP[sender.family]
        # struct tcp_info: tcpi_segs_out and tcpi_segs_in at 136, tcpi_bytes_sent at 200
        segments_out, segments_in = struct.unpack_from("=II", info, 136)
        (bytes_sent,) = struct.unpack_from("=Q", info, 200)
        assert bytes_sent >= sent
        return (bytes_sent + segments_out * headers + SYN_MORE,
                received + segments_in * headers + SYN_MORE)  # fmt: skip


def _bound(net: NetWorld, address: str, kind: socket.SocketKind) -> socket.socket:
    """Return a socket outside that answers from the address that it was asked at."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with net.outside.inside():
        made = socket.socket(family, kind)
    made.bind((address, PORT))
    return made


def _answer_datagrams(own: socket.socket) -> None:
    while True:
        data, peer = own.recvfrom(1 << 16)
        if not data:
            return
        own.sendto(b"!", peer)


def _answer_streams(own: socket.socket) -> None:
    while True:
        try:
            stream, _ = own.accept()
        except OSError:
            return
        with stream:
            while stream.recv(1 << 16):
                pass
            stream.sendall(b"x" * 100)


@contextmanager
def answering(net: NetWorld) -> Iterator[None]:
    """Answer datagrams with a byte, and streams with 100, at each address outside."""
    targets = (INTERNET4, INTERNAL4, STORAGE4, INTERNET6, INTERNAL6)
    datagrams = [_bound(net, each, socket.SOCK_DGRAM) for each in targets]
    streams = [_bound(net, each, socket.SOCK_STREAM) for each in targets]
    for each in streams:  # what is in flight fits into each queue on its way
        each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 15)
        each.listen()
    threads = [threading.Thread(target=_answer_datagrams, args=(each,)) for each in datagrams]
    threads += [threading.Thread(target=_answer_streams, args=(each,)) for each in streams]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        for each in datagrams:
            with net.outside.inside(), socket.socket(each.family, socket.SOCK_DGRAM) as last:
                last.sendto(b"", each.getsockname())
        for each in streams:
            each.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for each in (*datagrams, *streams):
            each.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    net = net_world()
    net.add_addresses(*(f"10.1.0.{n}/16" for n in range(2, 6)))
    net.add_addresses(*(f"fd01::{n}/64" for n in range(2, 6)))
    with answering(net):
        yield World(net, tmp_path)
    net.close()


def test_datagrams_are_counted_to_the_byte_by_class_for_both_families(world: World) -> None:
    world.of_pods([("team-a", "a", ("10.1.0.2", "fd01::2")), ("team-b", "b", ("10.1.0.3",))])
    world.look()
    wanted: Sums = {}
    for namespace, source, target, traffic_class in (
        ("team-a", "10.1.0.2", INTERNET4, "internet"),
        ("team-a", "fd01::2", INTERNET6, "internet"),
        ("team-a", "10.1.0.2", INTERNAL4, "internal"),
        ("team-a", "fd01::2", INTERNAL6, "internal"),
        ("team-b", "10.1.0.3", STORAGE4, "storage"),
    ):
        for direction, size in zip(
            ("out", "in"), world.datagrams(source, target, 300, 777), strict=True
        ):
            key = namespace, traffic_class, direction
            wanted[key] = wanted.get(key, 0) + size
    world.becomes(wanted, of=("team-a", "team-b"))


@pytest.mark.parametrize(("source", "target"), [("10.1.0.2", INTERNET4), ("fd01::2", INTERNET6)])
def test_a_stream_is_counted_to_the_byte(world: World, source: str, target: str) -> None:
    world.of_pods([("team-a", "a", (source,))])
    world.look()
    sent, received = world.stream(source, target, 3_000_000)
    assert sent > 3_000_000
    wanted = {("team-a", "internet", "out"): sent, ("team-a", "internet", "in"): received}
    world.becomes(wanted, of=("team-a",))


def test_the_node_and_pods_of_its_network_are_counted_apart(world: World) -> None:
    pod = {"metadata": {"name": "proxy", "namespace": "kube-system", "uid": "h"},
           "spec": {"hostNetwork": True}, "status": {"podIPs": [{"ip": "10.9.0.1"}]}}  # fmt: skip
    world.of_pods([("team-a", "a", ("10.1.0.2",))])
    listed = json.loads(world.file.read_text())
    world.file.write_text(json.dumps({"items": [*listed["items"], pod]}))
    world.look()
    with world.net.node.inside(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as host:
        host.settimeout(PATIENCE_SECONDS)
        host.bind(("10.9.0.1", 0))
        for _ in range(50):
            host.sendto(bytes(100), (INTERNET4, PORT))
            host.recv(64)
    sent, received = world.datagrams("10.1.0.2", INTERNET4, 70, 100)
    world.becomes({
        ("", "internet", "out"): 50 * 128, ("", "internet", "in"): 50 * 29,
        ("team-a", "internet", "out"): sent, ("team-a", "internet", "in"): received,
    })  # fmt: skip


@pytest.fixture
def cgroups() -> Iterator[str]:
    """Cgroups of version 2 where nft looks for them, in this thread's mounts alone: a parent."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY)
    if libc.unshare(_NEWNS | _FS):  # setns(2) needs a thread that shares its root with no other
        pytest.skip("mounts cannot be changed here")
    parent = f"t{os.getpid()}-kubepods.slice"
    try:
        if libc.mount(b"none", b"/", None, _PRIVATE, None) or libc.mount(
            b"none", b"/sys/fs/cgroup", b"cgroup2", 0, None
        ):
            pytest.skip("no cgroups of version 2 here")
        yield parent
        for each in sorted(Path(f"/sys/fs/cgroup/{parent}").glob("**/"), reverse=True):
            each.rmdir()
    finally:
        libc.setns(home, _NEWNS)
        os.close(home)


def host_pod(uid: str, namespace: str, job: str = "") -> dict[str, object]:
    labels = {"fairlead.dev/job-name": job} if job else {}
    return {"metadata": {"name": f"pod-{uid}", "namespace": namespace, "uid": uid,
                         "labels": labels},
            "spec": {"hostNetwork": True},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.9.0.1"}]}}  # fmt: skip


def exchange_of(world: World, cgroup: str, source: str, target: str, count: int) -> None:
    """Exchange datagrams of 100 bytes for one byte, by a process of the node in a cgroup."""
    program = (
        "import os, socket, sys\n"
        "cgroup, source, target, count = sys.argv[1:]\n"
        "cgroup and open(f'/sys/fs/cgroup/{cgroup}/cgroup.procs', 'w').write(str(os.getpid()))\n"
        "own = socket.socket(socket.AF_INET6 if ':' in source else socket.AF_INET,"
        " socket.SOCK_DGRAM)\n"
        f"own.settimeout({PATIENCE_SECONDS})\n"
        "own.bind((source, 0))\n"
        "for _ in range(int(count)):\n"
        f"    own.sendto(bytes(100), (target, {PORT}))\n"
        "    own.recv(64)\n"
    )
    with world.net.node.inside():
        run(sys.executable, "-c", program, cgroup, source, target, str(count))


def test_pods_of_the_hosts_network_are_told_apart_by_their_cgroups(
    world: World, cgroups: str
) -> None:
    root = Path("/sys/fs/cgroup")
    of_a = f"{cgroups}/{cgroups.removesuffix('.slice')}-podhost_a.slice"
    of_b = f"{cgroups}/kubepods-burstable.slice/kubepods-burstable-podhost_b.slice/cri-1.scope"
    for each in (of_a, of_b):
        (root / each).mkdir(parents=True)
    world.of_pods([("team-a", "a", ("10.1.0.2",))])
    ordinary = json.loads(world.file.read_text())["items"]
    pods = [*ordinary, host_pod("host-a", "infra"), host_pod("host-b", "team-b", "train")]
    world.file.write_text(json.dumps({"items": pods}))
    facts = world.look()
    assert not [each for each in facts.usage.blind_spots if "host" in each]
    for cgroup, source, target, count in (
        (of_a, "10.9.0.1", INTERNET4, 20), (of_a, "fd09::1", INTERNAL6, 30),
        (of_b, "10.9.0.1", INTERNET4, 40), ("", "10.9.0.1", INTERNET4, 50),
    ):  # fmt: skip
        exchange_of(world, cgroup, source, target, count)
    sent, received = world.datagrams("10.1.0.2", INTERNET4, 60, 100)
    wanted = {
        ("infra", "internet", "out"): 20 * 128,
        ("infra", "internet", "in"): 20 * 29,
        ("infra", "internal", "out"): 30 * 148,
        ("infra", "internal", "in"): 30 * 49,
        ("team-b", "internet", "out"): 40 * 128,
        ("team-b", "internet", "in"): 40 * 29,
        ("team-a", "internet", "out"): sent,
        ("team-a", "internet", "in"): received,
        ("", "internet", "out"): 50 * 128,
        ("", "internet", "in"): 50 * 29,
    }
    of = ("infra", "team-a", "team-b")
    world.becomes({k: v for k, v in wanted.items() if k[0]}, of=of)
    usage = world.look().usage
    assert {k: v for k, v in world.sums().items() if k[:2] == ("", "internet")} == {
        k: v for k, v in wanted.items() if not k[0]
    }
    assert ("team-b", "train") in {(each.namespace, each.job) for each in usage.flows}
    # An agent that follows leaves all as it is; what ended stays in its namespace's sums.
    world.counting = world.new_counting()
    world.becomes({k: v for k, v in wanted.items() if k[0]}, of=of)
    world.file.write_text(json.dumps({"items": pods[:1]}))
    for _ in range(3):
        world.look()
    world.becomes({k: v for k, v in wanted.items() if k[0]}, of=of)
    with world.net.node.inside():
        assert "host/infra/" not in run("nft", "list", "table", "inet", "fairlead")
    (line,) = world.look().usage.ended
    assert line == EndedTrafficLine("team-b", "host-b", "internet", 40 * 128, 40 * 29)


def test_where_cgroups_cannot_be_asked_host_pods_are_counted_with_the_node(
    world: World, cgroups: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_a = f"{cgroups}/podhost-a"
    (Path("/sys/fs/cgroup") / of_a).mkdir(parents=True)
    pods = [host_pod("host-a", "infra"), host_pod("gone", "infra")]
    world.file.write_text(json.dumps({"items": pods}))

    def refused(text: str) -> None:
        assert "socket cgroupv2 level 2" in text
        raise OSError("nft refuses: no such expression")

    monkeypatch.setattr(nft, "apply_text", refused)
    spots = world.look().usage.blind_spots
    assert [each for each in spots if each.startswith("pods of the host's network are counted "
                                                      "with the node: nft refuses")]  # fmt: skip
    exchange_of(world, of_a, "10.9.0.1", INTERNET4, 10)
    assert world.sums()["", "internet", "out"] == 10 * 128
    assert world.look().usage.blind_spots == spots
    monkeypatch.undo()
    world.file.write_text(json.dumps({"items": pods[:1]}))
    world.counting = world.new_counting()
    world.look()
    exchange_of(world, of_a, "10.9.0.1", INTERNET4, 10)
    assert world.sums()["infra", "internet", "out"] == 10 * 128


def test_a_pod_that_claims_the_nodes_address_is_not_counted_there(world: World) -> None:
    world.of_pods([("evil", "e", ("10.9.0.1", "10.1.0.2"))])
    facts = world.look()
    assert facts.unreadable == ("evil/pod-e: 10.9.0.1 is the node's own",)
    with world.net.node.inside(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as host:
        host.settimeout(PATIENCE_SECONDS)
        host.bind(("10.9.0.1", 0))
        host.sendto(bytes(100), (INTERNET4, PORT))
        host.recv(64)  # else it is refused, by a packet of the node's
    sums = world.sums()
    assert sums["", "internet", "out"] == 128
    assert ("evil", "internet", "out") not in sums


class Load:
    """A sender that does not pause, in a thread: one datagram after the other, each answered.

    Packets between namespaces wait in a queue that all of the machine's namespaces share on a
    processor (`netdev_max_backlog`), and beside a flood of another test some are dropped there. So
    the next datagram follows when no answer comes, and a table of another name counts what has
    passed the node: what is sent and what arrives differ from that by what was dropped.
    """

    def __init__(self, world: World, source: str, target: str) -> None:
        self._socket = world.socket(source, socket.SOCK_DGRAM)
        self._socket.settimeout(_LOST_SECONDS)
        self._node = world.net.node
        self._source, self._target = source, target
        self._ends = threading.Event()
        self.sent = self.count = 0
        self._thread = threading.Thread(target=self._send)

    def _send(self) -> None:
        while not self._ends.is_set():
            self._socket.sendto(bytes(172), (self._target, PORT))
            self.sent += 1
            with suppress(TimeoutError):
                self._socket.recv(64)
                self.count += 1

    def __enter__(self) -> Self:
        own = f"ip6 {{}} {self._source}" if ":" in self._source else f"ip {{}} {self._source}"
        rules = "".join(f"{own.format(f'{end}addr')} counter name {way}\n"
                        for end, way in (("s", "out"), ("d", "in")))  # fmt: skip
        with self._node.inside():
            run("nft", "-f", "-", text=(
                "table inet witness {\ncounter out { }\ncounter in { }\nchain forward {\n"
                f"type filter hook forward priority 9;\n{rules}}}\n}}\n"
            ))  # fmt: skip
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self._socket.close()

    def passed(self) -> tuple[int, int]:
        """Return the bytes that have passed the node (out, in), once it has ended."""
        with self._node.inside():
            listed = json.loads(run("nft", "-j", "list", "counters", "table", "inet", "witness"))
        found = {each["counter"]["name"]: each["counter"]["bytes"]
                 for each in listed["nftables"] if "counter" in each}  # fmt: skip
        sent, answer = (size + IP_UDP[self._socket.family] for size in (172, 1))
        assert self.count * sent <= found["out"] <= self.sent * sent
        assert found["in"] >= self.count * answer
        return found["out"], found["in"]

    def passes(self, count: int) -> None:
        """Wait until so many more are through."""
        wanted, deadline = self.count + count, time.monotonic() + PATIENCE_SECONDS
        while self.count < wanted:
            assert time.monotonic() < deadline, "the sender is stuck"
            self._ends.wait(0.001)


def test_an_address_that_is_reused_under_load_loses_and_doubles_no_byte(world: World) -> None:
    world.of_pods([("team-0", "uid-0", ("10.1.0.2",))])
    world.look()
    with Load(world, "10.1.0.2", INTERNET4) as load:
        for n in range(1, 40):
            load.passes(20)
            world.of_pods([(f"team-{n % 2}", f"uid-{n}", ("10.1.0.2",))])
            world.look()
        load.passes(20)
    sums = world.sums()
    for direction, size in zip(("out", "in"), load.passed(), strict=True):
        found = [sums[f"team-{n}", "internet", direction] for n in range(2)]
        assert all(found)
        assert sum(found) == size


def test_a_pod_that_is_gone_stays_in_the_sums_of_its_namespace(world: World) -> None:
    world.of_pods([("team-a", "a", ("10.1.0.2",)), ("team-a", "b", ("10.1.0.3",))])
    world.look()
    sent, received = world.datagrams("10.1.0.2", INTERNET4, 40, 100)
    wanted = {("team-a", "internet", "out"): sent, ("team-a", "internet", "in"): received}
    world.of_pods([("team-a", "b", ("10.1.0.3",))])
    for _ in range(4):
        world.becomes(wanted, of=("team-a",))
    with world.net.node.inside():
        names = run("nft", "list", "counters", "table", "inet", "fairlead")
    assert "ended/team-a/internet/out" in names
    assert "pod/team-a/a/" not in names
    more_sent, more_received = world.datagrams("10.1.0.3", INTERNET4, 10, 100)
    world.becomes({
        ("team-a", "internet", "out"): sent + more_sent,
        ("team-a", "internet", "in"): received + more_received,
    }, of=("team-a",))  # fmt: skip


def test_what_a_member_of_a_job_had_sent_is_reported_to_the_byte_also_by_another_agent(
    world: World,
) -> None:
    world.of_pods([("team-a", "a", ("10.1.0.2",))], job="train")
    world.look()
    sent, received = world.datagrams("10.1.0.2", INTERNET4, 40, 100)
    stored = world.datagrams("10.1.0.2", STORAGE4, 10, 50)
    world.of_pods([("team-a", "b", ("10.1.0.2",))], job="train")  # the next one has its address
    world.look()
    own = world.datagrams("10.1.0.2", INTERNET4, 5, 100)
    wanted = (EndedTrafficLine("team-a", "a", "internet", sent, received),
              EndedTrafficLine("team-a", "a", "storage", *stored))  # fmt: skip
    for counting in (world.counting, world.new_counting()):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (usage := world.look(counting).usage).ended != wanted:
            assert time.monotonic() < deadline, usage.ended
        found = [(e.sent, e.received) for e in usage.flows if e.job == "train"]
        assert found == [own], "one that runs, and no other"
    world.becomes({
        ("team-a", "internet", "out"): sent + own[0], ("team-a", "storage", "out"): stored[0],
        ("team-a", "internet", "in"): received + own[1], ("team-a", "storage", "in"): stored[1],
    }, of=("team-a",))  # fmt: skip


def drops_some(net: NetWorld) -> None:
    """Drop packets as a full queue does: one of 700 before the node counts it, and one of 1,000
    behind it.
    """
    for space, hook, every in ((net.node, "prerouting", 700), (net.outside, "input", 1000)):
        with space.inside():
            run("nft", "-f", "-", text=(
                f"table inet drops {{\nchain {hook} {{\ntype filter hook {hook} priority -300;\n"
                f"numgen inc mod {every} == 300 drop\n}}\n}}\n"
            ))  # fmt: skip


def test_other_rules_and_classes_lose_no_byte_under_load(world: World) -> None:
    drops_some(world.net)
    world.of_pods([("team-a", "a", ("10.1.0.2",))])
    world.look()
    with Load(world, "10.1.0.2", INTERNET4) as load:
        for n in range(40):
            prefix = ("8.8.8.0/24",) if n % 2 else ()
            world.look(
                world.new_counting(
                    ("peered", prefix), (("own-1", "own-2", "class")[n % 3], ("203.0.113.0/24",))
                )
            )
            load.passes(50)
    sums = world.sums()
    peered, internet = (sums["team-a", name, "out"] for name in ("peered", "internet"))
    assert peered > 0
    assert internet > 0
    assert peered + internet == load.passed()[0]
    assert load.count < load.sent, "what is dropped beside it does not stop it"


@pytest.mark.parametrize(
    ("source", "target", "prefix"),
    [("10.1.0.2", INTERNET4, "8.8.8.8/30"), ("10.1.0.2", INTERNET4, "8.8.8.0/24"),
     ("fd01::2", INTERNET6, "2a00:1450::/48")],
)  # fmt: skip
def test_a_class_that_stays_has_each_byte_while_the_rules_are_others(
    world: World, source: str, target: str, prefix: str
) -> None:
    world.of_pods([("team-a", "a", (source,))])
    classes = [world.new_counting(("peered", (prefix,)), (name, ("203.0.113.0/24",)))
               for name in ("own-1", "own-2")]  # fmt: skip
    world.look(classes[1])
    with Load(world, source, target) as load:
        for n in range(30):
            world.look(classes[n % 2])
            load.passes(50)
    found = {key[1]: size for key, size in world.sums().items()
             if key[0] == "team-a" and key[2] == "out" and size}  # fmt: skip
    assert found == {"peered": load.passed()[0]}


_FIRST_SHAPE = """
table inet fairlead {
    counter pod/team-a/a/internet/out { packets 1 bytes 100 }
    counter ruleset/0123456789abcdef { }
    set own4 { type ipv4_addr; elements = { 10.1.0.2 } }
    map internet-out4 {
        type ipv4_addr : counter; elements = { 10.1.0.2 : "pod/team-a/a/internet/out" }
    }
    map class-out4 { type ipv4_addr : verdict; flags interval; }
    chain out4 {
        ip daddr vmap @class-out4
        counter name ip saddr map @internet-out4
    }
    chain forward {
        type filter hook forward priority 10; policy accept;
        ip saddr @own4 jump out4
    }
}
"""


def test_rules_of_an_agent_of_before_are_taken_over_under_load(world: World) -> None:
    world.of_pods([("team-a", "a", ("10.1.0.2",))])
    with world.net.node.inside():
        run("nft", "-f", "-", text=_FIRST_SHAPE)
    with Load(world, "10.1.0.2", INTERNET4) as load:
        for _ in range(3):
            load.passes(50)
            world.look()
        load.passes(50)
    assert world.sums()["team-a", "internet", "out"] == 100 + load.passed()[0]
    with world.net.node.inside():
        listed = run("nft", "list", "table", "inet", "fairlead")
    names = set(re.findall(r"^\t(?:chain|map|set) (\S+) {", listed, re.MULTILINE))
    assert {"own4/1", "out4/1", "internet-out4/1"} < names
    assert {each for each in names if "/" not in each} == {"forward", "input", "output"}


def test_what_was_counted_goes_on_when_the_agent_is_killed_under_load(
    world: World, tmp_path: Path
) -> None:
    world.of_pods([("team-a", "a", ("10.1.0.2",))])
    world.look()
    config = tmp_path / "node.yaml"
    config.write_text(f"traffic: {{pods: {world.file}}}\n")
    report = tmp_path / "report.json"
    files = ["--state", str(tmp_path / "state"), "--report", str(report), "--config", str(config)]
    command = [sys.executable, "-m", "fairlead", "agent", "run", *files]
    with Load(world, "10.1.0.2", INTERNET4) as load:
        for n in range(3):
            world.of_pods([("team-a", f"a-{n}", ("10.1.0.2",))])
            report.unlink(missing_ok=True)
            with world.net.node.inside():
                agent = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            deadline = time.monotonic() + 60
            while not (report.exists() and json.loads(report.read_text())["traffic"]):
                assert agent.poll() is None
                assert time.monotonic() < deadline, "no traffic in the report"
                load.passes(1)
            os.kill(agent.pid, signal.SIGKILL)
            agent.wait()
    sent, received = load.passed()
    world.becomes({
        ("team-a", "internet", "out"): sent, ("team-a", "internet", "in"): received,
    }, of=("team-a",))  # fmt: skip
    lines = json.loads(report.read_text())["traffic"]["lines"]
    assert {each["namespace"] for each in lines} >= {"team-a"}


def test_250_pods_are_counted_each_for_itself(world: World) -> None:
    addresses = [f"10.1.1.{n}" for n in range(250)]
    world.net.add_addresses(*(f"{each}/16" for each in addresses))
    world.of_pods((f"team-{n % 5}", f"uid-{n}", (each,)) for n, each in enumerate(addresses))
    world.look()
    wanted: Sums = {}
    for n, each in enumerate(addresses):
        sent, received = world.datagrams(each, INTERNET4, 1 + n % 7, 100 + n)
        for direction, size in (("out", sent), ("in", received)):
            key = f"team-{n % 5}", "internet", direction
            wanted[key] = wanted.get(key, 0) + size
    world.becomes(wanted, of={f"team-{n}" for n in range(5)})
    with world.net.node.inside():
        found = read_usage(read_pods(PodSource(str(world.file))), top=3)
    assert found is not None
    largest = max(range(250), key=lambda n: (1 + n % 7) * (128 + n))
    top = found[1][0]
    assert (top.name, top.bytes) == (f"pod-uid-{largest}", (1 + largest % 7) * (128 + largest))


def test_a_table_that_another_program_removed_is_noticed_and_set_up_again(world: World) -> None:
    world.of_pods([("team-a", "a", ("10.1.0.2",))])
    assert not world.look().was_removed
    with world.net.node.inside():
        run("nft", "flush", "ruleset")
    assert world.look().was_removed
    sent, received = world.datagrams("10.1.0.2", INTERNET4, 10, 100)
    world.becomes({("team-a", "internet", "out"): sent, ("team-a", "internet", "in"): received},
                  of=("team-a",))  # fmt: skip


def test_the_commands_of_the_page_show_what_was_counted(world: World, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "node-agent.md").read_text()
    commands = re.findall(r"^\$ fairlead (agent network.*?)(?:\s+# .*)?$", page, re.MULTILINE)
    assert len(commands) == 3
    (tmp_path / "node.yaml").write_text(f"traffic: {{pods: {world.file}}}\n")
    world.of_pods([("team-a", "a", ("10.1.0.2",))])
    world.look()
    sent, received = world.datagrams("10.1.0.2", INTERNET4, 10, 100)
    world.becomes({("team-a", "internet", "out"): sent, ("team-a", "internet", "in"): received},
                  of=("team-a",))  # fmt: skip
    said = [commanded(world, each, tmp_path) for each in commands]
    row = ["team-a", "internet", "1.2Ki", "290B"]
    assert row in [line.split() for line in said[0].splitlines()]
    lines = [line.split() for line in said[1].splitlines()]
    assert row in lines
    assert ["team-a", "pod-a", "internet", "sent", "1.2Ki"] in lines
    assert read_here(world) is None


def test_the_command_gives_all_as_json(world: World, tmp_path: Path) -> None:
    world.of_pods([("team-a", "a", ("10.1.0.2",))])
    world.look()
    sent, _ = world.datagrams("10.1.0.2", INTERNET4, 10, 100)
    found = json.loads(commanded(world, "agent network --top 1 -o json", tmp_path))
    line = {"namespace": "team-a", "trafficClass": "internet", "direction": "out"}
    assert line | {"packets": 10, "bytes": sent} in found["lines"]
    assert found["pods"] == [line | {"name": "", "uid": "a", "bytes": sent}]


def commanded(world: World, command: str, folder: Path) -> str:
    with world.net.node.inside():
        done = subprocess.run(
            [sys.executable, "-m", "fairlead", *command.split()], cwd=folder,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def read_here(world: World) -> object:
    with world.net.node.inside():
        return read_usage((), top=0)


def test_without_the_right_it_says_so(world: World) -> None:
    bare = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"]
    with world.net.node.inside():
        done = subprocess.run(
            [*bare, sys.executable, "-m", "fairlead", "agent", "network"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert "needs root, or CAP_NET_ADMIN" in done.stderr


def test_without_nft_it_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nft, "PROGRAM", "nft-that-is-not-installed")
    with pytest.raises(OSError, match="package nftables"):
        world.look()
    monkeypatch.undo()
    world.look()


def test_elements_that_another_program_took_are_set_again(world: World) -> None:
    world.of_pods([("team-a", "a", ("10.1.0.2",))])
    world.look()
    with world.net.node.inside():
        run("nft", "delete", "element", "inet", "fairlead", "internet-in4/1", "{ 10.1.0.2 }")
        run("nft", "delete", "element", "inet", "fairlead", "own4/1", "{ 10.1.0.2 }")
    world.look()
    sent, received = world.datagrams("10.1.0.2", INTERNET4, 10, 100)
    world.becomes({("team-a", "internet", "out"): sent, ("team-a", "internet", "in"): received},
                  of=("team-a",))  # fmt: skip


def test_after_a_change_that_the_kernel_refused_the_rules_are_set_up_again(world: World) -> None:
    world.of_pods([("team-a", "a", ("10.1.0.2",))])
    world.look()
    with world.net.node.inside():
        run("nft", "delete", "element", "inet", "fairlead", "own4/1", "{ 10.1.0.2 }")
    world.of_pods([("team-a", "b", ("10.1.0.3",))])
    with pytest.raises(OSError, match="nft refuses"):
        world.look()
    world.look()
    sent, received = world.datagrams("10.1.0.3", INTERNET4, 10, 100)
    world.becomes({("team-a", "internet", "out"): sent, ("team-a", "internet", "in"): received},
                  of=("team-a",))  # fmt: skip


def test_no_other_table_is_touched_and_ours_is_taken_back(world: World) -> None:
    with world.net.node.inside():
        run("nft", "add", "table", "inet", "other")
        run("nft", "add", "chain", "inet", "other", "forward")
        before = run("nft", "list", "ruleset")
    world.of_pods([("team-a", "a", ("10.1.0.2",))])
    world.look()
    with world.net.node.inside():
        assert "table inet fairlead" in run("nft", "list", "ruleset")
        remove_table()
        assert run("nft", "list", "ruleset") == before
        assert read_usage((), top=0) is None


def test_coverage_says_when_pods_traffic_passes_netfilter_by(world: World) -> None:
    world.of_pods([("team-a", "a", ("10.1.0.2",))])
    world.look()
    world.datagrams("10.1.0.2", INTERNET4, 1000, 1400)
    assert world.look().usage.coverage_permille is not None
    covered = world.look().usage
    with world.net.node.inside():  # as a datapath that skips the hook does
        run("nft", "flush", "chain", "inet", "fairlead", "forward")
    world.datagrams("10.1.0.2", INTERNET4, 1000, 1400)
    assert world.look().usage.coverage_permille == 0
    assert covered.blind_spots == ()


def test_without_the_kubelet_the_counting_goes_on_and_says_so(world: World) -> None:
    world.of_pods([("team-a", "a", ("10.1.0.2",))])
    world.look()
    world.file.unlink()
    sent, _ = world.datagrams("10.1.0.2", INTERNET4, 10, 100)
    facts = world.look()
    assert facts.unreadable == (f"pods: {world.file} No such file or directory",)
    out = {e.bytes for e in facts.usage.lines if (e.namespace, e.direction) == ("team-a", "out")}
    assert out == {sent}
