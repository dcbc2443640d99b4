"""The fields of jobs that squeue, sacct and scontrol show: one table, with each command's names.

Sources: the manual pages squeue(1) ("-o", "-O") and sacct(1) ("Job Accounting Fields",
"SLURM_TIME_FORMAT"); of AdminComment PrincetonUniversity/jobstats, `jobstats.py`.
"""

from __future__ import annotations

import os
import pwd
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from fairlead.api import names
from fairlead.cli.script.slurm_names import CLUSTER, DEFAULT_PARTITION
from fairlead.cli.slurm_tools.records import QueueRecord
from fairlead.cli.slurm_tools.states import SlurmState
from fairlead.cli.views.jobs import latest_attempt
from fairlead.decide.jobs.rendering.slurm_variables import tasks_of
from fairlead.decide.words import fold_names
from fairlead.member.srun_options import pattern_path

DAY = 86_400
_MIB = 1 << 20
#: What a shell calls the end by a signal: 128 and its number.
_SIGNALS = range(129, 193)


@dataclass(frozen=True, slots=True)
class Field:
    """What is shown of a record, and what the commands call it; "" where one does not have it."""

    value: Callable[[QueueRecord], str]
    #: Of squeue: its letter for -o, its name for -O, and its title.
    letter: str = ""
    wide: str = ""
    title: str = ""
    #: Of sacct: its name, and how wide it is without a width.
    sacct: str = ""
    width: int = 10


def clock(seconds: int) -> str:
    """Return a duration as squeue has it: 0:07, 1:02:03, 2-00:00:00."""
    days, rest = divmod(seconds, DAY)
    hours, rest = divmod(rest, 3_600)
    if days:
        return f"{days}-{hours:02}:{rest // 60:02}:{rest % 60:02}"
    if hours:
        return f"{hours}:{rest // 60:02}:{rest % 60:02}"
    return f"{rest // 60}:{rest % 60:02}"


def long_clock(seconds: int) -> str:
    """Return a duration as sacct has it: 00:00:07, 2-00:00:00."""
    days, rest = divmod(seconds, DAY)
    text = f"{rest // 3_600:02}:{rest % 3_600 // 60:02}:{rest % 60:02}"
    return f"{days}-{text}" if days else text


def instant(at: float | None, otherwise: str) -> str:
    """Return an instant in local time, in the form that SLURM_TIME_FORMAT asks for."""
    form = os.environ.get("SLURM_TIME_FORMAT", "")
    form = form if "%" in form else "%Y-%m-%dT%H:%M:%S"
    return otherwise if at is None else time.strftime(form, time.localtime(at))


def _limit(record: QueueRecord, form: Callable[[int], str]) -> str:
    limit = record.job.spec.time_limit_seconds
    return "UNLIMITED" if limit is None else form(limit)


def _left(record: QueueRecord) -> str:
    limit = record.job.spec.time_limit_seconds
    return "UNLIMITED" if limit is None else clock(max(0, limit - record.elapsed))


def estimated_end(record: QueueRecord) -> float | None:
    """Return when it ended, or will by its time limit; None where neither is known."""
    limit, started = record.job.spec.time_limit_seconds, record.started_at
    if record.ended_at is not None or limit is None or started is None:
        return record.ended_at
    return started + limit


def where_or_why(record: QueueRecord) -> str:
    """Return the nodes of a job that has some, else in parentheses why it waits."""
    if record.state is SlurmState.PENDING:
        return f"({record.reason})"
    return fold_names(record.nodes)


def partition_of(record: QueueRecord) -> str:
    """Return the partition that a job is in or, before it is in one, those that it asks for: by
    name, else as a pool of nodes; the partition of all nodes where it asks for none.
    """
    if named := record.placed_in or record.asked("SLURM_JOB_PARTITION"):
        return named
    selectors = (role.template.spec.node_selector for role in record.job.spec.roles)
    pools = {each.get(names.POOL, "") for each in selectors} - {""}
    return ",".join(sorted(pools)) or DEFAULT_PARTITION


def cpus(record: QueueRecord) -> int:
    """Return the CPUs of all members, each part of one as a whole."""
    return max(1, -(-record.amount("cpu") // 1_000))


def node_count(record: QueueRecord) -> int:
    """Return on how many nodes it is; before it has a place, its members."""
    return len(record.nodes) or record.job.member_count


def task_count(record: QueueRecord) -> int:
    """Return the tasks of all members; of a job that has none its members."""
    sizes, roles = record.job.sizes, record.job.spec.roles
    found = zip(roles, tasks_of(record.job), strict=False)
    return sum(sum(each.of_nodes(sizes[role.name])) for role, each in found) or sum(sizes.values())


def memory(count: int) -> str:
    """Return bytes as Slurm does: 64G, 500M."""
    mib = -(-count // _MIB)
    return f"{mib // 1_024}G" if mib and mib % 1_024 == 0 else f"{mib}M"


def _tres(record: QueueRecord) -> str:
    parts = [f"cpu={cpus(record)}"]
    if record.amount("memory"):
        parts.append(f"mem={memory(record.amount('memory'))}")
    parts.append(f"node={node_count(record)}")
    parts.append("billing=" + str(cpus(record)))
    if record.amount("gpu"):
        parts.append(f"gres/gpu={record.amount('gpu')}")
    return ",".join(parts)


def _gres(record: QueueRecord) -> str:
    gpus = record.amount("gpu")
    return f"gres/gpu:{gpus // max(1, record.job.member_count)}" if gpus else "N/A"


def exit_status(record: QueueRecord) -> str:
    """Return the exit code and the signal of a job that has ended, as 1:0 or 0:9."""
    attempt = latest_attempt(record.job)
    code = attempt.exit_code if attempt is not None else None
    if record.state is SlurmState.COMPLETED or not record.state.is_end:
        return "0:0"
    if code is None:
        return {SlurmState.CANCELLED: "0:15", SlurmState.TIMEOUT: "0:15"}.get(record.state, "1:0")
    return f"0:{code - 128}" if code in _SIGNALS else f"{code}:0"


def user_id(name: str) -> int:
    """Return the number of a user of this machine; that of nobody for another one."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, OSError):
        return 65_534


def work_directory(record: QueueRecord) -> str:
    """Return the directory that its members begin in; "" where it is not said."""
    specs = (role.template.spec for role in record.job.spec.roles)
    return next((c.working_dir for spec in specs for c in spec.containers if c.working_dir), "")


def command(record: QueueRecord) -> str:
    """Return what its members run."""
    for role in record.job.spec.roles:
        for container in role.template.spec.containers:
            return shlex.join((*container.command, *container.args))
    return ""


def log_file(record: QueueRecord, stream: str) -> str:
    """Return the file with a copy of what a script writes, of --output or --error; "" for none."""
    for role in record.job.spec.roles:
        for container in role.template.spec.containers:
            command = container.command
            words = command[: command.index("--")] if {names.BATCH, "--"} <= {*command} else ()
            option = stream if stream in words else "--output"
            if option in words:
                pattern = words[words.index(option) + 1]
                path = pattern_path(pattern, _of_script(record), rank=0, step="batch")
                return str(PurePosixPath(container.working_dir or "", path))
    return ""


def _of_script(record: QueueRecord) -> dict[str, str]:
    """Return what a pattern of --output reads of the environment of a script."""
    found = {
        "SLURM_JOB_ID": str(record.number), "SLURM_JOB_NAME": record.name, "USER": record.user,
        "SLURMD_NODENAME": next(iter(record.nodes), ""),
    }  # fmt: skip
    if record.array is not None:
        found |= {"SLURM_ARRAY_JOB_ID": str(record.array), "SLURM_ARRAY_TASK_ID": record.task}
    return found


def _dependency(record: QueueRecord) -> str:
    words = {"Succeeded": "afterok", "Finished": "afterany", "Failed": "afternotok"}
    after = record.job.spec.after
    between = "?" if any(each.alternative for each in after) else ","
    return between.join(
        f"{words.get(each.state.value, 'after')}:{each.job}"
        + (f"+{each.delay_seconds // 60}" if each.delay_seconds else "")
        for each in after
    )


# What was used: of all members together, or on average of each; None where it is not known of all


def cpu_milliseconds(record: QueueRecord, *, each: bool = False) -> int | None:
    """Return the processor time of the latest attempt."""
    use = record.use
    if use is None or use.cpu_milliseconds is None or use.cpu_members < use.members:
        return None
    return use.cpu_milliseconds // use.members if each else use.cpu_milliseconds


def peak_bytes(record: QueueRecord) -> int | None:
    """Return the peak of the largest member."""
    use = record.use
    return None if use is None else use.memory_peak_bytes


def total_bytes(record: QueueRecord, *, each: bool = False) -> int | None:
    """Return the sum of all members' peaks."""
    use = record.use
    if use is None or use.memory_total_bytes is None or use.memory_members < use.members:
        return None
    return use.memory_total_bytes // use.members if each else use.memory_total_bytes


def processor_time(milliseconds: int | None) -> str:
    """Return it as TotalCPU has it: MM:SS.mmm, from an hour on [D-]HH:MM:SS; "" for None."""
    if milliseconds is None:
        return ""
    seconds, rest = divmod(milliseconds, 1_000)
    if seconds >= 3_600:
        return long_clock(seconds)
    return f"{seconds // 60:02}:{seconds % 60:02}.{rest:03}"


def step_clock(milliseconds: int | None) -> str:
    """Return a time as AveCPU has it, in whole seconds; "" for None."""
    return "" if milliseconds is None else long_clock(milliseconds // 1_000)


def kilobytes(count: int | None) -> str:
    """Return bytes as MaxRSS has them; "" for None."""
    return "" if count is None else f"{-(-count // 1_024)}K"


def _usage(milliseconds: int | None, count: int | None, record: QueueRecord) -> str:
    """Return it as TRESUsageIn... have it; "" but for steps."""
    if not record.step:
        return ""
    parts = [] if milliseconds is None else [f"cpu={step_clock(milliseconds)}"]
    parts += [] if count is None else [f"mem={kilobytes(count)}"]
    return ",".join(parts)


def admin_comment(record: QueueRecord) -> str:
    """Return what a job used as jobstats keeps it in AdminComment, for programs that read it there;
    "" where nothing is known.

    Of a job on several nodes each has the mean of all. Use of GPUs is not measured.
    """
    milliseconds, peaks = cpu_milliseconds(record), total_bytes(record)
    count, asked = max(1, len(record.nodes)), record.amount("memory")
    each: dict[str, Any] = {}
    if milliseconds is not None:
        each |= {"total_time": round(milliseconds / 1_000 / count, 1)}
    if peaks is not None and asked:
        each |= {"used_memory": peaks // count, "total_memory": asked // count}
    if not (each and record.nodes and record.state.is_end and not record.step):
        return ""
    import base64
    import gzip
    import json

    each["cpus"] = max(1, cpus(record) // count)
    stats = {
        "nodes": dict.fromkeys(record.nodes, each),
        "total_time": record.elapsed,
        "gpus": record.amount("gpu"),
    }
    packed = gzip.compress(json.dumps(stats, separators=(",", ":")).encode(), mtime=0)
    return "JS1:" + base64.b64encode(packed).decode()


def _nothing(_record: QueueRecord) -> str:
    return ""


def _constant(text: str) -> Callable[[QueueRecord], str]:
    return lambda _: text


FIELDS: tuple[Field, ...] = (
    Field(lambda r: r.id, "i", "jobarrayid", "JOBID", "JobID", 12),
    Field(lambda r: str(r.number) + (f".{r.step}" if r.step else ""), "A", "jobid", "JOBID",
          "JobIDRaw", 12),
    Field(lambda r: str(r.array or r.number), "F", "arrayjobid", "ARRAY_JOB_ID"),
    Field(lambda r: r.task or "N/A", "K", "arraytaskid", "ARRAY_TASK_ID"),
    Field(lambda r: "N/A" if r.offset is None else str(r.number), "", "hetjobid", "HET_JOB_ID"),
    Field(lambda r: "N/A" if r.offset is None else str(r.offset), "", "hetjoboffset",
          "HET_JOB_OFFSET"),
    Field(lambda r: "N/A" if r.offset is None else str(r.number), "", "hetjobidset",
          "HET_JOB_ID_SET"),
    Field(lambda r: r.step or r.name, "j", "name", "NAME", "JobName", 10),
    Field(lambda r: r.user or "nobody", "u", "username", "USER", "User", 9),
    Field(lambda r: str(user_id(r.user)), "U", "userid", "USER", "UID", 6),
    Field(lambda r: r.user or "nobody", "g", "groupname", "GROUP", "Group", 9),
    Field(lambda r: str(user_id(r.user)), "G", "groupid", "GROUP", "GID", 6),
    Field(partition_of, "P", "partition", "PARTITION", "Partition", 10),
    Field(lambda r: r.job.spec.team or r.job.metadata.namespace, "a", "account", "ACCOUNT",
          "Account", 10),
    Field(lambda r: r.job.spec.priority_class_name or "normal", "q", "qos", "QOS", "QOS", 10),
    Field(lambda r: r.state.code, "t", "statecompact", "ST"),
    Field(lambda r: r.state.value, "T", "state", "STATE", "State", 10),
    Field(lambda r: r.reason or "None", "r", "reason", "REASON", "Reason", 22),
    Field(where_or_why, "R", "reasonlist", "NODELIST(REASON)"),
    Field(lambda r: fold_names(r.nodes), "N", "nodelist", "NODELIST"),
    Field(lambda r: fold_names(r.nodes) or "None assigned", sacct="NodeList", width=15),
    Field(lambda r: next(iter(r.nodes), "n/a"), "B", "batchhost", "EXEC_HOST"),
    Field(lambda r: str(node_count(r)), "D", "numnodes", "NODES", "NNodes", 8),
    Field(lambda r: str(len(r.nodes)), sacct="AllocNodes"),
    Field(lambda r: str(r.job.member_count), sacct="ReqNodes", width=8),
    Field(lambda r: str(cpus(r)), "C", "numcpus", "CPUS", "NCPUS", 10),
    Field(lambda r: str(cpus(r)) if r.started_at else "0", sacct="AllocCPUS"),
    Field(lambda r: str(cpus(r)), sacct="ReqCPUS", width=8),
    Field(lambda r: str(task_count(r)), "", "numtasks", "TASKS"),
    Field(lambda r: str(r.job.member_count) if r.step else "", sacct="NTasks", width=8),
    Field(lambda r: str(max(1, cpus(r) // max(1, r.job.member_count))), "c", "mincpus",
          "MIN_CPUS"),
    Field(lambda r: memory(r.amount("memory") // max(1, r.job.member_count)), "m", "minmemory",
          "MIN_MEMORY"),
    Field(lambda r: memory(r.amount("memory")), sacct="ReqMem"),
    Field(_gres, "b", "tres-per-node", "TRES_PER_NODE"),
    Field(_tres, "", "tres-alloc", "TRES_ALLOC", "AllocTRES"),
    Field(_tres, sacct="ReqTRES"),
    Field(lambda r: clock(r.elapsed), "M", "timeused", "TIME"),
    Field(lambda r: long_clock(r.elapsed), sacct="Elapsed"),
    Field(lambda r: str(r.elapsed), sacct="ElapsedRaw"),
    Field(lambda r: _limit(r, clock), "l", "timelimit", "TIME_LIMIT"),
    Field(lambda r: _limit(r, long_clock), sacct="Timelimit"),
    Field(lambda r: _limit(r, lambda seconds: str(-(-seconds // 60))), sacct="TimelimitRaw"),
    Field(_left, "L", "timeleft", "TIME_LEFT"),
    Field(lambda r: instant(r.submitted_at, "N/A"), "V", "submittime", "SUBMIT_TIME", "Submit", 19),
    Field(lambda r: instant(max(r.submitted_at, r.time_of("not_before") or 0.0), "N/A"), "",
          "eligibletime", "ELIGIBLE_TIME", "Eligible", 19),
    Field(lambda r: instant(r.time_of("deadline"), "N/A"), "", "deadline", "DEADLINE"),
    Field(lambda r: instant(r.started_at, "N/A"), "S", "starttime", "START_TIME"),
    Field(lambda r: instant(r.started_at, "Unknown"), sacct="Start", width=19),
    Field(lambda r: instant(estimated_end(r), "N/A"), "e", "endtime", "END_TIME"),
    Field(lambda r: instant(r.ended_at, "Unknown"), sacct="End", width=19),
    Field(exit_status, "", "exit_code", "EXIT_CODE", "ExitCode", 8),
    Field(exit_status, sacct="DerivedExitCode", width=15),
    Field(lambda r: str(r.job.spec.priority or 0), "Q", "prioritylong", "PRIORITY", "Priority"),
    Field(lambda r: f"{r.job.spec.priority or 0}.0", "p", "priority", "PRIORITY"),
    Field(lambda r: str(max(0, r.job.status.attempt - 1)), "", "restartcnt", "RESTARTS",
          "Restarts", 8),
    Field(_dependency, "E", "dependency", "DEPENDENCY"),
    Field(lambda r: r.job.spec.reservation, "v", "reservation", "RESERVATION", "Reservation", 20),
    Field(command, "o", "command", "COMMAND", "SubmitLine", 20),
    Field(work_directory, "Z", "workdir", "WORK_DIR", "WorkDir", 20),
    Field(lambda r: r.asked("SLURM_JOB_COMMENT"), "k", "comment", "COMMENT", "Comment", 14),
    Field(_constant(CLUSTER), "", "cluster", "CLUSTER", "Cluster", 10),
    Field(_constant("OK"), "h", "oversubscribe", "OVER_SUBSCRIBE"),
    Field(_constant("0"), "y", "nice", "NICE"),
    Field(_constant("(null)"), "W", "licenses", "LICENSES"),
    Field(_constant("(null)"), "w", "wckey", "WCKEY", "WCKey", 10),
    Field(_constant("(null)"), "f", "feature", "FEATURES", "Constraints", 19),
    Field(_constant("0"), "d", "mintmpdisk", "MIN_TMP_DISK"),
    Field(_constant("*"), "H", "sockets", "SOCKETS_PER_NODE"),
    Field(_constant("*"), "I", "cores", "CORES_PER_SOCKET"),
    Field(_constant("*"), "J", "threads", "THREADS_PER_CORE"),
    Field(_constant("*:*:*"), "z", "sct", "S:C:T"),
    Field(_constant("0"), "O", "contiguous", "CONTIGUOUS"),
    Field(_constant("N/A"), "X", "corespec", "CORE_SPEC"),
    Field(_constant("(null)"), "Y", "schednodes", "SCHEDNODES"),
    Field(_nothing, "n", "reqnodes", "REQ_NODES"),
    Field(_nothing, "x", "exc_nodes", "EXC_NODES"),
    # Slurm's own is never empty, and programs such as reportseff rely on it.
    Field(lambda r: processor_time(cpu_milliseconds(r)) or "00:00:00", sacct="TotalCPU"),
    Field(lambda r: step_clock(cpu_milliseconds(r, each=True)) if r.step else "", sacct="AveCPU"),
    Field(lambda r: kilobytes(peak_bytes(r)) if r.step else "", sacct="MaxRSS"),
    Field(lambda r: kilobytes(total_bytes(r, each=True)) if r.step else "", sacct="AveRSS"),
    Field(lambda r: _usage(cpu_milliseconds(r, each=True), peak_bytes(r), r),
          sacct="TRESUsageInMax", width=14),
    Field(lambda r: _usage(cpu_milliseconds(r), total_bytes(r), r), sacct="TRESUsageInTot",
          width=14),
    Field(lambda r: _usage(cpu_milliseconds(r, each=True), total_bytes(r, each=True), r),
          sacct="TRESUsageInAve", width=14),
    Field(admin_comment, sacct="AdminComment", width=14),
    *(Field(_nothing, sacct=name) for name in (
        "AveVMSize", "MaxVMSize", "MaxRSSNode", "MaxRSSTask", "MaxDiskRead",
        "MaxDiskWrite", "UserCPU", "SystemCPU", "TRESUsageOutAve", "TRESUsageOutMax",
        "TRESUsageOutTot", "Flags", "ConsumedEnergy")),
    Field(lambda r: long_clock(r.elapsed * cpus(r)), sacct="CPUTime"),
    Field(lambda r: str(r.elapsed * cpus(r)), sacct="CPUTimeRAW"),
)  # fmt: skip
BY_LETTER = {field.letter: field for field in FIELDS if field.letter}
BY_WIDE = {field.wide: field for field in FIELDS if field.wide}
BY_SACCT = {field.sacct.lower(): field for field in FIELDS if field.sacct}
