"""Removes Fairlead from a cluster, in the order that leaves no object blocked on it.

1. The webhook configurations go: without a server behind them, API servers would refuse pods. The
   admission policies go as well, whose parameters are of our kinds.
2. While the controllers still run, jobs that are to go are deleted: the controllers end their pods
   and remove the finalizer, as always. Step 4 does the same for those that take too long.
3. The controllers go. From here on no finalizer is added.
4. Our finalizers are removed from all jobs and node pools, whose machines stay, and our gate from
   every pod that waits for a plan: kube-scheduler binds these then. Jobs of groups of such pods are
   deleted, which the controllers would have created again; the pods belong to other tools, and
   stay.
5. All else, then the definitions (unless kept), the namespace last. An API server may take minutes
   until a definition is gone, so all are deleted at once and waited for together.

Every step reads what is there, so an uninstallation that was interrupted can be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from fairlead.api import names
from fairlead.api.resources import CONFIG_MAPS, JOBS, NODE_POOLS, PODS, SECRETS, Resource
from fairlead.api.schema import crd
from fairlead.api.status import ApiError, Conflict, NotFound
from fairlead.decide.words import plural
from fairlead.input.errors import Code, fail
from fairlead.install.installer import (
    MERGE,
    Done,
    delete,
    get,
    helm_release,
    is_ours,
    remove,
    stop_conversion,
    wait_until,
)
from fairlead.install.manifests import (
    HISTORY,
    NAME,
    PART_OF,
    Install,
    Manifest,
    all_objects,
    label_of,
    path_of,
)
from fairlead.install.stored_versions import migrate
from fairlead.kube.blocking import BlockingClient
from fairlead.runtime.kept.numbers import NAME as NUMBERS
from fairlead.webhook.configuration import SERVICE as WEBHOOK
from fairlead.webhook.policies import BINDING, POLICY

#: Times that an object is read and written again while others write it.
WRITE_TRIES_MAX = 20
RETRY_SECONDS = 0.1
GONE_SECONDS_MAX = 60.0
#: Between two messages about what is waited for, and two changes of definitions that do not go.
SAY_SECONDS, NUDGE_SECONDS = 10.0, 3.0
#: The API server alone takes up to a minute until it has seen that no object of a kind is left
#: (apiextensions-apiserver, crd_finalizer.go).
KIND_SECONDS_MAX = 120.0
#: The cluster empties a namespace after it has accepted the deletion.
NAMESPACE_SECONDS_MAX = 30.0
#: Never deleted, whatever label they carry.
NAMESPACES_KEPT = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})
#: What sends requests to the controllers, or needs our kinds to be there; goes before them.
_WEBHOOKS = (
    "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", BINDING, POLICY,
)  # fmt: skip
#: In this order, after all other objects of ours.
_LAST = ("CustomResourceDefinition", "PersistentVolumeClaim", "Namespace")

FOREIGN_PAGE_MAX = 10
#: Kinds of objects that a deletion of the namespace is not to take from others.
_FOREIGN_KINDS = (
    "/api/v1/{}/pods", "/api/v1/{}/services", "/api/v1/{}/configmaps", "/api/v1/{}/secrets",
    "/api/v1/{}/persistentvolumeclaims", "/api/v1/{}/serviceaccounts",
    "/apis/apps/v1/{}/deployments", "/apis/apps/v1/{}/statefulsets", "/apis/apps/v1/{}/daemonsets",
    "/apis/batch/v1/{}/jobs", "/apis/batch/v1/{}/cronjobs",
)  # fmt: skip
#: What Kubernetes puts into every namespace.
_EVERYWHERE = frozenset({"configmaps/kube-root-ca.crt", "serviceaccounts/default"})

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class UninstallOptions:
    """Which installation, and what stays."""

    namespace: str
    is_keeping_kinds: bool = False
    jobs_seconds_max: float = GONE_SECONDS_MAX


@dataclass(frozen=True, slots=True)
class InstalledInventory:
    """What is on the cluster now."""

    objects: tuple[Manifest, ...]  # ours, in the order in which they are created
    jobs: tuple[Manifest, ...]  # that users submitted
    group_jobs: tuple[Manifest, ...]  # of groups of pods that other tools made
    pools: tuple[Manifest, ...]  # of nodes, whose machines stay
    gated: tuple[Manifest, ...]  # pods
    foreign: tuple[str, ...] = ()  # what others have in the controllers' namespace
    helm_release: str = ""

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Jobs that have not ended, as namespace/name."""
        ended = ("Succeeded", "Failed", "Cancelled")
        states = ((job, (job.get("status") or {}).get("state")) for job in self.jobs)
        return tuple(_key(job) for job, state in states if state not in ended)


def take_inventory(api: BlockingClient, options: UninstallOptions) -> InstalledInventory:
    """Read everything that an uninstallation concerns; changes nothing."""
    ours: list[Manifest] = []
    for manifest, _ in all_objects(Install(options.namespace)):
        found = get(api, manifest)
        if found is not None and is_ours(found):
            ours.append({**found, "kind": manifest["kind"]})
    return InstalledInventory(
        objects=tuple(ours),
        jobs=tuple(_jobs(api, of_groups=False)),
        group_jobs=tuple(_jobs(api, of_groups=True)),
        pools=tuple(_held_pools(api)),
        gated=tuple(_gated(api)),
        foreign=tuple(_foreign(api, options.namespace)),
        helm_release=helm_release(each for each in ours if each["kind"] == "Deployment"),
    )


def _jobs(api: BlockingClient, *, of_groups: bool | None = None) -> list[Manifest]:
    """Return all jobs, or those that do, or do not, represent pods of other tools."""
    try:
        jobs = list(api.list(JOBS.raw))
    except NotFound:
        return []  # the kind is not there
    return [job for job in jobs if of_groups in (None, bool(job["spec"].get("adopts")))]


def _gated(api: BlockingClient) -> list[Manifest]:
    """Return pods that wait for our gate."""
    pods = api.list(PODS.raw, field_selector="status.phase=Pending")
    return [
        pod for pod in pods
        if any(each["name"] == names.GANG_GATE for each in pod["spec"].get("schedulingGates") or ())
    ]  # fmt: skip


def _foreign(api: BlockingClient, namespace: str) -> Iterator[str]:
    """Yield what a deletion of the namespace would take from others, one of each kind."""
    key, value = PART_OF
    for pattern in _FOREIGN_KINDS:
        path = pattern.format(f"namespaces/{namespace}")
        query = {"labelSelector": f"{key}!={value}", "limit": str(FOREIGN_PAGE_MAX)}
        body: Manifest = msgspec.json.decode(api.request("GET", path, query=query).body)
        plural = path.rpartition("/")[2]
        names_ = (f"{plural}/{each['metadata']['name']}" for each in body.get("items") or ())
        yield from [name for name in names_ if name not in _EVERYWHERE][:1]


def _held_pools(api: BlockingClient) -> list[Manifest]:
    """Return node pools that carry our finalizer."""
    try:
        pools = list(api.list(NODE_POOLS.raw))
    except NotFound:
        return []  # the kind is not there
    return [each for each in pools if _has(each, names.POOL_FINALIZER)]


def _has(thing: Manifest, finalizer: str) -> bool:
    return finalizer in (thing["metadata"].get("finalizers") or ())


def _machines(pool: Manifest) -> str:
    """Return how many machines of a pool stay."""
    count = (pool.get("status") or {}).get("nodes", 0)
    return f"{plural(count, 'node')} of it {'stays' if count == 1 else 'stay'}, unmanaged"


def _key(thing: Manifest) -> str:
    name, namespace = thing["metadata"]["name"], thing["metadata"].get("namespace", "")
    return f"{namespace}/{name}" if namespace else name


def steps(inventory: InstalledInventory, options: UninstallOptions) -> Iterator[str]:
    """Yield what an uninstallation would do, a line each."""
    for job in inventory.jobs:
        if not options.is_keeping_kinds:
            yield f"Job {_key(job)}: would be deleted, with its pods"
        elif _has(job, names.JOB_FINALIZER):
            yield f"Job {_key(job)}: would lose its finalizer and stay"
    for job in inventory.group_jobs:
        yield f"Job {_key(job)}: would be deleted; its pods belong to others, and stay"
    for pool in inventory.pools:
        yield f"NodePool {_key(pool)}: would lose its finalizer; {_machines(pool)}"
    for pod in inventory.gated:
        yield f"Pod {_key(pod)}: would lose its gate; kube-scheduler binds it"
    for each in _in_order(inventory.objects):
        note = _kept(each, inventory, options)
        yield f"{label_of(each)}: {note or 'would be deleted'}"


def _in_order(objects: tuple[Manifest, ...]) -> list[Manifest]:
    """Return objects as they are deleted: webhooks, controllers, and last what contains others."""

    def rank(manifest: Manifest) -> int:
        kind = manifest["kind"]
        if kind in _WEBHOOKS:
            return -1
        if kind == "Deployment":
            return 0
        return 2 + _LAST.index(kind) if kind in _LAST else 1

    backwards = list(objects[::-1])
    backwards.sort(key=rank)
    return backwards


def _kept(manifest: Manifest, inventory: InstalledInventory, options: UninstallOptions) -> str:
    """Return why an object stays; "" when it does not."""
    match manifest["kind"]:
        case "CustomResourceDefinition" if options.is_keeping_kinds:
            return "kept"
        case "PersistentVolumeClaim":
            return "kept: it holds the history of jobs"
        case "Namespace":
            name = manifest["metadata"]["name"]
            if name in NAMESPACES_KEPT:
                return "kept"
            if any(each["metadata"]["name"] == HISTORY for each in inventory.objects):
                return "kept: it holds the history of jobs"
            if inventory.foreign:
                return f"kept: {', '.join(inventory.foreign)} and perhaps more are in it"
            inside = [j for j in inventory.jobs if j["metadata"]["namespace"] == name]
            return "kept: jobs are in it" if options.is_keeping_kinds and inside else ""
        case _:
            return ""


def uninstall(api: BlockingClient, options: UninstallOptions, *, say: Say) -> None:
    """Remove what is there; `say` gets a line for each object. CliError when something stays."""
    for kind in crd.manifests():
        if count := migrate(api, kind):  # as long as the webhook converts
            say(f"{label_of(kind)}: {plural(count, 'object')} stored in {names.VERSION}")
    inventory = take_inventory(api, options)
    objects = _in_order(inventory.objects)

    def remove_all(chosen: list[Manifest]) -> None:
        for each in chosen:
            say(f"{label_of(each)}: {remove(api, each).value}")

    controllers = [each for each in objects if each["kind"] == "Deployment"]
    webhooks = [each for each in objects if each["kind"] in _WEBHOOKS]
    for each in objects:
        if stop_conversion(api, each):  # the server would ask what is gone, and list nothing
            say(f"{label_of(each)}: serves {names.VERSION} alone")
    remove_all(webhooks)
    if not options.is_keeping_kinds and inventory.jobs:
        _delete_jobs(api, say, of_groups=False)
        # Running controllers get time to end the pods in order.
        seconds = options.jobs_seconds_max if any(map(_is_available, controllers)) else 0.0
        wait_until(lambda: not _jobs(api, of_groups=False), seconds)
    remove_all(controllers)
    _await_controllers(api, options.namespace)
    _remove_own_objects(api, options.namespace, say)
    _free(api, say)
    _delete_jobs(api, say, of_groups=True)
    _insist(partial(_gated, api), partial(_ungate, api, say=say))
    left = [each for each in objects if each not in controllers and each not in webhooks]
    for each in left:
        if note := _kept(each, inventory, options):
            say(f"{label_of(each)}: {note}")
    left = [each for each in left if not _kept(each, inventory, options)]
    kinds = [each for each in left if each["kind"] == "CustomResourceDefinition"]
    namespaces = [each for each in left if each["kind"] == "Namespace"]
    remove_all([each for each in left if each not in kinds and each not in namespaces])
    remove_all(kinds)
    _await_kinds_gone(api, kinds, say)
    remove_all(namespaces)
    for each in namespaces:
        if not wait_until(lambda gone=each: get(api, gone) is None, NAMESPACE_SECONDS_MAX):
            say(f"{label_of(each)}: still terminating; its status says what it waits for")


def _is_available(deployment: Manifest) -> bool:
    return bool((deployment.get("status") or {}).get("availableReplicas"))


def _delete_jobs(api: BlockingClient, say: Say, *, of_groups: bool) -> None:
    for job in _jobs(api, of_groups=of_groups):
        if delete(api, _path(JOBS, job), job):
            say(f"Job {_key(job)}: {Done.DELETED.value}")


def _await_controllers(api: BlockingClient, namespace: str) -> None:
    """Return once no controller runs that could add a finalizer again."""
    key, value = PART_OF
    selector = f"{key}={value},app.kubernetes.io/component=controller"

    def running() -> list[Manifest]:
        pods = api.list(PODS.raw, namespace=namespace, label_selector=selector)
        ended = ("Succeeded", "Failed")
        return [p for p in pods if (p.get("status") or {}).get("phase") not in ended]

    if not wait_until(lambda: not running(), GONE_SECONDS_MAX):
        left = running()
        raise fail(
            Code.WAIT_TIMED_OUT, f"{len(left)} pods of the controllers do not end",
            detail=tuple(_key(pod) for pod in left[:10]),
            help=("see to them, then repeat: fairlead uninstall goes on where it stopped",),
        )  # fmt: skip


def _insist(look: Callable[[], list[Manifest]], change: Callable[[Manifest], None]) -> None:
    """Change all that `look` returns; what others write meanwhile is read and changed again."""
    conflict: tuple[Manifest, Conflict] | None = None
    for _ in range(WRITE_TRIES_MAX):
        conflict = None
        for each in look():
            try:
                change(each)
            except NotFound:
                continue
            except Conflict as error:
                conflict = (each, error)
        if conflict is None:
            return
        time.sleep(RETRY_SECONDS)
    if conflict is not None:
        thing, error = conflict
        raise fail(
            Code.CONFLICT, f"{_key(thing)} is written by another client all the time",
            detail=(error.message,),
            help=("repeat: fairlead uninstall goes on where it stopped",),
        ) from error  # fmt: skip


def _free(api: BlockingClient, say: Say) -> None:
    """Remove our finalizers from every job and node pool."""
    _insist(partial(_bound_jobs, api), partial(_free_job, api, say=say))
    _insist(partial(_held_pools, api), partial(_free_pool, api, say=say))


def _bound_jobs(api: BlockingClient) -> list[Manifest]:
    """Return jobs that carry our finalizer."""
    return [job for job in _jobs(api) if _has(job, names.JOB_FINALIZER)]


def _free_job(api: BlockingClient, job: Manifest, *, say: Say) -> None:
    _remove_finalizer(api, JOBS, job, names.JOB_FINALIZER)
    say(f"Job {_key(job)}: finalizer removed")


def _free_pool(api: BlockingClient, pool: Manifest, *, say: Say) -> None:
    _remove_finalizer(api, NODE_POOLS, pool, names.POOL_FINALIZER)
    say(f"NodePool {_key(pool)}: finalizer removed; {_machines(pool)}")


def _remove_finalizer(
    api: BlockingClient, resource: Resource[Any], found: Manifest, finalizer: str
) -> None:
    """Remove one of ours; other finalizers stay."""
    kept = [each for each in found["metadata"]["finalizers"] if each != finalizer]
    _patch(api, resource, found, {"metadata": {"finalizers": kept or None}})


def _ungate(api: BlockingClient, pod: Manifest, *, say: Say) -> None:
    gates = [each for each in pod["spec"]["schedulingGates"] if each["name"] != names.GANG_GATE]
    _patch(api, PODS, pod, {"spec": {"schedulingGates": gates}})
    say(f"Pod {_key(pod)}: gate removed")


def _patch(api: BlockingClient, resource: Resource[Any], found: Manifest, patch: Manifest) -> None:
    """Patch the object as it was read; Conflict when it has changed since."""
    as_read = {key: found["metadata"][key] for key in ("uid", "resourceVersion")}
    body = {**patch, "metadata": {**patch.get("metadata", {}), **as_read}}
    api.request("PATCH", _path(resource, found), body=body, content_type=MERGE)


def _path(resource: Resource[Any], found: Manifest) -> str:
    return resource.path(found["metadata"].get("namespace", ""), found["metadata"]["name"])


def _await_kinds_gone(api: BlockingClient, kinds: list[Manifest], say: Say) -> None:
    """Return once all definitions are gone; what is created meanwhile is freed.

    The API server may forget a definition for minutes. Its finalizer controller tries again at once
    after a failure ("storage is (re)initializing"). If its cache lags then, the write conflicts,
    and the change that it had missed, of the condition Terminating alone, does not wake it
    (apiextensions-apiserver, crd_finalizer.go). Any other change of the definition does.
    """
    left, nudges = list(kinds), 0
    said_at = nudged_at = time.monotonic()

    def are_gone() -> bool:
        nonlocal said_at, nudged_at, nudges
        while left and get(api, left[0]) is None:  # one request in a look, not one for each
            del left[0]
        if not left:
            return True
        with suppress(ApiError):  # its API goes first; the definition is what counts
            _free(api, say)
        now = time.monotonic()
        if now >= nudged_at + NUDGE_SECONDS:
            nudged_at, nudges = now, nudges + 1
            _nudge(api, left, nudges)
        if now >= said_at + SAY_SECONDS:
            said_at = now
            say(f"waits for the API server: {label_of(left[0])}")
        return False

    if not wait_until(are_gone, KIND_SECONDS_MAX):
        raise fail(
            Code.WAIT_TIMED_OUT, f"{label_of(left[0])} does not go",
            detail=("another tool's finalizer may be on an object of this kind",),
            help=("fairlead ps -A, then repeat: fairlead uninstall goes on where it stopped",),
        )  # fmt: skip


def _nudge(api: BlockingClient, kinds: list[Manifest], number: int) -> None:
    """Change definitions that are being deleted, so that the API server looks at them again."""
    body = {"metadata": {"annotations": {names.NUDGE: str(number)}}}
    for each in kinds:
        with suppress(ApiError):
            api.request("PATCH", path_of(each), body=body, content_type=MERGE)


def _remove_own_objects(api: BlockingClient, namespace: str, say: Say) -> None:
    """Delete what the controllers have made for themselves."""
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{NAME}"
    secret = SECRETS.path(namespace, WEBHOOK)
    counter = CONFIG_MAPS.path(namespace, NUMBERS)
    for label, path in ((f"Lease {namespace}/{NAME}", lease),
                        (f"Secret {namespace}/{WEBHOOK}", secret),
                        (f"ConfigMap {namespace}/{NUMBERS}", counter)):  # fmt: skip
        with suppress(NotFound):
            found = msgspec.json.decode(api.request("GET", path).body)
            # a Secret without our label is cert-manager's
            if (path == lease or is_ours(found)) and delete(api, path, found):
                say(f"{label}: {Done.DELETED.value}")
