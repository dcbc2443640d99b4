"""The deleting verbs: mark or remove, with grace periods, finalizers, preconditions and
propagation.

An object goes at once unless something keeps it: a finalizer, a pod's grace period on its node,
or a namespace's content. Then it is marked (deletionTimestamp) and goes with the write that
takes the last of these away. Source: apiserver `pkg/registry/rest/delete.go` and
`pkg/registry/generic/registry/store.go`.
"""

from __future__ import annotations

from typing import Any

from fairlead.api.values.times import format_time, parse_time
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.storage.records import Key, Record, record_typed
from fairlead.embedded.verbs import errors
from fairlead.embedded.verbs.changes import is_free, put_or_drop
from fairlead.embedded.verbs.context import Context
from fairlead.embedded.verbs.options import DeleteOptions, DeleteResult
from fairlead.embedded.verbs.strategies.kinds import strategy_of
from fairlead.embedded.verbs.strategies.strategy import Strategy
from fairlead.runtime.client import Propagation

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"


def delete(context: Context, info: ResourceInfo, key: Key, options: DeleteOptions) -> DeleteResult:
    """Delete an object, or mark it for deletion. NotFound, Conflict when a precondition fails."""
    current = context.store.latest(info.name, key)
    if current is None:
        raise errors.not_found(info, key[1])
    strategy = strategy_of(info)
    strategy.check_delete(key[1])
    check_preconditions(info, current, options)
    old = current.plain()
    metadata = dict(old["metadata"])
    new = {**old, "metadata": metadata}
    _set_finalizers(metadata, options.propagation)
    _mark(context, strategy, new, options)
    if is_free(info, new):
        # What can go gracefully shows in its last state that it did (`rest.BeforeDelete`).
        last = new if strategy.shows_mark else old
        known = current.known(info.type, old, last)
        final = record_typed(info, key, context.store.next_version, last, known=known)
        if not options.dry_run:
            context.store.remove(info, final)
        return DeleteResult(final, removed=True)
    if new == old:
        return DeleteResult(current, removed=False)
    known = current.known(info.type, old, new)
    record = record_typed(info, key, context.store.next_version, new, known=known)
    if not options.dry_run:
        context.store.put(info, record)
    return DeleteResult(record, removed=False)


def check_preconditions(info: ResourceInfo, current: Record, options: DeleteOptions) -> None:
    """Raise Conflict when the object is not the one that the options ask for."""
    for what, wanted, found in (
        ("UID", options.uid, current.uid),
        ("ResourceVersion", options.resource_version, str(current.version)),
    ):
        if wanted is not None and wanted != found:
            raise errors.precondition_failed(info, current.key[1], what, (wanted, found))


def _set_finalizers(metadata: dict[str, Any], propagation: Propagation | None) -> None:
    if propagation is None:
        return
    finalizers = [f for f in metadata.get("finalizers") or () if f not in (ORPHAN, FOREGROUND)]
    if propagation is Propagation.ORPHAN:
        finalizers.append(ORPHAN)
    elif propagation is Propagation.FOREGROUND:
        finalizers.append(FOREGROUND)
    put_or_drop(metadata, "finalizers", finalizers)


def _mark(
    context: Context, strategy: Strategy, obj: dict[str, Any], options: DeleteOptions
) -> None:
    metadata = obj["metadata"]
    grace = strategy.grace_seconds(obj, options)
    if "deletionTimestamp" in metadata:
        before = metadata.get("deletionGracePeriodSeconds") or 0
        if options.grace_period_seconds is None and grace:
            return
        if grace < before:  # only ever sooner
            asked_at = parse_time(metadata["deletionTimestamp"]) - before
            metadata["deletionTimestamp"] = format_time(asked_at + grace)
            metadata["deletionGracePeriodSeconds"] = grace
        return
    metadata["deletionTimestamp"] = format_time(context.clock.now() + grace)
    metadata["deletionGracePeriodSeconds"] = grace
    if strategy.is_emptied_first:
        del metadata["deletionGracePeriodSeconds"]
    elif "generation" in metadata:
        metadata["generation"] += 1
    strategy.mark(obj)
