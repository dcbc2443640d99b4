"""Puts manifests on a cluster, or says how the cluster differs from them.

Server-side apply does both: the server merges what we state into what others have added, and with
`dryRun=All` it says what would come of it. So "differs" means that applying would change something,
in the server's own judgement; there is no comparison of ours that could see defaults as changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from fairlead.api import names
from fairlead.api.status import ApiError, Conflict, Forbidden, NotFound
from fairlead.input.errors import Code, fail
from fairlead.install.manifests import (
    PART_OF,
    Install,
    Manifest,
    label_of,
    manifests,
    path_of,
    prefix_of,
)
from fairlead.install.values import HistoryKind
from fairlead.kube.blocking import BlockingClient
from fairlead.webhook.policies import POLICY

MANAGER = "fairlead-install"
APPLY = "application/apply-patch+yaml"  # JSON is YAML
MERGE = "application/merge-patch+json"
ESTABLISHED_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.1
#: What Helm writes to the objects of a release.
_HELM_RELEASE, _MANAGED_BY = "meta.helm.sh/release-name", "app.kubernetes.io/managed-by"
_EMBEDDED_HELP = "an embedded cluster has all of this inside: there is nothing to install or remove"
_MISSING_HELP = {
    "/apis/monitoring.coreos.com/v1": "install the Prometheus operator, or set "
    "metrics.serviceMonitor.enabled: false and metrics.alerts.enabled: false",
    "/apis/cert-manager.io/v1": "install cert-manager, or set webhook.certManager.enabled: false",
}


class ObjectState(Enum):
    """How an object stands to its manifest."""

    MISSING = "missing"
    DIFFERS = "differs"
    SAME = "ok"
    UNWANTED = "not wanted any more"


class Done(Enum):
    """What an installation did to an object."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    DELETED = "deleted"
    ABSENT = "absent"
    NOT_OURS = "left alone: not Fairlead's"


@dataclass(frozen=True, slots=True)
class InstalledObject:
    """One object, and how it stands; `note` says more about one that is the same but not well."""

    label: str
    state: ObjectState
    note: str = ""

    @property
    def is_well(self) -> bool:
        """True when nothing is to be done."""
        return self.state is ObjectState.SAME and not self.note


def look(api: BlockingClient, manifest: Manifest) -> InstalledObject:
    """Compare one object with its manifest; changes nothing."""
    label = label_of(manifest)
    before = get(api, manifest)
    if before is None:
        return InstalledObject(label, ObjectState.MISSING)
    if _converts(before) and not _converts(manifest):
        return InstalledObject(label, ObjectState.DIFFERS)
    after = _apply(api, manifest, is_dry=True)
    if _essence(before) != _essence(after):
        return InstalledObject(label, ObjectState.DIFFERS)
    return InstalledObject(label, ObjectState.SAME, _trouble(before))


def apply(api: BlockingClient, manifest: Manifest) -> Done:
    """Bring one object to its manifest; what others have added to it stays."""
    before = get(api, manifest)
    if before is not None and not _converts(manifest):
        stop_conversion(api, before)
    after = _apply(api, manifest, is_dry=False)
    if before is None:
        return Done.CREATED
    same = before["metadata"].get("resourceVersion") == after["metadata"].get("resourceVersion")
    return Done.UNCHANGED if same or _essence(before) == _essence(after) else Done.CHANGED


@dataclass(frozen=True, slots=True)
class NeededObject:
    """An object that the values name and that somebody else has to make."""

    label: str
    path: str
    remedy: str


def needs(install: Install) -> Iterator[NeededObject]:
    """Yield what the values name and an installation does not make."""
    values, space = install.values, install.namespace
    if values.history.kind is HistoryKind.POSTGRES:
        name, key = values.history.postgres.secret_name, values.history.postgres.secret_key
        yield _secret(space, name, f"generic {name} --from-literal={key}=postgresql://...")
    for each in values.image_pull_secrets:
        name = str(each.get("name", ""))
        yield _secret(space, name, f"docker-registry {name} ...")
    classes = [values.priority_class_name]
    if values.node_agent.enabled:
        classes.append(values.node_agent.priority_class_name)
    for name in dict.fromkeys(filter(None, classes)):
        path = f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}"
        remedy = f"kubectl create priorityclass {name} --value=1000000"
        yield NeededObject(f"PriorityClass {name}", path, remedy)


def _secret(namespace: str, name: str, arguments: str) -> NeededObject:
    path = f"/api/v1/namespaces/{namespace}/secrets/{name}"
    remedy = f"kubectl -n {namespace} create secret {arguments}"
    return NeededObject(f"Secret {namespace}/{name}", path, remedy)


def look_need(api: BlockingClient, need: NeededObject) -> InstalledObject:
    """Say whether something that others make is there; its content is not looked at."""
    try:
        api.request("GET", need.path)
    except NotFound:
        return InstalledObject(need.label, ObjectState.MISSING, need.remedy)
    except Forbidden:
        return InstalledObject(
            need.label, ObjectState.SAME, "may not be looked at: whether it is there is unknown"
        )
    return InstalledObject(need.label, ObjectState.SAME)


def look_unwanted(api: BlockingClient, manifest: Manifest) -> InstalledObject | None:
    """Return an object that is there though it was not chosen; None when there is none of ours."""
    found = get(api, manifest)
    if found is None or not is_ours(found):
        return None
    return InstalledObject(label_of(manifest), ObjectState.UNWANTED)


def remove(api: BlockingClient, manifest: Manifest) -> Done:
    """Delete one object, if it is there and one of ours; its dependents go after it."""
    found = get(api, manifest)
    if found is None:
        return Done.ABSENT
    if not is_ours(found):
        return Done.NOT_OURS
    return Done.DELETED if delete(api, path_of(manifest), found) else Done.ABSENT


def delete(api: BlockingClient, path: str, found: Manifest) -> bool:
    """Delete the object that was read from a path; False when it, or this one of it, is gone."""
    uid = {"uid": found["metadata"]["uid"]}
    try:
        options = {"propagationPolicy": "Background", "preconditions": uid}
        api.request("DELETE", path, body=options)
    except (NotFound, Conflict):
        return False
    return True


def is_ours(found: Manifest) -> bool:
    """True for what an installation of Fairlead has made, and for our kinds in any case."""
    if (found.get("spec") or {}).get("group") == names.GROUP:
        return True
    key, value = PART_OF
    return (found["metadata"].get("labels") or {}).get(key) == value


def helm_release(found: Iterable[Manifest | None]) -> str:
    """Return the release of Helm that one of these objects is a part of; "" when none is."""
    for each in found:
        metadata = each["metadata"] if each is not None else {}
        if (metadata.get("labels") or {}).get(_MANAGED_BY) == "Helm":
            return (metadata.get("annotations") or {}).get(_HELM_RELEASE, "")
    return ""


def await_established(api: BlockingClient, manifest: Manifest) -> None:
    """Return once the API serves a new kind; CliError when it does not."""

    def note() -> str:
        return _trouble(get(api, manifest) or {"kind": manifest["kind"]})

    if not wait_until(lambda: not note(), ESTABLISHED_SECONDS_MAX):
        raise fail(Code.BAD_ANSWER, f"{label_of(manifest)}: {note()}",
                   help=("fairlead install --check says when it is there",))  # fmt: skip


def wait_until(is_done: Callable[[], bool], seconds_max: float) -> bool:
    """Return True as soon as the condition holds, False when it does not in time."""
    deadline = time.monotonic() + seconds_max
    while not is_done():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def get(api: BlockingClient, manifest: Manifest) -> Manifest | None:
    """Return the object as it is; None when there is none, or none of its kind."""
    try:
        return _decode(api.request("GET", path_of(manifest)).body)
    except NotFound:
        return None


def _apply(api: BlockingClient, manifest: Manifest, *, is_dry: bool) -> Manifest:
    query = {"fieldManager": MANAGER, "force": "true"}
    if is_dry:
        query["dryRun"] = "All"
    answer = api.request("PATCH", path_of(manifest), query=query, body=manifest, content_type=APPLY)
    return _decode(answer.body)


def _converts(manifest: Manifest) -> bool:
    """True for a definition whose objects a webhook converts."""
    if manifest.get("kind") != "CustomResourceDefinition":
        return False
    return (manifest["spec"].get("conversion") or {}).get("strategy") == "Webhook"


def stop_conversion(api: BlockingClient, found: Manifest) -> bool:
    """Have a definition serve only what it stores, so that nothing is converted; False: it is so.

    One write: never are two versions served that nothing converts. Applying cannot do it: the
    authority in the webhook's part was written by the controllers, and would stay.
    """
    if not _converts(found):
        return False
    stored = [each for each in found["spec"]["versions"] if each["storage"]]
    spec = {"versions": stored, "conversion": {"strategy": "None", "webhook": None}}
    metadata = {key: found["metadata"][key] for key in ("uid", "resourceVersion")}
    api.request(
        "PATCH", path_of(found), query={"fieldManager": MANAGER},
        body={"metadata": metadata, "spec": spec}, content_type=MERGE,
    )  # fmt: skip
    return True


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
            accepted = conditions.get("NamesAccepted", {})
            if accepted.get("status") == "False":
                return f"its names are taken: {accepted.get('message', '')}"
            if established.get("status") != "True":
                return "the API does not serve it yet"
        case "Deployment":
            wanted = found["spec"].get("replicas", 1)
            available = status.get("availableReplicas", 0)
            if available < wanted:
                return f"{available} of {wanted} replicas are available"
        case "DaemonSet":
            wanted, ready = (
                status.get(key, 0) for key in ("desiredNumberScheduled", "numberReady")
            )
            if ready < wanted:
                return f"{ready} of {wanted} nodes have a pod that is ready"
        case "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration":
            if not all(each["clientConfig"].get("caBundle") for each in found["webhooks"]):
                return "no authority to trust yet, a running controller writes it"
        case _:
            pass
    return ""


def check_access(api: BlockingClient, install: Install) -> None:
    """Refuse before anything is written when the server is no Kubernetes that has our kinds."""
    chosen = manifests(install)
    for prefix in sorted({prefix_of(each) for each in chosen}):
        try:
            served = _decode(api.request("GET", prefix).body)
        except NotFound as error:
            raise fail(
                Code.REFUSED, f"{api.connection.server} does not serve {prefix}",
                detail=(f"nothing was written to namespace {install.namespace}",),
                help=(_MISSING_HELP.get(prefix, _EMBEDDED_HELP),),
            ) from error  # fmt: skip
        except ApiError:
            return  # discovery may be forbidden; the first write fails then
        kinds = {each.get("kind") for each in served.get("resources") or ()}
        wanted = {each["kind"] for each in chosen if prefix_of(each) == prefix}
        if kinds and POLICY in wanted - kinds:
            raise fail(
                Code.REFUSED, f"{api.connection.server} does not serve {prefix} {POLICY}",
                detail=(f"nothing was written to namespace {install.namespace}",),
                help=(
                    "use Kubernetes 1.30 or newer, or set admissionPolicies.enabled: false, "
                    "without which there is no node health",
                ),
            )  # fmt: skip
