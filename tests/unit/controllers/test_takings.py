"""Each action of the controllers is known to take something, or to take nothing."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from msgspec.structs import replace

from fairlead.api.cluster.node_pool import NodePool, PoolDecision
from fairlead.api.cluster.node_report import EgressShare, NodeReport, NodeReportSpec
from fairlead.api.jobs.attempt import Attempt
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.meta import ObjectMeta
from fairlead.controllers import takings
from fairlead.controllers.nodes.health import HealthController
from fairlead.decide.arrays import CancelElement
from fairlead.decide.arrays.actions import Action as ArrayAction
from fairlead.decide.fleet.actions import Action as FleetAction
from fairlead.decide.fleet.actions import BeginMaintenance, Mark, RestartMachine, Terminate
from fairlead.decide.health.actions import Action as HealthAction
from fairlead.decide.health.actions import DeleteOverduePod, EvictPod, SetRecord
from fairlead.decide.job_actions import JobAction, WriteJobStatus
from fairlead.decide.jobs.actions import Action as JobsAction
from fairlead.decide.network import SetShares
from fairlead.decide.placement.actions import Action as PlacementAction
from fairlead.decide.teams.actions import Action as TeamsAction
from fairlead.decide.teams.actions import EvictIntruder
from fairlead.decide.use.idle import EndIdle, IdleAction
from fairlead.model.health.node_record import NodeRecord, NodeState
from fairlead.testing.builders import make_job, make_node, make_pod

AT = "2026-01-01T00:00:00Z"
TAKE = {
    "PreemptJob", "WriteJobStatus", "EndIdle", "CancelElement", "SetRecord", "EvictPod",
    "DeleteOverduePod", "WriteFleet", "WritePool", "CallLaunch", "Mark", "Terminate",
    "RestartMachine", "BeginMaintenance", "EvictIntruder",
}  # fmt: skip
TAKE_NOTHING = {
    "PlaceJob", "RecordActualPlacement", "ReleaseJob", "WriteVerdict", "NominateJob",
    "WithdrawNomination", "WithdrawPreemption", "EmitEvent", "RecordHistory", "RemoveFinalizer",
    "DeleteJob", "CreatePod", "ProbePods", "DeletePod", "CreateShared",
    "CreatePodGroup", "DeleteShared", "AddFinalizer",
    "WarnIdle", "ReportIdle", "ClearIdle", "WriteArrayStatus", "CreateElement", "DeleteElement",
    "SuspendElement", "PrioritizeElement", "DeleteArray", "CreateFleet", "DeleteReport", "Note",
    "LiftTaint", "CreateTest", "BeginTest", "SetTest", "DeleteTestPod", "DeleteTest",
    "SetPoolFinalizer", "Unmark", "Admit", "AwaitTurn", "SetSpare", "Announce", "DeleteNode",
    "PublishTeams", "SetOwner", "WriteTeamStatus", "AddTolerations", "ReportIntruder",
}  # fmt: skip


def test_of_every_action_it_is_known_whether_it_takes() -> None:
    """A new action is put into one of the sets above, and into `takings` if it takes."""
    kinds: tuple[Any, ...] = (
        ArrayAction, FleetAction, HealthAction, IdleAction, JobAction, JobsAction, PlacementAction,
        TeamsAction,
    )  # fmt: skip
    actions = {each.__name__ for kind in kinds for each in get_args(kind)}
    assert len(actions) > 50
    assert actions - TAKE - TAKE_NOTHING == set()
    assert TAKE - actions == set()


def made(*found: takings.Taking) -> list[tuple[str, str, str]]:
    """Kind, object and reason of takings."""
    return [(each.kind.value, each.object, each.reason) for each in found]


def record(state: NodeState | None) -> SetRecord:
    """A record of a node."""
    decided = (PoolDecision(AT, "Cordon", "gpu-xid", "n1: Xid 79", {"rule": "gpu-xid"}),)
    after = None if state is None else NodeRecord(state, AT)
    return SetRecord(make_node("n1"), after, decided)


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (NodeState.CORDONED, "Drain"), (NodeState.DRAINING, "Drain"), (NodeState.ASKING, "Drain"),
        (NodeState.RESETTING, "Replace"), (NodeState.REPLACING, "Replace"),
        (NodeState.VALIDATING, ""), (NodeState.READY, ""), (None, ""),
    ],
    ids=str,
)  # fmt: skip
def test_a_node_that_is_taken_out_has_a_record_and_one_that_comes_back_has_none(
    state: NodeState | None, kind: str
) -> None:
    found = takings.node_out(record(state))
    assert made(*found) == ([(kind, "Node n1", "gpu-xid")] if kind else [])
    of_controller = HealthController.takings(object.__new__(HealthController), record(state))
    assert list(of_controller) == list(found)


def test_pods_that_have_to_leave_are_named_with_the_rule() -> None:
    pod, node = make_pod("p", node="n1"), make_node("n1")
    assert made(takings.eviction(EvictPod(pod, node))) == [
        ("Drain", "Pod default/p", "NodeDrained")
    ]
    assert made(takings.eviction(DeleteOverduePod(pod, node))) == [
        ("Drain", "Pod default/p", "DeadlineOver")
    ]
    assert made(takings.intruder(EvictIntruder(pod, "a"))) == [
        ("Drain", "Pod default/p", "Intruder")
    ]


def test_jobs_that_a_rule_ends_are_recorded_once() -> None:
    job = make_job("j")
    assert made(takings.idle_end(EndIdle(job, "idle for 2h"))) == [("End", "Job default/j", "Idle")]
    stop = CancelElement(JobArray(metadata=ObjectMeta(name="a")), job, "worse than the median")
    assert made(takings.early_stop(stop)) == [("End", "Job default/j", "StoppedEarly")]
    ended = Attempt(1, reason="TimeLimit", message="attempt 1 ran for its time limit")
    status = replace(job.status, attempt=1, attempts=(ended,))
    assert made(*takings.time_limit(WriteJobStatus(job, status))) == [
        ("End", "Job default/j", "TimeLimit")
    ]
    later = replace(job, status=status)
    assert takings.time_limit(WriteJobStatus(later, status)) == ()
    crashed = replace(status, attempts=(replace(ended, reason="Crashed"),))
    assert takings.time_limit(WriteJobStatus(job, crashed)) == ()


def test_machines_and_budgets_are_recorded_and_purchases_are_not() -> None:
    meta = ObjectMeta(name="h100", uid="u")
    pool, node = NodePool(metadata=meta), make_node("n1")
    assert made(*takings.machines(Mark(node, "idle"))) == [("Drain", "Node n1", "Removal")]
    assert made(*takings.machines(Terminate(pool, ("i-1", "i-2")))) == [
        ("Replace", "Machine i-1", "Terminate"), ("Replace", "Machine i-2", "Terminate"),
    ]  # fmt: skip
    [first] = takings.machines(RestartMachine(pool, "i-1", "r1"))
    [second] = takings.machines(RestartMachine(pool, "i-1", "r2"))
    assert first.reason == "Restart"
    assert first.id != second.id
    assert made(*takings.machines(BeginMaintenance(pool, "i-1"))) == [
        ("Replace", "Machine i-1", "BeginMaintenance")
    ]
    decided = [PoolDecision(AT, action, "Idle", f"n1: {action}", {"node": "n1"})
               for action in ("Launch", "Remove", "Drain", "Grant", "Balloons")]  # fmt: skip
    found = takings.fleet_decisions(meta, "NodePool", decided)
    assert [each.message for each in found] == ["n1: Remove", "n1: Drain", "n1: Grant"]


def test_a_team_that_begins_to_be_limited_is_recorded_and_a_change_of_the_limit_is_not() -> None:
    share = EgressShare("a", (), 100, 10)
    report = NodeReport(metadata=ObjectMeta(name="n1", uid="u"), spec=NodeReportSpec())
    assert made(*takings.shaping(SetShares(report, (share,), (share,)))) == [
        ("Shape", "Node n1", "TeamBudget"), ("Shape", "Node n1", "TeamBudget"),
    ]  # fmt: skip
    limited = replace(report, spec=NodeReportSpec((share,)))
    changed = replace(share, bits_per_second=50)
    assert takings.shaping(SetShares(limited, (changed,))) == []
    start = replace(share, bits_per_second=10)  # before a pod of the team is there
    assert takings.shaping(SetShares(report, (start,))) == []
    begins = SetShares(replace(report, spec=NodeReportSpec((start,))), (share,))
    assert made(*takings.shaping(begins)) == [("Shape", "Node n1", "TeamBudget")]
