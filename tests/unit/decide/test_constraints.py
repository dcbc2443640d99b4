"""Host ports, anti-affinity and spread: where members may be beside other pods."""

from __future__ import annotations

import pytest
from msgspec import structs

from fairlead.api import names
from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import (
    Affinity,
    Container,
    NodeAffinity,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PreferredSchedulingTerm,
    Taint,
    Toleration,
)
from fairlead.api.kubernetes.pod_parts import ContainerPort, PodAffinityTerm, PodAntiAffinity
from fairlead.api.meta import Condition, LabelSelector, LabelSelectorRequirement
from fairlead.api.validation.validate import validate_job
from fairlead.api.values.times import format_time
from fairlead.decide.placement.actions import NominateJob, PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.testing.builders import (
    EPOCH,
    as_written,
    make_anti_affinity,
    make_job,
    make_member_pod,
    make_node,
    make_nodes,
    make_placement,
    make_pod,
    make_role,
    make_spread,
)

POLICY = PlacementPolicy()
PORT = ContainerPort(container_port=29500, host_port=29500)
RACKS = [make_node(f"n{i}", labels={"rack": f"r{i // 2}"}) for i in range(6)]


def placed(state: PlacementState) -> dict[str, list[str]]:
    """The nodes of every job that is placed now, with what is written applied."""
    found: dict[str, list[str]] = {}
    for action in decide(state, POLICY, EPOCH).actions:
        if isinstance(action, PlaceJob):
            roles = action.placement.roles
            found[action.job.metadata.name] = [node for role in roles for node in role.nodes]
        state.cluster.job_changed(as_written(action))
    return found


def reason(state: PlacementState, name: str) -> tuple[Reason, str]:
    verdict = decide(state, POLICY, EPOCH).verdicts["default", name]
    return verdict.reason, verdict.message


def small(name: str, count: int = 1, **more: object) -> Job:
    return make_job(name, count=count, gpus=1, **more)


def test_members_that_ask_for_one_host_port_go_to_different_nodes() -> None:
    state = PlacementState.of(make_nodes(3), [small("a", 3, ports=[PORT])])
    assert len(set(placed(state)["a"])) == 3


def test_a_host_port_that_another_job_or_pod_has_is_not_given_twice() -> None:
    taken = make_pod("web", node="node-0000", ports=[PORT])
    state = PlacementState.of(make_nodes(3), [small("a", ports=[PORT])], [taken])
    assert placed(state)["a"] == ["node-0001"]
    state.cluster.job_changed(small("b", 2, ports=[PORT]))
    assert placed(state) == {}
    kind, message = reason(state, "b")
    assert kind is Reason.NEIGHBOURS_IN_THE_WAY
    assert message == (
        "there are free nodes, but host ports of its pods and of those that run allow only 1 of 2 "
        "members"
    )
    state.cluster.pod_deleted(("default", "web"))
    assert sorted(placed(state)["b"]) == ["node-0000", "node-0002"]


@pytest.mark.parametrize("restart_policy", ["Always", None])
def test_the_port_of_a_sidecar_is_held_and_that_of_an_init_container_is_not(
    restart_policy: str | None,
) -> None:
    web = make_pod("web", node="node-0000")
    first = Container("first", ports=(PORT,), restart_policy=restart_policy)
    web = structs.replace(web, spec=structs.replace(web.spec, init_containers=(first,)))
    state = PlacementState.of(make_nodes(2), [small("a", ports=[PORT])], [web])
    assert placed(state)["a"] == ["node-0000" if restart_policy is None else "node-0001"]


def test_the_port_of_a_pod_is_held_whatever_its_other_rules_say() -> None:
    unknown = LabelSelectorRequirement("app", "Near", ("x",))
    term = PodAffinityTerm("rack", LabelSelector(match_expressions=(unknown,)))
    affinity = Affinity(pod_anti_affinity=PodAntiAffinity((term,)))
    web = make_pod("web", node="node-0000", ports=[PORT], affinity=affinity)
    state = PlacementState.of(make_nodes(2), [small("a", ports=[PORT])], [web])
    assert placed(state)["a"] == ["node-0001"]


def test_a_rule_that_is_new_counts_for_a_place_that_another_job_may_have_got() -> None:
    sent = small("sent", pod_labels={"app": "x"})
    state = PlacementState.of(make_nodes(2), [sent])
    state.book_uncertain(sent, make_placement(["node-0000"]))
    state.cluster.job_changed(small("shy", affinity=make_anti_affinity(app="x")))
    assert placed(state) == {"shy": ["node-0001"]}
    state.unbook_uncertain(sent.metadata.key)
    assert placed(state) == {"sent": ["node-0000"]}


@pytest.mark.parametrize(
    ("ours", "theirs", "conflict"),
    [
        (PORT, structs.replace(PORT, protocol="UDP"), False),
        (PORT, structs.replace(PORT, host_port=29501), False),
        (PORT, structs.replace(PORT, host_ip="10.0.0.1"), True),
        (structs.replace(PORT, host_ip="0.0.0.0"), structs.replace(PORT, host_ip="10.0.0.1"), True),
        (structs.replace(PORT, host_ip="10.0.0.1"), PORT, True),
        (structs.replace(PORT, host_ip="10.0.0.1"), structs.replace(PORT, host_ip="::1"), False),
        (PORT, ContainerPort(container_port=29500), False),
    ],
)
def test_ports_conflict_by_protocol_number_and_address(
    ours: ContainerPort, theirs: ContainerPort, conflict: bool
) -> None:
    taken = make_pod("web", node="node-0000", ports=[theirs])
    state = PlacementState.of(make_nodes(1), [small("a", ports=[ours])], [taken])
    assert (placed(state) == {}) is conflict


def test_on_the_nodes_own_network_every_port_is_one_of_the_node() -> None:
    job = small("a", 2, ports=[ContainerPort(container_port=8080)])
    role = job.spec.roles[0]
    spec = structs.replace(role.template.spec, host_network=True)
    template = structs.replace(role.template, spec=spec)
    roles = (structs.replace(role, template=template),)
    job = structs.replace(job, spec=structs.replace(job.spec, roles=roles))
    assert len(set(placed(PlacementState.of(make_nodes(2), [job]))["a"])) == 2


def test_too_many_members_for_one_port_can_never_run() -> None:
    state = PlacementState.of(make_nodes(3), [small("a", 4, ports=[PORT])])
    assert reason(state, "a") == (
        Reason.TOO_FEW_APART,
        "host ports of its pods allow only 3 of 4 members on all matching nodes, empty",
    )


def test_members_that_cannot_keep_apart_within_their_domain_can_never_run() -> None:
    """A rule about one node leaves the search exact; rules about domains within one do not."""
    shy = {"pod_labels": {"app": "x"}, "affinity": make_anti_affinity(app="x")}

    def found(count: int, topology: Topology) -> tuple[Reason, str]:
        return reason(PlacementState.of(RACKS, [small("a", count, topology=topology, **shy)]), "a")

    in_rack, any_rack = Topology("rack", required=True), Topology("rack", preferred_seconds=600)
    in_pairs = Topology(slice_level="rack", slice_size=3)
    assert found(2, in_rack)[0] is Reason.PLACED
    assert found(3, in_rack) == (
        Reason.NO_DOMAIN_FITS,
        "needs room for 3 members in one rack; the largest of 3, empty, holds 2",
    )
    for topology in (in_rack, any_rack, in_pairs):
        assert found(7, topology) == (
            Reason.TOO_FEW_APART,
            "anti-affinity of its pods allow only 6 of 7 members on all matching nodes, empty",
        )
    assert found(6, in_pairs)[0] is Reason.NO_SLICES_FIT
    shy["affinity"] = make_anti_affinity("rack", app="x")
    assert found(2, in_rack)[0] is Reason.NEIGHBOURS_IN_THE_WAY


@pytest.mark.parametrize("count", [3, 4])
def test_a_gang_without_a_place_on_empty_nodes_keeps_them_from_no_other_job(count: int) -> None:
    """That two roles can never keep apart is not proven. So the gang waits, and may be the head."""
    roles = [
        make_role(name, count=members, gpus=1, pod_labels={"app": "x"},
                  affinity=make_anti_affinity(app="x"))
        for name, members in (("head", 1), ("worker", count - 1))
    ]  # fmt: skip
    since = (Condition(type="Placed", status="False", last_transition_time=format_time(EPOCH)),)
    first = make_job("first", roles=roles, conditions=since)
    nodes, pods = make_nodes(3), [make_pod("p", node="node-0000", gpus=8)]
    state = PlacementState.of(nodes, [first, small("later", created=EPOCH + 1)], pods)
    decision = decide(state, POLICY, EPOCH + POLICY.starvation_seconds)
    placed_now = [a.job.metadata.name for a in decision.actions if isinstance(a, PlaceJob)]
    assert placed_now == ([] if count == 3 else ["later"])
    assert decision.verdicts["default", "first"].reason is Reason.NEIGHBOURS_IN_THE_WAY


def test_members_keep_apart_by_host_and_by_rack() -> None:
    by_host = small("a", 2, pod_labels={"app": "x"}, affinity=make_anti_affinity(app="x"))
    assert len(set(placed(PlacementState.of(RACKS, [by_host]))["a"])) == 2
    by_rack = small("b", 3, pod_labels={"app": "x"}, affinity=make_anti_affinity("rack", app="x"))
    racks = {int(node[1]) // 2 for node in placed(PlacementState.of(RACKS, [by_rack]))["b"]}
    assert racks == {0, 1, 2}
    too_many = small("c", 4, pod_labels={"app": "x"}, affinity=make_anti_affinity("rack", app="x"))
    assert reason(PlacementState.of(RACKS, [too_many]), "c")[0] is Reason.TOO_FEW_APART


def test_a_job_keeps_away_from_the_members_of_others_and_they_from_it() -> None:
    shy = small("shy", affinity=make_anti_affinity("rack", app="noisy"))
    noisy = small("noisy", pod_labels={"app": "noisy"}, placement=make_placement(["n0"]))
    state = PlacementState.of(RACKS, [noisy, shy])
    assert placed(state)["shy"] == ["n2"]
    # It is symmetric: who is shunned keeps away as well, and shy jobs do not mind each other.
    later = make_job("late", count=2, gpus=8, pod_labels={"app": "noisy"})
    state.cluster.job_changed(later)
    state.cluster.job_changed(small("shy-too", affinity=make_anti_affinity("rack", app="noisy")))
    found = placed(state)
    assert found["late"] == ["n1", "n4"]
    assert found["shy-too"] == ["n2"]


def test_a_term_is_about_its_own_namespace_unless_it_names_others() -> None:
    pods = [make_pod("p", namespace="other", node="n0", labels={"app": "x"})]
    near = small("near", affinity=make_anti_affinity("rack", app="x"))
    assert placed(PlacementState.of(RACKS, [near], pods))["near"] == ["n0"]
    named = small("far", affinity=make_anti_affinity("rack", namespaces=["other"], app="x"))
    assert placed(PlacementState.of(RACKS, [named], pods))["far"] == ["n2"]
    term = PodAffinityTerm("rack", LabelSelector({"app": "x"}), namespace_selector=LabelSelector())
    everywhere = small("all", affinity=Affinity(pod_anti_affinity=PodAntiAffinity((term,))))
    assert placed(PlacementState.of(RACKS, [everywhere], pods))["all"] == ["n2"]
    by_label = structs.replace(term, namespace_selector=LabelSelector({"team": "a"}))
    refused = small("no", affinity=Affinity(pod_anti_affinity=PodAntiAffinity((by_label,))))
    kind, message = reason(PlacementState.of(RACKS, [refused], pods), "no")
    assert kind is Reason.INVALID_REQUEST
    assert "namespaceSelector" in message


def test_a_pod_of_others_that_shuns_a_job_is_heeded_whichever_came_first() -> None:
    shy = make_pod("shy", node="n0", affinity=make_anti_affinity(**{names.JOB_NAME: "a"}))
    job = small("a")
    assert placed(PlacementState.of(RACKS, [job], [shy]))["a"] == ["n1"]
    state = PlacementState.of(RACKS, [job])
    state.cluster.pod_changed(shy)
    assert placed(state)["a"] == ["n1"]
    state = PlacementState.of(RACKS, [job])
    state.cluster.pod_changed(shy)
    state.cluster.pod_deleted(("default", "shy"))
    assert placed(state)["a"] == ["n0"]


def test_members_are_spread_evenly_over_racks() -> None:
    def racks(count: int, skew: int, pods: int = 0) -> list[int]:
        spread = [make_spread("rack", skew, app="x")]
        job = small("a", count, pod_labels={"app": "x"}, spreads=spread)
        others = [make_pod(f"p{i}", node="n0", labels={"app": "x"}) for i in range(pods)]
        found = placed(PlacementState.of(RACKS, [job], others)).get("a", [])
        return [sum(int(node[1]) // 2 == rack for node in found) for rack in range(3)]

    assert sorted(racks(7, 1)) == [2, 2, 3]
    assert max(racks(7, 3)) - min(racks(7, 3)) <= 3
    assert racks(4, 1, pods=2) == [0, 2, 2], "what runs there counts"
    assert sum(racks(48, 1)) == 48
    assert racks(49, 1) == [0, 0, 0]


def test_a_rack_that_is_full_bounds_the_others() -> None:
    full = [make_pod(f"p{i}", node=f"n{i}", gpus=8) for i in range(2)]
    job = small("a", 3, pod_labels={"app": "x"}, spreads=[make_spread("rack", 1, app="x")])
    state = PlacementState.of(RACKS, [job], full)
    assert reason(state, "a") == (
        Reason.NEIGHBOURS_IN_THE_WAY,
        "there are free nodes, but topology spread of its pods and of those that run allow only "
        "2 of 3 members",
    )
    soft = make_spread("rack", 1, "ScheduleAnyway", app="x")
    state.cluster.job_changed(small("b", 3, pod_labels={"app": "x"}, spreads=[soft]))
    assert len(placed(state)["b"]) == 3


def test_nodes_that_the_selector_leaves_out_are_no_domains() -> None:
    job = small(
        "a", 4, pod_labels={"app": "x"}, node_selector={"half": "yes"},
        spreads=[make_spread("rack", 1, app="x")],
    )  # fmt: skip
    nodes = [make_node(f"n{i}", labels={"rack": f"r{i}", "half": "yes"}) for i in range(2)]
    nodes += [make_node("n9", labels={"rack": "r9"})]
    assert sorted(placed(PlacementState.of(nodes, [job]))["a"]) == ["n0", "n0", "n1", "n1"]


def test_nodes_that_lack_the_label_of_another_spread_are_no_domains() -> None:
    spreads = [make_spread("rack", 1, app="x"), make_spread("zone", 9, app="x")]
    job = small("a", 4, pod_labels={"app": "x"}, spreads=spreads)
    nodes = [make_node(f"n{i}", labels={"rack": f"r{i}", "zone": "z"}) for i in range(2)]
    nodes += [make_node("n9", labels={"rack": "r9"})]
    assert sorted(placed(PlacementState.of(nodes, [job]))["a"]) == ["n0", "n0", "n1", "n1"]


def test_rules_hold_together_with_a_required_domain_and_between_roles() -> None:
    roles = [
        make_role(name, count=1, gpus=1, pod_labels={"app": "x"},
                  affinity=make_anti_affinity(app="x"))
        for name in ("head", "worker")
    ]  # fmt: skip
    job = make_job("a", roles=roles, topology=Topology(key="rack", required=True))
    nodes = placed(PlacementState.of(RACKS, [job]))["a"]
    assert len(set(nodes)) == 2
    assert len({int(node[1]) // 2 for node in nodes}) == 1


def test_a_replacement_goes_where_the_rules_of_the_gang_allow() -> None:
    job = small(
        "a", 2, pod_labels={"app": "x"}, affinity=make_anti_affinity("rack", app="x"),
        placement=make_placement(["n0", "n2"]), attempt=2,
        status={"attempts": (Attempt(number=1, nodes_lost=("n2",)),)},
    )  # fmt: skip
    nodes = [node for node in RACKS if node.metadata.name != "n3"]
    assert placed(PlacementState.of(nodes, [job]))["a"] == ["n0", "n4"]


def test_a_job_that_is_in_the_way_by_a_rule_alone_is_preempted() -> None:
    low = small("low", priority=0, ports=[PORT], placement=make_placement(["node-0000"]))
    other = small("other", priority=0, placement=make_placement(["node-0000"]))
    low, other = (
        structs.replace(job, status=structs.replace(job.status, attempts=(
            Attempt(number=1, begun_at="2025-12-31T00:00:00Z", started_at="2025-12-31T00:00:00Z"),
        ), conditions=()))
        for job in (low, other)
    )  # fmt: skip
    pods = [make_member_pod(low), make_member_pod(other)]
    state = PlacementState.of(
        make_nodes(1), [low, other, small("high", priority=9, ports=[PORT])], pods
    )
    actions = decide(state, POLICY, EPOCH).actions
    [nomination] = [action for action in actions if isinstance(action, NominateJob)]
    assert [victim.name for victim in nomination.nomination.victims] == ["low"]


def test_a_preferred_node_is_taken_where_as_many_devices_are_free() -> None:
    def prefers(weight: int, rack: str) -> PreferredSchedulingTerm:
        expression = NodeSelectorRequirement("rack", "In", (rack,))
        return PreferredSchedulingTerm(weight, NodeSelectorTerm((expression,)))

    wish = Affinity(NodeAffinity(preferred=(prefers(1, "r1"), prefers(50, "r2"))))
    assert placed(PlacementState.of(RACKS, [small("a", affinity=wish)]))["a"] == ["n4"]
    three = make_job("a", count=3, gpus=8, affinity=wish)
    assert placed(PlacementState.of(RACKS, [three]))["a"] == ["n2", "n4", "n5"]
    fuller = make_pod("p", node="n0", gpus=4)
    assert placed(PlacementState.of(RACKS, [small("a", affinity=wish)], [fuller]))["a"] == ["n0"]
    none = make_node("n9", labels={"rack": "r9"})
    assert placed(PlacementState.of([none], [small("a", affinity=wish)]))["a"] == ["n9"]


def test_a_node_that_asks_to_be_left_alone_is_taken_last() -> None:
    soft = Taint(key="spot", effect="PreferNoSchedule")
    nodes = [make_node("n0", gpus=8, taints=[soft]), make_node("n1", gpus=8)]
    pods = [make_pod("p", node="n0", gpus=4)]
    assert placed(PlacementState.of(nodes, [small("a")], pods))["a"] == ["n1"]
    assert len(placed(PlacementState.of(nodes, [make_job("a", count=2)]))["a"]) == 2
    willing = small("a", tolerations=[Toleration(key="spot", operator="Exists")])
    assert placed(PlacementState.of(nodes, [willing], pods))["a"] == ["n0"]
    state = PlacementState.of(nodes, [small("a")], pods)
    state.cluster.node_changed(make_node("n0", gpus=8))
    assert placed(state)["a"] == ["n0"]


def test_marks_leave_nothing_behind() -> None:
    state = PlacementState.of(RACKS, [small("a", 2, ports=[PORT]), small("b", ports=[PORT])])
    before = state.cluster.table.marks.copy()
    decide(state, POLICY, EPOCH)
    assert state.cluster.table.marks == before
    placed(state)
    assert state.cluster.table.marks != before
    for name in ("a", "b"):
        state.cluster.job_deleted(("default", name))
    assert state.cluster.table.marks == before


def test_what_a_pod_says_is_heeded_however_odd() -> None:
    odd = PodAffinityTerm(
        "rack", LabelSelector({"app": "x"}), namespace_selector=LabelSelector({"team": "a"})
    )
    affinity = Affinity(pod_anti_affinity=PodAntiAffinity((odd,) * 40))
    pod = make_pod("p", namespace="other", node="n0", gpus=8, affinity=affinity, ports=[PORT])
    state = PlacementState.of(RACKS, [small("a", pod_labels={"app": "x"})], [pod])
    assert placed(state)["a"] == ["n2"]
    state.cluster.job_changed(small("b", 6, ports=[PORT]))
    assert reason(state, "b")[0] is Reason.NEIGHBOURS_IN_THE_WAY


def test_jobs_without_rules_stay_equal_however_their_labels_differ() -> None:
    jobs = [small(name, pod_labels={"app": name}) for name in ("a", "b", "c")]
    state = PlacementState.of(RACKS, jobs)
    assert len({entry.gang for entry in state.jobs.values()}) == 1
    state.cluster.job_changed(small("shy", affinity=make_anti_affinity(app="b")))
    assert len({state.jobs["default", name].gang for name in ("a", "b", "c")}) == 2
    state.cluster.job_deleted(("default", "shy"))
    assert len(state.cluster.terms) == 0


def test_mistakes_in_rules_about_pods_are_refused_with_their_paths() -> None:
    bad = Affinity(
        pod_anti_affinity=PodAntiAffinity((PodAffinityTerm("", LabelSelector({"a b": "c"})),))
    )
    job = small("a", affinity=bad, spreads=[make_spread("rack", 0, "Maybe")])
    at = "spec.roles[0].template.spec"
    term = f"{at}.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]"
    assert [cause.field for cause in validate_job(job)] == [
        f"{term}.topologyKey",
        f"{term}.labelSelector.matchLabels",
        f"{at}.topologySpreadConstraints[0].maxSkew",
        f"{at}.topologySpreadConstraints[0].whenUnsatisfiable",
    ]


@pytest.mark.parametrize("ends", ["deleted", "finished", "pod"])
def test_a_rule_that_no_pod_and_no_job_has_any_more_leaves_no_trace(ends: str) -> None:
    """Else the request of a waiting job would depend on what was there before it."""
    state = PlacementState.of(RACKS, [small("plain", pod_labels={"app": "x"})])
    before = state.jobs["default", "plain"].gang
    shy = make_job("shy", gpus=1, affinity=make_anti_affinity(app="x"))
    pod = make_pod("other", node="n0", affinity=make_anti_affinity(app="x"))
    if ends == "pod":
        state.cluster.pod_changed(pod)
    else:
        state.cluster.job_changed(shy)
    gang = state.jobs["default", "plain"].gang
    assert gang.has_neighbours
    match ends:
        case "pod":
            state.cluster.pod_deleted(pod.metadata.key)
        case "deleted":
            state.cluster.job_deleted(shy.metadata.key)
        case _:
            condition = Condition(type=names.SUCCEEDED, status="True", reason="Succeeded")
            status = structs.replace(shy.status, conditions=(condition,))
            state.cluster.job_changed(structs.replace(shy, status=status))
    assert state.jobs["default", "plain"].gang == before
