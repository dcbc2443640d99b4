"""The ResourceQuotas of the tenant's namespace, which the embedded API does not have.

They are objects that the scheduler reads, and rules that hold for each pod that is created there,
whether by the tenant or by a controller for one of his jobs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec

from fairlead.api.core import Pod
from fairlead.api.quantity import CPU, GPU, MEMORY, QuantityError
from fairlead.api.resources import PODS, RESOURCE_QUOTAS
from fairlead.api.status import Forbidden
from fairlead.decide.verdict import ObjectKey
from fairlead.embedded.virtual.status import pod_requests
from fairlead.runtime.client import A, Client, ClientWrapper, Request, Verb
from fairlead.sim.observer import Observer
from fairlead.sim.tenants.calls import TENANT

#: What his pods may ask for together, in base units; and the class of which he may have none.
LIMITS = {GPU: 12, CPU: 64_000, MEMORY: 512 << 30, PODS.plural: 60}
CLOSED_CLASS = "high"
_SHOWN_SECONDS = 0.2


class Quota(Observer):
    """Counts the tenant's pods that have not ended, and those that are being created."""

    def __init__(self) -> None:
        self._asked: dict[ObjectKey, Counter[str]] = {}
        self._used: Counter[str] = Counter()
        self._changed = asyncio.Event()

    def pod(self, new: Pod | None, key: ObjectKey, now: float) -> None:
        """Count a pod."""
        if key[0] != TENANT:
            return
        self._used.subtract(self._asked.pop(key, Counter()))
        if new is not None and not new.is_terminal:
            self._asked[key] = _asked(new)
            self._used.update(self._asked[key])
        self._changed.set()

    def begin(self, pod: Pod) -> Counter[str]:
        """Take in that a pod is about to be created; Forbidden where there is no room for it.

        Return what it asks for, which `end` gets when the creation has been answered.
        """
        if pod.spec.priority_class_name == CLOSED_CLASS:
            raise Forbidden("exceeded quota: no-high, requested: pods=1, used: pods=0")
        asked = _asked(pod)
        for name, limit in LIMITS.items():
            if asked[name] and self._used[name] + asked[name] > limit:
                raise Forbidden(f"exceeded quota: compute, requested: {name}={asked[name]}")
        self._used.update(asked)
        return asked

    def end(self, asked: Counter[str]) -> None:
        """Take in that the creation was answered: a pod that is there is counted by `pod`."""
        self._used.subtract(asked)

    async def create(self, client: Client) -> None:
        """Make the quotas."""
        hard = {"pods": str(LIMITS[PODS.plural]), f"requests.{GPU}": str(LIMITS[GPU])}
        scope = {"scopeName": "PriorityClass", "operator": "In", "values": [CLOSED_CLASS]}
        closed = {"hard": {"pods": "0"}, "scopeSelector": {"matchExpressions": [scope]}}
        for name, spec, used in (
            ("compute", {"hard": hard}, dict.fromkeys(hard, "0")),
            ("no-high", closed, {"pods": "0"}),
        ):
            body = {"metadata": {"name": name}, "spec": spec,
                    "status": {"hard": spec["hard"], "used": used}}  # fmt: skip
            await client.create(RESOURCE_QUOTAS, body, namespace=TENANT)

    async def run(self, client: Client) -> None:
        """Keep the counts that the quotas show, until cancelled: they fall a little late."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(_SHOWN_SECONDS)
            self._changed.clear()
            await self.show(client)

    async def show(self, client: Client) -> None:
        """Write what is used now, as the API server does before it takes a pod."""
        used = {"pods": str(self._used[PODS.plural]), f"requests.{GPU}": str(self._used[GPU])}
        await client.patch(RESOURCE_QUOTAS, "compute", {"status": {"used": used}}, namespace=TENANT)


class QuotaClient(ClientWrapper):
    """The API as the controllers meet it: the quota holds for the pods that they make, too."""

    def __init__(self, inner: Client, quota: Quota) -> None:
        super().__init__(inner)
        self._quota = quota

    async def call(self, request: Request[A]) -> A:
        """Send the request, unless it is for a pod that the quota has no room for."""
        is_pod = request.resource.name == PODS.name and request.namespace == TENANT
        if not is_pod or request.verb is not Verb.CREATE:
            return await self.inner.call(request)
        pod: Any = request.body
        pod = pod if isinstance(pod, Pod) else msgspec.convert(pod, Pod, strict=False)
        asked = self._quota.begin(pod)
        try:
            await self._quota.show(self.inner)
            return await self.inner.call(request)
        finally:
            self._quota.end(asked)


def _asked(pod: Pod) -> Counter[str]:
    try:
        return Counter({**pod_requests(pod), PODS.plural: 1})
    except QuantityError:  # the API refuses it
        return Counter()
