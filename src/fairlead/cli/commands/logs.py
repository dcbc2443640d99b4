"""`logs`: what the members of a job wrote, live or long after their end."""

from __future__ import annotations

import time
from pathlib import Path

import click

from fairlead.api.jobs.job import Job
from fairlead.api.status import NotFound, Unavailable
from fairlead.cli.cluster.embedded import LogPart, is_embedded, stream_logs
from fairlead.cli.cluster.lookup import missing_job
from fairlead.cli.cluster.numbers import name_of
from fairlead.cli.connection.common import Common, common
from fairlead.cli.connection.completers import complete_jobs
from fairlead.cli.connection.transport import Api
from fairlead.cli.formats.program_output import ProgramOutput
from fairlead.cli.job_request.job_names import clean_reference
from fairlead.cli.records.ended_jobs import DEFAULT_NAMESPACE, past_logs, stopped
from fairlead.cli.records.follow import detached_text, member_chunks
from fairlead.cli.views.jobs import state_of, waiting
from fairlead.input.errors import CliError, Code, Exit, fail

RETRIES_MAX = 30
RETRY_SECONDS = 1.0


@click.command(
    epilog="""Examples:

    \b
      fairlead logs train-1
      fairlead logs -f train-1
      fairlead logs train-1 --task 3 --tail 100
      fairlead logs train-1 --previous          the attempt before the current one
      fairlead logs train-1 --uid UID           an older job of this name
    """
)
@click.argument("job", metavar="JOB", shell_complete=complete_jobs)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends.")
@click.option("--task", metavar="I", help="Only this member's: 3, or ROLE-3.")
@click.option("--tail", metavar="N", type=click.IntRange(0), help="Only the last N lines of each.")
@click.option("-p", "--previous", is_flag=True, help="The attempt before the current one.")
@click.option("--attempt", metavar="K", type=click.IntRange(1), help="This attempt's.")
@click.option("--uid", metavar="UID", help="Of the jobs of this name the one with this uid; "
              "history -o wide shows it.")  # fmt: skip
@click.option("--history", metavar="URL|FILE", default="",
              help="Read members that are gone from here, not through the controller.")  # fmt: skip
@common(output=False)
def logs(
    common_: Common, *, job: str, follow: bool, task: str | None, tail: int | None,
    previous: bool, attempt: int | None, uid: str | None, history: str,
) -> int:  # fmt: skip
    """Show a job's logs, also after it is gone.

    Those of a stopped cluster of this machine are read from its data directory.

    Of several members every line begins with the member's role and index; of a progress bar its
    last state is a line, and with -f one every 10 seconds. --task shows a bar as it moves.

    Of one member a pipe or a file gets the bytes as they are. A terminal gets text, colours and
    progress bars; what else controls terminals is left out. stdout and stderr are one log, in the
    order in which they were written.
    """
    if previous and (follow or attempt is not None):
        other = "--follow" if follow else "--attempt"
        raise fail(Code.BAD_COMBINATION, f"--previous and {other} do not go together",
                   help=("leave one of them out",))  # fmt: skip
    query = LogPart(
        follow=follow, task=task, attempt=attempt, previous=previous, tail=tail, uid=uid
    )
    if (data := stopped(common_)) is not None and not history:
        key = (common_.space(DEFAULT_NAMESPACE), clean_reference(job))
        return _show_stopped(common_, data, key, query)
    api = common_.connect()
    space = common_.space(api.connection.namespace)
    key = (space, clean_reference(name_of(api, space, job)))
    if follow:
        _note_not_started(common_, api, key)
    try:
        if not is_embedded(api):
            return _show_members(common_, api, key, query=query, history=history)
        return _show(common_, api, key, query)
    except KeyboardInterrupt:
        if follow:
            common_.note(f"\n{detached_text(key[1], common_.where())}")
        return Exit.INTERRUPTED


def _show_stopped(common_: Common, data: Path, key: tuple[str, str], query: LogPart) -> int:
    """Show what the data directory of a stopped cluster has."""
    if query.follow:
        common_.note("the cluster is not running: this is what was written until it stopped")
    try:
        with ProgramOutput() as output:
            is_written = past_logs(data, key, query, write=output.write)
    except NotFound as error:
        raise fail(
            Code.NO_SUCH_LOG, error.message, detail=(f"the cluster of {data} is not running",),
            help=("fairlead history -o wide lists jobs that have ended, with their uids",),
        ) from error  # fmt: skip
    if not is_written:
        common_.note(f"{key[1]} wrote nothing")
    return Exit.OK


def _show_members(
    common_: Common, api: Api, key: tuple[str, str], *, query: LogPart, history: str
) -> int:
    """Show the logs of a job on a real cluster, whose API server knows members, not jobs."""
    with ProgramOutput() as output:
        chunks = member_chunks(common_, api, key, query, history=history)
        is_written = sum(map(output.write, chunks)) > 0
    if not is_written:
        _explain_silence(common_, api, key)
    return Exit.OK


def _show(common_: Common, api: Api, key: tuple[str, str], query: LogPart) -> int:
    written = 0
    for tries_left in range(RETRIES_MAX, -1, -1):
        try:
            with ProgramOutput() as output:
                for chunk in stream_logs(api, key, query):
                    written += output.write(chunk)
        except NotFound as error:
            raise _missing(api, key, error.message) from error
        except Unavailable:
            if not query.follow or written or not tries_left:
                raise
            time.sleep(RETRY_SECONDS)
            continue
        break
    if not written:
        _explain_silence(common_, api, key)
    return Exit.OK


def _explain_silence(common_: Common, api: Api, key: tuple[str, str]) -> None:
    job = _job(api, key)
    if job is None:
        return
    if job.is_finished:
        common_.note(f"{key[1]} wrote nothing ({state_of(job)})")
        return
    common_.note(f"{key[1]} has written nothing yet ({_state_text(job)})")


def _state_text(job: Job) -> str:
    state = state_of(job)
    return waiting(job) if state in ("Waiting", "Held") else state


def _note_not_started(common_: Common, api: Api, key: tuple[str, str]) -> None:
    """Say what is waited for, so that following a job that has not started is not silent."""
    job = _job(api, key)
    if job is not None and state_of(job) in ("Waiting", "Held"):
        common_.note(f"{key[1]} has not started yet ({_state_text(job)})")


def _missing(api: Api, key: tuple[str, str], message: str) -> CliError:
    if _job(api, key) is None:
        return CliError(missing_job(api, *key))
    return fail(Code.NO_SUCH_LOG, message, help=(f"fairlead why {key[1]}",))


def _job(api: Api, key: tuple[str, str]) -> Job | None:
    from fairlead.api.resources import JOBS

    try:
        return api.get(JOBS, key[1], namespace=key[0])
    except NotFound:
        return None
