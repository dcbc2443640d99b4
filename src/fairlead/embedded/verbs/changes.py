"""What a write may change of an object, and what it did change (apiserver
`pkg/registry/rest/update.go`, `pkg/registry/*/strategy.go`). Pure functions of plain objects.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.verbs import errors
from fairlead.embedded.verbs.strategies.kinds import strategy_of
from fairlead.embedded.verbs.strategies.pod_resize import SUBRESOURCE

Obj = dict[str, Any]


def check_preconditions(info: ResourceInfo, name: str, before: Obj, metadata: Obj) -> None:
    """Refuse a write that names another version or uid than the stored one; Conflict."""
    version = metadata.get("resourceVersion")
    if version and version != before["resourceVersion"]:
        raise errors.conflict(info, name)
    uid = metadata.get("uid")
    if uid and uid != before["uid"]:
        why = (
            f"Precondition failed: UID in precondition: {uid}, UID in object meta: {before['uid']}"
        )
        raise errors.conflict(info, name, why)


def put_or_drop(obj: Obj, field: str, value: Any) -> None:
    """Set a field, or take it away where its value would be empty."""
    if value:
        obj[field] = value
    else:
        obj.pop(field, None)


def restrict(info: ResourceInfo, old: Obj, new: Obj, sub: str) -> tuple[Obj, Obj]:
    """Return the object with only those changes that this (sub-)resource may make."""
    metadata = new["metadata"]
    if sub == "":
        if info.has_status:
            new = {k: v for k, v in new.items() if k != "status"}
            if "status" in old:
                new["status"] = old["status"]
        return new, metadata
    kept = dict(old["metadata"])
    if sub == "finalize":
        kept_spec = dict(old.get("spec") or {})
        put_or_drop(kept_spec, "finalizers", (new.get("spec") or {}).get("finalizers"))
        return {**old, "spec": kept_spec, "metadata": kept}, kept
    if sub == SUBRESOURCE:  # what of the spec counts, the strategy of pods decides
        return {**old, "spec": new.get("spec"), "metadata": kept}, kept
    if (
        info.is_builtin
    ):  # custom resources: status only (apiextensions `customresource/status_strategy`)
        for field in ("labels", "annotations"):
            if field in metadata:
                kept[field] = metadata[field]
            else:
                kept.pop(field, None)
    out = {**old, "metadata": kept}
    if new.get("status") is not None:
        out["status"] = strategy_of(info).status_after(old, new["status"])
    else:
        out.pop("status", None)
    return out, kept


def spec_changed(info: ResourceInfo, old: Obj, new: Obj) -> bool:
    """True when anything but metadata, and the status where it is apart, is another."""
    ignored = ("metadata", "status") if info.has_status else ("metadata",)
    return any(old.get(k) != new.get(k) for k in (*old, *new) if k not in ignored)


def copy(value: Any) -> Any:
    """Return a deep copy of a plain JSON value."""
    return msgspec.json.decode(msgspec.json.encode(value))


def is_free(info: ResourceInfo, obj: Obj) -> bool:
    """True when nothing keeps a marked object: no finalizer, no grace left, no content."""
    metadata = obj["metadata"]
    if metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds"):
        return False
    return strategy_of(info).is_empty(obj)
