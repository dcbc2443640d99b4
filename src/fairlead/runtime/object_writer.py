"""Writes of one object, each safe to repeat, as every controller makes them.

A create finds what an earlier attempt created under the same derived name. A delete names the uid.
Everything else is a merge patch that carries the resourceVersion it was decided on: a
compare-and-swap. Each method returns the write that a mirror will show (for the barrier), or None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.meta import ObjectMeta, OnlyMetadata
from fairlead.api.resources import PODS, Resource
from fairlead.api.status import AlreadyExists, Conflict, Forbidden, NotFound, TooLarge
from fairlead.decide.verdict import ObjectKey
from fairlead.runtime.client import Client, Propagation
from fairlead.runtime.making_room import room_patch
from fairlead.runtime.watching.barrier import Written

M = TypeVar("M", bound=OnlyMetadata)


class NameTaken(Conflict):
    """An object of this name exists and belongs to another owner."""


class ObjectWriter:
    """The writes of one controller. Errors are the client's, unless a method names others."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def create(
        self,
        resource: Resource[Any],
        key: ObjectKey,
        body: Any,
        *,
        owner: ObjectMeta | None = None,
        awaits_collection: bool = False,
    ) -> Written:
        """Create an object, or find the one that was created before; errors as `make`."""
        answer = resource.only_metadata
        made = await self.make(answer, key, body, owner=owner, awaits_collection=awaits_collection)
        return Written.of(resource, made)

    async def make(
        self,
        resource: Resource[M],
        key: ObjectKey,
        body: Any,
        *,
        owner: ObjectMeta | None = None,
        awaits_collection: bool = False,
    ) -> M:
        """Create an object, or find the one that was created before; return it as it is stored.

        NameTaken when it exists and another object than `owner` controls it. With
        `awaits_collection` Conflict, to try again, when that is an earlier one of the owner's name,
        which is gone: the cluster is about to collect what it controlled. Both are of our kinds.
        """
        namespace, name = key
        try:
            return await self._client.create(resource, body, namespace=namespace)
        except AlreadyExists:
            made = await self._client.get(resource, name, namespace=namespace)
            found = next((each for each in made.metadata.owner_references if each.controller), None)
            if owner is not None and (found is None or found.uid != owner.uid):
                is_earlier = found is not None and found.name == owner.name
                is_ours = found is not None and found.api_version == names.API_VERSION
                if awaits_collection and is_earlier and is_ours:
                    text = f"{resource.kind} {name} of an earlier {owner.name} is there yet"
                    raise Conflict(text) from None
                text = f"{resource.kind} {name} exists already and does not belong to this job"
                raise NameTaken(text) from None
            return made

    async def create_unread(self, resource: Resource[Any], key: ObjectKey, body: Any) -> None:
        """Create an object whose name no other owner has; one that is there stays, and is not read.

        For kinds that the controllers may not read.
        """
        namespace, _ = key
        with suppress(AlreadyExists):
            await self._client.create(resource.only_metadata, body, namespace=namespace)

    async def patch(
        self,
        resource: Resource[Any],
        metadata: ObjectMeta,
        patch: Mapping[str, Any],
        *,
        subresource: str = "",
    ) -> Written:
        """Patch the very version that `metadata` names; Conflict when it has changed."""
        version = {"resourceVersion": metadata.resource_version, "uid": metadata.uid}
        body = {**patch, "metadata": {**patch.get("metadata", {}), **version}}
        written = await self._client.patch(
            resource.only_metadata,
            metadata.name,
            body,
            namespace=metadata.namespace,
            subresource=subresource,
        )
        return Written.of(resource, written)

    async def patch_status(
        self, resource: Resource[Any], metadata: ObjectMeta, diff: Mapping[str, Any]
    ) -> Written:
        """Patch the status with a diff (`fairlead.api.meta.merge_diff`).

        Where that is more than the API server stores of an object, room is made in its metadata.
        """
        patch = {"status": diff}
        try:
            return await self.patch(resource, metadata, patch, subresource="status")
        except TooLarge as error:
            version = metadata.resource_version
            try:
                written = await self._make_room(resource, metadata.key, metadata.uid, version)
            except Forbidden:  # of arrays only the status may be written: they hold no nodes
                raise error from None
        smaller = replace(metadata, resource_version=str(written.version))
        return await self.patch(resource, smaller, patch, subresource="status")

    async def _make_room(
        self, resource: Resource[Any], key: ObjectKey, uid: str, version: str | None = None
    ) -> Written:
        """Take out of an object's metadata what others have filled it with; Conflict where it is
        not of this uid and version.
        """
        namespace, name = key
        found = await self._client.get(resource.only_metadata, name, namespace=namespace)
        metadata = found.metadata
        if metadata.uid != uid or version not in (None, metadata.resource_version):
            raise Conflict(f"{resource.kind} {name} has changed")
        return await self.patch(resource, metadata, {"metadata": room_patch(metadata)})

    async def set_finalizers(
        self,
        resource: Resource[Any],
        metadata: ObjectMeta,
        finalizers: Sequence[str],
        *,
        drop_managed_fields: bool = False,
        labels: Mapping[str, str] | None = None,
    ) -> Written:
        """Write the finalizers, and with them `labels`; without the last finalizer, an object that
        is being deleted is gone.

        `drop_managed_fields` also resets the record of who manages which field, which ends the
        tracking (Kubernetes documentation, "Server-Side Apply", "Clearing managedFields").
        """
        new: dict[str, Any] = {"finalizers": list(finalizers) or None}
        if labels:
            new["labels"] = dict(labels)
        if drop_managed_fields:
            new["managedFields"] = [{}]
        written = await self.patch(resource, metadata, {"metadata": new})
        if not finalizers and metadata.deletion_timestamp is not None:
            return Written.deletion(resource, metadata.key, metadata.uid)
        return written

    async def evict(self, pod: ObjectMeta, grace_seconds: int | None = None) -> Written | None:
        """Evict the pod of this uid within its budgets; None when it is gone already."""
        try:
            try:
                await self._client.evict(pod, grace_seconds)
            except TooLarge:  # that it is being deleted is written into it
                await self._make_room(PODS, pod.key, pod.uid)
                await self._client.evict(pod, grace_seconds)
        except NotFound:
            return None
        return Written.deletion(PODS, pod.key, pod.uid)

    async def delete(
        self,
        resource: Resource[Any],
        key: ObjectKey,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
    ) -> Written | None:
        """Delete the object of this uid (and version); None when it is gone already.

        Without a uid, the one of this name, of a kind that no mirror shows.
        """
        namespace, name = key
        delete = partial(
            self._client.delete, resource, name, namespace=namespace,
            grace_period_seconds=grace_seconds, propagation=Propagation.BACKGROUND, uid=uid,
        )  # fmt: skip
        try:
            try:
                await delete(resource_version=resource_version)
            except TooLarge:  # that it is being deleted is written into it
                if uid is None:
                    raise
                smaller = await self._make_room(resource, key, uid, resource_version)
                await delete(resource_version=resource_version and str(smaller.version))
        except NotFound:
            return None
        return None if uid is None else Written.deletion(resource, key, uid)
