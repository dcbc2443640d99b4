"""scontrol: show, hold, release, requeue and update jobs; show nodes and partitions."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from fairlead import __version__, terminal
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.resources import JOB_ARRAYS, JOBS
from fairlead.api.status import NotFound
from fairlead.api.values.indices import INDEX_MAX
from fairlead.cli.cluster.dependencies import named_after, resolved_after
from fairlead.cli.cluster.numbers import find_numbered, parse_number
from fairlead.cli.commands.change import change_reference
from fairlead.cli.connection.common import Common
from fairlead.cli.connection.transport import Api
from fairlead.cli.job_request.arrays import ArrayReference
from fairlead.cli.job_request.change_verbs import (
    HOLD,
    NONE,
    RELEASE,
    ChangeVerb,
    priority_change,
    read_update,
    update_change,
)
from fairlead.cli.job_request.flag_groups.flags import Flag, FlagValue
from fairlead.cli.job_request.node_kinds import Labels
from fairlead.cli.script.header import parse_header
from fairlead.cli.script.slurm_names import CLUSTER, DEFAULT_PARTITION
from fairlead.cli.slurm_tools.fields import BY_LETTER, BY_SACCT, BY_WIDE, log_file, memory
from fairlead.cli.slurm_tools.job_json import print_json, squeue_job
from fairlead.cli.slurm_tools.node_groups import (
    node_list,
    partition_table,
    partitions_of,
    partitions_with,
    state_of,
)
from fairlead.cli.slurm_tools.node_json import node_info, partition_info
from fairlead.cli.slurm_tools.options import ToolError, ToolOptions
from fairlead.cli.slurm_tools.records import (
    NoHistory,
    QueueRecord,
    ended_records,
    in_order,
    live_records,
    one_component_refused,
    parse_ids,
)
from fairlead.cli.slurm_tools.squeue import ENDED_SECONDS
from fairlead.cli.views.nodes import NodeUse
from fairlead.decide.words import fold_names
from fairlead.member.hostlist import expand_hosts

OPTIONS = ToolOptions(
    "~a/all ~d/details ~/hide ~M/clusters= o/oneliner ~Q/quiet ~v/verbose ~/local /json?"
)
_TAKES = "scontrol show job|node|partition|hostnames|config, hold, release, requeue, update"


def run(common_: Common, arguments: list[str]) -> int:
    """Carry out one command."""
    given = OPTIONS.parse(arguments)
    verb, *rest = given.operands or [""]
    is_line = given.has("oneliner")
    match verb.lower():
        case "show":
            words = [each for each in rest if each != "-o"]
            if given.has("json"):
                return _show_json(common_, words)
            return _show(common_, words, is_line=is_line)
        case "hold" | "uhold":
            return _change(common_, HOLD, rest)
        case "release":
            return _change(common_, RELEASE, rest)
        case "requeue":
            return _requeue(common_, rest)
        case "update":
            return _update(common_, rest)
        case "ping":
            common_.connect().request("GET", "/readyz")
            terminal.say("Slurmctld(primary) at fairlead is UP\n")
            return 0
        case _:
            raise ToolError(f"invalid keyword: {verb}", f"what there is: {_TAKES}")


def _show(common_: Common, words: list[str], *, is_line: bool) -> int:
    kind, *names_ = words or [""]
    kind = kind.lower()
    if kind in ("hostnames", "hostname"):
        lists = names_ or [os.environ.get("SLURM_JOB_NODELIST", "")]
        terminal.say("".join(f"{host}\n" for text in lists for host in _hosts(text)))
        return 0
    if kind == "hostlist":
        terminal.say(f"{fold_names(_hosts(','.join(names_)))}\n")
        return 0
    if kind == "config":
        terminal.say("".join(f"{name:<24}= {value}\n" for name, value in _settings()))
        return 0
    blocks: Iterable[list[list[tuple[str, str]]]]
    match _entity(kind):
        case "jobs":
            blocks = [_job_block(record) for record in _jobs(common_, names_)]
        case "nodes":
            api = common_.connect()
            table = partition_table(common_, api)
            blocks = [_node_block(node, table) for node in _nodes(api, names_)]
        case _:
            blocks = [_partition_block(*each) for each in _partitions(common_, names_)]
    terminal.say("".join(_block_text(block, is_line=is_line) for block in blocks))
    return 0


def _entity(kind: str) -> str:
    """Return what is to be shown: jobs, nodes or partitions; ToolError."""
    for whole in ("jobs", "nodes", "partitions"):
        if kind in (whole, whole[:-1], whole[:4]):
            return whole
    raise ToolError(f"invalid entity: {kind}", f"what there is: {_TAKES}")


def _show_json(common_: Common, words: list[str]) -> int:
    """Show jobs, nodes or partitions for programs that read JSON."""
    kind, *names_ = words or [""]
    match whole := _entity(kind.lower()):
        case "jobs":
            found = [squeue_job(record) for record in _jobs(common_, names_)]
        case "nodes":
            api = common_.connect()
            table = partition_table(common_, api)
            found = [node_info(node, table) for node in _nodes(api, names_)]
        case _:
            found = [partition_info(*each) for each in _partitions(common_, names_)]
    print_json(whole, found)
    return 0


def _hosts(text: str) -> list[str]:
    """Return the hosts of a list in their order; ToolError where it is none."""
    try:
        return list(expand_hosts(text)) if text else []
    except ValueError as error:
        raise ToolError(f"Invalid hostlist: {error}") from error


def _block_text(block: list[list[tuple[str, str]]], *, is_line: bool) -> str:
    lines = [" ".join(f"{name}={value}" for name, value in line) for line in block]
    return " ".join(lines) + "\n" if is_line else "\n   ".join(lines) + "\n\n"


def _settings() -> Iterator[tuple[str, str]]:
    """Yield the settings of a cluster that programs ask for."""
    yield "AccountingStorageType", "accounting_storage/slurmdbd"
    yield "ClusterName", CLUSTER
    yield "MaxArraySize", str(INDEX_MAX + 1)
    yield "MinJobAge", f"{ENDED_SECONDS} sec"
    yield "SLURM_VERSION", f"24.05.0-fairlead-{__version__}"


# Jobs


def _jobs(common_: Common, texts: list[str]) -> list[QueueRecord]:
    """Return the jobs that are named, all of them without a name; ToolError for none such."""
    api, now = common_.connect(), time.time()
    space, ids = common_.space(api.connection.namespace), parse_ids(texts)
    found = list(live_records(api, space, now))
    if ids and not any(record.is_called(ids) for record in found):
        with suppress(NoHistory):  # else what the API still has is shown
            found += ended_records(common_, now, since=f"{now - ENDED_SECONDS:.3f}")
    shown = [record for record in in_order(found) if not ids or record.is_called(ids)]
    if ids and not shown:
        raise ToolError("slurm_load_jobs error: Invalid job id specified")
    return shown


def _job_block(record: QueueRecord) -> list[list[tuple[str, str]]]:
    def wide(name: str) -> str:
        return BY_WIDE[name].value(record)

    def sacct(name: str) -> str:
        return BY_SACCT[name].value(record)

    of_array = [("ArrayJobId", str(record.array)), ("ArrayTaskId", record.task.strip("[]"))]
    of_components = [("HetJobId", str(record.number)), ("HetJobOffset", str(record.offset))]
    user = f"{wide('username')}({wide('userid')})"
    job = record.job
    return [
        [("JobId", str(record.number)), *(of_array if record.array else ()),
         *(of_components if record.offset is not None else ()), ("JobName", record.name)],
        *([[("HetJobIdSet", str(record.number))]] if record.offset is not None else []),
        [("UserId", user), ("GroupId", user), ("MCS_label", "N/A")],
        [("Priority", wide("prioritylong")), ("Nice", "0"), ("Account", wide("account")),
         ("QOS", wide("qos"))],
        [("JobState", record.state.value), ("Reason", record.reason or "None"),
         ("Dependency", wide("dependency") or "(null)")],
        [("Requeue", "1"), ("Restarts", sacct("restarts")), ("BatchFlag", "1"), ("Reboot", "0"),
         ("ExitCode", wide("exit_code"))],
        [("RunTime", sacct("elapsed")), ("TimeLimit", sacct("timelimit")), ("TimeMin", "N/A")],
        [("SubmitTime", wide("submittime")), ("EligibleTime", wide("eligibletime"))],
        [("StartTime", sacct("start")), ("EndTime", wide("endtime").replace("N/A", "Unknown")),
         ("Deadline", wide("deadline"))],
        [("Partition", wide("partition")), ("AllocNode:Sid", "N/A")],
        [("NodeList", wide("nodelist"))],
        *([[("BatchHost", wide("batchhost"))]] if record.nodes else []),
        [("NumNodes", wide("numnodes")), ("NumCPUs", wide("numcpus")),
         ("NumTasks", wide("numtasks")), ("CPUs/Task", BY_LETTER["c"].value(record))],
        [("ReqTRES", sacct("reqtres"))],
        [("AllocTRES", sacct("alloctres") if record.nodes else "(null)")],
        [("Reservation", job.spec.reservation or "(null)")],
        [("Command", wide("command"))],
        [("WorkDir", wide("workdir"))],
        *([[(name, path)] for name, stream in (("StdErr", "--error"), ("StdOut", "--output"))
           if (path := log_file(record, stream))]),
        [("Comment", wide("comment") or f"fairlead why {job.metadata.name}")],
    ]  # fmt: skip


def _found(api: Api, space: str, text: str) -> Job | JobArray:
    """Return what an id names; ToolError for none such."""
    if why := one_component_refused(api, space, text):
        raise ToolError(f"{why} for job {text}")
    numbered = parse_number(text)
    found = find_numbered(api, space, numbered.number) if numbered is not None else None
    if found is None:
        raise ToolError(f"Invalid job id specified for job {text}")
    return found


def _change(common_: Common, change: ChangeVerb, texts: list[str]) -> int:
    """Hold or release what the ids name."""
    api = common_.connect()
    space = common_.space(api.connection.namespace)
    for text in _ids(texts):
        numbered = parse_number(text)
        name = _found(api, space, text).metadata.name
        reference = ArrayReference(name, numbered.indices if numbered else None)
        _, problem = change_reference(common_, api, change, space=space, reference=reference)
        if problem is not None:
            raise ToolError(f"{problem.message} for job {text}")
    return 0


def _ids(texts: list[str]) -> list[str]:
    ids = [part for text in texts for part in text.replace(" ", ",").split(",") if part]
    if not ids:
        raise ToolError("too few arguments for keyword")
    parse_ids(ids)
    return ids


def _requeue(common_: Common, texts: list[str]) -> int:
    """Stop the members of jobs and queue them again; one write, which a job may make of itself."""
    api = common_.connect()
    space = common_.space(api.connection.namespace)
    for text in _ids(texts):
        numbered = parse_number(text)
        found = _found(api, space, text)
        job = found
        if isinstance(found, JobArray):
            if numbered is None or numbered.indices is None or not numbered.indices.isdecimal():
                raise ToolError(f"name one element of the array, such as {text}_0")
            job = api.get(JOBS, f"{found.metadata.name}-{numbered.indices}", namespace=space)
        assert isinstance(job, Job)
        if job.is_finished or job.spec.cancel:
            raise ToolError(f"Job/step already completing or completed for job {text}")
        attempt = job.status.current_attempt
        if attempt is None:
            raise ToolError(f"Job is pending execution for job {text}")
        api.patch(JOBS, job.metadata.name, {"spec": {"requeueAttempt": attempt.number}},
                  namespace=space)  # fmt: skip
    return 0


def _update(common_: Common, words: list[str]) -> int:
    """Change when a job may start, how long it may run and its rank, or how many elements of an
    array run at a time.
    """
    values = {name.lower(): value for name, _, value in (word.partition("=") for word in words)}
    text = values.pop("jobid", values.pop("job", ""))
    if not text:
        raise ToolError("update is for jobs: scontrol update JobId=N NAME=VALUE")
    api = common_.connect()
    space = common_.space(api.connection.namespace)
    found = _found(api, space, text)
    unknown = [name for name in values if name not in _UPDATES and name not in _OTHER_UPDATES]
    if unknown:
        raise ToolError(f"Update of this parameter is not supported: {unknown[0]}",
                        "what there is: TimeLimit, StartTime, Deadline, Dependency, "
                        "ReservationName, QOS, ArrayTaskThrottle")  # fmt: skip
    changes = list(_changes(common_, api, space, values))
    if (limit := values.get("arraytaskthrottle")) is not None:
        if not isinstance(found, JobArray) or not limit.isdecimal():
            raise ToolError("ArrayTaskThrottle is a number, and for arrays")
        api.patch(JOB_ARRAYS, found.metadata.name, {"spec": {"parallelism": int(limit) or None}},
                  namespace=space)  # fmt: skip
    numbered = parse_number(text)
    reference = ArrayReference(found.metadata.name, numbered.indices if numbered else None)
    for change in changes:
        _, problem = change_reference(common_, api, change, space=space, reference=reference)
        if problem is not None:
            raise ToolError(f"{problem.message} for job {text}")
    return 0


def _exists(api: Api, space: str, name: str) -> bool:
    for resource in (JOBS, JOB_ARRAYS):
        with suppress(NotFound):
            api.get(resource.only_metadata, name, namespace=space)
            return True
    return False


#: The parameters that sbatch has as an option, and that option.
_UPDATES = {
    "timelimit": "time", "starttime": "begin", "eligibletime": "begin", "deadline": "deadline",
    "dependency": "dependency", "reservationname": "reservation",
}  # fmt: skip
_OTHER_UPDATES = ("qos", "arraytaskthrottle")


def _changes(
    common_: Common, api: Api, space: str, values: Mapping[str, str]
) -> Iterator[ChangeVerb]:
    """Yield what parameters change of a job: their values are read as those of sbatch's options,
    and an empty one takes away what there was. ToolError.
    """
    given = {_UPDATES[name]: value for name, value in values.items() if name in _UPDATES}
    lines = [shlex.quote(f"--{option}={value}") for option, value in given.items() if value]
    header = parse_header(f"#!/bin/sh\n#SBATCH {' '.join(lines)}\n", file="update")
    if header.problems:
        raise ToolError(header.problems[0].message)
    flags = (Flag.TIME, Flag.BEGIN, Flag.DEADLINE, Flag.AFTER, Flag.RESERVATION)
    givens = {flag: header.givens[flag] for flag in flags if flag in header.givens}
    for option, value in given.items():
        if not value or (option == "time" and Flag.TIME not in givens):  # UNLIMITED
            flag = {"dependency": Flag.AFTER}.get(option) or Flag(option)
            givens[flag] = (FlagValue(NONE, option),)
    if givens:
        request = read_update(givens, time.time())
        after = resolved_after(api, space, named_after(api, space, request.after))
        if missing := [each.job for each in after if not _exists(api, space, each.job)]:
            raise ToolError(f"Job dependency problem: no job {missing[0]}")
        yield update_change(givens, request, after)
    if qos := values.get("qos"):
        from fairlead.cli.cluster.cluster_settings import slurm_settings

        yield priority_change(slurm_settings(common_, api).qos.get(qos, qos))


# Nodes and partitions


def _nodes(api: Api, names_: list[str]) -> list[NodeUse]:
    found, wanted = node_list(api), [each for text in names_ for each in _hosts(text)]
    shown = [node for node in found if not wanted or node.name in wanted]
    if wanted and not shown:
        raise ToolError(f"Node {wanted[0]} not found")
    return shown


def _node_block(node: NodeUse, table: Mapping[str, Labels]) -> list[list[tuple[str, str]]]:
    gpus = sum(n for name, n in node.total.items() if name.endswith("/gpu"))
    return [
        [("NodeName", node.name), ("Arch", "x86_64"),
         ("CPUAlloc", str(-(-node.used.get("cpu", 0) // 1_000))),
         ("CPUTot", str(node.total.get("cpu", 0) // 1_000)), ("CPULoad", "N/A")],
        [("Gres", f"gpu:{gpus}" if gpus else "(null)"), ("NodeHostName", node.name)],
        [("RealMemory", str(node.total.get("memory", 0) >> 20)),
         ("AllocMem", str(node.used.get("memory", 0) >> 20))],
        [("State", state_of(node).upper()), ("Weight", "1")],
        [("Partitions", ",".join(partitions_with(node, table)))],
        [("Reason", node.reason or "none")],
    ]  # fmt: skip


def _partitions(common_: Common, names_: list[str]) -> list[tuple[str, list[NodeUse]]]:
    """Return partitions by name, and their nodes; ToolError."""
    api = common_.connect()
    partitions = partitions_of(node_list(api), partition_table(common_, api))
    missing = [each for each in names_ if each not in partitions]
    if missing:
        raise ToolError(f"Partition {missing[0]} not found")
    return [(name, partitions[name]) for name in names_ or partitions]


def _partition_block(name: str, nodes: list[NodeUse]) -> list[list[tuple[str, str]]]:
    cpus = sum(node.total.get("cpu", 0) for node in nodes) // 1_000
    total = memory(sum(node.total.get("memory", 0) for node in nodes))
    return [
        [("PartitionName", name)],
        [("AllowGroups", "ALL"), ("AllowAccounts", "ALL"), ("AllowQos", "ALL")],
        [("Default", "YES" if name == DEFAULT_PARTITION else "NO"), ("QoS", "N/A")],
        [("DefaultTime", "NONE"), ("Hidden", "NO")],
        [("MaxNodes", "UNLIMITED"), ("MaxTime", "UNLIMITED"), ("MinNodes", "0")],
        [("Nodes", fold_names(node.name for node in nodes) or "(null)")],
        [("State", "UP"), ("TotalCPUs", str(cpus)), ("TotalNodes", str(len(nodes)))],
        [("TRES", f"cpu={cpus},mem={total},node={len(nodes)}")],
    ]  # fmt: skip
