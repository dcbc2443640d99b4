"""scancel: stop jobs, arrays and elements of arrays."""

from __future__ import annotations

import re
import time

from fairlead import terminal
from fairlead.cli.cluster.numbers import find_numbered, parse_number
from fairlead.cli.commands.change import change_reference
from fairlead.cli.connection.common import Common
from fairlead.cli.connection.transport import Api
from fairlead.cli.job_request.arrays import ArrayReference
from fairlead.cli.job_request.change_verbs import CANCEL
from fairlead.cli.slurm_tools.matching import matches, users_of
from fairlead.cli.slurm_tools.options import GivenOptions, ToolError, ToolOptions
from fairlead.cli.slurm_tools.records import (
    QueueRecord,
    live_records,
    one_component_refused,
    parse_ids,
)
from fairlead.cli.slurm_tools.states import parse_state

OPTIONS = ToolOptions(
    "A/account= ~b/batch ~c/ctld ~f/full ~H/hurry i/interactive ~M/clusters= ~/cluster= "
    "/me n/name= /jobname= p/partition= q/qos= Q/quiet R/reservation= s/signal= t/state= u/user= "
    "~v/verbose w/nodelist= ~/wckey= ~/cron ~/sibling=",
    {"interactive": "leave it out; squeue shows what would be cancelled"},
)
_THROTTLE = re.compile(r"%\d+")
#: Options that choose among jobs.
_FILTERS = (
    "user", "me", "name", "jobname", "partition", "account", "qos", "state", "nodelist",
    "reservation",
)  # fmt: skip
_KILLING = frozenset(("9", "KILL", "15", "TERM"))


def run(common_: Common, arguments: list[str]) -> int:
    """Cancel what is named, or matches."""
    given = OPTIONS.parse(arguments)
    _check_signal(given)
    api = common_.connect()
    space = common_.space(api.connection.namespace)
    errors: list[str] = []
    operands = [part for each in given.operands for part in each.split(" ") if part]
    if not operands and not given.has(*_FILTERS):
        raise ToolError("No job identification provided")
    if given.has(*_FILTERS):
        operands = _matching(api, space, given, operands)
    for text in operands:
        errors += _cancel(common_, api, space, text)
    if errors and not given.has("quiet"):
        for error in errors:
            terminal.tell(f"scancel: error: {error}")
    return 1 if errors else 0


def _check_signal(given: GivenOptions) -> None:
    signal = given.last("signal").upper().removeprefix("SIG")
    if signal and signal not in _KILLING:
        raise ToolError(
            f"signal {signal} cannot be sent: members get SIGTERM, and SIGKILL after their grace "
            "period"
        )


def _cancel(common_: Common, api: Api, space: str, text: str) -> list[str]:
    """Cancel one job, array or part of one; return why not."""
    if why := one_component_refused(api, space, text):
        return [f"Kill job error on job id {text}: {why}"]
    numbered = parse_number(text)
    found = find_numbered(api, space, numbered.number) if numbered is not None else None
    if found is None or numbered is None:
        return [f"Kill job error on job id {text}: Invalid job id specified"]
    reference = ArrayReference(found.metadata.name, numbered.indices)
    _, problem = change_reference(common_, api, CANCEL, space=space, reference=reference)
    if problem is None:
        return []
    return [f"Kill job error on job id {text}: {problem.message}"]


def _matching(api: Api, space: str, given: GivenOptions, operands: list[str]) -> list[str]:
    """Return the ids of what matches, among the named ones if there are any; ToolError."""
    users = users_of(api, given)
    states = {parse_state(each) for each in given.listed("state")}
    live = [each for each in live_records(api, space, time.time()) if not each.state.is_end]
    found: list[str] = []
    for text in operands or [""]:
        ids = parse_ids([text]) if text else []
        named = [each for each in live if not ids or each.is_called(ids)]
        chosen = [
            each for each in named
            if (not states or each.state in states) and matches(each, given, users)
        ]  # fmt: skip
        if text and len(chosen) == len(named):
            found.append(text)
        elif "_" in text and any("[" in each.id for each in chosen):
            raise ToolError(f"only some of {text} match: name the tasks that are to be cancelled")
        else:
            found += [_THROTTLE.sub("", _whole_id(each)) for each in chosen]
    return list(dict.fromkeys(found))


def _whole_id(record: QueueRecord) -> str:
    """Return the id of what ends: of a component its job."""
    return record.id if record.offset is None else str(record.number)
