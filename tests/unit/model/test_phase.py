"""The phase of a job, row by row."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Adopts, Attempt, Job
from fairlead.api.meta import Condition
from fairlead.api.names import ADMITTED, FAILED, SUCCEEDED
from fairlead.model.gang.phase import Phase, phase_of
from fairlead.testing.builders import make_job, make_placement

T0 = "2026-01-01T00:00:00Z"
OPEN = Attempt(2, begun_at=T0)
CLOSED = Attempt(2, begun_at=T0, finished_at=T0)
OLD = Attempt(1, begun_at=T0, finished_at=T0)
REFUSED = Condition(ADMITTED, "False", "QuotaExceeded")
YES = Condition(ADMITTED, "True", ADMITTED)


def job(
    *records: Attempt, attempt: int = 2, placed: int = 0, deleted: bool = False, **kwargs: object
) -> Job:
    placement = make_placement(["n0"], attempt=placed) if placed else None
    made = make_job(
        "j",
        attempt=attempt,
        placement=placement,
        status={"attempts": records},
        **kwargs,  # type: ignore[arg-type] # passed on
    )
    return replace(
        made, metadata=replace(made.metadata, deletion_timestamp=T0 if deleted else None)
    )


def group(*records: Attempt, **kwargs: object) -> Job:
    return job(*records, spec={"adopts": Adopts("Job", "web", "batch/v1")}, **kwargs)


ROWS = [
    (job(attempt=0), Phase.UNADMITTED),
    (job(conditions=(REFUSED,)), Phase.UNADMITTED),
    (job(CLOSED, conditions=(REFUSED,), placed=2), Phase.UNADMITTED),
    (job(OLD), Phase.QUEUED),
    (job(conditions=(YES,)), Phase.QUEUED),
    (job(OLD, placed=1), Phase.REPAIRING),
    (job(OLD, placed=2), Phase.PLACED),
    (job(OLD, OPEN, placed=2), Phase.ACTIVE),
    (job(OPEN), Phase.ACTIVE),
    (job(OPEN, conditions=(REFUSED,), placed=2), Phase.ACTIVE),
    (job(OLD, CLOSED, placed=2), Phase.BETWEEN_ATTEMPTS),
    (job(CLOSED), Phase.BETWEEN_ATTEMPTS),
    (job(OPEN, placed=2, suspend=True), Phase.STOPPING),
    (job(OPEN, placed=2, cancel=True), Phase.STOPPING),
    (job(OPEN, placed=2, deleted=True), Phase.STOPPING),
    (job(CLOSED, placed=2, suspend=True), Phase.HELD),
    (job(attempt=0, suspend=True), Phase.HELD),
    (job(OLD, suspend=True, conditions=(REFUSED,)), Phase.HELD),
    (job(CLOSED, placed=2, cancel=True), Phase.CANCELLING),
    (job(attempt=0, suspend=True, cancel=True), Phase.CANCELLING),
    (job(OLD, placed=1, deleted=True), Phase.CANCELLING),
    (job(CLOSED, placed=2, conditions=(Condition(SUCCEEDED, "True"),)), Phase.FINISHED),
    (job(attempt=0, cancel=True, conditions=(Condition(FAILED, "True"),)), Phase.FINISHED),
    (group(), Phase.UNADMITTED),
    (group(conditions=(REFUSED,)), Phase.UNADMITTED),
    (group(conditions=(YES,)), Phase.QUEUED),
    (group(OLD, conditions=(YES,), placed=1), Phase.REPAIRING),
    (group(OPEN, placed=2, conditions=(YES,)), Phase.ACTIVE),
]


@pytest.mark.parametrize(("job", "phase"), ROWS)
def test_each_row_of_the_table(job: Job, phase: Phase) -> None:
    assert phase_of(job) is phase


def test_the_rows_show_every_phase() -> None:
    assert {phase for _, phase in ROWS} == set(Phase)


def _table(text: str) -> dict[str, str]:
    """Read the rows "| Phase | When |" of a table in order."""
    rows = re.findall(r"^\s*\| ([A-Z]\w+)\s*\| (.+?)\s*\|", text, re.MULTILINE)
    return {name: when for name, when in rows if name != "Phase"}


def test_the_documents_show_the_table_of_the_code() -> None:
    code = _table(phase_of.__doc__ or "")
    assert sorted(code) == sorted(phase.value for phase in Phase)
    text = (Path(__file__).parents[3] / "docs/design/jobs.md").read_text(encoding="utf-8")
    section = text.partition("### Phases\n")[2].partition("\n#")[0]
    assert list(_table(section).items()) == list(code.items())
