"""What follows from deletions: dependents, contents of namespaces, objects of removed kinds, old
events.

One queue of things to look at, fed by the store's events and worked off in order by `run`.
Looking at something twice is harmless; each look reads the latest state and does what is due
(kubernetes `pkg/controller/garbagecollector`, `pkg/controller/namespace`, apiextensions
`pkg/controller/finalizer`). Nothing is kept that a restart could lose: every object is looked
at once at the start.

The cost is that of the change: dependents are found by an index from owner uids.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, assert_never

from fairlead.api.meta import OwnerReference
from fairlead.embedded import builtins
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.storage.records import Key, Record, StoreEvent
from fairlead.embedded.verbs import deletion, writes
from fairlead.embedded.verbs.changes import put_or_drop
from fairlead.embedded.verbs.context import Context
from fairlead.embedded.verbs.deletion import FOREGROUND, ORPHAN
from fairlead.embedded.verbs.options import DeleteOptions, WriteOptions
from fairlead.embedded.verbs.strategies.kinds import CRD_FINALIZER, NAMESPACE_FINALIZER
from fairlead.runtime.client import EventType, Propagation
from fairlead.runtime.wake_up import WakeUp

#: (table, key)
Place = tuple[str, Key]

STEP_MAX = 64  # looks between two turns of the event loop
EVENTS_TTL_SECONDS = 3600.0  # core/v1 events, after their last change
SWEEP_PAUSE_SECONDS = 0.01


class Task(IntEnum):
    """What to look at. A number, since every write hashes one."""

    DEPENDENT = 1  # are its owners still there?
    OWNER = 2  # marked for deletion, with dependents to orphan or to wait for
    NAMESPACE = 3  # is it empty?
    DEFINITION = 4  # are there objects of that kind?
    CONTENT = 5  # in a namespace or of a kind that goes: delete it


class GarbageCollector:
    """The sweeps. Call `note` with every batch of store events, and keep `run` running."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._queue: dict[tuple[Task, Place], None] = {}
        self._dependents: dict[str, dict[Place, None]] = {}  # owner uid → what it owns
        self._waiting: dict[str, Place] = {}  # uid of an owner in foreground deletion
        self._namespaces: dict[str, bool] = {}  # terminating → contents looked at
        self._definitions: dict[str, bool] = {}  # tables to remove → contents looked at
        self._expiring: dict[Key, float] = {}  # core events, soonest first
        #: Dependents that were there at the start: looked at when nothing else is to be done.
        self._first_look: deque[Place] = deque()
        self._wake = WakeUp()
        for name in context.store.table_names():
            info = self._info(name)
            for record in context.store.records(name) if info else ():
                assert info is not None
                self._added(info, record, ())
        self._first_look.extend(p for task, p in self._queue if task is Task.DEPENDENT)
        self._queue = {item: None for item in self._queue if item[0] is not Task.DEPENDENT}

    @property
    def backlog(self) -> int:
        """How much is left to look at."""
        return len(self._queue) + len(self._first_look)

    def _info(self, name: str) -> ResourceInfo | None:
        versions = self._context.registry.versions(name)
        return versions[0] if versions else None

    # ------------------------------------------------------------------ what changed

    def note(self, events: Sequence[StoreEvent]) -> None:
        """Take in committed writes; called by the store."""
        had_expiring = bool(self._expiring)
        for event in events:
            previous = event.previous.owners if event.previous is not None else ()
            if event.type is EventType.DELETED:
                self._removed(event)
            else:
                self._added(event.info, event.record, previous)
        # What expires later than what is there already changes no deadline.
        if self._queue or (self._expiring and not had_expiring):
            self._wake.set()

    def _added(self, info: ResourceInfo, record: Record, owners_before: tuple[str, ...]) -> None:
        place = (info.name, record.key)
        if record.owners != owners_before:
            for uid in owners_before:
                self._forget(uid, place)
            for uid in record.owners:
                self._dependents.setdefault(uid, {})[place] = None
            if record.owners:
                self._queue[Task.DEPENDENT, place] = None
        if info is builtins.EVENTS:
            self._expiring.pop(record.key, None)
            deadline = self._context.clock.now() + EVENTS_TTL_SECONDS
            self._expiring[record.key] = deadline
        if not record.is_deleting:
            return
        if info is builtins.NAMESPACES:
            self._namespaces.setdefault(record.name, False)
            self._queue[Task.NAMESPACE, place] = None
        elif info is builtins.CRDS:
            self._definitions.setdefault(record.name, False)
            self._queue[Task.DEFINITION, place] = None
        if record.has_finalizers:
            self._queue[Task.OWNER, place] = None

    def _removed(self, event: StoreEvent) -> None:
        record, name = event.record, event.info.name
        place = (name, record.key)
        for uid in record.owners:
            self._forget(uid, place)
            if uid in self._waiting:
                self._queue[Task.OWNER, self._waiting[uid]] = None
        for dependent in self._dependents.get(record.uid, ()):
            self._queue[Task.DEPENDENT, dependent] = None
        self._waiting.pop(record.uid, None)
        if event.info is builtins.EVENTS:
            self._expiring.pop(record.key, None)
        elif event.info is builtins.NAMESPACES:
            self._namespaces.pop(record.name, None)
        elif event.info is builtins.CRDS:
            self._definitions.pop(record.name, None)
        if record.key[0] in self._namespaces:
            self._queue[Task.NAMESPACE, (builtins.NAMESPACES.name, ("", record.key[0]))] = None
        if name in self._definitions:
            self._queue[Task.DEFINITION, (builtins.CRDS.name, ("", name))] = None

    def _forget(self, uid: str, place: Place) -> None:
        places = self._dependents.get(uid)
        if places is not None:
            places.pop(place, None)
            if not places:
                del self._dependents[uid]

    # ------------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Work off the queue for ever. Raises InternalError when the store can't store any more."""
        store = self._context.store
        while True:
            self._expire()
            if not self._queue:
                if self._first_look:
                    await self._look_on()
                else:
                    await self._wait()
                continue
            for _ in range(min(STEP_MAX, len(self._queue))):
                task, place = next(iter(self._queue))
                del self._queue[task, place]
                self._look(task, place)
            await store.committed(store.next_version - 1)
            await asyncio.sleep(0)

    async def _look_on(self) -> None:
        """Take one step of the first look, and leave the rest of the time to who is starting."""
        store = self._context.store
        for _ in range(min(STEP_MAX, len(self._first_look))):
            self._look(Task.DEPENDENT, self._first_look.popleft())
        await store.committed(store.next_version - 1)
        await asyncio.sleep(SWEEP_PAUSE_SECONDS if self._first_look else 0)

    async def _wait(self) -> None:
        deadline = next(iter(self._expiring.values()), None)
        now = self._context.clock.now()
        self._wake.clear()
        await self._wake.wait(None if deadline is None else deadline - now)

    def _expire(self) -> None:
        now = self._context.clock.now()
        for _ in range(STEP_MAX):
            key = next(iter(self._expiring), None)
            if key is None or self._expiring[key] > now:
                return
            del self._expiring[key]
            if self._context.store.latest(builtins.EVENTS.name, key) is not None:
                deletion.delete(self._context, builtins.EVENTS, key, DeleteOptions())

    def _look(self, task: Task, place: Place) -> None:
        name, key = place
        info = self._info(name)
        record = self._context.store.latest(name, key)
        if info is None or record is None:
            return
        match task:
            case Task.DEPENDENT:
                self._look_at_dependent(info, record)
            case Task.OWNER:
                self._look_at_owner(info, record)
            case Task.NAMESPACE:
                self._look_at_namespace(record)
            case Task.DEFINITION:
                self._look_at_definition(record)
            case Task.CONTENT:
                if not record.is_deleting:
                    deletion.delete(self._context, info, record.key, DeleteOptions())
            case _:
                assert_never(task)

    # ------------------------------------------------------------------ owners and dependents

    def _look_at_dependent(self, info: ResourceInfo, record: Record) -> None:
        """Delete it when all owners are gone; drop the references to those that are."""
        if record.is_deleting:
            return
        references = record.metadata().owner_references
        solid: list[str] = []
        waiting = False
        for reference in references:
            owner, is_known = self._owner(reference, record.namespace)
            if not is_known:
                solid.append(reference.uid)
            elif owner is not None:
                if owner.is_deleting and FOREGROUND in owner.metadata().finalizers:
                    waiting = True
                else:
                    solid.append(reference.uid)
        if len(solid) == len(references):
            return
        if solid:
            self._keep_owners(info, record, solid)
            return
        foreground = waiting and record.uid in self._dependents
        if foreground and self._is_in_circle(record.uid):
            self._unblock_owners(info, record)
        propagation = Propagation.FOREGROUND if foreground else None
        options = DeleteOptions(propagation=propagation, uid=record.uid)
        deletion.delete(self._context, info, record.key, options)

    def _is_in_circle(self, uid: str) -> bool:
        """Return True when a dependent waits for its own dependents: perhaps for this object.

        So does kubernetes' collector, which breaks what may be a circle there.
        """
        for place in self._dependents.get(uid, ()):
            record = self._context.store.latest(*place)
            if record is None or not record.is_deleting:
                continue
            if FOREGROUND in record.metadata().finalizers:
                return True
        return False

    def _unblock_owners(self, info: ResourceInfo, record: Record) -> None:
        def change(obj: dict[str, Any]) -> dict[str, Any]:
            references = obj["metadata"]["ownerReferences"]
            unblocked = [{**each, "blockOwnerDeletion": False} for each in references]
            obj["metadata"]["ownerReferences"] = unblocked
            return obj

        writes.overwrite(self._context, info, record.key, change, options=WriteOptions())
        for reference in record.metadata().owner_references:
            if reference.uid in self._waiting:
                self._queue[Task.OWNER, self._waiting[reference.uid]] = None

    def _owner(self, reference: OwnerReference, namespace: str) -> tuple[Record | None, bool]:
        """Return the owner, None when it is gone, and whether its kind is served at all."""
        info = self._context.registry.by_kind(reference.api_version, reference.kind)
        if info is None:
            return None, False
        if info.namespaced and not namespace:
            return None, True  # a cluster-scoped object can't have a namespaced owner
        key = (namespace if info.namespaced else "", reference.name)
        record = self._context.store.latest(info.name, key)
        return (record if record is not None and record.uid == reference.uid else None), True

    def _keep_owners(self, info: ResourceInfo, record: Record, uids: Sequence[str]) -> None:
        def change(obj: dict[str, Any]) -> dict[str, Any]:
            metadata = obj["metadata"]
            references = [r for r in metadata.get("ownerReferences", ()) if r["uid"] in uids]
            put_or_drop(metadata, "ownerReferences", references)
            return obj

        writes.overwrite(self._context, info, record.key, change, options=WriteOptions())

    def _look_at_owner(self, info: ResourceInfo, record: Record) -> None:
        finalizers = record.metadata().finalizers
        if not record.is_deleting:
            return
        places = list(self._dependents.get(record.uid, ()))
        if ORPHAN in finalizers:
            for name, key in places:
                child, child_info = self._context.store.latest(name, key), self._info(name)
                if child is not None and child_info is not None:
                    kept = [uid for uid in child.owners if uid != record.uid]
                    self._keep_owners(child_info, child, kept)
            self._drop_finalizer(info, record.key, ORPHAN)
        elif FOREGROUND in finalizers:
            self._waiting[record.uid] = (info.name, record.key)
            if not any(self._blocks(place, record.uid) for place in places):
                self._drop_finalizer(info, record.key, FOREGROUND)
            for place in places:
                self._queue[Task.DEPENDENT, place] = None

    def _blocks(self, place: Place, uid: str) -> bool:
        record = self._context.store.latest(*place)
        if record is None:
            return False
        references = record.metadata().owner_references
        return any(r.uid == uid and r.block_owner_deletion for r in references)

    def _drop_finalizer(self, info: ResourceInfo, key: Key, finalizer: str) -> None:
        def change(obj: dict[str, Any]) -> dict[str, Any]:
            metadata = obj["metadata"]
            left = [f for f in metadata.get("finalizers", ()) if f != finalizer]
            put_or_drop(metadata, "finalizers", left)
            return obj

        writes.overwrite(self._context, info, key, change, options=WriteOptions())

    # ------------------------------------------------------------------ contents

    def _sweep(self, name: str, namespace: str) -> None:
        """Look at all objects of a table (in a namespace) to delete them."""
        for record in self._context.store.records(name, namespace):
            self._queue[Task.CONTENT, (name, record.key)] = None

    def _look_at_namespace(self, record: Record) -> None:
        if not record.is_deleting:
            return
        store = self._context.store
        tables = [name for name in store.table_names() if store.count(name, record.name)]
        if not self._namespaces.get(record.name):
            self._namespaces[record.name] = True
            for name in tables:
                self._sweep(name, record.name)
        if tables:
            return  # looked at again when one of its objects is gone

        def change(obj: dict[str, Any]) -> dict[str, Any]:
            spec = dict(obj.get("spec") or {})
            left = [f for f in spec.get("finalizers", ()) if f != NAMESPACE_FINALIZER]
            put_or_drop(spec, "finalizers", left)
            return {**obj, "spec": spec}

        writes.overwrite(
            self._context, builtins.NAMESPACES, record.key, change, options=WriteOptions()
        )

    def _look_at_definition(self, record: Record) -> None:
        if not record.is_deleting:
            return
        if not self._definitions.get(record.name):
            self._definitions[record.name] = True
            self._sweep(record.name, "")
        if self._context.store.count(record.name) == 0:
            self._drop_finalizer(builtins.CRDS, record.key, CRD_FINALIZER)
