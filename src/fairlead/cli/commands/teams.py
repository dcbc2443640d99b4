"""`teams` and `quota`: who has how much of the cluster, and what other shares would change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from fairlead.api import names
from fairlead.api.cluster.team import Team
from fairlead.api.meta import to_wire
from fairlead.api.resources import CONFIG_MAPS, JOBS, NODES, TEAMS
from fairlead.api.status import Forbidden, NotFound
from fairlead.cli.cluster.answers import ask_teams
from fairlead.cli.cluster.cluster_settings import settings_or_defaults
from fairlead.cli.commands.teams_import import NAMESPACES_NOTE, teams_of
from fairlead.cli.connection.common import Common, Format, common, dump, now
from fairlead.cli.connection.transport import Api
from fairlead.cli.submitting.manifest import Document, parse_manifest, read_bytes
from fairlead.cli.views.teams import (
    COLUMNS,
    age_note,
    owners_of,
    plan_text,
    quota_text,
    team_rows,
    with_use,
)
from fairlead.input.errors import CliError, Code, Problem, fail
from fairlead.input.suggest import nearest

_NO_KIND = ("fairlead install brings the kinds; docs/operations/teams.md shows a Team",)


@click.group(
    invoke_without_command=True,
    epilog="""Examples:

    \b
      fairlead teams                       shares, what is in use, lent and borrowed
      fairlead teams -o wide
      fairlead quota vision                one team in detail
      fairlead teams plan -f teams.yaml    what would change, before kubectl apply
      fairlead teams import -f table.yaml  Team objects from a table of (selector, team, amount)
    """,
)
@common()
def teams(common_: Common) -> None:
    """Show teams: their shares, and what they use.

    NODES are the healthy nodes that the team has. IN USE are those that its own jobs and pods use,
    LENT those that others use; BORROWED are nodes of other teams that it uses.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    api = common_.connect()
    if common_.is_structured:
        common_.structured(api.list(TEAMS.raw))
        return
    found = _teams(api)
    if common_.format is Format.NAME:
        common_.lines(team.metadata.name for team in found)
        return
    found = _with_current_use(common_, api, found)
    common_.table(COLUMNS, team_rows(found), empty="no teams; docs/operations/teams.md shows one")


@click.command(
    epilog="""Examples:

    \b
      fairlead quota vision
      fairlead quota vision -o json
    """
)
@click.argument("team")
@common()
def quota(common_: Common, *, team: str) -> None:
    """Show what a team was promised, has and uses.

    With the jobs that borrow its nodes, and those of its own that borrow.
    """
    api = common_.connect()
    found = _team(api, team)
    if common_.is_structured:
        common_.data({**TEAMS_HEAD, **to_wire(found)})
        return
    if common_.format is Format.NAME:
        common_.emit(f"{found.metadata.name}\n")
        return
    [found] = _with_current_use(common_, api, [found])
    try:
        jobs, owners = api.list(JOBS), owners_of(api.list(NODES))
    except Forbidden:
        common_.note("note: you may not list nodes and jobs, so those that borrow are not shown")
        jobs, owners = (), {}
    common_.emit(quota_text(found, jobs, owners))


TEAMS_HEAD = {"apiVersion": names.API_VERSION, "kind": "Team"}


@teams.command()
@click.option("-f", "--file", metavar="FILE", required=True, help='Teams to be; "-": stdin.')
@click.option("--prune", is_flag=True, help="Teams that are not in the file would be gone.")
@common()
def plan(common_: Common, *, file: str, prune: bool) -> None:
    """Show what other teams would change: nodes that change hands, jobs that are preempted.

    Nothing is changed. The assignment of the teams controller and one decision of the planner are
    made on what the cluster is now.
    """
    # numpy is loaded by the commands that plan, not by those that list.
    from fairlead.cli.cluster.objects import read_objects
    from fairlead.decide.teams.policy import TeamsPolicy
    from fairlead.decide.teams.whatif import plan_shares

    given = {team.metadata.name: team for team in _read_teams(file)}
    api = common_.connect()
    before = {team.metadata.name: team for team in _teams(api)}
    merged = given if prune else {**before, **given}
    after = [
        msgspec.structs.replace(team, status=before[name].status) if name in before else team
        for name, team in sorted(merged.items())
    ]
    settings = settings_or_defaults(common_, api)
    shares = TeamsPolicy(**msgspec.structs.asdict(settings.teams))
    planner = settings.placement_policy()
    found = plan_shares(
        read_objects(api), after, now(), shares=shares, planner=planner, levels=settings.levels()
    )
    if common_.is_structured:
        common_.data(msgspec.to_builtins(found))
        return
    common_.emit(plan_text(found, list(before.values()), after))


@teams.command("import")
@click.option("-f", "--file", metavar="FILE", default="", help='A ConfigMap; "-": stdin.')
@click.argument("configmap", metavar="[NAME]", default="")
@common()
def import_(common_: Common, *, file: str, configmap: str) -> None:
    """Print Teams that promise what a ConfigMap of (node selector, team, amount) tuples does.

    Of a file, or of the ConfigMap of this name in the namespace. Each value of its data is a YAML
    or JSON list of tuples: [SELECTOR, TEAM, NODES], or mappings with selector, team and nodes or
    gpus. Nothing is stored: review the Teams, see `fairlead teams plan -f -`, then kubectl apply.
    """
    if bool(file) == bool(configmap):
        raise fail(Code.BAD_COMBINATION, "give the name of a ConfigMap, or -f FILE")
    if file:
        data, source = _config_map(file), file
    else:
        api = common_.connect()
        space = common_.space(api.connection.namespace)
        source = f"{space}/{configmap}"
        try:
            data = api.get(CONFIG_MAPS, configmap, namespace=space).data
        except NotFound as error:
            raise fail(Code.BAD_VALUE, f"there is no ConfigMap '{source}'") from error
    found = [{**TEAMS_HEAD, **body} for body in teams_of(data, source)]
    chosen = Format.JSON if common_.format is Format.JSON else Format.YAML
    value = {"apiVersion": "v1", "kind": "List", "items": found}
    common_.emit(dump(value, chosen))
    common_.note(NAMESPACES_NOTE)


def _teams(api: Api) -> Sequence[Team]:
    try:
        return api.list(TEAMS)
    except NotFound as error:
        raise fail(Code.UNKNOWN_KIND, "the cluster has no teams", help=_NO_KIND) from error


def _with_current_use(common_: Common, api: Api, teams: Sequence[Team]) -> Sequence[Team]:
    """Return the teams with what they use now; as their status has it where nobody else says it,
    with a note of how old that is.
    """
    uses = ask_teams(api) if teams else {}
    if uses is not None:
        return [with_use(team, uses.get(team.metadata.name)) for team in teams]
    if note := age_note(teams, now()):
        common_.note(note)
    return teams


def _team(api: Api, name: str) -> Team:
    try:
        return api.get(TEAMS, name)
    except NotFound as error:
        known = [team.metadata.name for team in _teams(api)]
        near = nearest(name, known)
        help_ = (f"fairlead quota {near}",) if near else ("fairlead teams",)
        raise fail(Code.BAD_VALUE, f"there is no team '{name}'", help=help_) from error


def _read_teams(file: str) -> list[Team]:
    documents = _documents(file)
    found = [msgspec.convert(d.body, Team) for d in documents if d.resource == TEAMS]
    if documents and not found:
        first = documents[0]
        where = f"{first.file}:{first.marks.mark.line}:{first.marks.mark.column}"
        message = f"the file has no Team; its first object is {first.resource.kind} {first.name}"
        raise CliError(Problem(Code.WRONG_KIND, message, where=where))
    return found


def _config_map(file: str) -> dict[str, str]:
    documents = _documents(file)
    if len(documents) != 1 or documents[0].resource.kind != "ConfigMap":
        raise CliError(Problem(Code.BAD_FIELD, "expected one ConfigMap", where=file))
    data: Any = documents[0].body.get("data") or {}
    return dict(data)


def _documents(file: str) -> tuple[Document, ...]:
    documents, problems = parse_manifest(read_bytes(file), "stdin" if file == "-" else file)
    if problems:
        raise CliError(problems)
    return documents
