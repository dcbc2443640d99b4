"""Object metadata, owner references and conditions, as every kind carries them.

Source: Kubernetes API conventions (contributors/devel/sig-architecture/api-conventions.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any

import msgspec

#: An instant on the wire, RFC 3339; `api.values.times` converts.
Instant = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]
#: A quantity on the wire, such as "500m", "16Gi" or 2; `api.values.quantity` converts.
Amount = Annotated[str | int | float, msgspec.Meta(extra_json_schema={"format": "quantity"})]
#: A count, or a share such as "10%": the IntOrString of Kubernetes.
CountOrShare = Annotated[str | int, msgspec.Meta(extra_json_schema={"format": "int-or-string"})]


class Wire(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Base of all wire types: immutable, camelCase on the wire, defaults left out.

    The garbage collector passes them over: what is decoded from JSON has no cycles, and
    to walk a million of them again and again costs more than to decode them.
    """


class OwnerReference(Wire, frozen=True):
    """Points at an owner in the same namespace (or a cluster-scoped one), matched by `uid`."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Wire, frozen=True):
    """Metadata. `resource_version` is opaque but, within one kind, ordered as an integer."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Instant | None = None
    deletion_timestamp: Instant | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name); the namespace is "" for cluster-scoped objects."""
        return (self.namespace, self.name)

    @property
    def version(self) -> int:
        """`resource_version` as an integer; 0 when unset (KEP-5504 allows the comparison)."""
        return int(self.resource_version or 0)


class LabelSelectorRequirement(Wire, frozen=True):
    """One term of a selector."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class LabelSelector(Wire, frozen=True):
    """Selects by labels; an empty one selects everything."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class OnlyMetadata(Wire, frozen=True):
    """An object of any kind as far as its metadata (`PartialObjectMetadata` of meta.k8s.io/v1)."""

    metadata: ObjectMeta = ObjectMeta()


class Condition(Wire, frozen=True):
    """One observed aspect. `status` is "True", "False" or "Unknown"; `reason` is CamelCase."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    observed_generation: int | None = None
    last_transition_time: Instant | None = None


class ListMeta(Wire, frozen=True):
    """Metadata of a list; `continue_` is the token of the next page, "" on the last."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")
    remaining_item_count: int | None = None


#: Digits of a number in a label that we write: an attempt, an index, a rank.
_LABEL_DIGITS_MAX = 9


@lru_cache(maxsize=8192)  # asked several times at each event of a pod
def label_number(text: str | None) -> int | None:
    """Return the number in a label, 0 to 999,999,999; None for any other text, or none."""
    if text is None or not 0 < len(text) <= _LABEL_DIGITS_MAX:
        return None
    return int(text) if text.isascii() and text.isdecimal() else None


def find_condition(conditions: Iterable[Condition], type_: str) -> Condition | None:
    """Return the condition of that type, or None."""
    for condition in conditions:  # asked several times at each event of a job: no generator
        if condition.type == type_:
            return condition
    return None


def is_true(conditions: Iterable[Condition], type_: str) -> bool:
    """True when the condition exists and its status is "True"."""
    condition = find_condition(conditions, type_)
    return condition is not None and condition.status == "True"


def set_condition(conditions: Iterable[Condition], new: Condition) -> tuple[Condition, ...]:
    """Return `conditions` with `new` in the place of its type, or appended.

    `last_transition_time` stays as it was unless `status` changed; so setting the same condition
    twice is a no-op, as the API conventions ask.
    """
    out: list[Condition] = []
    place: int | None = None
    for old in conditions:
        if old.type != new.type:
            out.append(old)
        elif place is None:
            place = len(out)
            if old.status == new.status:
                new = msgspec.structs.replace(new, last_transition_time=old.last_transition_time)
            out.append(new)
    return tuple(out) if place is not None else (*out, new)


def to_wire(value: Any) -> Any:
    """Convert typed values to plain JSON values (dict, list, str, int, float, bool, None)."""
    return msgspec.to_builtins(value, str_keys=True)


def merge_diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON merge patch (RFC 7386) that turns `old` into `new`; {} when equal.

    Fields that neither side knows are not touched by the patch, which is what keeps unknown
    fields alive in a read-modify-write. Lists are replaced whole. Nulls in `new` can't be
    expressed by a merge patch: they delete.
    """
    patch: dict[str, Any] = {k: None for k in old if k not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(before, dict) and isinstance(value, dict):  # of Mapping asks Python code
            inner = merge_diff(before, value)
            if inner:
                patch[key] = inner
        elif key not in old or not _same(before, value):
            patch[key] = value
    return patch


def _same(a: Any, b: Any) -> bool:
    """Equality of JSON values that tells true, 1 and 1.0 apart, as their texts do."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) is type(b) and a == b
