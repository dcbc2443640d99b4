"""Puts manifests on a cluster, or says how the cluster differs from them.

Server-side apply does both: the server merges what we state into what others have added, and with
`dryRun=All` it says what would come of it. So "differs" means that applying would change something,
in the server's own judgement; there is no comparison of ours that could see defaults as changes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from fairlead.api.status import ApiError, NotFound
from fairlead.cli.cluster.manifests import PLACES, InstallValues, Manifest, label_of, path_of
from fairlead.cli.errors import Code, fail
from fairlead.cli.transport import Api

MANAGER = "fairlead-install"
APPLY = "application/apply-patch+yaml"  # JSON is YAML
ESTABLISHED_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.1


class State(Enum):
    """How an object stands to its manifest."""

    MISSING = "missing"
    DIFFERS = "differs"
    SAME = "ok"


class Done(Enum):
    """What an installation did to an object."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Found:
    """One object, and how it stands; `note` says more about one that is the same but not well."""

    label: str
    state: State
    note: str = ""

    @property
    def is_well(self) -> bool:
        """True when nothing is to be done."""
        return self.state is State.SAME and not self.note


def look(api: Api, manifest: Manifest) -> Found:
    """Compare one object with its manifest; changes nothing."""
    label = label_of(manifest)
    before = _get(api, manifest)
    if before is None:
        return Found(label, State.MISSING)
    after = _apply(api, manifest, is_dry=True)
    if _essence(before) != _essence(after):
        return Found(label, State.DIFFERS)
    return Found(label, State.SAME, _trouble(before))


def apply(api: Api, manifest: Manifest) -> Done:
    """Bring one object to its manifest; what others have added to it stays."""
    before = _get(api, manifest)
    after = _apply(api, manifest, is_dry=False)
    if before is None:
        return Done.CREATED
    same = before["metadata"].get("resourceVersion") == after["metadata"].get("resourceVersion")
    return Done.UNCHANGED if same or _essence(before) == _essence(after) else Done.CHANGED


def await_established(api: Api, manifest: Manifest) -> None:
    """Return once the API serves a new kind; CliError when it does not."""
    deadline = time.monotonic() + ESTABLISHED_SECONDS_MAX
    while True:
        note = _trouble(_get(api, manifest) or {"kind": manifest["kind"]})
        if not note:
            return
        if time.monotonic() > deadline:
            raise fail(Code.BAD_ANSWER, f"{label_of(manifest)}: {note}",
                       help=("fairlead install --check tells when it is there",))  # fmt: skip
        time.sleep(LOOK_SECONDS)


def _get(api: Api, manifest: Manifest) -> Manifest | None:
    try:
        return _decode(api.request("GET", path_of(manifest)).body)
    except NotFound:
        return None


def _apply(api: Api, manifest: Manifest, *, is_dry: bool) -> Manifest:
    query = {"fieldManager": MANAGER, "force": "true"}
    if is_dry:
        query["dryRun"] = "All"
    answer = api.request("PATCH", path_of(manifest), query=query, body=manifest, content_type=APPLY)
    return _decode(answer.body)


def _decode(body: bytes) -> Manifest:
    decoded: Any = msgspec.json.decode(body)
    return decoded


def _essence(found: Manifest) -> Manifest:
    """Return the object without what the server keeps for itself."""
    kept = ("managedFields", "resourceVersion", "generation")
    metadata = {key: value for key, value in found["metadata"].items() if key not in kept}
    return {**found, "metadata": metadata, "status": None}


def _trouble(found: Manifest) -> str:
    """Return what is wrong with an object that is as it should be; "" when nothing is."""
    status: Manifest = found.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    match found["kind"]:
        case "CustomResourceDefinition":
            established = conditions.get("Established", {})
            names = conditions.get("NamesAccepted", {})
            if names.get("status") == "False":
                return f"its names are taken: {names.get('message', '')}"
            if established.get("status") != "True":
                return "the API does not serve it yet"
        case "Deployment":
            wanted = found["spec"].get("replicas", 1)
            available = status.get("availableReplicas", 0)
            if available < wanted:
                return f"{available} of {wanted} replicas are available"
        case _:
            pass
    return ""


def check_access(api: Api, values: InstallValues) -> None:
    """Refuse before anything is written when the server is no Kubernetes that has our kinds."""
    for prefix in sorted({place.prefix for place in PLACES.values()}):
        try:
            api.request("GET", prefix)
        except NotFound as error:
            raise fail(
                Code.REFUSED, f"{api.target.server} does not serve {prefix}",
                detail=(f"nothing was written to namespace {values.namespace}",),
                help=("an embedded cluster needs no installation: it has all of this inside",),
            ) from error  # fmt: skip
        except ApiError:
            return  # discovery may be closed to us; the first write will tell
