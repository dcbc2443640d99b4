"""Asking a cluster for a job's logs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fairlead.cli.embedded import logs_path
from fairlead.cli.transport import Api


@dataclass(frozen=True, slots=True)
class LogQuery:
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


def stream_logs(api: Api, key: tuple[str, str], query: LogQuery) -> Iterator[bytes]:
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
