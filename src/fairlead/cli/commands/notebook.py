"""`notebook`: JupyterLab in a job of its own, on an address of this machine."""

from __future__ import annotations

import os
import time
from typing import Any

import click

from fairlead.api.jobs.job import Job
from fairlead.cli.cluster.lookup import find_job, missing_job
from fairlead.cli.cluster.numbers import name_of
from fairlead.cli.commands.submit import (
    flag_values,
    job_flags,
    submit_request,
)
from fairlead.cli.connection.common import Common, common, now
from fairlead.cli.connection.completers import complete_jobs
from fairlead.cli.connection.transport import Api
from fairlead.cli.formats.text import parse_duration
from fairlead.cli.job_request.request import parse_request
from fairlead.cli.records.follow import until_started
from fairlead.cli.records.last_lines import last_lines
from fairlead.cli.records.members import MemberReference, running_members
from fairlead.cli.records.watching import Gone
from fairlead.cli.sessions.foreground import require_one_program
from fairlead.cli.sessions.notebook import is_notebook, notebook_program
from fairlead.cli.views.jobs import ending, exit_code, state_of
from fairlead.cli.views.why import last_lines_text
from fairlead.input.errors import CliError, Code, Exit, fail

#: Before a job is looked at again that runs, but whose member does not.
LOOK_SECONDS = 0.5


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="""Examples:

    \b
      fairlead notebook --gpus 1 --time 8h
      fairlead notebook --image quay.io/jupyter/pytorch-notebook
      fairlead notebook --join notebook-1
      fairlead notebook -- --ServerApp.root_dir=/data
    """,
)
@click.argument("arguments", metavar="[-- ARGS]", nargs=-1, type=click.UNPROCESSED)
@click.option("--join", metavar="JOB", shell_complete=complete_jobs,
              help="Go on with this notebook, which runs already.")  # fmt: skip
@click.option("--idle", metavar="DURATION", default="4h", show_default=True,
              help="End kernels that have been idle for so long, and the job once it had none for "
              "so long; 0s: never.")  # fmt: skip
@click.option("--port", metavar="PORT", type=click.IntRange(0, 65_535),
              help="Port of this machine; 0: a free one. [default: the same for the same "
              "notebook]")  # fmt: skip
@click.option("--browser", is_flag=True, help="Open the address in a browser.")
@job_flags
@common(output=False)
def notebook(
    common_: Common, *, arguments: tuple[str, ...], join: str | None, idle: str, port: int | None,
    browser: bool, **options: Any,
) -> int:  # fmt: skip
    """Open JupyterLab in a job, or join it again.

    The address on stdout leads to the job for as long as this command runs. Ctrl-C, or the loss of
    this machine, ends the way there, not the job: kernels go on, and --join leads to the same
    address again. ARGS are given to JupyterLab, which has to be there: in the image, or in the
    PATH of this machine's node.
    """
    if join is not None:
        if flag_values(options) or arguments:
            raise fail(Code.BAD_COMBINATION, "--join goes with --port and --browser alone",
                       help=("leave --join out for a new notebook",))  # fmt: skip
        api = common_.connect()
        space = common_.space(api.connection.namespace)
        job = find_job(api, space, name_of(api, space, join))
        if not is_notebook(job):
            name = job.metadata.name
            raise fail(Code.BAD_VALUE, f"--join: job {name} is no notebook",
                       help=(f"fairlead forward {name} PORT leads to a port of it",))  # fmt: skip
    else:
        api, job = _submit(common_, arguments, idle, options)
    return _open(common_, api, job, port, browser=browser)


def _submit(
    common_: Common, arguments: tuple[str, ...], idle: str, options: dict[str, Any]
) -> tuple[Api, Job]:
    try:
        idle_seconds = int(parse_duration(idle))
    except ValueError as error:
        raise fail(Code.BAD_VALUE, f"--idle: {error}") from error
    request, problems = parse_request(flag_values(options), os.environ, now=now())
    if problems:
        raise CliError(problems)
    if request.array is not None:
        raise fail(Code.BAD_COMBINATION, "notebook starts one job, --array makes many",
                   help=("leave --array out",))  # fmt: skip
    require_one_program(request, "notebook")
    return submit_request(common_, request, notebook_program(idle_seconds, arguments))


def _open(common_: Common, api: Api, job: Job, port: int | None, *, browser: bool) -> int:
    """Lead to each attempt's server until the job has ended; Ctrl-C leaves it running."""
    key = job.metadata.key
    try:
        while not job.is_finished:
            job = until_started(common_, api, key)
            if not job.is_finished:
                job = _lead(common_, api, job, port, browser=browser)
                browser = False
    except Gone:
        raise CliError(missing_job(api, *key)) from None
    except KeyboardInterrupt:
        where = common_.where()
        common_.note(f"\n{key[1]} goes on; fairlead notebook{where} --join {key[1]} joins it "
                     f"again, fairlead cancel{where} {key[1]} ends it")  # fmt: skip
        return Exit.OK
    common_.note(f"{key[1]} {state_of(job)}: {ending(job)}")
    if (last := last_lines(common_, api, job)) is not None:
        common_.note(last_lines_text(key[1], last.member, last.lines).rstrip())
    return exit_code(job)


def _lead(common_: Common, api: Api, job: Job, port: int | None, *, browser: bool) -> Job:
    """Lead to the server of the current attempt until that has ended, and return the job then."""
    import asyncio

    from fairlead.cli.sessions.notebook_way import NotebookWay
    from fairlead.kube.websocket import SocketServer

    namespace, name = job.metadata.key
    try:
        _, pods = running_members(api, namespace, MemberReference(name, None))
    except CliError as error:
        if error.problems[0].code is not Code.NOT_STARTED:
            raise
        time.sleep(LOOK_SECONDS)  # its program has just ended, or begins again
        return job

    def found(address: str) -> None:
        common_.lines([address])
        if browser:
            import webbrowser

            webbrowser.open(address)

    way = NotebookWay(api, SocketServer(api.connection, api.token()), job, pods[0])
    return asyncio.run(way.lead(port, found))
