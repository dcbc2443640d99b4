"""Who watches a simulated world: called at every committed write, with the typed object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.decide.verdict import ObjectKey
from fairlead.embedded.storage.records import Record
from fairlead.model.gang.phase import is_failing

#: A write, or a call of the cloud, that its author decided on earlier, before it could see what has
#: changed since, comes at most this much later.
STALE_SECONDS = 150.0


class Observer:
    """Overrides what it looks at; what it leaves as it is here is never called.

    `new` is None when the object was removed; `now` is an instant of the world's clock.
    """

    __slots__ = ()

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """A job was created, changed or removed."""

    def pod(self, new: Pod | None, key: ObjectKey, now: float) -> None:
        """A pod was created, changed or removed."""

    def node(self, new: Node | None, name: str, now: float) -> None:
        """A node was created, changed or removed."""

    def array(self, new: JobArray | None, key: ObjectKey, now: float) -> None:
        """An array was created, changed or removed."""

    def stored(self, kind: str, record: Record | None, key: ObjectKey, now: float) -> None:
        """An object of a kind that jobs claim was written; None: it was removed."""

    def wrote(self, kind: str) -> None:
        """An object of this kind was written."""


@dataclass(frozen=True, slots=True)
class ObserverCalls:
    """The methods of some observers that do something, in the order of the observers."""

    job: tuple[Callable[[Job | None, ObjectKey, float], None], ...]
    pod: tuple[Callable[[Pod | None, ObjectKey, float], None], ...]
    node: tuple[Callable[[Node | None, str, float], None], ...]
    array: tuple[Callable[[JobArray | None, ObjectKey, float], None], ...]
    stored: tuple[Callable[[str, Record | None, ObjectKey, float], None], ...]
    wrote: tuple[Callable[[str], None], ...]

    def see_claimed(self, kind: str, record: Record | None, key: ObjectKey, now: float) -> None:
        """Call those that look at what jobs claim."""
        for stored in self.stored:
            stored(kind, record, key, now)

    @classmethod
    def of(cls, observers: Sequence[Observer]) -> ObserverCalls:
        """Return the methods that the observers' classes override."""
        return cls(
            tuple(o.job for o in observers if type(o).job is not Observer.job),
            tuple(o.pod for o in observers if type(o).pod is not Observer.pod),
            tuple(o.node for o in observers if type(o).node is not Observer.node),
            tuple(o.array for o in observers if type(o).array is not Observer.array),
            tuple(o.stored for o in observers if type(o).stored is not Observer.stored),
            tuple(o.wrote for o in observers if type(o).wrote is not Observer.wrote),
        )


def typed(record: Any, type_: type[Any]) -> Any:
    """Return a stored record as its type; None for None."""
    return None if record is None else record.typed(type_)


def holding(job: Job | None) -> Job | None:
    """Return a job with the place that counts: what stays of one that is failing holds nothing."""
    if job is None or not is_failing(job):
        return job
    return replace(job, status=replace(job.status, placement=None))
