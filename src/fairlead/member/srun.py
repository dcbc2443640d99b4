"""srun in a batch script: starts tasks in the members of the job, and merges what they write.

Tasks see Slurm's variables of a step and of a task, and RANK, WORLD_SIZE and the like as tasks.
They read what srun reads, unless that is a terminal; with --pty the first one has the terminal, and
the others write nothing. Signals that reach srun are passed on; its exit code is the highest one of
a task, 128 + N for signal N.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.member.gang_link import (
    PROOF_SECONDS_MAX,
    Link,
    LinkLost,
    Spawn,
    Stranger,
    prove_member,
    spawning,
)
from fairlead.member.het_groups import components, environment_of
from fairlead.member.mpirun import ENV_KEY
from fairlead.member.srun_input import StepInput, raw_terminal, size_of_terminal
from fairlead.member.srun_options import (
    MPI_KINDS,
    READ,
    StepOptions,
    StepPart,
    exported,
    parse_step,
    pattern_path,
    programs,
)
from fairlead.member.step_layout import Allotted, StepError, layout
from fairlead.member.steps import ENV_STEPS, KEY, SOCKET, steps_gang

VERSION = "slurm 25.05.0"
#: The job is no batch script, or its first member is gone.
EXIT_UNAVAILABLE = 69
#: Passed on to the tasks once there are any; before that they end srun.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Passed on from the moment in which tasks may start: they would end srun, and it all tasks.
_SAYING = (signal.SIGUSR1, signal.SIGUSR2)
#: Serves a task what `--mpi` asks for.
_MPIRUN = (sys.executable, "-m", "fairlead.member.mpirun")


def allotted(environment: Mapping[str, str]) -> tuple[Allotted, ...]:
    """Return the nodes and tasks of each component; StepError outside of a batch script."""
    try:
        lines = Path(environment["FAIRLEAD_HOSTFILE"]).read_text().splitlines()
    except (KeyError, OSError):
        raise StepError("run this in a batch script of Fairlead (fairlead submit)") from None
    return components(environment, [line.split()[0] for line in lines if line.strip()])


@dataclass(frozen=True, slots=True)
class PlacedPart:
    """The tasks of a step on one component of the job."""

    asked: StepPart
    job: Allotted
    #: Nodes, numbered in the component, and the tasks of each.
    placed: tuple[tuple[int, int], ...]

    @property
    def hosts(self) -> list[str]:
        """The addresses of its nodes."""
        return [self.job.hosts[node] for node, _ in self.placed]

    @property
    def counts(self) -> list[int]:
        """The tasks of each of its nodes."""
        return [count for _, count in self.placed]


@dataclass(frozen=True, slots=True)
class PlacedStep:
    """A step: its parts in the order of their tasks."""

    parts: tuple[PlacedPart, ...]

    @classmethod
    def of(cls, asked: Iterable[StepPart], job: tuple[Allotted, ...]) -> PlacedStep:
        """Place the tasks of a step; StepError."""
        return cls(tuple(
            PlacedPart(part, job[part.component],
                       tuple(layout(part.options.wanted, job[part.component])))
            for part in asked
        ))  # fmt: skip

    @property
    def options(self) -> list[StepOptions]:
        """What was asked for of each task, by rank."""
        return [part.asked.options for part in self.parts for _ in range(sum(part.counts))]

    def request(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """Return what the first member is asked for; StepError."""
        parts: list[dict[str, Any]] = []
        rank = node = 0
        for part in self.parts:
            parts.append({
                "tasks": self._tasks_of(part, rank, node), "cpus": part.asked.options.cpus,
                "environment": self._environment_of(part, environment),
            })  # fmt: skip
            rank, node = rank + sum(part.counts), node + len(part.placed)
        is_exclusive = any(part.asked.options.is_exclusive for part in self.parts)
        return {"parts": parts, "is_exclusive": is_exclusive}

    def _tasks_of(
        self, part: PlacedPart, rank: int, first_node: int
    ) -> dict[str, list[dict[str, Any]]]:
        """Return the tasks of each node of the job: rank, command, directory and variables;
        StepError.
        """
        options, total = part.asked.options, sum(part.counts)
        commands = [options.command] * total
        if options.is_multi:
            commands = programs(Path(options.command[0]).read_text(), total)
        size = sum(sum(each.counts) for each in self.parts)
        words, found = iter(commands), dict[str, list[dict[str, Any]]]()
        flags = MPI_KINDS[options.mpi]
        launcher = () if flags is None else (*_MPIRUN, *flags, "--")
        for number, (node, count) in enumerate(part.placed, first_node):
            tasks = found[str(part.job.first + node)] = list[dict[str, Any]]()
            for local in range(count):
                variables = {
                    "SLURM_PROCID": str(rank),
                    "SLURM_LOCALID": str(local),
                    "SLURM_NODEID": str(number),
                    "SLURMD_NODENAME": part.job.hosts[node],
                    "RANK": str(rank),
                    "LOCAL_RANK": str(local),
                    "WORLD_SIZE": str(size),
                    "LOCAL_WORLD_SIZE": str(count),
                    "NODE_RANK": str(number),
                    "GROUP_RANK": str(number),
                    "PET_NODE_RANK": str(rank),
                }
                task: dict[str, Any] = {
                    "rank": rank, "command": [*launcher, *next(words)], "variables": variables,
                    "directory": options.directory or str(Path.cwd()),
                }  # fmt: skip
                if options.gpus_per_task:
                    task["gpus"] = [local * options.gpus_per_task, options.gpus_per_task]
                if options.has_terminal and rank == 0:
                    task["terminal"] = size_of_terminal()
                tasks.append(task)
                rank += 1
        return found

    def _environment_of(self, part: PlacedPart, environment: Mapping[str, str]) -> dict[str, str]:
        """Return what all tasks of a part see alike.

        The names of the step's nodes are not in brackets: some programs read the first one up to a
        comma.
        """
        hosts = [host for each in self.parts for host in each.hosts]
        counts = [count for each in self.parts for count in each.counts]
        total, each = str(sum(counts)), ",".join(map(str, counts))
        own = environment_of(environment, part.asked.component)
        own = exported(part.asked.options.export, own)
        found = {
            **{k: v for k, v in own.items() if k != ENV_STEPS},
            **self._job_nodes(environment),
            "SLURM_STEP_NODELIST": ",".join(hosts),
            "SLURM_STEP_NUM_NODES": str(len(hosts)),
            "SLURM_STEP_NUM_TASKS": total,
            "SLURM_STEP_TASKS_PER_NODE": each,
            "SLURM_TASKS_PER_NODE": each,
            "SLURM_NTASKS": total,
            "SLURM_NPROCS": total,
            "SLURM_NNODES": str(len(hosts)),
            "SLURM_CPUS_PER_TASK": str(part.asked.options.cpus),
            "SLURM_LAUNCH_NODE_IPADDR": environment.get("MASTER_ADDR", ""),
            "PET_NNODES": total,  # each task may be a torchrun
        }
        if ENV_KEY not in own and ENV_STEPS in own:  # a job of one member, whose tasks have no gang
            found[ENV_KEY] = str(Path(own[ENV_STEPS]) / KEY)
        if self.parts[0].job.first + self.parts[0].placed[0][0]:  # not on the job's first node
            found |= dict.fromkeys(("MASTER_ADDR", "PET_MASTER_ADDR"), hosts[0])
        return found

    def _job_nodes(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the nodes of the job as tasks see them: those of the step's components together;
        {} where the script's own are these.
        """
        if [part.asked.component for part in self.parts] == [0]:
            return {}
        each = [environment_of(environment, part.asked.component) for part in self.parts]
        lists = ",".join(filter(None, (own.get("SLURM_JOB_NODELIST") for own in each)))
        return {
            "SLURM_JOB_NODELIST": lists,
            "SLURM_NODELIST": lists,
            "SLURM_JOB_NUM_NODES": str(sum(len(part.job.hosts) for part in self.parts)),
        }


class Output:
    """Where what tasks write goes: standard output and error, or files by --output and --error."""

    def __init__(self, options: Sequence[StepOptions]) -> None:
        """`options` are those of each task, by rank."""
        self._options = options
        self._width = len(str(len(options) - 1))
        self._files: dict[str, Any] = {}
        #: Of each task and stream: what it wrote of a line that has not ended.
        self._begun: dict[tuple[int, int], bytes] = {}

    def write(self, rank: int, stream: int, data: bytes, step: int) -> None:
        """Write what a task wrote."""
        if self._options[rank].has_terminal:
            if rank == 0:
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            return
        file = self._file(rank, stream, step)
        if not self._options[rank].labels:
            file.write(data)
            file.flush()
            return
        *lines, rest = (self._begun.pop((rank, stream), b"") + data).split(b"\n")
        if rest:
            self._begun[rank, stream] = rest
        label = f"{rank:>{self._width}}: ".encode()
        file.write(b"".join(label + line + b"\n" for line in lines))
        file.flush()

    def end(self, rank: int, step: int) -> None:
        """Write the last line of a task that has ended, if it has no end."""
        for stream in (1, 2):
            if self._begun.get((rank, stream)):
                self.write(rank, stream, b"\n", step)

    def _file(self, rank: int, stream: int, step: int) -> Any:
        options = self._options[rank]
        pattern = options.error if stream == 2 and options.error else options.output
        if not pattern:
            return sys.stdout.buffer if stream == 1 else sys.stderr.buffer
        path = pattern_path(pattern, os.environ, rank=rank, step=step)
        if path not in self._files:
            mode = "ab" if options.appends else "wb"
            self._files[path] = open(path, mode)  # noqa: SIM115 # until srun ends
        return self._files[path]


async def _run(step: PlacedStep) -> int:
    """Run a step; return the exit code. StepError, LinkLost."""
    request, has_terminal = step.request(os.environ), step.options[0].has_terminal
    link, asked = await connected(), asyncio.Event()
    async with spawning() as spawn:

        def pass_on(numbers: Iterable[int]) -> None:
            for number in numbers:
                asyncio.get_running_loop().add_signal_handler(
                    number, lambda number=number: spawn(_signal(link, number, asked)) and None
                )

        pass_on(_SAYING)
        await link.send(request)
        asked.set()
        match await link.receive():
            case {"step": int(number)}:
                pass
            case {"error": str(text)}:
                raise StepError(text)
            case _:
                raise LinkLost
        pass_on(_ENDING)
        with raw_terminal(0) if has_terminal and os.isatty(0) else nullcontext():
            codes = await _follow(step.options, _Followed(link, number, spawn))
        if has_terminal:
            for rank, code in codes.items():
                _say_end(rank, code)
        with suppress(LinkLost):
            await link.send({"done": True})
        link.close()
        return max(code if code >= 0 else 128 - code for code in codes.values())


@dataclass(frozen=True, slots=True)
class _Followed:
    """A step whose tasks may have begun."""

    link: Link
    number: int
    spawn: Spawn


async def _follow(options: Sequence[StepOptions], step: _Followed) -> dict[int, int]:
    """Pass on what tasks read and write until all have ended; return their exit codes. `options`
    are those of each task, by rank.
    """
    inputs = _inputs(options[0], len(options), step)
    output, codes = Output(options), dict[int, int]()
    while len(codes) < len(options):
        match await step.link.receive():
            case {"wrote": int(), "rank": int(rank), "stream": int(stream), "data": str(data)}:
                output.write(rank, stream, b64decode(data), step.number)
            case {"taken": int(), "rank": int(rank)}:
                for each in inputs:
                    each.taken(rank)
            case {"ended": int(), "rank": int(rank), "code": int(code)}:
                output.end(rank, step.number)
                for each in inputs:
                    each.ended(rank)
                codes[rank] = code
                if not options[rank].has_terminal:
                    _say_end(rank, code)
                if code and options[rank].kills_on_bad_exit:
                    await step.link.send({"signal": signal.SIGKILL})
            case _:
                raise LinkLost
    return codes


def _inputs(options: StepOptions, total: int, step: _Followed) -> list[StepInput]:
    """Begin to pass on what tasks read: of srun's own input, of a file, or nothing. OSError."""
    source = options.input
    only = [0] if options.has_terminal else [int(source)] if source.isdecimal() else range(total)
    reading = StepInput(step.link, only)
    found = [reading]
    if options.has_terminal:
        if os.isatty(0):
            step.spawn(reading.send_sizes())
        step.spawn(reading.send(0))
    elif source == "none" or (os.isatty(0) and (not source or source.isdecimal())):
        step.spawn(reading.send(None))
    elif source and not source.isdecimal():
        path = pattern_path(source, os.environ, rank=0, step=step.number)
        step.spawn(reading.send(os.open(path, os.O_RDONLY)))
    else:
        step.spawn(reading.send(0))
    if len(only) < total:
        found.append(StepInput(step.link, set(range(total)) - set(only)))
        step.spawn(found[1].send(None))
    return found


async def _signal(link: Link, number: int, asked: asyncio.Event) -> None:
    """Have a signal sent to all tasks of the step, once it has been asked for."""
    await asked.wait()
    with suppress(LinkLost):  # they are ended then
        await link.send({"signal": number})


def _say_end(rank: int, code: int) -> None:
    if code == 0:
        return
    how = f"Exited with exit code {code}" if code > 0 else signal.strsignal(-code)
    sys.stderr.write(f"srun: error: task {rank}: {how}\n")


async def connected() -> Link:
    """Return the link of srun or sbcast to the first member; StepError."""
    directory = os.environ.get(ENV_STEPS)
    if not directory:
        raise StepError("this is no batch script, or a node of one that is not its first")
    try:
        gang = steps_gang(1, (Path(directory) / KEY).read_bytes(), os.environ)
        reader, writer = await asyncio.open_unix_connection(str(Path(directory) / SOCKET))
        async with asyncio.timeout(PROOF_SECONDS_MAX):
            return await prove_member(gang, reader, writer)
    except (OSError, KeyError) as error:
        raise StepError(f"the steps of this script cannot be reached: {error}") from None
    except (Stranger, TimeoutError):
        raise StepError("the steps of another job are none of this one's") from None


def main(argv: list[str]) -> int:
    """Entry of `srun [OPTIONS] PROGRAM [ARGS]`."""
    if argv[:1] in (["--help"], ["--usage"]):
        shown = (f"-{letter}, --{name}" if letter else f"--{name}" for name, letter in READ.items())
        lines = ("Usage: srun [OPTIONS] PROGRAM [ARGS]", *(f"  {each}" for each in shown))
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        return 0
    try:
        parts = parse_step(argv, os.environ)
        if parts[0].options.shows_version:
            sys.stdout.write(f"{VERSION}\n")
            return 0
        if parts[0].options.mpi == "list":
            sys.stdout.write("\n\t".join(("MPI plugin types are...", *MPI_KINDS)) + "\n")
            return 0
        return asyncio.run(_run(PlacedStep.of(parts, allotted(os.environ))))
    except (StepError, OSError) as error:
        sys.stderr.write(f"srun: error: {error}\n")
        return 1
    except LinkLost:
        sys.stderr.write("srun: error: the first member of the job is gone\n")
        return EXIT_UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
