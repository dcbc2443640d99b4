"""The five-part answer to "why does it wait?"."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.api.jobs.after import After
from fairlead.api.jobs.job import Attempt, Job, VerdictStatus
from fairlead.api.meta import Condition
from fairlead.api.names import FAILURE_TARGET
from fairlead.api.values.times import format_time
from fairlead.cli.views.why import why_text
from fairlead.decide.answers.explain import explain
from fairlead.decide.answers.explanation import Explanation, Forecast, OverduePod, UnknownBound
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.places.whatif import fits_empty, would_fit
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.model.gang.gangs import GangRequest
from fairlead.testing.builders import (
    EPOCH,
    make_job,
    make_member_pod,
    make_node,
    make_nodes,
    make_placement,
    make_pod,
    make_role,
)

GPU = "nvidia.com/gpu"
NOW = EPOCH + 1000


def holder(name: str, *nodes: str, limit: int | None, started: float = EPOCH) -> Job:
    attempts = (Attempt(number=1, started_at=format_time(started)),)
    return make_job(
        name,
        count=len(nodes),
        placement=make_placement(nodes),
        time_limit_seconds=limit,
        status={"attempts": attempts},
    )


def answer(state: PlacementState, name: str = "j") -> Explanation:
    found = explain(state, ("default", name), NOW)
    assert found is not None
    return found


def busy(job: Job, *more: Job) -> PlacementState:
    """Four nodes, three of them held."""
    return PlacementState.of(
        make_nodes(4),
        [
            holder("long", "node-0000", limit=7200),
            holder("short", "node-0001", limit=3600),
            holder("endless", "node-0002", limit=None),
            job,
            *more,
        ],
    )


def test_the_numbers_of_all_five_parts_agree() -> None:
    ahead = make_job("first", count=3, priority=5)
    found = answer(busy(make_job("j", count=2, cpu=16), ahead))
    assert found.verdict.reason is Reason.INSUFFICIENT_CAPACITY
    assert found.verdict.message == "needs 16 GPUs, 8 of 32 are free: 8 short"
    gpus, cpus = found.arithmetic
    assert (gpus.resource, gpus.asked, gpus.free, gpus.total, gpus.short) == (GPU, 16, 8, 32, 8)
    assert gpus.message == "GPUs: asks 16, 8 of 32 are free, 8 short"
    assert (cpus.resource, cpus.short) == ("cpu", 0)
    assert found.ahead is not None
    assert (found.ahead.position, found.ahead.waiting) == (1, 2)
    assert found.ahead.jobs == (("default", "first"),)
    holders = {h.key[1]: (h.amount, h.nodes, h.ends_at) for h in found.holders}
    assert holders == {
        "long": (8, 1, EPOCH + 7230),
        "short": (8, 1, EPOCH + 3630),
        "endless": (8, 1, None),
    }
    assert [s.message for s in found.suggestions] == [
        "1 instead of 2 members of role worker: starts now",
        "4 instead of 8 GPUs per member of role worker: starts now",
    ]


def bound(found: Explanation) -> Forecast:
    assert isinstance(found.forecast, Forecast), found.forecast
    return found.forecast


def test_it_may_start_when_enough_holders_have_used_their_limit_and_grace() -> None:
    two = bound(answer(busy(make_job("j", count=2))))
    assert (two.may_start_by, two.waits_for) == (EPOCH + 3630, (("default", "short"),))
    three = bound(answer(busy(make_job("j", count=3))))
    assert three.may_start_by == EPOCH + 7230
    assert three.waits_for == (("default", "long"), ("default", "short"))
    assert answer(busy(make_job("j", count=4))).forecast is UnknownBound.NO_TIME_LIMIT


def test_a_small_job_behind_a_big_one_is_not_promised_the_big_ones_place() -> None:
    jobs = [
        holder("all-a", "node-0000", "node-0001", limit=1020),
        make_job("all-b", count=2, created=EPOCH + 1, time_limit_seconds=300),
        make_job("j", created=EPOCH + 2),
    ]
    found = bound(answer(PlacementState.of(make_nodes(2), jobs)))
    assert found.may_start_by == EPOCH + 1050 + 330
    assert found.waits_for == (("default", "all-b"), ("default", "all-a"))


def test_what_may_come_first_without_a_known_time_makes_the_start_unknown() -> None:
    def forecast_with(*jobs: Job) -> Forecast | UnknownBound | None:
        hold = holder("h", "node-0000", limit=2000)
        return answer(PlacementState.of(make_nodes(1), [hold, make_job("j"), *jobs])).forecast

    assert isinstance(forecast_with(), Forecast)
    after = make_job("d", attempt=0, created=EPOCH - 1, spec={"after": (After(job="h"),)})
    assert forecast_with(after) is UnknownBound.DEPENDENT
    endless = make_job("e", priority=5)
    assert forecast_with(endless) is UnknownBound.NO_TIME_LIMIT
    other = make_pod("p", node="node-0000", gpus=1)
    state = PlacementState.of(make_nodes(1), [make_job("j")], [other])
    assert answer(state).forecast is UnknownBound.NO_ROOM


def test_a_holder_over_its_limit_ends_now_at_the_latest() -> None:
    state = PlacementState.of(make_nodes(1), [holder("h", "node-0000", limit=10), make_job("j")])
    assert bound(answer(state)).may_start_by == NOW


def test_every_suggestion_would_start_and_one_step_more_would_not() -> None:
    pods = [make_pod(f"p{i}", node=f"node-{i:04}", gpus=i, memory=f"{100 * i}Gi") for i in range(4)]
    roles = [
        make_role("worker", count=5, gpus=6, memory="300Gi"),
        make_role("server", count=2, gpus=1, memory="10Gi"),
    ]
    state = PlacementState.of(make_nodes(4), [make_job("j", roles=roles)], pods)
    found = answer(state)
    gang = state.jobs["default", "j"].gang
    assert isinstance(gang, GangRequest)
    assert would_fit(state.cluster, gang).reason is not Reason.PLACED
    assert [(s.role, s.change, s.after) for s in found.suggestions] == [
        ("worker", "count", 3),
        ("worker", GPU, 4),
    ]
    for count, gpus, fits in ((3, 6, True), (4, 6, False), (5, 4, True), (5, 5, False)):
        changed = [make_role("worker", count=count, gpus=gpus, memory="300Gi"), roles[1]]
        other = PlacementState.of(make_nodes(4), [make_job("j", roles=changed)], pods)
        changed_gang = other.jobs["default", "j"].gang
        assert (would_fit(other.cluster, changed_gang).reason is Reason.PLACED) == fits


def test_an_impossible_request_gets_the_largest_possible_one() -> None:
    state = PlacementState.of(make_nodes(2), [make_job("j", gpus=16)])
    found = answer(state)
    assert found.verdict.reason is Reason.NO_NODE_SHAPE_FITS
    assert [s.after for s in found.suggestions] == [8]
    assert (found.holders, found.forecast) == ((), None)


def test_a_job_that_does_not_wait_for_room_is_told_what_it_waits_for() -> None:
    over = (Condition(type="Failed", status="True"),)
    jobs = [
        make_job("held", suspend=True),
        make_job("placed", count=2, placement=make_placement(["node-0000"] * 2)),
        make_job("prep", attempt=0),
        make_job("failed", conditions=over),
        make_job("after-prep", attempt=0, spec={"after": (After(job="prep"),)}),
        make_job("after-failed", attempt=0, spec={"after": (After(job="failed"),)}),
        make_job(
            "back-off",
            attempt=1,
            status={
                "attempts": (Attempt(1, finished_at=format_time(NOW)),),
                "restart_at": format_time(NOW + 30),
            },
        ),
        make_job("unreadable", cpu="lots"),
        make_job("next"),
        make_job("after-nobody", attempt=0, spec={"after": (After(job="nosuch"),)}),
        make_job("stopping", cancel=True),
    ]
    state = PlacementState.of(make_nodes(2), jobs)
    reasons = {name: answer(state, name).verdict.reason for name in [j.metadata.name for j in jobs]
               if name != "failed"}  # fmt: skip
    assert reasons == {
        "held": Reason.HELD,
        "placed": Reason.PLACED,
        "prep": Reason.PENDING_EVALUATION,
        "after-prep": Reason.DEPENDENCY,
        "after-failed": Reason.DEPENDENCY_FAILED,
        "back-off": Reason.BACKING_OFF,
        "unreadable": Reason.INVALID_REQUEST,
        "next": Reason.PENDING_EVALUATION,
        "after-nobody": Reason.DEPENDENCY_MISSING,
        "stopping": Reason.STOPPING,
    }
    for name in reasons:
        assert answer(state, name).verdict.message
    assert answer(state, "placed").verdict.facts == {"nodes_used": 1, "members": 2}
    backs_off = answer(state, "back-off")
    assert (backs_off.since, backs_off.verdict.facts["backoff_seconds"]) == (NOW, 30)
    assert explain(state, ("default", "failed"), NOW) is None
    assert explain(state, ("default", "nobody"), NOW) is None


def test_what_only_the_scheduler_can_know_is_taken_from_the_status() -> None:
    told = VerdictStatus(
        outcome="Waiting",
        reason="BehindEarlierJob",
        facts={"job": "default/head"},
        since=format_time(EPOCH),
    )
    head = holder("head", "node-0000", limit=3600)
    state = PlacementState.of([make_node("node-0000")], [head, make_job("j", verdict=told)])
    found = answer(state)
    assert (found.verdict.reason, found.since) == (Reason.BEHIND_EARLIER_JOB, EPOCH)
    assert [h.key for h in found.holders] == [head.metadata.key]


def test_explaining_changes_nothing() -> None:
    state = busy(make_job("j", count=2))
    gang = state.jobs["default", "j"].gang
    before = (
        state.cluster.table.used.copy(),
        would_fit(state.cluster, gang),
        fits_empty(state.cluster, gang),
    )
    first = answer(state)
    assert answer(state) == first
    assert (state.cluster.table.used == before[0]).all()
    assert (would_fit(state.cluster, gang), fits_empty(state.cluster, gang)) == before[1:]


def behind_a_reservation(limit: int | None) -> Explanation:
    """A head of two nodes starts within 1,230 s from now; one node is idle until then."""
    eager = PlacementPolicy(starvation_seconds=0.0)
    verdict = VerdictStatus(
        reason="BehindReservation", outcome="Waiting",
        facts={"job": "default/head", "starts_by": format_time(NOW + 1230)},
    )  # fmt: skip
    small = make_job("j", time_limit_seconds=limit, created=EPOCH + 1, verdict=verdict)
    jobs = [holder("long", "node-0000", limit=2200), make_job("head", count=2), small]
    state = PlacementState.of(make_nodes(2), jobs)
    found = explain(state, ("default", "j"), NOW, eager)
    assert found is not None
    assert state.jobs["default", "j"].job is small
    return found


def test_a_job_behind_a_reservation_is_told_the_time_limit_with_which_it_starts_now() -> None:
    [found] = behind_a_reservation(None).suggestions
    assert (found.change, found.before, found.after) == ("time", None, 1140)
    assert found.message == "a time limit of at most 19m: starts now"
    [found] = behind_a_reservation(7200).suggestions
    assert (found.before, found.after) == (7200, 1140)
    assert behind_a_reservation(1140).suggestions == ()


def test_no_time_limit_is_suggested_that_a_decision_would_not_accept() -> None:
    """As written the reservation is an hour longer than it is."""
    eager = PlacementPolicy(starvation_seconds=0.0)
    facts = {"job": "default/head", "starts_by": format_time(NOW + 4830)}
    verdict = VerdictStatus(reason="BehindReservation", outcome="Waiting", facts=facts)
    small = make_job("j", created=EPOCH + 1, verdict=verdict)
    jobs = [holder("long", "node-0000", limit=2200), make_job("head", count=2), small]
    found = explain(PlacementState.of(make_nodes(2), jobs), ("default", "j"), NOW, eager)
    assert found is not None
    assert found.suggestions == ()


def test_a_pod_that_should_be_gone_is_named_with_its_node_and_since_when() -> None:
    fails = Condition(FAILURE_TARGET, "True", "RestartLimit", "its node was lost")
    failing = holder("failing", "node-0000", "node-0001", limit=None)
    ended = replace(failing.status.attempts[0], finished_at=format_time(NOW - 60))
    status = replace(failing.status, attempts=(ended,), conditions=(fails,))
    failing = replace(failing, status=status)
    stuck = make_member_pod(failing, 1, gpus=8, deleted=True)
    state = PlacementState.of(make_nodes(2), [failing, make_job("j", count=2)], [stuck])
    own, other = answer(state, "failing"), answer(state)
    assert (own.verdict.reason, own.verdict.facts["cause"]) == (
        Reason.STOPPING,
        "its node was lost",
    )
    assert other.verdict.message == "needs 16 GPUs, 8 of 16 are free: 8 short"
    assert own.overdue == other.overdue == (OverduePod(stuck.metadata.key, "node-0001", EPOCH),)
    text = why_text(make_job("j", count=2), other, NOW)
    assert f"  hangs      pod {stuck.metadata.name} on node-0001 was to be gone 16m ago" in text
    assert failing.status.placement is not None, "its room comes back without it"
