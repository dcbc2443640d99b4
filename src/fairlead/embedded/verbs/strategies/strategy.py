"""What may be special about a kind: one object per kind, which the verbs ask at fixed points.

This one is of a kind with nothing special; `kinds.py` has the others, and `strategy_of`. The points
are those of Kubernetes' `registry/rest` strategies and of its built-in admission plugins. Only the
top level and the metadata of an object are changed in place: what lies below belongs to the
caller. The structure of an object is not checked before `problems`; a body of another one raises
AttributeError, KeyError, TypeError or ValueError.
"""

from __future__ import annotations

from typing import Any

from fairlead.embedded.storage.records import Record
from fairlead.embedded.verbs.context import Context
from fairlead.embedded.verbs.errors import Finding
from fairlead.embedded.verbs.options import DeleteOptions
from fairlead.embedded.verbs.strategies.pod_shapes import PodShape

Obj = dict[str, Any]


class Strategy:
    """A kind with nothing special."""

    #: A marked object is deleted by what empties it, not after a grace period.
    is_emptied_first = False
    #: The last state that watches see of a deleted object shows the mark.
    shows_mark = False
    #: Fields of metadata and spec that the server adds and that are no defaults: nobody owns them.
    added: tuple[str, ...] = ()

    def admit_create(self, context: Context, obj: Obj) -> PodShape | None:
        """Default a new object; return the shape of a pod that has one. Forbidden."""
        return None

    def complete(self, context: Context, obj: Obj) -> None:
        """Add what the server computes of an object, on each write of more than a sub-resource."""

    def admit_update(self, context: Context, old: Obj, new: Obj, *, sub: str) -> list[Finding]:
        """Default a changed object, and return what may not change."""
        return []

    def problems(self, obj: Obj, record: Record, shape: PodShape | None) -> list[Finding]:
        """Return what is wrong with an object beyond its metadata."""
        return []

    def status_after(self, old: Obj, status: Any) -> Any:
        """Return the status to store when a client writes `status`."""
        return status

    def is_empty(self, obj: Obj) -> bool:
        """True when nothing of the kind's own keeps a marked object."""
        return True

    def check_delete(self, name: str) -> None:
        """Forbidden when the object of this name may not be deleted."""

    def grace_seconds(self, obj: Obj, options: DeleteOptions) -> int:
        """Return for how long a deleted object stays, marked."""
        return 0

    def mark(self, obj: Obj) -> None:
        """Change an object that is marked for the first time."""
