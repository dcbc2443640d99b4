"""The archive of logs: what jobs and pods wrote, live and long after they are gone.

Logs are plain files (fairlead/embedded/local/logfiles.py says where), so that reading them needs
neither the pod nor the job. A file with a mark beside it may still grow; following it means
looking at its size a few times a second, which costs a stat and, unlike inotify, works on any file
system.

A job's tasks are put side by side as whole lines with `[role-index]` in front. Simulated pods have
no log; the archive says so instead of showing an empty one.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.simulated import is_simulated
from fairlead.api.resources import JOBS, NODES, PODS
from fairlead.api.status import ApiError, BadRequest, NotFound
from fairlead.embedded.http.streams.logs import LINES_MAX, LogOptions
from fairlead.embedded.local import logfiles
from fairlead.embedded.local.containers import Unsupported
from fairlead.embedded.local.poddir import safe
from fairlead.embedded.logs.tail import Tail
from fairlead.runtime.client import Client
from fairlead.runtime.kept.history import ATTEMPT_MAX, NUMBER_DIGITS_MAX
from fairlead.runtime.kept.loglines import LineCutter

VIRTUAL = "virtual"
#: Between two looks at files that are followed, and at the job they belong to.
POLL_SECONDS, JOB_POLL_SECONDS = 0.15, 1.0


@dataclass(frozen=True, slots=True)
class JobLogQuery:
    """What to show of a job's logs. `attempt` None is the latest; `previous` the one before it.

    `task` is a rank's name such as `worker-3`, or, where the job has one role, just `3`; None is
    all. With `follow` and no `attempt`, later attempts are followed, too, until the job has ended.
    `uid` says which of the jobs that had this name one after the other; None is the latest.
    """

    attempt: int | None = None
    task: str | None = None
    tail_lines: int | None = None
    follow: bool = False
    previous: bool = False
    uid: str | None = None


class TaskLog(msgspec.Struct, frozen=True, rename="camel"):
    """One task's log in the list. `live` says that more may come."""

    task: str
    bytes: int
    live: bool


class AttemptLogs(msgspec.Struct, frozen=True, rename="camel"):
    """The logs of one attempt, tasks in order of role and index."""

    attempt: int
    tasks: tuple[TaskLog, ...]


class JobLogs(msgspec.Struct, frozen=True, rename="camel"):
    """All logs of a job, attempts in order."""

    namespace: str
    job: str
    attempts: tuple[AttemptLogs, ...]


def parse_query(parameters: Mapping[str, str]) -> JobLogQuery:
    """Return the query of a request's parameters; BadRequest names all that are wrong."""
    wrong: list[str] = []

    def number(name: str, most: int) -> int | None:
        text = parameters.get(name, "")
        if not text:
            return None
        is_number = text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX
        if not (is_number and int(text) <= most):
            wrong.append(f"{name}={text[:NUMBER_DIGITS_MAX]!r}, accepted: 0 to {most}")
            return None
        return int(text)

    def flag(name: str) -> bool:
        text = parameters.get(name, "").lower()
        if text not in ("", "0", "1", "true", "false"):
            wrong.append(f"{name}={text!r}, accepted: 0, 1, true, false")
        return text in ("1", "true")

    query = JobLogQuery(
        attempt=number("attempt", ATTEMPT_MAX),
        task=parameters.get("task") or None,
        tail_lines=number("tail", LINES_MAX),
        follow=flag("follow"),
        previous=flag("previous"),
        uid=parameters.get("uid") or None,
    )
    accepted = ("attempt", "task", "tail", "follow", "previous", "uid", "list")
    unknown = [key for key in parameters if key not in accepted]
    wrong += [f"{key}: unknown, accepted: {', '.join(accepted)}" for key in unknown]
    if query.previous and query.attempt is not None:
        wrong.append("previous and attempt: give one of them")
    if wrong:
        raise BadRequest("invalid log query: " + "; ".join(wrong))
    return query


class LogArchive:
    """Reads logs below `data_dir`; the client says why there is none, and when a job has ended.

    It is a `LogSource` of the API server. `client` is None where the cluster is stopped: only logs
    of jobs are read then, and there are no objects.
    """

    def __init__(self, data_dir: Path, client: Client | None) -> None:
        self._logs = data_dir / "logs"
        self._client = client

    # Pods

    async def read(
        self, namespace: str, pod_name: str, container: str, options: LogOptions
    ) -> AsyncIterator[bytes]:
        """Return the log of a container; see `LogSource.read`."""
        if options.timestamps or options.since is not None:
            raise BadRequest(
                "the local node keeps logs as they were written, without the time of each line: "
                "leave out timestamps and since; tailLines and limitBytes work"
            )
        try:
            path = logfiles.index_entry(self._logs, namespace, pod_name, container).resolve()
        except Unsupported as error:
            raise NotFound(f"no log of pod {pod_name}: {error}") from error
        if options.previous:
            path = logfiles.previous_log(path)
        if not path.is_file():
            return await self._explain(namespace, pod_name, container, options=options)
        tail = Tail(path, options.tail_lines)
        return self._pieces(tail, options.limit_bytes, follow=options.follow)

    async def _explain(
        self, namespace: str, pod_name: str, container: str, *, options: LogOptions
    ) -> AsyncIterator[bytes]:
        """Say why there is no file: the pod is simulated, or has not started."""
        assert self._client is not None
        pod = await self._client.get(PODS, pod_name, namespace=namespace)
        where = f'container "{container}" in pod "{pod_name}"'
        node = pod.spec.node_name
        if node and await self._is_virtual(node):
            return _just(f"pod {pod_name} is simulated on virtual node {node}: it has no log\n")
        if options.previous:
            raise BadRequest(f"previous terminated {where} not found")
        if pod.is_terminal:
            raise NotFound(f"the log of {where} is gone")
        raise BadRequest(f"{where} is waiting to start: ContainerCreating")

    async def _is_virtual(self, node: str) -> bool:
        assert self._client is not None
        try:
            found = await self._client.get(NODES, node)
        except NotFound:
            return False
        return found.metadata.labels.get(names.NODE_TYPE) == VIRTUAL

    async def _pieces(
        self, tail: Tail, limit_bytes: int | None, *, follow: bool
    ) -> AsyncGenerator[bytes, None]:
        left = limit_bytes
        while True:
            live = follow and tail.is_live()  # before reading: what comes later is seen next time
            while chunk := tail.read():
                if left is not None:
                    chunk, left = chunk[:left], left - len(chunk)
                yield chunk
                if left is not None and left <= 0:
                    return
            if not live:
                return
            await asyncio.sleep(POLL_SECONDS)

    # Jobs

    def list_job(self, namespace: str, job: str, uid: str | None = None) -> JobLogs | None:
        """Return what logs there are of a job; None when there are none at all."""
        folder = self._job_folder(namespace, job, uid)
        if folder is None or not folder.is_dir():
            return None
        numbers = sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit())
        attempts = tuple(AttemptLogs(n, _tasks(folder / str(n))) for n in numbers)
        return JobLogs(namespace, job, attempts) if attempts else None

    async def describe_job(self, namespace: str, job: str) -> JobLogs:
        """Return the list of a job's logs, empty for a job without any; NotFound with
        near names.
        """
        found = self.list_job(namespace, job)
        if found is None and await self._find_job(namespace, job) is None:
            raise await self._unknown(namespace, job)
        return found or JobLogs(namespace, job, ())

    async def read_job(self, namespace: str, job: str, query: JobLogQuery) -> AsyncIterator[bytes]:
        """Return a job's logs, tasks side by side when there are several.

        NotFound when there is no such job (with near names), attempt or task; BadRequest when the
        job has not started and is not to be followed.
        """
        found = self.list_job(namespace, job, query.uid)
        known = await self._find_job(namespace, job, query.uid)
        if found is None and known is None:
            if query.uid is not None:
                raise NotFound(f"no logs of a job {job} with uid {query.uid} in {namespace}")
            raise await self._unknown(namespace, job)
        if found is None and known is not None:
            simulated = await self._simulated(known)
            if simulated:
                return _just(simulated)
            if not query.follow or known.is_finished:
                raise NotFound(f"job {job} has no logs: none of its members has started")
        attempt = query.attempt
        if attempt is None and found is not None:
            attempt = found.attempts[-1].attempt - (1 if query.previous else 0)
            if not attempt:
                raise NotFound(f"job {job} has had one attempt only: there is no previous one")
        if found is not None and (not query.follow or query.previous):
            _require_tasks(found, attempt or 0, query.task)
        alone = query.task is not None or _is_single(known, found)
        if not query.follow:
            folder = self._attempt_folder((namespace, job), query.uid, attempt or 0)
            view = _View(folder, query, alone)
            return self._side_by_side(view)
        return self._follow_job((namespace, job), attempt or 1, query=query, alone=alone)

    async def _side_by_side(self, view: _View) -> AsyncGenerator[bytes, None]:
        view.look()
        for piece in view.read_all(final=True):
            yield piece
            await asyncio.sleep(0)

    async def _follow_job(
        self, key: tuple[str, str], attempt: int, *, query: JobLogQuery, alone: bool
    ) -> AsyncGenerator[bytes, None]:
        """Follow one attempt, and later ones unless one was asked for, to the end of the job."""
        namespace, job = key
        loop = asyncio.get_running_loop()
        pinned = query.attempt is not None or query.previous
        while True:
            view = _View(self._attempt_folder(key, query.uid, attempt), query, alone)
            over, next_look = False, 0.0
            current = attempt
            while True:
                if not over and loop.time() >= next_look:
                    next_look = loop.time() + JOB_POLL_SECONDS
                    found = await self._find_job(namespace, job, query.uid)
                    current = attempt if found is None else found.status.attempt
                    over = found is None or found.is_finished or current > attempt
                view.look()
                live = view.is_live()
                for piece in view.read_all(final=over and not live, now=loop.time()):
                    yield piece
                    await asyncio.sleep(0)
                if over and not live:
                    break
                await asyncio.sleep(POLL_SECONDS)
            if pinned or current <= attempt:
                return
            attempt += 1

    async def _find_job(self, namespace: str, job: str, uid: str | None = None) -> Job | None:
        if self._client is None:
            return None
        try:
            found = await self._client.get(JOBS, job, namespace=namespace)
        except NotFound:
            return None
        except ApiError as error:
            if error.retryable:
                return None
            raise
        return found if uid in (None, found.metadata.uid) else None

    async def _unknown(self, namespace: str, job: str) -> NotFound:
        """Return the error for a name that no job and no log has, with the nearest ones."""
        known: dict[str, None] = {}
        if self._client is not None:
            listed = await self._client.list(JOBS, namespace=namespace)
            known.update((item.metadata.name, None) for item in listed.items)
        folder = self._job_folder(namespace, "x")
        if folder is not None and folder.parent.is_dir():
            known.update(
                (p.name, None)
                for p in sorted(folder.parent.iterdir())
                if not p.name.startswith(".")
                and p.name != logfiles.PODS_FOLDER
                and logfiles.SEPARATOR not in p.name
            )
        near = difflib.get_close_matches(job, list(known), n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        return NotFound(f'no job "{job}" and no logs of one in namespace {namespace}{hint}')

    async def _simulated(self, job: Job) -> str:
        """Return the honest line for a job whose members are all simulated, else ""."""
        placement = job.status.placement
        nodes = [n for role in placement.roles for n in role.nodes[:1]] if placement else []
        for node in nodes:
            if not await self._is_virtual(node):
                return ""
        if not nodes and not (job.status.started_at and is_simulated(job)):
            return ""
        return (
            f"job {job.metadata.name} is simulated: its members are on virtual nodes, which run no "
            "programs, so there are no logs\n"
        )

    def _job_folder(self, namespace: str, job: str, uid: str | None = None) -> Path | None:
        try:
            return logfiles.job_folder(self._logs / safe(namespace), safe(job), uid)
        except Unsupported:
            return None

    def _attempt_folder(self, key: tuple[str, str], uid: str | None, attempt: int) -> Path:
        folder = self._logs / safe(key[0])
        return logfiles.job_folder(folder, safe(key[1]), uid) / str(attempt)


@dataclass(slots=True, eq=False)
class _View:
    """The tasks of one attempt side by side; tasks that come later are taken in."""

    folder: Path
    query: JobLogQuery
    #: Of one task: its bytes are passed on as they are.
    alone: bool
    _tails: dict[str, Tail] = field(default_factory=dict[str, Tail])
    _cutters: dict[str, LineCutter] = field(default_factory=dict[str, LineCutter])

    def look(self) -> None:
        """Find the logs that are there now."""
        for task in _task_names(self.folder):
            if task not in self._tails and _is_asked(task, self.query.task):
                self._tails[task] = Tail(self.folder / f"{task}.log", self.query.tail_lines)
                self._cutters[task] = LineCutter(f"[{task}] ".encode())

    def is_live(self) -> bool:
        """True while any of the logs may grow."""
        return any(tail.is_live() for tail in self._tails.values())

    def read_all(self, *, final: bool, now: float | None = None) -> Iterator[bytes]:
        """Yield what is new. One task is passed on as it is, several line by line with a prefix.

        With `final`, a last line without its end is shown, too; `now` is set while it is followed.
        """
        for task, tail in self._tails.items():
            cutter = self._cutters[task]
            while chunk := tail.read():
                piece = chunk if self.alone else cutter.feed(chunk, now)
                if piece:
                    yield piece
            rest = cutter.end() if final else b""
            if rest:
                yield rest


def _is_single(job: Job | None, logs: JobLogs | None) -> bool:
    """True when there is one container in all: by the job while it exists, else by its logs."""
    if job is not None:
        containers = [len(role.template.spec.containers) * role.count for role in job.spec.roles]
        return sum(containers) == 1
    attempts = logs.attempts if logs is not None else ()
    return len({log.task for found in attempts for log in found.tasks}) == 1


def _task_names(folder: Path) -> list[str]:
    """Return the tasks that have a log, in order of role and index."""
    if not folder.is_dir():
        return []
    found = [
        path.name[:-4]
        for path in folder.iterdir()
        if path.name.endswith(".log")
        and not path.name.startswith(".")
        and not path.stem.endswith(f"{logfiles.SEPARATOR}{logfiles.PREVIOUS}")
    ]
    return sorted(found, key=_task_order)


def _task_order(task: str) -> tuple[str, int, str]:
    stem, _, container = task.partition(logfiles.SEPARATOR)
    role, _, index = stem.rpartition("-")
    return (role, int(index) if index.isdigit() else 0, container)


def _is_asked(task: str, asked: str | None) -> bool:
    stem = task.partition(logfiles.SEPARATOR)[0]
    return asked is None or asked in (task, stem, stem.rpartition("-")[2])


def _tasks(folder: Path) -> tuple[TaskLog, ...]:
    out: list[TaskLog] = []
    for task in _task_names(folder):
        path = folder / f"{task}.log"
        out.append(TaskLog(task, path.stat().st_size, logfiles.live_mark(path).exists()))
    return tuple(out)


def _require_tasks(logs: JobLogs, attempt: int, task: str | None) -> None:
    """NotFound when the attempt or the task has no log, naming those that have."""
    by_number = {found.attempt: found for found in logs.attempts}
    if attempt not in by_number:
        kept = ", ".join(str(number) for number in by_number)
        raise NotFound(f"job {logs.job} has no logs of attempt {attempt}; there are: {kept}")
    present = [found.task for found in by_number[attempt].tasks]
    asked = [found for found in present if _is_asked(found, task)]
    if not asked:
        near = difflib.get_close_matches(task or "", present, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(present[:20])}"
        raise NotFound(f"job {logs.job}, attempt {attempt}, has no log of task {task}; {hint}")
    if len(asked) > 1 and task is not None and task.isdigit():
        raise BadRequest(f"task {task} is ambiguous: {', '.join(asked)}; give one of these")


async def _just(text: str) -> AsyncGenerator[bytes, None]:
    yield text.encode()
