"""Keeps the logs of members before their pods are deleted, where kubelets drop them.

The leader keeps them, because it deletes members and has the mirror of pods; a second reader would
fetch every log twice. A log is fetched on two occasions:

* a member that has ended is fetched when the mirror shows its end (`run`);
* a member that the jobs controller is about to delete is fetched first (`KeepingClient`), for at
  most `attempt_seconds_max` in all per attempt of a job: a kubelet that hangs delays the restart of
  a gang by that and no more.

A log is the last `member_bytes_max` of what the first container wrote. What cannot be read is
counted, and logged once per attempt; a missed log never delays a job further.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fairlead.api import names
from fairlead.api.core import Pod
from fairlead.api.job import owner_reference_of
from fairlead.api.meta import label_number
from fairlead.api.resources import PODS, Resource
from fairlead.api.status import ApiError, Forbidden, NotFound
from fairlead.runtime.client import Client, Request, Verb
from fairlead.runtime.clock import Clock
from fairlead.runtime.fencing import LeaderClient
from fairlead.runtime.history import HistoryError, LogReader, LogStore, LogText, MemberLog
from fairlead.runtime.leader import Term
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.mirror import Change, Mirror

A = TypeVar("A")
_WHY_LENGTH_MAX = 200
_STARTED = ("Running", "Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class KeeperOptions:
    """Limits of the archive."""

    member_bytes_max: int = 4 << 20
    #: Of one attempt of a job, all members together.
    attempt_bytes_max: int = 256 << 20
    fetches_max: int = 32
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
    """One per term. `run` follows a mirror; `before_delete` is asked by `KeepingClient`."""

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
        self._queue: dict[str, Pod] = {}
        self._has_work = asyncio.Event()
        self._pods: Mirror[Pod] | None = None
        #: Pods whose whole log is kept; dropped with the pod.
        self._kept: dict[str, None] = {}
        self._attempts: dict[tuple[str, str, str], _Attempt] = {}
        self.missed_count = 0

    async def run(self, pods: Mirror[Pod]) -> None:
        """Keep the logs of members as they end, until cancelled."""
        await pods.wait_synced()
        ended = [pod for pod in pods.items() if _is_ended_member(pod)]
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
            self._pods = None

    async def before_delete(self, namespace: str, name: str) -> None:
        """Keep the log of a member that is about to be deleted, for a bounded time."""
        pod = self._pods.get(namespace, name) if self._pods is not None else None
        if pod is None or not _is_started_member(pod) or pod.metadata.uid in self._kept:
            return
        attempt = self._attempt(pod)
        now = self._clock.now()
        if attempt.wait_until is None:
            attempt.wait_until = now + self._options.attempt_seconds_max
        left = attempt.wait_until - now
        if left <= 0:
            self._miss(pod, "no time was left")
            return
        try:
            async with asyncio.timeout(left):
                await self._keep(pod, tries_max=1)
        except TimeoutError:
            self._miss(pod, f"it took more than {self._options.attempt_seconds_max:g} s")

    # Inside

    async def _known(self, uids: list[str]) -> frozenset[str]:
        try:
            return await self._store.known(uids)
        except HistoryError as error:
            self._log.warning("Log archive not readable", error=str(error))
            return frozenset()

    def _see(self, change: Change[Pod]) -> None:
        if change.new is None:
            if change.old is not None:
                self._kept.pop(change.old.metadata.uid, None)
                self._queue.pop(change.old.metadata.uid, None)
        elif _is_ended_member(change.new):
            self._offer(change.new)

    def _offer(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if uid in self._kept or uid in self._queue:
            return
        if len(self._queue) >= self._options.queue_max:
            self._miss(pod, "too many wait")
            return
        self._queue[uid] = pod
        self._has_work.set()

    async def _work(self) -> None:
        while True:
            while not self._queue:
                self._has_work.clear()
                await self._has_work.wait()
            uid = next(iter(self._queue))
            await self._keep(self._queue.pop(uid), tries_max=self._options.tries_max)

    async def _keep(self, pod: Pod, *, tries_max: int) -> None:
        for tries_left in range(tries_max - 1, -1, -1):
            if pod.metadata.uid in self._kept:
                return
            try:
                async with self._fetches:
                    await self._fetch(pod)
            except (ApiError, HistoryError) as error:
                is_final = isinstance(error, (NotFound, Forbidden)) or not tries_left
                if is_final:
                    self._miss(pod, str(error))
                    return
                await asyncio.sleep(1.0)
            except Exception as error:  # noqa: BLE001 - whatever one pod does to it, others go on
                self._miss(pod, f"{type(error).__name__}: {error}"[:_WHY_LENGTH_MAX])
                return
            else:
                return

    async def _fetch(self, pod: Pod) -> None:
        options, attempt = self._options, self._attempt(pod)
        left = options.attempt_bytes_max - attempt.byte_count
        bytes_max = min(options.member_bytes_max, left)
        if bytes_max <= 0:
            self._miss(pod, f"its job's attempt wrote more than {options.attempt_bytes_max} bytes")
            return
        attempt.byte_count += bytes_max  # reserved, since others of the gang are read beside it
        read = LogText(b"", is_cut=True)
        try:
            read = await self._reader.read(
                pod, bytes_max=bytes_max, seconds_max=options.fetch_seconds_max
            )
        finally:
            attempt.byte_count -= bytes_max - len(read.text)
        labels, (job, job_uid) = pod.metadata.labels, _job_of(pod)
        await self._store.keep(
            MemberLog(
                pod_uid=pod.metadata.uid,
                namespace=pod.metadata.namespace,
                job=job,
                job_uid=job_uid,
                attempt=int(labels[names.ATTEMPT]),
                task=f"{labels[names.ROLE]}-{labels[names.INDEX]}",
                is_cut=read.is_cut,
                kept_at_ms=round(self._clock.now() * 1000),
                text=read.text,
            )
        )
        if pod.is_terminal:
            self._kept[pod.metadata.uid] = None

    def _attempt(self, pod: Pod) -> _Attempt:
        labels = pod.metadata.labels
        # What is in another namespace has a budget of its own, whatever it says of itself.
        key = (pod.metadata.namespace, _job_of(pod)[1], labels[names.ATTEMPT])
        found = self._attempts.get(key)
        if found is None:
            found = self._attempts[key] = _Attempt()
            if len(self._attempts) > self._options.attempts_max:
                del self._attempts[next(iter(self._attempts))]
        return found

    def _miss(self, pod: Pod, why: str) -> None:
        self.missed_count += 1
        attempt = self._attempt(pod)
        if not attempt.has_complained:
            attempt.has_complained = True
            self._log.warning(
                "Log not kept", pod=pod.metadata.name, namespace=pod.metadata.namespace, reason=why
            )


class KeepingClient(LeaderClient):
    """A `LeaderClient` that has a member's log kept before it deletes the member."""

    def __init__(self, inner: Client, term: Term, keeper: LogKeeper) -> None:
        super().__init__(inner, term)
        self._keeper = keeper

    async def call(self, request: Request[A]) -> A:
        """Pass the request on; before a pod's deletion, have its log kept."""
        if request.verb is Verb.DELETE and _is(request.resource, PODS):
            await self._keeper.before_delete(request.namespace, request.name)
        return await super().call(request)


def _is(resource: Resource[Any], other: Resource[Any]) -> bool:
    return resource.name == other.name


def _is_started_member(pod: Pod) -> bool:
    labels = pod.metadata.labels
    needed: Callable[[str], bool] = labels.__contains__
    is_member = all(map(needed, (names.JOB_NAME, names.ROLE, names.INDEX)))
    is_numbered = label_number(labels.get(names.ATTEMPT)) is not None
    if not (is_member and is_numbered and pod.status.phase in _STARTED):
        return False
    owner = owner_reference_of(pod.metadata)
    parts = (labels[names.ATTEMPT], labels[names.ROLE], labels[names.INDEX])
    return owner is None or pod.metadata.name == "-".join((owner.name, *parts))


def _job_of(pod: Pod) -> tuple[str, str]:
    """Return name and uid of a member's job: its controller, or, of another tool's pod, by label.

    Either is in the pod's own namespace.
    """
    owner, labels = owner_reference_of(pod.metadata), pod.metadata.labels
    if owner is not None:
        return owner.name, owner.uid
    return labels[names.JOB_NAME], labels.get(names.JOB_UID, "")


def _is_ended_member(pod: Pod) -> bool:
    return pod.is_terminal and _is_started_member(pod)
