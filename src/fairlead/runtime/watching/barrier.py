"""The barrier before a decision: the mirrors are synced and have seen our own writes.

A decision on a copy that lacks the last decision's writes would repeat them (create a pod twice,
place a job on nodes that are taken). Each write's answer carries the version it made; events of one
resource arrive in the order of versions; so a mirror whose version has reached the highest one
written has seen all of them. A deletion's answer carries no version: it is seen once the object is
gone, is terminating, or is another one of the same name.

Objects of one kind may also name a version of another: the record of a job's attempt says how far
the pods had come when it was closed. Mirrors of two kinds run at their own pace, so who reads both
waits for that version, too (`Mirror.expect`).

A mirror that has not caught up within a time limit is listed again, and the list is then the truth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fairlead.api.resources import Resource
from fairlead.decide.verdict import ObjectKey
from fairlead.runtime.watching.mirror import HasMetadata, Mirror


class Written(msgspec.Struct, frozen=True):
    """A write that a mirror will show: the version it made, or the uid that it deleted."""

    resource: Resource[Any]
    key: ObjectKey
    version: int
    deleted_uid: str = ""

    @classmethod
    def of(cls, resource: Resource[Any], obj: HasMetadata) -> Written:
        """Return what a create or a patch that answered with `obj` wrote."""
        return cls(resource, obj.metadata.key, obj.metadata.version)

    @classmethod
    def deletion(cls, resource: Resource[Any], key: ObjectKey, uid: str) -> Written:
        """Return what a delete of the object with `uid` wrote."""
        return cls(resource, key, 0, uid)


@dataclass(slots=True)
class _Expected:
    """What one mirror still has to show."""

    mirror: Mirror[Any]
    version: int = 0
    deletions: dict[ObjectKey, str] = field(default_factory=dict[ObjectKey, str])

    def is_met(self) -> bool:
        if not self.mirror.synced:
            return False
        if self.mirror.is_behind or self.mirror.resource_version < self.version:
            return False
        while self.deletions:
            key, uid = next(iter(self.deletions.items()))
            obj = self.mirror.get(*key)
            metadata = None if obj is None else obj.metadata
            if metadata and metadata.uid == uid and metadata.deletion_timestamp is None:
                return False
            del self.deletions[key]
        return True

    def clear(self) -> None:
        self.version = 0
        self.deletions.clear()


class Barrier:
    """Collects own writes and waits until the mirrors have seen them."""

    def __init__(self, mirrors: Sequence[Mirror[Any]], *, timeout_seconds: float) -> None:
        self._expected = [_Expected(mirror) for mirror in mirrors]
        self._by_name: dict[str, list[_Expected]] = {}
        for expected in self._expected:
            self._by_name.setdefault(expected.mirror.resource.name, []).append(expected)
        self._timeout_seconds = timeout_seconds
        self.relist_count = 0

    def expect(self, written: Written) -> None:
        """Let the next `wait` wait for this write, where a mirror covers it."""
        for expected in self._by_name.get(written.resource.name, ()):
            if expected.mirror.resource != written.resource:
                continue
            if written.deleted_uid:
                expected.deletions[written.key] = written.deleted_uid
            else:
                expected.version = max(expected.version, written.version)

    async def wait(self) -> None:
        """Return once every mirror is synced and has seen what was expected, or was re-listed.

        What one mirror shows while another one is waited for may expect more of the others, and
        wake those that were dormant.
        """
        while lacking := [each for each in self._expected if not each.is_met()]:
            if not lacking[0].mirror.synced:
                await lacking[0].mirror.wait_synced()
            else:
                await self._wait_for(lacking[0])
                lacking[0].clear()
        for expected in self._expected:
            expected.clear()

    async def _wait_for(self, expected: _Expected) -> None:
        mirror = expected.mirror
        try:
            async with asyncio.timeout(self._timeout_seconds):
                while not expected.is_met():
                    await mirror.advanced()
        except TimeoutError:
            self.relist_count += 1
            lists = mirror.list_count
            mirror.relist()
            while mirror.list_count == lists:
                await mirror.advanced()
