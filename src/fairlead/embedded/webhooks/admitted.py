"""The writing verbs with webhooks: ask first, then write in one step as always.

A write that some webhook's rules select runs in four parts: a draft (the object as defaulted, not
yet checked), the mutating webhooks, the write as a dry run (which applies all rules and gives what
would be stored), the validating webhooks; then the write itself. Others may write meanwhile, since
webhooks are awaited. The last part therefore carries the version that the draft began with; where
that has passed, everything is done again, unless the client itself named a version.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fairlead.api.status import Conflict
from fairlead.embedded import builtins
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.schema.values import as_map
from fairlead.embedded.storage.records import Key, Record
from fairlead.embedded.verbs import applying, changes, deletion, errors, subresources, writes
from fairlead.embedded.verbs.context import Context
from fairlead.embedded.verbs.options import DeleteOptions, DeleteResult, WriteOptions, no_warning
from fairlead.embedded.webhooks.match import AskedOperation, Attributes, KindName, Operation
from fairlead.embedded.webhooks.registry import Webhooks
from fairlead.embedded.webhooks.review import internal

TRIES_MAX = 5  # as for patches upstream (apiserver `handlers/patch.go`)
BINDING = KindName("", "v1", "Binding")
EVICTION = KindName("policy", "v1", "Eviction")
SCALE = KindName("autoscaling", "v1", "Scale")

Obj = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Admitted:
    """The verbs of one service with webhooks. Each is for requests that `concern` some."""

    context: Context
    webhooks: Webhooks

    async def create(
        self, info: ResourceInfo, namespace: str, body: Obj, options: WriteOptions
    ) -> Record:
        """Create an object: `writes.create` with webhooks."""
        context = _with_one_id(self.context)
        once = _once_checked(options)

        def draft(obj: Obj, options: WriteOptions) -> Obj:
            record = writes.create(context, info, namespace, obj, options=options)
            return _whole(info, record)

        given_name = str(_metadata(body).get("name") or "")
        obj = draft(changes.copy(body), replace(options, is_draft=True))
        if not given_name:
            obj["metadata"].pop("name", None)  # it is made up after the mutating webhooks

        def settle(obj: Obj) -> Obj:
            name = _metadata(obj).get("name")
            settled = draft(changes.copy(obj), replace(once, is_draft=True))
            if not name:
                settled["metadata"].pop("name", None)
            return settled

        attributes = Attributes(
            AskedOperation(info, "", Operation.CREATE), _kind(info),
            _namespace_of(info, namespace, body), given_name, obj, None,
            _write_options("CreateOptions", options), options.dry_run,
        )  # fmt: skip
        obj = await self.webhooks.mutate(attributes, settle=settle, warn=options.warn) or obj
        checked = writes.create(
            context, info, namespace, changes.copy(obj), options=replace(once, dry_run=True)
        )
        attributes = replace(attributes, object=_whole(info, checked))
        await self.webhooks.validate(attributes, warn=options.warn)
        obj["metadata"]["name"] = checked.name
        return writes.create(context, info, namespace, obj, options=once)

    async def replace(
        self, asked: AskedOperation, key: Key, body: Obj, options: WriteOptions
    ) -> Record:
        """PUT an object: `writes.replace` with webhooks."""

        def draft(options: WriteOptions) -> Record:
            return writes.replace(
                self.context, asked.info, key, changes.copy(body),
                options=options, subresource=asked.subresource,
            )  # fmt: skip

        if asked.operation is Operation.CREATE:  # a PUT that creates
            draft(replace(options, dry_run=True, warn=no_warning))  # checks the name in the body
            metadata = {**_metadata(body), "resourceVersion": ""}
            return await self.create(asked.info, key[0], {**body, "metadata": metadata}, options)
        return await self._update(asked, key, draft, options)

    async def patch(
        self, asked: AskedOperation, key: Key, change: Callable[[Obj], Any], options: WriteOptions
    ) -> Record:
        """PATCH an object: `writes.patch` with webhooks."""

        def draft(options: WriteOptions) -> Record:
            return writes.patch(
                self.context, asked.info, key, change,
                options=options, subresource=asked.subresource,
            )  # fmt: skip

        return await self._update(asked, key, draft, options)

    async def apply(
        self, asked: AskedOperation, key: Key, config: Obj, options: WriteOptions
    ) -> Record:
        """Apply a configuration: `applying.apply_config` with webhooks, or a creation."""
        context, info = self.context, asked.info
        if asked.operation is Operation.CREATE:
            body = applying.new_object(context, info, key, config, options=options)
            return await self.create(info, key[0], body, replace(options, keeps_managers=True))

        def draft(options: WriteOptions) -> Record:
            return applying.apply_config(
                context, info, key, config, options=options, subresource=asked.subresource
            )

        return await self._update(asked, key, draft, options)

    async def _update(
        self,
        asked: AskedOperation,
        key: Key,
        draft: Callable[[WriteOptions], Record],
        options: WriteOptions,
    ) -> Record:
        return await self._again(
            lambda: self._update_once(asked, key, draft, options),
            lambda: self._version(asked.info, key),
        )

    async def _update_once(
        self,
        asked: AskedOperation,
        key: Key,
        draft: Callable[[WriteOptions], Record],
        options: WriteOptions,
    ) -> Record:
        # A patch is an update to webhooks, UpdateOptions included (apiserver `handlers/patch.go`).
        info, context, once = asked.info, self.context, _once_checked(options)
        old = context.store.latest(info.name, key)
        obj = _whole(info, draft(replace(options, is_draft=True)))
        if old is None:
            raise errors.not_found(info, key[1])

        def write(obj: Obj, options: WriteOptions) -> Record:
            return writes.replace(
                context, info, key, changes.copy(obj),
                options=options, subresource=asked.subresource,
            )  # fmt: skip

        attributes = Attributes(
            asked, _kind(info), _namespace_of(info, key[0], obj), key[1],
            obj, _whole(info, old), _write_options("UpdateOptions", options), options.dry_run,
        )  # fmt: skip

        def settle(obj: Obj) -> Obj:
            return _whole(info, write(obj, replace(once, is_draft=True)))

        obj = await self.webhooks.mutate(attributes, settle=settle, warn=options.warn) or obj
        checked = write(obj, replace(once, dry_run=True))
        attributes = replace(attributes, object=_whole(info, checked))
        await self.webhooks.validate(attributes, warn=options.warn)
        return write(obj, once)

    async def delete(
        self, info: ResourceInfo, key: Key, options: DeleteOptions, *, name: str | None = None
    ) -> DeleteResult:
        """Delete an object: `deletion.delete` with webhooks, which see the object as it was.

        `name` is what the review names: "" for a collection, None for the object.
        """
        name = key[1] if name is None else name
        return await self._again(
            lambda: self._delete(info, key, options, name),
            lambda: self._version(info, key) if options.resource_version is None else None,
        )

    async def _delete(
        self, info: ResourceInfo, key: Key, options: DeleteOptions, name: str
    ) -> DeleteResult:
        context = self.context
        current = context.store.latest(info.name, key)
        expected = deletion.delete(context, info, key, replace(options, dry_run=True))
        if current is None or expected.record is current:
            return expected  # it is on its way out already: nothing is written
        attributes = Attributes(
            AskedOperation(info, "", Operation.DELETE), _kind(info),
            _namespace_of(info, key[0], {"metadata": {"name": key[1]}}), name,
            None, _whole(info, current), delete_options(options), options.dry_run,
        )  # fmt: skip
        await self.webhooks.mutate(attributes, settle=_as_it_is, warn=options.warn)
        await self.webhooks.validate(attributes, warn=options.warn)
        guarded = replace(options, uid=current.uid, resource_version=str(current.version))
        return deletion.delete(context, info, key, guarded)

    async def bind(self, key: Key, binding: Mapping[str, Any], options: WriteOptions) -> Record:
        """POST pods/x/binding: webhooks get the Binding."""
        metadata = {"name": key[1], "namespace": key[0], **_metadata(binding)}
        obj = {"kind": "Binding", "apiVersion": "v1", **binding, "metadata": metadata}
        attributes = Attributes(
            AskedOperation(builtins.PODS, "binding", Operation.CREATE), BINDING, key[0], key[1],
            obj, None, _write_options("CreateOptions", options), options.dry_run,
        )  # fmt: skip
        obj = await self._both(attributes, warn=options.warn)
        return subresources.bind(self.context, key, obj, options)

    async def evict(self, key: Key, options: DeleteOptions) -> DeleteResult:
        """POST pods/x/eviction: webhooks get the Eviction, and may not change it."""
        given = delete_options(options)
        obj = {
            "kind": "Eviction", "apiVersion": "policy/v1",
            "metadata": {"name": key[1], "namespace": key[0]}, "deleteOptions": given,
        }  # fmt: skip
        create = _write_options("CreateOptions", WriteOptions(dry_run=options.dry_run))
        attributes = Attributes(
            AskedOperation(builtins.PODS, "eviction", Operation.CREATE), EVICTION, key[0], key[1],
            obj, None, create, options.dry_run,
        )  # fmt: skip
        if await self._both(attributes, warn=options.warn) != obj:
            raise internal("an admission webhook changed an Eviction, which is not supported here")
        return subresources.evict(self.context, key, options)

    async def put_scale(
        self, info: ResourceInfo, key: Key, body: Mapping[str, Any], options: WriteOptions
    ) -> tuple[Record, Obj]:
        """Write a Scale: webhooks get the old and the new Scale."""
        return await self._again(
            lambda: self._put_scale(info, key, body, options),
            lambda: None if _metadata(body).get("resourceVersion") else self._version(info, key),
        )

    async def _put_scale(
        self, info: ResourceInfo, key: Key, body: Mapping[str, Any], options: WriteOptions
    ) -> tuple[Record, Obj]:
        old = subresources.scale_to_change(self.context, info, key)
        wished = body.get("spec") if isinstance(body.get("spec"), Mapping) else {}
        metadata = {**old["metadata"], **_metadata(body)}
        new = {**old, "metadata": metadata, "spec": wished}
        attributes = Attributes(
            AskedOperation(info, "scale", Operation.UPDATE), SCALE, key[0], key[1],
            new, old, _write_options("UpdateOptions", options), options.dry_run,
        )  # fmt: skip
        new = await self._both(attributes, warn=options.warn)
        return subresources.put_scale(self.context, info, key, new, options=options)

    async def _both(self, attributes: Attributes, *, warn: Callable[[str], None]) -> Obj:
        obj = await self.webhooks.mutate(attributes, settle=_as_it_is, warn=warn)
        assert obj is not None
        await self.webhooks.validate(replace(attributes, object=obj), warn=warn)
        return obj

    def _version(self, info: ResourceInfo, key: Key) -> int | None:
        record = self.context.store.latest(info.name, key)
        return None if record is None else record.version

    async def _again(
        self, attempt: Callable[[], Awaitable[T]], version: Callable[[], int | None]
    ) -> T:
        """Do it again while others were faster. A Conflict that is the client's own comes out."""
        for tries in range(1, TRIES_MAX + 1):
            before = version()
            try:
                return await attempt()
            except Conflict:
                if version() == before or tries == TRIES_MAX:
                    raise
        raise AssertionError("the last try returns or raises")


def _as_it_is(obj: Obj) -> Obj:
    return obj


def _with_one_id(context: Context) -> Context:
    """Return a context that gives one object the same uid in its dry run and in its write."""
    uid = context.ids()
    return replace(context, ids=lambda: uid)


def _once_checked(options: WriteOptions) -> WriteOptions:
    """Return the options of later parts.

    What there is to warn of was said with the draft, which also says who owns its fields: what
    webhooks change of them is nobody's.
    """
    return replace(options, field_validation="Ignore", warn=no_warning, keeps_managers=True)


def _whole(info: ResourceInfo, record: Record) -> Obj:
    return {"kind": info.kind, "apiVersion": info.api_version, **info.served(record.plain())}


def _kind(info: ResourceInfo) -> KindName:
    return KindName(info.group, info.version, info.kind)


def _metadata(body: Mapping[str, Any]) -> Mapping[str, Any]:
    return as_map(body.get("metadata"))


def _namespace_of(info: ResourceInfo, namespace: str, body: Mapping[str, Any]) -> str:
    """The namespace of a request; of one about a namespace, that namespace."""
    if info is builtins.NAMESPACES:
        return str(_metadata(body).get("name") or "")
    return namespace


def _write_options(kind: str, options: WriteOptions) -> Obj:
    out: Obj = {"kind": kind, "apiVersion": "meta.k8s.io/v1"}
    if options.dry_run:
        out["dryRun"] = ["All"]
    if options.field_manager:
        out["fieldManager"] = options.field_manager
    if options.field_validation != "Warn":  # what is not given is Warn
        out["fieldValidation"] = options.field_validation
    return out


def delete_options(options: DeleteOptions) -> Obj:
    """Return the options of a delete as an object."""
    out: Obj = {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"}
    if options.grace_period_seconds is not None:
        out["gracePeriodSeconds"] = options.grace_period_seconds
    if options.propagation is not None:
        out["propagationPolicy"] = options.propagation.value
    wanted = {"uid": options.uid, "resourceVersion": options.resource_version}
    if given := {field: value for field, value in wanted.items() if value is not None}:
        out["preconditions"] = given
    if options.dry_run:
        out["dryRun"] = ["All"]
    return out
