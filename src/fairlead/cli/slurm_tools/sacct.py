"""sacct: jobs that ended, run or wait, from the history and the API."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

from fairlead import terminal
from fairlead.cli.connection.common import Common
from fairlead.cli.connection.transport import Api
from fairlead.cli.formats.instants import parse_instant
from fairlead.cli.slurm_tools.columns import Cell, parse_sacct, print_listing
from fairlead.cli.slurm_tools.fields import BY_SACCT, Field, partition_of, user_id
from fairlead.cli.slurm_tools.job_json import has_batch_step, print_json, sacct_job
from fairlead.cli.slurm_tools.options import GivenOptions, ToolError, ToolOptions
from fairlead.cli.slurm_tools.records import (
    JobId,
    NoHistory,
    QueueRecord,
    ended_records,
    in_order,
    live_records,
    parse_ids,
)
from fairlead.cli.slurm_tools.states import SlurmState, parse_state

FORMAT = "jobid,jobname,partition,account,alloccpus,state,exitcode"
FORMAT_BRIEF = "jobid,state,exitcode"
FORMAT_LONG = (
    "jobid,jobidraw,jobname,partition,alloccpus,elapsed,state,exitcode,nodelist,reqmem,maxrss"
)
OPTIONS = ToolOptions(
    "~a/allusers A/accounts= /account= b/brief ~B/batch-script ~D/duplicates /delimiter= "
    "E/endtime= e/helpformat g/gid= j/jobs= l/long ~L/allclusters ~M/clusters= ~/cluster= "
    "n/noheader N/nodelist= /name= o/format= p/parsable P/parsable2 q/qos= r/partition= s/state= "
    "S/starttime= ~T/truncate u/user= /uid= ~/units= ~/noconvert ~v/verbose "
    "X/allocations ~/local ~/federation /whole-hetjob? /json? /yaml? c/completion f/file=",
    {
        "yaml": "fairlead history -o yaml",
        "gid": "jobs have a user, and no group: --user",
        "completion": "there is no file of completed jobs; leave it out",
        "file": "there is no file of completed jobs; fairlead history --history FILE",
    },
)  # fmt: skip


def run(common_: Common, arguments: list[str]) -> int:
    """Show the accounts of jobs."""
    given = OPTIONS.parse(arguments)
    if given.operands:
        raise ToolError(f"Unknown arguments: {' '.join(given.operands)}")
    if given.has("helpformat"):
        names = [field.sacct for field in BY_SACCT.values()]
        terminal.say("".join(f"{name}\n" for name in names))
        return 0
    cells, fields = _columns(given)
    chosen = _chosen(common_, common_.connect(), given)
    if given.has("json"):
        print_json("jobs", map(sacct_job, chosen))
        return 0
    shown = _with_steps(chosen, given)
    rows = [[field.value(each) for field in fields] for each in shown]
    print_listing(given, cells, [field.sacct for field in fields], rows)
    return 0


def _columns(given: GivenOptions) -> tuple[list[Cell], list[Field]]:
    standard = os.environ.get("SACCT_FORMAT", FORMAT)
    if given.has("brief"):
        standard = FORMAT_BRIEF
    elif given.has("long"):
        standard = FORMAT_LONG
    text = ",".join(given.options.get("format", [])) or standard
    cells = parse_sacct(text)
    for cell in cells:
        if cell.field not in BY_SACCT:
            raise ToolError(f'Invalid field requested: "{cell.field}"')
    fields = [BY_SACCT[cell.field] for cell in cells]
    wide = [
        cell if cell.width else replace(cell, width=field.width, is_right=field.sacct != "JobID")
        for cell, field in zip(cells, fields, strict=True)
    ]
    return wide, fields


def _chosen(common_: Common, api: Api, given: GivenOptions) -> list[QueueRecord]:
    """Return the records that are asked for; of ids without a time, whenever they were."""
    now, ids = time.time(), _ids(given)
    try:
        until = parse_instant(given.last("endtime"), now) if given.has("endtime") else now
        default = 0.0 if ids else parse_instant("today", now)
        since = parse_instant(given.last("starttime"), now) if given.has("starttime") else default
    except ValueError as error:
        raise ToolError(f"Invalid time specification: {error}") from error
    space = common_.space(api.connection.namespace)
    live = list(live_records(api, space, now))
    try:
        ended = list(_ended(common_, ids, now, since))
    except NoHistory as error:
        raise ToolError(
            "Slurm accounting storage is disabled", f"the history cannot be read: {error}"
        ) from error
    users = frozenset(given.listed("user", "uid"))
    states = _states(given)
    return [
        record for record in in_order([*live, *ended])
        if (not ids or _is_called(record, ids, given))
        and (not states or record.state in states)
        and since <= (record.ended_at or now) and record.submitted_at <= until
        and _matches(record, given, users)
    ]  # fmt: skip


def _ids(given: GivenOptions) -> list[JobId]:
    """Return the ids that are asked for, with --whole-hetjob=yes those of whole jobs; ToolError."""
    ids = parse_ids(given.listed("jobs"))
    match given.last("whole-hetjob", default="yes").lower():
        case "no":
            return ids
        case "" | "yes":
            whole = given.has("whole-hetjob")
            return [replace(each, offset=None) for each in ids] if whole else ids
        case text:
            raise ToolError(f"Bad value for --whole-hetjob: '{text}': yes or no")


def _is_called(record: QueueRecord, ids: list[JobId], given: GivenOptions) -> bool:
    """True for a record that an id names; with --whole-hetjob=no a whole job is its first one."""
    if record.offset and given.last("whole-hetjob").lower() == "no":
        ids = [each for each in ids if each.offset is not None]
    return record.is_called(ids)


def _ended(common_: Common, ids: list[JobId], now: float, since: float) -> Iterator[QueueRecord]:
    """Yield what the history has: by number where few are asked for, else since an instant."""
    if not ids:
        yield from ended_records(common_, now, since=f"{since:.3f}")
        return
    for number in dict.fromkeys(each.number for each in ids):
        yield from ended_records(common_, now, number=number)


def _states(given: GivenOptions) -> frozenset[SlurmState]:
    chosen: set[SlurmState] = set()
    for text in given.listed("state"):
        state = parse_state(text)
        if state is None:
            raise ToolError(f"Invalid state requested: {text}")
        chosen.add(state)
    return frozenset(chosen)


def _matches(record: QueueRecord, given: GivenOptions, users: frozenset[str]) -> bool:
    tests = (
        (users, record.user in users or str(user_id(record.user)) in users),
        (given.names("name"), record.name in given.names("name")),
        (given.listed("partition"), partition_of(record) in given.listed("partition")),
        (given.listed("accounts", "account"),
         BY_SACCT["account"].value(record) in given.listed("accounts", "account")),
        (given.listed("qos"), BY_SACCT["qos"].value(record) in given.listed("qos")),
        (given.listed("nodelist"), bool(set(record.nodes) & set(given.listed("nodelist")))),
    )  # fmt: skip
    return all(holds for asked, holds in tests if asked)


def _with_steps(records: Iterable[QueueRecord], given: GivenOptions) -> Iterator[QueueRecord]:
    """Yield each record, and without -X the step that ran its script."""
    for record in records:
        yield record
        if has_batch_step(record) and not given.has("allocations"):
            yield replace(record, step="batch")
