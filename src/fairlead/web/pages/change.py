"""What a change would do, before it is made: cancel, hold and release, of a job or an array.

The change itself is that of the command (`cli/commands/change.py`); here is what it costs.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.jobs.placement import nodes_of
from fairlead.cli.commands.change import adopted_problem, is_of_another
from fairlead.cli.job_request.change_verbs import CANCEL, HOLD, RELEASE, ChangeVerb
from fairlead.cli.views.arrays import array_state, array_words
from fairlead.cli.views.jobs import state_of
from fairlead.decide.attempts.usage import gpu_count
from fairlead.decide.words import plural
from fairlead.web.pages.site import AskedPath, NoSuchPage, Site
from fairlead.web.render import Page, link

CHANGES = {change.verb: change for change in (CANCEL, HOLD, RELEASE)}
_MEANS = {
    CANCEL.verb: "It stops for good: its members get SIGTERM, and SIGKILL when their grace period "
    "is over. Its log and its record stay.",
    HOLD.verb: "It gives its nodes back and is kept. It is not considered until it is released; "
    "then it goes on from its last checkpoint.",
    RELEASE.verb: "It is considered again, in its old place in the queue.",
}


def change_page(site: Site, asked: AskedPath, csrf: str, refusal: str = "") -> Page:
    """Return the preview of a change, or why it was refused; NoSuchPage."""
    change, work = changed_work(site, asked)
    namespace, name = work.metadata.key
    state = array_state(work) if isinstance(work, JobArray) else state_of(work)
    why_not = "" if refusal else _why_not(work, change)
    values = {
        "verb": change.verb, "name": name, "state": state, "means": _MEANS[change.verb],
        "costs": list(_costs(work, change)), "refusal": refusal or why_not, "csrf": csrf,
        "back": place_of(work), "action": link(*asked.path),
    }  # fmt: skip
    command = site.command(change.verb, name, namespace=namespace)
    title = f"{change.verb.capitalize()} {name}"
    return Page("change.html", title, values, command, "jobs", status=409 if refusal else 200)


def changed_work(site: Site, asked: AskedPath) -> tuple[ChangeVerb, Job | JobArray]:
    """Return the change that a path asks for, and of what; NoSuchPage."""
    verb, namespace, name = asked.path[1:]
    change = CHANGES.get(verb)
    work = site.cluster.jobs.get(namespace, name) or site.cluster.arrays.get(namespace, name)
    if change is None or work is None:
        raise NoSuchPage(f"there is no change '{verb}' of {namespace}/{name}")
    return change, work


def place_of(work: Job | JobArray) -> str:
    """Return the page of a job or an array."""
    kind = "arrays" if isinstance(work, JobArray) else "jobs"
    return link(kind, *work.metadata.key)


def offers(work: Job | JobArray) -> list[tuple[str, str]]:
    """Return the changes that make sense now, as (verb, link)."""
    return [
        (verb, link("change", verb, *work.metadata.key))
        for verb, change in CHANGES.items()
        if not _why_not(work, change)
    ]


def _why_not(work: Job | JobArray, change: ChangeVerb) -> str:
    """Return why there is nothing to change; "" where there is."""
    if work.is_finished:
        return "It has ended."
    if isinstance(work, Job) and is_of_another(work, change):
        problem = adopted_problem(work, change)
        return f"{problem.message}: {'; '.join(problem.help)}"
    return f"It {change.already}." if change.is_done(work) else ""


def _costs(work: Job | JobArray, change: ChangeVerb) -> Iterator[str]:
    """Yield what is given back and what is lost, line by line."""
    if isinstance(work, JobArray):
        yield f"All of its elements: {array_words(work)}"
        return
    nodes = set(nodes_of(work.status.placement))
    if not nodes or change is RELEASE:
        yield "It holds no nodes now."
        return
    gpus, members = plural(gpu_count(work), "GPU"), plural(work.member_count, "member")
    yield f"{members} on {plural(len(nodes), 'node')} stop; {gpus} are given back."
    progress = work.status.progress
    if progress is None or progress.checkpoint_step is None:
        yield "It has reported no checkpoint: what it has done so far is lost."
    else:
        yield f"Its last checkpoint is of step {progress.checkpoint_step} of {progress.step}."
