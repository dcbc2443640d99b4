"""The command line of srun: what is read of it, and what it means (pure).

Source: the manual of srun of Slurm 25.05. Options about places and wishes are taken without effect,
as those of sbatch are; what a step cannot have is refused. A word `:` separates the parts of a step
that spans components of a heterogeneous job, by the rules of Slurm's page on these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.member.het_groups import component_count, environment_of, groups
from fairlead.member.hostlist import expand_hosts
from fairlead.member.step_layout import StepError, Wanted

#: Options that are read: their letters, and their name.
_VALUES = {
    "ntasks": "n", "nodes": "N", "ntasks-per-node": "", "cpus-per-task": "c", "nodelist": "w",
    "exclude": "x", "relative": "r", "output": "o", "error": "e", "chdir": "D",
    "gpus-per-task": "", "wait": "W", "mpi": "", "input": "i", "het-group": "", "export": "",
    "open-mode": "",
}  # fmt: skip
_SWITCHES = {"label": "l", "multi-prog": "", "exact": "", "overlap": "", "version": "V"}
_OPTIONAL = {"kill-on-bad-exit": "K", "exclusive": "", "pty": ""}
#: Options without effect: tasks get what the job has.
_IGNORED_VALUES = {
    "mem": "", "mem-per-cpu": "", "mem-per-gpu": "", "mem-bind": "", "cpu-bind": "", "gres": "",
    "gpus": "G", "gpus-per-node": "", "gpu-bind": "", "distribution": "m", "partition": "p",
    "account": "A", "qos": "q", "constraint": "C", "hint": "", "threads-per-core": "",
    "job-name": "J", "time": "t", "comment": "", "jobid": "",
    "cpus-per-gpu": "", "ntasks-per-gpu": "", "ntasks-per-core": "", "ntasks-per-socket": "",
    "accel-bind": "", "cpu-freq": "", "wckey": "", "reservation": "", "container-image": "",
    "container-mounts": "", "container-name": "", "container-workdir": "",
}  # fmt: skip
_IGNORED_SWITCHES = {
    "unbuffered": "u", "quiet": "Q", "verbose": "v", "overcommit": "O", "oversubscribe": "s",
    "disable-status": "X", "no-kill": "k", "preserve-env": "E", "contiguous": "",
    "external-launcher": "", "no-container-mount-home": "", "container-mount-home": "",
    "container-writable": "", "container-remap-root": "", "no-container-remap-root": "",
}  # fmt: skip
_TAKES_VALUE = {**_VALUES, **_IGNORED_VALUES}
_TAKES_NONE = {**_SWITCHES, **_IGNORED_SWITCHES}
#: What the reference lists: options that are read, and those without effect, with their letters.
READ = {**_VALUES, **_SWITCHES, **_OPTIONAL}
WITHOUT_EFFECT = {**_IGNORED_VALUES, **_IGNORED_SWITCHES}
_ALIASES = {
    "tasks-per-node": "ntasks-per-node", "msg-timeout": "wait", "pack-group": "het-group",
}  # fmt: skip
#: What a later part of a step has from an earlier one, unless it says so itself.
_CARRIED = ("label", "kill-on-bad-exit", "output", "error", "input", "pty", "chdir", "wait",
            "mpi", "open-mode")  # fmt: skip
_LETTERS = {letter: name for table in (_TAKES_VALUE, _TAKES_NONE, _OPTIONAL)
            for name, letter in table.items() if letter}  # fmt: skip
#: What `--mpi` may be, beside `list`: the flags of mpirun, which serves the task; None without it.
MPI_KINDS: Mapping[str, tuple[str, ...] | None] = {"none": None, "pmi2": (), "pmix": ("--pmix",)}
_PATTERN = re.compile(r"%(?:0?(\d*))?([a-zA-Z%])")
#: A part of --export: up to a comma outside of single quotes.
_EXPORTED = re.compile(r"(?:[^,']|'[^']*')+")
#: Without these no task is a member of its job, or is found.
_ALWAYS = re.compile(r"(?:FAIRLEAD|SLURMD?|PET|MASTER)_\w+|PATH")
#: Sites have one for each version of the library: pmix_v4. Here it is that of the image.
_PMIX_VERSION = re.compile(r"pmix_v\d+(\.\d+)*$", re.ASCII)


@dataclass(frozen=True, slots=True)
class StepOptions:
    """What was asked for of a step."""

    wanted: Wanted
    command: tuple[str, ...]
    cpus: int = 1
    gpus_per_task: int = 0
    labels: bool = False
    kills_on_bad_exit: bool = False
    is_exclusive: bool = False
    is_multi: bool = False
    output: str = ""
    error: str = ""
    #: Files are gone on with: what an earlier step or run of the job wrote stays.
    appends: bool = False
    #: A file, "none", the number of the one task that reads, or "" for what srun reads.
    input: str = ""
    #: The first task has srun's terminal, and the others have no output.
    has_terminal: bool = False
    directory: str = ""
    mpi: str = "none"
    #: Which variables of srun's own the tasks have (`exported`).
    export: str = "ALL"
    shows_version: bool = False
    #: Options without effect, as they were written.
    ignored: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class StepPart:
    """What was asked for of a step on one component of a job."""

    component: int
    options: StepOptions


def parse_step(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[StepPart, ...]:
    """Return the parts of a step by their components, one at least; StepError.

    The variables of the script give defaults.
    """
    count = component_count(environment)
    words = separated(arguments)
    found: dict[int, StepOptions] = {}
    carried: dict[str, str] = {}
    commands = [_read(list(part))[1] for part in words]
    for place, part in enumerate(words):
        given, _, ignored = _read(list(part))
        own = groups(given["het-group"]) if "het-group" in given else (place,)
        given = {**carried, **given}
        carried = {name: given[name] for name in _CARRIED if name in given}
        command = next((each for each in commands[place:] if each), ())
        for component in own:
            if component >= count:
                raise StepError(
                    f"Attempt to run a job step with het group value of {component}, but the job "
                    f"allocation has maximum value of {count - 1}"
                )
            if component in found:
                raise StepError(
                    f"two parts of the step are for component {component}: --het-group=N names "
                    "each once"
                )
            variables = environment_of(environment, component)
            found[component] = _options(given, command, ignored, variables)
    parts = tuple(StepPart(each, found[each]) for each in sorted(found))
    _check_parts(parts)
    return parts


def separated(arguments: Sequence[str]) -> list[list[str]]:
    """Return the words between those that are `:`."""
    found: list[list[str]] = [[]]
    for word in arguments:
        if word == ":":
            found.append([])
        else:
            found[-1].append(word)
    return found


def _check_parts(parts: tuple[StepPart, ...]) -> None:
    """StepError for what is of a whole step and not the same in all its parts."""
    first = parts[0].options
    if len(parts) > 1 and any(part.options.is_multi for part in parts):
        raise StepError("--multi-prog is for one component; write PROGRAM : PROGRAM")
    for part in parts:
        if (part.options.input, part.options.has_terminal) != (first.input, first.has_terminal):
            raise StepError(
                "--input and --pty are of the whole step: write them before the first :"
            )


def _options(
    given: Mapping[str, str], command: tuple[str, ...], ignored: tuple[str, ...],
    environment: Mapping[str, str],
) -> StepOptions:  # fmt: skip
    nodes = _number(given, "nodes")
    default_each = environment.get("SLURM_NTASKS_PER_NODE")
    each = _number(given, "ntasks-per-node")
    tasks = _number(given, "ntasks")
    if tasks is None and each is None and nodes is None and "nodelist" not in given:
        each = int(default_each) if default_each else None
    mpi = given.get("mpi") or environment.get("SLURM_MPI_TYPE", "none")
    mpi = _PMIX_VERSION.sub("pmix", mpi)
    if mpi not in (*MPI_KINDS, "list"):
        if "mpi" in given:
            known = ", ".join(MPI_KINDS)
            raise StepError(f"--mpi={mpi}: srun has {known}; see docs/howto/mpi.md")
        mpi = "none"  # the variable of a site that has others
    if not command and mpi != "list" and "version" not in given:
        raise StepError("no program is given")
    gpus = given.get("gpus-per-task") or environment.get("SLURM_GPUS_PER_TASK") or "0"
    cpus = _number(given, "cpus-per-task") or int(environment.get("SLURM_CPUS_PER_TASK", "1"))
    wanted = Wanted(
        tasks, nodes, each, _hosts(given, "nodelist"), _hosts(given, "exclude"),
        int(given.get("relative", "0")),
    )  # fmt: skip
    return StepOptions(
        wanted,
        command,
        cpus=cpus,
        gpus_per_task=int(gpus.rpartition(":")[2]),
        labels="label" in given,
        kills_on_bad_exit=given.get("kill-on-bad-exit", "0") != "0",
        is_exclusive=("exclusive" in given or "exact" in given) and "overlap" not in given,
        is_multi="multi-prog" in given,
        output=given.get("output", ""),
        error=given.get("error", ""),
        appends=(given.get("open-mode") or environment.get("SLURM_OPEN_MODE", "")).startswith("a"),
        input="" if given.get("input") == "all" else given.get("input", ""),
        has_terminal="pty" in given,
        directory=given.get("chdir", ""),
        mpi=mpi,
        export=given.get("export") or "ALL",
        shows_version="version" in given,
        ignored=ignored,
    )


def exported(text: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what tasks have of an environment by --export: ALL, NONE, and NAME or NAME=VALUE,
    between commas. Without ALL those that are named alone, and always what makes them members.
    """
    words = [word.strip() for word in _EXPORTED.findall(text)]
    keeps_all = "ALL" in (word.upper() for word in words)
    found = {k: v for k, v in environment.items() if keeps_all or _ALWAYS.fullmatch(k)}
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            found[name] = value.replace("'", "")
        elif name in environment:
            found[name] = environment[name]
    return found


def take(rest: list[str]) -> tuple[str, str, tuple[str, ...]]:
    """Take an option of srun off the front of some words: its name, its value, its words.

    The name is empty where srun has no such option; StepError for a value that is missing.
    """
    word = rest.pop(0)
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        name, is_attached = _ALIASES.get(name, name), bool(equals)
    else:
        name, value = _LETTERS.get(word[1], ""), word[2:]
        is_attached = bool(value)
    if name in _TAKES_NONE and value and not word.startswith("--"):
        rest.insert(0, f"-{value}")
        word, value = word[:2], ""
    words = (word,)
    if name in _TAKES_VALUE and not is_attached:
        if not rest:
            raise StepError(f"{word} needs a value")
        value = rest.pop(0)
        words = (word, value)
    return name if name in READ or name in WITHOUT_EFFECT else "", value, words


def _read(rest: list[str]) -> tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]:
    """Return the options by name, the command, and what has no effect; StepError."""
    given: dict[str, str] = {}
    ignored: list[str] = []
    while rest and rest[0].startswith("-") and len(rest[0]) > 1:
        if rest[0] == "--":
            rest.pop(0)
            break
        name, value, words = take(rest)
        if not name:
            raise StepError(f"'{words[0]}' is not an option of srun that is read here")
        if name in WITHOUT_EFFECT:
            ignored.append(words[0])
        else:
            given[name] = value or ("1" if name == "kill-on-bad-exit" else "")
    return given, tuple(rest), tuple(ignored)


def _number(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    match = re.fullmatch(r"(?:\d{1,9}-)?(\d{1,9})", text)
    if match is None or int(match[1]) < 1:
        raise StepError(f"--{name}: '{text}' is not a whole number from 1")
    return int(match[1])


def _hosts(given: Mapping[str, str], name: str) -> tuple[str, ...]:
    if name not in given:
        return ()
    try:
        return expand_hosts(given[name])
    except ValueError as error:
        raise StepError(f"--{name}: {error}") from None


def programs(text: str, tasks: int) -> list[tuple[str, ...]]:
    """Return the command of each task of a --multi-prog file; StepError.

    A line is RANKS PROGRAM ARGS, RANKS being 0,3-5 or *; %t is the task, %o its place in RANKS.
    """
    import shlex

    found: dict[int, tuple[str, ...]] = {}
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        ranks, *command = words
        if not command:
            raise StepError(f"'{line}' of the file of --multi-prog has no program")
        listed = range(tasks) if ranks == "*" else _ranks(ranks)
        for place, rank in enumerate(listed):
            replaced = [w.replace("%t", str(rank)).replace("%o", str(place)) for w in command]
            found.setdefault(rank, tuple(replaced))
    missing = [rank for rank in range(tasks) if rank not in found]
    if missing:
        raise StepError(f"the file of --multi-prog has no program for task {missing[0]}")
    return [found[rank] for rank in range(tasks)]


def _ranks(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part)
        if match is None:
            raise StepError(f"'{text}' is not a list of tasks such as 0,3-5")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return found


def pattern_path(
    pattern: str, environment: Mapping[str, str], *, rank: int, step: int | str
) -> str:
    """Return the file of a pattern of --output: %j, %x, %t, %s, %N, %A, %a, %u, %%."""
    values = {
        "j": environment.get("SLURM_JOB_ID", ""), "J": environment.get("SLURM_JOB_ID", ""),
        "A": environment.get("SLURM_ARRAY_JOB_ID", environment.get("SLURM_JOB_ID", "")),
        "a": environment.get("SLURM_ARRAY_TASK_ID", "4294967294"), "t": str(rank), "n": str(rank),
        "s": str(step), "x": environment.get("SLURM_JOB_NAME", ""), "%": "%",
        "N": environment.get("SLURMD_NODENAME", environment.get("MASTER_ADDR", "")),
        "u": environment.get("USER", ""),
    }  # fmt: skip

    def value(match: re.Match[str]) -> str:
        text = values.get(match[2], match[0])
        return text.zfill(int(match[1])) if match[1] and text.isdecimal() else text

    return _PATTERN.sub(value, pattern)
