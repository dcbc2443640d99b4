"""ResourceQuotas are charged in the step that stores a write, LimitRanges judge it before.

What a namespace uses is in the status of its quotas, which is right with each write: one process
admits and stores, so creations that run at once cannot exceed a limit together. What deletions and
pods that end give back is taken off when they have been stored. All is counted when a quota is
written, when a class of devices names another resource, and at the start. A namespace without
quotas costs one look into a dictionary.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from fairlead.api.pods.served_resources import IMPLICIT
from fairlead.embedded import builtins
from fairlead.embedded.quota import (
    REQUESTS,
    Amounts,
    Excess,
    Served,
    added,
    charged,
    counted,
    freed,
    may_count,
    range_violations,
    reduced,
)
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.schema.values import as_map
from fairlead.embedded.storage.records import Key, Record, StoreEvent, record_typed
from fairlead.embedded.verbs import errors
from fairlead.embedded.verbs.context import Context
from fairlead.runtime.client import EventType
from fairlead.runtime.wake_up import WakeUp

STEP_MAX = 256  # changes between two turns of the event loop
Obj = dict[str, Any]
#: What is used of a quota after a write, to be stored with it.
Charge = tuple[Record, dict[str, str]]

_QUOTAS = builtins.RESOURCE_QUOTAS
#: Kinds whose objects bound what comes next.
BOUNDS = (_QUOTAS, builtins.LIMIT_RANGES)


def admit(
    context: Context, info: ResourceInfo, key: Key, obj: Obj, *, old: Obj | None = None,
    is_resize: bool = False,
) -> Sequence[Charge]:  # fmt: skip
    """Return what a new or changed object uses of the quotas of its namespace.

    Forbidden where one of them, or a limit range, does not allow it.
    """
    if old is not None and not may_count(info.name):
        return ()
    if key[0] in context.ranges and (old is None or is_resize or info is builtins.CLAIMS):
        _check_ranges(context, info, key, obj)
    if key[0] not in context.quotas:
        return ()
    records = {record.name: record for record in context.quotas.of(context.store, key[0])}
    try:
        found = charged(
            [record.plain() for record in records.values()], info.name, obj,
            old=old, served=_served(context),
        )  # fmt: skip
    except Excess as error:
        raise errors.forbidden(info, key[1], str(error)) from None
    return [(records[quota["metadata"]["name"]], used) for quota, used in found]


def _check_ranges(context: Context, info: ResourceInfo, key: Key, obj: Obj) -> None:
    for record in context.ranges.of(context.store, key[0]):
        found = range_violations(record.plain(), info.name, obj)
        if found:
            why = found[0] if len(found) == 1 else f"[{', '.join(found)}]"
            raise errors.forbidden(info, key[1], why)


def store_charges(context: Context, found: Sequence[Charge]) -> None:
    """Store what is used after the write that was just stored."""
    for record, used in found:
        quota = record.plain()
        _store(context, record.key, {**quota, "status": {**quota["status"], "used": used}})


def _store(context: Context, key: Key, quota: Obj) -> None:
    version = context.store.next_version
    context.store.put(_QUOTAS, record_typed(_QUOTAS, key, version, quota))


def note_created(context: Context, info: ResourceInfo, key: Key) -> None:
    """Take in that one of `BOUNDS` was stored."""
    (context.quotas if info is _QUOTAS else context.ranges).add(key)


def status_of(context: Context, quota: Obj) -> Obj:
    """Return the status of a quota: its limits, and what all objects use, also the latest ones."""
    namespace = quota["metadata"]["namespace"]
    tables = [info.name for info in context.registry.all() if info.namespaced]
    objects: dict[str, list[Obj]] = {
        name: [record.plain() for record in context.store.latest_records(name, namespace)]
        for name in dict.fromkeys(tables)
    }
    own = (namespace, quota["metadata"]["name"])
    if context.store.latest(_QUOTAS.name, own) is None:
        objects[_QUOTAS.name].append(quota)
    return counted(quota, objects, _served(context))


def _served(context: Context) -> Served:
    """Return what devices serve of the resources of pods."""
    store = context.store

    def pod(namespace: str, name: str) -> Obj | None:
        record = store.latest(builtins.PODS.name, (namespace, name))
        return None if record is None else record.plain()

    return Served(context.resource_classes.of(store), pod)


class QuotaCounter:
    """Call `note` with every batch of store events, and keep `run` running."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._to_count = context.quotas.load(context.store)
        #: The first version that the last count of a quota did not see.
        self._counted_at: dict[Key, int] = {}
        self._changes: deque[StoreEvent] = deque()
        self._wake = WakeUp()

    @property
    def backlog(self) -> int:
        """How much is left to look at."""
        return len(self._to_count) + len(self._changes)

    def note(self, events: Sequence[StoreEvent]) -> None:
        """Take in committed writes; called by the store."""
        quotas = self._context.quotas
        if not quotas:
            return
        for event in events:
            if event.info is builtins.DEVICE_CLASSES:
                self._note_class(event)
            if event.record.namespace not in quotas:
                continue
            if event.info is _QUOTAS:
                self._note_quota(event)
            if _may_free(event):
                self._changes.append(event)
        if self._changes or self._to_count:
            self._wake.set()

    def _note_class(self, event: StoreEvent) -> None:
        """Claims for a class use the resource that it names: where that changes, what they use is
        counted again, in quotas that limit the one or the other.
        """
        now = None if event.type is EventType.DELETED else event.record
        named = [_resource_named_by(each) for each in (event.previous, now)]
        if named[0] == named[1]:
            return
        limits = {f"{REQUESTS}{name}" for name in (*named, f"{IMPLICIT}{event.record.name}")}
        for namespace in sorted(self._context.quotas):
            for record in self._context.quotas.of(self._context.store, namespace):
                if not limits.isdisjoint(record.plain()["spec"].get("hard") or ()):
                    self._to_count.append(record.key)

    def _note_quota(self, event: StoreEvent) -> None:
        """A quota that is new, or whose limits changed, was counted with the write itself."""
        key, previous = event.record.key, event.previous
        if event.type is EventType.DELETED:
            self._counted_at.pop(key, None)
        elif previous is None or previous.plain().get("spec") != event.record.plain().get("spec"):
            self._counted_at[key] = event.version

    async def run(self) -> None:
        """Give back for ever. Raises InternalError when the store can't store any more."""
        store = self._context.store
        while True:
            while self._to_count:
                self._count(self._to_count.pop())
                await asyncio.sleep(0)
            if not self._changes:
                self._wake.clear()
                await self._wake.wait(None)
                continue
            batch = [self._changes.popleft() for _ in range(min(STEP_MAX, len(self._changes)))]
            self._give_back(batch)
            await store.committed(store.next_version - 1)
            await asyncio.sleep(0)

    def _count(self, key: Key) -> None:
        record = self._context.store.latest(_QUOTAS.name, key)
        if record is None:
            return
        quota = record.plain()
        self._counted_at[key] = self._context.store.next_version
        status = status_of(self._context, quota)
        if status != quota.get("status"):
            _store(self._context, key, {**quota, "status": status})

    def _give_back(self, batch: Sequence[StoreEvent]) -> None:
        for namespace in sorted({event.record.namespace for event in batch}):
            own = [event for event in batch if event.record.namespace == namespace]
            for record in self._context.quotas.of(self._context.store, namespace):
                quota, since = record.plain(), self._counted_at.get(record.key, 0)
                if self._is_of_served(quota, own):
                    self._count(record.key)
                    continue
                given_back = added(_freed(quota, event) for event in own if event.version >= since)
                if given_back:
                    status = {**quota["status"], "used": reduced(quota, given_back)}
                    _store(self._context, record.key, {**quota, "status": status})

    def _is_of_served(self, quota: Obj, events: Sequence[StoreEvent]) -> bool:
        """True where claims have changed that use resources of pods: how much depends on what
        their pods use now, so all is counted.
        """
        if not any(event.info is builtins.RESOURCE_CLAIMS for event in events):
            return False
        return any(map(_served(self._context).counts, quota["spec"].get("hard") or ()))


def _resource_named_by(record: Record | None) -> str:
    spec = {} if record is None else as_map(record.plain().get("spec"))
    return str(spec.get("extendedResourceName") or "")


def _may_free(event: StoreEvent) -> bool:
    """True for a write after which its namespace may use less."""
    return event.type is EventType.DELETED or (
        event.type is EventType.MODIFIED and may_count(event.info.name)
    )


def _freed(quota: Obj, event: StoreEvent) -> Amounts:
    assert event.previous is not None, "what is new frees nothing"
    new = None if event.type is EventType.DELETED else event.record.plain()
    return freed(quota, event.info.name, event.previous.plain(), new)
