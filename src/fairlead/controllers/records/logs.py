"""Keeps the logs of members before their pods are deleted, where kubelets drop them.

The leader keeps them, because it deletes members and has the mirror of pods; a second reader would
fetch every log twice. A log is fetched on two occasions:

* a member that has ended is fetched when the mirror shows its end (`run`);
* a member that the jobs controller is about to delete is fetched first (`KeepingClient`), for at
  most `attempt_seconds_max` in all per attempt of a job: a kubelet that hangs delays the restart of
  a gang by that and no more.

A log is the last `member_bytes_max` of what the first container wrote. What cannot be read is
counted, and logged once per attempt; a missed log never delays a job further. Logs are those of
members of jobs that the mirror has (`decide/attempts/logged_members.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, TypeVar

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import PODS, Resource
from fairlead.api.status import ApiError, Forbidden, NotFound
from fairlead.controllers.records.log_queue import LogQueue
from fairlead.decide.attempts.logged_members import LoggedMember, claimed_job, logged_member
from fairlead.runtime.client import Client, Request, RequestVerb
from fairlead.runtime.clock import Clock
from fairlead.runtime.kept.history import HistoryError, LogReader, LogStore, LogText, MemberLog
from fairlead.runtime.leading.fencing import LeaderClient
from fairlead.runtime.leading.leader import LeaderTerm
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.watching.mirror import Change, Mirror

A = TypeVar("A")
_WHY_LENGTH_MAX = 200


@dataclass(frozen=True, slots=True)
class KeeperOptions:
    """Limits of the archive."""

    member_bytes_max: int = 4 << 20
    #: Of one attempt of a job, all members together.
    attempt_bytes_max: int = 256 << 20
    #: Each has up to three times `member_bytes_max` in memory.
    fetches_max: int = 16
    fetch_seconds_max: float = 5.0
    #: How long deletions of one attempt may wait for logs, all together.
    attempt_seconds_max: float = 10.0
    tries_max: int = 3
    queue_max: int = 20_000
    attempts_max: int = 10_000


@dataclass(slots=True)
class _Attempt:
    """What one attempt of a job has used up."""

    wait_until: float | None = None
    byte_count: int = 0
    has_complained: bool = False


class LogKeeper:
    """One per term. `run` follows mirrors; `before_delete` is asked by `KeepingClient`."""

    def __init__(
        self,
        reader: LogReader,
        store: LogStore,
        *,
        clock: Clock,
        options: KeeperOptions | None = None,
        log: Logger = SILENT,
    ) -> None:
        self._reader = reader
        self._store = store
        self._clock = clock
        self._options = options or KeeperOptions()
        self._log = log
        self._fetches = asyncio.Semaphore(self._options.fetches_max)
        self._queue = LogQueue(self._options.queue_max)
        self._has_work = asyncio.Event()
        #: While it runs.
        self._pods: Mirror[Pod] | None = None
        self._jobs: Mirror[Job] | None = None
        #: Pods whose whole log is kept; dropped with the pod.
        self._kept: dict[str, None] = {}
        self._attempts: dict[tuple[str, int], _Attempt] = {}
        self.missed_count = 0

    async def run(self, pods: Mirror[Pod], jobs: Mirror[Job]) -> None:
        """Keep the logs of members as they end, until cancelled."""
        await pods.wait_synced()
        await jobs.wait_synced()
        self._jobs = jobs
        ended = [pod for pod in pods.items() if pod.is_terminal and self._member(pod) is not None]
        known = await self._known([pod.metadata.uid for pod in ended])
        self._kept = dict.fromkeys(known)
        self._pods = pods
        remove = pods.on_change(self._see)
        try:
            for pod in ended:
                self._offer(pod)
            async with asyncio.TaskGroup() as group:
                for _ in range(self._options.fetches_max):
                    group.create_task(self._work())
        finally:
            remove()
            self._pods = self._jobs = None

    async def before_delete(self, namespace: str, name: str) -> None:
        """Keep the log of a member that is about to be deleted, for a bounded time."""
        pod = self._pods.get(namespace, name) if self._pods is not None else None
        member = self._member(pod) if pod is not None else None
        if pod is None or member is None or pod.metadata.uid in self._kept:
            return
        attempt = self._attempt(member)
        now = self._clock.now()
        if attempt.wait_until is None:
            attempt.wait_until = now + self._options.attempt_seconds_max
        left = attempt.wait_until - now
        if left <= 0:
            self._miss(pod, member, "no time was left")
            return
        try:
            async with asyncio.timeout(left):
                await self._keep(pod, member, tries_max=1)
        except TimeoutError:
            self._miss(pod, member, f"it took more than {self._options.attempt_seconds_max:g} s")

    # Inside

    async def _known(self, uids: list[str]) -> frozenset[str]:
        try:
            return await self._store.known(uids)
        except HistoryError as error:
            self._log.warning("Log archive not readable", error=str(error))
            return frozenset()

    def _member(self, pod: Pod) -> LoggedMember | None:
        """Return which member a pod is, as the mirror of jobs says now."""
        namespace, name = claimed_job(pod)
        if self._jobs is None or not name:
            return None
        return logged_member(pod, self._jobs.get(namespace, name))

    def _see(self, change: Change[Pod]) -> None:
        if change.new is None:
            if change.old is not None:
                self._kept.pop(change.old.metadata.uid, None)
                self._queue.discard(change.old)
        elif change.new.is_terminal and self._member(change.new) is not None:
            self._offer(change.new)

    def _offer(self, pod: Pod) -> None:
        if pod.metadata.uid in self._kept or pod in self._queue:
            return
        dropped = self._queue.add(pod)
        if dropped is not None and (member := self._member(dropped)) is not None:
            self._miss(dropped, member, "too many wait")
        self._has_work.set()

    async def _work(self) -> None:
        while True:
            while not self._queue:
                self._has_work.clear()
                await self._has_work.wait()
            pod = self._queue.pop()
            member = self._member(pod)
            if member is not None:
                await self._keep(pod, member, tries_max=self._options.tries_max)

    async def _keep(self, pod: Pod, member: LoggedMember, *, tries_max: int) -> None:
        for tries_left in range(tries_max - 1, -1, -1):
            if pod.metadata.uid in self._kept:
                return
            try:
                async with self._fetches:
                    await self._fetch(pod, member)
            except (ApiError, HistoryError) as error:
                is_final = isinstance(error, (NotFound, Forbidden)) or not tries_left
                if is_final:
                    self._miss(pod, member, str(error))
                    return
                await asyncio.sleep(1.0)
            except Exception as error:  # noqa: BLE001 - whatever one pod does to it, others go on
                self._miss(pod, member, f"{type(error).__name__}: {error}"[:_WHY_LENGTH_MAX])
                return
            else:
                return

    async def _fetch(self, pod: Pod, member: LoggedMember) -> None:
        options, attempt = self._options, self._attempt(member)
        left = options.attempt_bytes_max - attempt.byte_count
        bytes_max = min(options.member_bytes_max, left)
        if bytes_max <= 0:
            self._miss(
                pod, member, f"its job's attempt wrote more than {options.attempt_bytes_max} bytes"
            )
            return
        attempt.byte_count += bytes_max  # reserved, since others of the gang are read beside it
        read = LogText(b"", is_cut=True)
        try:
            read = await self._reader.read(
                pod, bytes_max=bytes_max, seconds_max=options.fetch_seconds_max
            )
        finally:
            attempt.byte_count -= bytes_max - len(read.text)
        await self._store.keep(
            MemberLog(
                pod_uid=pod.metadata.uid,
                namespace=member.namespace,
                job=member.job,
                job_uid=member.job_uid,
                attempt=member.attempt,
                task=member.task,
                is_cut=read.is_cut,
                kept_at_ms=round(self._clock.now() * 1000),
                text=read.text,
            )
        )
        if pod.is_terminal:
            self._kept[pod.metadata.uid] = None

    def _attempt(self, member: LoggedMember) -> _Attempt:
        key = (member.job_uid, member.attempt)
        found = self._attempts.get(key)
        if found is None:
            found = self._attempts[key] = _Attempt()
            if len(self._attempts) > self._options.attempts_max:
                del self._attempts[next(iter(self._attempts))]
        return found

    def _miss(self, pod: Pod, member: LoggedMember, why: str) -> None:
        self.missed_count += 1
        attempt = self._attempt(member)
        if not attempt.has_complained:
            attempt.has_complained = True
            self._log.warning(
                "Log not kept", pod=pod.metadata.name, namespace=pod.metadata.namespace, reason=why
            )


class KeepingClient(LeaderClient):
    """A `LeaderClient` that has a member's log kept before it deletes the member."""

    def __init__(self, inner: Client, term: LeaderTerm, keeper: LogKeeper) -> None:
        super().__init__(inner, term)
        self._keeper = keeper

    async def call(self, request: Request[A]) -> A:
        """Pass the request on; before a pod's deletion, have its log kept."""
        if request.verb is RequestVerb.DELETE and _is(request.resource, PODS):
            await self._keeper.before_delete(request.namespace, request.name)
        return await super().call(request)


def _is(resource: Resource[Any], other: Resource[Any]) -> bool:
    return resource.name == other.name
