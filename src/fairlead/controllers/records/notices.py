"""The notices controller: tells the targets of `spec.notify` what becomes of a job.

Nothing waits for it. A try runs beside the cycles of its own loop, a bounded number at a time; what
is owed and how far it is stands in the jobs' statuses, so a new leader goes on from there. What a
target is, and the Secret, are read for the try and are neither logged nor written anywhere.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any, assert_never

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.notify import NOTIFY_SECRET, SIGNING_KEY, NoticeRecord, NoticeState, Notify
from fairlead.api.meta import to_wire
from fairlead.api.resources import JOBS, SECRETS
from fairlead.api.status import ApiError, Forbidden, NotFound
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.records.message_tries import MessageTries, NoticeSender
from fairlead.decide.admission.notices import refused_target
from fairlead.decide.attempts.notes import EventReason
from fairlead.decide.notices import (
    Action,
    Delivery,
    NoticesPolicy,
    NoticeView,
    SendNotice,
    SettleNotice,
    TryKey,
    TryOutcome,
    TryReason,
    decide_notices,
    is_past,
    key_of_try,
    letter_of,
    wants_turn,
    with_record,
)
from fairlead.decide.verdict import Decision, ObjectKey
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import EventKind, EventSink
from fairlead.runtime.keyed_controller import KeyedDecider
from fairlead.runtime.object_writer import ObjectWriter
from fairlead.runtime.watching.barrier import Written
from fairlead.runtime.watching.mirror import Change, Mirror
from fairlead.runtime.watching.reader import MirrorReader, follow, set_aside_of
from fairlead.runtime.watching.set_aside import AsideStage


class NoticesController:
    """One per process and leader. After a crash, create a new one: its state is in the objects."""

    name = "notices"

    def __init__(
        self,
        client: Client,
        world: ClusterWorld,
        sender: NoticeSender,
        *,
        events: EventSink,
        clock: Clock,
        policy: NoticesPolicy,
        counted: Callable[[TryReason], None] = lambda _: None,
        reader: MirrorReader | None = None,
    ) -> None:
        """`counted` is called with how each try ended."""
        self._client = client
        self._jobs = world.mirrors.jobs
        self._objects = ObjectWriter(client)
        self._sender = sender
        self._events = events
        self._clock = clock
        self._policy = policy
        self._set_aside = set_aside_of(reader)
        self._decider: KeyedDecider[Action] = KeyedDecider(
            self._jobs, self._decide_one, set_aside=self._set_aside
        )
        self._tries: MessageTries[TryKey] = MessageTries(policy, self._decider.mark, counted)
        self.close = follow(self._jobs, self._job_changed, reader)

    @property
    def mirrors(self) -> Sequence[Mirror[Any]]:
        """Return what it reads."""
        return (self._jobs,)

    def _job_changed(self, change: Change[Job]) -> None:
        job = change.new
        if job is not None and job.spec.notify:
            self._decider.mark(change.key)
        elif change.old is not None and change.old.spec.notify:
            self._tries.forget(change.key)

    def due_at(self) -> float | None:
        """Return when something is to be decided; None: when a job changes."""
        return self._tries.due_at(self._decider, self._clock.now())

    def decide(self, now: float) -> Decision[Action]:
        """Decide on the jobs that are marked or due, and on those whose turn it is."""
        return self._tries.decide(self._decider, now)

    def _decide_one(self, key: ObjectKey, now: float) -> Decision[Action] | None:
        job = self._jobs.get(*key)
        if job is None or not job.spec.notify:
            self._tries.forget(key)
            return None
        outcomes = self._tries.outcomes(key, lambda each: is_past(each, job.status.notices))
        view = NoticeView(job, outcomes, is_sending=self._tries.is_sending(key))
        wants = wants_turn(view, self._policy, now)
        has_turn = self._tries.has_turn(key, now, wants=wants)
        return decide_notices(view, self._policy, now, has_turn=has_turn)

    def key_of(self, action: Action) -> ObjectKey:
        """Actions with the same key run in order, others side by side."""
        return action.job.metadata.key

    def is_beside(self, action: Action) -> bool:
        """True for tries: their targets may be slow (`ActsBeside`)."""
        return isinstance(action, SendNotice)

    async def perform(self, action: Action) -> Written | None:
        """Carry out one action; Conflict means: decide again on newer objects."""
        match action:
            case SettleNotice(job, record):
                written = await self._write(job, record)
                self._note(job, record)
                return written
            case SendNotice(job, target, record):
                return await self._tries.send(
                    job.metadata.key, key_of_try(record), self._write(job, record),
                    lambda: self._try(job, target, record),
                )  # fmt: skip
            case _:
                assert_never(action)

    async def _write(self, job: Job, record: NoticeRecord) -> Written:
        notices = with_record(job.status.notices, record)
        diff = {"notices": [to_wire(each) for each in notices]}
        return await self._objects.patch_status(JOBS, job.metadata, diff)

    async def _try(self, job: Job, target: Notify, record: NoticeRecord) -> TryOutcome:
        if refused_target(target, self._policy.terms) is not None:
            return TryOutcome(TryReason.NOT_OFFERED)
        letter = letter_of(job, record, self._clock.now())
        delivery = Delivery(target, letter)
        try:
            async with asyncio.timeout(self._policy.try_seconds_max):
                if target.url or target.url_key:
                    read = await self._secret(job.metadata.namespace)
                    url = target.url or _text(read, target.url_key)
                    if not url:
                        return TryOutcome(TryReason.SECRET_MISSING)
                    delivery = Delivery(target, letter, url, _text(read, SIGNING_KEY))
                return await self._sender.send(delivery)
        except TimeoutError:
            return TryOutcome(TryReason.TIMEOUT)

    async def _secret(self, namespace: str) -> dict[str, str]:
        """Return the values of the one Secret of the job's own namespace; {} without it."""
        try:
            secret = await self._client.get(SECRETS, NOTIFY_SECRET, namespace=namespace)
        except (NotFound, Forbidden):
            return {}
        return secret.data

    def _note(self, job: Job, record: NoticeRecord) -> None:
        if record.state is NoticeState.DELIVERED:
            return
        code = "" if record.code is None else f" {record.code}"
        text = (
            f"Notice of {record.event.value} to target {record.target} of spec.notify was not "
            f"delivered: {record.reason or TryReason.TIMEOUT.value}{code} (tries: {record.tries})"
        )
        self._events.record(
            JOBS, job.metadata, EventKind.WARNING, reason=EventReason.NOT_NOTIFIED.value,
            message=text,
        )  # fmt: skip

    def changed(self, key: ObjectKey) -> None:
        """Look at a job again: an action on it did not get through."""
        self._decider.requeue(key)

    def failed(self, action: Action, error: ApiError) -> None:
        """Leave it: the loop comes back to the job ever more rarely."""

    def faulted(self, action: Action, error: Exception) -> None:
        """Our own code raised over this job: set it aside, so that the others go on."""
        self._set_aside.note(JOBS, action.job.metadata, AsideStage.ACT, error)


def _text(data: dict[str, str], key: str) -> str:
    """Return a value of a Secret as text; "" where it is not there, or no text."""
    try:
        return base64.b64decode(data.get(key, ""), validate=True).decode().strip()
    except (binascii.Error, UnicodeDecodeError):
        return ""
