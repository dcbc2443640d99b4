"""`why --if`: a job as it would be with other flags, and what the planner would do with it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import PriorityClass, ResourceRequirements
from fairlead.api.meta import ObjectMeta
from fairlead.api.pods.pod_asks import member_amounts
from fairlead.api.values.quantity import CPU, MEMORY, resources_to_base
from fairlead.cli.job_request.flag_groups.flags import Flag
from fairlead.cli.job_request.hypothesis import changed_job, read_changes
from fairlead.cli.views.why import supposed_text, why_text
from fairlead.decide.answers.explain import explain_changed
from fairlead.decide.answers.explanation import Explanation
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.input.errors import CliError
from fairlead.model.asks.priorities import PriorityTable
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import EPOCH, make_job, make_nodes, make_placement, make_role

URGENT = PriorityClass(metadata=ObjectMeta(name="urgent"), value=7)
PATIENT = PriorityClass(metadata=ObjectMeta(name="patient"), value=9, preemption_policy="Never")
CLASSES = (URGENT, PATIENT)
WAITS = make_job("waits", count=3, gpus=8, cpu=2, memory="4Gi", created=EPOCH + 1)
RUNS = make_job("runs", count=2, placement=make_placement(["node-0000", "node-0001"]))


def supposed(job: Job, *words: str) -> Job:
    return changed_job(job, read_changes(words), CLASSES)


def tried(*words: str, now: float = EPOCH + 3600) -> Explanation:
    job = supposed(WAITS, *words)
    cluster = ClusterState.of(make_nodes(4), [RUNS, job], priorities=PriorityTable(CLASSES))
    found = explain_changed(PlacementState(cluster), job, now, PlacementPolicy())
    assert found is not None
    return found


def text(found: Explanation, *words: str) -> str:
    job = supposed(WAITS, *words)
    said = why_text(job, found, EPOCH + 3600)
    return supposed_text(job, found, read_changes(words), said)


def test_only_what_is_named_changes() -> None:
    job = supposed(WAITS, "--nodes=2", "memory=1Gi", "gpus=0", "time=1h")
    (role,) = job.spec.roles
    resources = role.template.spec.containers[0].resources
    assert (role.count, job.spec.time_limit_seconds) == (2, 3600)
    assert resources_to_base(resources.requests) == {CPU: 2000, MEMORY: 1 << 30}
    assert resources_to_base(resources.limits) == {MEMORY: 1 << 30}
    assert supposed(WAITS, "gpus=4").spec.roles[0].count == 3
    assert supposed(WAITS, "priority=urgent").spec.priority_class_name == "urgent"


@pytest.mark.parametrize(
    ("word", "part"),
    [("gpu=2", "one of nodes, members, gpus"), ("nodes", "one of nodes"), ("nodes=0", "from 1"),
     ("memory=4GB", "two sizes"), ("priority=high", "there is no PriorityClass 'high'")],
)  # fmt: skip
def test_a_wrong_word_is_refused_with_what_there_is(word: str, part: str) -> None:
    with pytest.raises(CliError) as caught:
        supposed(WAITS, word)
    problem = caught.value.problems[0]
    assert part in " ".join((problem.message, *problem.detail))


def test_a_job_that_has_its_place_is_not_supposed_otherwise() -> None:
    with pytest.raises(CliError, match="job runs does not wait"):
        supposed(RUNS, "nodes=1")


def test_of_several_roles_it_is_not_clear_which_is_meant_but_for_what_is_the_jobs() -> None:
    job = make_job("two", roles=[make_role("a"), make_role("b")])
    with pytest.raises(CliError, match="only a job of one role; this has a, b"):
        supposed(job, "gpus=1")
    assert supposed(job, "time=60s").spec.time_limit_seconds == 60


def test_what_fits_would_start_now_on_so_many_nodes() -> None:
    found = tried("nodes=2")
    assert (found.verdict.reason, found.verdict.facts["nodes_used"]) == (Reason.PLACED, 2)
    assert text(found, "nodes=2") == "With nodes=2:\n\nJob waits would start now, on 2 nodes\n"


def test_what_does_not_fit_is_explained_as_the_job_would_be() -> None:
    found = tried("nodes=4", "gpus=4")
    assert found.verdict.reason is Reason.PLACED, "two members share a node"
    found = tried("nodes=4")
    assert found.verdict.reason is Reason.INSUFFICIENT_CAPACITY
    assert found.arithmetic[0].asked == 32
    assert text(found, "nodes=4").startswith("With nodes=4:\n\nJob waits waits: Insuff")


def test_a_higher_priority_names_whom_it_would_preempt_and_a_patient_one_none() -> None:
    found = tried("priority=urgent")
    assert found.verdict.reason is Reason.PREEMPTING
    assert "preempts   runs\n" in text(found, "priority=urgent")
    assert tried("priority=patient").verdict.reason is Reason.INSUFFICIENT_CAPACITY


def test_without_a_change_of_the_request_the_answer_is_that_of_the_job_itself() -> None:
    assert Flag.TIME in read_changes(["time=2h"])
    assert tried("time=2h").verdict.reason is Reason.INSUFFICIENT_CAPACITY


def test_of_a_pod_that_asks_as_a_whole_that_changes() -> None:
    (role,) = WAITS.spec.roles
    whole = ResourceRequirements({"cpu": "40"}, {"memory": "8Gi"})
    pod = replace(role.template.spec, resources=whole)
    role = replace(role, template=replace(role.template, spec=pod))
    job = supposed(replace(WAITS, spec=replace(WAITS.spec, roles=(role,))), "cpus=50", "gpus=4")
    (changed,) = job.spec.roles
    assert member_amounts(changed.template.spec) == {
        CPU: 50_000, MEMORY: 4 << 30, "nvidia.com/gpu": 4,
    }  # fmt: skip
