"""The writing verb apply: a configuration and its manager, merged into what is there.

What it makes of the object is decided by `fairlead.embedded.apply`; the result is then written as
any other new or changed object is (apiserver `pkg/endpoints/handlers/patch.go`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fairlead.api.status import ApiError, BadRequest, Conflict, StatusCause, StatusDetails
from fairlead.embedded import apply
from fairlead.embedded.apply import ApplyConflict, BadConfig, shown
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.schema.values import as_map
from fairlead.embedded.storage.records import Key, Record
from fairlead.embedded.verbs import errors, field_owners, writes
from fairlead.embedded.verbs.context import Context
from fairlead.embedded.verbs.errors import FieldProblem, ProblemType
from fairlead.embedded.verbs.options import WriteOptions

Obj = dict[str, Any]


def new_object(
    context: Context, info: ResourceInfo, key: Key, config: Obj, *, options: WriteOptions
) -> Obj:
    """Return the object to create for a configuration of something that is not there.

    A version in it means nothing. BadRequest, Conflict when it names a uid.
    """
    uid = as_map(config.get("metadata")).get("uid")
    if uid:
        why = (
            f"uid mismatch: the provided object specified uid {uid}, and no existing object was "
            "found"
        )
        raise errors.conflict(info, key[1], why)
    new = _configured(context, info, key, {}, config=config, options=options, sub="")
    new["metadata"].pop("resourceVersion", None)
    return new


def apply_config(
    context: Context,
    info: ResourceInfo,
    key: Key,
    config: Obj,
    *,
    options: WriteOptions,
    subresource: str = "",
) -> Record:
    """Merge a configuration into the object and store that. `config` stays as it is.

    NotFound, BadRequest, Conflict (fields of other managers; another version or uid), Invalid.
    """
    uid = as_map(config.get("metadata")).get("uid")

    def change(live: Obj) -> Obj:
        if uid and uid != live["metadata"]["uid"]:
            problem = FieldProblem("metadata.uid", ProblemType.INVALID, "field is immutable", uid)
            raise errors.invalid(info, key[1], [problem])
        return _configured(
            context, info, key, live, config=config, options=options, sub=subresource
        )

    kept = replace(options, keeps_managers=True)
    return writes.patch(context, info, key, change, options=kept, subresource=subresource)


def _configured(
    context: Context, info: ResourceInfo, key: Key, live: Obj, *,
    config: Obj, options: WriteOptions, sub: str,
) -> Obj:  # fmt: skip
    _check(info, key, config, is_new=not live)
    managers = field_owners.stored_managers(live)
    writer = field_owners.writer_of(context, info, options, sub)
    try:
        made = apply.applied(live, config, managers, writer, force=options.force)
    except BadConfig as error:
        given = as_map(config.get("metadata"))
        where = f"{given.get('namespace', '')}/{key[1]}; {_gvk(info.api_version, info.kind)}"
        raise BadRequest(f"failed to create typed patch object ({where}): {error}") from None
    except ApplyConflict as error:
        raise _conflict(error) from None
    entries = apply.encode(made.managers)
    metadata = {**made.object["metadata"], field_owners.FIELD: entries}
    return {**made.object, "metadata": metadata}


def _check(info: ResourceInfo, key: Key, config: Obj, *, is_new: bool) -> None:
    """BadRequest for a configuration that is not of the object that the path names."""
    kind, version = config.get("kind", ""), config.get("apiVersion", "")
    if (version, kind) != (info.api_version, info.kind):
        raise BadRequest(f"invalid object type: {_gvk(str(version), str(kind))}")
    metadata = config.get("metadata")
    if not isinstance(metadata, dict | None):
        raise BadRequest("metadata: must be an object")
    metadata = metadata or {}
    if metadata.get(field_owners.FIELD) is not None:
        raise BadRequest("metadata.managedFields must be nil")
    given = metadata.get("namespace")
    if given and given != key[0]:
        raise BadRequest(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if is_new and not metadata.get("name"):
        raise BadRequest(
            f"the name of the object ({key[1]} based on URL) was undeterminable: name must be "
            "provided"
        )
    if metadata.get("name", key[1]) != key[1]:
        raise BadRequest(
            f"the name of the object ({metadata['name']}) does not match the name on the URL "
            f"({key[1]})"
        )


def _gvk(version: str, kind: str) -> str:
    """Return a kind as Go prints it: the core group is empty."""
    return f"{version if '/' in version else f'/{version}'}, Kind={kind}"


def _conflict(error: ApplyConflict) -> ApiError:
    causes = tuple(
        StatusCause("FieldManagerConflict", f"conflict with {manager}", shown(path))
        for manager, path in error.conflicts
    )
    return Conflict(str(error), details=StatusDetails(causes=causes))
