"""One copy of what many pods say alike: the members of a gang differ in a few words each.

A decoded pod is mostly small texts: environment, tolerations, volumes, conditions. In a gang of a
thousand nearly all of them are equal, but each decoding makes new ones. After decoding, a part
that is equal to one seen before is replaced by that one, which more than halves what a pod takes.
Parts are immutable and equal, so no reader can tell. The table forgets everything when it is full.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.api.core import Container, Pod, PodSpec

PARTS_MAX = 65_536


class PodSharing:
    """Shares parts among the pods that it is shown."""

    def __init__(self, parts_max: int = PARTS_MAX) -> None:
        self._parts_max = parts_max
        self._parts: dict[Any, Any] = {}

    def share(self, obj: object, *, has_shared_spec: bool = False) -> None:
        """Replace parts of a freshly decoded pod by equal ones; other kinds stay as they are.

        With `has_shared_spec` the spec is made of shared parts already.
        """
        if type(obj) is not Pod:
            return
        if len(self._parts) >= self._parts_max:
            self._parts.clear()
        put = msgspec.structs.force_setattr
        one = self._parts.setdefault
        conditions = obj.status.conditions
        if conditions:
            put(obj.status, "conditions", one(conditions, conditions))
        if has_shared_spec:
            return
        spec: PodSpec = obj.spec
        put(spec, "tolerations", one(spec.tolerations, spec.tolerations))
        put(spec, "volumes", one(spec.volumes, spec.volumes))
        for container in spec.containers:
            self._share_container(container)

    def _share_container(self, container: Container) -> None:
        put = msgspec.structs.force_setattr
        one = self._parts.setdefault
        put(container, "env", tuple([one(variable, variable) for variable in container.env]))
        mounts, command = container.volume_mounts, container.command
        put(container, "volume_mounts", one(mounts, mounts))
        put(container, "command", one(command, command))
