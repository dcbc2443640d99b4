"""Following a job: its state on stderr, its logs on stdout, its end as exit code."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from fairlead import terminal
from fairlead.api.jobs.job import Job, JobState
from fairlead.api.jobs.simulated import is_simulated
from fairlead.api.status import NotFound, Unavailable
from fairlead.cli.cluster.embedded import LogPart, is_embedded, stream_logs
from fairlead.cli.connection.common import Common
from fairlead.cli.connection.transport import Api
from fairlead.cli.formats.program_output import ProgramOutput, discard_output
from fairlead.cli.records.watching import Gone, job_changes
from fairlead.cli.views.jobs import (
    SIMULATED,
    ending,
    exit_code,
    places,
    state_of,
    verdict_of,
    where_or_why,
)
from fairlead.input.errors import CliError, Exit

RETRY_SECONDS = 0.5


def detached_text(name: str, where: str) -> str:
    """Return how to return to a job that goes on without us; `where` are flags that this needs."""
    at = f"{name}{where}"
    return f"Job {name} goes on.    fairlead logs -f {at}    fairlead cancel {at}"


def follow_job(common_: Common, api: Api, key: tuple[str, str], *, uid: str = "") -> int:
    """Follow a job to its end and return the exit code; Ctrl-C stops the following only.

    `uid` is that of a job whose object goes with its end, as an element's of an array: the history
    has the end then.
    """
    name = key[1]
    try:
        job = _follow(common_, api, key)
    except KeyboardInterrupt:
        common_.note(f"\n{detached_text(name, common_.where())}")
        return Exit.INTERRUPTED
    except (Gone, NotFound):
        from fairlead.cli.records.ended_jobs import past_job

        ended = past_job(common_, name, uid=uid) if uid else None
        if ended is None:
            terminal.tell(f"job {name} was deleted")
            return Exit.FAILED
        job = ended
    code = exit_code(job)
    text = f"{name} {state_of(job)}: {ending(job)}"
    if is_simulated(job) and is_embedded(api):
        text += SIMULATED
    if code:
        terminal.tell(text)  # an error: also with -q
    else:
        common_.note(text)
    return code


def _follow(common_: Common, api: Api, key: tuple[str, str]) -> Job:
    """Tell states until an attempt has something to show, show it, and so on until the end."""
    said = ""
    shown_attempt = 0
    while True:
        for job in job_changes(api, key):
            text = state_line(job)
            if text not in ("", said):
                common_.note(f"{key[1]} {text}")
                said = text
            has_news = job.status.attempt > shown_attempt and _has_started(job)
            if has_news or job.is_finished:
                break
        else:
            raise AssertionError("a job's changes never end")
        if has_news:
            shown_attempt = job.status.attempt
            _show(common_, api, key, attempt=shown_attempt)
        elif job.is_finished:
            return job


def _has_started(job: Job) -> bool:
    members = job.status.members
    return members.running + members.succeeded + members.failed > 0


def state_line(job: Job) -> str:
    """Return what to say of a state; "" for one that passes at once or is said at the end."""
    state = state_of(job)
    is_placed = job.status.placement is not None
    if job.is_finished or (state == JobState.WAITING.value and is_placed):
        return ""
    if is_placed and state in (JobState.STARTING.value, JobState.RUNNING.value):
        attempt = f" (attempt {job.status.attempt})" if job.status.attempt > 1 else ""
        return f"{state} on {places(job)}{attempt}"
    if state == JobState.WAITING.value and verdict_of(job) is None and not job.spec.suspend:
        return ""
    text = where_or_why(job)
    return text if text.startswith(f"{state}: ") else f"{state}: {text}"


def until_started(common_: Common, api: Api, key: tuple[str, str]) -> Job:
    """Return the job once its members run, or it has ended; say meanwhile why it waits."""
    said = ""
    for job in job_changes(api, key):
        text = state_line(job)
        if text not in ("", said):
            common_.note(f"{key[1]} {text}")
            said = text
        if job.is_finished or job.status.state == JobState.RUNNING.value:
            return job
    raise AssertionError("a job's changes never end")


def stream(common_: Common, api: Api, key: tuple[str, str], query: LogPart) -> Iterator[bytes]:
    """Return the logs of a job; a server of its own knows jobs, any other one only members."""
    if is_embedded(api):
        return stream_logs(api, key, query)
    return member_chunks(common_, api, key, query)


def member_chunks(
    common_: Common, api: Api, key: tuple[str, str], query: LogPart, *, history: str = ""
) -> Iterator[bytes]:
    """Return the logs of a job's members, from the archive of `history` those that are gone."""
    from fairlead.cli.cluster.archive import Archive, direct_store
    from fairlead.cli.records.memberlogs import MemberLogs

    archive = Archive(api, direct_store(history, os.environ))
    return MemberLogs(api, archive, key, query, common_.note).stream()


def _show(common_: Common, api: Api, key: tuple[str, str], *, attempt: int) -> None:
    """Copy an attempt's logs to stdout; a log that is not there yet is asked for again.

    So is one whose connection was lost, from its start: the parts of a log of several members may
    come in another order.
    """
    query, shown = LogPart(follow=True, attempt=attempt), 0
    while True:
        try:
            with ProgramOutput() as output:
                for chunk in stream(common_, api, key, query):
                    shown += output.write(chunk)
        except BrokenPipeError:  # the reader has closed the pipe; the job goes on, and so do we
            discard_output()
            return
        except NotFound:
            return
        except Unavailable:
            if shown:
                common_.note("the connection was lost; the log is shown again from its start")
            shown = 0
            time.sleep(RETRY_SECONDS)
            continue
        except CliError as error:  # members of this attempt are gone, and no archive has them
            common_.note(str(error))
        return
