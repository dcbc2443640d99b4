"""The bodies of elements' jobs: the template as it is stored, with the element's variables.

The read model of a template drops what decisions do not need, so the array is read once more, as
plain JSON. Of its template only the priority can change; until then one read serves all elements.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec

from fairlead.api import names
from fairlead.api.jobs.after import SAME_ELEMENT
from fairlead.api.jobs.job_array import JobArray, element_name
from fairlead.api.meta import OwnerReference, to_wire
from fairlead.api.resources import JOB_ARRAYS
from fairlead.api.status import Conflict
from fairlead.decide.arrays import CreateElement, element_annotations
from fairlead.runtime.client import Client

#: Arrays whose templates are kept; the one read first goes first, and is read again when needed.
TEMPLATES_MAX = 256

Obj = dict[str, Any]


class ElementRenderer:
    """Renders the bodies of elements' jobs. Call `forget` for an array that is gone."""

    def __init__(self, client: Client) -> None:
        self._client = client
        #: JSON, by uid of the array, with the class that it was read with: it may change.
        self._templates: dict[str, tuple[str, bytes]] = {}
        self._lock = asyncio.Lock()

    def forget(self, uid: str) -> None:
        """Keep nothing of an array."""
        self._templates.pop(uid, None)

    async def body(self, action: CreateElement) -> Obj:
        """Return the job of an element as plain JSON.

        Conflict when the stored array is another one; NotFound when it is gone.
        """
        array, index = action.array, action.index
        meta = array.metadata
        async with self._lock:
            known = self._templates.get(meta.uid)
            is_current = known is not None and known[0] == array.spec.template.priority_class_name
            template = known[1] if known is not None and is_current else await self._fetch(array)
        spec: Obj = msgspec.json.decode(template)
        for after in spec.get("after") or ():
            if after.get("elements") == SAME_ELEMENT:
                after["elements"] = str(index)
        for container in _containers(spec):
            own = container.get("env") or []
            given = {each.get("name") for each in own if isinstance(each, dict)}
            added = [(name, value) for name, value in action.environment if name not in given]
            container["env"] = [*({"name": name, "value": value} for name, value in added), *own]
        owner = OwnerReference(
            JOB_ARRAYS.api_version, JOB_ARRAYS.kind, meta.name, meta.uid,
            controller=True, block_owner_deletion=True,
        )  # fmt: skip
        metadata: Obj = {
            "name": element_name(meta.name, index),
            "labels": {
                names.ARRAY: meta.name,
                names.ARRAY_INDEX: str(index),
                names.ARRAY_NUMBER: str(array.status.number),
            },
            "ownerReferences": [to_wire(owner)],
            # The jobs controller would add it before anything else, by a write of its own.
            "finalizers": [names.JOB_FINALIZER],
        }
        if annotations := element_annotations(meta):
            metadata["annotations"] = annotations
        return {"metadata": metadata, "spec": spec}

    async def _fetch(self, array: JobArray) -> bytes:
        meta = array.metadata
        raw = await self._client.get(JOB_ARRAYS.raw, meta.name, namespace=meta.namespace)
        if raw["metadata"].get("uid") != meta.uid:
            raise Conflict(f"array {meta.name} is another one by now")
        found = raw["spec"]["template"]
        template = msgspec.json.encode(found)
        self._templates[meta.uid] = (found.get("priorityClassName") or "", template)
        if len(self._templates) > TEMPLATES_MAX:
            del self._templates[next(iter(self._templates))]
        return template


def _containers(spec: Obj) -> Iterator[Obj]:
    """Yield all containers of all roles."""
    for role in spec["roles"]:
        pod = role["template"].get("spec") or {}
        for kind in ("initContainers", "containers"):
            yield from pod.get(kind) or ()
