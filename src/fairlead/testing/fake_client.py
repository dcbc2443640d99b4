"""An API in a dictionary, for tests of what reads and writes through a `Client`.

It keeps the rules that controllers depend on (versions that rise with every write, compare-and-
swap, status sub-resource, finalizers, selectors, watches with resume and 410) and nothing else: no
defaulting, no validation, no persistence. Trouble is scripted: `fail_next`, `cut_watches`,
`compact`, `hold_watches`. For fidelity use the in-process client of the embedded cluster.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import msgspec

from fairlead.api.kubernetes.selectors import Selector, parse_fields, parse_labels
from fairlead.api.meta import ObjectMeta, to_wire
from fairlead.api.resources import PODS, Resource
from fairlead.api.status import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    Expired,
    NotFound,
    Unavailable,
)
from fairlead.api.values.times import format_time
from fairlead.decide.verdict import ObjectKey
from fairlead.embedded.patch import apply_merge_patch
from fairlead.runtime.client import (
    Client,
    EventType,
    ObjectList,
    PatchType,
    Request,
    RequestVerb,
    Unreadable,
    WatchEvent,
    WatchRequest,
)

T = TypeVar("T")
A = TypeVar("A")
_UNDECODABLE = (msgspec.ValidationError, RecursionError)
HISTORY_MAX = 100_000


@dataclass(frozen=True, slots=True)
class _Logged:
    """One event of the history; `before` decides what a selecting watcher sees."""

    version: int
    resource: Resource[Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    last: dict[str, Any]  # what a DELETED event shows


@dataclass(slots=True, eq=False)
class _Watcher:
    resource: Resource[Any]
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    position: int = 0  # number of the next event in the history
    ended: ApiError | None = None
    closed: bool = False
    bookmark: int | None = None


@dataclass(frozen=True, slots=True)
class FakeCall:
    """One call that was made: its verb, the resource's plural and the object."""

    verb: str
    plural: str
    key: ObjectKey


class FakeClient(Client):
    """A `Client` over a dictionary. Every call yields to the loop `latency_seconds` first.

    With `is_graceful`, pods are only marked by a deletion, as by the API, until one with grace 0.
    """

    def __init__(
        self,
        *,
        latency_seconds: float = 0.0,
        now: Callable[[], float] | None = None,
        is_graceful: bool = False,
    ) -> None:
        self.calls: deque[FakeCall] = deque(maxlen=HISTORY_MAX)
        self.version = 0
        self._latency_seconds = latency_seconds
        self._now = now
        self._is_graceful = is_graceful
        self._objects: dict[str, dict[ObjectKey, dict[str, Any]]] = {}
        self._typed: dict[tuple[str, ObjectKey], dict[type[Any], Any]] = {}
        self._log: list[_Logged] = []
        self._compacted = 0  # versions up to here can no longer be watched from
        self._watchers: list[_Watcher] = []
        self._failures: dict[str, deque[ApiError | None]] = {}
        self._held = False
        self._closed = False
        self._uids = 0

    # Scripts

    def fail_next(self, verb: str, *errors: ApiError | None) -> None:
        """Let the next calls of `verb` raise these, in order; None lets one call through."""
        self._failures.setdefault(verb, deque()).extend(errors)

    def cut_watches(self, error: ApiError | None = None) -> None:
        """End every watch: normally, or with `error`."""
        for watcher in self._watchers:
            watcher.ended, watcher.closed = error, True
            watcher.woken.set()

    def compact(self) -> None:
        """Forget the history: watches from before now are answered with Expired."""
        self._compacted = self.version

    def hold_watches(self) -> None:
        """Deliver no event until `release_watches`."""
        self._held = True

    def release_watches(self) -> None:
        """Deliver what was held."""
        self._held = False
        self._wake()

    def send_bookmarks(self) -> None:
        """Tell every watcher the version reached."""
        for watcher in self._watchers:
            watcher.bookmark = self.version
            watcher.woken.set()

    def touch(self) -> int:
        """Let the store's version rise without any change that this kind's watchers see."""
        self.version += 1
        return self.version

    def count(self, verb: str, plural: str = "") -> int:
        """Return how many calls of a verb were made, of one resource or of all."""
        return sum(c.verb == verb and plural in ("", c.plural) for c in self.calls)

    def stored(self, resource: Resource[T]) -> tuple[T, ...]:
        """Return the objects as they are, in key order, without a call."""
        bucket = self._objects.get(resource.name, {})
        return tuple(self._decode(resource, key) for key in sorted(bucket))

    # Client

    async def call(self, request: Request[A]) -> A:
        """Carry the request out on the dictionary; only merge patches."""
        wire = to_wire(request.body)
        key = (request.namespace, request.name)
        if request.verb is RequestVerb.CREATE:
            metadata = wire.get("metadata", {})
            key = (request.namespace or metadata.get("namespace", ""), metadata["name"])
        await self._begin(request.verb.value, request.resource, key)
        answer: Any = None
        match request.verb:
            case RequestVerb.GET:
                self._require(request.resource, key)
                answer = self._decode(request.resource, key)
            case RequestVerb.LIST:
                answer = self._list(request)
            case RequestVerb.CREATE:
                answer = self._create(request, key, wire)
            case RequestVerb.PATCH:
                answer = self._patch(request, key, wire)
            case RequestVerb.READ:
                raise NotFound(f"{request.name}: no paths are served here")
            case RequestVerb.DELETE:
                self._delete(request, key)
            case RequestVerb.DELETE_COLLECTION:
                for each in self._keys(request):
                    await self.delete(request.resource, each[1], namespace=each[0])
        return answer

    async def open_watch(self, request: WatchRequest[T]) -> AsyncIterator[WatchEvent[T]]:
        """See `Client`."""
        resource, version = request.resource, int(request.resource_version)
        await self._begin("watch", resource, (request.namespace, ""))
        if version < self._compacted:
            raise Expired(f"too old resource version: {version} ({self._compacted})")
        matches = _matcher(request)
        watcher = _Watcher(resource)
        while watcher.position < len(self._log):
            if self._log[watcher.position].version > version:
                break
            watcher.position += 1
        self._watchers.append(watcher)
        loop, seconds = asyncio.get_running_loop(), request.timeout_seconds
        deadline = None if seconds is None else loop.time() + seconds
        try:
            while not watcher.closed:
                for event in self._pending(watcher, matches):
                    yield cast("WatchEvent[T]", event)
                if watcher.closed:
                    break
                watcher.woken.clear()
                async with asyncio.timeout_at(deadline):  # never around a yield
                    await watcher.woken.wait()
        except TimeoutError:
            return
        finally:
            self._watchers.remove(watcher)
        if watcher.ended is not None:
            raise watcher.ended

    async def close(self) -> None:
        """See `Client`."""
        self._closed = True
        self.cut_watches(Unavailable("the client is closed"))

    # Inside

    def _keys(self, request: Request[Any]) -> list[ObjectKey]:
        matches = _matcher(request)
        bucket = self._objects.get(request.resource.name, {})
        return [key for key in sorted(bucket) if matches(bucket[key])]

    def _list(self, request: Request[Any]) -> ObjectList[Any]:
        items: list[Any] = []
        unreadable: list[Unreadable] = []
        for key in self._keys(request):
            try:
                items.append(self._decode(request.resource, key))
            except _UNDECODABLE as error:
                wire = self._objects[request.resource.name][key]
                unreadable.append(_unreadable(wire, error))
        return ObjectList(tuple(items), str(self.version), tuple(unreadable))

    def _create(self, request: Request[Any], key: ObjectKey, wire: dict[str, Any]) -> Any:
        resource = request.resource
        if key in self._objects.get(resource.name, {}):
            raise AlreadyExists(f'{resource.name} "{key[1]}" already exists')
        self._uids += 1
        metadata = {**wire["metadata"], "uid": f"uid-{self._uids}", "generation": 1}
        if key[0]:
            metadata["namespace"] = key[0]
        if self._now is not None:
            metadata["creationTimestamp"] = format_time(self._now())
        wire = {**wire, "metadata": metadata}
        if request.dry_run:
            return msgspec.convert(wire, resource.type)
        self._store(resource, key, None, wire)
        return self._decode(resource, key)

    def _patch(self, request: Request[Any], key: ObjectKey, patch: Any) -> Any:
        resource = request.resource
        if request.patch_type is not PatchType.MERGE:
            raise BadRequest(f"only merge patches here, got {request.patch_type.value}")
        old = self._require(resource, key)
        wanted = patch.get("metadata", {}).get("resourceVersion")
        if wanted is not None and wanted != old["metadata"]["resourceVersion"]:
            raise Conflict(f'{resource.name} "{key[1]}": the object has been modified')
        new = _patched(resource, old, patch, request.subresource)
        if request.dry_run:
            return msgspec.convert(new, resource.type)
        if {k: v for k, v in new.items() if v != {}} == {k: v for k, v in old.items() if v != {}}:
            return self._decode(resource, key)
        if new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers"):
            return self._remove(resource, key, old)
        self._store(resource, key, old, new)
        return self._decode(resource, key)

    def _delete(self, request: Request[Any], key: ObjectKey) -> None:
        """Objects without finalizers vanish at once."""
        resource = request.resource
        old = self._require(resource, key)
        metadata, uid = old["metadata"], request.uid
        if uid not in (None, metadata["uid"]):
            raise Conflict(f'{resource.name} "{key[1]}": the uid is {metadata["uid"]}, not {uid}')
        if request.resource_version not in (None, metadata["resourceVersion"]):
            raise Conflict(f'{resource.name} "{key[1]}": the object has been modified')
        grace = request.grace_period_seconds
        is_marked = self._is_graceful and resource.name == PODS.name and grace != 0
        marks: dict[str, Any] = {"deletionTimestamp": format_time(self._now() if self._now else 0)}
        if is_marked:
            marks["deletionGracePeriodSeconds"] = 30 if grace is None else grace
        elif not metadata.get("finalizers"):
            self._remove(resource, key, old)
            return
        elif metadata.get("deletionTimestamp"):
            return
        self._store(resource, key, old, {**old, "metadata": {**metadata, **marks}})

    async def _begin(self, verb: str, resource: Resource[Any], key: ObjectKey) -> None:
        await asyncio.sleep(self._latency_seconds)
        if self._closed:
            raise Unavailable("the client is closed")
        self.calls.append(FakeCall(verb, resource.plural, key))
        failures = self._failures.get(verb)
        if failures:
            error = failures.popleft()
            if error is not None:
                raise error

    def _require(self, resource: Resource[Any], key: ObjectKey) -> dict[str, Any]:
        wire = self._objects.get(resource.name, {}).get(key)
        if wire is None:
            raise NotFound(f'{resource.name} "{key[1]}" not found')
        return wire

    def _decode(self, resource: Resource[T], key: ObjectKey) -> T:
        by_type = self._typed.setdefault((resource.name, key), {})
        if resource.type not in by_type:
            stored = self._objects[resource.name][key]
            is_text = resource.type is msgspec.Raw
            by_type[resource.type] = (
                msgspec.Raw(msgspec.json.encode(stored)) if is_text
                else msgspec.convert(stored, resource.type)
            )  # fmt: skip
        return cast("T", by_type[resource.type])

    def _store(
        self,
        resource: Resource[Any],
        key: ObjectKey,
        old: dict[str, Any] | None,
        new: dict[str, Any],
    ) -> None:
        self.version += 1
        new = {**new, "metadata": {**new["metadata"], "resourceVersion": str(self.version)}}
        self._objects.setdefault(resource.name, {})[key] = new
        self._typed.pop((resource.name, key), None)
        self._publish(_Logged(self.version, resource, old, new, new))

    def _remove(self, resource: Resource[T], key: ObjectKey, old: dict[str, Any]) -> T:
        self.version += 1
        last = {**old, "metadata": {**old["metadata"], "resourceVersion": str(self.version)}}
        del self._objects[resource.name][key]
        self._typed.pop((resource.name, key), None)
        self._publish(_Logged(self.version, resource, old, None, last))
        return msgspec.convert(last, resource.type)

    def _publish(self, logged: _Logged) -> None:
        if len(self._log) >= HISTORY_MAX:
            raise RuntimeError(f"the fake client keeps {HISTORY_MAX} events, no more")
        self._log.append(logged)
        self._wake()

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.woken.set()

    def _pending(
        self, watcher: _Watcher, matches: Callable[[dict[str, Any]], bool]
    ) -> Iterable[WatchEvent[Any]]:
        while watcher.position < len(self._log) and not self._held and not watcher.closed:
            logged = self._log[watcher.position]
            watcher.position += 1
            if logged.resource == watcher.resource:
                event = _event(logged, watcher.resource, matches)
                if event is not None:
                    yield event
        if watcher.bookmark is not None and not self._held and not watcher.closed:
            version, watcher.bookmark = watcher.bookmark, None
            yield WatchEvent(EventType.BOOKMARK, None, str(version))


def _event(
    logged: _Logged, resource: Resource[Any], matches: Callable[[dict[str, Any]], bool]
) -> WatchEvent[Any] | None:
    """Return what a selecting watcher sees: entering is ADDED, leaving is DELETED."""
    before = logged.before is not None and matches(logged.before)
    after = logged.after is not None and matches(logged.after)
    if not before and not after:
        return None
    kind = EventType.DELETED
    if after:
        kind = EventType.MODIFIED if before else EventType.ADDED
    try:
        obj = msgspec.convert(logged.last, resource.type)
    except _UNDECODABLE as error:
        unreadable = _unreadable(logged.last, error)
        return WatchEvent(kind, None, str(logged.version), unreadable)
    return WatchEvent(kind, obj, str(logged.version))


def _unreadable(wire: dict[str, Any], error: Exception) -> Unreadable:
    return Unreadable(msgspec.convert(wire["metadata"], ObjectMeta), str(error))


def _patched(
    resource: Resource[Any], old: dict[str, Any], patch: Any, subresource: str
) -> dict[str, Any]:
    """Return the object after a merge patch of it or of its status, which of a pod may bring
    annotations along (kubernetes `registry/core/pod/strategy.go`).
    """
    merged = cast("dict[str, Any]", apply_merge_patch(old, patch))
    if subresource == "status":
        new = {**old, "status": merged.get("status", {})}
    else:
        new = {**merged, "status": old.get("status", {})}
    metadata = old["metadata"] if subresource else merged["metadata"]
    if subresource and resource.name == PODS.name and "annotations" in merged["metadata"]:
        metadata = {**metadata, "annotations": merged["metadata"]["annotations"]}
    new["metadata"] = {
        **metadata,
        **{k: old["metadata"][k] for k in ("name", "uid", "resourceVersion")},
    }
    if new.get("spec") != old.get("spec"):
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
    return new


def _matcher(request: Request[Any] | WatchRequest[Any]) -> Callable[[dict[str, Any]], bool]:
    namespace = request.namespace
    label_selector = parse_labels(request.label_selector)
    field_selector = parse_fields(request.field_selector)

    def matches(wire: dict[str, Any]) -> bool:
        metadata = wire["metadata"]
        if namespace and metadata.get("namespace", "") != namespace:
            return False
        return label_selector.matches(metadata.get("labels", {})) and _fields_match(
            field_selector, wire
        )

    return matches


def _fields_match(selector: Selector, wire: dict[str, Any]) -> bool:
    values: dict[str, str] = {}
    for requirement in selector.requirements:
        value: Any = wire
        for part in requirement.key.split("."):
            value = value.get(part, "") if isinstance(value, dict) else ""
        values[requirement.key] = str(value)
    return selector.matches(values)
