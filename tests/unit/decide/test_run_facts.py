"""What programs report of their runs: from pods to the status of their job and its record."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec.structs import replace
from tests.unit.decide.test_jobs_progress import ended

from fairlead.api import names
from fairlead.api.jobs.attempt import Attempt
from fairlead.api.jobs.placement import HeldNodes
from fairlead.api.jobs.run_facts import (
    FACTS_BYTES_MAX,
    LISTED_MAX,
    RunFacts,
    RunMetric,
    RunSource,
    RunSummary,
)
from fairlead.api.kubernetes.core import EnvVar, Pod
from fairlead.api.meta import Condition
from fairlead.decide.attempts.run_facts import (
    encode_run,
    facts_of,
    fold_run,
    read_run,
    run_summary,
    run_text,
)
from fairlead.decide.jobs.following.pods import JobPods
from fairlead.decide.jobs.following.progress import read_progress
from fairlead.run import RunFold
from fairlead.testing.builders import make_job, make_member_pod, make_pod


def annotated(pod: Pod, text: str) -> Pod:
    annotations = {**pod.metadata.annotations, names.RUN: text}
    return replace(pod, metadata=replace(pod.metadata, annotations=annotations))


def facts(**metrics: float) -> RunFacts:
    fold = RunFold()
    for name, value in metrics.items():
        fold.add_metric(name, value)
    found = facts_of(fold)
    assert found is not None
    return found


def text_of(found: RunFacts) -> str:
    return msgspec.json.encode(found).decode()


def test_a_kubelets_end_of_the_file_is_read() -> None:
    message = 'oken":1}\n{"step":3,"checkpointStep":2,"run":{"params":{"lr":"0.1"}}}\n'
    pod = ended(make_pod("p"), message)
    assert read_run(pod) == RunFacts(params={"lr": "0.1"})
    progress = read_progress(pod)
    assert progress is not None
    assert (progress.step, progress.checkpoint_step, progress.ignored_line) == (3, 2, "")


def test_facts_of_a_run_are_no_progress_and_are_not_called_ignored() -> None:
    lines = ['{"metric":"loss","value":1,"step":9}', '{"note":"x"}', '{"run":{"note":"x"}}']
    assert read_progress(ended(make_pod("p"), "\n".join(lines))) is None


def test_single_facts_at_the_end_of_a_cut_message_are_called_partial() -> None:
    line = json.dumps({"metric": "loss", "value": 1.5}) + "\n"
    short = read_run(ended(make_pod("p"), line * 3))
    assert short is not None
    assert (short.metrics["loss"].count, short.is_partial) == (3, False)
    cut = read_run(ended(make_pod("p"), (line * 1_000)[-4_096:]))
    assert cut is not None
    assert cut.is_partial


def test_what_the_node_wrote_counts_and_not_the_end_of_the_file_again() -> None:
    pod = annotated(ended(make_pod("p"), '{"metric":"a","value":1}'), text_of(facts(a=2)))
    assert read_run(pod) == facts(a=2)


def test_an_annotation_that_is_none_is_as_good_as_none() -> None:
    for text in ("[" * 3_000, "null", "{", "\ud800", '{"params":' + "x" * FACTS_BYTES_MAX):
        assert read_run(annotated(make_pod("p"), text)) is None
    assert read_run(make_pod("p")) is None


def member(rank: int, attempt: int, found: RunFacts) -> Pod:
    job = make_job("p", attempt=attempt)
    return annotated(make_member_pod(job, rank), text_of(found))


def test_of_a_gang_the_member_of_lowest_rank_counts_and_of_attempts_the_latest() -> None:
    pods = JobPods.of([member(2, 1, facts(a=2)), member(1, 1, facts(a=1))])
    assert pods.run == facts(a=1)
    pods.put(member(3, 1, facts(a=3)))
    assert pods.run == facts(a=1)
    pods.put(member(7, 2, facts(a=7)))
    assert (pods.run, pods.run_of) == (facts(a=7), (2, 7))
    pods.put(member(0, 1, facts(a=0)))
    assert pods.run == facts(a=7)
    stranger = make_pod("another", labels={names.RANK: "0", names.ATTEMPT: "2"})
    pods.put(annotated(stranger, text_of(facts(a=9))))
    assert pods.run == facts(a=7)


def test_facts_of_attempts_are_put_together_and_once_only() -> None:
    first, second = facts(a=1, b=1), facts(a=5, c=2)
    both = fold_run(first, second)
    assert both is not None
    assert {name: each.last for name, each in both.metrics.items()} == {"a": 5, "b": 1, "c": 2}
    assert fold_run(both, second) is both
    assert fold_run(None, second) is second
    assert fold_run(both, None) is both


def test_facts_of_many_attempts_stay_bounded() -> None:
    found: RunFacts | None = None
    for attempt in range(20):
        fold = RunFold()
        for i in range(60):
            fold.add_metric(f"a-long-name-of-a-metric-{attempt}-{i}", i)
        found = fold_run(found, facts_of(fold))
    assert found is not None
    assert len(msgspec.json.encode(found)) <= FACTS_BYTES_MAX
    assert found.is_partial
    assert len(encode_run(fold)) <= FACTS_BYTES_MAX


def test_a_run_that_has_ended_has_its_gpu_hours_and_their_cost_where_all_have_a_price() -> None:
    ended: dict[str, Any] = {"state": "Succeeded", "run": facts(a=1),
                             "finished_at": "2026-11-29T02:00:00Z"}  # fmt: skip

    def summary(price: int, **status: Any) -> RunSummary:
        held = (HeldNodes("h100", "", 8, gpu_hour_micros=price),)
        attempt = Attempt(1, begun_at="2026-11-29T00:00:00Z", held=held,
                          finished_at="2026-11-29T02:00:00Z")  # fmt: skip
        job = make_job("p", status={**ended, "attempts": (attempt,), **status},
                       conditions=[Condition(names.SUCCEEDED, "True")])  # fmt: skip
        found = run_summary(job)
        assert found is not None
        return found

    assert (summary(2_000_000).gpu_hours, summary(2_000_000).cost) == (16.0, 32.0)
    assert (summary(0).gpu_hours, summary(0).cost) == (16.0, None)
    running = run_summary(make_job("p", status={"state": "Running", "run": facts(a=1)}))
    assert running is not None
    assert (running.gpu_hours, running.cost) == (None, None)


def test_a_job_of_which_nothing_was_recorded_is_no_run() -> None:
    assert run_summary(make_job("plain")) is None
    assert run_text(make_job("plain")) is None


def test_a_summary_has_what_the_submission_and_the_program_say() -> None:
    job = make_job("train")
    source = msgspec.json.encode(RunSource("c" * 40, "main", ("a.py",))).decode()
    annotations = {names.RUN_TAGS: "sweep1,\x1b[0m,b", names.RUN_NOTE: "by hand",
                   names.RUN_SOURCE: source}  # fmt: skip
    [role] = job.spec.roles
    [container] = role.template.spec.containers
    env = (EnvVar("FAIRLEAD_PARAM_lr", "0.1"), EnvVar("PATH", "/bin"))
    template = replace(role.template, spec=replace(
        role.template.spec, containers=(replace(container, env=env),)))  # fmt: skip
    job = replace(
        job, metadata=replace(job.metadata, annotations=annotations),
        spec=replace(job.spec, roles=(replace(role, template=template),)),
        status=replace(job.status, run=RunFacts(params={"batch": "8"}, metrics=facts(a=1).metrics)),
    )  # fmt: skip
    found = run_summary(job)
    assert found is not None
    assert found.tags == ("sweep1", "b")
    assert found.params == {"lr": "0.1", "batch": "8"}
    assert (found.metrics["a"].last, found.note, found.commit) == (1, "by hand", "c" * 40)
    assert msgspec.json.decode(run_text(job) or "", type=RunSummary) == found


def test_a_summary_in_a_list_is_bounded() -> None:
    metrics = {f"m{'x' * 60}{i}": RunMetric(last=1 / 3, count=1) for i in range(64)}
    params = {f"p{'x' * 60}{i}": "v" * 200 for i in range(64)}
    job = make_job("train")
    job = replace(job, status=replace(job.status, run=RunFacts(params, metrics)))
    found = run_summary(job)
    assert found is not None
    assert (len(found.params), len(found.metrics)) == (LISTED_MAX, LISTED_MAX)
    assert len(run_text(job) or "") <= 8_000
