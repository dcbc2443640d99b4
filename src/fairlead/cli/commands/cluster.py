"""`up`, `status` and `down`: the cluster on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from fairlead import terminal
from fairlead.api.jobs.job import JobState
from fairlead.app.configuration.settings import (
    GPUS_MAX,
    NODES_MAX,
    AskedLogs,
    Settings,
    UpFlags,
    parse_listen,
    resolve_profile,
    settle,
)
from fairlead.app.local.datadir import in_use, prepare, size_bytes
from fairlead.app.local.listen_address import require_address
from fairlead.app.run_file import (
    KUBECONFIG_FILE,
    LOG_FILE,
    STORE_DIRECTORY,
    RunningCluster,
    last_error,
    read_running,
)
from fairlead.cli.connection.common import Common, Format, common, now
from fairlead.cli.connection.completers import complete_profiles
from fairlead.cli.connection.connect import Choice, default_data_directory, find_connection
from fairlead.cli.views.cluster import first_commands, status_facts, status_text
from fairlead.decide.words import plural
from fairlead.input.errors import CliError, Code, Exit, fail, render_error
from fairlead.runtime.outside.processes import is_ending


def data_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --data."""
    option = click.option(
        "--data",
        metavar="DIR",
        default="",
        help="Data directory. [default: ~/.local/share/fairlead]",
    )
    return option(function)


def data_path(text: str) -> Path:
    """Return the directory that --data means; "" is the default one."""
    path = Path(text).expanduser() if text else default_data_directory(os.environ)
    return path.absolute()


@click.command(
    epilog="""Examples:

    \b
      fairlead up                          this machine as the only node
      fairlead up --nodes 200 --detach     and 200 virtual nodes with 8 GPUs each
      fairlead up --data /tmp/try --listen 127.0.0.1:0

    What is given is remembered in the data directory: a plain `fairlead up` continues.
    """
)
@click.option("--nodes", metavar="N", type=click.IntRange(0, NODES_MAX),
              help="Virtual nodes beside this machine. [default: 0]")  # fmt: skip
@click.option("--gpus", metavar="G", type=click.IntRange(0, GPUS_MAX),
              help="GPUs of each virtual node. [default: 8]")  # fmt: skip
@click.option(
    "--profile",
    metavar="FILE|NAME",
    shell_complete=complete_profiles,
    help="How virtual nodes and their pods behave.",
)
@data_option
@click.option("--listen", metavar="ADDR", help="HOST:PORT. [default: 127.0.0.1:7443]")
@click.option("--log-size", metavar="MIB", type=click.IntRange(1, 1 << 20),
              help="Size at which a member's log goes on in a new file. [default: 50]")  # fmt: skip
@click.option("--log-files", metavar="N", type=click.IntRange(1, 100),
              help="Files of a member's log that are kept. [default: 5]")  # fmt: skip
@click.option("--log-days", metavar="DAYS", type=click.IntRange(1, 36_500),
              help="How long logs are kept after their end. [default: 30]")  # fmt: skip
@click.option("--log-total", metavar="GIB", type=click.IntRange(1, 1 << 20),
              help="All logs together; the oldest go first. [default: 20]")  # fmt: skip
@click.option("--settings", "settings_file", metavar="FILE",
              help="Settings of the controllers; '' for the defaults.")  # fmt: skip
@click.option("--v1beta1/--no-v1beta1", "serves_beta", default=None,
              help="Serve fairlead.dev/v1beta1 beside v1alpha1. [default: no]")  # fmt: skip
@click.option(
    "-d", "--detach", is_flag=True, help="Run in the background; return once it is ready."
)
@common(output=False, cluster=False)
def up(
    common_: Common, *, nodes: int | None, gpus: int | None, profile: str | None, data: str,
    listen: str | None, log_size: int | None, log_files: int | None, log_days: int | None,
    log_total: int | None, settings_file: str | None, serves_beta: bool | None, detach: bool,
) -> int:  # fmt: skip
    """Start a cluster on this machine.

    One process: an API server that kubectl can talk to, this machine as a node, virtual nodes, and
    the controllers. Its state lives in the data directory and survives; unfinished jobs go on at
    the next start. Ctrl-C stops it.
    """
    path = data_path(data)
    logs = AskedLogs(log_size, log_files, log_days, log_total)
    profile = None if profile is None else resolve_profile(profile)
    if settings_file:
        settings_file = str(Path(settings_file).expanduser().absolute())
    asked = UpFlags(nodes, gpus, profile, listen, logs, settings_file, serves_beta)
    if listen is not None:
        parse_listen(listen)
    if not path.exists():  # what cannot be is said before anything is made
        settings = settle(path, asked)
        _check_profile(settings)
        require_address(settings)
    prepare(path)
    running = read_running(path)
    if running is not None and not is_ending(running.pid):  # else the store waits for its end
        raise in_use(path)
    settings = settle(path, asked)
    _check_profile(settings)
    if detach:
        return _detach(common_, settings)
    return _foreground(common_, settings)


def _check_profile(settings: Settings) -> None:
    from fairlead.embedded.virtual.profile import load_profile

    load_profile(settings.profile)


def _foreground(common_: Common, settings: Settings) -> int:
    from fairlead.app.local.embedded_process import run_cluster

    def ready(running: RunningCluster) -> None:
        text = first_commands(settings, running, default=_is_default(settings.data))
        common_.emit(_announced(common_, settings, text))

    common_.note(f"Starting the cluster of {settings.data}")
    run_cluster(
        settings, ready=ready, log_stream=sys.stderr, verbosity=common_.verbosity,
        say=common_.note,
    )  # fmt: skip
    common_.note("The cluster is stopped; its state is kept.")
    return Exit.OK


def _detach(common_: Common, settings: Settings) -> int:
    from fairlead.app.local.launch import start_detached

    report = start_detached(settings.data, partial(_background, settings))
    if report.error:
        terminal.tell(report.error.removesuffix("\n"))
        return report.exit_code
    common_.emit(_announced(common_, settings, report.ready))
    return Exit.OK


def _announced(common_: Common, settings: Settings, text: str) -> str:
    """Return what is printed once the cluster answers; of that, -q leaves what is data."""
    return f"{settings.data / KUBECONFIG_FILE}\n" if common_.quiet else text


def _background(settings: Settings, ready_fd: int) -> int:
    """Be the background process: report through the pipe, then only to the log."""
    from fairlead.app.local.embedded_process import run_cluster
    from fairlead.app.local.launch import LaunchReport, send_report

    is_ready = False

    def ready(running: RunningCluster) -> None:
        nonlocal is_ready
        is_ready = True
        text = first_commands(settings, running, default=_is_default(settings.data))
        send_report(ready_fd, LaunchReport(ready=text))

    try:
        run_cluster(settings, ready=ready, log_stream=sys.stderr, verbosity=0)
    except CliError as error:
        if is_ready:
            raise
        send_report(ready_fd, LaunchReport(error=render_error(error), exit_code=int(error.exit)))
        return error.exit
    return Exit.OK


def _is_default(data: Path) -> bool:
    return data == default_data_directory(os.environ).absolute()


@click.command(
    epilog="""Examples:

    \b
      fairlead status
      fairlead status -o json
    """
)
@data_option
@common()
def status(common_: Common, *, data: str) -> int:
    """Show how the cluster on this machine does: its process, nodes, jobs, and each service.

    The exit code is 0 when all is well, 1 when a service is not, 6 when no cluster runs.
    """
    from fairlead.cli.cluster.embedded import read_status
    from fairlead.cli.connection.transport import Api

    path = data_path(data)
    running = read_running(path)
    if running is None:
        raise _not_running(path)
    choice = Choice(kubeconfig=str(path / KUBECONFIG_FILE))
    found = read_status(Api(find_connection(choice, os.environ)))
    if found is None:
        raise fail(
            Code.BAD_ANSWER, f"process {running.pid} does not answer as a cluster should",
            help=(f"its log: {path / LOG_FILE}",),
        )  # fmt: skip
    facts = status_facts(running, found, size_bytes(path), now())
    if common_.is_structured:
        common_.data(facts)
    elif common_.format is Format.NAME:
        common_.emit(f"{running.server}\n")
    else:
        common_.emit(status_text(path, running, found, (size_bytes(path), now())))
    return Exit.OK if all(service.is_well for service in found.services) else Exit.FAILED


def _not_running(path: Path) -> CliError:
    has_state, why = (path / STORE_DIRECTORY).is_dir(), last_error(path)
    return fail(
        Code.NOT_RUNNING, f"no cluster is running on {path}",
        detail=(*([f"it ended: {why}"] if why else ()),
                *(["its state is kept and goes on at the next start"] if has_state else ())),
        help=("fairlead up --detach" + ("" if _is_default(path) else f" --data {path}"),),
    )  # fmt: skip


def _active_jobs(path: Path) -> int:
    """Return how many jobs run on the cluster of this directory; 0 where it does not answer."""
    from fairlead.api.status import ApiError
    from fairlead.cli.cluster.embedded import read_status
    from fairlead.cli.connection.transport import Api

    try:
        choice = Choice(kubeconfig=str(path / KUBECONFIG_FILE))
        found = read_status(Api(find_connection(choice, os.environ), timeout_seconds=2.0))
    except (CliError, ApiError):
        return 0
    states = (JobState.STARTING, JobState.RUNNING, JobState.RESTARTING)
    return sum(found.jobs.get(state.value, 0) for state in states) if found is not None else 0


@click.command(
    epilog="""Examples:

    \b
      fairlead down
      fairlead down --data /tmp/try
    """
)
@data_option
@common(output=False, cluster=False)
def down(common_: Common, *, data: str) -> int:
    """Stop the cluster on this machine; its state is kept.

    Processes of jobs on this machine are ended; the next `fairlead up` continues the jobs from
    their last checkpoints.
    """
    from fairlead.app.local.launch import stop

    path = data_path(data)
    running = read_running(path)
    if running is None:
        common_.note(f"no cluster is running on {path}")
        return Exit.OK
    active = _active_jobs(path)
    stop(running)
    common_.note(f"The cluster of {path} is stopped; its state is kept.")
    if active:
        they, it = ("They go", "their") if active > 1 else ("It goes", "its")
        common_.note(f"{plural(active, 'job')} stopped. {they} on at the next start, from {it} "
                     "last checkpoint")  # fmt: skip
    return Exit.OK
