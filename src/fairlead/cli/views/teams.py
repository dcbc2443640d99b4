"""Teams in words and tables (pure): what is promised, used and borrowed, and what would change."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fairlead.api.cluster.team import Budget, JobLimits, Share, Team, TeamUse
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Node
from fairlead.api.meta import find_condition
from fairlead.api.names import READY
from fairlead.api.validation.validate_team import selector_of
from fairlead.api.values.times import parse_time
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.cli.views.defaults import defaults_of
from fairlead.cli.views.words import reason_words
from fairlead.decide.attempts.usage import gpu_count
from fairlead.decide.verdict import ObjectKey
from fairlead.decide.words import duration, fold_names, plural
from fairlead.model.asks.teams import owner_of
from fairlead.model.gang.job_users import user_of
from fairlead.model.gang.phase import Phase, phase_of
from fairlead.terminal import joined

if TYPE_CHECKING:  # it loads numpy
    from fairlead.decide.teams.whatif import NodeMove, SharesPlan

NONE = "-"
SHOWN_MAX = 10

#: The team of each node that has one.
Owners = Mapping[str, str]

COLUMNS: tuple[Column, ...] = (
    Column("TEAM"),
    Column("SHARE"),
    Column("NODES", Align.RIGHT),
    Column("IN USE", Align.RIGHT),
    Column("LENT", Align.RIGHT),
    Column("BORROWED", Align.RIGHT),
    Column("RUNNING", Align.RIGHT),
    Column("WAITING", Align.RIGHT),
    Column("GPUS", Align.RIGHT, wide_only=True),
    Column("WEIGHT", Align.RIGHT, wide_only=True),
    Column("NAMESPACES", may_cut=True, wide_only=True),
    Column("STATE", may_cut=True),
)


def team_rows(teams: Iterable[Team]) -> list[Row]:
    """Return one row for each team, by name."""
    rows: list[Row] = []
    for team in sorted(teams, key=_name):
        status, use = team.status, team.status.use
        counts = (status.nodes, use.nodes_used, use.nodes_lent, use.nodes_borrowed,
                  use.jobs_placed, use.jobs_waiting, use.gpus, team.spec.weight)  # fmt: skip
        namespaces = ", ".join(team.spec.namespaces) or NONE
        rows.append(
            (_name(team), _promised(team), *(f"{n:,}" for n in counts), namespaces, _state(team))
        )
    return rows


def with_use(team: Team, use: TeamUse | None) -> Team:
    """Return a team with what it uses now; None: as its status has it."""
    if use is None:
        return team
    use = replace(use, intruders=team.status.use.intruders)
    return replace(team, status=replace(team.status, use=use))


def age_note(teams: Iterable[Team], now: float) -> str:
    """Return how old the numbers of these teams are, the oldest of them; "" where none says it.

    They are written when they change, some seconds later.
    """
    taken = [team.status.use.as_of for team in teams]
    ages = [max(now - parse_time(at), 0.0) for at in taken if at is not None]
    if not ages:
        return ""
    return f"note: as of {duration(max(ages))} ago, as no controller answers"


def _name(team: Team) -> str:
    return team.metadata.name


def _promised(team: Team) -> str:
    """Return the amounts of all shares together: "8 nodes", "64 GPUs", both, or "-"."""
    nodes = sum(share.nodes or 0 for share in team.spec.shares)
    gpus = sum(share.gpus or 0 for share in team.spec.shares)
    parts = [plural(nodes, "node")] if nodes else []
    parts += [plural(gpus, "GPU")] if gpus else []
    return ", ".join(parts) or NONE


def _state(team: Team) -> str:
    condition = find_condition(team.status.conditions, READY)
    if condition is None:
        return "not seen by the teams controller"
    words, intruders = reason_words(condition.reason, condition.message), team.status.use.intruders
    return f"{words}; {plural(intruders, 'intruder')}" if intruders else words


def owners_of(nodes: Iterable[Node]) -> Owners:
    """Return whose each node is."""
    found = ((node.metadata.name, owner_of(node.spec.taints)) for node in nodes)
    return {node: team for node, team in found if team}


def borrowed_nodes(job: Job, owners: Owners) -> dict[str, list[str]]:
    """Return the nodes of other teams on which a job has places, by team, both sorted."""
    placement = job.status.placement
    if placement is None or job.is_finished:
        return {}
    found = defaultdict[str, list[str]](list)
    for node in sorted(set(nodes_of(placement))):
        if owners.get(node, placement.team) != placement.team:
            found[owners[node]].append(node)
    return dict(sorted(found.items()))


def borrowing_words(job: Job, owners: Owners) -> str:
    """Return e.g. "vision, borrows 2 nodes of speech (v00001-v00002)"; "" for a job of no team."""
    placement = job.status.placement
    if placement is None:
        return ""
    parts = [placement.team] if placement.team else []
    parts += [
        f"borrows {plural(len(nodes), 'node')} of {team} ({fold_names(nodes)}), which may "
        f"have {'it' if len(nodes) == 1 else 'them'} back"
        for team, nodes in borrowed_nodes(job, owners).items()
    ]
    return ", ".join(parts)


def quota_text(team: Team, jobs: Sequence[Job], owners: Owners | None) -> str:
    """Return what a team was promised and has, line by line, and which jobs borrow.

    `owners` None: who uses its nodes is not known.
    """
    spec, status, use = team.spec, team.status, team.status.use
    lines = [f"Team {_name(team)}: {_state(team)}", ""]
    for number, share in enumerate(spec.shares):
        has = status.shares[number] if number < len(status.shares) else None
        words = f"{_promised_share(share)} of {_selected(share)}"
        if has is not None:
            lack = has.nodes_missing or has.gpus_missing
            what = "node" if has.nodes_missing else "GPU"
            words += f"; has {plural(has.nodes, 'node')} with {plural(has.gpus, 'GPU')}"
            words += f", lacks {plural(lack, what)}" if lack else ""
        lines.append(_line("share" if number == 0 else "", words))
    if not spec.shares:
        lines.append(_line("share", "none: its jobs run on nodes without a team, or borrow"))
    lines.append(_line("in use", f"{use.nodes_used} of {plural(status.nodes, 'own node')}"))
    if use.intruders:
        may_not = f"{plural(use.intruders, 'pod')} that may not be on its nodes"
        what = spec.intruders.value.lower()
        lines.append(_line("intruders", f"{may_not} ({what}): kubectl describe team {_name(team)}"))
    lines += _lent_lines(team, jobs, owners or {})
    lines.append(_line("jobs", _job_counts(team, jobs)))
    lines += _limit_lines(team, jobs)
    if spec.budget.gpu_hours is not None:
        lines.append(_line("budget", _budget_words(spec.budget, use.gpu_hours)))
    if defaults := defaults_of(spec.job_defaults):
        lines.append(_line("defaults", defaults))
    if (most := spec.job_maxima.time_limit_seconds) is not None:
        lines.append(_line("maxima", f"time limit {duration(most)}"))
    past = use.dominant_share_seconds / spec.weight / 3600
    lines.append(
        _line("fair share", f"weight {spec.weight}; used {past:,.1f} h of the cluster per weight")
    )
    return joined(lines)


def _job_counts(team: Team, jobs: Sequence[Job]) -> str:
    """Return how many jobs of a team have nodes and wait: of those given, else by its status."""
    own = [job for job in jobs if not job.is_finished and is_of_team(job, team)]
    use = team.status.use
    if not own:
        return f"{use.jobs_placed} with nodes, {use.jobs_waiting} waiting"
    placed = sum(job.status.placement is not None for job in own)
    waiting = sum(phase_of(job) is Phase.QUEUED for job in own)
    rest = len(own) - placed - waiting
    outside = f", {rest} outside of the queue" if rest else ""
    return f"{placed} with nodes, {waiting} waiting{outside}"


def _lent_lines(team: Team, jobs: Sequence[Job], owners: Owners) -> list[str]:
    spec, use, name = team.spec, team.status.use, _name(team)
    lent: list[str] = []
    borrowed: list[str] = []
    for job in sorted(jobs, key=lambda job: job.metadata.key):
        placement, of = job.status.placement, borrowed_nodes(job, owners)
        key = "/".join(job.metadata.key)
        if name in of:
            by = f" of {placement.team}" if placement is not None and placement.team else ""
            lent.append(f"{key}{by}: {fold_names(of[name])}")
        if placement is not None and placement.team == name:
            borrowed += [f"{key}, of {other}: {fold_names(n)}" for other, n in of.items()]
    to_pods = use.nodes_lent_to_pods
    if to_pods:
        lent.insert(0, f"{plural(to_pods, 'node')} used by pods only, which are not preempted")
    return [
        _line("lent", _limited(use.nodes_lent, spec.lend_limit_nodes)),
        *_shown(lent),
        _line("borrowed", _limited(use.nodes_borrowed, spec.borrow_limit_nodes)),
        *_shown(borrowed),
        _line("", f"jobs of priority {spec.borrow_priority_max} and below may borrow"),
    ]


def _limit_lines(team: Team, jobs: Sequence[Job]) -> list[str]:
    """Return the limits of the team's jobs and of each user's, and who has reached one."""
    spec, use = team.spec, team.status.use
    has = (use.jobs_placed, use.jobs_waiting, use.jobs_submitted, use.gpus)
    of_team = [
        f"{count:,} of at most {plural(limit, noun)}"
        for (limit, noun), count in zip(_limits(spec.limits), has, strict=True)
        if limit is not None
    ]
    of_user = [plural(limit, noun) for limit, noun in _limits(spec.user_limits)
               if limit is not None]  # fmt: skip
    lines = [_line("limits", ", ".join(of_team))] if of_team else []
    if not of_user:
        return lines
    lines.append(_line("each user", f"at most {', '.join(of_user)}"))
    users: dict[str, list[int]] = {}
    for job in jobs:
        if job.is_finished or not is_of_team(job, team):
            continue
        user = user_of(job.metadata, job.spec.adopts)
        counts = users.setdefault(user, [0, 0, 0, 0])
        holds = job.status.placement is not None
        gpus = gpu_count(job) if holds else 0
        for number, count in enumerate((holds, phase_of(job) is Phase.QUEUED, 1, gpus)):
            counts[number] += count
    reached = [
        f"{user or '(unknown)'}: {count:,} of {plural(limit, noun)}"
        for user, counts in sorted(users.items())
        for (limit, noun), count in zip(_limits(spec.user_limits), counts, strict=True)
        if limit is not None and count >= limit
    ]
    return [*lines, *_shown(reached)]


def _budget_words(budget: Budget, used: float) -> str:
    """Return what is used of a budget, and by when it is there again if no job runs."""
    limit, days = budget.gpu_hours or 0, budget.half_life_days
    halved = f"halved every {plural(days, 'day')}"
    words = f"{used:,.1f} of {plural(limit, 'GPU-hour')}, {halved}"
    if used < limit:
        return words
    if not limit:
        return f"{words}: no job with GPUs starts"
    back = duration(days * 86_400 * math.log2(used / limit))
    return f"{words}: jobs with GPUs start again in {back} if none runs"


def _limits(limits: JobLimits) -> tuple[tuple[int | None, str], ...]:
    """Return each limit, and what it counts."""
    return (
        (limits.running, "running job"), (limits.waiting, "waiting job"),
        (limits.submitted, "unfinished job"), (limits.gpus, "GPU"),
    )  # fmt: skip


def is_of_team(job: Job, team: Team) -> bool:
    """True for a job that counts for the team: by its place, else by its namespace and spec."""
    placement = job.status.placement
    if placement is not None:
        return placement.team == _name(team)
    is_of_namespace = job.metadata.namespace in team.spec.namespaces
    return is_of_namespace and job.spec.team in ("", _name(team))


def _shown(texts: Sequence[str]) -> list[str]:
    """Return the first of many lines, and how many more there are."""
    lines = [_line("", text) for text in texts[:SHOWN_MAX]]
    more = len(texts) - SHOWN_MAX
    return [*lines, _line("", f"and {more:,} more")] if more > 0 else lines


def _limited(count: int, limit: int | None) -> str:
    words = plural(count, "node")
    return words if limit is None else f"{words} of at most {limit}"


def _promised_share(share: Share) -> str:
    if share.gpus is not None:
        return plural(share.gpus, "GPU")
    return plural(share.nodes or 0, "node")


def _selected(share: Share) -> str:
    return ",".join(f"{k}={v}" for k, v in sorted(selector_of(share).items())) or "any node"


def _line(label: str, text: str) -> str:
    return f"  {label:<12}{text}".rstrip()


# What would change


def plan_text(plan: SharesPlan, before: Sequence[Team], after: Sequence[Team]) -> str:
    """Return what other shares would change, line by line."""
    lines = [*_team_changes(before, after)]
    if plan.held_back:
        lines.append(f"No node would change hands: {plan.held_back}")
    elif not plan.moves:
        lines.append("No node would change hands")
    else:
        lines.append(f"{plural(len(plan.moves), 'node')} would change hands:")
        lines += [f"  {text}" for text in _moves(plan.moves)]
    for team, shares in sorted(plan.results.items()):
        lack = [plural(n, "node") for n in (sum(s.nodes_missing for s in shares),) if n]
        lack += [plural(n, "GPU") for n in (sum(s.gpus_missing for s in shares),) if n]
        if lack:
            lines.append(f"Team {team} would lack {' and '.join(lack)}: no healthy node is left")
    lines += _jobs("would borrow the nodes on which they run", plan.borrowers)
    reclaimed = [f"{_key(r.victim)}, for {_key(r.beneficiary)}" for r in plan.reclaimed]
    lines += _listed("would be preempted at once", reclaimed)
    lines += _jobs("would start at once", plan.started)
    lines += _jobs("would wait: their team is not open to them any more", plan.teamless)
    return joined(lines)


def _team_changes(before: Sequence[Team], after: Sequence[Team]) -> list[str]:
    old, new = ({_name(t): t for t in teams} for teams in (before, after))
    lines: list[str] = []
    for name in sorted({*old, *new}):
        if name not in old:
            lines.append(f"Team {name} would be new, with {_share_words(new[name])}")
        elif name not in new:
            lines.append(f"Team {name} would be gone: it has {_share_words(old[name])}")
        elif old[name].spec != new[name].spec:
            was, becomes = _share_words(old[name]), _share_words(new[name])
            words = f"{becomes} instead of {was}" if was != becomes else f"keeps {was}"
            lines.append(f"Team {name} would change: {words}")
    return lines or ["No team would change"]


def _share_words(team: Team) -> str:
    promised = _promised(team)
    return "no share" if promised == NONE else promised


def _moves(moves: Sequence[NodeMove]) -> list[str]:
    grouped = defaultdict[tuple[str, str], list[str]](list)
    for move in moves:
        grouped[move.before, move.after].append(move.node)
    return [
        f"{before or 'no team'} -> {after or 'no team'}: {fold_names(sorted(nodes))}"
        for (before, after), nodes in sorted(grouped.items())
    ]


def _key(key: ObjectKey) -> str:
    return "/".join(key)


def _jobs(what: str, keys: Sequence[ObjectKey]) -> list[str]:
    return _listed(what, [_key(key) for key in keys])


def _listed(what: str, texts: Sequence[str]) -> list[str]:
    if not texts:
        return []
    more = len(texts) - SHOWN_MAX
    lines = [f"{plural(len(texts), 'job')} {what}:", *(f"  {text}" for text in texts[:SHOWN_MAX])]
    return [*lines, f"  and {more:,} more"] if more > 0 else lines
