"""Whether this cluster keeps the history of jobs, and what to set so that it does.

A history in memory needs nothing and keeps nothing; SQLite needs a volume, which takes a
StorageClass; PostgreSQL needs a server. So the advice depends on the cluster's StorageClasses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead.api.status import ApiError
from fairlead.install.installer import InstalledObject, ObjectState
from fairlead.install.values import HistoryKind, HistoryValues
from fairlead.kube.blocking import BlockingClient

PATH = "/apis/storage.k8s.io/v1/storageclasses"
#: Kubernetes documentation, "Storage Classes", "Default StorageClass".
IS_DEFAULT = "storageclass.kubernetes.io/is-default-class"
_LOST = (
    "The history is in memory: ended jobs and the logs of earlier attempts are lost when the "
    "controllers restart."
)
_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class StorageClasses:
    """The names of a cluster's classes; `default` is "" where no class is the default."""

    names: tuple[str, ...] = ()
    default: str = ""


def read_storage_classes(api: BlockingClient) -> StorageClasses | None:
    """Return the classes of the cluster; None when they cannot be read."""
    try:
        listed: dict[str, Any] = msgspec.json.decode(api.request("GET", PATH).body)
    except (ApiError, ValueError):
        return None
    metadata = [item["metadata"] for item in listed.get("items") or ()]
    names = sorted(each["name"] for each in metadata)
    defaults = sorted(
        each["name"]
        for each in metadata
        if (each.get("annotations") or {}).get(IS_DEFAULT) == "true"
    )
    return StorageClasses(tuple(names), defaults[0] if defaults else "")


def missing_class(history: HistoryValues, classes: StorageClasses | None) -> InstalledObject | None:
    """Return the StorageClass that the volume of the history lacks; None when it lacks none."""
    if history.kind is not HistoryKind.SQLITE or classes is None:
        return None
    wanted = history.sqlite.storage_class_name
    if wanted in classes.names or (not wanted and classes.default):
        return None
    label = f"StorageClass {wanted or '(the default)'}"
    return InstalledObject(
        label, ObjectState.MISSING, f"the history's volume stays Pending; {_remedy(classes)}"
    )


def advice(history: HistoryValues, classes: StorageClasses | None) -> str:
    """Return what becomes of the history with these values, and what to set; "": all is well."""
    missing = missing_class(history, classes)
    if missing is not None and classes is not None:
        what = missing.label.replace("(the default)", "").strip()
        has = f"There is no {'default ' if what == 'StorageClass' else ''}{what}"
        text = "so the volume of the history stays Pending and the controllers do not start."
        return f"{has}, {text} To mend it: {_remedy(classes)}."
    if history.kind is not HistoryKind.MEMORY:
        return ""
    if classes is None:
        classes = StorageClasses(default="?")
    return f"{_LOST} To keep them: {_remedy(classes)}."


def _remedy(classes: StorageClasses) -> str:
    postgres = "history.kind postgres"
    if classes.default:
        return f"history.kind sqlite with replicas 1, or {postgres}"
    if not classes.names:
        return f"{postgres}, since this cluster has no StorageClass for a volume"
    shown = ", ".join(classes.names[:_SHOWN_MAX])
    more = ", ..." if len(classes.names) > _SHOWN_MAX else ""
    return (
        f"history.kind sqlite with replicas 1 and history.sqlite.storageClassName (one of {shown}"
        f"{more}; none is the default), or {postgres}"
    )
