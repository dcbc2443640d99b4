"""Logs of a job on a real cluster: members that exist from the API server, the others archived.

Each live member is read over a connection and, when followed, by a thread of its own, at most
FOLLOWED_MAX at a time; what they bring meets in one bounded queue. Of several members every line
begins with the member's role and index, as on a cluster of `fairlead up`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import JOBS, PODS
from fairlead.api.status import ApiError, BadRequest, NotFound
from fairlead.app.queries.messages import ArchivedLog
from fairlead.cli.cluster.archive import Archive, NoArchive, no_archive
from fairlead.cli.cluster.embedded import LogPart
from fairlead.cli.cluster.lookup import missing_job
from fairlead.cli.connection.transport import Api
from fairlead.cli.records.members import is_asked, task_of, task_order
from fairlead.input.errors import CliError, Code, fail
from fairlead.input.suggest import nearest
from fairlead.runtime.kept.loglines import LineCutter
from fairlead.terminal import printable

FOLLOWED_MAX = 64
PIECES_MAX = 1_000
LOOK_SECONDS = 1.0
Key = tuple[str, str]
Note = Callable[[str], None]


@dataclass(slots=True)
class MemberLogs:
    """Reads the logs of one job. `note` tells the person what is missing."""

    api: Api
    archive: Archive
    key: Key
    query: LogPart
    note: Note
    #: Of one member: its lines have no prefix.
    _is_alone: bool = False

    def stream(self) -> Iterator[bytes]:
        """Yield the logs' bytes; CliError when there is no such job, attempt, task or log."""
        job = self._job()
        uid = self.query.uid
        if uid is not None and (job is None or job.metadata.uid != uid):
            yield from self._of_earlier_job(uid)
            return
        attempt = self._attempt(job)
        while True:
            pods = self._pods(attempt) if attempt else []
            archived: list[ArchivedLog] = []
            if job is None or not pods or _has_gone_members(job, attempt, pods):
                archived = self._archived(attempt or None, is_needed=not self._is_waiting(job))
            self._require_task(pods, archived, attempt)
            members = job.member_count if job is not None else len(archived)
            self._is_alone = self.query.task is not None or members == 1
            yield from self._print_archived(archived, pods)
            if not self.query.follow:
                yield from self._read_once(pods)
                return
            yield from self._follow(pods)
            if self.query.attempt is not None:
                return
            job, attempt = self._next(attempt, had_pods=bool(pods))
            if job is None:
                return

    def _of_earlier_job(self, uid: str) -> Iterator[bytes]:
        """Yield the logs of a job of this name that is gone: the archive alone has them."""
        if self.query.previous:
            raise fail(Code.BAD_COMBINATION, "--previous goes with a job that exists",
                       help=("--attempt K shows the attempt K of an earlier one",))  # fmt: skip
        try:
            archived = self.archive.logs(self.key, self.query.attempt, uid=uid)
        except NoArchive as error:
            if "no log of job" not in error.why:
                raise no_archive("the logs of jobs that are gone", error) from error
            archived = []
        if not archived:
            raise fail(
                Code.NO_SUCH_LOG, f"no log of a job {self.key[1]} with the uid {uid} is kept",
                help=("fairlead history -o wide lists jobs that have ended, with their uids",),
            )  # fmt: skip
        self._require_task((), archived, self.query.attempt or 0)
        self._is_alone = self.query.task is not None or len(archived) == 1
        yield from self._print_archived(archived, ())

    # Finding

    def _job(self) -> Job | None:
        try:
            return self.api.get(JOBS, self.key[1], namespace=self.key[0])
        except NotFound as error:
            if error.status.details is None:
                raise  # not of the job, but of its kind: Fairlead is not installed
            return None

    def _attempt(self, job: Job | None) -> int:
        """Return the attempt to show; 0: the latest one that the archive has."""
        if self.query.attempt is not None:
            return self.query.attempt
        current = job.status.attempt if job is not None else 0
        if not self.query.previous:
            return current
        if current < 2:
            text = "has had one attempt only" if current else "has no object any more"
            raise fail(
                Code.NO_SUCH_LOG, f"job {self.key[1]} {text}: there is no previous one",
                help=(f"fairlead logs {self.key[1]} --attempt K shows a kept one",),
            )  # fmt: skip
        return current - 1

    def _next(self, attempt: int, *, had_pods: bool) -> tuple[Job | None, int]:
        """Wait for members that have not been shown; (None, _) at the end of the job."""
        while True:
            job = self._job()
            if job is None:
                return None, attempt
            if job.status.attempt > attempt:
                return job, job.status.attempt
            if not had_pods and self._pods(attempt):
                return job, attempt
            if job.is_finished:
                return None, attempt
            time.sleep(LOOK_SECONDS)

    def _pods(self, attempt: int) -> list[Pod]:
        selector = f"{names.JOB_NAME}={self.key[1]},{names.ATTEMPT}={attempt}"
        found = self.api.list(PODS, namespace=self.key[0], label_selector=selector)
        return sorted(found, key=lambda pod: task_order(task_of(pod)))

    def _archived(self, attempt: int | None, *, is_needed: bool) -> list[ArchivedLog]:
        try:
            return self.archive.logs(self.key, attempt)
        except NoArchive as error:
            if "no log of job" in error.why or not is_needed:
                return []
            raise self._unreadable(error) from error

    def _unreadable(self, error: NoArchive) -> CliError:
        if self._job() is None:
            problem = missing_job(self.api, *self.key)
            return CliError(
                [problem, *no_archive("the logs of jobs that are gone", error).problems]
            )
        return no_archive(f"the logs of {self.key[1]}'s members that are gone", error)

    def _is_waiting(self, job: Job | None) -> bool:
        return job is not None and not job.is_finished and job.status.attempt < 2

    def _require_task(
        self, pods: Sequence[Pod], archived: Sequence[ArchivedLog], attempt: int
    ) -> None:
        job, task = self.key[1], self.query.task
        tasks = [task_of(pod) for pod in pods] + [log.task for log in archived]
        if not tasks:
            found = self._job()
            if found is None:
                raise CliError(missing_job(self.api, *self.key))
            if self.query.attempt is not None or self.query.previous:
                raise fail(Code.NO_SUCH_LOG, f"job {job} has no logs of attempt {attempt}",
                           help=(f"it is at attempt {found.status.attempt}",))  # fmt: skip
            return
        asked = list(dict.fromkeys(each for each in tasks if is_asked(each, task)))
        if not asked:
            near = nearest(task or "", tasks)
            known = ", ".join(dict.fromkeys(tasks[:20]))
            raise fail(
                Code.NO_SUCH_LOG, f"job {job}, attempt {attempt}, has no log of task {task}",
                help=(f"did you mean {near}?" if near else f"there are: {known}",),
            )  # fmt: skip
        if len(asked) > 1 and task is not None:
            raise fail(Code.BAD_VALUE, f"--task {task} is ambiguous",
                       help=(f"one of {', '.join(asked)}",))  # fmt: skip

    # Showing

    def _print_archived(
        self, archived: Sequence[ArchivedLog], pods: Sequence[Pod]
    ) -> Iterator[bytes]:
        live = {task_of(pod) for pod in pods}
        for log in archived:
            if log.task in live or not is_asked(log.task, self.query.task):
                continue
            if log.is_cut:
                self.note(f"[{log.task}] only the end of its log was kept")
            lines = log.text.split(b"\n")
            if lines[-1] == b"":
                lines.pop()
            if self.query.tail is not None:
                lines = lines[max(len(lines) - self.query.tail, 0) :]
            text = b"".join(line + b"\n" for line in lines)
            yield text if self._is_alone else LineCutter(self._prefix(log.task)).feed(text)

    def _prefix(self, task: str) -> bytes:
        return b"" if self._is_alone else f"[{printable(task)}] ".encode()

    def _read_once(self, pods: Sequence[Pod]) -> Iterator[bytes]:
        for pod in pods:
            if is_asked(task_of(pod), self.query.task):
                yield from self._lines(pod, is_followed=False)

    def _follow(self, pods: Sequence[Pod]) -> Iterator[bytes]:
        """Yield what the members write until all have ended."""
        asked = [pod for pod in pods if is_asked(task_of(pod), self.query.task)]
        if len(asked) > FOLLOWED_MAX:
            self.note(f"following the first {FOLLOWED_MAX} of {len(asked)} members; --task I "
                      "follows another")  # fmt: skip
            asked = asked[:FOLLOWED_MAX]
        pieces: queue.Queue[bytes | None] = queue.Queue(PIECES_MAX)

        def read(pod: Pod) -> None:
            try:
                for piece in self._lines(pod, is_followed=True):
                    pieces.put(piece)
            finally:
                pieces.put(None)

        for pod in asked:
            threading.Thread(target=read, args=(pod,), daemon=True).start()
        left = len(asked)
        while left:
            piece = pieces.get()
            if piece is None:
                left -= 1
            else:
                yield piece

    def _lines(self, pod: Pod, *, is_followed: bool) -> Iterator[bytes]:
        """Yield a member's log line by line; what cannot be read is noted, not raised."""
        cutter = LineCutter(self._prefix(task_of(pod)))
        try:
            for chunk in self._chunks(pod, is_followed=is_followed):
                now = time.monotonic() if is_followed else None
                piece = chunk if self._is_alone else cutter.feed(chunk, now)
                if piece:
                    yield piece
        except (ApiError, CliError) as error:
            self.note(f"[{task_of(pod)}] its log cannot be read: {error}")
        rest = cutter.end()
        if rest:
            yield rest

    def _chunks(self, pod: Pod, *, is_followed: bool) -> Iterator[bytes]:
        query = {"container": pod.spec.containers[0].name}
        if self.query.tail is not None:
            query["tailLines"] = str(self.query.tail)
        if is_followed:
            query["follow"] = "true"
        namespace, name = pod.metadata.key
        while True:
            try:
                yield from self.api.chunks(PODS.path(namespace, name, "log"), query)
            except BadRequest as error:
                if "waiting to start" not in error.message or not is_followed:
                    raise
                time.sleep(LOOK_SECONDS)
                continue
            return


def _has_gone_members(job: Job, attempt: int, pods: Sequence[Pod]) -> bool:
    return job.is_finished and attempt == job.status.attempt and len(pods) < job.member_count
