"""A round of shares: who gets what, what a node's claims can do, and what is written."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.cluster.node_report import (
    Action,
    NodeReport,
    NodeReportSpec,
    NodeReportStatus,
    Recovery,
    ReportedDestination,
    ReportedFault,
    ReportedFlow,
    ReportedShaping,
    ReportedSource,
    ReportedTeamEgress,
    ReportedTraffic,
    Severity,
    SourceState,
)
from fairlead.api.meta import ObjectMeta
from fairlead.api.values.egress import TrafficDirection
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.network import (
    CountingState,
    DestinationBudget,
    DestinationLimit,
    EgressMemory,
    EgressPolicy,
    SetShares,
    TeamBudget,
    TrafficBook,
    counting_state,
    decide_shares,
    team_of,
)
from fairlead.decide.network.traffic import CLASSES_MAX
from fairlead.node.shaping import TeamEgress
from fairlead.node.shaping.limits import EgressLimits, ShapedPod
from fairlead.node.shaping.use import Flow, flow_lines
from fairlead.node.traffic.ruleset import AddressOwner
from fairlead.testing.builders import EPOCH

G = 10**9
POLICY = EgressPolicy()


class Nodes:
    """Nodes that limit traffic, and one team's budget over them."""

    def __init__(self, *names: str, bits: int = G) -> None:
        self.bits, self.memory = bits, EgressMemory()
        self.now = EPOCH
        #: Those that have pods of the team.
        self.active = set(names)
        self.reports = {name: NodeReport(ObjectMeta(name=name)) for name in names}
        for name in names:
            self.says(name, 0)

    def says(self, name: str, demand: int, limit: int | None = None, at: str | None = None) -> None:
        """Let a node report a demand; its share as its limit, or another one of before."""
        if limit is None:
            at = self.reports[name].spec.egress_at
        limit = self.share(name) if limit is None else limit
        line = ReportedTeamEgress("red", limit, demand=demand)
        status = NodeReportStatus(shaping=ReportedShaping("htb", shares_at=at, teams=(line,)))
        old = self.reports[name]
        self.reports[name] = NodeReport(old.metadata, old.spec, status)

    def share(self, name: str) -> int:
        return sum(each.bits_per_second for each in self.reports[name].spec.egress)

    def round(self, **options: int) -> list[SetShares]:
        """Decide, and write all that was decided."""
        there = frozenset(self.active)
        team = TeamBudget("red", self.bits, ("a",), there, idle=frozenset(self.reports) - there)
        policy = EgressPolicy(**options)
        self.now += policy.round_seconds
        writes = decide_shares([team], self.reports, self.memory, self.now, policy=policy)
        for each in writes:
            name, old = each.report.metadata.name, each.report
            spec = NodeReportSpec(each.shares, format_time(self.now))
            self.reports[name] = NodeReport(old.metadata, spec, self.reports[name].status)
        return writes


def test_what_one_node_leaves_goes_to_another_once_it_has_confirmed() -> None:
    nodes = Nodes("n1", "n2")
    nodes.says("n1", G)
    nodes.round()
    assert nodes.share("n1") > 0.95 * G
    old = nodes.share("n1")
    nodes.says("n1", 0)
    nodes.says("n2", G)
    nodes.says("n1", 0, limit=old)
    nodes.round()  # n1 is lowered, and has not said so
    nodes.says("n1", 0, limit=old)
    nodes.round()
    assert nodes.share("n1") + nodes.share("n2") < 0.1 * G
    nodes.says("n1", 0)
    nodes.round()
    assert nodes.share("n2") > 0.95 * G


@pytest.mark.parametrize("demand", [G, 100 * G, (1 << 63) - 1])
def test_a_node_that_claims_any_demand_gets_no_more_than_its_equal_part(demand: int) -> None:
    nodes = Nodes("n1", "n2", "n3", "n4")
    for _ in range(3):
        nodes.says("n1", demand)
        for name in ("n2", "n3", "n4"):
            nodes.says(name, G)
        nodes.round()
    assert nodes.share("n1") == pytest.approx(G / 4, rel=0.02)
    assert nodes.share("n4") == pytest.approx(G / 4, rel=0.02)


def test_a_node_that_claims_a_limit_that_it_never_had_keeps_nothing_from_others() -> None:
    nodes = Nodes("n1", "n2")
    for _ in range(3):
        nodes.says("n1", 0, limit=(1 << 63) - 1)
        nodes.says("n2", G)
        nodes.round()
    assert nodes.share("n2") > 0.95 * G


@given(st.integers(0, 1 << 32))
def test_whatever_is_written_late_or_never_the_sum_in_force_is_within_the_budget(seed: int) -> None:
    draw = random.Random(seed)
    nodes = Nodes(*(f"n{n}" for n in range(8)))
    applied: dict[str, tuple[int, str | None]] = dict.fromkeys(nodes.reports, (0, None))
    for _ in range(12):
        for name in nodes.reports:
            if draw.random() < 0.6:  # its agent takes what is there, and says so later or never
                applied[name] = nodes.share(name), nodes.reports[name].spec.egress_at
            if draw.random() < 0.6:
                nodes.says(name, draw.choice((0, 10**6, G // 3, 5 * G)), *applied[name])
            if draw.random() < 0.2:  # its pods end, or the first ones begin
                nodes.active ^= {name}
        nodes.round(writes_max=draw.choice((1, 3, 200)))
        assert sum(max(applied[name][0], nodes.share(name)) for name in applied) <= G


def test_lower_shares_are_written_first_and_no_more_than_is_allowed() -> None:
    nodes = Nodes("n1", "n2", "n3")
    for name in nodes.reports:
        nodes.says(name, G)
    nodes.round()
    nodes.says("n3", 0)
    (only,) = nodes.round(writes_max=1)
    assert only.report.metadata.name == "n3"


def test_each_node_has_its_turn_where_more_is_due_than_may_be_written() -> None:
    nodes = Nodes(*(f"n{n}" for n in range(6)))
    for _ in range(18):
        nodes.round(writes_max=1, confirm_seconds=20)
    written = [parse_time(each.spec.egress_at or "") for each in nodes.reports.values()]
    assert min(written) > nodes.now - 100


def test_a_node_without_pods_of_a_team_has_what_it_may_begin_with_before_they_come() -> None:
    nodes = Nodes(*(f"n{n}" for n in range(10)))
    nodes.active = {"n0"}
    for _ in range(4):
        nodes.says("n0", 5 * G)
        nodes.round()
    starts = [nodes.share(name) for name in nodes.reports if name != "n0"]
    assert set(starts) == {G // 50 // 16}, "so the nodes may become 16"
    assert 0.95 * G < nodes.share("n0") <= G - sum(starts)
    for _ in range(100):  # it does not grow old, so nothing is written to confirm it
        assert [each.report.metadata.name for each in nodes.round()] in ([], ["n0"])
    nodes.reports["n10"] = NodeReport(ObjectMeta(name="n10"))
    nodes.says("n10", 0)
    assert {each.report.metadata.name for each in nodes.round()} <= {"n0", "n10"}, "others keep it"


class Starter:
    """A node of which pods of a team begin to send; its agent looks, its collector reads."""

    def __init__(self, draw: random.Random, wants: int) -> None:
        self.wants, self.total = wants, 0
        self.reads, self.looks = draw.randrange(10), draw.randrange(5)
        self.file: tuple[int, str | None] = (0, None)
        self.flows: dict[str, Flow] = {}
        self.lines: tuple[TeamEgress, ...] = ()

    def second(self, nodes: Nodes, name: str) -> int:
        """Send for a second; returns bits."""
        bits = min(self.wants, self.file[0] or self.wants)
        self.total += bits // 8
        now = int(nodes.now)
        if now % 10 == self.reads:
            self.file = nodes.share(name), nodes.reports[name].spec.egress_at
        if now % 5 == self.looks and self.file[0]:
            pod = ShapedPod(AddressOwner("a", "u"), "p", (), 0, "red")
            limits = EgressLimits((pod,), {"red": self.file[0]})
            flows = {"u": Flow(self.total, 0, int(self.wants > bits))}
            self.lines, _ = flow_lines(limits, flows, self.flows, seconds=5.0, last=self.lines)
            self.flows = flows
            nodes.says(name, self.lines[0].demand, *self.file)
        return bits


def test_a_team_that_begins_on_most_nodes_at_once_stays_within_its_budget_and_uses_it() -> None:
    draw = random.Random(1)
    nodes = Nodes(*(f"n{n}" for n in range(150)))
    nodes.active = set()
    for _ in range(3):
        nodes.round()
    for name in nodes.reports:
        nodes.says(name, 0)
    nodes.active = set(draw.sample(sorted(nodes.reports), 100))
    starters = {name: Starter(draw, 50 * 10**6) for name in sorted(nodes.active)}
    for name, each in starters.items():
        each.file = nodes.share(name), nodes.reports[name].spec.egress_at
    sums: list[int] = []
    for second in range(100):
        sums.append(sum(each.second(nodes, name) for name, each in starters.items()))
        if second % 10 == 3:
            nodes.round(writes_max=50)
            nodes.now -= POLICY.round_seconds
        nodes.now += 1
    assert max(sums) <= G
    assert min(sums[90:]) > 0.95 * G


def test_what_stays_the_same_is_confirmed_rarely() -> None:
    nodes = Nodes("n1")
    nodes.says("n1", G)
    written = [bool(nodes.round()) for _ in range(int(2 * POLICY.confirm_seconds / 10))]
    assert sum(written) <= 3
    assert written[0]


def test_without_the_teams_pods_a_node_has_no_share_and_is_written_once() -> None:
    nodes = Nodes("n1")
    nodes.says("n1", G)
    nodes.round()
    left = decide_shares([], nodes.reports, nodes.memory, nodes.now, policy=POLICY)
    assert [(each.report.metadata.name, each.shares) for each in left] == [("n1", ())]
    empty = {"n1": NodeReport(ObjectMeta(name="n1"))}
    assert decide_shares([], empty, nodes.memory, nodes.now, policy=POLICY) == []


def test_both_directions_of_a_team_are_divided_apart_and_written_together() -> None:
    name, spaces, there = "red", ("a",), frozenset({"n1", "n2"})
    line = ReportedTeamEgress("red", 0, demand=G)
    status = NodeReportStatus(shaping=ReportedShaping("limit", ingress=(line,)))
    reports = {node: NodeReport(ObjectMeta(name=node), status=status) for node in there}
    budgets = [TeamBudget(name, 8 * G, spaces, there),
               TeamBudget(name, G, spaces, there, TrafficDirection.INGRESS)]  # fmt: skip
    memory = EgressMemory()
    writes = decide_shares(budgets, reports, memory, EPOCH, policy=POLICY)
    into = [each.ingress[0].bits_per_second for each in writes]
    out = [each.shares[0].bits_per_second for each in writes]
    assert 0.9 * G < sum(into) <= G
    assert len(set(into)) == 1, "both want the same"
    assert 0 < sum(out) < G, "nobody sends: floors"
    spec = NodeReportSpec(writes[0].shares, format_time(EPOCH), writes[0].ingress)
    reports = {node: NodeReport(ObjectMeta(name=node), spec, status) for node in there}
    (ends, _) = decide_shares([], reports, memory, EPOCH, policy=POLICY)
    assert (ends.shares, ends.ingress) == ((), ())


@pytest.mark.parametrize("demand", [G, (1 << 63) - 1])
def test_a_node_that_claims_any_demand_of_a_destination_gets_its_equal_part(demand: int) -> None:
    limit = DestinationLimit("datasets", TrafficDirection.INGRESS, G)
    budget = DestinationBudget(limit, frozenset({"n1", "n2", "n3"}))
    team = TeamBudget("datasets", 8 * G, ("a",), frozenset({"n1"}), TrafficDirection.INGRESS)
    memory = EgressMemory()
    reports = {node: NodeReport(ObjectMeta(name=node)) for node in budget.nodes}
    for n in range(4):
        for node, old in reports.items():
            given = sum(each.bits_per_second for each in old.spec.destinations)
            claims = demand if node == "n1" else G
            line = ReportedDestination("datasets", limit.direction, given, demand=claims)
            shaping = ReportedShaping("limit", shares_at=old.spec.egress_at, destinations=(line,))
            reports[node] = NodeReport(old.metadata, old.spec, NodeReportStatus(shaping=shaping))
        now = EPOCH + 10 * n
        for each in decide_shares([team, budget], reports, memory, now, policy=POLICY):
            spec = NodeReportSpec(each.shares, format_time(now), each.ingress, each.destinations)
            name = each.report.metadata.name
            reports[name] = NodeReport(each.report.metadata, spec, each.report.status)
    shares = {node: each.spec.destinations[0] for node, each in reports.items()}
    assert all(each.bits_per_second == pytest.approx(G / 3, rel=0.02) for each in shares.values())
    assert sum(each.bits_per_second for each in shares.values()) <= G
    assert {(each.budget, each.safe_bits_per_second) for each in shares.values()} == {(G, G // 4)}
    assert len(reports["n1"].spec.ingress) == 1, "a team of the same name has a budget of its own"


def traffic_report(draw: random.Random) -> NodeReport:
    classes = ["internal", "internet", *(f"own-{n}" for n in range(30))]
    flows = tuple(
        ReportedFlow(draw.choice(classes), draw.choice("ab"), draw.choice(["", "red"]), "",
                     0, 0, draw.randrange(3), draw.randrange(3))
        for _ in range(draw.randrange(4))
    )  # fmt: skip
    traffic = draw.choice([None, ReportedTraffic(flows=flows)])
    return NodeReport(status=NodeReportStatus(traffic=traffic))


@pytest.mark.parametrize("seed", range(20))
def test_rates_by_team_are_those_of_the_reports_that_there_are_in_few_classes(seed: int) -> None:
    draw, book, there = random.Random(seed), TrafficBook(), dict[str, NodeReport]()
    teams = {"a": ("blue", "red"), "b": ()}
    for _ in range(40):
        name, new = f"n{draw.randrange(5)}", draw.choice([None, traffic_report(draw)])
        book.put(there.pop(name, None), new)
        if new is not None:
            there[name] = new
    found = book.by_team(lambda space, label: team_of(teams[space], label))
    flows = [flow for each in there.values() if each.status.traffic
             for flow in each.status.traffic.flows]  # fmt: skip
    assert sum(found.values()) == sum(each.sent_rate + each.received_rate for each in flows)
    assert len({key[1] for key in found}) <= CLASSES_MAX + 1
    assert {key[0] for key in found} <= {"blue", "red", ""}
    assert sum(book.states.values()) == len(there)
    red = sum(each.sent_rate for each in flows if (each.namespace, each.team) == ("a", "red"))
    assert red == sum(rate for key, rate in found.items() if key[0::2] == ("red", "out"))


@pytest.mark.parametrize(("status", "state"), [
    (NodeReportStatus(), CountingState.OFF),
    (NodeReportStatus(traffic=ReportedTraffic()), CountingState.COUNTED),
    (NodeReportStatus(sources=(ReportedSource("traffic", SourceState.BLIND),)),
     CountingState.BLIND),
    (NodeReportStatus(traffic=ReportedTraffic(), faults=(ReportedFault(
        "traffic-coverage", "pods", Severity.WARNING, Action.ASK_PERSON, Recovery.STABLE_TIME,
        "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),)), CountingState.PARTLY),
])  # fmt: skip
def test_a_node_that_does_not_count_is_never_taken_for_one_without_traffic(
    status: NodeReportStatus, state: CountingState
) -> None:
    assert counting_state(status) is state
