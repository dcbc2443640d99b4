"""Which jobs `ps` shows, in which columns, and which `cancel` and `requeue` change."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.cli.fake_api import FakeApi, serve

from fairlead.api import names
from fairlead.api.jobs.attempt import Attempt
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray, JobArraySpec
from fairlead.api.meta import Condition, ObjectMeta, OwnerReference, to_wire
from fairlead.api.resources import JOB_ARRAYS, JOBS
from fairlead.api.values.times import format_time
from fairlead.app.queries.messages import HistoryLine
from fairlead.cli.app import run
from fairlead.cli.commands import history
from fairlead.cli.connection.common import now
from fairlead.testing.builders import make_job, make_placement


def job(name: str, user: str, hours: float = 1.0, *, node: str = "", gpus: int = 0) -> Job:
    """Return a job that was submitted so long ago, and runs on a node or waits."""
    placement = make_placement([node]) if node else None
    made = make_job(name, gpus=gpus, placement=placement, created=now() - hours * 3600)
    metadata = replace(made.metadata, annotations={names.SUBMITTED_BY: user})
    attempts = (Attempt(1),) if node else ()
    state = "Running" if node else "Waiting"
    status = replace(made.status, state=state, attempts=attempts, attempt=len(attempts))
    return replace(made, metadata=metadata, status=status)


def array(name: str, user: str) -> JobArray:
    """Return an array of which one element is a job: `element`."""
    metadata = ObjectMeta(
        name=name, namespace=names.DEFAULT_NAMESPACE, uid=name,
        annotations={names.SUBMITTED_BY: user}, creation_timestamp=format_time(now()),
    )  # fmt: skip
    return JobArray(metadata=metadata, spec=JobArraySpec("0-9", make_job("t").spec))


def element(name: str, of: str) -> Job:
    """Return the job of an element of the array with this uid."""
    owner = OwnerReference("fairlead.dev/v1alpha1", "JobArray", "sweep", of, controller=True)
    made = job(name, "ada", node="n3")
    return replace(made, metadata=replace(made.metadata, owner_references=(owner,)))


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    api = FakeApi(
        job("lr-9", "ada", 3, node="n1", gpus=8), job("lr-10", "ada", 2), job("eval", "bob", 1)
    )
    api.create(JOB_ARRAYS.raw, to_wire(array("sweep", "ada")), namespace=names.DEFAULT_NAMESPACE)
    [stored] = api.list(JOB_ARRAYS)
    api.create(JOBS.raw, to_wire(element("sweep-3", stored.metadata.uid)), namespace="default")
    serve(monkeypatch, api)
    return api


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert run(["ps", *words]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (["-u", "bob"], ["eval"]),
        (["--name", "lr-*"], ["lr-9", "lr-10"]),
        (["--node", "n1"], ["lr-9"]),
        (["--node", "n3"], ["sweep-3"]),
        (["--since", "150m", "--user", "ada"], ["lr-10", "sweep"]),
        (["--until", "90m"], ["lr-9", "lr-10"]),
        (["--since", "150m", "--until", "90m"], ["lr-10"]),
        (["--state", "waiting", "--name", "*l*"], ["lr-10", "eval"]),
    ],
)
def test_jobs_are_chosen_by_all_that_is_asked(
    api: FakeApi, capsys: pytest.CaptureFixture[str], flags: list[str], found: list[str]
) -> None:
    assert shown(capsys, *flags, "-o", "name") == found
    assert [line.split()[0] for line in shown(capsys, *flags, "--no-headers")] == found


def test_columns_are_chosen_by_name_sorted_by_value_and_written_as_csv(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(capsys, "-o", "age,NAME,where", "--sort", "-age", "-u", "ada")
    assert lines[0].split() == ["AGE", "NAME", "WHERE", "/", "WHY"]
    assert [line.split()[1] for line in lines[1:3]] == ["lr-9", "lr-10"]
    assert lines[1].split()[2] == "n1"
    assert [line.split()[0] for line in shown(capsys, "--sort", "name", "-o", "name,gpus")] == [
        "NAME", "eval", "lr-9", "lr-10", "sweep",
    ]  # fmt: skip
    table = list(csv.DictReader(io.StringIO("\n".join(shown(capsys, "-o", "csv")))))
    assert [(row["NAME"], row["GPUS"], row["USER"]) for row in table][:1] == [("lr-9", "8", "ada")]
    for words, said in (
        (["-o", "name,stat"], "-o: 'stat' must be one of name, gpus, state"),
        (["--sort", "tim"], "--sort: 'tim' must be one of"),
        (["-o", "csv", "--watch"], "--watch is for a table"),
        (["--since", "long"], "--since: 'long' is not a duration"),
        (["-o", "log.txt"], "-o is the form of this command's output"),
    ):
        assert run(["ps", *words]) == 2
        assert said in capsys.readouterr().err


def cancelled(api: FakeApi) -> set[str]:
    both = [*api.list(JOBS), *api.list(JOB_ARRAYS)]
    return {each.metadata.name for each in both if each.spec.cancel}


@pytest.mark.parametrize(
    ("words", "gone"),
    [
        (["--user", "ada"], {"lr-9", "lr-10", "sweep"}),
        (["--state", "Waiting"], {"lr-10", "eval", "sweep"}),
        (["lr-*", "eval", "--user", "ada"], {"lr-9", "lr-10"}),
        (["lr-?"], {"lr-9"}),
        (["--name", "none*"], set[str]()),
    ],
)
def test_cancel_takes_what_all_flags_and_patterns_choose_and_an_array_as_a_whole(
    api: FakeApi, words: list[str], gone: set[str]
) -> None:
    assert run(["cancel", *words]) == 0
    assert cancelled(api) == gone


def test_above_ten_jobs_cancel_asks_or_wants_yes(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(11):
        api.create(JOBS.raw, to_wire(job(f"many-{number}", "cy")), namespace="default")
    assert run(["cancel", "-u", "cy"]) == 2
    said = capsys.readouterr().err
    assert "11 jobs match: many-0, many-1, many-2, many-3, many-4 and 6 more" in said
    assert "--yes cancels all of them" in said
    assert cancelled(api) == set()
    assert run(["cancel", "-u", "cy", "--name", "many-1*"]) == 0
    assert cancelled(api) == {"many-1", "many-10"}
    assert run(["cancel", "-u", "cy", "--yes"]) == 0
    assert len(cancelled(api)) == 11


def test_requeue_ends_the_attempt_that_is_there_and_no_other(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["requeue", "lr-9", "sweep[3]"]) == 0
    assert capsys.readouterr().out == "lr-9 queued again\nsweep-3 queued again\n"
    by_name = {each.metadata.name: each.spec.requeue_attempt for each in api.list(JOBS)}
    assert by_name == {"lr-9": 1, "sweep-3": 1, "lr-10": None, "eval": None}
    for words, said in (
        (["lr-10"], "job 'lr-10': it is in the queue, and nothing of it runs"),
        (["sweep"], "'sweep' is an array, whose template stays as it is"),
        (["gone"], "job 'gone' does not exist"),
    ):
        assert run(["requeue", *words]) != 0
        assert said in capsys.readouterr().err
    assert run(["cancel", "lr-9"]) == 0
    assert run(["requeue", "lr-9"]) != 0
    assert "it is being cancelled" in capsys.readouterr().err


def test_history_says_when_where_with_which_code_and_for_how_many_gpu_hours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], api: FakeApi
) -> None:
    def line(name: str, end: float, node: str) -> HistoryLine:
        made = job(name, "ada", 9, node=node, gpus=4)
        begun = format_time(end - 7200)
        attempt = Attempt(1, begun_at=begun, started_at=begun, finished_at=format_time(end),
                          reason="ExitCode", exit_code=3)  # fmt: skip
        made = replace(made, status=replace(made.status, attempts=(attempt,)))
        instants = {"started_at_ms": int(end - 7200) * 1000, "finished_at_ms": int(end) * 1000}
        return HistoryLine(name, "default", name, "Failed", "ada", document=to_wire(made),
                           **instants)  # fmt: skip

    at = now()
    lines = [line("b-1", at - 60, "n1"), line("a-1", at - 7200, "n2"), line("a-2", at, "n2")]
    monkeypatch.setattr(history, "past_lines", lambda *_: lines)

    def rows(*words: str) -> list[list[str]]:
        columns = "name,end,exit,nodes,gpu-hours"
        assert run(["history", *words, "-o", columns, "--no-headers"]) == 0
        return [row.split() for row in capsys.readouterr().out.splitlines()]

    assert rows("--sort", "name")[0] == ["a-1", format_time(at - 7200), "3", "n2", "8.00"]
    assert [row[0] for row in rows("--node", "n2")] == ["a-1", "a-2"]
    assert [row[0] for row in rows("--name", "a-*", "--until", "1h")] == ["a-1"]
    assert [row[0] for row in rows("--node", "n2", "--limit", "1")] == ["a-1"]


def test_dependencies_are_named_by_number_as_well(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    first = job("first", "ada")
    first = replace(first, status=replace(first.status, number=36))
    api.create(JOBS.raw, to_wire(first), namespace="default")
    assert run(["update", "lr-10", "--after", "ok:36"]) == 0
    changed = api.get(JOBS, "lr-10", namespace="default")
    assert [each.job for each in changed.spec.after] == ["first"]
    assert run(["update", "eval", "--after", "ok:37"]) != 0
    assert "job '37' does not exist" in capsys.readouterr().err


def test_ps_reads_whole_only_jobs_that_live_and_the_last_that_ended(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(number: int) -> Job:
        made = job(f"done-{number}", "bob" if number == 3 else "ada")
        end = Condition(names.FAILED if number % 2 else names.SUCCEEDED, "True")
        at = format_time(1e9 - number)
        return replace(made, status=replace(made.status, conditions=(end,), finished_at=at))

    for number in (8, 2, 5, 1, 7, 3, 6, 4):
        api.create(JOBS.raw, to_wire(ended(number)), namespace="default")
    [stored] = api.list(JOB_ARRAYS)
    its_element = replace(ended(0), metadata=element("sweep-4", stored.metadata.uid).metadata)
    api.create(JOBS.raw, to_wire(its_element), namespace="default")
    old: dict[str, Any] = to_wire(ended(9)) | {"spec": {"roles": 7}}
    api.create(JOBS.raw, old, namespace="default")

    last = [f"done-{number}" for number in (5, 4, 3, 2, 1)]
    assert shown(capsys, "-o", "name") == [*last, "lr-9", "lr-10", "eval", "sweep"]
    assert shown(capsys, "-u", "bob", "-o", "name") == ["done-3", "eval"]
    assert run(["ps", "--all"]) == 6
    assert "Job default/done-9 cannot be decoded" in capsys.readouterr().err
