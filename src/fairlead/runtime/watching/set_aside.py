"""The objects that a controller leaves alone because code of ours raised over them.

Anybody who may create an object chooses what is in it, so what reading, taking in, deciding about
or writing one object raises is treated as that object's fault: it is noted here, with the reason,
and everything else goes on. The note shows in the log, in an event on the object, in a metric, and
for jobs in a verdict. It goes away once the same stage succeeds for the object, or with the object.
docs/design/containment.md has the whole of it.

`STRICT` holds nothing: it raises what it is given. Where all objects are benign (unit tests, the
simulator) a fault is a defect of ours, and must not hide.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from fairlead.api.meta import ObjectMeta
from fairlead.api.resources import Resource
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import ObjectKey
from fairlead.runtime.events import EventKind, EventSink
from fairlead.runtime.logs import SILENT, Logger

#: Entries that are kept; the oldest is dropped first. Its object is still left alone.
ENTRIES_MAX = 10_000
_TEXT_LENGTH_MAX = 300

_Id: TypeAlias = tuple[str, ObjectKey]


class AsideStage(Enum):
    """What was being done with the object."""

    READ = "read"
    OBSERVE = "taken in"
    DECIDE = "decided on"
    ACT = "acted on"


@dataclass(frozen=True, slots=True)
class AsideEntry:
    """One object that is set aside. `count`: how often in a row."""

    resource: Resource[Any]
    metadata: ObjectMeta
    stage: AsideStage
    fault: str
    count: int


class SetAside:
    """What one reader of objects, a controller or a mirror, has set aside."""

    is_strict = False

    def __init__(
        self, name: str = "", *, events: EventSink | None = None, log: Logger = SILENT
    ) -> None:
        self.name = name
        self._events = events
        self._log = log
        #: By kind and key. Only to be read by others.
        self.entries: dict[_Id, AsideEntry] = {}
        self._news: dict[_Id, AsideEntry] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def note(
        self, resource: Resource[Any], metadata: ObjectMeta, stage: AsideStage, error: Exception
    ) -> AsideEntry:
        """Set an object aside; call it while handling `error`."""
        id_ = (resource.name, metadata.key)
        before = self.entries.pop(id_, None)
        is_same = before is not None and before.metadata.uid == metadata.uid
        count = before.count + 1 if before is not None and is_same else 1
        entry = AsideEntry(resource, metadata, stage, describe(error), count)
        self.entries[id_] = self._news[id_] = entry
        if len(self.entries) > ENTRIES_MAX:
            del self.entries[next(iter(self.entries))]
        if len(self._news) > ENTRIES_MAX:
            del self._news[next(iter(self._news))]
        if before is None or (before.stage, before.fault) != (stage, entry.fault):
            self._report(entry, error)
        return entry

    def _report(self, entry: AsideEntry, error: Exception) -> None:
        namespace, name = entry.metadata.key
        self._log.error(
            "Set object aside",
            reader=self.name,
            kind=entry.resource.kind,
            object=f"{namespace}/{name}" if namespace else name,
            stage=entry.stage.value,
            error=entry.fault,
            exc_info=error,
        )
        if self._events is not None:
            text = f"Cannot be {entry.stage.value}: {entry.fault}. It is looked at when it changes"
            self._events.record(
                entry.resource, entry.metadata, EventKind.WARNING,
                reason=Reason.SET_ASIDE.value, message=text,
            )  # fmt: skip

    def clear(self, resource: Resource[Any], key: ObjectKey, *stages: AsideStage) -> None:
        """Note that an object has passed these stages (none named: that it is gone)."""
        if not self.entries:
            return
        entry = self.entries.get((resource.name, key))
        if entry is not None and (not stages or entry.stage in stages):
            del self.entries[resource.name, key]
            self._news.pop((resource.name, key), None)

    def keep_only(self, resource: Resource[Any], keys: Container[ObjectKey]) -> None:
        """Note that of this kind there are no objects but these."""
        for name, key in list(self.entries):
            if name == resource.name and key not in keys:
                self.clear(resource, key)

    def find(self, resource: Resource[Any], key: ObjectKey) -> AsideEntry | None:
        """Return the note on an object, or None."""
        return self.entries.get((resource.name, key)) if self.entries else None

    def pop_news(self, resource: Resource[Any]) -> list[AsideEntry]:
        """Take the notes on objects of this kind that were made since the last call."""
        if not self._news:
            return []
        ids = [id_ for id_ in self._news if id_[0] == resource.name]
        return [self._news.pop(id_) for id_ in ids]

    def counts(self) -> Mapping[str, int]:
        """Return how many objects of each kind are set aside."""
        out: dict[str, int] = {}
        for entry in self.entries.values():
            out[entry.resource.kind] = out.get(entry.resource.kind, 0) + 1
        return out


class _Strict(SetAside):
    """Raises what it is given."""

    is_strict = True

    def note(
        self, resource: Resource[Any], metadata: ObjectMeta, stage: AsideStage, error: Exception
    ) -> AsideEntry:
        """Raise the error."""
        raise error


STRICT: SetAside = _Strict()


def describe(error: Exception) -> str:
    """Return an exception in one bounded line: what it holds may be a tenant's."""
    text = " ".join(f"{type(error).__name__}: {error}"[: 2 * _TEXT_LENGTH_MAX].split())
    return text[:_TEXT_LENGTH_MAX].rstrip(": ")
