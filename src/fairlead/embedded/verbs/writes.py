"""The writing verbs create, replace and patch, as one synchronous step each: read, change, check,
store.

Nothing else runs between reading the latest version and storing the next one, so writes are
atomic without locks; the caller then awaits the commit. Order as in the API server (apiserver
`pkg/registry/generic/registry/store.go`): type and scope, preconditions, what the server owns,
admission and defaults, rules, no-op check, generation, store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec

from fairlead.api.status import AlreadyExists, BadRequest, StatusCause
from fairlead.embedded import builtins
from fairlead.embedded.apply import ManagedFieldsEntry
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.storage.records import Key, Known, Record, draft_of, record_typed
from fairlead.embedded.verbs import changes, errors, field_owners
from fairlead.embedded.verbs.context import Context
from fairlead.embedded.verbs.errors import FieldProblem, Finding, ProblemType
from fairlead.embedded.verbs.options import WriteOptions
from fairlead.embedded.verbs.strategies import pod_resize, quotas, structural, validation
from fairlead.embedded.verbs.strategies.kinds import strategy_of
from fairlead.embedded.verbs.strategies.pod_shapes import PodShape

GENERATED_NAME_BASE_MAX = 58
GENERATED_NAMES_MAX = 8  # tries before AlreadyExists
_SAFE = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: no words (apimachinery `pkg/util/rand`)
_SERVER_OWNED = (
    "uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds",
)  # fmt: skip
_NEVER_STORED = ("selfLink",)
_NOT_GIVEN = frozenset((*_SERVER_OWNED, *_NEVER_STORED, "resourceVersion"))

#: What code that trusts the structure of a body raises when it has another one.
MALFORMED_ERRORS = (AttributeError, KeyError, TypeError, ValueError)

Obj = dict[str, Any]
#: As in Go, what is empty of these is as good as not there.
_OPTIONAL = ("labels", "annotations", "finalizers", "ownerReferences", "generateName")
_Time = Annotated[datetime, msgspec.Meta(tz=True)]


class _Given(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Metadata as a client may write it; null means missing.

    What maps and lists hold is looked at when the object is decoded.
    """

    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    self_link: str | None = None
    generation: int | None = None
    creation_timestamp: _Time | None = None
    deletion_timestamp: _Time | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, Any] | None = None
    annotations: dict[str, Any] | None = None
    owner_references: list[Any] | None = None
    finalizers: list[Any] | None = None
    managed_fields: list[ManagedFieldsEntry] | None = None


def metadata_of(info: ResourceInfo, body: Obj) -> Obj:
    """Return a copy of a body's metadata, without what is empty; BadRequest for a wrong type.

    What the server owns is thrown away unread, and what is empty counts as not there; so types must
    be looked at before, as Go does by decoding. The happy path is one conversion in C; words for
    what is wrong come from the kind's schema.
    """
    metadata = body.get("metadata")
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict):
        raise BadRequest("metadata: must be an object")
    try:
        msgspec.convert(metadata, _Given)
    except msgspec.ValidationError as error:
        structural.repair(info, {"metadata": metadata})  # has the words for most
        raise BadRequest(
            f'{info.kind} in version "{info.api_version}" cannot be handled as a {info.kind}: '
            f"metadata: {error}"
        ) from None
    out = dict(metadata)
    for field in _OPTIONAL:
        if field in out and not out[field]:  # a map, a list, a text or null by now
            del out[field]
    return out


def check_kind(info: ResourceInfo, body: Obj) -> None:
    """Take `kind` and `apiVersion` out of a body; BadRequest when they are of another kind."""
    api_version, kind = body.pop("apiVersion", None), body.pop("kind", None)
    if api_version not in (None, "", info.api_version):
        raise BadRequest(
            f"the API version in the data ({api_version}) does not match the expected API version "
            f"({info.api_version})"
        )
    if kind not in (None, "", info.kind):
        raise BadRequest(
            f"the kind in the data ({kind}) does not match the expected kind ({info.kind})"
        )


def _check_namespace(info: ResourceInfo, namespace: str, metadata: Obj) -> None:
    given = metadata.get("namespace")
    if not info.namespaced:
        if given:
            raise BadRequest(f"namespace '{given}' was given, but {info.name} are not namespaced")
        metadata.pop("namespace", None)
        return
    if not namespace:
        raise BadRequest("an empty namespace may not be set during creation")
    if given and given != namespace:
        raise BadRequest(
            f"the namespace of the provided object ({given}) does not match the namespace sent on "
            f"the request ({namespace})"
        )
    metadata["namespace"] = namespace


# ---------------------------------------------------------------------- create


def create(
    context: Context, info: ResourceInfo, namespace: str, body: Obj, *, options: WriteOptions
) -> Record:
    """Store a new object and return its record. `body` is consumed.

    BadRequest, Invalid, Forbidden, NotFound (namespace), AlreadyExists.
    """
    check_kind(info, body)
    body["metadata"] = metadata = metadata_of(info, body)
    _check_namespace(info, namespace, metadata)
    if metadata.get("resourceVersion"):
        raise BadRequest("resourceVersion should not be set on objects to be created")
    if not _NOT_GIVEN.isdisjoint(metadata):
        for field in [field for field in metadata if field in _NOT_GIVEN]:
            del metadata[field]
    if metadata.get("name") or not metadata.get("generateName"):
        return _create_named(context, info, body, options)
    base = str(metadata["generateName"])[:GENERATED_NAME_BASE_MAX]
    for _ in range(GENERATED_NAMES_MAX):
        metadata["name"] = base + "".join(context.rng.choices(_SAFE, k=5))
        if context.store.latest(info.name, (metadata.get("namespace", ""), metadata["name"])):
            continue
        return _create_named(context, info, body, options)
    raise AlreadyExists(
        f'{info.name} "{base}" already exists: the server could not generate a unique name in '
        f"{GENERATED_NAMES_MAX} tries"
    )


def _create_named(context: Context, info: ResourceInfo, body: Obj, options: WriteOptions) -> Record:
    metadata = body["metadata"]
    if not metadata.get("name"):
        problem = FieldProblem(
            "metadata.name", ProblemType.REQUIRED, "name or generateName is required"
        )
        raise errors.invalid(info, "", [problem])
    if info.has_status and not info.keeps_status_on_create:
        body.pop("status", None)
    structural.report_unknown_fields(info, body, options)
    name = metadata["name"]
    key = (metadata.get("namespace", ""), name)
    findings: list[Finding] = []
    shape: PodShape | None = None
    strategy = strategy_of(info)
    has_owners = bool(options.field_manager) or field_owners.FIELD in metadata
    given = {**body, "metadata": dict(metadata)} if has_owners else None
    try:
        _check_namespace_lives(context, info, key[0], name)
        if info.is_builtin:
            shape = strategy.admit_create(context, body)
            strategy.complete(context, body)
        else:
            _check_definition(context, info, name)
            body, findings = structural.admit(context, info, body, options=options)
            metadata = body["metadata"]
    except MALFORMED_ERRORS:
        structural.refuse_malformed(info, body)
        raise
    if given is not None:
        field_owners.record_creation(context, info, given, body, options=options)
    body = info.stored(body)
    if options.is_draft:
        return draft_of(key, body)
    metadata["uid"] = context.ids()
    metadata["creationTimestamp"] = context.now_text()
    if info.tracks_generation:
        metadata["generation"] = 1
    known = shape.known(body) if shape is not None else None
    record, body = _encode(context, info, key, body, findings=findings, known=known)
    model = record.typed(info.type)
    findings += validation.metadata_problems(info, model.metadata)
    findings += strategy.problems(body, record, shape)
    if findings:
        raise errors.invalid(info, name, findings)
    charges = quotas.admit(context, info, key, body) if context.is_bounded(key) else ()
    existing = context.store.latest(info.name, key)
    if existing is not None:
        raise errors.already_exists(info, name, is_deleting=existing.is_deleting)
    if options.dry_run:
        return _dry(info, key, body, "")
    context.store.add(info, record)
    if info in quotas.BOUNDS:
        quotas.note_created(context, info, key)
    if charges:
        quotas.store_charges(context, charges)
    return record


def _check_namespace_lives(context: Context, info: ResourceInfo, namespace: str, name: str) -> None:
    """Refuse to create in a namespace that is not there (404) or going away (403)."""
    if not info.namespaced:
        return
    record = context.store.latest(builtins.NAMESPACES.name, ("", namespace))
    if record is None:
        raise errors.not_found(builtins.NAMESPACES, namespace)
    if record.is_deleting:
        why = (
            f"unable to create new content in namespace {namespace} because it is being terminated"
        )
        cause = StatusCause(
            reason="NamespaceTerminating",
            message=f"namespace {namespace} is being terminated",
            field="metadata.namespace",
        )
        raise errors.forbidden(info, name, why, cause)


def _check_definition(context: Context, info: ResourceInfo, name: str) -> None:
    """Refuse to create objects of a kind that is going away."""
    definition = context.store.latest(builtins.CRDS.name, ("", info.name))
    if definition is not None and definition.is_deleting:
        why = "create not allowed while custom resource definition is terminating"
        raise errors.forbidden(info, name, why)


def _encode(
    context: Context,
    info: ResourceInfo,
    key: Key,
    obj: Obj,
    *,
    findings: Sequence[Finding],
    known: Known | None = None,
) -> tuple[Record, Obj]:
    """Return the record to store and its object, which has lost its nulls if they were in the way.

    BadRequest when the object does not decode; what a schema found wrong goes first.
    """
    version = context.store.next_version
    try:
        return record_typed(info, key, version, obj, known=known), obj
    except (msgspec.ValidationError, TypeError):  # the latter: a key that is no text, in process
        pass
    if findings:
        raise errors.invalid(info, key[1], findings)
    obj = info.stored(structural.repair(info, changes.copy(info.served(obj))))
    try:
        return record_typed(info, key, version, obj), obj
    except msgspec.ValidationError as error:
        raise BadRequest(
            f'{info.kind} in version "{info.version}" cannot be handled as a {info.kind}: {error}'
        ) from None


def _dry(info: ResourceInfo, key: Key, obj: Obj, version: str) -> Record:
    """The object that would be stored, under the version that it has now."""
    return _under_version(record_typed(info, key, 0, obj), obj, version)


def _under_version(record: Record, obj: Obj, version: str) -> Record:
    """The answer to a write that stored nothing, or removed: under the version before, if any."""
    if version:
        obj["metadata"]["resourceVersion"] = version
    else:
        del obj["metadata"]["resourceVersion"]
    record.set_data(msgspec.json.encode(obj, order="sorted"))
    return record


# ---------------------------------------------------------------------- replace and patch


def replace(
    context: Context,
    info: ResourceInfo,
    key: Key,
    body: Obj,
    *,
    options: WriteOptions,
    subresource: str = "",
) -> Record:
    """Put an object in the place of the stored one. `body` is consumed.

    NotFound, Conflict for another version or uid, BadRequest for another name, Invalid.
    """
    current = context.store.latest(info.name, key)
    check_kind(info, body)
    body["metadata"] = metadata = metadata_of(info, body)
    _check_namespace(info, key[0], metadata)
    name = metadata.get("name")
    if not name:
        raise BadRequest(
            f"the name of the object ({key[1]} based on URL) was undeterminable: name must be "
            "provided"
        )
    if name != key[1]:
        raise BadRequest(
            f"the name of the object ({name}) does not match the name on the URL ({key[1]})"
        )
    if current is None:
        if info.create_on_update_allowed and not subresource and not metadata.get("uid"):
            metadata.pop("resourceVersion", None)
            return create(context, info, key[0], body, options=options)
        raise errors.not_found(info, key[1])
    given = metadata.get("resourceVersion")
    if not given and not info.unconditional_update_allowed:
        raise errors.no_version(info, key[1])
    old = info.served(current.plain())
    return _update(context, info, current, old=old, new=body, options=options, sub=subresource)


def patch(
    context: Context,
    info: ResourceInfo,
    key: Key,
    change: Callable[[Obj], Any],
    *,
    options: WriteOptions,
    subresource: str = "",
    only_status: bool = False,
) -> Record:
    """Store `change(object)`; `change` gets the whole object and may share parts with its result.

    With `only_status` it sets the status and looks at nothing else, and gets the spec unread.
    NotFound, Invalid, Conflict when the result names another version or uid; what `change` raises.
    """
    current = context.store.latest(info.name, key)
    if current is None:
        raise errors.not_found(info, key[1])
    is_closed = info.is_builtin or info.status_schema is not None
    old = info.served(current.around_spec() if only_status and is_closed else current.plain())
    new = change({"kind": info.kind, "apiVersion": info.api_version, **old})
    if not isinstance(new, dict):
        raise BadRequest("the patched object is no JSON object")
    if new.get("kind") == info.kind and new.get("apiVersion") == info.api_version:
        del new["kind"], new["apiVersion"]
    else:
        check_kind(info, new)
    if new.get("metadata") is old["metadata"]:
        new["metadata"] = metadata = dict(old["metadata"])
    else:
        new["metadata"] = metadata = metadata_of(info, new)
    if metadata.get("name") not in (key[1], None):
        raise BadRequest(
            f"the name of the object ({metadata['name']}) does not match the name on the URL "
            f"({key[1]})"
        )
    return _update(context, info, current, old=old, new=new, options=options, sub=subresource)


def _update(
    context: Context, info: ResourceInfo, current: Record, *,
    old: Obj, new: Obj, options: WriteOptions, sub: str,
) -> Record:  # fmt: skip
    """Store `new` in the place of `current`, which `info` serves as `old`; `old` stays as it is."""
    name, before, metadata = current.key[1], old["metadata"], new["metadata"]
    changes.check_preconditions(info, name, before, metadata)
    owners = metadata.get(field_owners.FIELD)
    new, metadata = changes.restrict(info, old, new, sub)
    if options.keeps_managers:
        changes.put_or_drop(metadata, field_owners.FIELD, owners)
    for field in (*_SERVER_OWNED, *_NEVER_STORED):  # the last is in no stored object
        if field in before:
            metadata[field] = before[field]
        else:
            metadata.pop(field, None)
    metadata["resourceVersion"] = before["resourceVersion"]
    if new == old and msgspec.json.encode(info.stored(new), order="sorted") == current.data:
        return current
    structural.report_unknown_fields(info, new, options)
    new, findings = _admit_update(context, info, old, new, options=options, sub=sub)
    metadata = new["metadata"]
    if field_owners.FIELD in before or field_owners.FIELD in metadata:
        field_owners.record_update(context, info, old, new, options=options, sub=sub)
    old, new = info.stored(old), info.stored(new)
    if options.is_draft:
        return draft_of(current.key, new)
    if info.tracks_generation and sub != "status" and changes.spec_changed(info, old, new):
        metadata["generation"] = before.get("generation", 0) + 1
    if new == old and msgspec.json.encode(new, order="sorted") == current.data:
        return current  # what was changed is a default
    is_relabelled = metadata != before  # to encode sets the new version in it
    known = current.known(info.type, old, new)
    record, new = _encode(context, info, current.key, new, findings=findings, known=known)
    if is_relabelled:
        after = record.typed(info.type).metadata
        findings += validation.metadata_problems(info, after)
        findings += validation.metadata_update_problems(current.typed(info.type).metadata, after)
    if sub in ("", pod_resize.SUBRESOURCE):
        findings += strategy_of(info).problems(new, record, None)
    if findings:
        raise errors.invalid(info, name, findings)
    charges = _admitted_charges(context, info, old, new, sub=sub)
    if options.dry_run:
        return _dry(info, current.key, new, before["resourceVersion"])
    if record.is_deleting and changes.is_free(info, new):
        # The event shows what was stored last, as the real store's does.
        last = {**old, "metadata": dict(old["metadata"])}
        known = current.known(info.type, old, last)
        last = record_typed(info, current.key, record.version, last, known=known)
        context.store.remove(info, last)
        return _under_version(record, new, before["resourceVersion"])
    context.store.put(info, record)
    quotas.store_charges(context, charges)
    return record


def _admitted_charges(
    context: Context, info: ResourceInfo, old: Obj, new: Obj, *, sub: str
) -> Sequence[quotas.Charge]:
    """Return what a changed object uses of quotas; Forbidden, also where a pod's node is full."""
    is_resize = sub == pod_resize.SUBRESOURCE
    if sub and not is_resize:
        return ()
    metadata = old["metadata"]
    if is_resize:
        pod_resize.check_node(context, metadata["name"], old, new)
    key = metadata.get("namespace", ""), metadata["name"]
    return quotas.admit(context, info, key, new, old=old, is_resize=is_resize)


def _admit_update(
    context: Context, info: ResourceInfo, old: Obj, new: Obj, *, options: WriteOptions, sub: str
) -> tuple[Obj, list[Finding]]:
    """Return the changed object with its defaults, and what may not change."""
    try:
        if not info.is_builtin:
            return structural.admit(context, info, new, options=options, old=old)
        strategy = strategy_of(info)
        findings = strategy.admit_update(context, old, new, sub=sub)
        if not sub:
            strategy.complete(context, new)
    except MALFORMED_ERRORS:
        structural.refuse_malformed(info, changes.copy(new))
        raise
    return new, findings


def overwrite(
    context: Context,
    info: ResourceInfo,
    key: Key,
    change: Callable[[Obj], Obj],
    *,
    options: WriteOptions,
) -> Record:
    """Store `change(object)` past the rules on what may change: for the server's own writes.

    `change` may write into its argument. NotFound, and what `change` raises.
    """
    current = context.store.latest(info.name, key)
    if current is None:
        raise errors.not_found(info, key[1])
    new = change(current.plain())
    if msgspec.json.encode(new, order="sorted") == current.data:
        return current
    if options.dry_run:
        return _dry(info, key, new, str(current.version))
    record = record_typed(info, key, context.store.next_version, new)
    if record.is_deleting and changes.is_free(info, new):
        context.store.remove(info, record)
    else:
        context.store.put(info, record)
    return record
