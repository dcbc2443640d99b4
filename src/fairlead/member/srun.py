"""srun in a batch script: starts tasks in the members of the job, and merges what they write.

Tasks see Slurm's variables of a step and of a task, and RANK, WORLD_SIZE and the like as tasks.
They read what srun reads, unless that is a terminal; with --pty the first one has the terminal, and
the others write nothing. Signals that reach srun are passed on; its exit code is the highest one of
a task, 128 + N for signal N.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from base64 import b64decode
from collections.abc import Iterable, Mapping
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
from fairlead.member.srun_input import StepInput, raw_terminal, size_of_terminal
from fairlead.member.srun_options import StepOptions, parse, programs
from fairlead.member.step_layout import Allotted, StepError, counts, layout
from fairlead.member.steps import ENV_STEPS, KEY, SOCKET, steps_gang

VERSION = "slurm 25.05.0"
#: The job is no batch script, or its first member is gone.
EXIT_UNAVAILABLE = 69
#: Passed on to the tasks once there are any; before that they end srun.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Passed on from the moment in which tasks may start: they would end srun, and it all tasks.
_SAYING = (signal.SIGUSR1, signal.SIGUSR2)
_PATTERN = re.compile(r"%(?:0?(\d*))?([a-zA-Z%])")


def allotted(environment: Mapping[str, str]) -> Allotted:
    """Return the nodes of the job and their tasks; StepError outside of a batch script."""
    try:
        lines = Path(environment["FAIRLEAD_HOSTFILE"]).read_text().splitlines()
        tasks = counts(environment["SLURM_TASKS_PER_NODE"])
    except (KeyError, OSError):
        raise StepError("run this in a batch script of Fairlead (fairlead submit)") from None
    hosts = tuple(line.split()[0] for line in lines if line.strip())
    if len(hosts) != len(tasks):
        raise StepError(f"the job has {len(hosts)} nodes, SLURM_TASKS_PER_NODE {len(tasks)}")
    return Allotted(hosts, tasks)


def tasks_of(
    options: StepOptions, placed: list[tuple[int, int]], job: Allotted,
    environment: Mapping[str, str],
) -> dict[str, list[dict[str, Any]]]:  # fmt: skip
    """Return the tasks of each node: rank, command, directory and variables; StepError."""
    total = sum(count for _, count in placed)
    commands = [options.command] * total
    if options.is_multi:
        commands = programs(Path(options.command[0]).read_text(), total)
    found: dict[str, list[dict[str, Any]]] = {}
    rank = 0
    for number, (node, count) in enumerate(placed):
        tasks: list[dict[str, Any]] = []
        for local in range(count):
            variables = {
                "SLURM_PROCID": str(rank),
                "SLURM_LOCALID": str(local),
                "SLURM_NODEID": str(number),
                "SLURMD_NODENAME": job.hosts[node],
                "RANK": str(rank),
                "LOCAL_RANK": str(local),
                "WORLD_SIZE": str(total),
                "LOCAL_WORLD_SIZE": str(count),
            }
            if options.gpus_per_task:
                variables["CUDA_VISIBLE_DEVICES"] = _devices(options, local, environment)
            task: dict[str, Any] = {
                "rank": rank, "command": list(commands[rank]), "variables": variables,
                "directory": options.directory or str(Path.cwd()),
            }  # fmt: skip
            if options.has_terminal and rank == 0:
                task["terminal"] = size_of_terminal()
            tasks.append(task)
            rank += 1
        found[str(node)] = tasks
    return found


def _devices(options: StepOptions, local: int, environment: Mapping[str, str]) -> str:
    """Return the GPUs of a task: the next ones of its node, by number."""
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    count = int(environment.get("SLURM_GPUS_ON_NODE", "0"))
    devices = visible.split(",") if visible else [str(i) for i in range(count)]
    first = local * options.gpus_per_task
    return ",".join(devices[first : first + options.gpus_per_task])


def step_environment(
    placed: list[tuple[int, int]], job: Allotted, options: StepOptions,
    environment: Mapping[str, str],
) -> dict[str, str]:  # fmt: skip
    """Return what all tasks of a step see alike.

    The names of its nodes are not in brackets: some programs read the first one up to a comma.
    """
    total, nodes = sum(count for _, count in placed), ",".join(job.hosts[n] for n, _ in placed)
    each = ",".join(str(count) for _, count in placed)
    return {
        **{k: v for k, v in environment.items() if k != ENV_STEPS},
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_NUM_NODES": str(len(placed)),
        "SLURM_STEP_NUM_TASKS": str(total),
        "SLURM_STEP_TASKS_PER_NODE": each,
        "SLURM_TASKS_PER_NODE": each,
        "SLURM_NTASKS": str(total),
        "SLURM_NPROCS": str(total),
        "SLURM_NNODES": str(len(placed)),
        "SLURM_CPUS_PER_TASK": str(options.cpus),
        "SLURM_LAUNCH_NODE_IPADDR": environment.get("MASTER_ADDR", ""),
    }


class Output:
    """Where what tasks write goes: standard output and error, or files by --output and --error."""

    def __init__(self, options: StepOptions, total: int) -> None:
        self._options = options
        self._width = len(str(total - 1))
        self._files: dict[str, Any] = {}
        #: Of each task and stream: what it wrote of a line that has not ended.
        self._begun: dict[tuple[int, int], bytes] = {}

    def write(self, rank: int, stream: int, data: bytes, step: int) -> None:
        """Write what a task wrote."""
        if self._options.has_terminal:
            if rank == 0:
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            return
        file = self._file(rank, stream, step)
        if not self._options.labels:
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
        pattern = self._options.output
        if stream == 2 and self._options.error:
            pattern = self._options.error
        if not pattern:
            return sys.stdout.buffer if stream == 1 else sys.stderr.buffer
        path = pattern_path(pattern, os.environ, rank=rank, step=step)
        if path not in self._files:
            self._files[path] = open(path, "wb")  # noqa: SIM115 # until srun ends
        return self._files[path]


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


async def _run(options: StepOptions, job: Allotted) -> int:
    """Run the step; return the exit code. StepError, LinkLost."""
    placed = layout(options.wanted, job)
    total = sum(count for _, count in placed)
    link, asked = await connected(), asyncio.Event()
    async with spawning() as spawn:

        def pass_on(numbers: Iterable[int]) -> None:
            for number in numbers:
                asyncio.get_running_loop().add_signal_handler(
                    number, lambda number=number: spawn(_signal(link, number, asked)) and None
                )

        pass_on(_SAYING)
        await link.send({
            "tasks": tasks_of(options, placed, job, os.environ),
            "environment": step_environment(placed, job, options, os.environ),
            "cpus": options.cpus, "is_exclusive": options.is_exclusive,
        })  # fmt: skip
        asked.set()
        match await link.receive():
            case {"step": int(step)}:
                pass
            case {"error": str(text)}:
                raise StepError(text)
            case _:
                raise LinkLost
        pass_on(_ENDING)
        with raw_terminal(0) if options.has_terminal and os.isatty(0) else nullcontext():
            codes = await _follow(options, total, _Followed(link, step, spawn))
        if options.has_terminal:
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


async def _follow(options: StepOptions, total: int, step: _Followed) -> dict[int, int]:
    """Pass on what tasks read and write until all have ended; return their exit codes."""
    inputs = _inputs(options, total, step)
    output, codes = Output(options, total), dict[int, int]()
    while len(codes) < total:
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
                if not options.has_terminal:
                    _say_end(rank, code)
                if code and options.kills_on_bad_exit:
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
    try:
        options = parse(argv, os.environ)
        if options.shows_version:
            sys.stdout.write(f"{VERSION}\n")
            return 0
        if options.lists_mpi:
            sys.stdout.write("MPI plugin types are...\n\tnone\n")
            return 0
        return asyncio.run(_run(options, allotted(os.environ)))
    except (StepError, OSError) as error:
        sys.stderr.write(f"srun: error: {error}\n")
        return 1
    except LinkLost:
        sys.stderr.write("srun: error: the first member of the job is gone\n")
        return EXIT_UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
