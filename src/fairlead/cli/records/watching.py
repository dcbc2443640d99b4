"""Following one job or array over the API, through watches that end, break or grow too old."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.resources import JOBS, Resource
from fairlead.api.status import ApiError, Expired, NotFound, Unavailable
from fairlead.cli.connection.transport import Api
from fairlead.input.errors import CliError, Code
from fairlead.runtime.client import EventType

W = TypeVar("W", Job, JobArray)
RETRY_SECONDS = 1.0
SILENT_SECONDS_MAX = 30.0  # how long the cluster may be away before following gives up


class Gone(Exception):
    """The object was deleted while it was being followed."""


def job_changes(api: Api, key: tuple[str, str], *, deadline: float | None = None) -> Iterator[Job]:
    """Yield the job as it is, and again at each change; see `changes`."""
    return changes(api, JOBS, key, deadline=deadline)


def changes(
    api: Api, resource: Resource[W], key: tuple[str, str], *, deadline: float | None = None
) -> Iterator[W]:
    """Yield an object as it is, and again at each change, for as long as it is wanted.

    `deadline` is of `time.monotonic`; past it TimeoutError. NotFound when there is no such object
    at first, Gone when it is deleted later, CliError E600 when the cluster is away for too long.
    """
    namespace, name = key
    version, away_since = "", None
    seen = False
    while True:
        try:
            if not version:
                found = api.get(resource, name, namespace=namespace)
                version, seen, away_since = found.metadata.resource_version, True, None
                yield found
            for event in api.watch_one(
                resource, name, namespace=namespace, resource_version=version,
                timeout_seconds=_left(deadline),
            ):  # fmt: skip
                version = event.resource_version
                if event.type is EventType.DELETED:
                    raise Gone(name)
                if event.object is not None:
                    yield event.object
        except NotFound as error:
            if seen:
                raise Gone(name) from error
            raise
        except Expired:
            version = ""
        except (Unavailable, CliError) as error:
            if isinstance(error, CliError) and error.problems[0].code is not Code.UNREACHABLE:
                raise
            away_since = away_since or time.monotonic()
            if not seen or time.monotonic() - away_since > SILENT_SECONDS_MAX:
                raise
            version = ""  # reading the object shows whether the cluster is back
            time.sleep(min(RETRY_SECONDS, _left(deadline) or RETRY_SECONDS))


def attempt_end(connect: Callable[[], Api], job: Job) -> Job | None:
    """Return the job where its attempt has ended; None where it goes on, or is not known. Gone."""
    try:
        found = connect().get(JOBS, job.metadata.name, namespace=job.metadata.namespace)
    except NotFound as error:
        raise Gone(job.metadata.name) from error
    except (ApiError, CliError):
        return None  # a cluster that is away for a while
    if found.metadata.uid != job.metadata.uid:
        raise Gone(job.metadata.name)
    is_on = found.status.attempt == job.status.attempt and not found.is_finished
    return None if is_on else found


def _left(deadline: float | None) -> float | None:
    """Return the seconds left; TimeoutError when there are none."""
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
