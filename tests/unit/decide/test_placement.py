"""Who is placed where, and in which order."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.api import names
from fairlead.api.jobs.job import Adopts, Attempt, Job
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Taint, Toleration
from fairlead.api.kubernetes.resource_quota import ResourceQuota, ResourceQuotaStatus
from fairlead.api.meta import Condition, ObjectMeta
from fairlead.api.values.times import format_time
from fairlead.decide.attempts.record import new_record
from fairlead.decide.placement.actions import Action, PlaceJob, ReleaseJob, WriteVerdict
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.places.whatif import fits_empty, largest_shape, would_fit
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Outcome, Reason
from fairlead.decide.verdict import Decision
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest, RequestReader, gang_of
from fairlead.testing.builders import (
    EPOCH,
    as_written,
    make_job,
    make_node,
    make_nodes,
    make_placement,
    make_pod,
    make_role,
)

POLICY = PlacementPolicy()
GPU = "nvidia.com/gpu"


def places(decision: Decision[Action]) -> dict[str, dict[str, tuple[str, ...]]]:
    """The nodes by role of every job that was placed."""
    return {
        action.job.metadata.name: {role.role: role.nodes for role in action.placement.roles}
        for action in decision.actions
        if isinstance(action, PlaceJob)
    }


def workers(decision: Decision[Action], job: str) -> list[str]:
    return list(places(decision)[job]["worker"])


def apply(state: PlacementState, decision: Decision[Action]) -> None:
    for action in decision.actions:
        assert isinstance(action, PlaceJob | ReleaseJob | WriteVerdict)
        state.cluster.job_changed(as_written(action))


def waiting_since(since: float) -> tuple[Condition, ...]:
    return (Condition(type="Placed", status="False", last_transition_time=format_time(since)),)


def test_of_two_jobs_that_each_want_everything_one_runs_and_the_other_waits() -> None:
    state = PlacementState.of(make_nodes(4), [make_job("a", count=4), make_job("b", count=4)])
    decision = decide(state, POLICY, EPOCH)
    assert workers(decision, "a") == [f"node-{i:04}" for i in range(4)]
    verdict = decision.verdicts["default", "b"]
    assert verdict.reason is Reason.INSUFFICIENT_CAPACITY
    assert verdict.facts == {"resource": GPU, "asked": 32, "free": 0, "total": 32, "short": 32}
    assert verdict.blockers == (("default", "a"),)
    apply(state, decision)
    assert decide(state, POLICY, EPOCH + 60).actions == ()
    state.cluster.job_deleted(("default", "a"))
    assert workers(decide(state, POLICY, EPOCH + 99), "b") == [f"node-{i:04}" for i in range(4)]


def test_what_is_written_is_the_whole_answer() -> None:
    state = PlacementState.of(make_nodes(2), [make_job("a", count=2)])
    [action] = decide(state, POLICY, EPOCH).actions
    assert isinstance(action, PlaceJob)
    assert (action.placement.attempt, action.placement.placed_at) == (1, format_time(EPOCH))
    assert (action.placed.status, action.placed.reason) == ("True", "Placed")
    assert action.placed.message == "placed on 2 nodes"
    assert (action.verdict.outcome, action.verdict.since) == ("Placed", format_time(EPOCH))
    assert action.verdict.facts == {"nodes_used": 2, "members": 2}


ADMITTED = (Condition(type="Admitted", status="True"),)


def test_a_first_attempt_begins_with_its_place() -> None:
    job = make_job("a", count=2, conditions=ADMITTED)
    [action] = decide(PlacementState.of(make_nodes(2), [job]), POLICY, EPOCH).actions
    assert isinstance(action, PlaceJob)
    assert action.begun == new_record(job, EPOCH)
    written = as_written(action)
    assert written.status.current_attempt == action.begun
    held = msgspec.structs.replace(written, spec=msgspec.structs.replace(job.spec, suspend=True))
    assert decide(PlacementState.of(make_nodes(2), [held]), POLICY, EPOCH).actions == ()


@pytest.mark.parametrize(
    "job",
    [
        make_job("a", conditions=ADMITTED, attempt=2, status={"attempts": (Attempt(number=1),)}),
        make_job("a", conditions=ADMITTED, spec={"adopts": Adopts("Job", "a")}),
    ],
    ids=["pods of an earlier one may be left", "pods of another tool"],
)
def test_other_attempts_begin_when_their_own_controller_says_so(job: Job) -> None:
    [action] = decide(PlacementState.of(make_nodes(2), [job]), POLICY, EPOCH).actions
    assert isinstance(action, PlaceJob)
    assert action.begun is None


@pytest.mark.parametrize("reason", ["Held", "QuotaExceeded", "PolicyRefused", "PodHeldBack"])
def test_a_job_that_is_not_admitted_neither_gets_nor_keeps_a_place(reason: str) -> None:
    refused = [Condition("Admitted", "False", reason, "exceeded quota: team")]
    nodes, other = make_nodes(2), make_job("b", count=2, created=EPOCH + 1)
    waiting = make_job("a", count=2, conditions=refused)
    decision = decide(PlacementState.of(nodes, [waiting, other]), POLICY, EPOCH)
    assert list(places(decision)) == ["b"]
    ended = (Attempt(number=1, finished_at=format_time(EPOCH), reason=reason),)
    placement = make_placement([n.metadata.name for n in nodes])
    placed = make_job(
        "a", count=2, conditions=refused, placement=placement, status={"attempts": ended}
    )
    [release, *_] = decide(PlacementState.of(nodes, [placed, other]), POLICY, EPOCH).actions
    assert isinstance(release, ReleaseJob)
    if reason != "Held":
        assert release.verdict is not None
        assert (release.verdict.reason, release.verdict.facts) == (
            reason, {"message": "exceeded quota: team"},
        )  # fmt: skip


def test_a_gang_that_lacks_one_place_gets_none() -> None:
    state = PlacementState.of(make_nodes(3), [make_job("a", count=4), make_job("b", count=3)])
    decision = decide(state, POLICY, EPOCH)
    assert list(places(decision)) == ["b"]


def test_priority_goes_before_age_and_age_before_name() -> None:
    jobs = [
        make_job("c", created=EPOCH),
        make_job("b", created=EPOCH + 1),
        make_job("a", created=EPOCH + 1),
        make_job("urgent", created=EPOCH + 2, priority=1),
    ]
    decision = decide(PlacementState.of(make_nodes(4), jobs), POLICY, EPOCH)
    assert list(places(decision)) == ["urgent", "c", "a", "b"]


def test_small_members_fill_the_fullest_nodes_and_leave_free_nodes_whole() -> None:
    nodes = make_nodes(4)
    pods = [make_pod("x", node="node-0002", gpus=6), make_pod("y", node="node-0001", gpus=3)]
    jobs = [make_job("small", count=3, gpus=1), make_job("large", count=2, gpus=8)]
    decision = decide(PlacementState.of(nodes, jobs, pods), POLICY, EPOCH)
    assert workers(decision, "small") == ["node-0001", "node-0002", "node-0002"]
    assert workers(decision, "large") == ["node-0000", "node-0003"]


def test_members_without_devices_leave_the_nodes_with_devices_alone() -> None:
    nodes = [make_node("a-gpu"), make_node("z-cpu", gpus=0)]
    jobs = [make_job("prep", gpus=0, cpu=4)]
    assert workers(decide(PlacementState.of(nodes, jobs), POLICY, EPOCH), "prep") == ["z-cpu"]


def test_ties_go_by_node_name_however_the_nodes_arrived() -> None:
    nodes = [make_node(n) for n in ("c", "a", "b")]
    state = PlacementState.of(nodes, [make_job("j", count=2)])
    assert workers(decide(state, POLICY, EPOCH), "j") == ["a", "b"]


def test_roles_are_placed_largest_first_and_reported_in_their_own_order() -> None:
    roles = [make_role("driver", gpus=1), make_role("worker", count=2, gpus=8)]
    state = PlacementState.of(make_nodes(3), [make_job("j", roles=roles)])
    placed = places(decide(state, POLICY, EPOCH))["j"]
    assert list(placed) == ["driver", "worker"]
    assert placed == {"driver": ("node-0002",), "worker": ("node-0000", "node-0001")}


def test_nodes_that_are_out_take_nobody_and_keep_whom_they_have() -> None:
    nodes = [
        make_node("cordoned", unschedulable=True),
        make_node("not-ready", ready=False),
        make_node("other-team", taints=[Taint(key="team", value="b", effect="NoSchedule")]),
        make_node("own-team", taints=[Taint(key="team", value="a", effect="NoSchedule")]),
    ]
    running = make_job("running", gpus=4, placement=make_placement(["cordoned"]))
    job = make_job("j", gpus=1, tolerations=[Toleration(key="team", value="a")])
    decision = decide(PlacementState.of(nodes, [running, job]), POLICY, EPOCH)
    assert places(decision) == {"j": {"worker": ("own-team",)}}
    assert len(decision.actions) == 1


def rack(name: str, count: int) -> list[object]:
    return [make_node(f"{name}-{i}", labels={"rack": name}) for i in range(count)]


@pytest.mark.parametrize(
    ("count", "required", "expected"),
    [
        (2, True, ["b-0", "b-1"]),
        (3, True, ["c-0", "c-1", "c-2"]),
        (5, True, ["a-0", "a-1", "a-2", "a-3", "a-4"]),
        (6, True, None),
        (6, False, ["a-0", "a-1", "a-2", "a-3", "a-4", "b-0"]),
        (10, False, [*(f"a-{i}" for i in range(5)), "b-0", "b-1", "c-0", "c-1", "c-2"]),
    ],
)
def test_a_gang_goes_to_the_smallest_domain_with_room_for_all(
    count: int, required: bool, expected: list[str] | None
) -> None:
    nodes = [*rack("a", 5), *rack("b", 2), *rack("c", 3), make_node("0-nowhere")]
    job = make_job("j", count=count, topology=Topology(key="rack", required=required))
    decision = decide(PlacementState.of(nodes, [job]), POLICY, EPOCH)
    if expected is None:
        assert decision.verdicts["default", "j"].reason is Reason.NO_DOMAIN_FITS
    else:
        assert workers(decision, "j") == expected


def test_a_job_that_fits_runs_past_an_earlier_one_that_does_not() -> None:
    pods = [make_pod("x", node="node-0000", gpus=1)]
    jobs = [make_job("head", count=2), make_job("later", count=1, created=EPOCH + 1)]
    jobs[0] = msgspec.structs.replace(
        jobs[0], status=msgspec.structs.replace(jobs[0].status, conditions=waiting_since(EPOCH))
    )
    state = PlacementState.of(make_nodes(2), jobs, pods)
    assert list(places(decide(state, POLICY, EPOCH + 899))) == ["later"]


def starving(pods: list[object], *later: Job, now: float = EPOCH + 900) -> Decision[Action]:
    head = make_job("head", count=2, conditions=waiting_since(EPOCH), node_selector={"p": "1"})
    nodes = [
        make_node("a", labels={"p": "1"}),
        make_node("b", labels={"p": "1"}),
        make_node("c", labels={"p": "2"}),
    ]
    return decide(PlacementState.of(nodes, [head, *later], pods), POLICY, now)


def test_a_starving_job_keeps_later_ones_off_the_nodes_that_it_could_use() -> None:
    pods = [make_pod("x", node="a", gpus=1)]
    later = [make_job(f"later{i}", created=EPOCH + i) for i in (1, 2)]
    decision = starving(pods, *later)
    assert places(decision) == {"later1": {"worker": ("c",)}}
    verdict = decision.verdicts["default", "later2"]
    assert (verdict.reason, verdict.facts) == (Reason.BEHIND_EARLIER_JOB, {"job": "default/head"})
    assert verdict.blockers == (("default", "head"),)
    assert "default/head is ahead" in verdict.message


def test_a_starving_job_does_not_hold_up_those_ahead_of_it_or_after_its_placing() -> None:
    pods = [make_pod("x", node="a", gpus=1)]
    urgent = make_job("urgent", priority=1, node_selector={"p": "1"})
    assert list(places(starving(pods, urgent))) == ["urgent"]
    small = make_job("small", gpus=1, created=EPOCH + 1)
    assert list(places(starving([], small))) == ["head", "small"]


def test_a_job_that_can_never_run_starves_nobody() -> None:
    impossible = make_job("head", gpus=16, conditions=waiting_since(EPOCH))
    out = make_job("out", created=EPOCH + 1, node_selector={"p": "1"},
                   conditions=waiting_since(EPOCH))  # fmt: skip
    nodes = [make_node("a"), make_node("b", labels={"p": "1"}, ready=False)]
    later = make_job("later", created=EPOCH + 2)
    state = PlacementState.of(nodes, [impossible, out, later])
    assert list(places(decide(state, POLICY, EPOCH + 5000))) == ["later"]


def test_a_job_whose_pods_a_quota_would_refuse_keeps_no_nodes_from_others() -> None:
    head = make_job("head", namespace="poor", count=2, conditions=waiting_since(EPOCH))
    later = make_job("later", created=EPOCH + 1)
    third = make_job("third", count=2, created=EPOCH + 2, conditions=waiting_since(EPOCH))
    pod = make_pod("x", node="node-0000", gpus=8)
    state = PlacementState.of(make_nodes(2), [head, later, third], [pod])
    assert places(decide(state, POLICY, EPOCH + 900)) == {}, "the head keeps the node for itself"
    amounts = {"requests.nvidia.com/gpu": 16}, {"requests.nvidia.com/gpu": 8}
    quota = ResourceQuota(
        ObjectMeta(name="team", namespace="poor"), status=ResourceQuotaStatus(*amounts)
    )
    state.cluster.quotas.put(quota)
    decision = decide(state, POLICY, EPOCH + 900)
    assert list(places(decision)) == ["later"]
    verdict = decision.verdicts["poor", "head"]
    assert (verdict.reason, verdict.outcome) == (Reason.AWAITING_QUOTA, Outcome.WAITING)
    assert "exceeded quota: team" in verdict.message
    alone = PlacementState.of(make_nodes(1), [head])
    alone.cluster.quotas.put(quota)
    assert decide(alone, POLICY, EPOCH).verdicts["poor", "head"].reason is not verdict.reason
    alone.cluster.node_changed(make_node("other"))
    alone.cluster.pod_changed(pod)
    assert decide(alone, POLICY, EPOCH).verdicts["poor", "head"].reason is verdict.reason
    state.cluster.job_deleted(("default", "later"))
    state.cluster.job_changed(make_job("small", created=EPOCH + 3))
    assert places(decide(state, POLICY, EPOCH + 900)) == {}, "the next head keeps it"
    state.cluster.quotas.remove(("poor", "team"))
    state.cluster.pod_deleted(("default", "x"))
    assert list(places(decide(state, POLICY, EPOCH + 901))) == ["head"]


def test_what_jobs_hold_without_pods_counts_in_the_quota_of_their_namespace() -> None:
    holder = make_job("holder", namespace="poor", placement=make_placement(["node-0000"]))
    more, other = (
        make_job(name, namespace=space, created=EPOCH + i, conditions=waiting_since(EPOCH))
        for i, (space, name) in enumerate((("poor", "more"), ("rich", "other")))
    )
    state = PlacementState.of(make_nodes(4), [holder, more, other])
    amounts = {"requests.nvidia.com/gpu": 8}, {"requests.nvidia.com/gpu": 0}
    for space in ("poor", "rich"):
        meta = ObjectMeta(name="team", namespace=space)
        state.cluster.quotas.put(ResourceQuota(meta, status=ResourceQuotaStatus(*amounts)))
    decision = decide(state, POLICY, EPOCH)
    assert list(places(decision)) == ["other"], "the group goes on beyond the namespace"
    verdict = decision.verdicts["poor", "more"]
    assert verdict.reason is Reason.AWAITING_QUOTA
    assert "jobs hold requests.nvidia.com/gpu=8 without pods" in verdict.message
    labels = {names.ROLE: "worker", names.INDEX: "0", names.ATTEMPT: "1"}
    pod = make_pod(
        "holder-1-worker-0", namespace="poor", node="node-0000", gpus=8, labels=labels, owner=holder
    )
    assert state.cluster.pod_changed(pod), "it wakes the scheduler"
    # Its quota shows nothing as used, which may be late, or be so again in a moment.
    assert "more" in places(decide(state, POLICY, EPOCH))
    full = ResourceQuotaStatus(amounts[0], {"requests.nvidia.com/gpu": 8})
    state.cluster.quotas.put(ResourceQuota(ObjectMeta("team", namespace="poor"), status=full))
    assert "more" not in places(decide(state, POLICY, EPOCH)), "jobs of the namespace have places"
    assert state.cluster.pod_deleted(pod.metadata.key)
    assert "more" not in places(decide(state, POLICY, EPOCH))
    state.cluster.job_deleted(holder.metadata.key)
    assert "more" in places(decide(state, POLICY, EPOCH))


def test_what_one_decision_places_counts_in_the_quota_of_its_namespace_as_a_whole() -> None:
    """Each job has room alone. The API server counts pods, so it would take what others hold
    without pods once more.
    """
    holder = make_job("holder", namespace="poor", gpus=4, placement=make_placement(["node-0000"]))
    waiting = [
        make_job(
            f"{space}-{i}", namespace=space, gpus=gpus, created=EPOCH + i,
            conditions=waiting_since(EPOCH),
        )
        for space in ("poor", "rich") for i, gpus in enumerate((2, 2, 1, 4, 1))
    ]  # fmt: skip
    state = PlacementState.of(make_nodes(8), [holder, *waiting])
    amounts = {"requests.nvidia.com/gpu": 10}, {"requests.nvidia.com/gpu": 0}
    for space in ("poor", "rich"):
        meta = ObjectMeta(name="team", namespace=space)
        state.cluster.quotas.put(ResourceQuota(meta, status=ResourceQuotaStatus(*amounts)))
    decision = decide(state, POLICY, EPOCH)
    found = [
        "poor-0",
        "poor-1",
        "poor-2",
        "poor-4",
        "rich-0",
        "rich-1",
        "rich-2",
        "rich-3",
        "rich-4",
    ]
    assert sorted(places(decision)) == found, "10 of 10 each"
    verdict = decision.verdicts["poor", "poor-3"]
    assert verdict.reason is Reason.AWAITING_QUOTA
    assert "requested: requests.nvidia.com/gpu=4, used: requests.nvidia.com/gpu=10" in (
        verdict.message
    )


def test_places_are_given_back_by_jobs_that_are_held_cancelled_or_over() -> None:
    placed = make_placement(["node-0000"])
    jobs = [
        make_job("held", gpus=1, suspend=True, placement=placed),
        make_job("cancelled", gpus=1, cancel=True, placement=placed),
        make_job(
            "over", gpus=1, placement=placed, conditions=[Condition(type="Failed", status="True")]
        ),
        make_job("running", gpus=1, placement=placed),
    ]
    metadata = msgspec.structs.replace(
        make_job("deleted").metadata, deletion_timestamp=format_time(EPOCH)
    )
    jobs.append(msgspec.structs.replace(jobs[1], metadata=metadata))  # its place goes with it
    decision = decide(PlacementState.of(make_nodes(1), jobs), POLICY, EPOCH)
    released = {a.job.metadata.name: a for a in decision.actions if isinstance(a, ReleaseJob)}
    assert {name: a.placed.reason for name, a in released.items()} == {
        "cancelled": "Cancelled",
        "held": "Held",
        "over": "Finished",
    }
    assert len(decision.actions) == 3
    assert released["held"].verdict is not None
    assert released["held"].verdict.outcome == "Blocked"
    assert released["over"].verdict is None


def test_a_held_job_is_told_so_once() -> None:
    state = PlacementState.of(make_nodes(1), [make_job("held", suspend=True)])
    decision = decide(state, POLICY, EPOCH)
    assert [type(a) for a in decision.actions] == [WriteVerdict]
    assert decision.verdicts["default", "held"].reason is Reason.HELD
    apply(state, decision)
    assert decide(state, POLICY, EPOCH).actions == ()


def test_work_per_decision_is_bounded_and_the_rest_follows_at_once() -> None:
    state = PlacementState.of(make_nodes(4), [make_job(f"j{i}", gpus=1) for i in range(9)])
    policy = PlacementPolicy(placements_max=4)
    names: list[str] = []
    for expected in (4, 4, 1):
        decision = decide(state, policy, EPOCH)
        assert len(decision.actions) == expected
        names += places(decision)
        pending = [v for v in decision.verdicts.values() if v.reason is Reason.PENDING_EVALUATION]
        assert decision.wake_at == (EPOCH if pending else None)
        assert (expected == 4) == bool(pending)
        apply(state, decision)
    assert names == [f"j{i}" for i in range(9)]


def test_a_job_set_aside_is_left_alone_until_it_is_called_back() -> None:
    state = PlacementState.of(make_nodes(1), [make_job("a"), make_job("b")])
    state.write_blocked["default", "a"] = None
    assert list(places(decide(state, POLICY, EPOCH))) == ["b"]
    state.write_blocked.clear()
    assert list(places(decide(state, POLICY, EPOCH))) == ["a"]


def test_a_new_job_of_the_name_of_one_that_was_set_aside_is_placed() -> None:
    state = PlacementState.of([make_node("n0")], [make_job("j")])
    state.write_blocked["default", "j"] = None
    assert decide(state, POLICY, EPOCH).actions == ()
    state.cluster.job_deleted(("default", "j"))
    state.cluster.job_changed(make_job("j"))
    assert workers(decide(state, POLICY, EPOCH), "j") == ["n0"]


def test_a_job_set_aside_does_not_starve_and_hides_no_job_that_does() -> None:
    aside = make_job("aside", count=3, conditions=waiting_since(EPOCH))
    head = make_job(
        "head",
        count=2,
        created=EPOCH + 1,
        conditions=waiting_since(EPOCH),
        node_selector={"p": "1"},
    )
    later = [make_job(f"later{i}", created=EPOCH + 2 + i) for i in (1, 2)]
    nodes = [make_node("a", labels={"p": "1"}), make_node("b", labels={"p": "1"}), make_node("c")]
    state = PlacementState.of(nodes, [aside, head, *later], [make_pod("x", node="a", gpus=1)])
    assert places(decide(state, POLICY, EPOCH + 900)) == {}
    state.write_blocked["default", "aside"] = None
    decision = decide(state, POLICY, EPOCH + 900)
    assert places(decision) == {"later1": {"worker": ("c",)}}
    assert decision.verdicts["default", "later2"].facts == {"job": "default/head"}


def test_what_was_tried_for_one_job_takes_no_room_from_the_next_ones_verdict() -> None:
    """Past its bounds a decision says of jobs that would fit that they wait for their turn."""
    jobs = [make_job(name, count=i, created=EPOCH + i) for i, name in enumerate("abc", 1)]
    policy = PlacementPolicy(placements_max=1)
    decision = decide(PlacementState.of(make_nodes(4), jobs), policy, EPOCH)
    assert list(places(decision)) == ["a"]
    assert {key[1]: v.reason for key, v in decision.verdicts.items() if key[1] != "a"} == {
        "b": Reason.PENDING_EVALUATION, "c": Reason.PENDING_EVALUATION,
    }  # fmt: skip


def test_ten_thousand_equal_jobs_are_told_in_bounded_steps_and_then_cost_nothing() -> None:
    jobs = [make_job(f"w{i:05}", created=EPOCH + i) for i in range(2000)]
    state = PlacementState.of([make_node("n", gpus=8)], jobs, [make_pod("x", node="n", gpus=1)])
    written = 0
    while (decision := decide(state, POLICY, EPOCH)).actions:
        assert len(decision.actions) <= POLICY.writes_max
        assert decision.wake_at == (EPOCH if written + 256 < 2000 else None)
        written += len(decision.actions)
        apply(state, decision)
    assert written == 2000
    state.cluster.pod_changed(make_pod("y", node="n", gpus=1))
    decision = decide(state, POLICY, EPOCH + 1)
    assert (decision.actions, decision.wake_at) == ((), EPOCH + POLICY.refresh_seconds)
    decision = decide(state, POLICY, EPOCH + 10)
    assert len(decision.actions) == POLICY.fresh_jobs_max
    assert {a.verdict.facts["short"] for a in decision.actions} == {2}


@pytest.mark.parametrize(
    "job",
    [
        make_job("j", roles=[make_role(count=2, gpus=8), make_role("driver", gpus=1)]),
        make_job("j", count=2, topology=Topology(key="rack", required=True)),
        make_job("j", count=3, conditions=waiting_since(EPOCH - 999)),
    ],
)
def test_a_gang_that_rests_is_tried_again_once_room_appears(job: Job) -> None:
    """Each role has room by itself, or the job is passed over, until a pod ends."""
    nodes = [*rack("a", 2), *rack("b", 2)]
    pods = [make_pod("x", node="a-0", gpus=8), make_pod("y", node="b-0", gpus=8)]
    later = make_job("k", created=EPOCH + 1)
    state = PlacementState.of(nodes, [job], pods)
    for second in range(3):
        assert places(decide(state, POLICY, EPOCH + second)) == {}
    state.cluster.job_changed(later)
    assert "j" not in places(decide(state, POLICY, EPOCH + 3))
    state.cluster.pod_deleted(("default", "x"))
    assert next(iter(places(decide(state, POLICY, EPOCH + 4)))) == "j"


def test_gangs_that_a_decision_had_not_looked_at_are_tried_once_others_have_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairlead.decide.placement.waiting.queue._COMPLEX_MAX", 1)
    roles = [(make_role("a", gpus=gpus), make_role("b", gpus=1)) for gpus in (1, 2, 3)]
    jobs = [make_job(f"j{i}", roles=each, created=EPOCH + i) for i, each in enumerate(roles)]
    assert set(places(decide(PlacementState.of(make_nodes(2), jobs), POLICY, EPOCH))) == {
        "j0", "j1", "j2",
    }  # fmt: skip


def test_a_gang_of_several_roles_is_tried_again_when_less_room_suits_it_better() -> None:
    """Packing several roles is a heuristic: here the first try takes the only node with CPUs."""
    nodes = [make_node("x", gpus=4, cpu=128), make_node("y", gpus=5, cpu=8)]
    roles = [make_role("large", gpus=4), make_role("small", gpus=3, cpu=100)]
    jobs = [make_job("gang", roles=roles), make_job("single", gpus=1, created=EPOCH + 1)]
    state = PlacementState.of(nodes, jobs)
    assert places(decide(state, POLICY, EPOCH)) == {
        "single": {"worker": ("x",)},
        "gang": {"large": ("y",), "small": ("x",)},
    }


def gang(count: int, *, gpus: int) -> GangRequest:
    found = gang_of(make_job("x", count=count, gpus=gpus).spec, RequestReader())
    assert isinstance(found, GangRequest)
    return found


def test_what_if_answers_agree_with_what_would_happen_and_change_nothing() -> None:
    state = PlacementState.of(make_nodes(2), [make_job("a", gpus=4, placement=make_placement(
        ["node-0000"]))])  # fmt: skip
    verdict = would_fit(state.cluster, gang(2, gpus=8))
    assert verdict.facts == {"resource": GPU, "asked": 16, "free": 12, "total": 16, "short": 4}
    assert verdict.blockers == (("default", "a"),)
    assert fits_empty(state.cluster, gang(2, gpus=8)).reason is Reason.PLACED
    assert fits_empty(state.cluster, gang(3, gpus=8)).reason is Reason.EXCEEDS_CLUSTER
    assert would_fit(state.cluster, gang(3, gpus=4)).facts == {
        "nodes_used": 2,
        "members": 3,
    }
    assert decide(state, POLICY, EPOCH).actions == ()


def test_the_largest_shape_is_one_nodes() -> None:
    nodes = [
        make_node("a", gpus=4, cpu=512),
        make_node("b", gpus=8, cpu=64),
        make_node("c", gpus=0),
    ]
    shape = largest_shape(ClusterState.of(nodes))
    assert shape == {"cpu": 64_000, "memory": 1 << 40, GPU: 8, "pods": 110}
    assert largest_shape(ClusterState()) == {}
