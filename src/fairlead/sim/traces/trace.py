"""What a trace holds, whatever format it came in: jobs with their arrival, shape and run time."""

from __future__ import annotations

from dataclasses import dataclass

#: Rejected lines that are reported one by one; the others are only counted.
PROBLEMS_SHOWN_MAX = 20


class BadLine(ValueError):
    """This line is not a job; the reader goes on."""


@dataclass(frozen=True, slots=True)
class AfterJob:
    """Another job of the trace, and the state (of `AfterState`) in which it is waited for."""

    state: str
    name: str


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job. `at_seconds` counts from the trace's first arrival.

    `gpus`, `cpu_milli` and `memory_bytes` are per member. `limit_seconds` is the time limit that
    the user stated, None when there is none. `waited_seconds` and `nodes`, a list of hosts, are
    what became of it where it was recorded; None and "" where that is not known.
    """

    at_seconds: float
    name: str
    members: int
    gpus: int
    run_seconds: float
    tenant: str = "default"
    limit_seconds: float | None = None
    cpu_milli: int = 1000
    memory_bytes: int = 1 << 30
    #: Its program ends with an error.
    fails: bool = False
    waited_seconds: float | None = None
    nodes: str = ""
    after: tuple[AfterJob, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceProblem:
    """A line that is not a job. `line` counts from 1."""

    line: int
    message: str


@dataclass(frozen=True, slots=True)
class Trace:
    """The jobs in order of arrival, what the reader assumed, and the lines that it left out."""

    source: str
    format: str
    jobs: tuple[TraceJob, ...]
    assumptions: tuple[str, ...] = ()
    problems: tuple[TraceProblem, ...] = ()
    problem_count: int = 0

    @property
    def seconds(self) -> float:
        """Time between the first and the last arrival."""
        return self.jobs[-1].at_seconds if self.jobs else 0.0


class TraceError(ValueError):
    """The file is not a trace; the message names the file, the place and what is accepted."""
