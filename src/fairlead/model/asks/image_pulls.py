"""Pods that pull an image onto a node and run nothing.

Such a pod has one container of the image, with a command that no image has. The kubelet pulls the
image with the credentials of the pod, and the start fails. So every image can be pulled this way,
also one without a shell, by every runtime, and nothing of the image runs.

A pod is one by what it can do, not by its label alone: it asks for nothing and has no other
command. So what looks like one holds no room, and nothing is lost by its deletion.
"""

from __future__ import annotations

from fairlead.api import names
from fairlead.api.kubernetes.core import Pod
from fairlead.api.values.quantity import QuantityError, resources_to_base

#: No image has this file. One that has runs it as a user without rights, under the pod's limits.
PULL_COMMAND = "/fairlead.dev/pulls-and-runs-nothing"
#: Names of these pods begin with it.
PULL_PREFIX = "image-pull-"


def is_pull(pod: Pod) -> bool:
    """True for a pod that pulls an image and asks for nothing."""
    spec = pod.spec
    if names.IMAGE_PULL not in pod.metadata.labels or len(spec.containers) != 1:
        return False
    if spec.init_containers or spec.overhead or spec.volumes or spec.resources is not None:
        return False
    container = spec.containers[0]
    if container.command != (PULL_COMMAND,) or container.ports or not spec.node_name:
        return False
    asked = container.resources
    if asked.claims or not set(asked.limits) <= set(asked.requests):
        return False
    try:
        return not resources_to_base(asked.requests)
    except QuantityError:
        return False
