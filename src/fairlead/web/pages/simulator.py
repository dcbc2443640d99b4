"""The simulator: a load under two policies, side by side.

A question is an address: its preview says what would run, and within which limits.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from fairlead.charts import ChartLook, Series, distribution_chart, line_chart, percent
from fairlead.decide.words import duration
from fairlead.sim.scenarios.figures import cells
from fairlead.sim.scenarios.scenario import POLICIES
from fairlead.web.pages.site import AskedPath, NoSuchPage, Site
from fairlead.web.render import Page, link
from fairlead.web.simulator import (
    DAYS_MAX,
    DRAWN,
    JOBS_MAX,
    NODES_MAX,
    SEED_MAX,
    SPANS,
    PolicyRun,
    Simulation,
    SimulationLimits,
    SimulationQuestion,
    Simulations,
    SimulationState,
)

_DEFAULTS = ("default", "fifo")
_NODES, _DAYS, _JOBS = 50, 1, 500
_TEAMS_MAX = 30
#: Of the page while a simulation runs.
_SECONDS = 2.0
_HOUR = 3_600


class TeamRow(NamedTuple):
    """A team: for each policy its GPU-hours, their share in percent, and its mean wait."""

    name: str
    cells: Sequence[tuple[str, float, str]]


async def simulator_page(site: Site, asked: AskedPath) -> Page:
    """Return the page: the form, what runs, and what the last one came to."""
    found = site.simulations.latest if site.simulations is not None else None
    question = question_of(asked) if asked.query or found is None else found.question
    values = {
        "may": site.simulations is not None, "loads": _loads(), "policies": tuple(POLICIES),
        "question": question, "found": found, "limits": _limits(site),
        "commands": _commands(site, found.question) if found is not None else (),
        "now": site.cluster.clock.now(),
        **_shown(found),
    }  # fmt: skip
    command = _run_command(question)
    is_running = found is not None and found.state is SimulationState.RUNNING
    seconds = _SECONDS if is_running else 10.0
    return Page("simulator.html", "Simulator", values, command, "simulator", seconds=seconds)


def simulation_page(site: Site, asked: AskedPath, csrf: str, refusal: str = "") -> Page:
    """Return the preview of a simulation, or of the end of one, or why it was refused; NoSuchPage
    where none may be run.
    """
    simulations_of(site)
    question, is_stop = question_of(asked), asked.path[1:] == ("stop",)
    why_not = refusal or ("" if is_stop else _mistake(question))
    back = link(
        "simulator", load=question.load, a=question.policies[0], b=question.policies[1],
        nodes=question.nodes, days=question.days, jobs=question.jobs, seed=question.seed,
    )  # fmt: skip
    values = {
        "question": question, "is_stop": is_stop, "refusal": why_not, "csrf": csrf,
        "commands": _commands(site, question), "limits": _limits(site),
        "action": link(*asked.path), "back": "/simulator" if is_stop else back,
    }  # fmt: skip
    command = _run_command(question)
    status = 409 if refusal else 200
    return Page("simulation.html", "Simulate", values, command, "simulator", status=status)


def simulations_of(site: Site) -> Simulations:
    """Return what runs simulations; NoSuchPage on a page for the users of a cluster."""
    if site.simulations is None:
        raise NoSuchPage("simulations run on a machine of your own: fairlead web there")
    return site.simulations


def act_on_simulation(site: Site, asked: AskedPath, form: AskedPath) -> str:
    """Start or stop what was confirmed; return why not, "" where it is done. NoSuchPage."""
    simulations = simulations_of(site)
    if asked.path[1:] == ("stop",):
        simulations.stop()
        return ""
    question = question_of(form)
    return _mistake(question) or simulations.start(question)


def question_of(given: AskedPath) -> SimulationQuestion:
    """Return what a query or a form asks for; what it says wrongly is as if it were not said."""
    first, second = (given.text(name) or own for name, own in zip("ab", _DEFAULTS, strict=True))
    load = given.text("load")
    return SimulationQuestion(
        load if load in SPANS else DRAWN,
        (first if first in POLICIES else _DEFAULTS[0], second if second in POLICIES else "fifo"),
        given.number("nodes", NODES_MAX) or _NODES, given.number("days", DAYS_MAX) or _DAYS,
        given.number("jobs", JOBS_MAX) or _JOBS, given.number("seed", SEED_MAX),
    )  # fmt: skip


def _mistake(question: SimulationQuestion) -> str:
    first, second = question.policies
    return "Two different policies are compared: choose another one." if first == second else ""


def _loads() -> list[tuple[str, str]]:
    recorded = [(span, f"recorded: this cluster, last {span}") for span in SPANS]
    return [(DRAWN, "an example: 500 drawn jobs a day"), *recorded]


def _limits(site: Site) -> SimulationLimits:
    return site.simulations.limits if site.simulations is not None else SimulationLimits()


def _commands(site: Site, question: SimulationQuestion) -> list[str]:
    """Return the equal commands, in their order."""
    where = shlex.split(site.where)
    return [shlex.join(("fairlead", *command)) for command in question.commands(where)]


def _run_command(question: SimulationQuestion) -> str:
    """Return the command of the first of the two runs."""
    first = next(each for each in question.commands() if each[1] == "run")
    return shlex.join(("fairlead", *first))


def _shown(found: Simulation | None) -> dict[str, object]:
    """Return the parts of a result."""
    result = found.result if found is not None else None
    if result is None:
        return {"names": (), "figures": (), "charts": (), "teams": (), "early": ()}
    runs = result.runs
    rows = [_team_row(name, runs) for name in _teams(runs)]
    return {
        "names": [group.name for group in result.groups], "figures": cells(result.groups),
        "charts": _charts(runs), "teams": rows if len(rows) > 1 else (),
        "early": [run.policy for run in runs if not run.is_complete],
    }  # fmt: skip


def _charts(runs: Sequence[PolicyRun]) -> list[Markup]:
    """Return the charts, whose texts `charts` has escaped. Samples of both runs are on one grid:
    the same load has the same instants.
    """
    longest = max((run.busy for run in runs), key=len, default=())
    at = [instant for instant, _ in longest]
    series = [
        Series(run.policy, [*(share for _, share in run.busy), *[None] * (len(at) - len(run.busy))])
        for run in runs
    ]
    drawn = (
        line_chart("GPUs that run jobs", at, series, ChartLook(high=1.0, form=percent)),
        distribution_chart(
            "Jobs that had started after so long", [(run.policy, run.waits) for run in runs]
        ),
    )
    return [Markup(each) for each in drawn]  # noqa: S704


def _teams(runs: Sequence[PolicyRun]) -> list[str]:
    """Return the teams with the most GPU-hours in the first run."""
    first = runs[0].teams
    return sorted(first, key=lambda name: (-first[name].gpu_seconds, name))[:_TEAMS_MAX]


def _team_row(name: str, runs: Sequence[PolicyRun]) -> TeamRow:
    found: list[tuple[str, float, str]] = []
    for run in runs:
        team = run.teams.get(name)
        total = sum(each.gpu_seconds for each in run.teams.values())
        if team is None:
            found.append(("-", 0.0, "-"))
            continue
        wait = "-" if team.wait_seconds is None else duration(team.wait_seconds)
        share = 100 * team.gpu_seconds / total if total else 0.0
        found.append((f"{team.gpu_seconds / _HOUR:,.0f}", share, wait))
    return TeamRow(name or "no team", found)
