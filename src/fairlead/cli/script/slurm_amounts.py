"""What sbatch's options ask of the nodes of one component of a job (pure).

Slurm's amounts are of tasks, CPUs, GPUs, nodes or the job; ours are of a member, which is one
node's share of the job with all its tasks (docs/design/slurm.md). So the options are read first,
all of them, and turned into flags here. What contradicts another option is refused as Slurm does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlead.api import names
from fairlead.cli.job_request.flag_groups.flags import Flag, FlagValue
from fairlead.input.errors import Code, Problem
from fairlead.member.hostlist import expand_hosts

MIB = 1 << 20
_SIZE = re.compile(r"(\d+)([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"K": 1 << 10, "": MIB, "M": MIB, "G": 1 << 30, "T": 1 << 40}
_NODES = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
#: A type of GPUs, or a slice of one: h100, nvidia_h100_3g.40gb, 1g.10gb+me.
_TYPE = r"(?:[A-Za-z]|\d{1,2}g\.)[\w.+-]*"
_GPUS = re.compile(rf"(?:({_TYPE}):)?(\d{{1,6}})(?:\(.*\))?")
MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
#: Nodes that are all alike, as any of them.
_GROUPS = str.maketrans("[]", "()")
_IMAGE = re.compile(r"(?:docker://)?(?:([^#]+)#)?(.+)")

Options = Mapping[str, FlagValue]


@dataclass(slots=True)
class FoundFlags:
    """The flags that the options become, what is noted, and what is wrong."""

    givens: dict[Flag, tuple[FlagValue, ...]] = field(
        default_factory=dict[Flag, tuple[FlagValue, ...]]
    )
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


@dataclass(frozen=True, slots=True)
class ComponentTasks:
    """The tasks of a component, and Slurm's variables that say what was asked for; see `Batch`."""

    tasks_per_node: int
    tasks: int | None
    variables: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Gpus:
    """GPUs of a node; `kind` is the type that was named, "" for any."""

    count: int = 0
    kind: str = ""
    origin: str = ""


class AmountsReader:
    """Reads the options of a component once, those on which others depend first."""

    def __init__(self, options: Options, found: FoundFlags) -> None:
        self._options = options
        self._found = found
        self._least = self._most = 1
        self._per_node = 1
        #: Tasks of all nodes; None: as many as the nodes have.
        self._total: int | None = None

    def read(self) -> ComponentTasks:
        """Give the flags, and return the tasks."""
        hosts = self._hosts("nodelist")
        self._tasks(len(hosts))
        gpus = self._gpus()
        cpus = self._cpus(gpus.count)
        self._memory(cpus, gpus.count)
        self._places(hosts)
        self._containers()
        return ComponentTasks(self._per_node, self._total, self._variables(cpus, gpus))

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
        if per_node is not None and total is not None and match is None:
            self._per_node = min(per_node, math.ceil(total / self._least))  # the most of a node
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

    # ComponentTasks of a node

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
        asked = [name for name in MEMORY if name in self._options]
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

        if (given := self._options.get("partition")) is not None:
            self._found.give(Flag.PARTITION, given.value, given.origin)
        if (given := self._options.get("constraint")) is not None:
            is_one = self._most == 1  # one node is like itself
            text = given.value.translate(_GROUPS) if is_one else given.value
            self._found.give(Flag.CONSTRAINT, text, given.origin)

    def _select(self, name: str, operator: str, hosts: tuple[str, ...]) -> None:
        text = f"{names.HOSTNAME} {operator} ({','.join(hosts)})"
        self._found.give(Flag.NODE_SELECTOR, text, self._options[name].origin)

    def _containers(self) -> None:
        """Read the image and the mounts of pyxis."""
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
        for variable, name in zip(sizes, MEMORY, strict=True):
            given = self._options.get(name)
            match = _SIZE.fullmatch(given.value) if given else None
            if match is not None:
                found[variable] = str(int(match[1]) * _UNITS[match[2].upper()] // MIB)
        if (mode := self._options.get("open-mode")) is not None:
            found["SLURM_OPEN_MODE"] = mode.value[:1]  # a or t, as sbatch hands it to srun
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
