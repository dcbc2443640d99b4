"""The verbs with Kubernetes semantics, used by the HTTP server and the in-process client alike.

Reads answer from what is visible. A write happens in one synchronous step (`writes.py`,
`deletion.py`, `subresources.py`) and is answered once the store has committed it. Errors are
the exceptions of `fairlead.api.status`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, assert_never

from fairlead.api.jobs.job_defaults import JobTerms
from fairlead.api.status import AlreadyExists, NotFound, UnsupportedMediaType
from fairlead.embedded import builtins, crds
from fairlead.embedded.patch import apply_json_patch, apply_merge_patch, apply_strategic_patch
from fairlead.embedded.registry import Registry
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.schema.schema import builtin_schema
from fairlead.embedded.storage.records import Key, Record, StoreEvent
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs import applying, deletion, errors, subresources, writes
from fairlead.embedded.verbs.context import Context
from fairlead.embedded.verbs.options import (
    DeleteOptions,
    DeleteResult,
    ListOptions,
    ListPage,
    WatchOptions,
    WatchStart,
    WriteOptions,
)
from fairlead.embedded.verbs.reading import lists
from fairlead.embedded.verbs.reading.watches import Watch, WatchHub
from fairlead.embedded.verbs.strategies.quotas import QuotaCounter
from fairlead.embedded.verbs.sweeps.cluster_objects import Address, ClusterObjects
from fairlead.embedded.verbs.sweeps.collector import GarbageCollector
from fairlead.embedded.verbs.sweeps.taint_eviction import TaintEviction
from fairlead.embedded.webhooks.admitted import Admitted
from fairlead.embedded.webhooks.match import AskedOperation, Operation
from fairlead.embedded.webhooks.registry import Webhooks
from fairlead.runtime.client import EventType, PatchType
from fairlead.runtime.clock import Clock

WATCH_SECONDS_MIN, WATCH_SECONDS_MAX = 1800.0, 3600.0  # apiserver: a random 30 to 60 minutes
NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
PRIORITIES = (("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000))


#: Events on their way to one in-process watcher.
WATCH_BUFFER_MAX = 65_536


class ApiService:
    """The API of one store. Keep `run` running beside it: it does what deletions entail."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        clock: Clock,
        *,
        ids: Callable[[], str],
        rng: random.Random,
        watch_buffer_max: int = WATCH_BUFFER_MAX,
        terms: JobTerms | None = None,
    ) -> None:
        """Serve `store`. `ids` gives a new uid per call, `rng` picks generated names.

        `registry` gets the kinds of the definitions that the store already holds. `terms` are what
        the settings of the cluster say of its jobs; None: nothing.
        """
        self.store = store
        self.registry = registry
        #: Attach a caller to it, and admission webhooks are called.
        self.webhooks = Webhooks(store, registry, ids=ids)
        self._context = Context(
            store, registry, clock, ids, rng, lambda: self.webhooks.can_call, terms or JobTerms()
        )
        self._admitted = Admitted(self._context, self.webhooks)
        for record in store.records(builtins.CRDS.name):
            self._serve(record)
        store.subscribe(self._note_definitions)
        self._hub = WatchHub(store, buffer_max=watch_buffer_max)
        self._collector = GarbageCollector(self._context)
        store.subscribe(self._collector.note)
        self._taints = TaintEviction(self._context)
        store.subscribe(self._taints.note)
        self._context.ranges.load(store)
        self._quotas = QuotaCounter(self._context)
        store.subscribe(self._quotas.note)
        self._objects = ClusterObjects(self._context)
        store.subscribe(self._objects.note)

    @property
    def context(self) -> Context:
        """What the verbs work on, for an admission of another user in front of them."""
        return self._context

    async def bootstrap(self) -> None:
        """Create what every cluster has, unless it is there: namespaces, system priorities."""
        for name in NAMESPACES:
            await self._ensure(builtins.NAMESPACES, {"metadata": {"name": name}})
        for name, value in PRIORITIES:
            body = {"metadata": {"name": name}, "value": value}
            await self._ensure(builtins.PRIORITY_CLASSES, body)

    async def _ensure(self, info: ResourceInfo, body: dict[str, Any]) -> None:
        if self.store.latest(info.name, ("", body["metadata"]["name"])) is not None:
            return
        try:
            await self.create(info, "", body, WriteOptions())
        except AlreadyExists:
            return

    async def run(self) -> None:
        """Collect what is left over, evict from tainted nodes, make what namespaces have.

        Until cancelled. Raises InternalError, in a group, when the store can't store any more.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._collector.run(), name="collector")
            group.create_task(self._taints.run(), name="taints")
            group.create_task(self._quotas.run(), name="quotas")
            group.create_task(self._objects.run(), name="objects")

    def serves_at(self, address: Address) -> None:
        """Publish where a server listens: the Service `kubernetes`, and its authority."""
        self._objects.serves_at(address)

    @property
    def backlog(self) -> int:
        """How many things `run` has still to look at; 0 when all deletions are through."""
        return sum(
            part.backlog for part in (self._collector, self._taints, self._quotas, self._objects)
        )

    @property
    def watch_count(self) -> int:
        """How many in-process watches are open."""
        return self._hub.count

    # ------------------------------------------------------------------ definitions

    def _note_definitions(self, events: Sequence[StoreEvent]) -> None:
        for event in events:
            if event.info is not builtins.CRDS:
                continue
            if event.type is EventType.DELETED:
                for info in self.registry.versions(event.record.name):
                    self.registry.remove(info)
                self._hub.end(event.record.name)
            elif event.previous is None or _spec(event.previous) != _spec(event.record):
                self._serve(event.record)

    def _serve(self, record: Record) -> None:
        infos = crds.infos_of(record.plain())
        paths = {(info.group, info.version, info.plural) for info in infos}
        for old in self.registry.versions(record.name):
            if (old.group, old.version, old.plural) not in paths:
                self.registry.remove(old)
        for info in infos:
            self.registry.add(info)

    # ------------------------------------------------------------------ reads

    def get(self, info: ResourceInfo, namespace: str, name: str) -> Record:
        """Return the object; NotFound."""
        return lists.get(self._context, info, namespace, name)

    def list(self, info: ResourceInfo, namespace: str, options: ListOptions) -> ListPage:
        """Return one page of the objects of a namespace, or of all for ""."""
        return lists.list_page(self._context, info, namespace, options)

    def watch_start(self, info: ResourceInfo, namespace: str, options: WatchOptions) -> WatchStart:
        """Return where a watch begins, for those that follow the store themselves."""
        return lists.watch_start(self._context, info, namespace, options)

    def watch(self, info: ResourceInfo, namespace: str, options: WatchOptions) -> Watch:
        """Open an in-process watch; it ends after `timeout_seconds`, by default 30 to 60 min."""
        start = self.watch_start(info, namespace, options)
        timeout = options.timeout_seconds or self._context.rng.uniform(
            WATCH_SECONDS_MIN, WATCH_SECONDS_MAX
        )
        return self._hub.open(start, options, timeout_seconds=timeout)

    # ------------------------------------------------------------------ writes

    def _concerns_webhooks(
        self, info: ResourceInfo, operation: Operation, subresource: str = ""
    ) -> bool:
        webhooks = self.webhooks
        return webhooks.is_active and webhooks.concern(AskedOperation(info, subresource, operation))

    async def _committed(self, record: Record, options: WriteOptions | DeleteOptions) -> None:
        if not options.dry_run and record.version > self.store.version:
            await self.store.committed(record.version)

    def is_watched(self, info: ResourceInfo) -> bool:
        """True while somebody watches the kind."""
        return self._hub.watches(info.name)

    async def _written(self, info: ResourceInfo, record: Record, options: WriteOptions) -> Record:
        if record.version > self.store.version and not options.dry_run:
            await self.store.committed(record.version)
        if not options.reads_model and not self.is_watched(info):
            record.drop_caches()  # it was decoded to check it; no watch in this process reads it
        return record

    async def create(
        self, info: ResourceInfo, namespace: str, body: dict[str, Any], options: WriteOptions
    ) -> Record:
        """Create an object. `body` is consumed: it may be changed."""
        if self._concerns_webhooks(info, Operation.CREATE):
            record = await self._admitted.create(info, namespace, body, options)
        else:
            record = writes.create(self._context, info, namespace, body, options=options)
        return await self._written(info, record, options)

    async def replace(
        self,
        info: ResourceInfo,
        key: Key,
        body: dict[str, Any],
        options: WriteOptions,
        *,
        subresource: str = "",
    ) -> Record:
        """PUT an object, its "status", or a namespace's "finalize". `body` is consumed."""
        _check_subresource(info, subresource)
        operation = Operation.UPDATE
        if self.webhooks.is_active and info.create_on_update_allowed and not subresource:
            is_there = self.store.latest(info.name, key) is not None
            operation = Operation.UPDATE if is_there else Operation.CREATE
        if self._concerns_webhooks(info, operation, subresource):
            asked = AskedOperation(info, subresource, operation)
            record = await self._admitted.replace(asked, key, body, options)
        else:
            record = writes.replace(
                self._context, info, key, body, options=options, subresource=subresource
            )
        return await self._written(info, record, options)

    async def patch(
        self,
        info: ResourceInfo,
        key: Key,
        patch: Mapping[str, Any] | Sequence[Any],
        options: WriteOptions,
        *,
        patch_type: PatchType,
        subresource: str = "",
    ) -> Record:
        """PATCH an object or its "status". UnsupportedMediaType: strategic, custom resource."""
        _check_subresource(info, subresource)
        change = _change(info, patch, patch_type)
        if self._concerns_webhooks(info, Operation.UPDATE, subresource):
            asked = AskedOperation(info, subresource, Operation.UPDATE)
            record = await self._admitted.patch(asked, key, change, options)
        else:
            only_status = (
                subresource == "status"
                and patch_type is PatchType.MERGE
                and options.field_validation == "Ignore"
                and _is_about_status(patch)
            )
            record = writes.patch(
                self._context, info, key, change, options=options, subresource=subresource,
                only_status=only_status,
            )  # fmt: skip
        return await self._written(info, record, options)

    async def apply(
        self,
        info: ResourceInfo,
        key: Key,
        config: dict[str, Any],
        options: WriteOptions,
        *,
        subresource: str = "",
    ) -> tuple[Record, bool]:
        """Apply a configuration; return the object, and True when it was created."""
        _check_subresource(info, subresource)
        is_new = not subresource and self.store.latest(info.name, key) is None
        operation = Operation.CREATE if is_new else Operation.UPDATE
        if self._concerns_webhooks(info, operation, subresource):
            record = await self._admitted.apply(
                AskedOperation(info, subresource, operation), key, config, options
            )
        elif is_new:
            body = applying.new_object(self._context, info, key, config, options=options)
            kept = replace(options, keeps_managers=True)
            record = writes.create(self._context, info, key[0], body, options=kept)
        else:
            record = applying.apply_config(
                self._context, info, key, config, options=options, subresource=subresource
            )
        return await self._written(info, record, options), is_new

    async def delete(self, info: ResourceInfo, key: Key, options: DeleteOptions) -> DeleteResult:
        """Delete an object, or mark it."""
        if self._concerns_webhooks(info, Operation.DELETE):
            result = await self._admitted.delete(info, key, options)
        else:
            result = deletion.delete(self._context, info, key, options)
        await self._committed(result.record, options)
        return result

    async def delete_collection(
        self, info: ResourceInfo, namespace: str, selection: ListOptions, options: DeleteOptions
    ) -> Sequence[Record]:
        """Delete all objects that a list with `selection` returns; return their last states."""
        deleted: list[Record] = []
        for record in self.list(info, namespace, selection).records:
            try:
                if self._concerns_webhooks(info, Operation.DELETE):
                    result = await self._admitted.delete(info, record.key, options, name="")
                else:
                    result = deletion.delete(self._context, info, record.key, options)
            except NotFound:
                continue
            deleted.append(result.record)
        if deleted:
            await self._committed(deleted[-1], options)
        return deleted

    async def bind(self, key: Key, binding: Mapping[str, Any], options: WriteOptions) -> None:
        """POST pods/x/binding; the answer is 201 with a Status of Success."""
        if self._concerns_webhooks(builtins.PODS, Operation.CREATE, "binding"):
            record = await self._admitted.bind(key, binding, options)
        else:
            record = subresources.bind(self._context, key, binding, options)
        await self._committed(record, options)

    async def evict(self, key: Key, options: DeleteOptions) -> None:
        """POST pods/x/eviction; the answer is 201 with a Status of Success."""
        if self._concerns_webhooks(builtins.PODS, Operation.CREATE, "eviction"):
            result = await self._admitted.evict(key, options)
        else:
            result = subresources.evict(self._context, key, options)
        await self._committed(result.record, options)

    def get_scale(self, info: ResourceInfo, key: Key) -> dict[str, Any]:
        """Return the autoscaling/v1 Scale of a custom resource, whole."""
        return subresources.get_scale(self._context, info, key)

    def scale_to_change(self, info: ResourceInfo, key: Key) -> dict[str, Any]:
        """Return the Scale that a patch begins with; it may have no replicas."""
        return subresources.scale_to_change(self._context, info, key)

    async def put_scale(
        self, info: ResourceInfo, key: Key, body: Mapping[str, Any], options: WriteOptions
    ) -> dict[str, Any]:
        """Write a Scale's wished replicas and return the new Scale."""
        if self._concerns_webhooks(info, Operation.UPDATE, "scale"):
            record, scale = await self._admitted.put_scale(info, key, body, options)
        else:
            record, scale = subresources.put_scale(self._context, info, key, body, options=options)
        await self._committed(record, options)
        return scale


def _spec(record: Record) -> Any:
    return record.plain().get("spec")


def _check_subresource(info: ResourceInfo, subresource: str) -> None:
    if subresource and subresource not in info.subresources:
        raise errors.method_not_allowed(info, subresource)


def _is_about_status(patch: object) -> bool:
    """True for a merge patch that sets a status and does not touch the spec."""
    return isinstance(patch, dict) and isinstance(patch.get("status"), dict) and "spec" not in patch


def _change(
    info: ResourceInfo, patch: Mapping[str, Any] | Sequence[Any], patch_type: PatchType
) -> Callable[[dict[str, Any]], Any]:
    match patch_type:
        case PatchType.MERGE:
            return lambda obj: apply_merge_patch(obj, patch)
        case PatchType.JSON:
            return lambda obj: apply_json_patch(obj, patch)
        case PatchType.STRATEGIC:
            if not info.is_builtin:
                raise UnsupportedMediaType(
                    "the body of the request was in an unknown format - accepted media types "
                    "include: application/json-patch+json, application/merge-patch+json"
                )
            schema = builtin_schema(info.kind)
            return lambda obj: apply_strategic_patch(obj, patch, schema)
        case _:
            assert_never(patch_type)
