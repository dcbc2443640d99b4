"""`agent`: the health of this machine, by one look or all the time."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.cli.common import Common, common
from fairlead.cli.views.agent import (
    FAULT_COLUMNS,
    SOURCE_COLUMNS,
    fault_rows,
    source_rows,
    summary_line,
)
from fairlead.input.errors import CliError, Code, Exit, fail, writing
from fairlead.model.faults import identity
from fairlead.node.host import Host, NotAHost
from fairlead.node.readers import look_once
from fairlead.node.registry import load_settings, sources
from fairlead.node.report import report_of, report_values
from fairlead.node.settings import AgentSettings
from fairlead.node.watch import Kept, Watch

if TYPE_CHECKING:
    from fairlead.node.state import State

_ROOT = click.option(
    "--root", metavar="DIR", default="/", show_default=True,
    help="Root directory of the machine, as mounted into a container.",
)  # fmt: skip
_CONFIG = click.option(
    "--config", metavar="FILE", default="", help="YAML with limits and expectations."
)


@click.group(
    epilog="""Examples:

    \b
      fairlead agent check
      fairlead agent check --config node.yaml -o json
      fairlead agent check --root /host
      fairlead agent run --state /var/lib/fairlead/agent.db --report /run/fairlead/node.json
    """
)
def agent() -> None:
    """Look after the health of this machine.

    Reads what the kernel says of GPUs, memory, PCI devices, network, disks and processes. Needs no
    cluster, and changes nothing.
    """


@agent.command(
    epilog="""Examples:

    \b
      fairlead agent check
      fairlead agent check --config node.yaml -o json

    Exit codes: 0 healthy, 1 faults that are warnings or critical. What could not be looked at is
    listed, and changes nothing.
    """
)
@_ROOT
@_CONFIG
@common(cluster=False)
def check(common_: Common, *, root: str, config: str) -> int:
    """Look once, and show the faults and what was not checked.

    Growth of counters, and how long something lasts, is judged by `fairlead agent run` only.
    """
    settings = load_settings(config)
    host = Host(Path(root))
    try:
        watch = asyncio.run(_look(host, settings))
        report = report_of(watch, host.now(), machine_id=host.machine_id())
    except NotAHost as error:
        raise _not_a_host(error) from error
    if common_.is_structured:
        common_.data(report_values(report))
    else:
        common_.table(FAULT_COLUMNS, fault_rows(report), empty="no faults")
        if not common_.quiet:
            common_.emit("\n" if report.faults else "")
            common_.table(SOURCE_COLUMNS, source_rows(report), empty="all sources are off")
        common_.note(summary_line(report))
    return Exit.OK if report.is_healthy else Exit.FAILED


@agent.command(
    epilog="""Examples:

    \b
      fairlead agent run --state /var/lib/fairlead/agent.db --report /run/fairlead/node.json

    Ends at SIGTERM and SIGINT with what it knows kept. Exit codes: 0, or 2 to 5 when it cannot
    start.
    """
)
@click.option(
    "--state", metavar="FILE", required=True,
    help="SQLite file that keeps faults and counters over restarts and reboots.",
)  # fmt: skip
@click.option(
    "--report", metavar="FILE", required=True,
    help="JSON file that is replaced whenever something changes.",
)  # fmt: skip
@_ROOT
@_CONFIG
@common(output=False, cluster=False)
def run(_common: Common, *, state: str, report: str, root: str, config: str) -> None:
    """Look all the time, and keep a report of the machine's health in a file.

    Each source is looked at once in its period, one second at the least. A source that hangs, fails
    or loses something says so in the report and holds up no other.
    """
    from fairlead.node.state import StateError, open_state

    settings = load_settings(config)
    host = Host(Path(root))
    with writing(state), _only_one(Path(state)):
        try:
            asyncio.run(_run(host, settings, open_state(Path(state)), Path(report)))
        except StateError as error:
            raise fail(Code.DATA_UNWRITABLE, f"--state: {error}",
                       help=("name another file, or move this one away",)) from error  # fmt: skip
        except NotAHost as error:
            raise _not_a_host(error) from error


@agent.command(
    epilog="""Examples:

    \b
      fairlead agent clear --state /var/lib/fairlead/agent.db gpu-xid 0000:3b:00 79
    """
)
@click.argument("check", metavar="CHECK")
@click.argument("component", metavar="COMPONENT")
@click.argument("codes", metavar="[CODE...]", nargs=-1)
@click.option("--state", metavar="FILE", required=True, help="State of the running agent.")
@common(output=False, cluster=False)
def clear(
    common_: Common, *, check: str, component: str, codes: tuple[str, ...], state: str
) -> None:
    """End a fault that only a person can end, after the repair.

    The agent does it within a second; a fault that is still there is found again.
    """
    from fairlead.node import state as states

    if not Path(state).exists():
        raise fail(Code.BAD_VALUE, f"--state: there is no '{state}'",
                   help=("name the file that fairlead agent run uses",))  # fmt: skip
    of = identity(check, component, codes)
    try:
        is_open = states.clear(Path(state), of)
    except states.StateError as error:
        raise fail(Code.DATA_UNWRITABLE, f"--state: {error}") from error
    if not is_open:
        raise fail(Code.BAD_VALUE, f"no open fault {' '.join((check, component, *codes))}",
                   help=("the report of the agent names check, component and codes",))  # fmt: skip
    common_.note("requested; the agent ends the fault within a second")


@contextmanager
def _only_one(state: Path) -> Generator[None]:
    """Hold the lock of a state file; CliError when another agent has it."""
    import fcntl

    with state.with_name(f"{state.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise fail(Code.DATA_IN_USE, f"another agent uses '{state}'",
                       help=("end it first, or name another file",)) from error  # fmt: skip
        yield


async def _run(host: Host, settings: AgentSettings, state: State, report: Path) -> None:
    from fairlead.app.signals import stop_on_signals
    from fairlead.node.agent import Agent
    from fairlead.runtime.logs import configure

    running = Agent(
        host, sources(host, settings), state, report=report,
        read_seconds_max=settings.read_seconds_max, report_seconds=settings.report_seconds,
        log=configure(clock=host.clock),
    )  # fmt: skip
    stop_on_signals(running.stop)
    with closing(state), writing(report):
        await running.run()


def _not_a_host(error: NotAHost) -> CliError:
    return fail(Code.BAD_VALUE, f"--root: {error}", help=("name the root of a host",))


async def _look(host: Host, settings: AgentSettings) -> Watch:
    chosen = sources(host, settings)
    watch = Watch(chosen, Kept(), boot_id=host.boot_id(), now=host.now())
    await look_once(chosen, watch, host, settings.read_seconds_max)
    return watch
