"""From flags as text to a typed request for a job, with every problem collected (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from fairlead.api.jobs.after import After
from fairlead.api.jobs.job import MEMBERS_MAX, Checkpoint, JobSpec, Restart, Role
from fairlead.api.jobs.job_mounts import JobMount
from fairlead.api.jobs.notify import Notify
from fairlead.api.jobs.preflight import PreflightSuite
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import NodeSelectorRequirement, PodTemplate
from fairlead.api.kubernetes.selectors import (
    OPERATORS,
    Operator,
    Requirement,
    SelectorError,
    is_qualified_name,
    parse_labels,
)
from fairlead.api.validation.validate import job_name_max
from fairlead.api.values import quantity
from fairlead.cli.formats.instants import parse_instant
from fairlead.cli.formats.text import parse_duration, two_spellings
from fairlead.cli.job_request.batch import Batch
from fairlead.cli.job_request.flag_groups.after_flag import SINGLETON, parse_after
from fairlead.cli.job_request.flag_groups.array_flag import ArrayRequest, parse_array
from fairlead.cli.job_request.flag_groups.flags import Flag, FlagValue, FlagValues
from fairlead.cli.job_request.flag_groups.notify_flag import parse_notify
from fairlead.cli.job_request.flag_groups.run_flags import NO_RUN, RunRequest, parse_run
from fairlead.cli.job_request.mounts import MountError, parse_checkpoint, parse_mount
from fairlead.cli.job_request.node_kinds import ConstraintError, NamedNodes, features_of, kinds_of
from fairlead.input.errors import Code, Problem

#: The one role of a submitted job.
ROLE = "worker"
GPUS_MAX = 1_000
RETRIES_MAX = 1_000
#: The origin of a name that is the id of one job; all others are given repeatedly.
_NAMED = f"--{Flag.NAME.value}"
_NAME = re.compile(r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
_ENV_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_PREFLIGHTS = {each.value.lower(): each for each in PreflightSuite}
_OPERATOR_NAMES = {operator: name for name, operator in OPERATORS.items()}


Choice = TypeVar("Choice")


class Target(Enum):
    """Which nodes of an embedded cluster: this machine, the virtual ones, or whichever fits."""

    LOCAL = "local"
    VIRTUAL = "virtual"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What was asked for. Amounts are per member, in base units; None means not asked."""

    name: str | None = None
    #: The name that a script's header gives: the first job gets it, later ones are numbered.
    stem: str | None = None
    members: int = 1
    #: With fewer, down to so many, it may start.
    members_min: int | None = None
    #: No two members are on one node.
    one_per_node: bool = False
    #: Nor is any member of another job there.
    is_exclusive: bool = False
    gpus: int = 0
    #: What the GPUs are counted by: whole ones, or slices of one size.
    gpu_resource: str = quantity.GPU
    cpu_millis: int = 1000
    memory_bytes: int | None = None
    time_seconds: int | None = None
    priority: int | None = None
    priority_class: str = ""
    env: tuple[tuple[str, str], ...] = ()
    image: str = ""
    #: One for each path.
    mounts: tuple[JobMount, ...] = ()
    checkpoint: Checkpoint | None = None
    node_selector: tuple[tuple[str, str], ...] = ()
    #: What labels must be beside `node_selector`.
    node_requirements: tuple[NodeSelectorRequirement, ...] = ()
    #: One of these as well, the first ones rather; none: no more is asked.
    node_choices: tuple[tuple[NodeSelectorRequirement, ...], ...] = ()
    #: Kinds of nodes by names that are not labels yet.
    kinds: tuple[NamedNodes, ...] = ()
    reservation: str = ""
    preflight: PreflightSuite | None = None
    after: tuple[After, ...] = ()
    notify: tuple[Notify, ...] = ()
    #: Seconds since the epoch.
    not_before: float | None = None
    deadline: float | None = None
    #: It also waits for jobs of its name.
    is_singleton: bool = False
    array: ArrayRequest | None = None
    run: RunRequest = NO_RUN
    topology: Topology | None = None
    chdir: str | None = None
    target: Target | None = None
    simulate_seconds: float | None = None
    is_held: bool = False
    retries: int = 0
    restarts: bool = True
    #: Of a batch script of Slurm; None for any other program.
    batch: Batch | None = None
    #: Of a heterogeneous job of Slurm the components after this one, each a role of its own: their
    #: members, amounts and places count; what is of the whole job, this one says.
    further: tuple[JobRequest, ...] = ()

    @property
    def components(self) -> tuple[JobRequest, ...]:
        """This one, and those after it."""
        return (self, *self.further)

    @property
    def member_count(self) -> int:
        """The members of all components."""
        return sum(each.members for each in self.components)

    def of_each(self, **changes: Any) -> JobRequest:
        """Return the request with changes of all its components."""
        further = tuple(replace(each, **changes) for each in self.further)
        return replace(self, **changes, further=further)


class _Reader:
    """Reads one value after the other and collects what is wrong."""

    def __init__(self, givens: FlagValues, environment: Mapping[str, str]) -> None:
        self._givens = givens
        self._environment = environment
        self.problems: list[Problem] = []

    def complain(self, given: FlagValue, message: str, *, help_: str = "") -> None:
        """Add a problem with the place where the value was written."""
        in_file = given.is_in_file
        text = message if in_file else f"{given.origin}: {message}"
        self.problems.append(
            Problem(
                Code.SCRIPT_HEADER if in_file else Code.BAD_VALUE, text,
                where=f"{given.origin}:1" if in_file else "", help=(help_,) if help_ else (),
            )
        )  # fmt: skip

    def last(self, flag: Flag) -> FlagValue | None:
        """Return the value that counts, or None."""
        values = self._givens.get(flag, ())
        return values[-1] if values else None

    def text(self, flag: Flag) -> str | None:
        """Return the value as it was written."""
        given = self.last(flag)
        return given.value if given else None

    def whole(self, flag: Flag, bounds: tuple[int, int], default: int) -> int:
        """Return a whole number within the bounds."""
        given = self.last(flag)
        return default if given is None else self.whole_of(given, bounds, default)

    def whole_of(self, given: FlagValue, bounds: tuple[int, int], default: int) -> int:
        """Return a value as a whole number within the bounds."""
        low, high = bounds
        if not re.fullmatch(r"[+-]?\d{1,12}", given.value) or not low <= int(given.value) <= high:
            self.complain(given, f"'{given.value}' must be a whole number from {low} to {high:,}")
            return default
        return int(given.value)

    def members(self) -> tuple[int | None, int]:
        """Return the least number of members, None for all, and all: N, or MIN-MAX as of sbatch."""
        given = self.last(Flag.NODES)
        found = re.fullmatch(r"(\d{1,12})-(\d{1,12})", given.value) if given else None
        if given is None or found is None:
            return None, self.whole(Flag.NODES, (1, MEMBERS_MAX), 1)
        least, most = int(found[1]), int(found[2])
        if not 1 <= least <= most <= MEMBERS_MAX:
            why = f"must be a range MIN-MAX within 1 to {MEMBERS_MAX:,}"
            self.complain(given, f"'{given.value}' {why}")
        return (least if least < most else None), most

    def cpu(self, default: int) -> int:
        """Return milli-CPU."""
        if (given := self.last(Flag.CPUS)) is None:
            return default
        try:
            amount = quantity.to_base(quantity.CPU, given.value)
        except quantity.QuantityError:
            self.complain(given, f"'{given.value}' is not a number of CPUs such as 8, 0.5 or 500m")
            return default
        if amount <= 0:
            self.complain(given, f"'{given.value}' must be greater than 0")
        return amount

    def memory(self) -> int | None:
        """Return bytes; refuses GB, which people use for two different sizes."""
        given = self.last(Flag.MEMORY)
        if given is None:
            return None
        if match := re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMGTP])[bB]", given.value):
            self.complain(given, two_spellings(given.value, match[1], match[2].upper()))
            return None
        if match := re.fullmatch(r"(\d+)([gmtp]i?)", given.value):
            self.complain(given, f"'{given.value}' is not a size",
                          help_=f"write {match[1]}{match[2].capitalize()}")  # fmt: skip
            return None
        try:
            amount = quantity.to_base(quantity.MEMORY, given.value)
        except quantity.QuantityError:
            self.complain(given, f"'{given.value}' is not a size such as 64Gi or 900M")
            return None
        if 0 < amount < 1 << 20:
            self.complain(
                given, f"'{given.value}' is {amount} bytes, less than any program needs",
                help_=f"write {given.value.rstrip('bB')}Gi for gibibytes",
            )  # fmt: skip
            return None
        if amount <= 0:
            self.complain(given, f"'{given.value}' must be greater than 0")
            return None
        return amount

    def seconds(self, flag: Flag) -> float | None:
        """Return a duration in seconds, greater than zero."""
        given = self.last(flag)
        if given is None:
            return None
        try:
            value = parse_duration(given.value)
        except ValueError as error:
            self.complain(given, str(error))
            return None
        if value <= 0:
            self.complain(given, f"'{given.value}' must be greater than 0")
            return None
        return value

    def instant(self, flag: Flag, now: float) -> float | None:
        """Return an instant in seconds since the epoch."""
        if (given := self.last(flag)) is None:
            return None
        try:
            return parse_instant(given.value, now, is_ahead=True)
        except ValueError as error:
            self.complain(given, str(error))
            return None

    def priority(self) -> tuple[int | None, str]:
        """Return (number, class name); one of the two at most."""
        if (given := self.last(Flag.PRIORITY)) is None:
            return None, ""
        if re.fullmatch(r"[+-]?\d+", given.value):
            return self.whole(Flag.PRIORITY, (-1_000_000_000, 1_000_000_000), 0), ""
        if not _NAME.match(given.value):
            self.complain(
                given, f"'{given.value}' is neither a whole number nor a PriorityClass's name"
            )
        return None, given.value

    def stem(self) -> str | None:
        """Return the name of a header or of sbatch's --job-name, as a valid one; both are given
        repeatedly.
        """
        given = self.last(Flag.NAME)
        return clean_name(given.value) if given is not None and given.origin != _NAMED else None

    def name(self) -> str | None:
        """Return the name of the command line; how long it may be, the API says."""
        given = self.last(Flag.NAME)
        if given is None or given.origin != _NAMED:
            return None
        if not _NAME.match(given.value):
            self.complain(
                given, f"'{given.value}' must consist of a-z, 0-9 and dashes, no dash at its ends",
                help_=f"for example {clean_name(given.value)}",
            )  # fmt: skip
        return given.value

    def env(self, batch: Batch | None) -> tuple[tuple[str, str], ...]:
        """Return (name, value) pairs, the last one of a name winning; NAME alone is looked up.

        One that sbatch's --export names and that is not set is left out, as with Slurm.
        """
        out: dict[str, str] = {}
        for given in self._givens.get(Flag.ENV, ()):
            name, equals, value = given.value.partition("=")
            if not _ENV_NAME.match(name):
                self.complain(given, f"'{name}' is not a variable's name")
            elif equals:
                out[name] = value
            elif name in self._environment:
                out[name] = self._environment[name]
            elif batch is None or name not in batch.exports:
                self.complain(given, f"'{name}' is not set here", help_=f"--env {name}=VALUE")
        return tuple(out.items())

    def mounts(self) -> tuple[JobMount, ...]:
        """Return the mounts in the order given; of two at one path the last one."""
        out: dict[str, JobMount] = {}
        for given in self._givens.get(Flag.MOUNT, ()):
            try:
                mount = parse_mount(given.value)
            except MountError as error:
                self.complain(given, str(error), help_=error.help)
            else:
                out[mount.path.rstrip("/")] = mount
        return tuple(out.values())

    def checkpoint(self) -> Checkpoint | None:
        """Return where checkpoints are kept, or None for the cluster's default."""
        if (given := self.last(Flag.CHECKPOINT)) is None:
            return None
        try:
            return parse_checkpoint(given.value)
        except MountError as error:
            self.complain(given, str(error), help_=error.help)
            return None

    def gpus(self) -> tuple[str, int]:
        """Return what the GPUs of a member are counted by, and their number: N, or TYPE:N."""
        if (given := self.last(Flag.GPUS)) is None:
            return quantity.GPU, 0
        kind, _, text = given.value.rpartition(":")
        number = self.whole_of(FlagValue(text, given.origin), (0, GPUS_MAX), 0)
        return quantity.gpu_resource(kind)[0], number

    def kinds(self) -> tuple[NamedNodes, ...]:
        """Return the kinds of nodes: the type of the GPUs, features, partitions."""
        found = list(kinds_of(self.last(Flag.GPUS), self.last(Flag.PARTITION)))
        for given in self._givens.get(Flag.CONSTRAINT, ()):
            try:
                found += features_of(given)
            except ConstraintError as error:
                self.complain(given, f"--constraint='{given.value}': {error}",
                              help_="--node-selector KEY=VALUE")  # fmt: skip
        return tuple(found)

    def node_labels(self) -> tuple[Requirement, ...]:
        """Return what labels of nodes must be, of two values of a key the last one."""
        out: dict[tuple[str, Operator], Requirement] = {}
        for given in self._givens.get(Flag.NODE_SELECTOR, ()):
            try:
                for found in parse_labels(given.value).requirements:
                    out[found.key, found.operator] = found
            except SelectorError:
                why = "must be KEY=VALUE, KEY!=VALUE, 'KEY in (A,B)', KEY or the like"
                help_ = "kubectl get nodes --show-labels lists the labels of nodes"
                self.complain(given, f"'{given.value}' {why}", help_=help_)
        return tuple(out.values())

    def after(self) -> tuple[After, ...]:
        """Return the dependencies, each once, in the order given."""
        return parse_after(self._givens, self.complain)

    def topology(self) -> Topology | None:
        """Return the levels: LEVEL, LEVEL:preferred[=DURATION] and LEVEL:slice=K, each once."""
        found: dict[str, str] = {}
        seconds = size = 0
        for given in self._givens.get(Flag.TOPOLOGY, ()):
            level, _, how = given.value.partition(":")
            kind, _, amount = how.partition("=")
            if not is_qualified_name(level):
                self.complain(given, f"'{level}' is neither a level nor the key of a node label")
            elif kind not in ("", "preferred", "slice"):
                self.complain(given, f"'{how}' must be preferred, preferred=DURATION or slice=K",
                              help_=f"--topology {level}:preferred")  # fmt: skip
            elif kind in found:
                which = {"": "required", "slice": "for slices"}.get(kind, kind)
                self.complain(given, f"'{level}' is a second level that is {which}")
            elif kind == "slice" and not (amount.isdigit() and 2 <= int(amount[:9]) <= MEMBERS_MAX):
                self.complain(given, f"'{amount}' must be a number of members from 2",
                              help_=f"--topology {level}:slice=8")  # fmt: skip
            else:
                found[kind] = level
                size = int(amount) if kind == "slice" else size
                if kind == "preferred" and amount:
                    seconds = self._wait(given, amount)
        if not found:
            return None
        required, preferred = found.get("", ""), found.get("preferred", "")
        return Topology(
            required or preferred, bool(required), preferred if required else "", seconds,
            found.get("slice", ""), size,
        )  # fmt: skip

    def _wait(self, given: FlagValue, text: str) -> int:
        try:
            return round(parse_duration(text))
        except ValueError as error:
            self.complain(given, str(error))
            return 0

    def choice(self, flag: Flag, known: Mapping[str, Choice]) -> Choice | None:
        """Return what one of some words means; None without one."""
        given = self.last(flag)
        if given is not None and given.value not in known:
            *first, last = known
            self.complain(given, f"'{given.value}' must be {', '.join(first)} or {last}")
        return known.get(given.value) if given is not None else None

    def retries(self) -> int:
        """Return how many failures of the job's own program lead to a restart."""
        count = self.whole(Flag.RETRIES, (0, RETRIES_MAX), 0)
        given = self.last(Flag.RETRIES)
        if given is not None and count and self.last(Flag.NO_RESTART):
            self.complain(given, "does not go together with --no-restart",
                          help_="leave one of them out")  # fmt: skip
        return count

    def target(self) -> Target | None:
        """Return where the job is to run, or None for the cluster's default."""
        if (given := self.last(Flag.ON)) is None:
            return Target.VIRTUAL if self.last(Flag.SIMULATE) else None
        target = self.choice(Flag.ON, {target.value: target for target in Target})
        if target is Target.LOCAL and self.last(Flag.SIMULATE):
            self.complain(given, "a local job is real; --simulate needs virtual nodes",
                          help_="leave out one of --on local and --simulate")  # fmt: skip
        return target


def parse_request(
    givens: FlagValues, environment: Mapping[str, str], batch: Batch | None = None, *, now: float
) -> tuple[JobRequest, tuple[Problem, ...]]:
    """Return the request and all that is wrong with it; `environment` serves `--env NAME`.

    `batch` is what a script of Slurm says beside flags; times are read as of `now`.
    """
    reader = _Reader(givens, environment)
    priority, priority_class = reader.priority()
    time_seconds = reader.seconds(Flag.TIME)
    name, stem = reader.name(), reader.stem()
    members_min, members = reader.members()
    labels = reader.node_labels()
    gpu_resource, gpus = reader.gpus()
    plain = [each for each in labels if each.operator is Operator.IN and len(each.values) == 1]
    request = JobRequest(
        name=name,
        stem=stem,
        members=members,
        members_min=members_min,
        one_per_node=reader.last(Flag.ONE_PER_NODE) is not None,
        is_exclusive=reader.last(Flag.EXCLUSIVE) is not None,
        gpus=gpus,
        gpu_resource=gpu_resource,
        cpu_millis=reader.cpu(1000),
        memory_bytes=reader.memory(),
        time_seconds=max(1, round(time_seconds)) if time_seconds else None,
        priority=priority,
        priority_class=priority_class,
        env=reader.env(batch),
        image=reader.text(Flag.IMAGE) or "",
        mounts=reader.mounts(),
        checkpoint=reader.checkpoint(),
        node_selector=tuple((each.key, each.values[0]) for each in plain),
        node_requirements=tuple(
            NodeSelectorRequirement(each.key, _OPERATOR_NAMES[each.operator], each.values)
            for each in labels
            if each not in plain
        ),
        kinds=reader.kinds(),
        reservation=reader.text(Flag.RESERVATION) or "",
        preflight=reader.choice(Flag.PREFLIGHT, _PREFLIGHTS),
        after=reader.after(),
        notify=parse_notify(givens, reader.complain),
        not_before=reader.instant(Flag.BEGIN, now),
        deadline=reader.instant(Flag.DEADLINE, now),
        is_singleton=any(each.value == SINGLETON for each in givens.get(Flag.AFTER, ())),
        array=parse_array(reader.last(Flag.ARRAY), reader.complain),
        run=parse_run(givens, reader.complain),
        topology=reader.topology(),
        chdir=reader.text(Flag.CHDIR),
        target=reader.target(),
        simulate_seconds=reader.seconds(Flag.SIMULATE),
        is_held=reader.last(Flag.HOLD) is not None,
        retries=reader.retries(),
        restarts=reader.last(Flag.NO_RESTART) is None,
        batch=batch,
    )
    return request, tuple(reader.problems)


def clean_name(text: str) -> str:
    """Return the nearest valid job name: lower case, other characters as dashes; "job" if none.

    It is short enough for the name and number of every job that `submit` can ask for.
    """
    role = Role(ROLE, PodTemplate(), count=MEMBERS_MAX)
    largest = JobSpec(roles=(role,), restart=Restart(limit=RETRIES_MAX))
    most = job_name_max(largest) - len("-99999")
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:most].strip("-") or "job"
