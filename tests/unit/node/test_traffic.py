"""Whose an address is, what is folded, and what the counting says of itself."""

from __future__ import annotations

import http.server
import ipaddress
import json
import struct
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.node.host_tree import EPOCH, changed

from fairlead.model.health.faults import Moment
from fairlead.node.running.host import Host
from fairlead.node.settings import AgentSettings
from fairlead.node.source import Nothing
from fairlead.node.sources.traffic import COVERAGE, REMOVED, judge
from fairlead.node.traffic import (
    FlowLine,
    PodSource,
    TrafficFacts,
    TrafficUsage,
    netlink,
    read_pods,
)
from fairlead.node.traffic.ended import EndedPods, EndedTrafficLine
from fairlead.node.traffic.flows import JOBS_MAX, NAMESPACES_MAX, FlowGroup, FlowMeter
from fairlead.node.traffic.host_pods import find_hosts
from fairlead.node.traffic.netlink import Counted, NetworkDevice
from fairlead.node.traffic.pods import PODS_MAX, CountedPod, owners
from fairlead.node.traffic.ruleset import NODE, OTHERS, AddressOwner, counter_name, fold, parse_name
from fairlead.node.traffic.usage import SeenBytes, blind_spots, coverage, seen, usage_lines

AT = Moment(EPOCH, 3600.0)


def pod(uid: str, *addresses: str, namespace: str = "team-a", **fields: Any) -> CountedPod:
    meta = {"name": f"pod-{uid}", "namespace": namespace, "uid": uid}
    meta |= {key: fields.pop(key) for key in ("creationTimestamp", "deletionTimestamp")
             if key in fields}  # fmt: skip
    status = {"phase": fields.pop("phase", "Running"), "podIPs": [{"ip": a} for a in addresses]}
    return msgspec.convert({"metadata": meta, "spec": fields, "status": status}, CountedPod)


def of(*pods: CountedPod, own: tuple[str, ...] = ()) -> dict[str, str]:
    found, _ = owners(pods, map(ipaddress.ip_address, own))
    return {str(address): owner.uid for address, owner in found.items()}


def test_an_address_is_the_running_pods_and_not_that_of_one_that_has_ended_or_is_the_hosts() -> (
    None
):
    assert of(
        pod("a", "10.1.0.2", "fd01::2"), pod("b", "10.1.0.3", phase="Succeeded"),
        pod("c", "10.1.0.4", phase="Failed"), pod("d", "10.9.0.1", hostNetwork=True), pod("e"),
        own=("10.9.0.1",),
    ) == {"10.9.0.1": "", "10.1.0.2": "a", "fd01::2": "a"}  # fmt: skip


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_pods_with_one_address_the_one_that_stays_has_it_then_the_younger(
    order: int,
) -> None:
    old = pod("old", "10.1.0.2", creationTimestamp="2026-11-01T00:00:00Z")
    new = pod("new", "10.1.0.2", creationTimestamp="2026-11-02T00:00:00Z")
    leaving = pod("leaving", "10.1.0.2", creationTimestamp="2026-11-03T00:00:00Z",
                  deletionTimestamp="2026-11-03T00:01:00Z")  # fmt: skip
    assert of(*[old, new, leaving][::order]) == {"10.1.0.2": "new"}


def test_names_that_are_none_of_kubernetes_reach_no_counter() -> None:
    found, refused = owners(
        [pod("a", "10.1.0.2", namespace="x/../y"), pod("b c", "10.1.0.3"), pod("d", "ten")], ()
    )
    assert found == {}
    assert len(refused) == 3


def test_no_more_pods_are_counted_than_there_is_room_for() -> None:
    first = ipaddress.ip_address("10.1.0.0")
    found, refused = owners((pod(str(n), str(first + n)) for n in range(PODS_MAX + 2)), ())
    assert len(found) == PODS_MAX
    assert len(refused) == 2


UID = "0a1b2c3d-0000-1111-2222-333344445555"
UID_ = UID.replace("-", "_")


@pytest.mark.parametrize("path", [
    f"kubepods.slice/kubepods-pod{UID_}.slice",
    f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice",
    f"kubepods/besteffort/pod{UID}",
    f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
    f"kubelet-kubepods-besteffort-pod{UID_}.slice",
])  # fmt: skip
def test_the_cgroup_of_a_host_pod_is_found_as_kubelets_name_it(tmp_path: Path, path: str) -> None:
    root = tmp_path / "sys/fs/cgroup"
    for each in (path, f"kubepods/pod{UID[:-1]}6", f"user.slice/pod{UID}", f"pod{UID}"):
        (root / each / "container").mkdir(parents=True, exist_ok=True)
    host, pods = Host(tmp_path), [pod(UID, "10.9.0.1", hostNetwork=True)]
    assert find_hosts(host, pods) == ({}, "/sys/fs/cgroup is no hierarchy of cgroups of version 2")
    (root / "cgroup.controllers").write_text("cpu memory\n")
    assert find_hosts(host, pods) == ({path: AddressOwner("team-a", UID)}, "")
    others = [pod(UID, "10.1.0.2"), pod(UID, hostNetwork=True, phase="Failed"),
              pod(UID, hostNetwork=True, namespace='a"; flush ruleset'),
              pod('x" : "node', hostNetwork=True)]  # fmt: skip
    assert find_hosts(host, others) == ({}, "")
    found, why = find_hosts(host, [*pods, pod("b-1", hostNetwork=True)])
    assert (len(found), why) == (1, "the cgroup of 1 of them is not known")


def test_what_host_pods_had_sent_is_kept_apart_from_what_pods_devices_carry() -> None:
    name = counter_name(AddressOwner("infra", "h"), "internet", "out", is_host=True)
    text = str(fold({name: (2, 70)}, {"host-ended/infra/internet/out": (1, 30)}, namespaces_max=5))
    assert "'host-ended/infra/internet/out', 'packets': 3, 'bytes': 100" in text
    found = {name: Counted(2, 70, 1), "host-ended/infra/internet/out": Counted(1, 30, 0)}
    assert seen(found, []).counted == 0
    assert [(each.namespace, each.bytes) for each in usage_lines(found)] == [("infra", 100)]


def test_a_name_says_whose_a_counter_is() -> None:
    for owner in (AddressOwner("team-a", "uid-1"), NODE):
        found = parse_name(counter_name(owner, "internet", "out"))
        assert found is not None
        assert (found.namespace, found.uid) == owner
    assert parse_name("ruleset/0123") is None


def test_folding_keeps_every_sum_and_bounds_the_namespaces() -> None:
    finals = {f"pod/team-{n}/u/internet/out": (1, 10 + n) for n in range(4)}
    finals["pod/team-0/v/internet/out"] = 2, 7
    finals["pod/team-0/v/internet/in"] = 0, 0
    ended = {"ended/team-0/internet/out": (5, 100)}
    commands = fold(finals, ended, namespaces_max=3)
    made = {c["add"]["counter"]["name"]: c["add"]["counter"]["bytes"] for c in commands
            if "add" in c}  # fmt: skip
    gone = {c["delete"]["counter"]["name"] for c in commands if "delete" in c}
    assert gone == {*finals, *ended}
    assert made == {
        "ended/team-0/internet/out": 117, "ended/team-1/internet/out": 11,
        "ended/team-2/internet/out": 12, f"ended/{OTHERS}/internet/out": 13,
    }  # fmt: skip


def test_folding_again_adds_to_the_namespaces_that_have_no_room() -> None:
    ended = {"ended/a/internet/out": (1, 5), f"ended/{OTHERS}/internet/out": (1, 13)}
    (*_, last) = fold({"pod/b/u/internet/out": (1, 4)}, ended, namespaces_max=1)
    assert last["add"]["counter"]["name"] == f"ended/{OTHERS}/internet/out"
    assert last["add"]["counter"]["bytes"] == 17


def test_lines_add_up_what_runs_and_what_has_ended_and_leave_out_what_has_no_bytes() -> None:
    lines = usage_lines({
        "pod/a/u/internet/out": Counted(1, 10, 1), "ended/a/internet/out": Counted(2, 20, 0),
        "pod/a/u/internal/in": Counted(0, 0, 1), "node/internal/in": Counted(1, 7, 4),
        "ruleset/0": Counted(0, 0, 0),
    })  # fmt: skip
    assert [(each.namespace, each.traffic_class, each.packets, each.bytes) for each in lines] == [
        ("", "internal", 1, 7), ("a", "internet", 3, 30),
    ]  # fmt: skip


def counts(**sizes: int) -> dict[str, Counted]:
    """Return counters of what pods of uid "a", "b" ... have sent to the internet."""
    return {
        (f"pod/ns/{uid}/internet/out" if uid != "ended" else "ended/ns/internet/out"):
        Counted(1, size, 1)
        for uid, size in sizes.items()
    }  # fmt: skip


GROUPS = {AddressOwner("ns", "a"): FlowGroup("ns", "", "train-7"),
          AddressOwner("ns", "b"): FlowGroup("ns")}  # fmt: skip


def by_job(lines: tuple[FlowLine, ...]) -> dict[str, tuple[int, int]]:
    return {each.job: (each.sent, each.sent_rate) for each in lines}


def test_a_rate_follows_what_a_job_sends_and_forgets_it_when_it_sends_no_more() -> None:
    meter = FlowMeter()
    assert by_job(meter.lines(counts(a=10**6), GROUPS, 0.0)) == {"train-7": (10**6, 0)}
    size, found = 10**6, (0, 0)
    for n in range(1, 61):
        size += 5 * 10**6  # 8 Mbit/s
        found = by_job(meter.lines(counts(a=size), GROUPS, 5.0 * n))["train-7"]
    assert found[0] == size
    assert 7.8e6 < found[1] <= 8e6
    for n in range(61, 121):
        found = by_job(meter.lines(counts(a=size), GROUPS, 5.0 * n))["train-7"]
    assert found == (size, pytest.approx(0, abs=10**5))


def test_what_a_pod_that_ended_had_sent_moves_to_its_namespace_and_is_no_traffic() -> None:
    meter = FlowMeter()
    meter.lines(counts(a=10**9, b=1), GROUPS, 0.0)
    meter.lines(counts(a=10**9, b=1), {}, 5.0)  # it has no element any more
    found = by_job(meter.lines(counts(ended=10**9, b=1), GROUPS, 10.0))
    assert found == {"": (10**9 + 1, 0)}


def finals(*pods: str, **sizes: int) -> dict[str, int]:
    cells = [(name, way) for name in ("internal", "internet") for way in ("out", "in")]
    return {f"pod/ns/{uid}/{name}/{way}": sizes.get(f"{name}_{way}", 0)
            for uid in pods for name, way in cells}  # fmt: skip


def test_what_a_member_had_sent_stays_until_it_can_have_been_reported() -> None:
    ended = EndedPods()
    found = finals("a", internet_out=7, internet_in=5) | finals("b")
    assert ended.surplus(found, {AddressOwner("ns", "b")}, 100.0) == set(finals("b"))
    assert ended.lines == (EndedTrafficLine("ns", "a", "internet", 7, 5),)
    assert ended.surplus(finals("a", internet_out=7, internet_in=5), (), 999.0) == set()
    again = EndedPods()  # the agent is another one: it goes on from what the kernel has
    assert again.surplus(finals("a", internet_out=7, internet_in=5), (), 999.0) == set()
    assert again.lines == (EndedTrafficLine("ns", "a", "internet", 7, 5),)
    assert ended.surplus(finals("a", internet_out=7), (), 1000.0) == set(finals("a"))
    assert ended.lines == ()


def test_a_member_that_sent_nothing_has_a_line_that_says_so() -> None:
    ended = EndedPods()
    assert ended.surplus(finals("a"), (), 0.0) == set()
    assert ended.lines == (EndedTrafficLine("ns", "a", "internal", 0, 0),)


def test_of_many_members_that_ended_the_latest_are_reported_and_those_of_others_stay() -> None:
    ended = EndedPods()
    there = {"pod/victim/v/internal/out": 7}
    for n in range(100):
        there |= finals(f"u{n:03}", internal_out=1)
        for name in ended.surplus(there, (), float(n)):
            del there[name]
        assert len(there) <= 64 * 4
    latest = [f"u{n:03}" for n in range(37, 100)]
    assert [each.uid for each in ended.lines] == [*latest, "v"]
    there |= {f"pod/ns/wide/own-{n}/out": 1 for n in range(88)}
    ended.surplus(there, (), 101.0)
    assert len(ended.lines) == 96
    assert [each.uid for each in ended.lines if each.uid != "wide"] == [*latest[-7:], "v"]


def test_a_counter_that_began_again_is_no_negative_rate_of_traffic() -> None:
    meter = FlowMeter()
    meter.lines(counts(a=10**9), GROUPS, 0.0)
    assert by_job(meter.lines(counts(a=100), GROUPS, 5.0))["train-7"][1] >= 0


def test_a_namespace_with_many_jobs_leaves_the_lines_of_others() -> None:
    counters = {f"pod/evil/u{n}/internet/out": Counted(1, 10**9 + n, 1) for n in range(500)}
    counters |= {f"pod/ns-{n}/v{n}/internal/in": Counted(1, 10 + n, 1) for n in range(40)}
    counters["node/internal/in"] = Counted(1, 1, 1)
    groups = {AddressOwner("evil", f"u{n}"): FlowGroup("evil", "", f"job-{n}") for n in range(500)}
    lines = FlowMeter().lines(counters, groups, 0.0)
    shown = {each.namespace for each in lines}
    assert {"", "evil", OTHERS} < shown
    assert len(shown) == NAMESPACES_MAX + 2
    assert sum(bool(each.job) for each in lines) == JOBS_MAX
    assert sum(each.sent + each.received for each in lines) == sum(
        each.size for each in counters.values()
    )


def test_a_pod_is_grouped_by_its_labels() -> None:
    labels = {"fairlead.dev/job-name": "train-7", "fairlead.dev/team": "vision"}
    found = pod("a", "10.1.0.2")
    found.metadata.labels = labels
    assert found.group == ("team-a", "vision", "train-7")
    assert pod("b", "10.1.0.3").group == ("team-a", "", "")


def test_coverage_compares_counted_bytes_with_those_of_pods_devices_without_their_headers() -> None:
    links = [NetworkDevice("veth1", "veth", 10, 10 * 114), NetworkDevice("eth0", "", 99, 99_999)]
    now = seen({"pod/a/u/internet/out": Counted(5, 500, 1), "node/internet/out": Counted(1, 9, 1)},
               links)  # fmt: skip
    assert now == SeenBytes(1000, 500)
    assert coverage(SeenBytes(0, 0), now, bytes_min=1) == 500
    assert coverage(SeenBytes(0, 0), now, bytes_min=1001) is None, "too few to judge"
    assert coverage(SeenBytes(5000, 0), now, bytes_min=1) is None, "a device is gone"


def attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def test_a_counter_is_read_whatever_the_order_of_its_attributes() -> None:
    number = attribute(1, struct.pack(">Q", 1 << 40)) + attribute(2, struct.pack(">Q", 3))
    table, name, handle = attribute(1, b"fairlead\0"), attribute(2, b"pod/a/u/x/in\0"), bytes(8)
    kind, use = attribute(3, struct.pack(">I", 1)), attribute(5, struct.pack(">I", 2))
    handle, data = attribute(6, handle), attribute(4, number)
    head = bytes(20)
    wanted = "pod/a/u/x/in", Counted(3, 1 << 40, 2)
    usual = head + table + name + kind + handle + use + data
    assert netlink._counter(usual, 16) == wanted
    for other in (
        head + table + name + data + use + handle + kind,
        head + table + data + kind + handle + use + name,
        usual + attribute(8, b"comment"),
        head + table + name + kind + handle + use + attribute(4 | 1 << 15, number),
    ):
        assert netlink._counter(other, 16) == wanted


def test_what_is_never_counted_is_named() -> None:
    spots = blind_spots(
        [NetworkDevice("ipvl0", "ipvlan", 0, 0), NetworkDevice("v", "veth", 0, 0)], has_rdma=True
    )
    assert [each.split(":")[0] for each in spots] == ["RDMA", "ipvl0"]


@pytest.mark.parametrize(("part", "least", "found"), [
    (499, 50, {COVERAGE}), (500, 50, set()), (None, 50, set()), (0, 0, set()),
])  # fmt: skip
def test_a_part_that_is_not_seen_is_a_fault(part: int | None, least: int, found: set[str]) -> None:
    settings = changed(AgentSettings(), "traffic", coverage_percent_min=least)
    judged = judge(TrafficFacts(TrafficUsage((), part)), Nothing(), AT, settings=settings)
    assert {each.identity.check for each in judged.observations} == found
    assert bool(judged.skipped) == (part is None or not least)


def test_a_table_that_somebody_removed_is_a_fault() -> None:
    facts = TrafficFacts(TrafficUsage((), 1000), was_removed=True)
    judged = judge(facts, Nothing(), AT, settings=AgentSettings())
    assert {each.identity.check for each in judged.observations} == {REMOVED}


class Kubelet(http.server.BaseHTTPRequestHandler):
    """Answers /pods to who has the token."""

    def do_GET(self) -> None:
        is_known = self.headers["Authorization"] == "Bearer secret"
        body = {"items": [{"metadata": {"name": "x", "namespace": "a", "uid": "u"}, "spec": {},
                           "status": {"podIPs": [{"ip": "10.1.0.2"}]}}]}  # fmt: skip
        self.send_response(200 if is_known and self.path == "/pods" else 401)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode() if is_known else b"Unauthorized")

    def log_message(self, *_: object) -> None:
        """Be quiet."""


def test_pods_come_from_the_kubelet_with_its_token_and_a_refusal_says_so(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    with http.server.HTTPServer(("127.0.0.1", 0), Kubelet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            place = f"http://127.0.0.1:{server.server_port}/pods"
            (found,) = read_pods(PodSource(place, str(tmp_path / "token")))
            assert found.owner == AddressOwner("a", "u")
            with pytest.raises(OSError, match="answers 401"):
                read_pods(PodSource(place))
        finally:
            server.shutdown()
            thread.join()
    with pytest.raises(OSError, match="refused"):
        read_pods(PodSource(place))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"items": [{}]}', '{"items": [{"metadata": 7}]}'])
def test_what_is_no_list_of_pods_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "pods.json").write_text(text)
    with pytest.raises(OSError, match="is no list of pods"):
        read_pods(PodSource(str(tmp_path / "pods.json")))
