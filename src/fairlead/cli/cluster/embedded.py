"""What only a cluster of `fairlead up` has: the extension endpoints under /fairlead/v1,
its status and the logs of jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from fairlead.api.status import ApiError
from fairlead.app.queries.messages import ClusterStatus
from fairlead.cli.connection.transport import Api

STATUS_PATH = "/fairlead/v1/status"


def logs_path(namespace: str, job: str) -> str:
    """Return the path of a job's logs."""
    return f"/fairlead/v1/namespaces/{namespace}/jobs/{job}/logs"


def read_status(api: Api) -> ClusterStatus | None:
    """Return the cluster's own status; None when it is not one of `fairlead up`."""
    try:
        answer = api.request("GET", STATUS_PATH)
        return msgspec.json.decode(answer.body, type=ClusterStatus)
    except (ApiError, ValueError):
        return None


def is_embedded(api: Api) -> bool:
    """True when the cluster is one of `fairlead up`."""
    return read_status(api) is not None


@dataclass(frozen=True, slots=True)
class LogPart:
    """Which part: None means all tasks, the latest attempt, all lines.

    A task is `worker-3`, or `3` in a job of one role. Followed without an attempt, later attempts
    are followed too, until the job ends. `uid` is that of one of several jobs of this name.
    """

    follow: bool = False
    task: str | None = None
    attempt: int | None = None
    previous: bool = False
    tail: int | None = None
    uid: str | None = None


def stream_logs(api: Api, key: tuple[str, str], query: LogPart) -> Iterator[bytes]:
    """Yield the log's bytes; NotFound when there is no such job, attempt or task."""
    parameters: dict[str, str] = {}
    values = {"task": query.task, "attempt": query.attempt, "tail": query.tail, "uid": query.uid}
    for name, value in values.items():
        if value is not None:
            parameters[name] = str(value)
    for name, flag in (("follow", query.follow), ("previous", query.previous)):
        if flag:
            parameters[name] = "true"
    return api.chunks(logs_path(*key), parameters)
