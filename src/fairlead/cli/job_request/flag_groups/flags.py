"""The flags that describe a job, wherever written: command line, #FAIRLEAD or #SBATCH lines.

All three become a `FlagValue` under a `Flag`, so that one parser (`request.py`) reads them and
says of a wrong one where it came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Flag(Enum):
    """What can be asked of a job; the value is the flag's name without dashes."""

    NAME = "name"
    NODES = "nodes"
    ONE_PER_NODE = "one-per-node"
    EXCLUSIVE = "exclusive"
    GPUS = "gpus"
    CPUS = "cpus"
    MEMORY = "memory"
    TIME = "time"
    PRIORITY = "priority"
    ENV = "env"
    IMAGE = "image"
    MOUNT = "mount"
    CHECKPOINT = "checkpoint"
    PARTITION = "partition"
    CONSTRAINT = "constraint"
    NODE_SELECTOR = "node-selector"
    AFTER = "after"
    ARRAY = "array"
    TOPOLOGY = "topology"
    CHDIR = "chdir"
    ON = "on"
    SIMULATE = "simulate"
    HOLD = "hold"
    BEGIN = "begin"
    DEADLINE = "deadline"
    RESERVATION = "reservation"
    PREFLIGHT = "preflight"
    RETRIES = "retries"
    NO_RESTART = "no-restart"
    NOTIFY = "notify"
    PARAM = "param"
    TAG = "tag"
    NOTE = "note"
    GIT = "git"


@dataclass(frozen=True, slots=True)
class FlagInfo:
    """`metavar` is empty for a switch; a repeatable flag may be given several times. `also` is a
    second name, of a flag whose first one is another thing elsewhere.
    """

    metavar: str
    help: str
    is_repeatable: bool = False
    also: str = ""


FLAGS: dict[Flag, FlagInfo] = {
    Flag.NAME: FlagInfo("NAME", "Name of the job, which is its id. [default: from the script]"),
    Flag.NODES: FlagInfo(
        "N[-MAX]",
        "Number of members; they start together. With 4-8 each attempt has as many as have room, "
        "4 at least. [default: 1]",
        also="members",
    ),
    Flag.ONE_PER_NODE: FlagInfo("", "No two members on one node."),
    Flag.EXCLUSIVE: FlagInfo(
        "", "Nodes to itself: no member of another job, and one of its own on each."
    ),
    Flag.GPUS: FlagInfo(
        "[TYPE:]N",
        "GPUs of each member; with a type, such as a100:8, only on nodes whose labels name it. "
        "[default: 0]",
    ),
    Flag.CPUS: FlagInfo("N", "CPUs of each member, such as 8 or 500m. [default: 1]"),
    Flag.MEMORY: FlagInfo("SIZE", "Memory of each member, such as 64Gi."),
    Flag.TIME: FlagInfo("DURATION", "Longest run time of an attempt, such as 12h or 1h30m."),
    Flag.PRIORITY: FlagInfo(
        "CLASS", "PriorityClass, whose value is the job's priority. [default: the cluster's]"
    ),
    Flag.ENV: FlagInfo("NAME[=VALUE]", "Set a variable, or take it from here; repeatable.", True),
    Flag.IMAGE: FlagInfo("IMAGE", "Container image; needed on a cluster with container nodes."),
    Flag.MOUNT: FlagInfo(
        "SRC:PATH[:ro]",
        "Volume that members see at PATH: claim:NAME[/DIR], configmap:NAME, secret:NAME, "
        "emptydir, memory, or a /DIRECTORY of each node; repeatable.",
        True,
    ),
    Flag.CHECKPOINT: FlagInfo(
        "CLAIM",
        "Keep checkpoints on this PersistentVolumeClaim, or in a /DIRECTORY that all nodes share. "
        "[default: the cluster's]",
    ),
    Flag.PARTITION: FlagInfo(
        "NAME[,NAME]", "Only on nodes of these partitions of the settings, or of these node pools."
    ),
    Flag.CONSTRAINT: FlagInfo(
        "FEATURE",
        "Only on nodes with this value or name of a label: a100, 'a100|h100' (either), "
        "'a100&ib' (both); repeatable, all must match.",
        True,
    ),
    Flag.NODE_SELECTOR: FlagInfo(
        "LABEL",
        "Only on nodes whose labels match: KEY=VALUE, KEY!=VALUE, 'KEY in (A,B)', "
        "'KEY notin (A,B)', KEY or !KEY; repeatable, all must match.",
        True,
    ),
    Flag.AFTER: FlagInfo(
        "WHEN:JOB",
        "Start after ok:JOB, any:JOB, failed:JOB or started:JOB+10m; JOB may be an array or "
        "elements of one, as NAME[3-9]. With --array, each:NAME starts each element after its own "
        "of that array. Repeatable; of those with a question mark, ok?:JOB, one is enough.",
        True,
    ),
    Flag.ARRAY: FlagInfo(
        "INDICES[%N]",
        "Submit an array: one job for each index of 0-999 or 1,3,5-9:2, at most N at a time. Each "
        "finds its own in SLURM_ARRAY_TASK_ID.",
    ),
    Flag.TOPOLOGY: FlagInfo(
        "LEVEL[:HOW]",
        "Keep it within one rack, say: LEVEL must, LEVEL:preferred should, "
        "LEVEL:preferred=10m waits so long for it, LEVEL:slice=8 keeps every 8 members together; "
        "repeatable.",
        True,
    ),
    Flag.CHDIR: FlagInfo("DIR", "Working directory. [default: the current one]"),
    Flag.ON: FlagInfo("WHERE", "local, virtual or any; only on an embedded cluster."),
    Flag.SIMULATE: FlagInfo(
        "DURATION", "Run on virtual nodes and pretend to take this long; implies --on virtual."
    ),
    Flag.HOLD: FlagInfo("", "Queue it held; fairlead release lets it start."),
    Flag.BEGIN: FlagInfo(
        "TIME", "Start no earlier: 18:00, tomorrow, now+2hours, 2026-11-20T08:15; local time."
    ),
    Flag.DEADLINE: FlagInfo(
        "TIME", "Cancel it once it can no longer end by then within its --time; as --begin."
    ),
    Flag.RESERVATION: FlagInfo(
        "NAME", "Use this reservation of your team; fairlead reservations lists them."
    ),
    Flag.PREFLIGHT: FlagInfo(
        "WHAT",
        "Test the nodes before the program starts, at most 30 s, and exchange those that fail: "
        "quick (CPU, memory, GPUs), network (and between members) or none. [default: the team's]",
    ),
    Flag.RETRIES: FlagInfo("N", "Restart it up to N times when its program fails. [default: 0]"),
    Flag.NO_RESTART: FlagInfo("", "Do not restart it, not even after the failure of a node."),
    Flag.NOTIFY: FlagInfo(
        "EVENT,...[:TARGET]",
        "Send a notice of start, end, fail, preempt or idle to a URL, a mail address, secret:KEY "
        "(a URL in the Secret fairlead-notify) or, with fairlead up, command:LINE; slack+ or "
        "teams+ before a URL or secret: gives the form; repeatable. [default: secret:url]",
        True,
    ),
    Flag.PARAM: FlagInfo(
        "NAME=VALUE",
        "Record a parameter of the run; members find it in FAIRLEAD_PARAM_NAME; repeatable.",
        True,
    ),
    Flag.TAG: FlagInfo("TAG", "Record a tag, by which fairlead runs finds it; repeatable.", True),
    Flag.NOTE: FlagInfo("TEXT", "Record a note on the run."),
    Flag.GIT: FlagInfo(
        "WHAT",
        "Record of the git repository here: commit (and which files were changed), diff (also what "
        "was changed in them) or off. [default: commit with --param, --tag or --note, else off]",
    ),
}

#: By each of their names, without dashes.
NAMED: dict[str, Flag] = {
    name: flag for flag, info in FLAGS.items() for name in (flag.value, info.also) if name
}


@dataclass(frozen=True, slots=True)
class FlagValue:
    """One value, and where it was written: `--gpus`, `$SBATCH_GPUS` or `train.sh:3`."""

    value: str
    origin: str

    @property
    def is_in_file(self) -> bool:
        """True for a value in a script's header; others are of a flag or a variable."""
        return not self.origin.startswith(("-", "$"))


FlagValues = Mapping[Flag, tuple[FlagValue, ...]]


def merge(first: FlagValues, then: FlagValues) -> FlagValues:
    """Return both, where `first` wins flag by flag; a repeatable flag keeps the values of both."""
    out: dict[Flag, tuple[FlagValue, ...]] = {}
    for flag in Flag:
        mine, other = first.get(flag, ()), then.get(flag, ())
        chosen = (*other, *mine) if FLAGS[flag].is_repeatable else (mine or other)
        if chosen:
            out[flag] = chosen
    return out
