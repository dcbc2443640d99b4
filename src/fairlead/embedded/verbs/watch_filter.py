"""What a list or watch selects, and which event a watcher sees of a write.

A write may move an object into a selector (ADDED), within it (MODIFIED) or out of it (DELETED,
with the content that still matched and the new version).
"""

from __future__ import annotations

import re

from fairlead.api.kubernetes.selectors import EVERYTHING, Operator, Selector
from fairlead.embedded.resource_info import ResourceInfo, field_reader
from fairlead.embedded.storage.records import Record, StoreEvent
from fairlead.runtime.client import EventType

#: Texts that JSON holds as they are; numbers, which have several forms, are not among them.
_AS_STORED = re.compile(r"[A-Za-z][-A-Za-z0-9.]*", re.ASCII)


class WatchFilter:
    """What a list or watch selects: a kind, a namespace ("" for all), labels and fields."""

    __slots__ = ("_fields", "_labels", "_needed", "fields", "has_selector", "info", "labels",
                 "namespace", "selects_all")  # fmt: skip

    def __init__(
        self,
        info: ResourceInfo,
        namespace: str = "",
        labels: Selector = EVERYTHING,
        fields: Selector = EVERYTHING,
    ) -> None:
        self.info = info
        self.namespace = namespace
        self.labels = labels
        self.fields = fields
        self._labels = labels.requirements
        self._fields = fields.requirements
        self._needed = _needed_bytes(info, fields)
        #: True when labels or fields are selected by.
        self.has_selector = bool(labels or fields)
        #: True when every object of the kind is selected.
        self.selects_all = not (namespace or self.has_selector)

    def selects(self, record: Record) -> bool:
        """Like `matches`, for lists: many objects once, so nothing is cached on them."""
        if not self._fields:
            return self.matches(record)
        if self.namespace and record.key[0] != self.namespace:
            return False
        if self._labels and not self.labels.matches(record.labels):
            return False
        for needed in self._needed:
            if needed not in record.data:
                return False
        names = tuple(requirement.key for requirement in self._fields)
        return self.fields.matches(field_reader(self.info, names).read(record.data))

    def matches(self, record: Record) -> bool:
        """True when the object is selected."""
        if self.namespace and record.key[0] != self.namespace:
            return False
        for requirement in self._labels:
            if not requirement.matches(record.labels):
                return False
        if self._fields:
            fields = record.fields(self.info)
            for requirement in self._fields:
                if not requirement.matches(fields):
                    return False
        return True

    def transform(self, event: StoreEvent) -> tuple[EventType, Record] | None:
        """Return what this watcher sees of a write; None when nothing."""
        if event.info is not self.info and event.info.name != self.info.name:
            return None
        if self.selects_all:
            return event.type, event.record
        if event.type is EventType.ADDED:
            return (EventType.ADDED, event.record) if self.matches(event.record) else None
        assert event.previous is not None
        was = self.matches(event.previous)
        if event.type is EventType.DELETED:
            return (EventType.DELETED, event.record) if was else None
        if self.matches(event.record):
            return (EventType.MODIFIED if was else EventType.ADDED), event.record
        return (EventType.DELETED, event.left()) if was else None


def _needed_bytes(info: ResourceInfo, fields: Selector) -> tuple[bytes, ...]:
    """Return what the stored bytes of any selected object contain: to search is ten times cheaper
    than to decode, and one node's pods are few among all.
    """
    needed: list[bytes] = []
    for requirement in fields.requirements:
        field = info.selectable.get(requirement.key)
        values = requirement.values
        if requirement.operator is not Operator.IN or len(values) != 1 or field is None:
            continue
        # A default may be absent from the bytes, and other characters may be escaped there.
        if not field.default and _AS_STORED.fullmatch(values[0]):
            needed.append(values[0].encode())
    return tuple(needed)
