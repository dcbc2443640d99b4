"""`why` in words (pure): verdict, arithmetic, who, when, and what would change it, in this order.

All of it is the planner's own explanation of a waiting job; a job that runs or has ended is
described by its status: where it is, its attempts and their causes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from fairlead.api.jobs.job import Attempt, Job, JobState
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.jobs.simulated import is_simulated
from fairlead.api.meta import find_condition
from fairlead.api.names import RUNNING
from fairlead.api.values.times import parse_time
from fairlead.cli.formats.text import natural
from fairlead.cli.job_request.flag_groups.flags import Flag
from fairlead.cli.views.defaults import defaults_words
from fairlead.cli.views.fleet import Buying
from fairlead.cli.views.jobs import (
    NONE,
    ending,
    latest_attempt,
    left_of,
    state_of,
    tasks_of,
    time_of,
    where_or_why,
)
from fairlead.cli.views.remedies import change_lines, claimed_text, volume_texts
from fairlead.cli.views.teams import Owners, borrowed_nodes, borrowing_words
from fairlead.cli.views.words import amount_text, amount_words, message_of, reason_words
from fairlead.decide.answers.explanation import (
    HOLDERS_MAX,
    Amounts,
    ExpectedStart,
    Explanation,
    Holder,
    OverduePod,
    PreemptionAhead,
    UnknownBound,
)
from fairlead.decide.attempts.end_reason import EndReason
from fairlead.decide.attempts.record import checking_words, straggler_words, tested_words
from fairlead.decide.jobs.restart import is_cancelled
from fairlead.decide.reasons import Outcome, Reason
from fairlead.decide.verdict import ObjectKey
from fairlead.decide.words import duration, fold_names, plural
from fairlead.terminal import joined

LABEL_WIDTH = 11
#: Where the texts of facts begin.
FACT_INDENT = 2 + LABEL_WIDTH
ATTEMPTS_SHOWN_MAX = 5
VICTIMS_SHOWN_MAX = 5
UNREADY_SHOWN_MAX = 5
_NONE_UNREADY: Mapping[str, float] = MappingProxyType({})
_NO_OWNERS: Owners = MappingProxyType({})
_SIMULATED = "virtual nodes run no programs, so it only takes time"
_VERBS = {
    Outcome.PLACED: "has its place",
    Outcome.WAITING: "waits",
    Outcome.BLOCKED: "is blocked",
    Outcome.IMPOSSIBLE: "can never start",
}


def why_text(
    job: Job,
    explanation: Explanation | None,
    now: float,
    *,
    is_up: bool = False,
    unready: Mapping[str, float] = _NONE_UNREADY,
    unreachable: Collection[str] = (),
    buying: Buying | None = None,
    owners: Owners = _NO_OWNERS,
    node_lost_grace_seconds: float = 0.0,
) -> str:
    """Return the answer; without an explanation what the status says.

    `is_up` says that the cluster is one of `fairlead up`, where some jobs are simulated, `unready`
    since when nodes of the job have not been ready, and `node_lost_grace_seconds` for how long it
    waits for those that are not among the `unreachable`; `buying` what node pools do for it,
    `owners` whose its nodes are.
    """
    note = [line("simulated", _SIMULATED)] if is_up and is_simulated(job) else []
    if job.is_finished:
        return _ended(job, now, note)
    if explanation is not None and explanation.verdict.reason is not Reason.PLACED:
        return _waiting(job, explanation, now, buying=buying)
    if explanation is None and job.status.placement is None:
        return joined([f"Job {job.metadata.name}: {where_or_why(job, now)}"])
    team = borrowing_words(job, owners)
    note = [*([line("team", team)] if team else []), *_defaults(job), *note]
    return _placed(
        job, now, [*note, *_not_ready(unready, unreachable, now, node_lost_grace_seconds)]
    )


def supposed_text(
    job: Job, explanation: Explanation | None, changes: Mapping[Flag, str], text: str
) -> str:
    """Return the answer to `--if`: `text`, or that the job would start now."""
    words = ", ".join(f"{flag.value}={value}" for flag, value in changes.items())
    if explanation is not None and explanation.verdict.reason is Reason.PLACED:
        where = plural(int(explanation.verdict.facts["nodes_used"]), "node")
        text = f"Job {job.metadata.name} would start now, on {where}\n"
    return f"With {words}:\n\n{text}"


def _not_ready(
    unready: Mapping[str, float], unreachable: Collection[str], now: float, grace_seconds: float
) -> list[str]:
    """Return what to expect of nodes that do not report: they may come back, or the gang moves."""
    patience = duration(grace_seconds)
    texts = (
        f"{name} for {duration(max(now - since, 0.0))}; "
        + ("unreachable: the job moves" if name in unreachable
           else f"the job moves once that is {patience}")
        for name, since in sorted(unready.items())[:UNREADY_SHOWN_MAX]
    )  # fmt: skip
    return labelled("not ready", texts)


def line(label: str, text: str) -> str:
    """Return the line of a fact."""
    return f"  {label:<{LABEL_WIDTH}}{text}".rstrip()


def _defaults(job: Job) -> list[str]:
    words = defaults_words(job)
    return [line("defaults", words)] if words else []


def labelled(label: str, texts: Iterable[str]) -> list[str]:
    """Return a line for each text, the first one with the label."""
    return [line("" if number else label, text) for number, text in enumerate(texts)]


def _waiting(job: Job, explanation: Explanation, now: float, *, buying: Buying | None) -> str:
    verdict = explanation.verdict
    since = "" if explanation.since is None else f"    (for {duration(now - explanation.since)})"
    # What no node there is can hold, a node that is bought may.
    verb = "waits for nodes" if buying and buying.may_help else _VERBS[verdict.outcome]
    head = f"{verb}: {verdict.reason.value}"
    if verdict.reason is Reason.STOPPING:
        head = "is stopping"
    lines = [f"Job {job.metadata.name} {head}{since}", ""]
    lines.append(f"  {message_of(verdict)}")
    facts = labelled("asks", map(_amounts, explanation.arithmetic))
    facts += labelled("volumes", volume_texts(explanation.volumes))
    facts += labelled("where", map(claimed_text, explanation.claimed))
    facts += _who(job, explanation, now)
    facts += _overdue(job, explanation.overdue, now)
    facts += _when(job, explanation, now)
    facts += _borrows(explanation, now)
    facts += _defaults(job)
    if buying and verdict.reason is not Reason.HELD:
        facts.append(line("nodes", buying.text))
    if facts:
        lines += ["", *facts]
    lines += change_lines(job, explanation)
    lines += _attempts(job, now)
    return joined(lines)


def _amounts(amounts: Amounts) -> str:
    resource = amounts.resource
    short = f", {amount_text(resource, amounts.short)} short" if amounts.short else ""
    free, total = amount_text(resource, amounts.free), amount_text(resource, amounts.total)
    return f"{amount_words(resource, amounts.asked)}; {free} of {total} are free{short}"


def _name(job: Job, key: ObjectKey) -> str:
    """Return the other job's name, with its namespace where that is another one."""
    return key[1] if key[0] == job.metadata.namespace else f"{key[0]}/{key[1]}"


def _names(job: Job, keys: Sequence[ObjectKey]) -> str:
    return ", ".join(_name(job, key) for key in keys)


def _who(job: Job, explanation: Explanation, now: float) -> list[str]:
    lines: list[str] = []
    ahead = explanation.ahead
    if ahead is not None:
        place = f"position {ahead.position + 1} of {max(ahead.waiting, ahead.position + 1)}"
        if ahead.jobs:
            more = ahead.position - len(ahead.jobs)
            rest = f" and {more:,} more" if more > 0 else ""
            place += f"; ahead of it: {_names(job, ahead.jobs)}{rest}"
        lines.append(line("queue", place))
    found = sorted(explanation.holders, key=lambda each: (-each.amount, natural(each.key[1])))
    texts = [_holder(job, holder, now) for holder in found]
    if len(texts) == HOLDERS_MAX:
        texts.append(f"these are the {HOLDERS_MAX} largest; there may be more")
    return [*lines, *labelled("holders", texts)]


def _overdue(job: Job, pods: Sequence[OverduePod], now: float) -> list[str]:
    """Return the pods that were to be gone: their nodes are free once somebody ends them."""
    texts = (
        f"pod {_name(job, pod.key)} on {pod.node} was to be gone {duration(now - pod.since)} ago"
        for pod in pods
    )
    return labelled("hangs", texts)


def _holder(job: Job, holder: Holder, now: float) -> str:
    amount = amount_words(holder.resource, holder.amount)
    until = "no time limit"
    if holder.ends_at is not None:
        until = f"at most {duration(holder.ends_at - now)} more"
    return f"{_name(job, holder.key)}  {amount} on {plural(holder.nodes, 'node')}, {until}"


def _when(job: Job, explanation: Explanation, now: float) -> list[str]:
    forecast = explanation.forecast
    if forecast is None:
        return []
    expected = _expected(explanation.expected, now)
    if isinstance(forecast, UnknownBound):
        return [line("may start", f"unknown: {forecast.value}"), *expected]
    if isinstance(forecast, PreemptionAhead):
        return _preempts(job, forecast, now)
    after = ""
    if forecast.waits_for:
        have = "has" if len(forecast.waits_for) == 1 else "have"
        after = f", once {_names(job, forecast.waits_for)} {have} ended"
    text = f"within {duration(max(forecast.may_start_by - now, 0.0))}{after}"
    return [
        line("may start", text),
        line("", "if the jobs ahead use their whole time limits and no other job comes first"),
        *expected,
    ]


def _expected(found: ExpectedStart | None, now: float) -> list[str]:
    """Return when the job starts if jobs run for as long as past ones did."""
    if found is None:
        return []
    first, middle, last = (
        duration(max(at - now, 0.0)) for at in (found.earliest, found.median, found.latest)
    )
    past = f"{found.past_jobs:,} past jobs like them"
    when = f"in {first}" if first == last else f"in {first} to {last}, about {middle}"
    return [
        line("expected", when),
        line("", f"if jobs run for as long as {past} did and no other job comes first"),
    ]


def _borrows(explanation: Explanation, now: float) -> list[str]:
    """Return when a job that gave way again and again may borrow, and what helps it."""
    found = explanation.borrower_backoff
    if found is None:
        return []
    again = f"again in {duration(found.until - now)}"
    return [
        line("borrows", f"{again}: {found.times} attempts in a row gave way without a checkpoint"),
        line("", "what helps: save checkpoints; nodes of its own team and of none are open to it"),
    ]


def _preempts(job: Job, preemption: PreemptionAhead, now: float) -> list[str]:
    """Return which jobs have to leave, from when on, and what they may still do first."""
    victims = preemption.victims
    if not victims:
        return [line("may start", "once the jobs that leave its nodes have ended")]
    rest = len(victims) - VICTIMS_SHOWN_MAX
    names = _names(job, victims[:VICTIMS_SHOWN_MAX]) + (f" and {rest:,} more" if rest > 0 else "")
    wait = preemption.begins_at - now
    when = f" in {duration(wait)}, unless there is room before" if wait > 0 else ""
    have, they = ("has", "it reports") if len(victims) == 1 else ("have", "they report")
    start = f"once {names} {have} ended, after a last checkpoint if {they} any"
    lines = [line("preempts", f"{names}{when}")]
    if wait > 0:
        lines.append(line("", "a job that has just started is not preempted at first"))
    return [*lines, line("may start", start)]


def _placed(job: Job, now: float, note: list[str]) -> str:
    placement = job.status.placement
    nodes = nodes_of(placement)
    state = state_of(job)
    lines = [f"Job {job.metadata.name} has its place: {state}    (for {time_of(job, now)})", ""]
    lines.append(line("where", fold_names(nodes)))
    lines += [*note, *_tested(job)]
    members = job.status.members
    counts = ((members.pending, "starting"), (members.running, "running"),
              (members.succeeded, "succeeded"), (members.failed, "failed"))  # fmt: skip
    parts = [f"{count} {word}" for count, word in counts if count]
    lines.append(line("tasks", f"{tasks_of(job)}" + (f"   ({', '.join(parts)})" if parts else "")))
    if job.is_elastic:
        most = plural(sum(role.count for role in job.spec.roles), "member")
        size = f"{job.least_count} to {most}; each attempt has as many as had room when it began"
        lines.append(line("asked for", size))
    running = find_condition(job.status.conditions, RUNNING)
    if running is not None and running.reason == EndReason.POD_HELD_BACK.value and running.message:
        lines.append(line("held back", f"{running.message}; tried again"))
    if left_of(job, now) != NONE:
        lines.append(line("left", f"{left_of(job, now)} of its time limit"))
    progress = job.status.progress
    if progress is not None:
        kept = (
            "none yet" if progress.checkpoint_step is None else f"step {progress.checkpoint_step}"
        )
        lines.append(line("progress", f"step {progress.step}, checkpoint: {kept}"))
    lines += [*_ignored(job), *_attempts(job, now)]
    return joined(lines)


def _tested(job: Job) -> list[str]:
    """Return that the nodes are being tested before the program, or what was found, and members
    that are slow.
    """
    latest = latest_attempt(job)
    words = checking_words(job) or (tested_words(latest) if latest is not None else "")
    slow = latest.stragglers if latest is not None else ()
    return [
        *([line("nodes", words)] if words else []),
        *(line("slow", straggler_words(each)) for each in slow),
    ]


def _ended(job: Job, now: float, note: list[str]) -> str:
    finished = job.status.finished_at
    ago = f"    ({duration(now - parse_time(finished))} ago)" if finished else ""
    name, state = job.metadata.name, state_of(job)
    lines = [f"Job {name} has ended: {state}{ago}"]
    if state != JobState.SUCCEEDED.value:
        lines += ["", f"  {ending(job)}"]
    lines.append("")
    lines.append(line("ran", _ran(job, now)))
    lines += _tested(job)
    lines += note or [line("logs", f"fairlead logs {name}")]
    lines += [*_ignored(job), *_attempts(job, now)]
    return joined(lines)


def last_lines_text(job: str, member: str, lines: Iterable[str]) -> str:
    """Return what a member wrote last, under a line that says whose it is and how to see all."""
    head = f"  last lines of {member}    (all: fairlead logs {job} --task {member})"
    return joined(["", head, *(f"    {each}" for each in lines)])


def _ran(job: Job, now: float) -> str:
    if job.status.started_at is None:
        return "never"
    return f"{time_of(job, now)}, {plural(job.status.attempt, 'attempt')}"


def _ignored(job: Job) -> list[str]:
    """Return the line of a report that could not be read, and what is expected."""
    progress = job.status.progress
    if progress is None or not progress.ignored_line:
        return []
    expected = '{"step": 1200, "checkpoint": true} or {"metric": "loss", "value": 0.3}'
    text = f"{progress.ignored_line}   (a line of $FAIRLEAD_RUN_FILE is {expected})"
    return [line("ignored", text)]


def _attempts(job: Job, now: float) -> list[str]:
    """Return the latest attempts, when they ended and why; nothing for one that tells no more than
    the state of the job.
    """
    attempts = sorted(job.status.attempts, key=lambda attempt: attempt.number)
    latest = latest_attempt(job)
    if latest is None:
        return []
    is_over = job.is_finished or is_cancelled(job)
    if len(attempts) == 1 and latest.cause is None and (is_over or latest.finished_at is None):
        return []
    lines = ["", "  attempts"]
    for attempt in attempts[-ATTEMPTS_SHOWN_MAX:]:
        resumed = attempt.resumed_from_step
        start = f"from step {resumed}" if resumed is not None else "from the start"
        if attempt.sizes:
            start = f"{plural(sum(attempt.sizes.values()), 'member')}, {start}"
        if attempt.finished_at is None:
            lines.append(f"    {attempt.number}  {start}, goes on")
            continue
        cause = f" [{attempt.cause.value}]" if attempt.cause is not None else ""
        ago = f" {duration(now - parse_time(attempt.finished_at))} ago"
        words = reason_words(attempt.reason, attempt.message) + _given_up(attempt)
        lines.append(f"    {attempt.number}  {start}, ended{ago}{cause}: {words}")
    return lines


def _given_up(attempt: Attempt) -> str:
    """Return the nodes that were lost where they are several: the message names one member."""
    lost = attempt.nodes_lost
    return f"; gave up {fold_names(lost)}" if len(lost) > 1 else ""


def why_facts(
    job: Job, explanation: Explanation | None, owners: Owners = _NO_OWNERS
) -> dict[str, Any]:
    """Return the answer as plain data for -o json and yaml."""
    facts: dict[str, Any] = {
        "job": job.metadata.name,
        "namespace": job.metadata.namespace,
        "state": state_of(job),
    }
    if borrowed := borrowed_nodes(job, owners):
        facts["borrowed"] = borrowed
    if explanation is None:
        return {**facts, "explanation": None, "ending": ending(job)}
    plain = _camel(msgspec.to_builtins(explanation))
    plain["verdict"]["outcome"] = explanation.verdict.outcome.value
    plain["verdict"]["message"] = message_of(explanation.verdict)
    return {**facts, "explanation": plain}


def _camel(value: Any) -> Any:
    """Return the value with its records' keys in camelCase; the facts' names stay as they are."""
    if isinstance(value, dict):
        return {_camel_key(str(k)): v if k == "facts" else _camel(v) for k, v in value.items()}  # pyright: ignore[reportUnknownArgumentType] # plain JSON
    if isinstance(value, (list, tuple)):
        return [_camel(item) for item in value]  # pyright: ignore[reportUnknownVariableType] # plain JSON
    return value


def _camel_key(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(part.capitalize() for part in rest)
