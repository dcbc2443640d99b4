"""Who watches a simulated world: called at every committed write, with the typed object."""

from __future__ import annotations

from typing import Protocol

from fairlead.api.core import Node, Pod
from fairlead.api.job import Job
from fairlead.decide.verdict import ObjectKey


class Observer(Protocol):
    """`new` is None when the object was removed; `now` is an instant of the world's clock."""

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """A job was created, changed or removed."""
        ...

    def pod(self, new: Pod | None, key: ObjectKey, now: float) -> None:
        """A pod was created, changed or removed."""
        ...

    def node(self, new: Node | None, name: str, now: float) -> None:
        """A node was created, changed or removed."""
        ...

    def wrote(self, kind: str) -> None:
        """An object of this kind was written."""
        ...
