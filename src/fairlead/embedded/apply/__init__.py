"""Server-side apply as pure functions: which manager owns which fields, and how values merge.

`field_set` has sets of paths, `types` says how the fields of a kind merge, `walk` goes through
values with them, `managers` reads and writes `metadata.managedFields`, and `ownership` puts them
together. The verbs use what is named here.
"""

from __future__ import annotations

from fairlead.embedded.apply.field_set import BadFields, FieldSet, shown
from fairlead.embedded.apply.managers import (
    ManagedFieldsEntry,
    Managers,
    decode,
    encode,
    is_reset,
    same_but_for_times,
)
from fairlead.embedded.apply.ownership import (
    ApplyConflict,
    BadConfig,
    Writer,
    applied,
    updated,
)
from fairlead.embedded.apply.types import ObjectType, builtin_type, custom_type

__all__ = [
    "ApplyConflict", "BadConfig", "BadFields", "FieldSet", "ManagedFieldsEntry", "Managers",
    "ObjectType", "Writer", "applied", "builtin_type", "custom_type", "decode", "encode",
    "is_reset", "same_but_for_times", "shown", "updated",
]  # fmt: skip
