"""Rewrites objects that are stored in a former version of their kind, and ends that version.

A definition names in `status.storedVersions` each version in which objects of it may be stored, and
a server refuses a definition that lacks one of them. So before a version goes, each object is
written once as it was read: the server then stores it in the version that is stored now, and writes
nothing where it is so already. Versions are taken off the list only after a pass over all objects
that was not interrupted; one that was is made again, which costs time and changes nothing more.
Source: kubernetes.io/docs, "Upgrade existing objects to a new stored version".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from fairlead.api.status import Conflict, Expired, NotFound
from fairlead.input.errors import Code, fail
from fairlead.install.installer import ESTABLISHED_SECONDS_MAX, MANAGER, MERGE, get, wait_until
from fairlead.install.manifests import Manifest, label_of, path_of
from fairlead.kube.blocking import BlockingClient

PAGE_MAX = 500
PASSES_MAX = 5


def migrate(api: BlockingClient, manifest: Manifest) -> int:
    """Have all objects of a definition stored in the version that its manifest stores.

    Returns how many objects were looked at; 0 where no other version was ever stored. CliError
    where the server does not take the version up, or the definition changes all the time.
    """
    wanted = _stored(manifest)
    for _ in range(PASSES_MAX):
        found = get(api, manifest)
        stored = ((found or {}).get("status") or {}).get("storedVersions") or []
        if found is None or set(stored) <= {wanted}:
            return 0
        if wanted not in (each["name"] for each in found["spec"]["versions"]):
            return 0
        try:
            if _stored(found) != wanted:
                found = _store_in(api, found, wanted)
            count = sum(1 for _ in _rewritten(api, found, wanted))
            _write(api, found, {"status": {"storedVersions": [wanted]}}, "/status")
        except (Conflict, Expired):
            continue  # of the definition, or a list that took too long
        return count
    raise fail(Code.BAD_ANSWER, f"{label_of(manifest)}: it changes while objects are rewritten",
               help=("fairlead install goes on where this ended",))  # fmt: skip


def _stored(definition: Manifest) -> str:
    """Return the version in which a definition stores new objects."""
    (name,) = (each["name"] for each in definition["spec"]["versions"] if each["storage"])
    return name


def _store_in(api: BlockingClient, found: Manifest, wanted: str) -> Manifest:
    """Have new objects stored in a version that is served; return the definition after it.

    The server has taken that up once its discovery says another hash of the stored version.
    """
    before = _storage_hash(api, found, wanted)
    versions = [
        {**each, "storage": each["name"] == wanted} for each in found["spec"]["versions"]
    ]  # fmt: skip
    after = _write(api, found, {"spec": {"versions": versions}})
    if not wait_until(
        lambda: _storage_hash(api, found, wanted) != before, ESTABLISHED_SECONDS_MAX
    ):  # fmt: skip
        raise fail(
            Code.BAD_ANSWER,
            f"{label_of(found)}: the server goes on storing in another version than {wanted}",
            help=("fairlead install goes on where this ended",),
        )
    return after


def _storage_hash(api: BlockingClient, definition: Manifest, version: str) -> str:
    """Return what discovery says of the stored version; "" where the version is not served yet."""
    spec = definition["spec"]
    try:
        body = api.request("GET", f"/apis/{spec['group']}/{version}").body
    except NotFound:
        return ""
    served: Manifest = msgspec.json.decode(body)
    plural = spec["names"]["plural"]
    found = (each for each in served["resources"] if each["name"] == plural)
    return next(found, {}).get("storageVersionHash", "")


def _rewritten(api: BlockingClient, found: Manifest, version: str) -> Iterator[Manifest]:
    """Write each object as it was read, and yield it; Expired where the list is too old."""
    spec, query = found["spec"], {"limit": str(PAGE_MAX)}
    root, plural = f"/apis/{spec['group']}/{version}", spec["names"]["plural"]
    while True:
        page: Manifest = msgspec.json.decode(
            api.request("GET", f"{root}/{plural}", query=query).body
        )
        for each in page["items"]:
            metadata = each["metadata"]
            space = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
            path = f"{root}{space}/{plural}/{metadata['name']}"
            with suppress(Conflict, NotFound):  # written meanwhile, so in that version; or gone
                api.request("PUT", path, query={"fieldManager": MANAGER}, body=each)
            yield each
        token = page["metadata"].get("continue")
        if not token:
            return
        query = {**query, "continue": token}


def _write(
    api: BlockingClient, found: Manifest, change: dict[str, Any], below: str = ""
) -> Manifest:
    """Change the definition that was read; Conflict where it is another one by now."""
    metadata = {key: found["metadata"][key] for key in ("uid", "resourceVersion")}
    answer = api.request(
        "PATCH", f"{path_of(found)}{below}", query={"fieldManager": MANAGER},
        body={"metadata": metadata, **change}, content_type=MERGE,
    )  # fmt: skip
    written: Manifest = msgspec.json.decode(answer.body)
    return written
