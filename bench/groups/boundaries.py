"""What the checks of a tenant's boundaries cost: each path with them, over the same without them.

The checks are replaced by functions that do nothing: what a user may write into a job and which
nodes a pod may have (admission), who loses what when a store is full (records of jobs, recorded
decisions, logs that wait), and how much of a job its record keeps. Three paths are measured, in CPU
time: the webhook's answers to a Job and a pod, their creation in the embedded API, and the whole
way of jobs, from creation over decisions and pods to the record, in a simulated world. The two
sides have their turns in blocks of milliseconds, so what else the machine does meets both.
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any, TypeAlias
from unittest.mock import patch

import msgspec
from msgspec.structs import replace

from bench.groups.sim import CALM
from bench.harness import Report
from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Toleration
from fairlead.api.meta import to_wire
from fairlead.api.resources import JOBS, NAMESPACES, PODS, TEAMS
from fairlead.app.local.embedded import install_crds
from fairlead.controllers.placing.decision_log import CYCLES_MAX, DecisionLog
from fairlead.controllers.records.log_queue import LogQueue
from fairlead.decide.admission import jobs as job_rules
from fairlead.decide.admission.pod_gates import GateRules
from fairlead.decide.admission.pod_teams import TeamAnswer, access_of
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.embedded.verbs.strategies import pod_strategy
from fairlead.history.fairness import FairStore
from fairlead.model.asks.priorities import PriorityTable
from fairlead.model.asks.teams import TeamTable, with_team
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.kept import history
from fairlead.sim.scenarios.run import ScenarioRun
from fairlead.testing.builders import make_job, make_team
from fairlead.webhook import answers
from fairlead.webhook.answers import AdmissionAnswers
from fairlead.webhook.configuration import Path

TEAMS_COUNT, NAMESPACE = 50, "team-7"
ANSWERS, CREATED = 60, 20
WORLD = replace(CALM, load=replace(CALM.load, days=0.5))


#: Runs one block, and returns its CPU seconds.
Block: TypeAlias = Callable[[], float]


def run(report: Report) -> None:
    """Measure the three paths, with the checks over without them."""
    for name, begin, pairs in (("admission", _answering, 300), ("create", _creating, 150)):
        report.add(f"boundaries.{name}_ratio", ratio(begin(), begin(), pairs), "x without checks")
    report.add("boundaries.jobs_ratio", ratio(_live, _live, 9), "x without checks")


def ratio(checked: Block, unchecked: Block, pairs: int) -> float:
    """Return the median ratio of two blocks side by side, of which either is first in turns; the
    first tenth of the pairs warms up.
    """
    ratios = list[float]()
    for number in range(pairs):
        taken = dict[bool, float]()
        for has_checks in (True, False) if number % 2 else (False, True):
            with ExitStack() as stack:
                if not has_checks:
                    stack.enter_context(without_checks())
                taken[has_checks] = (checked if has_checks else unchecked)()
        ratios.append(taken[True] / taken[False])
    return statistics.median(ratios[pairs // 10 :])


@contextmanager
def without_checks() -> Generator[None]:
    """Replace the checks in this process."""
    nothing: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
        (job_rules, "submitter_causes", lambda *_: ()),
        (job_rules, "move_causes", lambda *_: ()),
        (job_rules, "placed_causes", lambda *_, **__: ()),
        (job_rules, "_element", lambda *_: ()),
        (job_rules, "_adoption", lambda *_: ()),
        (answers, "judge_team", _given),
        (pod_strategy, "judge_team", _given),
        (pod_strategy, "_team_of", lambda *_: ""),
        (history, "document_of", _whole_document),
        (FairStore, "put", _put),
        (DecisionLog, "_add", lambda *_: None),
        (DecisionLog, "_trim", _trim),
        (LogQueue, "add", _wait),
    )
    with ExitStack() as stack:
        for holder, name, instead in nothing:
            stack.enter_context(patch.object(holder, name, instead))
        yield


def _given(
    own: Sequence[Toleration], labels: Mapping[str, str], teams: TeamTable, *,
    priority: int, namespace: str, is_gated: bool = False, **_: Any,
) -> TeamAnswer:  # fmt: skip
    """Return the tolerations of its team that a pod gets, whatever it has by itself."""
    access = access_of(labels, teams, priority=priority, namespace=namespace)
    if not access.team or is_gated:
        return TeamAnswer()
    given = with_team((), access.team, may_borrow=access.may_borrow)
    return TeamAnswer(tuple(each for each in given if each not in own))


def _whole_document(job: Job) -> str:
    document = {"apiVersion": names.API_VERSION, "kind": "Job", **to_wire(job)}
    return msgspec.json.encode(document).decode()


def _put(store: Any, key: str, value: Any, *, holder: str) -> None:
    store._holder_of[key] = holder
    store._held.setdefault(holder, {})[key] = (0, value)


def _trim(log: Any) -> None:
    while len(log._cycles) > CYCLES_MAX:
        log._cycles.popleft()


def _wait(queue: Any, pod: Any) -> None:
    queue._waiting.setdefault(pod.metadata.namespace, {})[pod.metadata.uid] = pod
    queue._count += 1


# ---------------------------------------------------------------------- the paths


def _job(name: str) -> dict[str, Any]:
    body: dict[str, Any] = to_wire(make_job(name, count=8, gpus=8, namespace=NAMESPACE))
    body["metadata"] = {"name": name, "namespace": NAMESPACE}
    body.pop("status", None)
    return body


def _pod(name: str) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    toleration = {"key": "example.com/any", "operator": "Exists", "effect": "NoExecute"}
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": "a"}},
        "spec": {"containers": [container], "tolerations": [toleration]},
    }


def _teams() -> list[Any]:
    return [make_team(f"t{i}", namespaces=[f"team-{i}"]) for i in range(TEAMS_COUNT)]


def _review(resource: str, group: str, body: dict[str, Any]) -> bytes:
    request = {
        "uid": "u", "operation": "CREATE", "namespace": NAMESPACE, "name": "x", "object": body,
        "resource": {"group": group, "version": "v1", "resource": resource},
        "userInfo": {"username": "ada", "groups": ["system:authenticated"]},
    }  # fmt: skip
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return msgspec.json.encode(review)


def _answering() -> Block:
    """Return blocks of answers to Jobs, both calls of each, and to pods of teams."""
    teams, classes = TeamTable(_teams()), PriorityTable()
    webhook = AdmissionAnswers(GateRules(), classes=lambda: classes, teams=lambda: teams)
    job = _review("jobs", names.GROUP, _job("x"))
    asked = (
        (Path.JOB_DEFAULTS, job), (Path.JOBS, job), (Path.POD_TEAMS, _review("pods", "", _pod("x")))
    )  # fmt: skip

    def block() -> float:
        start = time.process_time()
        found = [webhook.answer(*each) for _ in range(ANSWERS) for each in asked]
        taken = time.process_time() - start
        assert all(b'"allowed":true' in answer.body for answer in found)
        return taken

    return block


def _creating() -> Block:
    """Return blocks of creations of Jobs and pods in an embedded cluster with teams."""
    numbers = count()
    service = ApiService(
        Store.open(None), Registry.with_builtins(), SystemClock(),
        ids=lambda: str(next(numbers)), rng=random.Random(1),
    )  # fmt: skip
    client, runner = InProcessClient(service), asyncio.Runner()

    async def begin() -> None:
        await service.bootstrap()
        await install_crds(client)
        await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        for team in _teams():
            body = {"metadata": {"name": team.metadata.name}, "spec": to_wire(team)["spec"]}
            await client.create(TEAMS, body)

    async def create(number: int) -> float:
        bodies = [(_job(f"j{number}-{i}"), _pod(f"p{number}-{i}")) for i in range(CREATED)]
        start = time.process_time()
        for job, pod in bodies:
            await client.create(JOBS, job, namespace=NAMESPACE)
            await client.create(PODS, pod, namespace=NAMESPACE)
        return time.process_time() - start

    runner.run(begin())
    return lambda: runner.run(create(next(numbers)))


def _live() -> float:
    """Return the CPU seconds of half a day with 100 jobs and all controllers."""
    gc.collect()
    start = time.process_time()
    result = ScenarioRun(WORLD).run()
    taken = time.process_time() - start
    assert result.summary.jobs
    return taken
