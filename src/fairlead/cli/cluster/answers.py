"""Questions to the process that decides; who gets no answer assembles the state himself
(`own_answers.py`).
"""

from __future__ import annotations

import msgspec

from fairlead.api.cluster.team import TeamUse
from fairlead.api.jobs.job import Job
from fairlead.api.meta import to_wire
from fairlead.app.queries.messages import (
    EXPLAIN_PATH,
    FIT_PATH,
    TEAMS_PATH,
    Explained,
    ExplainQuestion,
    FitQuestion,
    Fitted,
    TeamsQuestion,
)
from fairlead.cli.cluster.archive import Archive, NoArchive
from fairlead.cli.connection.transport import Api


def ask_why(api: Api, job: Job, *, is_changed: bool = False) -> Explained | None:
    """Return why a job is where it is, or what a decision would do with it as it `is_changed` here;
    None where no process answers, or an answer of another release cannot be read.
    """
    namespace, name = job.metadata.key
    try:
        question = ExplainQuestion(namespace, name, to_wire(job) if is_changed else None)
        answer = Archive(api).ask(EXPLAIN_PATH, question)
        found = msgspec.json.decode(answer, type=Explained)
    except (NoArchive, ValueError):
        return None
    return found if found.is_changed == is_changed else None


def ask_fit(api: Api, job: Job) -> Fitted | None:
    """Return what a decision would do with a new job; None as in `ask_why`."""
    try:
        return msgspec.json.decode(
            Archive(api).ask(FIT_PATH, FitQuestion(to_wire(job))), type=Fitted
        )
    except (NoArchive, ValueError):
        return None


def ask_teams(api: Api) -> dict[str, TeamUse] | None:
    """Return what each team uses now; None as in `ask_why`."""
    try:
        answer = Archive(api).ask(TEAMS_PATH, TeamsQuestion())
        return msgspec.json.decode(answer, type=dict[str, TeamUse])
    except (NoArchive, ValueError):
        return None
