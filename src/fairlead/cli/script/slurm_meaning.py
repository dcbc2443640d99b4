"""What sbatch's options ask for together, as the flags of `fairlead submit` (pure).

Slurm's amounts are of tasks, CPUs, GPUs, nodes or the job; ours are of a member, which is one
node's share of the job with all its tasks (docs/design/slurm.md). So the options are read first,
all of them, and turned into flags here. What contradicts another option is refused as Slurm does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from signal import Signals

from fairlead.api import names
from fairlead.api.jobs.notify import MAIL_ADDRESS, NoticeEvent, Notify
from fairlead.cli.formats.text import parse_slurm_time
from fairlead.cli.job_request.batch import Batch
from fairlead.cli.job_request.flags import Flag, FlagValue
from fairlead.input.errors import Code, Problem
from fairlead.member.hostlist import expand_hosts

MIB = 1 << 20
_UNLIMITED = ("0", "UNLIMITED", "INFINITE", "-1")
_DEPENDENCY = {"afterok": "ok", "afterany": "any", "afternotok": "failed", "aftercorr": "each"}
#: An element of an array, as Slurm has it: `sweep_7`. Names have no underscore.
_ELEMENT = re.compile(r"([^_]+)_(\d+)")
_SIZE = re.compile(r"(\d+)([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"K": 1 << 10, "": MIB, "M": MIB, "G": 1 << 30, "T": 1 << 40}
_NODES = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
#: A type of GPUs, or a slice of one: h100, nvidia_h100_3g.40gb, 1g.10gb+me.
_TYPE = r"(?:[A-Za-z]|\d{1,2}g\.)[\w.+-]*"
_GPUS = re.compile(rf"(?:({_TYPE}):)?(\d{{1,6}})(?:\(.*\))?")
_SIGNAL = re.compile(r"((?:[RB]+:)?)(?:@)?(\w+)(?:@(\d{1,6}))?")
_IMAGE = re.compile(r"(?:docker://)?(?:([^#]+)#)?(.+)")
_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
#: Options whose value becomes that of a flag as it is.
_AS_IT_IS = {
    "job-name": Flag.NAME,
    "array": Flag.ARRAY,
    "reservation": Flag.RESERVATION,
    "partition": Flag.PARTITION,
    "begin": Flag.BEGIN,
    "deadline": Flag.DEADLINE,
}
#: Types of --mail-type as events; the others have no equal.
_MAIL_EVENTS: Mapping[str, tuple[NoticeEvent, ...]] = {
    "NONE": (),
    "BEGIN": (NoticeEvent.START,),
    "END": (NoticeEvent.END,),
    "FAIL": (NoticeEvent.FAIL,),
    "REQUEUE": (NoticeEvent.PREEMPT,),
    "ALL": tuple(NoticeEvent),
}
#: Nodes that are all alike, as any of them.
_GROUPS = str.maketrans("[]", "()")
_SWITCHES = {"hold": Flag.HOLD, "no-requeue": Flag.NO_RESTART}

Options = Mapping[str, FlagValue]


@dataclass(slots=True)
class Meaning:
    """The flags that the options become, what is noted, and what is wrong."""

    givens: dict[Flag, tuple[FlagValue, ...]] = field(
        default_factory=dict[Flag, tuple[FlagValue, ...]]
    )
    batch: Batch = field(default_factory=Batch)
    notes: list[str] = field(default_factory=list[str])
    problems: list[Problem] = field(default_factory=list[Problem])

    def give(self, flag: Flag, value: str, origin: str) -> None:
        """Add a value of a flag."""
        self.givens[flag] = (*self.givens.get(flag, ()), FlagValue(value, origin))

    def refuse(self, given: FlagValue, message: str, help_: str) -> None:
        """Add a problem at the place of an option."""
        where = f"{given.origin}:1" if given.is_in_file else ""
        text = message if given.is_in_file else f"{given.origin}: {message}"
        self.problems.append(Problem(Code.SCRIPT_HEADER, text, where=where, help=(help_,)))


def meaning(options: Options, nodes: str | None = None) -> Meaning:
    """Return what the options mean; `nodes` is --nodes of the command line of fairlead."""
    if nodes is not None:
        options = {**options, "nodes": FlagValue(nodes, "--nodes")}
    found = Meaning()
    _Reader(options, found).read()
    return found


@dataclass(frozen=True, slots=True)
class _Gpus:
    """GPUs of a node; `kind` is the type that was named, "" for any."""

    count: int = 0
    kind: str = ""
    origin: str = ""


class _Reader:
    """Reads the options once, those on which others depend first."""

    def __init__(self, options: Options, found: Meaning) -> None:
        self._options = options
        self._found = found
        self._least = self._most = 1
        self._per_node = 1
        #: Tasks of all nodes; None: as many as the nodes have.
        self._total: int | None = None

    def read(self) -> None:
        """Fill the meaning."""
        hosts = self._hosts("nodelist")
        self._tasks(len(hosts))
        gpus = self._gpus()
        cpus = self._cpus(gpus.count)
        self._memory(cpus, gpus.count)
        self._places(hosts)
        self._plain()
        self._time()
        self._dependency()
        self._containers()
        self._found.batch = Batch(
            tasks_per_node=self._per_node,
            tasks=self._total,
            exports_all=self._exports(),
            signal=self._signal(),
            qos=self._text("qos"),
            mail=self._mail(),
            output=self._text("output"),
            error=self._text("error"),
            appends=self._text("open-mode") in ("a", "append"),
            variables=self._variables(cpus, gpus),
        )

    def _refuse(self, name: str, why: str, help_: str) -> None:
        self._found.refuse(self._options[name], f"--{name}{why}", help_)

    def _number(self, name: str) -> int | None:
        """Return a whole number from 1; None for one that is not given, or wrong."""
        given = self._options.get(name)
        if given is None:
            return None
        if not re.fullmatch(r"\d{1,9}", given.value) or int(given.value) < 1:
            self._refuse(name, f": '{given.value}' is not a whole number from 1", f"--{name}=4")
            return None
        return int(given.value)

    # Nodes and tasks

    def _hosts(self, name: str) -> tuple[str, ...]:
        given = self._options.get(name)
        if given is None:
            return ()
        try:
            return expand_hosts(given.value)
        except ValueError as error:
            self._refuse(name, f": {error}", f"--{name}=NODE,NODE, or --{name}=n[01-04]")
            return ()

    def _tasks(self, hosts: int) -> None:
        """Read how many nodes there are, and how many tasks each has."""
        total, per_node = self._number("ntasks"), self._number("ntasks-per-node")
        if total is None and {"gpus", "gpus-per-task"} <= self._options.keys():
            each = max(1, self._count("gpus-per-task").count)
            total = max(1, self._count("gpus").count // each)
        self._total = total
        given = self._options.get("nodes")
        match = _NODES.fullmatch(given.value) if given else None
        if given is not None and (match is None or int(match[1]) < 1):
            why = f": '{given.value}' is neither a whole number nor a range such as 2-4"
            self._refuse("nodes", why, "--nodes=4")
        if match is not None:
            self._least, self._most = int(match[1]), int(match[2] or match[1])
        elif total is not None and per_node is not None:
            self._least = self._most = math.ceil(total / per_node)
        elif "gpus" in self._options and "gpus-per-node" in self._options:
            ratio = self._count("gpus").count / max(1, self._count("gpus-per-node").count)
            self._least = self._most = max(1, math.ceil(ratio))
        else:
            self._least = self._most = max(1, hosts)
        self._per_node = per_node or (math.ceil(total / self._least) if total else 1)
        if total is not None and match is not None:
            self._fit_tasks(total, per_node)
        if match or self._most > 1:
            least = f"{self._least}-" if self._least < self._most else ""
            origin = given.origin if given else self._origin("ntasks", "gpus", "nodelist")
            self._found.give(Flag.NODES, f"{least}{self._most}", origin)
        if self._most > 1:
            self._found.give(Flag.ONE_PER_NODE, "true", self._found.givens[Flag.NODES][0].origin)

    def _fit_tasks(self, total: int, per_node: int | None) -> None:
        """Compare --ntasks with --nodes as sbatch does."""
        if per_node is not None and total > self._most * per_node:
            why = f"={total} is more than --nodes={self._most} times --ntasks-per-node={per_node}"
            self._refuse("ntasks", why, "leave --ntasks out, or correct one of the three")
        elif total < self._most:
            self._found.notes.append(
                f"{self._origin('ntasks', 'gpus')}: {total} tasks need no more than {total} of "
                f"--nodes={self._most}"
            )
            self._most, self._least = total, min(self._least, total)
        if per_node is not None:
            self._per_node = min(per_node, math.ceil(total / self._least))

    def _origin(self, *names_: str) -> str:
        return next(self._options[name].origin for name in names_ if name in self._options)

    # Amounts of a node

    def _count(self, name: str) -> _Gpus:
        """Return what a number of GPUs says: N, TYPE:N, gpu:TYPE:N, gpu:TYPE, none."""
        given = self._options.get(name)
        if given is None or given.value.lower() in ("none", "0"):
            return _Gpus()
        text = given.value
        if name == "gres":
            kind, _, text = given.value.partition(":")
            kind = kind.removeprefix("gres/")
            text = f"{text}:1" if re.fullmatch(_TYPE, text) else text or "1"
            if kind != "gpu" or "," in given.value:
                why = f"={given.value} cannot be given: only GPUs are counted, of one type"
                self._refuse(name, why, "--gres=gpu:N or --gres=gpu:TYPE:N")
                return _Gpus()
        match = _GPUS.fullmatch(text)
        if match is None:
            why = f": '{given.value}' is not a number of GPUs"
            self._refuse(name, why, "--gres=gpu:8, or 8 or TYPE:8 for the others")
            return _Gpus()
        return _Gpus(int(match[2]), match[1] or "", given.origin)

    def _gpus(self) -> _Gpus:
        """Return the GPUs of a node; all that ask for them have to agree."""
        found: dict[str, _Gpus] = {}
        for name in ("gres", "gpus-per-node", "gpus-per-task", "gpus"):
            each = self._count(name)
            if not each.count:
                continue
            count = each.count
            if name == "gpus-per-task":
                count *= self._per_node
            if name == "gpus":
                if count % self._most or self._least < self._most:
                    why = f"={count} cannot be the same on each of the {self._most} nodes"
                    self._refuse(name, why, "write --gpus-per-node=N")
                    continue
                count //= self._most
            found[name] = _Gpus(count, each.kind, each.origin)
        if not found:
            return _Gpus()
        (first, gpus), *others = found.items()
        for name, other in others:
            kinds = {gpus.kind, other.kind} - {""}
            if other.count != gpus.count or len(kinds) > 1:
                why = f"={self._options[name].value} contradicts --{first}"
                self._refuse(name, f"{why}={self._options[first].value}", "leave one of them out")
        kind = next((each.kind for each in found.values() if each.kind), "")
        text = f"{kind}:{gpus.count}" if kind else str(gpus.count)
        self._found.give(Flag.GPUS, text, gpus.origin)
        return _Gpus(gpus.count, kind, gpus.origin)

    def _cpus(self, gpus: int) -> int:
        """Return the CPUs of a node."""
        each, of_gpu = self._number("cpus-per-task"), self._number("cpus-per-gpu")
        if each is not None and of_gpu is not None:
            self._refuse("cpus-per-gpu", " contradicts --cpus-per-task", "leave one of them out")
        if of_gpu is not None and not gpus:
            self._refuse("cpus-per-gpu", " needs a number of GPUs", "--gpus-per-node=N")
        cpus = of_gpu * max(1, gpus) if of_gpu is not None else (each or 1) * self._per_node
        if each is not None or of_gpu is not None or self._per_node > 1:
            asking = ("cpus-per-task", "cpus-per-gpu", "ntasks-per-node", "ntasks")
            self._found.give(Flag.CPUS, str(cpus), self._origin(*asking))
        return cpus

    def _memory(self, cpus: int, gpus: int) -> None:
        """Read the memory of a node; 0 is all of it, so no other job is there."""
        asked = [name for name in _MEMORY if name in self._options]
        if len(asked) > 1:
            names_ = " and ".join(f"--{name}" for name in asked)
            self._refuse(asked[1], f": {names_} contradict each other", "leave one of them out")
            return
        if not asked:
            return
        name, given = asked[0], self._options[asked[0]]
        match = _SIZE.fullmatch(given.value)
        if match is None:
            self._refuse(name, f": '{given.value}' is not a size", f"--{name}=64G")
            return
        if name == "mem-per-gpu" and not gpus:
            self._refuse(name, " needs a number of GPUs", "--gpus-per-node=N")
            return
        amount = int(match[1]) * _UNITS[match[2].upper()]
        if not amount:
            self._found.give(Flag.EXCLUSIVE, "true", given.origin)
            return
        times = {"mem": 1, "mem-per-cpu": cpus, "mem-per-gpu": gpus}[name]
        self._found.give(Flag.MEMORY, _size(amount * times), given.origin)

    # Places

    def _places(self, hosts: tuple[str, ...]) -> None:
        if hosts:
            if len(hosts) > self._most:  # as Slurm does it
                self._found.notes.append(
                    f"{self._options['nodelist'].origin}: --nodelist names {len(hosts)} nodes of "
                    f"{self._most}; those after the first {self._most} are not used"
                )
                hosts = hosts[: self._most]
            if len(hosts) < self._most:
                why = f" names {len(hosts)} nodes of {self._most}"
                self._refuse("nodelist", why, f"name {self._most}, or let labels choose the others")
            self._select("nodelist", "in", hosts)
        if excluded := self._hosts("exclude"):
            self._select("exclude", "notin", excluded)
        if (given := self._options.get("exclusive")) is not None:
            if given.value not in ("", "user", "mcs"):
                self._refuse("exclusive", f"={given.value} has no equal", "write --exclusive")
            self._found.give(Flag.EXCLUSIVE, "true", given.origin)

    def _select(self, name: str, operator: str, hosts: tuple[str, ...]) -> None:
        text = f"{names.HOSTNAME} {operator} ({','.join(hosts)})"
        self._found.give(Flag.NODE_SELECTOR, text, self._options[name].origin)

    # The rest

    def _plain(self) -> None:
        for name, flag in _AS_IT_IS.items():
            if (given := self._options.get(name)) is not None:
                self._found.give(flag, given.value, given.origin)
        if (given := self._options.get("constraint")) is not None:
            is_one = self._most == 1  # one node is like itself
            text = given.value.translate(_GROUPS) if is_one else given.value
            self._found.give(Flag.CONSTRAINT, text, given.origin)
        for name, flag in _SWITCHES.items():
            if (given := self._options.get(name)) is not None:
                self._found.give(flag, "true", given.origin)

    def _time(self) -> None:
        given = self._options.get("time")
        if given is None or given.value.upper() in _UNLIMITED:
            return
        try:
            seconds = int(parse_slurm_time(given.value))
        except ValueError as error:
            self._refuse("time", f": {error}", "--time=12:00:00, or --time=90 for minutes")
            return
        if seconds:
            self._found.give(Flag.TIME, f"{seconds}s", given.origin)

    def _dependency(self) -> None:
        given = self._options.get("dependency")
        if given is None:
            return
        if "?" in given.value:
            why = ": '?' (any of several) has no equal; all must hold"
            self._refuse("dependency", why, "--dependency=afterok:JOB,afterany:JOB")
            return
        for part in given.value.split(","):
            kind, colon, jobs = part.strip().partition(":")
            if kind == "singleton" and not colon:
                self._found.give(Flag.AFTER, "singleton", given.origin)
                continue
            if kind not in _DEPENDENCY or not jobs:
                known = "afterok:JOB, afterany:JOB, afternotok:JOB, aftercorr:JOB or singleton"
                why = f": '{part}' is not {known}"
                self._refuse("dependency", why, "--dependency=afterok:JOB")
                continue
            for job in _with_elements(jobs.split(":")):
                self._found.give(Flag.AFTER, f"{_DEPENDENCY[kind]}:{job}", given.origin)

    def _containers(self) -> None:
        """Read the options of pyxis; a directory of --chdir is outside of the container."""
        directory = self._options.get("container-workdir") or self._options.get("chdir")
        if directory is not None:
            self._found.give(Flag.CHDIR, directory.value, directory.origin)
        if (image := self._options.get("container-image")) is not None:
            if image.value.startswith(("/", "./")) or image.value.endswith(".sqsh"):
                why = f"={image.value} is a file; nodes pull images from a registry"
                self._refuse("container-image", why, "--container-image=REGISTRY/IMAGE:TAG")
                return
            match = _IMAGE.fullmatch(image.value)
            text = "/".join(part for part in match.groups() if part) if match else image.value
            self._found.give(Flag.IMAGE, text, image.origin)
        if (mounts := self._options.get("container-mounts")) is not None:
            for mount in mounts.value.split(","):
                source, _, rest = mount.partition(":")
                target, _, flags = rest.partition(":")
                text = f"{source}:{target or source}{':ro' if flags == 'ro' else ''}"
                self._found.give(Flag.MOUNT, text, mounts.origin)

    def _mail(self) -> Notify | None:
        """Return where mail is asked for; one that is not sent changes no result: it is noted."""
        given, user = self._options.get("mail-type"), self._text("mail-user")
        types = [each.strip().upper() for each in given.value.split(",")] if given else []
        events = [event for each in types for event in _MAIL_EVENTS.get(each, ())]
        without = [each for each in types if each and each not in _MAIL_EVENTS]
        if given is not None and without:
            self._note(given, f"--mail-type={','.join(without)} has no effect")
        if given is None or not events:
            return None
        if "array" in self._options:
            self._note(given, "--mail-type has no effect: no mail is sent of an array")
        elif not MAIL_ADDRESS.fullmatch(user):
            self._note(given, "--mail-type has no effect without --mail-user=ada@example.com")
        else:
            return Notify(tuple(dict.fromkeys(events)), mail=user)
        return None

    def _note(self, given: FlagValue, text: str) -> None:
        self._found.notes.append(f"{given.origin}: {text}")

    def _exports(self) -> bool:
        """Return whether all of the shell's variables come along, as they do without --export."""
        given = self._options.get("export")
        if given is None:
            return True
        parts = [part.strip() for part in given.value.split(",") if part.strip()]
        for part in parts:
            if part not in ("ALL", "NONE", "NIL"):
                self._found.give(Flag.ENV, part, given.origin)
        return "ALL" in parts

    def _text(self, name: str) -> str:
        given = self._options.get(name)
        return given.value if given else ""

    def _signal(self) -> str:
        """Return the signal before the end as `fairlead.member.batch` takes it."""
        given = self._options.get("signal")
        if given is None:
            return ""
        match = _SIGNAL.fullmatch(given.value)
        name = match[2].upper().removeprefix("SIG") if match else ""
        if match is None or not (name.isdecimal() or f"SIG{name}" in Signals.__members__):
            why = f": '{given.value}' is not [B:]SIGNAL[@SECONDS]"
            self._refuse("signal", why, "--signal=B:USR1@60")
            return ""
        if Flag.TIME not in self._found.givens:
            self._found.notes.append(
                f"{given.origin}: --signal has no effect: it comes before the end of --time"
            )
            return ""
        return f"{'B:' if 'B' in match[1] else ''}{name}@{match[3] or 60}"

    def _variables(self, cpus: int, gpus: _Gpus) -> tuple[tuple[str, str], ...]:
        """Return the variables of Slurm that say what was asked for; see `Batch.variables`."""
        asked = {
            "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
            "SLURM_CPUS_PER_TASK": "cpus-per-task",
            "SLURM_CPUS_PER_GPU": "cpus-per-gpu",
            "SLURM_GPUS": "gpus",
            "SLURM_GPUS_PER_NODE": "gpus-per-node",
            "SLURM_GPUS_PER_TASK": "gpus-per-task",
            "SLURM_JOB_PARTITION": "partition",
            "SLURM_JOB_ACCOUNT": "account",
            "SLURM_JOB_QOS": "qos",
            "SLURM_JOB_RESERVATION": "reservation",
            "SLURM_JOB_NAME": "job-name",
            "SLURM_JOB_COMMENT": "comment",
        }
        found = {
            variable: self._options[name].value
            for variable, name in asked.items()
            if name in self._options
        }
        sizes = ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU")
        for variable, name in zip(sizes, _MEMORY, strict=True):
            given = self._options.get(name)
            match = _SIZE.fullmatch(given.value) if given else None
            if match is not None:
                found[variable] = str(int(match[1]) * _UNITS[match[2].upper()] // MIB)
        found["SLURM_CPUS_ON_NODE"] = str(cpus)
        if gpus.count:
            found["SLURM_GPUS_ON_NODE"] = str(gpus.count)
        return tuple(sorted(found.items()))


def _size(amount: int) -> str:
    """Return bytes, a multiple of 1024, with the largest unit that divides them."""
    for unit, size in (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", MIB)):
        if not amount % size:
            return f"{amount // size}{unit}"
    return f"{amount >> 10}Ki"


def _with_elements(jobs: Iterable[str]) -> Iterator[str]:
    """Yield jobs without their delays, the elements of one array together: sweep[4,7]."""
    elements: dict[str, list[str]] = {}
    for job in jobs:
        name = job.partition("+")[0]
        match = _ELEMENT.fullmatch(name)
        listed = elements.setdefault(name if match is None else match[1], [])
        listed += [] if match is None else [match[2]]
    for name, listed in elements.items():
        yield f"{name}[{','.join(listed)}]" if listed else name
