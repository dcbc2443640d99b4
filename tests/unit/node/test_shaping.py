"""Which limits apply, by which means they are kept, and what they are said to do."""

from __future__ import annotations

import ipaddress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.cluster.node_report import DESTINATIONS_MAX
from fairlead.api.values.egress import (
    BITS_MAX,
    POD_BITS_MIN,
    TrafficDirection,
    egress_bits,
    rate_text,
)
from fairlead.api.values.times import format_time
from fairlead.input.errors import CliError, render_error
from fairlead.input.sections import parse
from fairlead.model.egress_lease import BITS_PER_SECOND_MIN
from fairlead.node.registry import conflicts
from fairlead.node.settings import AgentSettings
from fairlead.node.shaping import devices
from fairlead.node.shaping.classes import (
    LEAVES,
    HtbClass,
    Key,
    additions,
    deletions,
    plan_classes,
    pod_key,
)
from fairlead.node.shaping.devices import DeviceQueues, NoSuchQueue, Route
from fairlead.node.shaping.limits import (
    ALL,
    EGRESS,
    INGRESS,
    TEAMS_MAX,
    DestinationRate,
    EgressLimits,
    EgressRates,
    ShapedPod,
    TeamRate,
    TrafficWay,
    bandwidth_limits,
    decode_rates,
    destination_limits,
    limits_of,
)
from fairlead.node.shaping.mechanism import MechanismChoice, choose, single_route
from fairlead.node.shaping.table import (
    Mechanism,
    ShapingTable,
    changes,
    parse_table,
    wanted_table,
)
from fairlead.node.shaping.use import Flow, TeamEgress, flow_lines
from fairlead.node.traffic import plan_of
from fairlead.node.traffic.pods import CountedPod, owners
from fairlead.node.traffic.ruleset import AddressOwner

M, G = 10**6, 10**9
AT, AT_TEXT = 1_800_000_000.0, "2027-01-15T08:00:00Z"
KEY = "fairlead.dev/internet-egress"


def pod(
    uid: str, address: str, egress: str | None = None, *, namespace: str = "a", team: str = ""
) -> CountedPod:
    meta: dict[str, Any] = {"name": f"pod-{uid}", "namespace": namespace, "uid": uid}
    meta |= {"annotations": {KEY: egress}} if egress is not None else {}
    meta |= {"labels": {"fairlead.dev/team": team}} if team else {}
    value = {"metadata": meta, "spec": {}, "status": {"podIPs": [{"ip": address}]}}
    return msgspec.convert(value, CountedPod)


def limits(*pods: CountedPod, rates: EgressRates | None = None, most: int = 0) -> EgressLimits:
    found, _ = owners(pods, [ipaddress.ip_address("10.9.0.1")])
    return limits_of(pods, found, rates, AT, pod_bits_max=most)


def shares(**bits: int) -> EgressRates:
    teams = tuple(TeamRate(name, ("a",), each, each) for name, each in bits.items())
    return EgressRates(1, AT_TEXT, teams)


@pytest.mark.parametrize(
    "text", ["0", "-5M", "1e99", "1", "200Mbit", "", " 200M", "NaN", "200M; drop", "9" * 10_000]
)
def test_an_annotation_that_is_no_rate_counts_for_nothing_and_is_listed(text: str) -> None:
    found = limits(pod("x", "10.1.0.2", text))
    assert found.pods == ()
    (line,) = found.refused
    assert line.startswith(f"a/pod-x: {KEY}: ")
    assert len(line) < 200


@given(st.text(max_size=20))
def test_whatever_a_tenant_writes_is_a_rate_in_bounds_or_refused(text: str) -> None:
    try:
        bits = egress_bits(text)
    except ValueError:
        return
    assert POD_BITS_MIN <= bits <= BITS_MAX


@given(st.integers(POD_BITS_MIN, BITS_MAX))
def test_a_rate_is_read_as_it_is_shown(bits: int) -> None:
    assert egress_bits(rate_text(bits)) == pytest.approx(bits, rel=0.006)


@pytest.mark.parametrize(
    ("text", "most", "bits"),
    [("200M", 0, 200 * M), ("200M", 50 * M, 50 * M), ("10G", 50 * M, 50 * M),
     (None, 50 * M, 50 * M), ("1M", 50 * M, M), ("garbage", 50 * M, 50 * M)],
)  # fmt: skip
def test_an_annotation_lowers_what_is_allowed_and_never_raises_it(
    text: str | None, most: int, bits: int
) -> None:
    (found,) = limits(pod("x", "10.1.0.2", text), most=most).pods
    assert found.bits == bits


@pytest.mark.parametrize(
    ("label", "team"), [("", "red"), ("blue", "blue"), ("red", "red"), ("none-such", "red")]
)
def test_no_label_leads_out_of_all_budgets(label: str, team: str) -> None:
    found = limits(pod("x", "10.1.0.2", "10G", team=label), rates=shares(blue=M, red=2 * M, aa=1))
    assert [each.team for each in found.pods] == [team if label in ("blue", "red") else "aa"]


def test_a_pod_of_no_team_with_a_budget_has_its_own_limit_alone() -> None:
    found = limits(pod("x", "10.1.0.2", "10M", namespace="b"), rates=shares(red=M))
    assert [(each.bits, each.team) for each in found.pods] == [(10 * M, "")]
    assert found.teams == {}


def test_rates_that_are_old_fall_to_the_safe_share_and_never_to_nothing() -> None:
    rates = EgressRates(1, "2027-01-14T08:00:00Z", (TeamRate("red", ("a",), G, 0),))
    assert limits(pod("x", "10.1.0.2"), rates=rates).teams == {"red": BITS_PER_SECOND_MIN}


@pytest.mark.parametrize("data", [
    b"", b"[]", b"{}", b'{"version": 2, "at": "2027-01-15T08:00:00Z", "teams": []}',
    b'{"version": 1, "at": "yesterday", "teams": []}',
    msgspec.json.encode(EgressRates(1, AT_TEXT, (TeamRate("x", (), 1, 1),) * (TEAMS_MAX + 1))),
    msgspec.json.encode(EgressRates(1, AT_TEXT, (), destinations=(
        DestinationRate("x", TrafficDirection.EGRESS, 1, 1),) * (DESTINATIONS_MAX + 1))),
])  # fmt: skip
def test_a_file_of_rates_that_is_wrong_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"it has|it is no|time"):
        decode_rates(data)


@st.composite
def wanted(draw: st.DrawFn) -> EgressLimits:
    teams = draw(st.dictionaries(st.sampled_from(["red", "blue"]), st.integers(8_000, 10**11)))
    pods = [
        ShapedPod(AddressOwner("a", f"uid-{n}"), f"pod-{n}",
                  (ipaddress.ip_address(f"10.1.0.{n + 1}"), ipaddress.ip_address(f"fd01::{n + 1}")),
                  draw(st.integers(64_000, 10**11)),
                  draw(st.sampled_from(["", *sorted(teams)])))
        for n in sorted(draw(st.sets(st.integers(0, 9), max_size=8)))
    ]  # fmt: skip
    used = {each.team for each in pods}
    return EgressLimits(tuple(pods), {k: v for k, v in teams.items() if k in used})


@given(st.lists(wanted(), min_size=1, max_size=4))
def test_promises_of_a_teams_pods_add_up_to_its_rate_and_numbers_stay(
    steps: list[EgressLimits],
) -> None:
    numbers: dict[Any, int] = {}
    for step in steps:
        plan = plan_classes(step, numbers)
        assert len(set(plan.numbers.values())) == len(plan.numbers) == len(plan.classes)
        for key in plan.numbers.keys() & numbers.keys():
            assert plan.numbers[key] == numbers[key]
        assert not {plan.numbers[k] for k in plan.numbers.keys() - numbers.keys()} & set(
            numbers.values()
        )
        for name, bits in step.teams.items():
            number = plan.numbers["team", name, ""]
            below = [each for each in plan.classes.values() if each.parent == number]
            assert below
            assert sum(each.rate for each in below) <= max(
                plan.classes[number].rate, 8 * len(below)
            )
            assert all(each.ceil <= bits for each in below)
        numbers = dict(plan.numbers)


@pytest.mark.parametrize(("leaf", "queues"), [("fq_codel", [[1], []]), ("bfifo", [[1], [1]])])
def test_a_queue_that_is_not_fair_follows_its_rate_so_that_nothing_waits_long(
    leaf: str, queues: list[list[int]]
) -> None:
    numbers: dict[Key, int] = {}
    there: dict[int, HtbClass] = {}
    leaves: set[int] = set()
    for bits, wanted_queues in zip((20 * M, 80 * M), queues, strict=True):
        plan = plan_classes(EgressLimits((shaped("x", bits=bits),)), numbers)
        lines = additions("eth0", plan, there, leaves, leaf=leaf)
        made = [line for line in lines if line.startswith("qdisc")]
        assert [int(line.split()[5].partition(":")[2], 16) for line in made] == wanted_queues
        if leaf == "bfifo":  # 50 ms, and a packet before it is segmented at least
            assert [line.split()[-1] for line in made] == [str(max(3 << 15, bits // 160))]
        assert additions("eth0", plan, plan.classes, {1}, leaf=leaf) == []
        there, numbers, leaves = dict(plan.classes), dict(plan.numbers), {1}


@given(st.integers(POD_BITS_MIN, BITS_MAX))
def test_whatever_rate_a_tenant_asks_for_its_queue_is_one_that_the_kernel_takes(bits: int) -> None:
    plan = plan_classes(EgressLimits((shaped("x", bits=bits),)), {})
    (line,) = (e for e in additions("eth0", plan, {}, (), leaf="bfifo") if e.startswith("qdisc"))
    assert 3 << 15 <= int(line.split()[-1]) < 1 << 32


@pytest.mark.parametrize(
    ("built", "wanted"),
    [(("fq_codel", "fq", "sfq"), "fq_codel"), (("fq", "sfq"), "fq"), (("sfq",), "sfq"),
     ((), "bfifo")],
)  # fmt: skip
def test_each_pod_gets_the_best_fair_queue_that_the_kernel_was_built_with(
    built: tuple[str, ...], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def tc(*command: str, data: bytes = b"") -> bytes:
        assert command == ("tc", "-batch", "-")
        asked.append(data.decode())
        if data.decode().split()[-1] not in built:
            raise NoSuchQueue("the kernel has no queue of this kind")
        return b""

    monkeypatch.setattr(devices, "run", tc)
    leaf = devices.find_leaf("eth0", "7a1d:2")
    assert leaf == wanted
    kinds = LEAVES[: LEAVES.index(wanted) + (wanted in built)]
    assert asked == [f"qdisc replace dev eth0 parent 7a1d:2 {each}\n" for each in kinds]
    plan = plan_classes(EgressLimits((shaped("x"), shaped("y"))), {})
    lines = [line.split() for line in additions("eth0", plan, {}, (), leaf=leaf)]
    made = [line[6] for line in lines if line[0] == "qdisc"]
    assert made == [wanted] * 2, "a queue of its own for each pod"


def test_classes_below_are_deleted_before_those_above() -> None:
    there = {1: HtbClass(0, 8, 8), 2: HtbClass(1, 8, 8)}
    lines = deletions("eth0", plan_classes(EgressLimits(), {}), there)
    assert [line.split()[-1] for line in lines] == ["7a1d:2", "7a1d:1"]


def applied(table: ShapingTable, commands: list[dict[str, Any]]) -> ShapingTable:
    """Return what the kernel makes of a transaction; it refuses as the kernel does."""
    marker, limits_, counters = table.marker, dict(table.limits), set(table.counters)
    elements = {name: dict(there) for name, there in table.elements.items()}
    for command in commands:
        ((verb, body),) = command.items()
        ((kind, fields),) = body.items()
        name = fields.get("name", "")
        match verb, kind:
            case "delete", "table":
                marker, limits_, counters, elements = "", {}, set(), {}
            case "add", "counter" if name.startswith("rules/"):
                marker = name
            case "add", "counter":
                counters.add(name)
            case "delete", "counter":
                assert not any(name in e.values() for e in elements.values()), "in use"
                counters.remove(name)
            case "add", "limit":
                assert name not in limits_
                limits_[name] = int(name.rpartition("/")[2])
            case "delete", "limit":
                assert not any(name in e.values() for e in elements.values()), "in use"
                del limits_[name]
            case "add", "set" | "map" if not name.startswith(("free", "destinations", "origins")):
                elements[name] = {}
            case "add", "element":
                for each in fields["elem"]:
                    address, to = each if isinstance(each, list) else (each, "")
                    assert address not in elements[name]
                    assert not to or ":" in to or to in limits_ or to in counters
                    elements[name][address] = to
            case "delete", "element":
                for address in fields["elem"]:
                    del elements[name][address]
            case _:
                pass
    return ShapingTable(marker, limits_, frozenset(counters), elements)


ALL_WAYS = [TrafficWay(ALL, each) for each in TrafficDirection]
STEP = st.tuples(
    wanted(), st.sampled_from(Mechanism), wanted(),
    st.dictionaries(
        st.sampled_from([TrafficWay("storage", each) for each in TrafficDirection]),
        st.integers(8_000, 10**11),
    ),
    st.dictionaries(st.sampled_from(ALL_WAYS), wanted()),
)  # fmt: skip


@given(st.lists(STEP, min_size=1, max_size=5))
def test_each_transaction_leads_from_what_there_is_to_what_is_wanted(
    steps: list[
        tuple[
            EgressLimits,
            Mechanism,
            EgressLimits,
            dict[TrafficWay, int],
            dict[TrafficWay, EgressLimits],
        ]
    ],
) -> None:
    plan, held, numbers = plan_of(()), ShapingTable(), dict[Any, int]()
    for step, mechanism, ingress, destinations, everything in steps:
        ways = {EGRESS: step, INGRESS: ingress}
        for way, each in everything.items():
            alone = tuple(pod._replace(team="") for pod in each.pods if pod.bits)
            ways[way] = EgressLimits(alone)
        for way, bits in destinations.items():
            pods = tuple(each._replace(bits=0, team="@storage") for each in step.pods)
            ways[way] = EgressLimits(pods, {"@storage": bits} if pods else {})
        sent = [each for way, each in ways.items() if way.can_wait]
        both = EgressLimits(tuple(pod for each in sent for pod in each.pods),
                            {k: v for each in sent for k, v in each.teams.items()})  # fmt: skip
        classes = plan_classes(both, numbers)
        numbers = dict(classes.numbers)
        new = wanted_table(plan, mechanism, ways, classes.ids())
        held = applied(held, changes(plan, mechanism, held, new))
        assert held == new
        assert changes(plan, mechanism, held, new) == []


def test_a_table_that_nft_lists_is_read_back() -> None:
    assert parse_table([
        {"metainfo": {}}, {"counter": {"name": "rules/abc"}}, {"counter": {"name": "pod/a/x"}},
        {"limit": {"name": "pod/a/x/64000"}}, {"set": {"name": "shaped4", "elem": ["10.1.0.2"]}},
        {"set": {"name": "free4", "elem": []}}, {"map": {"name": "team4"}},
        {"map": {"name": "pod4", "elem": [["10.1.0.2", "pod/a/x/64000"]]}}, {"chain": {}},
    ]) == ShapingTable(
        "rules/abc", {"pod/a/x/64000": 64_000}, frozenset({"pod/a/x"}),
        {"shaped4": {"10.1.0.2": ""}, "team4": {}, "pod4": {"10.1.0.2": "pod/a/x/64000"}},
    )  # fmt: skip


def test_without_a_limit_of_what_pods_receive_there_are_no_rules_for_it() -> None:
    plan, one = plan_of(()), limits(pod("x", "10.1.0.2", "1M"))
    ids = {pod_key("x", ""): "7a1d:1"}
    without = wanted_table(plan, Mechanism.HTB, {EGRESS: one}, ids)
    both = wanted_table(plan, Mechanism.HTB, {EGRESS: one, INGRESS: one}, ids)
    assert "ingress" not in str(changes(plan, Mechanism.HTB, ShapingTable(), without))
    assert "ingress" in str(changes(plan, Mechanism.HTB, ShapingTable(), both))
    assert both.limits == {"in-pod/a/x/1000000": M}
    assert without.limits == {}


def test_annotations_of_a_bandwidth_limit_all_traffic_of_their_pod_alone() -> None:
    one, two = pod("x", "10.1.0.2", "1M"), pod("y", "10.1.0.3")
    one.metadata.annotations |= {"kubernetes.io/egress-bandwidth": "2k",
                                 "kubernetes.io/ingress-bandwidth": "1"}  # fmt: skip
    whose, _ = owners([one, two], [])
    found = bandwidth_limits([one, two], whose)
    egress, ingress = (found[each] for each in ALL_WAYS)
    assert [(each.name, each.bits, each.team) for each in egress.pods] == [("pod-x", 2_000, "")]
    assert ingress.pods == ()
    assert "ingress-bandwidth: 1 must be from 1k" in ingress.refused[0]
    plan, ids = plan_of(()), {pod_key("x", ""): "7a1d:1"}
    ways = {EGRESS: limits_of([one, two], whose, None, AT), **found}
    for mechanism in Mechanism:
        table = wanted_table(plan, mechanism, ways, ids)
        assert table.elements["all-pod4"] == {"10.1.0.2": "all-pod/a/x/2000"}
        assert table.limits["all-pod/a/x/2000"] == 2_000
        assert "shaped-in4" not in table.elements, "nothing is limited of what pods receive"
        rules = [each["add"]["rule"] for each in changes(plan, mechanism, ShapingTable(), table)
                 if "rule" in each.get("add", {})]  # fmt: skip
        own = [each for each in rules if "@all-pod4" in str(each)]
        assert [each["chain"] for each in own] == ["forward"], "whatever is at the other end"


def test_each_direction_has_limits_and_shares_of_its_own() -> None:
    one = pod("x", "10.1.0.2", "1M")
    one.metadata.annotations = {KEY: "1M", "fairlead.dev/internet-ingress": "fast"}
    rates = msgspec.structs.replace(shares(red=5 * M), ingress=shares(blue=7 * M).teams)
    whose, _ = owners([one], [])
    found = {each: limits_of([one], whose, rates, AT, direction=each) for each in TrafficDirection}
    egress, ingress = found[TrafficDirection.EGRESS], found[TrafficDirection.INGRESS]
    assert (egress.pods[0].bits, dict(egress.teams), egress.refused) == (M, {"red": 5 * M}, ())
    assert (ingress.pods[0].bits, dict(ingress.teams)) == (0, {"blue": 7 * M})
    assert "internet-ingress: 'fast' is no rate" in ingress.refused[0]


def test_no_label_and_no_namespace_leads_out_of_what_all_share_of_a_destination() -> None:
    pods = [pod("x", "10.1.0.2", "10G", namespace="a", team="red"),
            pod("y", "10.1.0.3", namespace="b", team="@storage"),
            pod("z", "10.9.0.1", namespace="c")]  # fmt: skip
    whose, _ = owners(pods, [ipaddress.ip_address("10.9.0.1")])  # z claims the node's address
    given = tuple(DestinationRate(each, TrafficDirection.EGRESS, M, M)
                  for each in ("storage", "internal", "internet", "none"))  # fmt: skip
    rates = EgressRates(1, AT_TEXT, (), destinations=given)
    classes = plan_of(()).classes
    found, refused = destination_limits(pods, whose, rates, AT, classes=classes)
    assert list(found) == [TrafficWay("storage", TrafficDirection.EGRESS)]
    (limits_,) = found.values()
    assert [(each.owner.uid, each.bits, each.team) for each in limits_.pods] == [
        ("x", 0, "@storage"), ("y", 0, "@storage"),
    ]  # fmt: skip
    assert limits_.teams == {"@storage": M}
    assert len(refused) == 3
    old = msgspec.structs.replace(rates, at="2027-01-14T08:00:00Z")
    found, _ = destination_limits(pods, whose, old, AT, classes=classes)
    assert found[TrafficWay("storage", TrafficDirection.EGRESS)].teams == {"@storage": M}


def test_a_destination_falls_to_its_safe_share_once_nothing_divides_it() -> None:
    whose, _ = owners([one := pod("x", "10.1.0.2")], [])
    given = (DestinationRate("storage", TrafficDirection.INGRESS, 64 * M, M),)
    for seconds, bits in ((800, 64 * M), (1_050, 64 * M - 63 * M * 6 // 10), (1_300, M)):
        rates = EgressRates(1, format_time(AT - seconds), (), destinations=given)
        found, _ = destination_limits([one], whose, rates, AT, classes=("storage",))
        ((_, limit),) = next(iter(found.values())).teams.items()
        assert limit == bits


ROUTE = Route("eth0", "10.0.0.1")


@pytest.mark.parametrize(("setting", "queues", "mechanism", "why"), [
    ("auto", DeviceQueues("eth0", "fq_codel"), Mechanism.HTB, ""),
    ("auto", DeviceQueues("eth0", "noqueue"), Mechanism.HTB, ""),
    ("auto", DeviceQueues("eth0", "htb", is_ours=True, is_default=False), Mechanism.HTB, ""),
    ("auto", DeviceQueues("eth0", "htb", is_default=False), Mechanism.LIMIT, "root qdisc htb of"),
    ("htb", DeviceQueues("eth0", "cake", is_default=False), Mechanism.LIMIT, "root qdisc cake of"),
    ("auto", DeviceQueues("eth0", "mq"), Mechanism.LIMIT, "several transmit queues"),
    ("htb", DeviceQueues("eth0", "mq"), Mechanism.HTB, ""),
    ("limit", DeviceQueues("eth0", "fq"), Mechanism.LIMIT, "the settings say"),
    ("htb", None, Mechanism.LIMIT, "cannot be read"),
])  # fmt: skip
def test_the_mechanism_is_what_the_device_permits(
    setting: str, queues: DeviceQueues | None, mechanism: Mechanism, why: str
) -> None:
    found = choose(MechanismChoice(setting), ROUTE, queues)
    assert found.mechanism is mechanism
    assert why in found.why
    assert bool(found.why) == (mechanism is Mechanism.LIMIT)


def test_default_routes_to_several_devices_have_no_device_with_classes() -> None:
    assert single_route([Route("eth0", "fe80::1"), ROUTE]) == ROUTE
    found = single_route([ROUTE, Route("eth1", "10.2.0.1")])
    assert isinstance(found, str)
    assert choose(MechanismChoice.HTB, found, None).mechanism is Mechanism.LIMIT
    why = choose(MechanismChoice.AUTO, single_route([]), None).why
    assert why == "there is no route to the internet"


def team_line(
    sent: int, limit: int, *, waiting: int = 0, drops: int = 0, was: int = 0
) -> TeamEgress:
    """Return the line of a team with one pod, which had this limit before, or `was` looks held."""
    found = EgressLimits(
        (ShapedPod(AddressOwner("a", "x"), "pod-x", (), 0, "red"),), {"red": limit}
    )
    last = (TeamEgress("red", limit, 0, 0, 0, 1, was),)
    (line,), _ = flow_lines(
        found, {"x": Flow(sent // 8, drops, waiting)}, {"x": Flow(0, 0)}, seconds=1.0, last=last
    )
    return line


def test_what_is_held_back_asks_for_more_and_for_much_more_if_it_lasts() -> None:
    assert team_line(8 * M, 100 * M).demand == 8.5 * M
    assert team_line(99 * M, 100 * M).demand == 125 * M
    assert team_line(60 * M, 100 * M, waiting=1).demand == 125 * M
    assert team_line(8 * M, 100 * M, waiting=1).demand == 8.5 * M
    assert team_line(8 * M, 100 * M, drops=1, was=1).demand == 400 * M
    assert team_line(99 * M, 100 * M, was=2).demand == 1600 * M
    assert team_line(99 * M, 100 * M, was=7).demand == 25600 * M


def test_a_team_asks_for_no_more_than_its_pods_own_limits() -> None:
    found = EgressLimits(
        (ShapedPod(AddressOwner("a", "x"), "x", (), 3 * M, "red"),), {"red": 3 * M}
    )
    (line,), _ = flow_lines(found, {"x": Flow(3 * M // 8, 9)}, {"x": Flow(0, 0)}, seconds=1.0)
    assert line.demand == 3 * M


def shaped(uid: str, *, bits: int = 0, team: str = "") -> ShapedPod:
    return ShapedPod(AddressOwner("a", uid), f"pod-{uid}", (), bits, team)


def test_a_pod_is_held_back_for_as_long_as_it_is_at_a_limit_without_a_break() -> None:
    found = EgressLimits((shaped("x", bits=8 * M),), {})
    held: dict[str, int] = {}
    size = 0
    for rate, seconds in ((8 * M, 5), (8 * M, 10), (M, 0), (8 * M, 5)):
        before, size = size, size + rate * 5 // 8
        _, (line,) = flow_lines(found, {"x": Flow(size, 0)}, {"x": Flow(before, 0)}, seconds=5.0,
                                held_back=held)  # fmt: skip
        held = {"x": line.held_back_seconds}
        assert line.held_back_seconds == seconds
    _, (line,) = flow_lines(found, {"x": Flow(size, 0, waiting=1)}, {"x": Flow(size, 0)},
                            seconds=5.0)  # fmt: skip
    assert line.held_back_seconds == 5, "packets wait"


def test_which_pods_a_teams_limit_holds_back_follows_from_what_they_send() -> None:
    pods = tuple(shaped(uid, team="vision") for uid in "xy")
    found = EgressLimits(pods, {"vision": 8 * M})
    after = {"x": Flow(5 * M, 0), "y": Flow(1000, 0), "team/vision": Flow(0, 9)}
    before = {"x": Flow(0, 0), "y": Flow(0, 0), "team/vision": Flow(0, 0)}
    _, lines = flow_lines(found, after, before, seconds=5.0)
    assert {each.uid: each.held_back_seconds for each in lines} == {"x": 5, "y": 0}


def test_a_counter_that_began_again_is_no_negative_rate() -> None:
    found = limits(pod("x", "10.1.0.2", "10M"))
    _, (line,) = flow_lines(found, {"x": Flow(1_000, 0)}, {"x": Flow(10**9, 5)}, seconds=8.0)
    assert (line.sent, line.dropped) == (1_000, 0)
    _, (line,) = flow_lines(found, {"x": Flow(10**9, 5)}, {}, seconds=8.0)  # the first look
    assert (line.sent, line.dropped) == (0, 0)


def test_bandwidths_without_limits_are_refused_with_the_path() -> None:
    with pytest.raises(CliError) as raised:
        parse("shaping: {bandwidthAnnotations: true}", AgentSettings, conflicts, source="page")
    text = render_error(raised.value)
    assert "shaping.bandwidthAnnotations" in text
    assert "needs shaping.enabled" in text


def test_limits_without_a_list_of_pods_are_refused_with_the_path() -> None:
    with pytest.raises(CliError) as raised:
        parse("shaping: {enabled: true}", AgentSettings, conflicts, source="page")
    text = render_error(raised.value)
    assert "shaping.enabled" in text
    assert "traffic.pods" in text
