"""scancel: stop jobs, arrays and elements of arrays."""

from __future__ import annotations

import re
import time

from fairlead import terminal
from fairlead.cli.cluster.numbers import find_numbered, parse_number
from fairlead.cli.commands.change import change_reference
from fairlead.cli.connection.common import Common
from fairlead.cli.connection.identity import submitter_name
from fairlead.cli.connection.transport import Api
from fairlead.cli.job_request.arrays import ArrayReference
from fairlead.cli.job_request.change_verbs import CANCEL
from fairlead.cli.slurm_tools.fields import partition_of
from fairlead.cli.slurm_tools.options import GivenOptions, ToolError, ToolOptions
from fairlead.cli.slurm_tools.records import QueueRecord, live_records, parse_ids
from fairlead.cli.slurm_tools.states import parse_state

OPTIONS = ToolOptions(
    "A/account= ~b/batch ~c/ctld ~f/full ~H/hurry i/interactive ~M/clusters= ~/cluster= "
    "/me n/name= /jobname= p/partition= q/qos= Q/quiet R/reservation= s/signal= t/state= u/user= "
    "v/verbose w/nodelist= ~/wckey= ~/cron ~/sibling=",
    {"interactive": "leave it out; squeue shows what would be cancelled"},
)
_THROTTLE = re.compile(r"%\d+")
_KILLING = frozenset(("9", "KILL", "15", "TERM"))


def run(common_: Common, arguments: list[str]) -> int:
    """Cancel what is named, or matches."""
    given = OPTIONS.parse(arguments)
    _check_signal(given)
    api = common_.connect()
    space = common_.space(api.connection.namespace)
    errors: list[str] = []
    operands = [part for each in given.operands for part in each.split(" ") if part]
    if operands:
        for text in operands:
            errors += _cancel(common_, api, space, text)
    elif given.has("user", "me", "name", "jobname", "partition", "account", "state", "nodelist",
                   "reservation"):  # fmt: skip
        for record in live_records(api, space, time.time()):
            if not record.state.is_end and _matches(api, record, given):
                errors += _cancel(common_, api, space, _THROTTLE.sub("", record.id))
    else:
        raise ToolError("No job identification provided")
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
    numbered = parse_number(text)
    parse_ids([text])
    found = find_numbered(api, space, numbered.number) if numbered is not None else None
    if found is None or numbered is None:
        return [f"Kill job error on job id {text}: Invalid job id specified"]
    reference = ArrayReference(found.metadata.name, numbered.indices)
    _, problem = change_reference(common_, api, CANCEL, space=space, reference=reference)
    if problem is None:
        return []
    return [f"Kill job error on job id {text}: {problem.message}"]


def _matches(api: Api, record: QueueRecord, given: GivenOptions) -> bool:
    users = set(given.listed("user")) | ({submitter_name(api)} if given.has("me") else set())
    states = {parse_state(each) for each in given.listed("state")}
    named = given.names("name", "jobname")
    tests = (
        (users, record.user in users),
        (states, record.state in states),
        (named, record.name in named),
        (given.listed("partition"), partition_of(record) in given.listed("partition")),
        (given.listed("nodelist"), bool(set(record.nodes) & set(given.listed("nodelist")))),
        (given.listed("reservation"), record.job.spec.reservation in given.listed("reservation")),
    )
    return all(holds for asked, holds in tests if asked)
