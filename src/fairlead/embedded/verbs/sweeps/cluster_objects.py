"""What clients expect to find on any cluster: made with each namespace, made again when it goes.

Every namespace has the ServiceAccount `default` and, once the server's authority is known, the
ConfigMap `kube-root-ca.crt` (kubernetes `pkg/controller/serviceaccount`,
`pkg/controller/certificates/rootcacertpublisher`). The namespace `default` has the Service
`kubernetes` and its EndpointSlice; there is no service network, so its address is the server's own
(kubernetes `pkg/controlplane/controller/kubernetesservice`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.api.status import AlreadyExists, ApiError
from fairlead.embedded import builtins
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.storage.records import StoreEvent
from fairlead.embedded.verbs import writes
from fairlead.embedded.verbs.context import Context
from fairlead.embedded.verbs.options import WriteOptions
from fairlead.runtime.client import EventType

ACCOUNT, AUTHORITY, SERVICE, HOME = "default", "kube-root-ca.crt", "kubernetes", "default"
_AUTHORITY_NOTE = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal "
    "endpoints such as the internal service IP or kubernetes.default.svc. No other usage is "
    "guaranteed across distributions of Kubernetes clusters."
)


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens, and the authority, in PEM, that its clients trust."""

    host: str
    port: int
    authority: str


class ClusterObjects:
    """Call `note` with every batch of store events, and keep `run` running."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._address: Address | None = None
        self._namespaces: dict[str, None] = {
            record.name: None for record in context.store.records(builtins.NAMESPACES.name)
        }
        self._wake = asyncio.Event()

    @property
    def backlog(self) -> int:
        """How many namespaces are still to be looked at."""
        return len(self._namespaces)

    def serves_at(self, address: Address) -> None:
        """Publish where the server listens, in all namespaces."""
        self._address = address
        for record in self._context.store.records(builtins.NAMESPACES.name):
            self._namespaces[record.name] = None
        self._wake.set()

    def note(self, events: Sequence[StoreEvent]) -> None:
        """Take in committed writes; called by the store."""
        for event in events:
            record = event.record
            if event.info is builtins.NAMESPACES:
                if event.type is EventType.ADDED:
                    self._namespaces[record.name] = None
            elif _is_ours(event.info, record.name) and event.type is not EventType.ADDED:
                self._namespaces[record.key[0]] = None
        if self._namespaces:
            self._wake.set()

    async def run(self) -> None:
        """Make what is missing, for ever. InternalError when the store can't store any more."""
        store = self._context.store
        while True:
            if not self._namespaces:
                self._wake.clear()
                await self._wake.wait()
                continue
            namespace = next(iter(self._namespaces))
            del self._namespaces[namespace]
            self._look(namespace)
            await store.committed(store.next_version - 1)
            await asyncio.sleep(0)

    def _look(self, namespace: str) -> None:
        record = self._context.store.latest(builtins.NAMESPACES.name, ("", namespace))
        if record is None or record.is_deleting:
            return
        self._ensure(builtins.SERVICE_ACCOUNTS, namespace, ACCOUNT, {})
        if self._address is None:
            return
        data = {"data": {"ca.crt": self._address.authority}}
        if self._address.authority:
            notes = {"kubernetes.io/description": _AUTHORITY_NOTE}
            self._ensure(builtins.CONFIG_MAPS, namespace, AUTHORITY, data, annotations=notes)
        if namespace == HOME:
            self._publish(self._address)

    def _publish(self, address: Address) -> None:
        port = {"name": "https", "port": address.port, "protocol": "TCP"}
        labels = {"component": "apiserver", "provider": "kubernetes"}
        family = "IPv6" if ":" in address.host else "IPv4"
        spec = {
            "clusterIP": address.host, "clusterIPs": [address.host], "ipFamilies": [family],
            "ports": [{**port, "targetPort": address.port}],
        }  # fmt: skip
        self._ensure(builtins.SERVICES, HOME, SERVICE, {"spec": spec}, labels=labels)
        slice_ = {
            "addressType": family,
            "endpoints": [{"addresses": [address.host], "conditions": {"ready": True}}],
            "ports": [port],
        }
        named = {"kubernetes.io/service-name": SERVICE}
        self._ensure(builtins.ENDPOINT_SLICES, HOME, SERVICE, slice_, labels=named)

    def _ensure(
        self, info: ResourceInfo, namespace: str, name: str, body: dict[str, Any], **more: Any
    ) -> None:
        """Make the object, or bring the parts of it that `body` gives up to date."""
        context = self._context
        key = (namespace, name)
        current = context.store.latest(info.name, key)
        try:
            if current is None:
                new = {"metadata": {"name": name, **more}, **body}
                writes.create(context, info, namespace, new, options=WriteOptions())
            elif not current.is_deleting and not _holds(current.plain(), body):
                writes.overwrite(
                    context, info, key, lambda obj: _merged(obj, body), options=WriteOptions()
                )
        except AlreadyExists:
            return
        except ApiError as error:
            raise AssertionError(f"the server refuses its own {info.name} {key}") from error


def _is_ours(info: ResourceInfo, name: str) -> bool:
    if info is builtins.SERVICE_ACCOUNTS:
        return name == ACCOUNT
    if info is builtins.CONFIG_MAPS:
        return name == AUTHORITY
    return info in (builtins.SERVICES, builtins.ENDPOINT_SLICES) and name == SERVICE


def _holds(obj: Any, part: Any) -> bool:
    """Return True when `obj` has everything that `part` has."""
    if isinstance(part, dict) and isinstance(obj, Mapping):
        return all(key in obj and _holds(obj[key], value) for key, value in part.items())
    if isinstance(part, list) and isinstance(obj, list) and len(obj) == len(part):
        return all(_holds(one, other) for one, other in zip(obj, part, strict=True))
    return bool(obj == part)


def _merged(obj: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    for key, value in part.items():
        before: Any = obj.get(key)
        is_part = isinstance(value, dict) and isinstance(before, dict)
        obj[key] = {**before, **value} if is_part else value
    return obj
