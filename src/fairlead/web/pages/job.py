"""One job: where its time went, why it is where it is, its members, and what they write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import array_reference_of
from fairlead.api.kubernetes.core import Pod
from fairlead.cli.views.jobs import places, state_of, where_or_why
from fairlead.cli.views.remedies import suggestion_flag
from fairlead.cli.views.runs import difference_rows, differences, run_line
from fairlead.cli.views.top import columns as top_columns
from fairlead.cli.views.top import rows as top_rows
from fairlead.cli.views.words import amount_text
from fairlead.decide.answers.explanation import Amounts, Explanation
from fairlead.decide.attempts.usage import gpu_count
from fairlead.decide.words import resource_word
from fairlead.web.pages.change import offers
from fairlead.web.pages.site import AskedPath, NoSuchPage, Site, job_lines, table_of
from fairlead.web.pages.timeline import WIDTH, bars_of, ending_words, spans_of
from fairlead.web.render import Page, link
from fairlead.web.sources.questions import Answered

MEMBERS_MAX = 256
LOG_LINES = 500
#: The page of a job that is there comes without the answer that takes longer; that follows.
ANSWER_PATIENCE_SECONDS = 0.4
#: What it uses follows likewise; and of what it recorded, so many rows and characters.
USE_PATIENCE_SECONDS = 0.1
RUN_ROWS_MAX, CELL_LENGTH_MAX = 12, 100


class MemberRow(NamedTuple):
    """One member: its name in the job, its node, and how its pod does."""

    task: str
    node: str
    state: str


class AskedAmount(NamedTuple):
    """One resource that a waiting gang asks for; `free` and `asked` in percent of all there is."""

    word: str
    asked: str
    free: str
    total: str
    short: str
    free_share: int
    asked_share: int


class StartingFlag(NamedTuple):
    """What would let the job start, as a flag of `fairlead submit`."""

    flag: str
    message: str


async def job_page(site: Site, asked: AskedPath) -> Page:
    """Return the page of a job, also of one that is gone and in the history; NoSuchPage."""
    key = asked.path[1], asked.path[2]
    job, now = site.cluster.jobs.get(*key), site.cluster.clock.now()
    patience = None if job is None else ANSWER_PATIENCE_SECONDS
    answered = await site.questions.why(key, patience_seconds=patience)
    if answered is None:
        answered = Answered("The scheduler is being asked.", now)
    if job is None:
        job = answered.answer.job if answered.answer is not None else None
    if job is None:
        raise NoSuchPage(answered.text)
    (line,) = job_lines(site, (job,), now)
    spans = spans_of(job)
    array = array_reference_of(job.metadata)
    values = {
        "job": job, "line": line, "state": state_of(job), "why": where_or_why(job, now),
        "places": places(job) if job.status.placement and not job.is_finished else "",
        "gpus": gpu_count(job), "user": job.metadata.annotations.get(names.SUBMITTED_BY, ""),
        "now": now, "bars": bars_of(spans, now), "width": WIDTH, "spans": spans,
        "attempts": sorted(job.status.attempts, key=lambda each: -each.number),
        "ending_words": ending_words,
        "members": await _members(site, job), "members_max": MEMBERS_MAX,
        "answered": answered, **_explained(job, answered),
        "array": link("arrays", key[0], array.name) if array is not None else "",
        "task": asked.text("task"), "log": _log_link(key, asked.text("task")),
        "offers": offers(job), "has_log": bool(job.status.attempts),
        "logs_command": site.command("logs", "-f", key[1], namespace=key[0]),
        **await _use(site, job), **_run(job),
        "again_command": site.command("resubmit", key[1], namespace=key[0]),
    }  # fmt: skip
    return Page("job.html", key[1], values, site.command("why", key[1], namespace=key[0]), "jobs")


async def _use(site: Site, job: Job) -> dict[str, object]:
    """Return what the job uses of what it holds, and what it used; nothing before it has begun."""
    namespace, name = job.metadata.key
    asks = job.status.attempt > 0 and job.status.attempts
    found = None
    if asks:
        found = await site.questions.job_use(
            job.metadata.key, patience_seconds=USE_PATIENCE_SECONDS
        )
    word = "eff" if job.is_finished else "top"
    rows = top_rows([found.now], "", spread=False) if found is not None and found.now else []
    return {
        "has_use": bool(asks), "use": found,
        "use_now": table_of(top_columns("", spread=False), rows),
        "use_command": site.command(word, *((name,) if job.is_finished else ()),
                                    namespace=namespace),
    }  # fmt: skip


def _run(job: Job) -> dict[str, object]:
    """Return what the job recorded of itself, as `fairlead runs show` has it."""
    if run_line(job) is None:
        return {"run": (), "run_href": "", "run_left": 0}
    rows = difference_rows(differences([job], everything=True))
    cut = [[cell[:CELL_LENGTH_MAX] for cell in row] for row in rows[:RUN_ROWS_MAX]]
    href = link("runs", "show", run="/".join(job.metadata.key))
    return {"run": cut, "run_href": href, "run_left": max(0, len(rows) - RUN_ROWS_MAX)}


def _log_link(key: tuple[str, str], task: str) -> str:
    return link("logs", *key, task=task, tail=LOG_LINES)


def _explained(job: Job, answered: Answered) -> dict[str, object]:
    """Return the parts of the planner's explanation that the page shows as more than text."""
    found = answered.answer.explained.explanation if answered.answer is not None else None
    if found is None or job.is_finished:
        return {"amounts": (), "changes": (), "holders": ()}
    changes = [StartingFlag(suggestion_flag(job, each), each.message) for each in found.suggestions]
    return {
        "amounts": [_amount(each) for each in found.arithmetic], "changes": changes,
        "holders": _holders(found),
    }  # fmt: skip


def _holders(found: Explanation) -> Sequence[tuple[str, str]]:
    """Return (name, link) of the jobs that hold the room, the largest share first."""
    holders = sorted(found.holders, key=lambda each: (-each.amount, each.key))
    return [("/".join(each.key), link("jobs", *each.key)) for each in holders]


def _amount(found: Amounts) -> AskedAmount:
    asked, free, total, short = (
        amount_text(found.resource, n) for n in (found.asked, found.free, found.total, found.short)
    )
    most = max(found.total, found.asked, 1)
    return AskedAmount(
        resource_word(found.resource), asked, free, total, short if found.short else "",
        100 * found.free // most, 100 * found.asked // most,
    )  # fmt: skip


async def _members(site: Site, job: Job) -> list[MemberRow]:
    """Return the first members with their nodes, and how their pods do where that can be seen."""
    placement = job.status.placement
    if placement is None:
        return []
    pods = {} if job.is_finished else _by_seat(await site.cluster.member_pods(job))
    found: list[MemberRow] = []
    for role in placement.roles:
        for index, node in enumerate(role.nodes):
            if len(found) >= MEMBERS_MAX:
                return found
            pod = pods.get((role.role, str(index)))
            state = "" if job.is_finished else "no pod yet" if pod is None else _pod_state(pod)
            found.append(MemberRow(f"{role.role}-{index}", node, state))
    return found


def _by_seat(pods: Sequence[Pod]) -> Mapping[tuple[str, str], Pod]:
    labels = ((pod.metadata.labels, pod) for pod in pods)
    return {(own.get(names.ROLE, ""), own.get(names.INDEX, "")): pod for own, pod in labels}


def _pod_state(pod: Pod) -> str:
    """Return the phase of a pod, and the word for why where it has one."""
    status = pod.status
    waiting = next(
        (each.state.waiting.reason for each in status.container_statuses
         if each.state.waiting is not None and each.state.waiting.reason), "",
    )  # fmt: skip
    reason = waiting or status.reason
    return f"{status.phase}: {reason}" if reason else status.phase
