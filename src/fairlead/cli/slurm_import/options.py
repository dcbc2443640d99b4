"""Settings of slurm.conf beside nodes and partitions: what they are here, or why nothing (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fairlead.cli.slurm_import.conf import ConfLine, Findings
from fairlead.cli.slurm_import.fleet import slurm_seconds, whole

_DAY_SECONDS = 86_400
#: Why keys have no counterpart, by what they begin with; the first that matches counts.
_WORDS = tuple((re.compile(keys), words) for keys, words in (
    (r"slurm|state|auth|cred|crypto|msg|tcp|tree|hash|job_?comp|log|debug|cli|communication|mcs|"
     r"acct|accounting|jobacct|munge|first|maxd|minj|mpi|proctrack|plugin|switch|comm|job_?file|"
     r"job_?cred|keep|x11|site|node_?features|federation|fed|dbd|control|backup|epilogmsg|batch|"
     r"completewait|eio|unkillable|inactive|message|prepplugins|return|tmpfs|dump|max_?step|wait|"
     r"track|srun|salloc|sbcast|bcast|burst|ext_sensors|energy|cpufreq|interconnect|get_?env",
     "is of Slurm's own daemons"),
    (r"prolog|epilog|task_?prolog|task_?epilog|resvprolog|resvepilog|reboot|mail|unkillable",
     "no script is called around jobs; what nodes need, a DaemonSet or the agent sets up"),
    (r"healthcheck", "the agent tests nodes: fairlead agent check, docs/howto/nodes.md"),
    (r"topology|route", "topology is read from labels of nodes: the setting topology.levels"),
    (r"priority|fairshare", "jobs are ordered by PriorityClass, then by the fair share of teams"),
    (r"select|task_?plugin|task_?affinity|gres|launch|overtime|kill|enforce|def|maxmem|core|cpu",
     "nodes are shared by CPUs, memory and GPUs; a job says what it needs"),
    (r"suspend|resume", "node pools buy and remove nodes"),
    (r"licenses", "there are no licenses"),
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class SiteOptions:
    """What the whole cluster has: 0 and "" where nothing is said."""

    half_life_days: int = 0
    idle_seconds: int = 0
    resume_program: str = ""
    preempts: bool = False
    is_strict: bool = False


def read_options(lines: Iterable[ConfLine], found: Findings) -> SiteOptions:
    """Return the options; each line that has no counterpart goes to `found` as a note."""
    values: dict[str, ConfLine] = {}
    for line in lines:
        if line.key in ("nodename", "partitionname", "nodeset"):
            continue
        if line.key in _TAKEN:
            values[line.key] = line
        else:
            found.note(line.where, f"{line.written[line.key]}: {_words(line.key)}")
    preempts = "preempttype" in values and values["preempttype"].name.lower() != "preempt/none"
    if preempts and values["preempttype"].name.lower() != "preempt/qos":
        found.note(values["preempttype"].where, "PreemptType: jobs of a higher PriorityClass "
                   "preempt, whatever their partition")  # fmt: skip
    resume = values.get("resumeprogram")
    return SiteOptions(
        half_life_days=max(1, round(half / _DAY_SECONDS)) if (
            half := _seconds(values.get("prioritydecayhalflife"), found)) else 0,
        idle_seconds=_idle(values.get("suspendtime"), found),
        resume_program=resume.name if resume is not None else "",
        preempts=preempts,
        is_strict="schedulertype" in values
        and values["schedulertype"].name.lower() == "sched/builtin",
    )  # fmt: skip


_TAKEN = frozenset((
    "clustername", "preempttype", "prioritydecayhalflife", "resumeprogram", "schedulertype",
    "suspendtime",
))  # fmt: skip


def _words(key: str) -> str:
    return next((words for keys, words in _WORDS if keys.match(key)), "has no counterpart")


def _seconds(line: ConfLine | None, found: Findings) -> int:
    seconds = 0 if line is None else slurm_seconds(line.name)
    if line is not None and seconds is None:
        found.wrong(line.where, f"{line.written[line.key]}: '{line.name}' is no time")
    return seconds or 0


def _idle(line: ConfLine | None, found: Findings) -> int:
    """Return SuspendTime, which is in seconds; 0 for none."""
    if line is None or line.name.upper() in ("INFINITE", "-1", "NONE"):
        return 0
    seconds = whole(line.name)
    if seconds is None:
        found.wrong(line.where, f"SuspendTime: '{line.name}' is no number of seconds")
    return seconds or 0
