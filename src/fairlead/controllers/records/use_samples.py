"""Samples what members use where their nodes do not say it: metrics.k8s.io, and their GPUs.

While members run, a round asks metrics.k8s.io for those of each namespace, one request after the
other with a pause between them, and what reads GPUs once. So the rate of requests is bounded
whatever the size of the cluster. Rates are folded as they come (`decide/use/use_samples.py`), some
kilobytes for each member. `UseKeeper` writes the result once a pod has ended, and meanwhile what
there is so far from time to time, from which the next leader goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.use import MemberUse, decode_use
from fairlead.api.kubernetes.core import Pod
from fairlead.api.kubernetes.metrics import PodMetrics
from fairlead.api.resources import POD_METRICS
from fairlead.api.status import ApiError, NotFound
from fairlead.api.values import quantity
from fairlead.api.values.quantity import QuantityError
from fairlead.api.values.times import parse_time
from fairlead.decide.attempts.logged_members import LoggedMember, claimed_job, logged_member
from fairlead.decide.use.idle import MemberLook
from fairlead.decide.use.use_meter import GpuReading
from fairlead.decide.use.use_samples import RateReading, SampledUse, UsePolicy
from fairlead.decide.verdict import ObjectKey
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.kept.history import History, HistoryError, UseQuery, UseRecord, use_record
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.watching.mirror import Change, Mirror

#: Reads the GPUs of pods, by namespace and name; OSError where it cannot.
ReadGpus = Callable[[], Awaitable[Mapping[ObjectKey, GpuReading]]]
#: Other tasks get a turn after so many members.
_BATCH = 64
#: Members whose use so far is written after one round; the others are after the next one.
_KEPT_MAX = 4_096


@dataclass(slots=True)
class _Sampled:
    """A member that is sampled."""

    pod: Pod
    member: LoggedMember
    use: SampledUse
    kept_at: float


class UseSampler:
    """One per process that runs the controllers, where they sample."""

    def __init__(
        self,
        client: Client,
        pods: Mirror[Pod],
        jobs: Mirror[Job],
        history: History,
        *,
        clock: Clock,
        policy: UsePolicy,
        gpus: ReadGpus | None = None,
        log: Logger = SILENT,
    ) -> None:
        """`gpus` reads those of pods, where something measures them."""
        self._client = client
        self._pods = pods
        self._jobs = jobs
        self._history = history
        self._clock = clock
        self._policy = policy
        self._gpus = gpus
        self._log = log
        #: Members of any attempt that run, by namespace; and those that were sampled, by uid.
        self._running: dict[str, set[str]] = {}
        self._sampled: dict[str, _Sampled] = {}
        #: By job and attempt: what earlier processes wrote of their pods. Dropped with the round.
        self._known: dict[tuple[str, int], Mapping[str, MemberUse]] = {}
        self._runs = asyncio.Event()
        self._asks_at = 0.0
        self.request_count = 0

    async def run(self, keep: Callable[[Sequence[UseRecord]], None]) -> None:
        """Sample until cancelled; `keep` takes what members used so far."""
        await self._pods.wait_synced()
        await self._jobs.wait_synced()
        remove = self._pods.on_change(self._see)
        try:
            while True:
                await self._runs.wait()
                await self._round()
                keep(await self._due())
                await asyncio.sleep(self._policy.sample_seconds)
        finally:
            remove()

    def take(self, pod: Pod) -> MemberUse | None:
        """Return what a pod that has ended used, once; None where it was not sampled."""
        found = self._sampled.pop(pod.metadata.uid, None)
        if found is None or found.use.is_empty:
            return None
        return found.use.use(self._clock.now())

    def looks(self) -> Iterator[MemberLook]:
        """Yield what the members that run have used, up to when it was last read; others may run
        between two of them.
        """
        for each in list(self._sampled.values()):
            if not each.use.is_empty:
                at = each.use.read_at
                yield MemberLook(each.pod.metadata.key, at, each.use.use(at))

    def _see(self, change: Change[Pod]) -> None:
        pod, (namespace, name) = change.new, change.key
        if pod is not None and names.ATTEMPT in pod.metadata.labels and is_running(pod):
            self._running.setdefault(namespace, set()).add(name)
            self._runs.set()
        elif name in self._running.get(namespace, ()):
            self._running[namespace].discard(name)
            if not self._running[namespace]:
                del self._running[namespace]
            if not self._running:
                self._runs.clear()

    async def _round(self) -> None:
        """Ask once for all members that run."""
        self._known = {}
        if self._clock.now() >= self._asks_at:
            for namespace in sorted(self._running):
                if not await self._ask(namespace):
                    break
                await asyncio.sleep(self._policy.request_seconds)
        if self._gpus is not None:
            try:
                found = await self._gpus()
            except OSError as error:
                self._log.warning("GPUs of members are not known", error=str(error)[:300])
                return
            at = self._clock.now()
            for count, (key, reading) in enumerate(sorted(found.items()), 1):
                sampled = await self._of(self._pods.get(*key))
                if sampled is not None:
                    sampled.use.take_gpus(at, reading)
                if count % _BATCH == 0:
                    await asyncio.sleep(0)

    async def _ask(self, namespace: str) -> bool:
        """Take in what the members of a namespace use; False: no source answers for now."""
        self.request_count += 1
        try:
            found = await self._client.list(
                POD_METRICS, namespace=namespace, label_selector=names.ATTEMPT
            )
        except ApiError as error:
            if not isinstance(error, NotFound):
                self._log.warning("What members use is not known", error=error.message[:300])
            # Without metrics-server, or without the right, the next round would fail the same way.
            self._asks_at = self._clock.now() + self._policy.missing_seconds
            return False
        now = self._clock.now()
        for count, metrics in enumerate(found.items, 1):
            reading = rate_of(metrics, now)
            sampled = await self._of(self._pods.get(*metrics.metadata.key)) if reading else None
            if sampled is not None and reading is not None:
                sampled.use.take(reading)
            if count % _BATCH == 0:
                await asyncio.sleep(0)
        return True

    async def _of(self, pod: Pod | None) -> _Sampled | None:
        """Return the sampled member that a pod is; None when it is none, or does not run."""
        if pod is None or not is_running(pod):
            return None
        known = self._sampled.get(pod.metadata.uid)
        if known is not None:
            return known
        job = self._jobs.get(*claimed_job(pod))
        member = logged_member(pod, job)
        if member is None:
            return None
        now = self._clock.now()
        began_at = min(parse_time(pod.status.start_time), now) if pod.status.start_time else now
        earlier = None
        if now - began_at > 2 * self._policy.sample_seconds:
            earlier = (await self._earlier(member)).get(pod.metadata.uid)
        # It may have ended, or been taken in, while the history was asked.
        if self._pods.get(*pod.metadata.key) is not pod:
            return None
        use = SampledUse(began_at, earlier, step_seconds=self._policy.sample_seconds)
        return self._sampled.setdefault(pod.metadata.uid, _Sampled(pod, member, use, now))

    async def _earlier(self, member: LoggedMember) -> Mapping[str, MemberUse]:
        """Return what the history has of the pods of the attempt of a member."""
        key = (member.job_uid, member.attempt)
        if key not in self._known:
            found: dict[str, MemberUse] = {}
            query = UseQuery(member.namespace, member.job, member.job_uid, member.attempt)
            try:
                async for records in self._history.query_use(query):
                    for record in records:
                        if (use := decode_use(record.document)) is not None:
                            found[record.pod_uid] = use
            except HistoryError as error:
                self._log.warning("Earlier samples are not known", error=str(error)[:300])
            self._known[key] = found
        return self._known[key]

    async def _due(self) -> list[UseRecord]:
        """Return what members used that were not written for some time, and drop those that left
        without an end.
        """
        now, out = self._clock.now(), list[UseRecord]()
        for count, (uid, each) in enumerate(list(self._sampled.items()), 1):
            if count % _BATCH == 0:
                await asyncio.sleep(0)
            if (pod := self._pods.get(*each.pod.metadata.key)) is None or pod.metadata.uid != uid:
                self._sampled.pop(uid, None)
            elif uid not in self._sampled or len(out) == _KEPT_MAX:
                continue  # it has ended meanwhile; or the next round writes it
            elif now - each.kept_at >= self._policy.keep_seconds and not each.use.is_empty:
                each.kept_at = now
                out.append(use_record(each.pod, each.member, each.use.use(now), now))
        return out


def is_running(pod: Pod) -> bool:
    """True while containers of a pod run."""
    return pod.status.phase == "Running"


def rate_of(metrics: PodMetrics, now: float) -> RateReading | None:
    """Return what an answer says of a pod; None when it does not say it in quantities, or its node
    says more (it has the use from the start on). A node whose clock is ahead said it now.
    """
    if names.USE in metrics.metadata.annotations or not metrics.containers:
        return None
    try:
        cpu, memory = (
            sum(quantity.to_base(resource, each.usage[resource]) for each in metrics.containers)
            for resource in (quantity.CPU, quantity.MEMORY)
        )
        at = parse_time(metrics.timestamp)
    except (QuantityError, KeyError, ValueError):
        return None
    if cpu < 0 or memory < 0:
        return None
    return RateReading(min(at, now), metrics.window_seconds, cpu, memory)
