"""Pods that are deleted for the cluster's sake: marked with why, then deleted like any other.

The condition DisruptionTarget says it (KEP-3329), so that what looks after the pod can tell it from
a deletion that somebody asked for. Kubernetes: `pkg/registry/core/pod/storage/eviction.go` and
`pkg/controller/tainteviction`.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Any

from fairlead.embedded import builtins
from fairlead.embedded.storage.records import Key
from fairlead.embedded.verbs import deletion, errors, writes
from fairlead.embedded.verbs.context import Context
from fairlead.embedded.verbs.options import DeleteOptions, DeleteResult, WriteOptions

_TYPE = "DisruptionTarget"


class DisruptionCause(Enum):
    """Who disrupts: the condition's reason and message."""

    EVICTION = ("EvictionByEvictionAPI", "Eviction API: evicting")
    TAINT = ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")


def disrupt(
    context: Context, key: Key, options: DeleteOptions, disruption: DisruptionCause
) -> DeleteResult:
    """Mark a pod and delete it. NotFound, Conflict when a precondition fails."""
    current = context.store.latest(builtins.PODS.name, key)
    if current is None:
        raise errors.not_found(builtins.PODS, key[1])
    if options.dry_run:
        return deletion.delete(context, builtins.PODS, key, options)
    deletion.check_preconditions(builtins.PODS, current, options)
    reason, message = disruption.value
    condition = {
        "type": _TYPE, "status": "True", "reason": reason, "message": message,
        "lastProbeTime": None, "lastTransitionTime": context.now_text(),
    }  # fmt: skip

    def mark(pod: dict[str, Any]) -> dict[str, Any]:
        status = pod.setdefault("status", {})
        others = [c for c in status.get("conditions") or () if c.get("type") != _TYPE]
        status["conditions"] = [*others, condition]
        return pod

    marked = writes.overwrite(context, builtins.PODS, key, mark, options=WriteOptions())
    if options.resource_version is not None:
        options = replace(options, resource_version=str(marked.version))
    return deletion.delete(context, builtins.PODS, key, options)
