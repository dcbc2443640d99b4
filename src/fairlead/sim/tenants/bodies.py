"""Objects that a tenant would make in good faith; what is wrong with them is put on top."""

from __future__ import annotations

from typing import Any

from fairlead.api import names
from fairlead.api.names import SIMULATE_EXIT_CODE, SIMULATE_SECONDS
from fairlead.api.values.quantity import GPU
from fairlead.sim.tenants.calls import Call, Verb
from fairlead.sim.tenants.devices import with_claim

Body = dict[str, Any]


def job(
    name: str,
    count: int = 1,
    gpus: int = 1,
    seconds: float | None = None,
    *,
    exit_code: int = 0,
    **spec: Any,
) -> Body:
    """Return a job of one role; without `seconds` its members run until they are stopped."""
    template: Body = {"spec": {"containers": [_container(gpus)]}}
    if seconds is not None:
        said = {SIMULATE_SECONDS: str(seconds), SIMULATE_EXIT_CODE: str(exit_code)}
        template["metadata"] = {"annotations": said}
    role = {"name": "worker", "count": count, "template": template}
    return {"metadata": {"name": name}, "spec": {"roles": [role], **spec}}


def asking(name: str, template: str, **given: Any) -> Body:
    """Return a job without GPUs, each of whose members asks for devices by a template."""
    body = job(name, gpus=0, **given)
    with_claim(body["spec"]["roles"][0]["template"]["spec"], f"t/{template}")
    return body


def array(name: str, indices: str, *, template: Body, **spec: Any) -> Body:
    """Return an array of jobs that are like another one, its `template`."""
    spec = {"indices": indices, "template": template["spec"], **spec}
    return {"metadata": {"name": name}, "spec": spec}


def pod(
    name: str,
    gpus: int = 0,
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    seconds: float | None = None,
    exit_code: int = 0,
    **spec: Any,
) -> Body:
    """Return a pod that nothing controls."""
    said = dict(annotations or {})
    if seconds is not None:
        said |= {SIMULATE_SECONDS: str(seconds), SIMULATE_EXIT_CODE: str(exit_code)}
    return {
        "metadata": {"name": name, "labels": labels or {}, "annotations": said},
        "spec": {"containers": [_container(gpus)], "restartPolicy": "Never", **spec},
    }


def gated(name: str, gpus: int = 0, *, gang: str = "", size: str = "", **more: Any) -> Body:
    """Return a pod that waits for its gang's place; `gang` and `size` are what it says of it."""
    labels = {names.GANG_SCHEDULING: "enabled"} | ({names.GANG_NAME: gang} if gang else {})
    notes = {names.GROUP_SIZE: size} if size else {}
    return pod(
        name, gpus, labels=labels | more.pop("labels", {}),
        annotations=notes | more.pop("annotations", {}), **more,
    )  # fmt: skip


def owned(body: Body, api_version: str, kind: str, *, name: str, uid: str) -> Body:
    """Return the object with a controller."""
    owner = {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": True}
    return {**body, "metadata": {**body["metadata"], "ownerReferences": [owner]}}


def member_labels(job_name: str, uid: str, index: int, attempt: int = 1) -> dict[str, str]:
    """Return the labels of a member of a job."""
    return {
        names.JOB_NAME: job_name, names.JOB_UID: uid, names.ROLE: "worker",
        names.INDEX: str(index), names.RANK: str(index), names.ATTEMPT: str(attempt),
    }  # fmt: skip


def create(kind: str, body: Body, wait: float = 0.0) -> Call:
    """Return the call that creates an object."""
    return Call(Verb.CREATE, kind, body["metadata"]["name"], body, wait)


def patch(kind: str, name: str, body: Any, wait: float = 0.0) -> Call:
    """Return the call that patches an object; a list is a JSON patch."""
    return Call(Verb.PATCH, kind, name, body, wait)


def meta(field: str, key: str, value: str | None) -> Body:
    """Return the patch of a label, or of an annotation."""
    return {"metadata": {field: {key: value}}}


def _container(gpus: int) -> Body:
    amounts = {"requests": {"cpu": "100m"}, "limits": {GPU: str(gpus)} if gpus else {}}
    return {"name": "main", "image": "registry.example/x:1", "command": ["train"],
            "resources": amounts}  # fmt: skip
