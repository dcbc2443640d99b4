"""scancel: stop jobs, arrays and elements of arrays, or send signals to what runs of them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from fairlead import terminal
from fairlead.cli.cluster.numbers import find_numbered, parse_number
from fairlead.cli.commands.change import change_reference
from fairlead.cli.connection.common import Common
from fairlead.cli.connection.transport import Api
from fairlead.cli.job_request.arrays import ArrayReference
from fairlead.cli.job_request.change_verbs import CANCEL
from fairlead.cli.slurm_tools.job_signals import JobSignal, asked_signal, send, step_of, to_step
from fairlead.cli.slurm_tools.matching import matches, users_of
from fairlead.cli.slurm_tools.options import GivenOptions, ToolError, ToolOptions
from fairlead.cli.slurm_tools.records import (
    QueueRecord,
    live_records,
    one_component_refused,
    parse_ids,
)
from fairlead.cli.slurm_tools.states import SlurmState, parse_state

OPTIONS = ToolOptions(
    "A/account= b/batch ~c/ctld f/full ~H/hurry i/interactive ~M/clusters= ~/cluster= "
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


def run(common_: Common, arguments: list[str]) -> int:
    """Cancel, or signal, what is named or matches."""
    given = OPTIONS.parse(arguments)
    signal = asked_signal(given)
    api = common_.connect()
    space = common_.space(api.connection.namespace)
    operands = [part for each in given.operands for part in each.split(" ") if part]
    if not operands and not given.has(*_FILTERS):
        raise ToolError("No job identification provided")
    errors: list[str] = []
    steps = [each for each in operands if step_of(each)[1]]
    if steps or not signal.ends_jobs:
        named = steps if signal.ends_jobs else operands
        errors += _signal_all(api, space, given, named)
        operands = [each for each in operands if each not in named]
    if signal.ends_jobs and (operands or not steps):
        if given.has(*_FILTERS):
            operands = _matching(api, space, given, operands)
        for text in operands:
            errors += _cancel(common_, api, space, text)
    if errors and not given.has("quiet"):
        for error in errors:
            terminal.tell(f"scancel: error: {error}")
    return 1 if errors else 0


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


def _signal_all(api: Api, space: str, given: GivenOptions, operands: list[str]) -> list[str]:
    """Send a signal to what is named, of several jobs to those that have begun; return why not."""
    signal, is_chosen = asked_signal(given), _filter(api, given)
    live = [each for each in live_records(api, space, time.time()) if not each.state.is_end]
    errors: list[str] = []
    for text in operands or [""]:
        whole, step = step_of(text)
        ids = parse_ids([whole]) if whole else []
        named = [each for each in live if not ids or each.is_called(ids)]
        if text and not named:
            errors.append(f"Kill job error on job id {text}: Invalid job id specified")
        chosen = [each for each in named if is_chosen(each)]
        if len(named) > 1 or given.has(*_FILTERS):
            chosen = [each for each in chosen if each.state is not SlurmState.PENDING]
        errors += _send(api, chosen, to_step(signal, step) if step else signal)
    return errors


def _send(api: Api, records: list[QueueRecord], signal: JobSignal) -> list[str]:
    """Send a signal once to the job of each record; return why not."""
    jobs = {each.job.metadata.name: each for each in records}  # components are of one job
    found = ((each.id, send(api, each, signal)) for each in jobs.values())
    return [f"Kill job error on job id {id_}: {why}" for id_, why in found if why]


def _filter(api: Api, given: GivenOptions) -> Callable[[QueueRecord], bool]:
    """Return what tells whether a record is all that options ask for."""
    users = users_of(api, given)
    states = {parse_state(each) for each in given.listed("state")}
    return lambda each: (not states or each.state in states) and matches(each, given, users)


def _matching(api: Api, space: str, given: GivenOptions, operands: list[str]) -> list[str]:
    """Return the ids of what matches, among the named ones if there are any; ToolError."""
    is_chosen = _filter(api, given)
    live = [each for each in live_records(api, space, time.time()) if not each.state.is_end]
    found: list[str] = []
    for text in operands or [""]:
        ids = parse_ids([text]) if text else []
        named = [each for each in live if not ids or each.is_called(ids)]
        chosen = [each for each in named if is_chosen(each)]
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
