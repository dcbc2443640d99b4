"""What the process that decides answers: from its own state, and to each what he may know."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import aiohttp
import msgspec
import pytest
from msgspec.structs import replace
from tests.patience import PATIENCE_SECONDS
from tests.unit.app.test_archive import Reviewer, archive, get, proxied

from fairlead.api import names
from fairlead.api.cluster.node_pool import (
    Launch,
    NodePool,
    NodePoolSpec,
    NodePoolStatus,
    NodeTemplate,
    Provider,
    ProviderType,
)
from fairlead.api.cluster.team import JobLimits
from fairlead.api.jobs.job import ROLES_MAX, Attempt, Job
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Taint
from fairlead.api.kubernetes.resource_quota import ResourceQuota, ResourceQuotaStatus
from fairlead.api.meta import ObjectMeta, to_wire
from fairlead.api.names import SUBMITTED_BY
from fairlead.api.values.times import format_time
from fairlead.app.queries.answers import (
    KnownState,
    PlannerAnswers,
    fitted_of_namespace,
    of_namespace,
)
from fairlead.app.queries.answers_api import QUESTION_BYTES_MAX, AnswersApi
from fairlead.app.queries.archive_api import QUESTIONS_MAX
from fairlead.app.queries.archive_guard import to_read_history
from fairlead.app.queries.messages import Explained, ExplainQuestion, FitQuestion, Fitted
from fairlead.cli.cluster.answers import ask_fit, ask_why
from fairlead.cli.connection.transport import Api
from fairlead.decide.answers.explanation import (
    ClaimedPlace,
    ClaimHolder,
    Forecast,
    PreemptionAhead,
    UnknownBound,
)
from fairlead.decide.answers.forecast import Forecasts
from fairlead.decide.answers.supposed import supposed
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Outcome, Reason
from fairlead.kube.kubeconfig import Connection
from fairlead.model.cluster import ClusterState
from fairlead.model.health.node_health import NodeHealth
from fairlead.runtime.clock import SystemClock
from fairlead.testing.builders import (
    EPOCH,
    make_anti_affinity,
    make_job,
    make_node,
    make_nodes,
    make_placement,
    make_pod,
    make_team,
)

NOW = EPOCH + 100.0
EARLIER = format_time(EPOCH - 3600)


def answers_on(state: ClusterState, **known: Any) -> PlannerAnswers:
    planner = PlacementState(state)
    return PlannerAnswers(
        planner, KnownState(**known), PlacementPolicy(), JobsPolicy(node_lost_grace_seconds=7.0),
        stopwatch=lambda: 0.0, seconds=lambda: 1.0,
    )  # fmt: skip


def two_tenants(**known: Any) -> PlannerAnswers:
    """A job of a waits for one of b, whose limit is an hour."""
    running = make_job("secret", namespace="b", count=2, time_limit_seconds=3600,
                       placement=make_placement(["node-0000", "node-0001"]))  # fmt: skip
    ahead = make_job("zebra", namespace="b", count=2, created=EPOCH - 9, time_limit_seconds=60)
    job = make_job("mine", namespace="a", count=2)
    return answers_on(ClusterState.of(make_nodes(2), [running, ahead, job]), **known)


# What is answered


def test_the_pods_of_a_deleted_job_hold_their_nodes_in_the_answer_too() -> None:
    gone, job = make_job("gone", count=2), make_job("mine", count=2)
    pods = [make_pod(f"gone-1-worker-{i}", node=f"node-000{i}", gpus=8, owner=gone,
                     labels={"fairlead.dev/job-name": "gone"}) for i in range(2)]  # fmt: skip
    answers = answers_on(ClusterState.of(make_nodes(2), [job], pods))
    found = answers.explain(job.metadata.key, NOW).explanation
    assert found is not None
    assert found.verdict.reason is Reason.INSUFFICIENT_CAPACITY
    assert (
        found.verdict == decide(answers.state, PlacementPolicy(), NOW).verdicts["default", "mine"]
    )
    dry = answers.fit(make_job("next", count=2), NOW).verdict
    assert (dry.reason, dry.facts["free"]) == (Reason.INSUFFICIENT_CAPACITY, 0)


def test_a_quota_and_a_limit_are_said_before_the_job_is_queued() -> None:
    status = ResourceQuotaStatus({"pods": "3"}, {"pods": "2"})
    quota = ResourceQuota(ObjectMeta("q", namespace="a"), status=status)
    team = make_team("t", namespaces=("b",), limits=JobLimits(running=1))
    held = make_job("held", namespace="b", placement=make_placement(["node-0000"]))
    state = ClusterState.of(make_nodes(4), [held], teams=[team], quotas=[quota])
    answers = answers_on(state)
    for namespace, reason in (
        ("a", Reason.AWAITING_QUOTA), ("b", Reason.RUNNING_LIMIT), ("c", Reason.PLACED),
    ):  # fmt: skip
        job = make_job("next", namespace=namespace, count=2)
        assert answers.fit(job, NOW).verdict.reason is reason


def test_an_answer_changes_nothing_that_a_decision_sees() -> None:
    answers, other = two_tenants(), two_tenants()
    answers.explain(("a", "mine"), NOW)
    answers.fit(make_job("next", namespace="a", count=9), NOW)
    decisions = [decide(each.state, PlacementPolicy(), NOW + 1) for each in (answers, other)]
    assert decisions[0] == decisions[1]


def test_questions_about_ever_other_jobs_leave_no_memory_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user asks without storing anything, so no quota bounds what his questions are about."""
    for bound in ("fits.ROWS_MAX", "fits._MASKS_SPARE_MAX", "nodes._VECTORS_MAX"):
        monkeypatch.setattr(f"fairlead.model.inventory.{bound}", 32)

    def asked(number: int) -> Job:
        labels, ask = {"app": f"a{number}"}, {"cpu": "1", "nvidia.com/gpu": "1"}
        near = {"topologyKey": f"zone-{number}", "labelSelector": {"matchLabels": labels}}
        liked = {"matchExpressions": [{"key": f"p{number}", "operator": "Exists"}]}
        spec: dict[str, Any] = {
            "containers": [{"name": "main", "image": f"i{number}", "resources": {"limits": ask}}],
            "tolerations": [{"key": f"t{number}", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "preference": liked}]}},
        }  # fmt: skip
        if number % 3 == 0:
            spec["nodeSelector"] = {f"key-{number}": "x"}
        if number % 3 == 1:
            required = "requiredDuringSchedulingIgnoredDuringExecution"
            spec["affinity"]["podAntiAffinity"] = {required: [near]}
        template = {"metadata": {"labels": labels}, "spec": spec}
        role = {"name": "worker", "count": 1 + number % 9, "template": template}
        metadata = {"name": f"n{number}", "namespace": f"space-{number % 7}"}
        return msgspec.convert({"metadata": metadata, "spec": {"roles": [role]}}, Job)

    answers, reasons = answers_on(ClusterState.of(make_nodes(20))), set[Reason]()
    tracemalloc.start()
    try:
        for number in range(400):  # as many as may be remembered
            reasons.add(answers.fit(asked(number), NOW).verdict.reason)
        assert len(reasons) > 1
        assert Reason.PLACED in reasons
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(400, 600):
            answers.fit(asked(number), NOW)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 200 * 300
    finally:
        tracemalloc.stop()


def test_what_is_known_beside_the_state_goes_with_the_answer() -> None:
    node = make_node("node-0000", gpus=8, ready=False)
    job = make_job("mine", placement=make_placement(["node-0000"]))
    health = NodeHealth()
    health.put(node, NOW - 3)
    answers = answers_on(ClusterState.of([node], [job]), health=health)
    found = answers.explain(job.metadata.key, NOW)
    assert found.unready.keys() == {"node-0000"}
    assert found.node_lost_grace_seconds == 7.0
    assert found.unreachable == []
    mark = {names.UNREACHABLE: format_time(NOW - 20)}
    health.put(make_node("node-0000", gpus=8, annotations=mark), NOW)
    found = answers.explain(job.metadata.key, NOW)
    assert (found.unreachable, found.unready) == (["node-0000"], {"node-0000": NOW - 20})
    assert answers.explain(("default", "none"), NOW) == Explained()


def pool() -> NodePool:
    template = NodeTemplate({"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": "8"})
    spec = NodePoolSpec(Provider(ProviderType.STATIC, "/etc/private"), template, 64)
    launch = Launch("t", "", 2, format_time(EPOCH), jobs=("b/secret", "a/mine"))
    other = Launch("u", "", 2, format_time(EPOCH), jobs=("b/secret",))
    return NodePool(ObjectMeta("h100"), spec, NodePoolStatus(launches=(launch, other)))


def test_of_pools_an_answer_has_what_they_do_for_this_job() -> None:
    answers = two_tenants(nodes=lambda: make_nodes(2), pools=lambda: [pool()])
    answered = msgspec.json.encode(answers.explain(("a", "mine"), NOW))
    [shown] = msgspec.json.decode(answered, type=Explained).pools
    assert [launch.jobs for launch in shown.status.launches] == [("a/mine",)]
    assert b"private" not in answered
    found = answers.fit(make_job("big", namespace="a", count=9), NOW)
    assert found.holding.keys() == {"h100"}


def test_a_forecast_answers_for_a_time_that_grows_with_what_it_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer takes 10 ms here, so the first one's forecast holds for 0.2 s, and 5 s at most."""
    made, spent = list[float](), list[float]()

    class Counted(Forecasts):
        def __init__(
            self, state: PlacementState, now: float, policy: PlacementPolicy, **more: Any
        ) -> None:
            super().__init__(state, now, policy, **more)
            made.append(round(now - NOW, 1))

        def of(self, key: tuple[str, str]) -> Any:
            spent.append(0.01)
            return super().of(key)

    monkeypatch.setattr("fairlead.app.queries.answers.Forecasts", Counted)
    answers = PlannerAnswers(
        two_tenants().state, KnownState(), PlacementPolicy(), JobsPolicy(),
        stopwatch=lambda: sum(spent), seconds=lambda: 1.0,
    )  # fmt: skip
    for seconds in (0.0, 0.1, 0.5, 0.6, *(0.6 + n / 10 for n in range(60))):
        assert answers.explain(("a", "mine"), NOW + seconds).explanation is not None
    assert made == [0.0, 0.5, 5.6]


def test_what_takes_too_long_is_left_out_and_the_verdict_is_not() -> None:
    ticks = iter(range(1_000))
    answers = PlannerAnswers(
        two_tenants().state, KnownState(), PlacementPolicy(), JobsPolicy(),
        stopwatch=lambda: float(next(ticks)), seconds=lambda: 0.5,
    )  # fmt: skip
    whole = two_tenants().explain(("a", "mine"), NOW).explanation
    found = answers.explain(("a", "mine"), NOW).explanation
    assert found is not None
    assert whole is not None
    assert (found.verdict, found.arithmetic, found.ahead) == (
        whole.verdict, whole.arithmetic, whole.ahead,
    )  # fmt: skip
    assert (found.forecast, found.suggestions) == (UnknownBound.TOO_LONG, ())
    assert isinstance(whole.forecast, Forecast)


# Who is answered


def test_who_sees_one_namespace_is_shown_no_job_of_another() -> None:
    found = two_tenants().explain(("a", "mine"), NOW)
    assert b"secret" in msgspec.json.encode(found)
    assert b"zebra" in msgspec.json.encode(found)
    own = of_namespace(found, "a")
    assert own.is_partial
    assert b"secret" not in msgspec.json.encode(own)
    assert b"zebra" not in msgspec.json.encode(own)
    assert own.explanation is not None
    assert found.explanation is not None
    assert own.explanation.arithmetic == found.explanation.arithmetic
    victims = PreemptionAhead(NOW, (("b", "secret"), ("a", "other")))
    held = (ClaimHolder(("b", "secret"), 1, ("zebra",)), ClaimHolder(("a", "card"), 1, ()))
    places = (ClaimedPlace("claim:gpu", 2, 1, ("n1",), ("n2",), held),)
    preempting = replace(found, explanation=_with(found, forecast=victims, claimed=places))
    left = of_namespace(preempting, "a").explanation
    assert left is not None
    assert left.forecast == PreemptionAhead(NOW, (("a", "other"),))
    own_claims = (ClaimHolder(("a", "card"), 1, ()),)
    assert left.claimed == (ClaimedPlace("claim:gpu", 2, 1, holders=own_claims),), (
        "no node is named"
    )


def _with(found: Explained, **changes: Any) -> Any:
    from msgspec.structs import replace as with_

    assert found.explanation is not None
    return with_(found.explanation, **changes)


@asynccontextmanager
async def served(
    answers: Callable[[], PlannerAnswers | None], reviewer: Reviewer | None = None
) -> AsyncGenerator[str]:
    questions = AnswersApi(answers, clock=SystemClock(), stopwatch=lambda: 0.0)
    async with archive(reviewer or Reviewer(), questions=questions) as url:
        yield url


async def post(url: str, user: str, question: object) -> tuple[int, bytes]:
    headers = {"X-Fairlead-Token": f"token-{user}"} if user else {}
    data = question if isinstance(question, bytes) else msgspec.json.encode(question)
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=data, headers=headers) as answer,
    ):
        return answer.status, await answer.read()


async def test_each_user_is_answered_for_the_namespaces_whose_jobs_he_may_list() -> None:
    answers = two_tenants()
    async with served(lambda: answers) as url:
        mine, other = ExplainQuestion("a", "mine"), ExplainQuestion("b", "secret")
        fit = FitQuestion(to_wire(make_job("next", namespace="b")))
        for question, path in ((other, "explain"), (fit, "fit")):
            assert (await post(f"{url}/{path}", "", question))[0] == 401
            assert (await post(f"{url}/{path}", "nobody", question))[0] == 401
            status, said = await post(f"{url}/{path}", "ann", question)
            assert status == 403
            assert b"ann may not list jobs.fairlead.dev in namespace b" in said
        status, said = await post(f"{url}/explain", "ann", mine)
        assert (status, b"secret" in said) == (200, False)
        status, said = await post(f"{url}/explain", "root", mine)
        assert (status, b"secret" in said) == (200, True)
        fit = FitQuestion(to_wire(make_job("n", namespace="a")))
        assert b"secret" in (await post(f"{url}/fit", "root", fit))[1]
        status, said = await post(f"{url}/fit", "ann", fit)
        assert b"secret" not in said
        found = msgspec.json.decode(said, type=Fitted).verdict
        assert (status, found.reason) == (200, Reason.INSUFFICIENT_CAPACITY)


async def test_a_job_that_is_not_stored_yet_is_answered_with_its_start_and_no_others_jobs() -> None:
    running = make_job("secret", namespace="b", count=2, time_limit_seconds=3600,
                       placement=make_placement(["node-0000", "node-0001"]))  # fmt: skip
    answers = answers_on(ClusterState.of(make_nodes(2), [running]))
    asked = FitQuestion(to_wire(make_job("next", namespace="a", count=2)))
    async with served(lambda: answers) as url:
        found = {
            user: msgspec.json.decode((await post(f"{url}/fit", user, asked))[1], type=Fitted)
            for user in ("root", "ann")
        }
    whole, own = found["root"].forecast, found["ann"].forecast
    assert isinstance(whole, Forecast)
    assert isinstance(own, Forecast)
    assert (whole.waits_for, own.waits_for) == ((("b", "secret"),), ())
    assert answers.state.cluster.jobs.keys() == {("b", "secret")}


def test_of_victims_and_taints_a_user_of_one_namespace_is_told_nothing_of_others() -> None:
    low = make_job("low", namespace="b", placement=make_placement(["node-0000"]))
    began = replace(low, status=replace(low.status, attempts=(Attempt(1, started_at=EARLIER),)))
    answers = answers_on(ClusterState.of(make_nodes(1), [began]))
    high = make_job("high", namespace="a", priority=9)
    found = answers.fit(high, NOW)
    assert isinstance(found.forecast, PreemptionAhead)
    assert found.forecast.victims == (("b", "low"),)
    assert b"low" not in msgspec.json.encode(fitted_of_namespace(found, "a"))
    tainted = make_node("n", gpus=8, taints=[Taint("secret", "NoSchedule")])
    found = answers_on(ClusterState.of([tainted]), nodes=lambda: [tainted]).fit(high, NOW)
    assert found.alternatives.taints == (("worker", "secret"),)
    assert b"secret" not in msgspec.json.encode(fitted_of_namespace(found, "a"))


def test_where_a_job_would_start_is_said_to_who_may_see_nodes() -> None:
    answers = answers_on(ClusterState.of(make_nodes(3), [make_job("has", namespace="a", gpus=99)]))
    found = answers.fit(make_job("next", namespace="a", count=2), NOW)
    assert found.place is not None
    assert nodes_of(found.place) == ("node-0000", "node-0001")
    assert fitted_of_namespace(found, "a").place is None
    assert answers.fit(make_job("next", count=9), NOW).place is None
    explained = answers.suppose(make_job("has", namespace="a", count=2), NOW)
    assert explained.explanation is not None
    assert nodes_of(explained.explanation.place) == ("node-0000", "node-0001")
    own = of_namespace(explained, "a")
    assert own.explanation is not None
    assert (own.explanation.place, own.is_partial) == (None, False)


async def test_why_a_job_would_wait_with_other_flags_is_answered_by_the_process_that_decides() -> (
    None
):
    waits = make_job("mine", namespace="a", count=3)
    answers = answers_on(ClusterState.of(make_nodes(2), [waits]))
    before = answers.explain(("a", "mine"), NOW)
    smaller = to_wire(make_job("other", namespace="b", count=2))
    async with served(lambda: answers) as url:
        for given, reason in ((smaller, Reason.PLACED), (None, Reason.EXCEEDS_CLUSTER)):
            status, said = await post(f"{url}/explain", "ann", ExplainQuestion("a", "mine", given))
            found = msgspec.json.decode(said, type=Explained)
            assert (status, found.is_changed) == (200, given is not None)
            assert found.explanation is not None
            assert found.explanation.verdict.reason is reason
            assert found.explanation.job == ("a", "mine"), "of his own job only"
    assert answers.explain(("a", "mine"), NOW) == before


def test_a_job_that_does_not_wait_is_not_asked_about_with_other_flags() -> None:
    answers = two_tenants()
    running = make_job("secret", namespace="b")
    assert answers.suppose(running, NOW) == Explained(is_changed=True)
    with (
        pytest.raises(ValueError, match="job secret does not wait"),
        supposed(answers.state, running),
    ):
        pass


def test_a_job_keeps_to_its_own_rules_about_pods_and_leaves_no_mark_of_them() -> None:
    """No other job has the rule that each member needs a node of its own."""
    job = make_job("next", count=2, gpus=1, pod_labels={"app": "x"},
                   affinity=make_anti_affinity(app="x"))  # fmt: skip
    pod = make_pod("x", node="node-0001", labels={"app": "x"})
    state = ClusterState.of(make_nodes(3), [], [pod])
    answers, marks = answers_on(state), state.table.marks.copy()
    found = answers.fit(job, NOW).verdict
    assert (found.reason, found.facts["nodes_used"]) == (Reason.PLACED, 2)
    assert state.table.marks == marks
    crowded = answers_on(ClusterState.of(make_nodes(2), [], [pod]))
    assert crowded.fit(job, NOW).verdict.outcome is not Outcome.PLACED


async def test_a_question_that_is_none_is_refused_and_so_is_a_job_that_cannot_be() -> None:
    async with served(two_tenants) as url:
        misnamed = to_wire(make_job("n_1", namespace="a"))
        cases: tuple[tuple[Any, int], ...] = (
            (b"{", 400), (b"[]", 400), (b'{"job": {"spec": 3}}', 400), (b"\xff", 400),
            (b'{"job": {"metadata": {"namespace": 3}}}', 400), (FitQuestion(misnamed), 422),
            (FitQuestion(to_wire(make_job("n", namespace=""))), 400),
            (b" " * (QUESTION_BYTES_MAX + 1), 413),
        )  # fmt: skip
        for question, status in cases:
            assert (await post(f"{url}/fit", "ann", question))[0] == status, question
        adopting = to_wire(make_job("n", namespace="a"))
        owner = {"kind": "Job", "name": "x", "apiVersion": "batch/v1", "uid": "u"}
        adopting["spec"]["adopts"] = owner
        many = to_wire(make_job("n", namespace="a"))
        (role,) = many["spec"]["roles"]
        many["spec"]["roles"] = [{**role, "name": f"r{i}"} for i in range(ROLES_MAX + 1)]
        for job in (adopting, many):
            assert (await post(f"{url}/fit", "ann", {"job": job}))[0] == 422
        async with aiohttp.ClientSession() as session, session.get(f"{url}/fit") as answer:
            assert answer.status in (401, 405)
    async with archive(Reviewer()) as url:
        assert (await post(f"{url}/fit", "ann", b"{}"))[0] == 404


async def test_a_job_counts_for_the_user_who_asks() -> None:
    team = make_team("t", namespaces=("a",), user_limits=JobLimits(running=1))
    held = make_job("held", namespace="a", placement=make_placement(["node-0000"]))
    held = replace(held, metadata=replace(held.metadata, annotations={SUBMITTED_BY: "bob"}))
    answers = answers_on(ClusterState.of(make_nodes(2), [held], teams=[team]))
    job = make_job("next", namespace="a")
    asked = replace(job, metadata=replace(job.metadata, annotations={SUBMITTED_BY: "bob"}))
    assert answers.fit(asked, NOW).verdict.reason is Reason.RUNNING_LIMIT
    async with served(lambda: answers) as url:
        _, said = await post(f"{url}/fit", "ann", FitQuestion(to_wire(asked)))
        assert msgspec.json.decode(said, type=Fitted).verdict.reason is Reason.PLACED


async def test_one_user_has_a_few_questions_at_a_time_and_others_are_answered() -> None:
    reviewer, question = Reviewer(), ExplainQuestion("a", "mine")
    reviewer.rights = {**reviewer.rights, "bob": {to_read_history("a")}}
    async with served(two_tenants, reviewer) as url, asyncio.timeout(PATIENCE_SECONDS):
        assert (await post(f"{url}/explain", "bob", question))[0] == 200
        assert (await get(f"{url}/history?namespace=a", "ann"))[0] == 200
        reviewer.gate = asyncio.Event()  # what else ann may see is not known yet
        asking = {
            asyncio.create_task(post(f"{url}/explain", "ann", question))
            for _ in range(QUESTIONS_MAX + 1)
        }
        done, asking = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result()[0] for task in done] == [429]
        assert (await post(f"{url}/explain", "bob", question))[0] == 200
        reviewer.gate.set()
        assert {(await task)[0] for task in asking} == {200}


async def test_a_command_asks_until_it_reaches_the_process_that_decides() -> None:
    answers = two_tenants()
    questions = AnswersApi(lambda: answers, clock=SystemClock(), stopwatch=lambda: 0.0)
    job = make_job("mine", namespace="a", count=2)
    async with proxied({"questions": questions}, elsewhere=2) as (proxy, url):
        api = Api(Connection(url, "a kubeconfig", token="token-ann"))
        found = await asyncio.to_thread(ask_why, api, job)
        assert found is not None
        assert found.is_partial
        assert found.explanation is not None
        assert found.explanation.verdict.reason is Reason.INSUFFICIENT_CAPACITY
        wanted = await asyncio.to_thread(partial(ask_why, api, job, is_changed=True))
        assert wanted is not None
        assert wanted.is_changed
        fitted = await asyncio.to_thread(ask_fit, api, job)
        assert fitted is not None
        assert fitted.shape["nvidia.com/gpu"] == 8
        assert len(proxy.asked) == 2 + 2 + 2 + 2, (
            "each time the cluster of fairlead up is tried first"
        )
    nobody = AnswersApi(lambda: None, clock=SystemClock(), stopwatch=lambda: 0.0)
    async with proxied({"questions": nobody}) as (_, url):
        api = Api(Connection(url, "a kubeconfig", token="token-ann"))
        assert await asyncio.to_thread(ask_why, api, job) is None
        assert await asyncio.to_thread(ask_fit, api, job) is None
