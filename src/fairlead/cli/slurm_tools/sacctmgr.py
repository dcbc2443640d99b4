"""sacctmgr: the accounts that a job can be charged to, which are teams. It changes nothing.

Snakemake and Open OnDemand ask for the accounts of a user before they submit. Every team is listed:
for which one a job counts follows from its namespace, not from its user.

Source: the manual page sacctmgr(1).
"""

from __future__ import annotations

from dataclasses import replace

from fairlead.api.resources import TEAMS
from fairlead.api.status import NotFound
from fairlead.cli.connection.common import Common
from fairlead.cli.connection.identity import local_user
from fairlead.cli.script.slurm_names import CLUSTER
from fairlead.cli.slurm_tools.columns import parse_sacct, print_listing
from fairlead.cli.slurm_tools.options import ToolError, ToolOptions

OPTIONS = ToolOptions(
    "~i/immediate n/noheader p/parsable P/parsable2 ~Q/quiet ~r/readonly ~s/associations "
    "~v/verbose /json? /yaml?",
    {"json": "fairlead teams -o json", "yaml": "fairlead teams -o yaml"},
)
#: What is listed, by the least that its name may be cut to; the columns without `format=`.
_LISTED = {"user": "user,account", "acc": "account", "assoc": "cluster,account,user,qos"}
_TITLES = {
    "account": "Account", "user": "User", "cluster": "Cluster", "qos": "QOS",
    "defaultaccount": "Def Acct",
}  # fmt: skip
_WIDTH = 10


def run(common_: Common, arguments: list[str]) -> int:
    """List the accounts of users, accounts or associations."""
    given = OPTIONS.parse(arguments)
    verb, *rest = given.operands or [""]
    if verb.lower() not in ("show", "list"):
        raise ToolError(
            f"invalid keyword: {verb}",
            "what there is: sacctmgr show user|account|association; teams are changed with kubectl",
        )
    kind, *words = rest or [""]
    text = next((each for name, each in _LISTED.items() if kind.lower().startswith(name)), "")
    if not text:
        raise ToolError(f"invalid keyword: {kind}", "what there is: user, account, association")
    values = {name.lower(): value for name, is_one, value in (w.partition("=") for w in words)
              if is_one}  # fmt: skip
    cells = parse_sacct(values.get("format", text))
    for cell in cells:
        if cell.field not in _TITLES:
            raise ToolError(f"Unknown field '{cell.field}'")
    cells = [cell if cell.width else replace(cell, width=_WIDTH) for cell in cells]
    fixed = {"user": values.get("user", local_user()), "cluster": CLUSTER}
    rows = [
        [fixed.get(cell.field, "" if cell.field == "qos" else team) for cell in cells]
        for team in _teams(common_)
    ]
    print_listing(given, cells, [_TITLES[cell.field] for cell in cells], rows)
    return 0


def _teams(common_: Common) -> list[str]:
    """Return the names of all teams; none without the kind."""
    try:
        return sorted(team.metadata.name for team in common_.connect().list(TEAMS))
    except NotFound:
        return []
