"""`why` of a job that has its place, and of one whose cluster the user may not see."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.cli.fake_api import FakeApi, Unanswered, serve

from fairlead.api.cluster.team import Reservation
from fairlead.api.jobs.job import Adopts, Attempt, Job, Progress, VerdictStatus
from fairlead.api.kubernetes.resource_quota import ResourceQuota, ResourceQuotaStatus
from fairlead.api.meta import Condition, ObjectMeta, to_wire
from fairlead.api.names import RUNNING
from fairlead.api.resources import NODES, PODS, RESOURCE_QUOTAS
from fairlead.api.status import Forbidden, NotFound, StatusDetails
from fairlead.api.values.times import format_time
from fairlead.cli.app import run
from fairlead.cli.cluster.lookup import find_job
from fairlead.cli.connection.transport import Api
from fairlead.cli.submitting.fit import check_fit
from fairlead.cli.views.jobs import tasks_of
from fairlead.cli.views.why import why_facts, why_text
from fairlead.cli.views.words import amount_words
from fairlead.decide.answers.explain import explain
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.input.errors import CliError
from fairlead.model.cluster import ClusterState
from fairlead.runtime.client import ObjectList, Request, RequestVerb
from fairlead.testing.builders import (
    EPOCH,
    make_job,
    make_member_pod,
    make_node,
    make_nodes,
    make_placement,
    make_team,
)


def test_a_placed_job_whose_pods_the_server_takes_from_nobody_says_so_in_its_words() -> None:
    job = make_job("a", placement=make_placement(["node-0000"]))
    words = 'pods "a-1-worker-0" is forbidden: exceeded quota: team'
    held = Condition(RUNNING, "False", "PodHeldBack", words)
    state = PlacementState.of(make_nodes(1), [job])
    explanation = explain(state, job.metadata.key, EPOCH)
    assert "held back" not in why_text(job, explanation, EPOCH)
    told = replace(job, status=replace(job.status, conditions=(held,)))
    assert f"  held back  {words}; tried again\n" in why_text(told, explanation, EPOCH)


def test_a_node_that_does_not_report_is_named_while_there_is_patience_with_it() -> None:
    job = make_job("a", placement=make_placement(["node-0000"]))
    state = PlacementState.of(make_nodes(1), [job])
    explanation = explain(state, job.metadata.key, EPOCH)
    assert "not ready" not in why_text(job, explanation, EPOCH)
    unready = {"node-0000": EPOCH - 12}
    text = why_text(job, explanation, EPOCH, unready=unready, node_lost_grace_seconds=90.0)
    assert "  not ready  node-0000 for 12s; the job moves once that is 1m30s\n" in text
    text = why_text(
        job, explanation, EPOCH, unready=unready, unreachable=["node-0000"],
        node_lost_grace_seconds=90.0,
    )  # fmt: skip
    assert "  not ready  node-0000 for 12s; unreachable: the job moves\n" in text


def test_a_line_of_a_progress_report_that_could_not_be_read_is_shown_with_what_is_expected() -> (
    None
):
    job = make_job("a", placement=make_placement(["node-0000"]))
    explanation = explain(PlacementState.of(make_nodes(1), [job]), job.metadata.key, EPOCH)
    progress = Progress(step=4, ignored_line='{"steps": 5}')
    told = replace(job, status=replace(job.status, progress=progress))
    text = why_text(told, explanation, EPOCH)
    assert '  ignored    {"steps": 5}   (a line of $FAIRLEAD_RUN_FILE is {"step": 1200' in text
    assert '{"metric": "loss", "value": 0.3}' in text
    assert "ignored" not in why_text(job, explanation, EPOCH)


def test_a_job_that_is_stopping_does_not_wait() -> None:
    begun = Attempt(1, begun_at=format_time(EPOCH))
    job = make_job("a", placement=make_placement(["node-0000"]), cancel=True,
                   status={"attempts": (begun,), "state": "Stopping"})  # fmt: skip
    explanation = explain(PlacementState.of(make_nodes(1), [job]), job.metadata.key, EPOCH)
    assert why_text(job, explanation, EPOCH).startswith("Job a is stopping\n")


def test_one_of_a_thing_has_no_plural_and_a_forecast_says_once_what_has_ended() -> None:
    held = [make_job(f"h{i}", time_limit_seconds=60, placement=make_placement([f"node-000{i}"]))
            for i in range(2)]  # fmt: skip
    for count, words in ((1, "once h0 has ended"), (2, "once h1, h0 have ended")):
        job = make_job("a", count=count, cpu="1", time_limit_seconds=60)
        state = PlacementState.of(make_nodes(count), [*held[:count], job])
        text = why_text(job, explain(state, job.metadata.key, EPOCH), EPOCH)
        assert words in text
        assert ("1 CPU;" in text) is (count == 1)
    assert amount_words("cpu", 1000) == "1 CPU"
    assert amount_words("cpu", 11_000) == "11 CPUs"
    assert amount_words("cpu", 2_100) == "2.1 CPUs"


def test_the_expected_start_is_a_range_with_what_it_was_learned_from() -> None:
    done = (Condition(type="Succeeded", status="True"),)
    past = [
        make_job(f"h-{n}", conditions=done, status={"attempts": (
            Attempt(1, started_at=format_time(EPOCH), finished_at=format_time(EPOCH + 60 * n),
                    reason="Succeeded"),
        )})
        for n in range(1, 31)
    ]  # fmt: skip
    holder = make_job("h", placement=make_placement(["node-0000"]))
    job = make_job("a")
    state = PlacementState.of(make_nodes(1), [*past, holder, job])
    found = explain(state, job.metadata.key, EPOCH, is_late=lambda: False)
    text = why_text(job, found, EPOCH)
    assert "  may start  unknown: a job that holds the room, or is ahead, has no" in text
    assert "  expected   in 46s to 38m, about 15m\n" in text
    assert "if jobs run for as long as 30 past jobs like them did and no other job comes" in text
    facts = why_facts(job, found)["explanation"]["expected"]
    assert sorted(facts) == ["earliest", "latest", "median", "pastJobs"]
    assert "expected" not in why_text(job, explain(state, job.metadata.key, EPOCH), EPOCH)


def test_a_job_that_preempts_names_its_victims_and_when() -> None:
    began = Attempt(1, started_at=format_time(EPOCH - 20))
    low = make_job("low", count=2, priority=0, placement=make_placement(["node-0000", "node-0001"]),
                   status={"attempts": (began,)})  # fmt: skip
    high = make_job("high", priority=9)
    state = PlacementState.of(make_nodes(2), [low, high])
    text = why_text(high, explain(state, high.metadata.key, EPOCH), EPOCH)
    assert "  preempts   low in 40s, unless there is room before\n" in text
    assert "  may start  once low has ended, after a last checkpoint if it reports any\n" in text
    text = why_text(high, explain(state, high.metadata.key, EPOCH + 40), EPOCH + 40)
    assert "  preempts   low\n" in text


def test_a_waiting_job_shows_the_attempt_that_a_preemption_ended() -> None:
    ended = Attempt(1, finished_at=format_time(EPOCH), reason="Preempted",
                    message="gives its nodes back for job default/high")  # fmt: skip
    job = make_job("low", attempt=2, status={"attempts": (ended,), "state": "Waiting"})
    now = EPOCH + 90
    text = why_text(job, explain(PlacementState.of((), [job]), job.metadata.key, now), now)
    assert "  1  from the start, ended 1m30s ago: Preempted: gives its nodes back" in text
    cancelled = replace(job, spec=replace(job.spec, cancel=True))
    assert "from the start" not in why_text(cancelled, None, EPOCH)


def test_the_time_limit_with_which_a_job_starts_now_is_a_flag_of_submit() -> None:
    """The head of the queue starts within an hour and 30 s."""
    hour = 3600
    placement = replace(make_placement(["node-0000"]), placed_at=format_time(EPOCH))
    running = make_job("running", placement=placement, time_limit_seconds=hour)
    facts = {"job": "default/head", "starts_by": format_time(EPOCH + hour + 30)}
    written = VerdictStatus(reason="BehindReservation", outcome="Waiting", facts=facts)
    job = make_job("a", created=EPOCH + 1, verdict=written)
    state = PlacementState.of(make_nodes(2), [running, make_job("head", count=2), job])
    eager = PlacementPolicy(starvation_seconds=0.0)
    text = why_text(job, explain(state, job.metadata.key, EPOCH, eager), EPOCH)
    assert "  would change it\n    --time 59m  a time limit of at most 59m: starts now\n" in text


def test_a_reservation_of_the_own_team_is_a_flag_of_submit() -> None:
    reservation = Reservation("talk", format_time(EPOCH), format_time(EPOCH + 9), node_names=("n",))
    job = make_job("a", namespace="vision")
    cluster = ClusterState.of([make_node("n")], [job])
    cluster.team_changed("vision", make_team("vision", reservations=(reservation,)))
    text = why_text(job, explain(PlacementState(cluster), job.metadata.key, EPOCH), EPOCH)
    assert "    --reservation talk  nodes that its team has reserved: starts now\n" in text


def test_an_elastic_job_shows_its_range_and_how_many_members_each_attempt_had() -> None:
    ended = Attempt(1, finished_at=format_time(EPOCH), reason="NodeLost", sizes={"worker": 3},
                    nodes_lost=("gone-0001", "gone-0002"))  # fmt: skip
    status = {"attempts": (ended, Attempt(2, sizes={"worker": 2}))}
    placement = make_placement(["node-0000", "node-0001"], attempt=2)
    job = make_job("a", count=4, min_count=2, attempt=2, placement=placement, status=status)
    state = PlacementState.of(make_nodes(2), [job])
    text = why_text(job, explain(state, job.metadata.key, EPOCH), EPOCH)
    assert "  tasks      0/2\n" in text
    assert "  asked for  2 to 4 members; each attempt has as many as had room" in text
    lost = "NodeLost; gave up gone-[0001-0002]"
    assert f"    1  3 members, from the start, ended 0s ago: {lost}\n" in text
    assert "    2  2 members, from the start, goes on\n" in text


def test_a_waiting_elastic_job_shows_its_range_and_is_advised_to_lower_its_least() -> None:
    job = make_job("a", count=8, min_count=4)
    assert tasks_of(job) == "0/4-8"
    state = PlacementState.of(make_nodes(3), [job])
    text = why_text(job, explain(state, job.metadata.key, EPOCH), EPOCH)
    assert "    --nodes 3-8  " in text


def test_without_the_cluster_the_status_of_the_job_is_told() -> None:
    placed = make_job("a", placement=make_placement(["node-0000"]))
    assert "has its place" in why_text(placed, None, EPOCH)
    verdict = VerdictStatus("Waiting", "InsufficientCapacity", {"asked": 1, "resource": "cpu"})
    waiting = make_job("b", verdict=verdict, status={"state": "Waiting"})
    assert why_text(waiting, None, EPOCH).startswith("Job b: InsufficientCapacity")


class OneJob(Unanswered, Api):
    """Has one job, and refuses to list nodes."""

    def __init__(self, job: Job) -> None:
        super().__init__(self.connection)
        self.job = job

    def call(self, request: Request[Any]) -> Any:
        """Answer; NotFound, Forbidden."""
        if request.resource.name == NODES.name:
            raise Forbidden('nodes is forbidden: User "ana" cannot list resource "nodes"')
        if request.verb is RequestVerb.LIST:
            return ObjectList((self.job,), "1")
        raise NotFound("no such job", details=StatusDetails(name=request.name, kind="jobs"))


@pytest.mark.parametrize("name", ["train", "job/train", "job.batch/train", "jobs/train"])
def test_an_adopted_job_is_found_by_the_name_of_what_it_stands_for(name: str) -> None:
    adopts = Adopts("Job", "train", "batch/v1", "uid")
    job = make_job("train-1a2b3c", spec={"adopts": adopts})
    assert find_job(OneJob(job), "default", name) is job


def test_an_object_of_another_kind_is_not_taken_for_it() -> None:
    job = make_job("train-1a2b3c", spec={"adopts": Adopts("Job", "train", "batch/v1", "uid")})
    with pytest.raises(CliError, match="does not exist"):
        find_job(OneJob(job), "default", "statefulset/train")


def test_a_user_who_may_not_list_nodes_may_submit() -> None:
    assert "not checked" in check_fit(OneJob(make_job("a")), make_job("b"), EPOCH).text


def test_where_no_controller_answers_everything_counts_that_the_scheduler_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pods whose job was deleted without them, and a quota that has no room for the job."""
    written = VerdictStatus(reason="AwaitingQuota", outcome="Waiting", facts={"message": "full"})
    poor = make_job("poor", namespace="poor", verdict=written)
    api, gone = FakeApi(make_job("mine", count=2), poor), make_job("gone", count=2)
    serve(monkeypatch, api)
    pods = [make_member_pod(gone, i, node=f"node-000{i}") for i in range(2)]
    status = ResourceQuotaStatus({"pods": "0"}, {"pods": "0"})
    quota = ResourceQuota(ObjectMeta("q", namespace="poor"), status=status)
    for resource, found in ((NODES, make_nodes(2)), (PODS, pods), (RESOURCE_QUOTAS, [quota])):
        for each in found:
            api.create(resource.raw, to_wire(each), namespace=each.metadata.namespace)
    assert run(["why", "mine"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Job mine waits: InsufficientCapacity")
    assert "asks       16 GPUs; 0 of 16 are free, 16 short" in said
    assert run(["why", "poor", "-n", "poor"]) == 0
    assert capsys.readouterr().out.startswith("Job poor waits: AwaitingQuota")
    assert (
        "waits: the quota of its namespace"
        in check_fit(api, make_job("x", namespace="poor"), 0).text
    )
