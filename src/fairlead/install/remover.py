"""Takes Fairlead off a cluster in the order that leaves nothing behind which waits for us.

1. API servers are told to ask us no more: a webhook that has gone would have them refuse pods.
2. While the controllers still run, jobs that are to go are deleted: the controllers end their pods
   and take the finalizer off, as always. What that takes too long for is done by us below.
3. The controllers go. From here on nobody puts a finalizer on.
4. Our finalizer is taken off every job that has it, and our gate off every pod that waits for a
   plan: kube-scheduler binds these then. Jobs that stood for groups of such pods go: the pods are
   others', and the controllers, while they ran, would have made them anew.
5. The definitions (unless kept), then all else, the namespace last.

Every step looks at what is there; so it may be repeated after it died anywhere.
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
from fairlead.api.resources import JOBS, PODS, SECRETS
from fairlead.api.status import ApiError, Conflict, NotFound
from fairlead.input.errors import Code, fail
from fairlead.install.installer import Done, get, is_ours, remove
from fairlead.install.manifests import (
    HISTORY,
    NAME,
    Install,
    Manifest,
    blueprint,
    label_of,
)
from fairlead.install.pieces import PART_OF
from fairlead.kube.blocking import BlockingClient
from fairlead.webhook.configuration import SERVICE as WEBHOOK

LOOK_SECONDS = 0.1
#: Objects that somebody else writes at the same time are tried so often.
WRITE_TRIES_MAX = 20
GONE_SECONDS_MAX = 60.0
#: Times that finalizers are taken off while definitions go and jobs may still be made.
ROUNDS_MAX = 100
MERGE = "application/merge-patch+json"
HELM_RELEASE = "meta.helm.sh/release-name"
#: Never deleted, whatever label they carry.
NAMESPACES_KEPT = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})
#: What sends requests to the controllers; goes before them.
_ASKING = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
#: In this order, after all other objects of ours.
_LAST = ("CustomResourceDefinition", "PersistentVolumeClaim", "Namespace")

GUESTS_PAGE_MAX = 10
_GUESTS = (
    ("/api/v1", "pods"), ("/api/v1", "services"), ("/api/v1", "configmaps"),
    ("/api/v1", "secrets"), ("/api/v1", "persistentvolumeclaims"), ("/api/v1", "serviceaccounts"),
    ("/apis/apps/v1", "deployments"), ("/apis/apps/v1", "statefulsets"),
    ("/apis/apps/v1", "daemonsets"), ("/apis/batch/v1", "jobs"), ("/apis/batch/v1", "cronjobs"),
)  # fmt: skip
#: What Kubernetes puts into every namespace.
_EVERYWHERE = frozenset({("configmaps", "kube-root-ca.crt"), ("serviceaccounts", "default")})

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to go besides the controllers."""

    namespace: str
    is_keeping_kinds: bool = False
    jobs_seconds_max: float = GONE_SECONDS_MAX


@dataclass(frozen=True, slots=True)
class Standing:
    """What is on the cluster now."""

    objects: tuple[Manifest, ...]  # ours, in the order in which they are made
    jobs: tuple[dict[str, Any], ...]  # that somebody submitted
    stand_ins: tuple[dict[str, Any], ...]  # that stand for pods of others
    gated: tuple[dict[str, Any], ...]
    guests: tuple[str, ...] = ()  # what others have in the controllers' namespace
    helm_release: str = ""

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Jobs that have not ended, as namespace/name."""
        ended = ("Succeeded", "Failed", "Cancelled")
        states = ((job, (job.get("status") or {}).get("state")) for job in self.jobs)
        return tuple(_key(job) for job, state in states if state not in ended)


def survey(api: BlockingClient, wish: Wish) -> Standing:
    """Look at everything that an uninstallation concerns; changes nothing."""
    found = [each for m in _made(wish.namespace) if (each := _held(api, m)) is not None]
    deployment = next((each for each in found if each["kind"] == "Deployment"), None)
    notes = ((deployment or {}).get("metadata") or {}).get("annotations") or {}
    jobs = _jobs(api)
    return Standing(
        objects=tuple(found),
        jobs=tuple(job for job in jobs if not _is_stand_in(job)),
        stand_ins=tuple(filter(_is_stand_in, jobs)),
        gated=tuple(_gated(api)),
        guests=tuple(_guests(api, wish.namespace)),
        helm_release=notes.get(HELM_RELEASE, ""),
    )


def _made(namespace: str) -> list[Manifest]:
    """Return kind, namespace and name of all that an installation may have made."""
    from fairlead.input.sections import plain
    from fairlead.install.blueprint import Context, resolve
    from fairlead.install.values import Values

    context = Context(plain(Install(namespace, Values()).values), namespace)
    return [resolve(part.body, context) for part in blueprint()]


def _held(api: BlockingClient, manifest: Manifest) -> Manifest | None:
    found = get(api, manifest)
    if found is None or not is_ours(found):
        return None
    return {**found, "kind": manifest["kind"]}


def _jobs(api: BlockingClient) -> list[dict[str, Any]]:
    try:
        return list(api.list(JOBS.raw))
    except NotFound:
        return []  # the kind is not there


def _is_stand_in(job: dict[str, Any]) -> bool:
    return bool(job["spec"].get("adopts"))


def _gated(api: BlockingClient) -> list[dict[str, Any]]:
    """Return pods that wait for our gate, whoever put it on."""
    pods = api.list(PODS.raw, field_selector="status.phase=Pending")
    return [pod for pod in pods if _has_gate(pod)]


def _guests(api: BlockingClient, namespace: str) -> Iterator[str]:
    """Yield what a deletion of the namespace would take away from others, one of each kind."""
    key, value = PART_OF
    for prefix, plural in _GUESTS:
        path = f"{prefix}/namespaces/{namespace}/{plural}"
        query = {"labelSelector": f"{key}!={value}", "limit": str(GUESTS_PAGE_MAX)}
        body: dict[str, Any] = msgspec.json.decode(api.request("GET", path, query=query).body)
        made = [each["metadata"]["name"] for each in body.get("items") or ()]
        others = [name for name in made if (plural, name) not in _EVERYWHERE]
        if others:
            yield f"{plural}/{others[0]}"


def _has_gate(pod: dict[str, Any]) -> bool:
    return any(gate["name"] == names.GANG_GATE for gate in pod["spec"].get("schedulingGates") or ())


def _key(thing: dict[str, Any]) -> str:
    return f"{thing['metadata']['namespace']}/{thing['metadata']['name']}"


def steps(standing: Standing, wish: Wish) -> Iterator[str]:
    """Yield what an uninstallation would do, a line each."""
    for job in standing.jobs:
        if not wish.is_keeping_kinds:
            yield f"Job {_key(job)}: would be deleted, with its pods"
        elif names.JOB_FINALIZER in (job["metadata"].get("finalizers") or ()):
            yield f"Job {_key(job)}: would lose its finalizer and stay"
    for job in standing.stand_ins:
        yield f"Job {_key(job)}: would be deleted; its pods are others', and stay"
    for pod in standing.gated:
        yield f"Pod {_key(pod)}: would lose its gate; kube-scheduler binds it"
    for each in _in_order(standing.objects):
        note = _kept(each, standing, wish)
        yield f"{label_of(each)}: {note or 'would be deleted'}"


def _in_order(objects: tuple[Manifest, ...]) -> list[Manifest]:
    """Return objects as they are deleted: who asks the controllers, they, and what holds others."""

    def rank(manifest: Manifest) -> int:
        kind = manifest["kind"]
        if kind in _ASKING:
            return -1
        if kind == "Deployment":
            return 0
        return 2 + _LAST.index(kind) if kind in _LAST else 1

    backwards = list(objects[::-1])
    backwards.sort(key=rank)
    return backwards


def _kept(manifest: Manifest, standing: Standing, wish: Wish) -> str:
    """Return why an object stays; "" when it does not."""
    match manifest["kind"]:
        case "CustomResourceDefinition" if wish.is_keeping_kinds:
            return "kept"
        case "PersistentVolumeClaim":
            return "kept: it holds the history of jobs"
        case "Namespace":
            name = manifest["metadata"]["name"]
            if name in NAMESPACES_KEPT:
                return "kept"
            if any(each["metadata"]["name"] == HISTORY for each in standing.objects):
                return "kept: it holds the history of jobs"
            if standing.guests:
                return f"kept: {', '.join(standing.guests)} and perhaps more are in it"
            inside = [j for j in standing.jobs if j["metadata"]["namespace"] == name]
            return "kept: jobs are in it" if wish.is_keeping_kinds and inside else ""
        case _:
            return ""


def uninstall(api: BlockingClient, wish: Wish, *, say: Say) -> None:
    """Remove what is there; `say` gets a line for each object. CliError when something stays."""
    standing = survey(api, wish)
    objects = _in_order(standing.objects)
    for each in objects:
        if each["kind"] in _ASKING:
            say(f"{label_of(each)}: {remove(api, each).value}")
    controllers = [each for each in objects if each["kind"] == "Deployment"]
    if not wish.is_keeping_kinds and standing.jobs:
        _end_jobs(api, wish, say, is_run=any(map(_is_available, controllers)))
    for each in controllers:
        say(f"{label_of(each)}: {remove(api, each).value}")
    _await_controllers(api, wish.namespace)
    _remove_left(api, wish.namespace, say)
    _free_jobs(api, say)
    _remove_stand_ins(api, say)
    _insist(partial(_gated, api), partial(_release, api, say=say))
    for each in objects:
        if each["kind"] == "Deployment" or each["kind"] in _ASKING:
            continue
        if note := _kept(each, standing, wish):
            say(f"{label_of(each)}: {note}")
            continue
        say(f"{label_of(each)}: {remove(api, each).value}")
        if each["kind"] == "CustomResourceDefinition":
            _await_kind_gone(api, each, say)


def _is_available(deployment: Manifest) -> bool:
    return bool((deployment.get("status") or {}).get("availableReplicas"))


def _end_jobs(api: BlockingClient, wish: Wish, say: Say, *, is_run: bool) -> None:
    """Delete submitted jobs; where controllers run, give them time to end the pods in order."""
    for job in _submitted(api):
        metadata = job["metadata"]
        options = {
            "propagationPolicy": "Background", "preconditions": {"uid": metadata["uid"]},
        }  # fmt: skip
        path = JOBS.path(metadata["namespace"], metadata["name"])
        try:
            api.request("DELETE", path, body=options)
        except (NotFound, Conflict):
            continue
        say(f"Job {_key(job)}: {Done.DELETED.value}")
    deadline = time.monotonic() + (wish.jobs_seconds_max if is_run else 0.0)
    while _submitted(api) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)


def _submitted(api: BlockingClient) -> list[dict[str, Any]]:
    return [job for job in _jobs(api) if not _is_stand_in(job)]


def _remove_stand_ins(api: BlockingClient, say: Say) -> None:
    """Delete jobs that stood for pods of others; these have owners of their own."""
    for job in filter(_is_stand_in, _jobs(api)):
        metadata = job["metadata"]
        with suppress(NotFound):
            api.delete(JOBS, metadata["name"], namespace=metadata["namespace"])
            say(f"Job {_key(job)}: {Done.DELETED.value}")


def _await_controllers(api: BlockingClient, namespace: str) -> None:
    """Return once no controller runs that could put a finalizer on again."""
    key, value = PART_OF
    selector = f"{key}={value},app.kubernetes.io/component=controller"
    deadline = time.monotonic() + GONE_SECONDS_MAX
    while True:
        pods = api.list(PODS.raw, namespace=namespace, label_selector=selector)
        ended = ("Succeeded", "Failed")
        running = [p for p in pods if (p.get("status") or {}).get("phase") not in ended]
        if not running:
            return
        if time.monotonic() > deadline:
            raise fail(
                Code.WAIT_TIMED_OUT, f"{len(running)} pods of the controllers do not end",
                detail=tuple(_key(pod) for pod in running[:10]),
                help=("see to them, then repeat: fairlead uninstall goes on where it stopped",),
            )  # fmt: skip
        time.sleep(LOOK_SECONDS)


def _insist(
    look: Callable[[], list[dict[str, Any]]], change: Callable[[dict[str, Any]], None]
) -> None:
    """Change all that `look` returns; what somebody else writes meanwhile is looked at again."""
    for tries_left in reversed(range(WRITE_TRIES_MAX)):
        has_conflict = False
        for each in look():
            try:
                change(each)
            except NotFound:
                continue
            except Conflict as error:
                has_conflict = True
                if not tries_left:
                    raise fail(
                        Code.CONFLICT, f"{_key(each)} is written by somebody else all the time",
                        detail=(error.message,),
                        help=("repeat: fairlead uninstall goes on where it stopped",),
                    ) from error  # fmt: skip
        if not has_conflict:
            return
        time.sleep(LOOK_SECONDS)


def _free_jobs(api: BlockingClient, say: Say) -> None:
    """Take our finalizer off every job."""
    _insist(partial(_bound_jobs, api), partial(_free, api, say=say))


def _bound_jobs(api: BlockingClient) -> list[dict[str, Any]]:
    """Return jobs that carry our finalizer."""
    jobs = ((job, job["metadata"].get("finalizers") or ()) for job in _jobs(api))
    return [job for job, finalizers in jobs if names.JOB_FINALIZER in finalizers]


def _free(api: BlockingClient, job: dict[str, Any], *, say: Say) -> None:
    """Take our finalizer off a job; other finalizers stay."""
    metadata = job["metadata"]
    kept = [each for each in metadata["finalizers"] if each != names.JOB_FINALIZER]
    patch = {
        "metadata": {
            "finalizers": kept or None,
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        }
    }
    path = JOBS.path(metadata["namespace"], metadata["name"])
    api.request("PATCH", path, body=patch, content_type=MERGE)
    say(f"Job {_key(job)}: finalizer removed")


def _release(api: BlockingClient, pod: dict[str, Any], *, say: Say) -> None:
    metadata = pod["metadata"]
    gates = [each for each in pod["spec"]["schedulingGates"] if each["name"] != names.GANG_GATE]
    patch = {
        "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        "spec": {"schedulingGates": gates},
    }
    path = PODS.path(metadata["namespace"], metadata["name"])
    api.request("PATCH", path, body=patch, content_type=MERGE)
    say(f"Pod {_key(pod)}: gate removed")


def _await_kind_gone(api: BlockingClient, manifest: Manifest, say: Say) -> None:
    """Return once a definition is gone; jobs that still come up meanwhile are freed."""
    deadline = time.monotonic() + GONE_SECONDS_MAX
    for _ in range(ROUNDS_MAX):
        found = get(api, manifest)
        if found is None:
            return
        with suppress(ApiError):  # its API goes first; whether the definition goes is what counts
            _free_jobs(api, say)
        if time.monotonic() > deadline:
            break
        time.sleep(LOOK_SECONDS * 5)
    raise fail(
        Code.WAIT_TIMED_OUT, f"{label_of(manifest)} does not go",
        detail=("somebody else's finalizer may be on a job",),
        help=("fairlead ps -A, then repeat: fairlead uninstall goes on where it stopped",),
    )  # fmt: skip


def _remove_left(api: BlockingClient, namespace: str, say: Say) -> None:
    """Delete what the controllers have made for themselves: lease and certificate."""
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{NAME}"
    secret = SECRETS.path(namespace, WEBHOOK)
    for label, path in ((f"Lease {namespace}/{NAME}", lease),
                        (f"Secret {namespace}/{WEBHOOK}", secret)):  # fmt: skip
        try:
            if path == secret and not is_ours(msgspec.json.decode(api.request("GET", path).body)):
                continue  # cert-manager's
            api.request("DELETE", path)
        except NotFound:
            continue
        say(f"{label}: {Done.DELETED.value}")
