"""Arrays as the command line reads and shows them."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.api import names
from fairlead.api.jobs.job import JobSpec, VerdictStatus
from fairlead.api.jobs.job_array import ElementCounts, JobArray, JobArraySpec, JobArrayStatus
from fairlead.api.meta import Condition, ObjectMeta
from fairlead.api.values.times import format_time
from fairlead.cli.commands.wait import For, array_reached
from fairlead.cli.job_request.arrays import (
    ArrayReference,
    Elements,
    cancelled_with,
    parse_reference,
    select,
)
from fairlead.cli.job_request.job_names import clean_reference
from fairlead.cli.views.arrays import array_row, array_words, choose_arrays
from fairlead.cli.views.jobs import COLUMNS, JobChoice
from fairlead.input.errors import CliError
from fairlead.testing.builders import EPOCH


def array(
    indices: str = "0-9", *, name: str = "sweep", cancel: str = "", **status: Any
) -> JobArray:
    meta = ObjectMeta(
        name, namespace="default", uid=f"uid-{name}", creation_timestamp=format_time(EPOCH),
        annotations={names.SUBMITTED_BY: "ann"},
    )  # fmt: skip
    spec = JobArraySpec(indices, JobSpec(roles=()), cancel_indices=cancel)
    return JobArray(meta, spec, JobArrayStatus(**status))


@pytest.mark.parametrize(
    ("text", "reference", "job"),
    [
        ("sweep", ArrayReference("sweep"), "sweep"),
        ("job/sweep", ArrayReference("sweep"), "sweep"),
        ("sweep[7]", ArrayReference("sweep", "7"), "sweep-7"),
        ("sweep[3-9,12]", ArrayReference("sweep", "3-9,12"), "sweep[3-9,12]"),
        ("sweep[", ArrayReference("sweep["), "sweep["),
    ],
)
def test_an_element_is_named_by_its_array_and_one_of_them_is_a_job(
    text: str, reference: ArrayReference, job: str
) -> None:
    assert parse_reference(text) == reference
    assert clean_reference(text) == job


def test_elements_are_those_of_the_array_and_none_is_an_error_that_says_which_there_are() -> None:
    assert select(array("0-8:2"), ArrayReference("sweep", "3-8")).positions == 0b11100
    assert select(array("0-8:2"), ArrayReference("sweep")).positions == 0b11111
    with pytest.raises(CliError) as none:
        select(array("0-8:2"), ArrayReference("sweep", "3"))
    [problem] = none.value.problems
    assert problem.message == "array 'sweep' has no element 3"
    assert problem.help == ("its indices are 0-8:2",)
    with pytest.raises(CliError) as wrong:
        select(array(), ArrayReference("sweep", "5-2"))
    assert wrong.value.problems[0].message == "'sweep[5-2]' range \"5-2\" descends; write 2-5"


def test_what_is_cancelled_adds_up_and_is_bounded() -> None:
    found = array("0-8:2", cancel="2,77")
    assert cancelled_with(found, select(found, ArrayReference("sweep", "4-6"))) == "2-6"
    wide = array("0-99999")
    every_second = Elements(wide, int("01" * 50_000, 2))
    with pytest.raises(CliError) as refused:
        cancelled_with(wide, every_second)
    assert refused.value.problems[0].help == ("fairlead cancel sweep cancels the whole array",)


def test_the_line_of_an_array_counts_its_elements_and_says_why_the_next_one_waits() -> None:
    facts: dict[str, int | float | str | bool] = {
        "asked": 8, "free": 0, "total": 16, "short": 8, "resource": "nvidia.com/gpu",
    }  # fmt: skip
    running = array(
        state="Running", elements=ElementCounts(10, 3, 4, 2, 1), finished="0-2", failed="1",
        started_at=format_time(EPOCH + 10),
        verdict=VerdictStatus("Waiting", "InsufficientCapacity", facts),
    )  # fmt: skip
    row = dict(zip((c.title for c in COLUMNS), array_row(running, EPOCH + 70), strict=True))
    assert (row["NAME"], row["STATE"], row["TIME"], row["TASKS"]) == (
        "sweep", "Running", "1m", "3/10",
    )  # fmt: skip
    assert row["USER"] == "ann"
    assert row["WHERE / WHY"] == (
        "2 succeeded, 1 failed, 4 running, 3 waiting; InsufficientCapacity: needs 8 GPUs, 0 of 16 "
        "are free: 8 short"
    )
    why = Condition("Failed", "True", "TooManyFailed", "3 elements failed, of at most 2")
    stopped = array(elements=ElementCounts(10, 7, 0, 0, 3), conditions=(why,))
    assert array_words(stopped) == "3 failed, 7 waiting; 3 elements failed, of at most 2"
    assert array_words(array()) == "not evaluated yet"


def test_arrays_are_chosen_like_jobs() -> None:
    over = (Condition("Succeeded", "True"),)
    ended = [
        array(name=f"e{n}", state="Succeeded", conditions=over, finished_at=format_time(EPOCH + n))
        for n in range(7)
    ]
    live = array(name="live", state="Held")
    shown = choose_arrays([live, *ended], JobChoice())
    assert [each.metadata.name for each in shown] == ["e2", "e3", "e4", "e5", "e6", "live"]
    assert choose_arrays([live, *ended], JobChoice(states=frozenset({"Held"}))) == [live]
    assert choose_arrays([live], JobChoice(user="bob")) == []
    assert len(choose_arrays(ended, JobChoice(shows_all=True))) == 7


@pytest.mark.parametrize(
    ("indices", "status", "wanted"),
    [
        (None, {"finished": "0-8"}, {}),
        ("0-3", {"finished": "0-3"}, {For.SUCCEEDED: True, For.FINISHED: True}),
        ("0-3", {"finished": "0-3", "failed": "2"}, {For.SUCCEEDED: False, For.FINISHED: True}),
        ("4-5", {"finished": "0-3", "failed": "2"}, {}),
        ("4-5", {"finished": "0-3", "conditions": (Condition("Failed", "True"),)},
         {For.SUCCEEDED: False, For.FINISHED: True, For.STARTED: False}),
        (None, {"started_at": format_time(EPOCH)}, {For.STARTED: True}),
    ],
)  # fmt: skip
def test_waiting_ends_when_the_elements_have(
    indices: str | None, status: dict[str, Any], wanted: dict[For, bool]
) -> None:
    elements = select(array(**status), ArrayReference("sweep", indices))
    assert {goal: array_reached(elements, goal) for goal in For} == {
        goal: wanted.get(goal) for goal in For
    }
