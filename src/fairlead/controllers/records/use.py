"""Keeps in the history what members used, once their pods have ended.

The node says it in the pod's annotation, with the end itself; else it is what was sampled while the
member ran (`controllers/records/use_samples.py`). Only members of jobs that the mirror has are
kept, as logs are (`decide/attempts/logged_members.py`). Keeping again is harmless, so a new process
keeps those again that are still there. Nothing waits for it: while the history cannot be written,
records wait, at most `waiting_max` of them, and namespaces take turns.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.use import MemberUse, decode_use
from fairlead.api.kubernetes.core import Pod
from fairlead.controllers.records.log_queue import LogQueue
from fairlead.controllers.records.use_samples import UseSampler
from fairlead.decide.attempts.logged_members import LoggedMember, claimed_job, logged_member
from fairlead.runtime.backoff import Backoff, BackoffOptions
from fairlead.runtime.clock import Clock
from fairlead.runtime.kept.history import History, UseRecord, answered, use_record
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.watching.mirror import Change, Mirror

_BACKOFF = BackoffOptions(1.0, 60.0)


@dataclass(frozen=True, slots=True)
class UseKeeperOptions:
    """Limits: members whose use waits to be kept, and those that are written at a time."""

    waiting_max: int = 20_000
    batch_max: int = 256


class UseKeeper:
    """One per process that runs the controllers."""

    def __init__(
        self,
        history: History,
        pods: Mirror[Pod],
        jobs: Mirror[Job],
        *,
        clock: Clock,
        rng: random.Random,
        options: UseKeeperOptions | None = None,
        sampler: UseSampler | None = None,
        log: Logger = SILENT,
    ) -> None:
        """`sampler` knows members whose nodes say nothing; None: all nodes do."""
        self._history = history
        self._pods = pods
        self._jobs = jobs
        self._clock = clock
        self._options = options or UseKeeperOptions()
        self._sampler = sampler
        self._log = log
        self._backoff = Backoff(rng, _BACKOFF)
        self._queue = LogQueue(self._options.waiting_max)
        self._has_work = asyncio.Event()
        #: Of pods that wait: which member each is, as their job said when they ended.
        self._members: dict[str, LoggedMember] = {}
        #: Of pods that wait: what was sampled of them.
        self._sampled: dict[str, MemberUse] = {}
        #: What members that run used so far, by pod.
        self._so_far: dict[str, UseRecord] = {}
        #: Pods that were kept or wait; dropped with the pod.
        self._seen: set[str] = set()
        self.missed_count = 0

    async def run(self) -> None:
        """Keep what members used as they end, until cancelled."""
        await self._pods.wait_synced()
        await self._jobs.wait_synced()
        remove = self._pods.on_change(self._see)
        try:
            async with asyncio.TaskGroup() as group:
                if self._sampler is not None:
                    group.create_task(self._sampler.run(self._keep_so_far))
                while True:
                    await self._has_work.wait()
                    self._has_work.clear()
                    while batch := self._batch():
                        write = partial(self._history.record_use, batch)
                        await answered(
                            write, self._backoff, self._log, "Use of members not kept yet"
                        )
        finally:
            remove()

    def _keep_so_far(self, records: Sequence[UseRecord]) -> None:
        self._so_far.update((each.pod_uid, each) for each in records)
        self._has_work.set()

    def _see(self, change: Change[Pod]) -> None:
        if change.new is not None:
            self._offer(change.new)
        elif change.old is not None:
            self._offer(change.old, is_gone=True)
            self._seen.discard(change.old.metadata.uid)

    def _offer(self, pod: Pod, *, is_gone: bool = False) -> None:
        uid = pod.metadata.uid
        if uid in self._seen or not (pod.is_terminal or is_gone):
            return
        sampled = self._sampler.take(pod) if self._sampler is not None else None
        if sampled is not None:
            self._sampled[uid] = sampled
        elif not pod.is_terminal or names.USE not in pod.metadata.annotations:
            return
        self._so_far.pop(uid, None)
        self._seen.add(uid)
        if (member := self._member(pod)) is not None:
            self._members[uid] = member
        dropped = self._queue.add(pod)
        if dropped is not None:
            self._members.pop(dropped.metadata.uid, None)
            self._sampled.pop(dropped.metadata.uid, None)
            self.missed_count += 1
        self._has_work.set()

    def _member(self, pod: Pod) -> LoggedMember | None:
        namespace, name = claimed_job(pod)
        return logged_member(pod, self._jobs.get(namespace, name)) if name else None

    def _batch(self) -> list[UseRecord]:
        """Return the next records, taken out of the queue; [] when it is empty."""
        out: list[UseRecord] = []
        while self._queue and len(out) < self._options.batch_max:
            pod = self._queue.pop()
            member = self._members.pop(pod.metadata.uid, None) or self._member(pod)
            use = decode_use(pod.metadata.annotations.get(names.USE))
            sampled = self._sampled.pop(pod.metadata.uid, None)
            if use is not None and sampled is not None:
                use = use.with_gpus_of(sampled)
            use = use or sampled
            if member is not None and use is not None:
                out.append(use_record(pod, member, use, self._clock.now()))
        while self._so_far and len(out) < self._options.batch_max:
            out.append(self._so_far.pop(next(iter(self._so_far))))
        return out
