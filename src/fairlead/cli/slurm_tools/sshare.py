"""sshare: the shares of teams, which are Slurm's accounts, and what each uses at present.

Source: the manual page sshare(1), and "Fair Tree" of Slurm. RawShares is the weight of a team;
RawUsage the nodes that its jobs use now, and not a sum over time: shares count what is in use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fairlead.api.resources import TEAMS
from fairlead.api.status import NotFound
from fairlead.cli.cluster.answers import ask_teams
from fairlead.cli.connection.common import Common
from fairlead.cli.script.slurm_names import CLUSTER
from fairlead.cli.slurm_tools.columns import parse_sacct, print_listing
from fairlead.cli.slurm_tools.options import ToolError, ToolOptions
from fairlead.cli.views.teams import with_use

FORMAT = "account,user,rawshares,normshares,rawusage,effectvusage,fairshare"
FORMAT_LONG = "account,user,rawshares,normshares,rawusage,normusage,effectvusage,fairshare,levelfs"
OPTIONS = ToolOptions(
    "A/accounts= ~a/all e/helpformat h/noheader l/long ~M/clusters= ~/cluster= m/partition "
    "~n/ o/format= p/parsable P/parsable2 u/users= ~U/Users ~v/verbose /delimiter= /json? /yaml?",
    {
        "helpformat": "--long shows all columns",
        "partition": "shares are of teams; fairlead quota TEAM",
        "users": "shares are of teams; userLimits of a Team bound its users",
        "json": "fairlead teams -o json",
        "yaml": "fairlead teams -o yaml",
    },
)


@dataclass(frozen=True, slots=True)
class ShareRow:
    """A team: its weight, its part of all weights, and of all nodes that teams use."""

    account: str
    weight: int
    norm: float
    nodes: int
    usage: float
    fair: float = 0.0

    @property
    def level(self) -> float:
        """Shares by use: above 1 a team uses less than its part; "inf" where it uses nothing."""
        return self.norm / self.usage if self.usage else math.inf


def shares_of(teams: Sequence[tuple[str, int, int]]) -> list[ShareRow]:
    """Return the shares of teams, given by name, weight and nodes in use, in the order of names.

    FairShare is the rank by level, the one that uses least for its share first, from 1 down; equal
    levels have the same.
    """
    weights, nodes = sum(team[1] for team in teams), sum(team[2] for team in teams)
    found = [
        ShareRow(name, weight, weight / weights, used, used / nodes if nodes else 0.0)
        for name, weight, used in sorted(teams)
    ]
    levels = sorted(share.level for share in found)
    ranks = {level: (place + 1) / len(found) for place, level in enumerate(levels)}
    return [replace(share, fair=ranks[share.level]) for share in found]


#: Title, width without one in the format, and what it shows.
_FIELDS: Mapping[str, tuple[str, int, Callable[[ShareRow], str]]] = {
    "account": ("Account", 20, lambda share: share.account),
    "user": ("User", 10, lambda _: ""),
    "cluster": ("Cluster", 10, lambda _: CLUSTER),
    "rawshares": ("RawShares", 10, lambda share: str(share.weight)),
    "normshares": ("NormShares", 11, lambda share: f"{share.norm:.6f}"),
    "rawusage": ("RawUsage", 11, lambda share: str(share.nodes)),
    "normusage": ("NormUsage", 11, lambda share: f"{share.usage:.6f}"),
    "effectvusage": ("EffectvUsage", 13, lambda share: f"{share.usage:.6f}"),
    "fairshare": ("FairShare", 10, lambda share: f"{share.fair:.6f}"),
    "levelfs": ("LevelFS", 10, lambda share: f"{share.level:.6f}"),
}


def run(common_: Common, arguments: list[str]) -> int:
    """Show the shares of teams."""
    given = OPTIONS.parse(arguments)
    if given.operands:
        raise ToolError(f"Unrecognized option: {given.operands[0]}")
    text = given.last("format") or (FORMAT_LONG if given.has("long") else FORMAT)
    cells = parse_sacct(text)
    for cell in cells:
        if cell.field not in _FIELDS:
            raise ToolError(f'Invalid field requested: "{cell.field}"')
    chosen = [_FIELDS[cell.field] for cell in cells]
    cells = [
        cell if cell.width else replace(cell, width=width, is_right=title != "Account")
        for cell, (title, width, _) in zip(cells, chosen, strict=True)
    ]
    accounts = given.listed("accounts")
    rows = [
        [value(share) for _, _, value in chosen]
        for share in shares_of(_teams(common_))
        if not accounts or share.account in accounts
    ]
    print_listing(given, cells, [title for title, _, _ in chosen], rows)
    return 0


def _teams(common_: Common) -> list[tuple[str, int, int]]:
    """Return the teams with their weights and the nodes that they use; none without the kind."""
    api = common_.connect()
    try:
        teams = api.list(TEAMS)
    except NotFound:
        return []
    current = ask_teams(api) or {}
    found = [with_use(team, current.get(team.metadata.name)) for team in teams]
    return [
        (each.metadata.name, each.spec.weight,
         each.status.use.nodes_used + each.status.use.nodes_borrowed)
        for each in found
    ]  # fmt: skip
