"""The pod of a pull: bound from its birth, without rights, asking for nothing (pure).

For a job it is in the job's namespace, and has the secrets and the service account of the role
whose image it pulls. So everything that Kubernetes checks before the job gets the image is checked
for the pull: what the namespace may read, admission of images, and the kubelet's record of the
credentials by which an image was pulled (KubeletEnsureSecretPulledImages).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fairlead.api import names
from fairlead.api.cluster.image_set import ImageSet
from fairlead.decide.images.plan import StartPull
from fairlead.decide.images.policy import ImagesPolicy
from fairlead.model.asks.image_pulls import PULL_COMMAND, PULL_PREFIX

_USER = 65532
#: For a file of that name in an image, which must not compute for free.
_LIMITS = {"cpu": "10m", "memory": "64Mi"}
_NOTHING = {"cpu": "0", "memory": "0"}
#: What the pod of a job's pull has from the template of a role.
_TAKEN = ("imagePullSecrets", "serviceAccountName", "tolerations")


@dataclass(frozen=True, slots=True)
class Taken:
    """What the pod of a pull takes from what it is for: fields of its spec, and labels."""

    spec: Mapping[str, Any]
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


def of_job(job: Mapping[str, Any], role_name: str) -> Taken:
    """Return what is taken from a job, as it is stored, for a role of it."""
    spec = job.get("spec", {})
    role = next((each for each in spec.get("roles", ()) if each.get("name") == role_name), {})
    pod = role.get("template", {}).get("spec", {})
    labels = {names.TEAM: spec["team"]} if spec.get("team") else {}
    return Taken({key: pod[key] for key in _TAKEN if pod.get(key)}, labels)


def of_set(image_set: ImageSet) -> Taken:
    """Return what is taken from an image set. Nodes that join are among those that it is for."""
    secrets = [{"name": name} for name in image_set.spec.image_pull_secrets]
    found = {"imagePullSecrets": secrets} if secrets else {}
    return Taken({**found, "tolerations": [{"operator": "Exists"}]})


def name_of(action: StartPull) -> str:
    """Return the name of the pod: the same for the same image, node and owner."""
    text = f"{action.owner.uid}/{action.node_uid}/{action.image}"
    return f"{PULL_PREFIX}{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def pull_pod(action: StartPull, taken: Taken, policy: ImagesPolicy) -> dict[str, Any]:
    """Return the pod."""
    owner = {
        "apiVersion": names.API_VERSION, "kind": action.owner.kind, "name": action.owner.name,
        "uid": action.owner.uid,
    }  # fmt: skip
    container = {
        "name": "pull", "image": action.image, "imagePullPolicy": "IfNotPresent",
        "command": [PULL_COMMAND], "resources": {"requests": _NOTHING, "limits": _LIMITS},
        "securityContext": {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }  # fmt: skip
    spec: dict[str, Any] = {
        "nodeName": action.node, "containers": [container], **taken.spec,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": policy.pull_seconds_max, "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False, "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": _USER, "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }  # fmt: skip
    if policy.priority_class:
        spec["priorityClassName"] = policy.priority_class
    return {
        "metadata": {
            "name": name_of(action), "namespace": action.owner.namespace or policy.namespace,
            "labels": {
                **taken.labels, names.IMAGE_PULL: action.owner.uid,
                names.GANG_SCHEDULING: "disabled",
            },
            "ownerReferences": [owner],
        },
        "spec": spec,
    }  # fmt: skip
