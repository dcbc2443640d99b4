"""Signals of scancel for jobs that run: to the tasks of their steps, to one step, to the script.

A program beside the first member sends them (`member/step_signal.py`), so the right to run a
command there is the right to signal. A script that runs as it is has no steps; it is the first
process of the container, or on this machine the first child of what starts programs beside it.
Source: the manual page scancel(1).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from signal import Signals

from fairlead.api import names
from fairlead.api.kubernetes.core import Pod
from fairlead.cli.connection.transport import Api
from fairlead.cli.records.members import MemberReference, running_members
from fairlead.cli.slurm_tools.options import GivenOptions, ToolError
from fairlead.cli.slurm_tools.records import QueueRecord
from fairlead.cli.slurm_tools.states import SlurmState
from fairlead.input.errors import CliError

_STEP = re.compile(r"([^.]+)\.(\d+|batch)")
#: What ends a job, steps and all, when nothing of it is named; other signals are for its steps.
_ENDING = "KILL"
STEPS, BATCH, FULL = "steps", "batch", "full"
_AS_IT_IS = """if [ "$PPID" = 0 ]; then first=1 group=-1
else read -r first rest <"/proc/$PPID/task/$PPID/children"; group=-$first; fi
[ "$2" = batch ] || kill -s "$1" -- "$group"
[ "$2" = full ] && [ "$first" != 1 ] || kill -s "$1" "$first"
"""


@dataclass(frozen=True, slots=True)
class JobSignal:
    """A signal by its name without SIG, and to what of a job it goes: STEPS, BATCH or FULL."""

    name: str
    target: str

    @property
    def ends_jobs(self) -> bool:
        """True where the whole job is to end."""
        return self.target == STEPS and self.name == _ENDING


def asked_signal(given: GivenOptions) -> JobSignal:
    """Return what a command line asks to be sent; without --signal what ends a job. ToolError."""
    text = given.last("signal").upper().removeprefix("SIG")
    if not text:
        return JobSignal("KILL", STEPS)
    try:
        name = (Signals(int(text)) if text.isdecimal() else Signals[f"SIG{text}"]).name
    except (KeyError, ValueError):
        raise ToolError(f"Unknown job signal: {given.last('signal')}") from None
    target = BATCH if given.has("batch") else FULL if given.has("full") else STEPS
    return JobSignal(name.removeprefix("SIG"), target)


def step_of(text: str) -> tuple[str, str]:
    """Return the job of an id, and the step that it names: 36.0, 36.batch; "" for none."""
    match = _STEP.fullmatch(text)
    return (match[1], match[2]) if match else (text, "")


def to_step(signal: JobSignal, step: str) -> JobSignal:
    """Return a signal for one step, which may be `batch`, the script."""
    return replace(signal, target=step)


def send(api: Api, record: QueueRecord, signal: JobSignal) -> str:
    """Send a signal to a job, and return why not; ApiError."""
    if record.state is SlurmState.PENDING:
        return "Job is pending execution"
    namespace, name = record.job.metadata.key
    try:
        _, pods = running_members(api, namespace, MemberReference(name, None))
    except CliError as error:
        return error.problems[0].message
    container = pods[0].spec.containers[0]
    words = [*container.command, *container.args]
    if names.BATCH in words:
        python = words[words.index(names.BATCH) - 2]
        command = (python, "-m", "fairlead.member.step_signal", signal.name, signal.target)
        return _beside(api, pods[0], command)
    if signal.target not in (BATCH, FULL):
        return "it has no steps: --batch signals its script"
    command = ("sh", "-c", _AS_IT_IS, "scancel", signal.name, signal.target)
    return next(filter(None, (_beside(api, pod, command) for pod in pods)), "")


def _beside(api: Api, pod: Pod, command: tuple[str, ...]) -> str:
    """Run a command in a member; return what it says where it fails. To end with the container is
    no failure: the signal has ended what runs there.
    """
    import asyncio

    from fairlead.cli.sessions.foreground import WITH_CONTAINER
    from fairlead.cli.sessions.session import Streams, run_session
    from fairlead.kube.websocket import SocketServer

    said: list[bytes] = []
    streams = Streams(stdin=False, tty=False, out=said.append, error=said.append)
    server = SocketServer(api.connection, api.token())
    code = asyncio.run(run_session(server, pod, command, streams))
    text = b"".join(said).decode(errors="replace").strip()
    if code == 0 or (code == WITH_CONTAINER and not text):
        return ""
    return text or f"the signal could not be sent (exit code {code})"
