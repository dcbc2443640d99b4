"""What a change would do, before it is made: of a job, an array or a node.

The change itself is that of the command (`web/sources/changes.py`). Here is what it costs: what
stops, what is lost, who is hit; for a priority what the planner says of it. Where the person may
not make it, or there is nothing to change, the page says why and has no button.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fairlead.api import names
from fairlead.api.cluster.node_suites import suites
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray, array_reference_of
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Node, PriorityClass
from fairlead.cli.commands.change import adopted_problem, is_of_another
from fairlead.cli.connection.common import seconds_of
from fairlead.cli.job_request.change_verbs import priority_change
from fairlead.cli.views.arrays import array_state, array_words
from fairlead.cli.views.jobs import state_of
from fairlead.cli.views.node import Preview, preview_lines
from fairlead.cli.views.nodes import state_of as node_state_of
from fairlead.decide.attempts.usage import gpu_count
from fairlead.decide.words import duration, plural
from fairlead.input.errors import CliError
from fairlead.model.gang.phase import Phase, phase_of
from fairlead.model.health.windows import drain_of
from fairlead.model.pools.pool_nodes import uses_node
from fairlead.web.pages.site import AskedPath, JobLine, NoSuchPage, Site, job_lines
from fairlead.web.render import Page, link
from fairlead.web.sources.changes import (
    CORDONS,
    DRAINS,
    MOVES,
    NODE_CHANGES,
    RELEASES,
    RERUNS,
    RESUMES,
    TESTS,
    WORK_CHANGES,
    ChangeOrder,
    PageChange,
)

_FIELD_MAX = 200
_JOBS_MAX = 50
#: Words that say how a job or an array has ended well.
_GOOD = "Succeeded"


class ShownField(NamedTuple):
    """A field of the form: its name, its label, what it has, and what it may have ((): a text),
    each with words.
    """

    name: str
    label: str
    value: str
    choices: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ChangePreview:
    """What is changed, in which state it is, what that costs, and why it cannot be ("" if it can).

    `lines` are the jobs that are hit, `answer` is what the planner says.
    """

    order: ChangeOrder
    state: str
    costs: tuple[str, ...]
    why_not: str = ""
    lines: Sequence[JobLine] = ()
    answer: str = ""
    fields: Sequence[ShownField] = ()
    #: When a node is empty.
    ends: float | None = None
    #: The form is to be filled in before there is something to confirm.
    is_open: bool = False


async def change_page(site: Site, order: ChangeOrder, csrf: str, refusal: str = "") -> Page:
    """Return the preview of a change, or why it was refused; NoSuchPage."""
    found = await (_node_preview if order.kind == "nodes" else _work_preview)(site, order)
    why_not = refusal or found.why_not or await site.questions.why_not(order.right)
    change, fields = order.change, order.fields
    values = {
        "change": change, "name": order.name, "state": found.state, "costs": found.costs,
        "lines": found.lines, "answer": found.answer, "fields": found.fields,
        "is_open": found.is_open, "ends": found.ends,
        "now": site.cluster.clock.now(), "refusal": why_not, "csrf": csrf, "back": place_of(order),
        "action": path_of(order), "hidden": fields,
    }  # fmt: skip
    namespace = None if order.kind == "nodes" else order.namespace
    command = site.command(*order.words(), namespace=namespace)
    title = f"{change.verb.capitalize()} {order.name}"
    section = "cluster" if order.kind == "nodes" else "jobs"
    return Page("change.html", title, values, command, section, status=409 if refusal else 200)


def order_of(site: Site, asked: AskedPath, given: AskedPath) -> ChangeOrder:
    """Return the change that a path asks for, with the fields that are given; NoSuchPage."""
    verb, name = asked.path[1], asked.path[-1]
    is_node = len(asked.path) == 3
    change = (NODE_CHANGES if is_node else WORK_CHANGES).get(verb)
    kind, namespace = "nodes", ""
    if not is_node:
        namespace = asked.path[2]
        kind = "jobs" if site.cluster.jobs.get(namespace, name) is not None else "arrays"
    if change is None or _subject(site, kind, namespace, name) is None:
        raise NoSuchPage(f"there is no change '{verb}' of {'/'.join(asked.path[2:])}")
    fields = {
        each.name: given.text(each.name, _FIELD_MAX) or each.default for each in change.fields
    }
    return ChangeOrder(change, kind, namespace, name, fields, site.user)


def _subject(site: Site, kind: str, namespace: str, name: str) -> Job | JobArray | Node | None:
    if kind == "nodes":
        return site.cluster.nodes.get("", name)
    return (site.cluster.jobs if kind == "jobs" else site.cluster.arrays).get(namespace, name)


def path_of(order: ChangeOrder) -> str:
    """Return the address of the preview, without its fields."""
    space = (order.namespace,) if order.namespace else ()
    return link("change", order.change.verb, *space, order.name)


def place_of(order: ChangeOrder, made: str = "") -> str:
    """Return the page of what is changed, or of what was made of it."""
    if order.kind == "nodes":
        return link("nodes", order.name)
    return link(order.kind, order.namespace, made or order.name)


# Jobs and arrays


async def _work_preview(site: Site, order: ChangeOrder) -> ChangePreview:
    work = _subject(site, order.kind, order.namespace, order.name)
    assert isinstance(work, Job | JobArray), "the order names it"
    why_not, fields, answer = _why_not_work(work, order.change), (), ""
    is_open, costs = False, tuple(_costs(work, order.change))
    if order.change is MOVES and not why_not:
        classes, chosen = await site.questions.priority_classes(), order.fields["class"]
        fields, is_open = (_class_field(order, classes),), not chosen
        costs = (f"Its class is {_class_of(work)} now.",)
        if chosen and priority_change(chosen).is_done(work):
            why_not = f"It has priority class {chosen} already."
        elif chosen and isinstance(work, Job) and phase_of(work) is Phase.QUEUED:
            answer = await site.questions.supposed((order.namespace, order.name), chosen)
    state = array_state(work) if isinstance(work, JobArray) else state_of(work)
    return ChangePreview(
        order, state, costs, why_not, answer=answer, fields=fields, is_open=is_open
    )


def _class_of(work: Job | JobArray) -> str:
    spec = work.spec.template if isinstance(work, JobArray) else work.spec
    return f"{spec.priority_class_name or 'the default one'} (priority {spec.priority or 0})"


def _class_field(order: ChangeOrder, classes: Sequence[PriorityClass]) -> ShownField:
    (field,), value = order.change.fields, order.fields["class"]
    choices = [(each.metadata.name, f"{each.metadata.name} ({each.value:,})") for each in classes]
    if choices:
        choices.insert(0, ("", "choose one"))
        if value and value not in {name for name, _ in choices}:
            choices.append((value, value))
    return ShownField(field.name, field.label, value, choices)


def offers(work: Job | JobArray) -> list[tuple[str, str]]:
    """Return the changes of a job or an array that make sense now, as (verb, link)."""
    return [
        (verb, link("change", verb, *work.metadata.key))
        for verb, change in WORK_CHANGES.items()
        if not _why_not_work(work, change)
    ]


def _why_not_work(work: Job | JobArray, change: PageChange) -> str:
    """Return why there is nothing to change; "" where there is."""
    if change is RERUNS:
        if isinstance(work, Job) and work.spec.adopts is not None:
            return f"It represents the pods of {work.spec.adopts.kind} {work.spec.adopts.name}."
        return "" if work.is_finished else "It has not ended, and would run twice at a time."
    if work.is_finished:
        return "It has ended."
    verb = priority_change("") if change is MOVES else change.of_work
    assert verb is not None, "all others have one"
    if isinstance(work, Job) and is_of_another(work, verb):
        if change is MOVES:
            return "Its pods are another tool's: their class gives it its priority."
        problem = adopted_problem(work, verb)
        return f"{problem.message}: {'; '.join(problem.help)}"
    if change is MOVES:
        array = array_reference_of(work.metadata) if isinstance(work, Job) else None
        return f"Its array {array.name} has its priority." if array is not None else ""
    return f"It {verb.already}." if verb.is_done(work) else ""


def _costs(work: Job | JobArray, change: PageChange) -> Iterator[str]:
    """Yield what is given back and what is lost, line by line."""
    if isinstance(work, JobArray):
        yield f"All of its elements: {array_words(work)}"
        return
    gpus, members = plural(gpu_count(work), "GPU"), plural(work.member_count, "member")
    if change is RERUNS:
        yield f"The new job asks for {gpus} and waits for its turn: {members}."
        if state_of(work) == _GOOD:
            yield "This one has succeeded: its work is done twice."
        return
    nodes = set(nodes_of(work.status.placement))
    if not nodes or change is RELEASES:
        yield "It holds no nodes now."
        return
    yield f"{members} on {plural(len(nodes), 'node')} stop; {gpus} are given back."
    progress = work.status.progress
    if progress is None or progress.checkpoint_step is None:
        yield "It has reported no checkpoint: what it has done so far is lost."
    else:
        yield f"Its last checkpoint is of step {progress.checkpoint_step} of {progress.step}."


# Nodes


def node_offers(node: Node) -> list[tuple[str, str]]:
    """Return the changes of a node that make sense now, as (verb, link)."""
    name = node.metadata.name
    return [
        (verb, link("change", verb, name))
        for verb, change in NODE_CHANGES.items() if not _why_not_node(node, change)
    ]  # fmt: skip


def _why_not_node(node: Node, change: PageChange) -> str:
    notes = node.metadata.annotations
    is_out = node.spec.unschedulable or names.DRAIN in notes or names.RETIRE in notes
    if change is CORDONS and node.spec.unschedulable:
        return f"It is cordoned already, by {notes.get(names.CORDONED_BY, 'hand')}."
    if change is DRAINS and drain_of(notes) is not None:
        return "It is being drained already: resume it first."
    if change is RESUMES and not is_out:
        return "It is neither cordoned nor drained."
    return ""


async def _node_preview(site: Site, order: ChangeOrder) -> ChangePreview:
    node = _subject(site, order.kind, "", order.name)
    assert isinstance(node, Node), "the order names it"
    facts, now = site.cluster.facts(), site.cluster.clock.now()
    change, jobs = order.change, facts.on_node.get(order.name, ())
    why_not = _why_not_node(node, change) or _mistake(order)
    costs: list[str] = []
    ends = None
    if change is DRAINS and not why_not:
        ends = now + seconds_of(order.fields["within"], "--within")
    if change is TESTS and not why_not:
        suite = suites()[order.fields["suite"]]
        costs.append(f"At most {duration(suite.seconds)}: {', '.join(suite.tests)}.")
    if change in (CORDONS, DRAINS, TESTS):
        costs += _on_node(site, order.name, jobs)
    state, _, _ = node_state_of(node, now)
    fields = [
        ShownField(f.name, f.label, order.fields[f.name], [(each, each) for each in f.choices])
        for f in change.fields
    ]
    hit = jobs[:_JOBS_MAX] if change is not RESUMES else ()
    return ChangePreview(
        order, state.value, tuple(costs), why_not, lines=job_lines(site, hit, now), fields=fields,
        ends=ends,
    )  # fmt: skip


def _mistake(order: ChangeOrder) -> str:
    """Return what is wrong with the fields; "" where they are right."""
    try:
        if order.change is DRAINS:
            seconds_of(order.fields["within"], "--within")
    except CliError as error:
        return str(error)
    if order.change is TESTS and order.fields["suite"] not in suites():
        return f"There is no suite {order.fields['suite']}; there are {', '.join(suites())}."
    return ""


def _on_node(site: Site, name: str, jobs: Sequence[Job]) -> Iterator[str]:
    """Yield what is on a node and how it would leave, as far as the person may see it."""
    rights = site.cluster.rights
    pods = [p for p in site.cluster.others.items() if p.spec.node_name == name and uses_node(p)]
    yield from (f"{line[0].upper()}{line[1:]}." for line in preview_lines(
        Preview(tuple(jobs), tuple(pods))
    ))  # fmt: skip
    if rights.jobs is not None:
        seen = rights.namespaces_text or "none"
        yield f"There may be more: you see the jobs of these namespaces: {seen}."
