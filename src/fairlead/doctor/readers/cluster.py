"""Reads the Kubernetes API: few requests, none of which grows with nodes or pods.

Numbers of objects come from `remainingItemCount` of a page of one; nodes are a sample of one page;
pods are those of two labels in kube-system. What is listed whole (workloads, webhooks ...) is read
in pages up to a bound; a list that is longer counts as not seen.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

import msgspec

from fairlead.api.status import ApiError
from fairlead.doctor.facts import Source
from fairlead.doctor.objects import (
    SeenApiService,
    SeenConfigMap,
    SeenFlowSchema,
    SeenNode,
    SeenObjects,
    SeenPod,
    SeenWebhookConfiguration,
    SeenWorkload,
)
from fairlead.doctor.readers.budget import ReadPath

T = TypeVar("T")
PAGE, PAGES_MAX = 500, 10
NODE_SAMPLE = 50
COUNTED: dict[str, str] = {
    "pods": "/api/v1/pods",
    "namespaces": "/api/v1/namespaces",
    "services": "/api/v1/services",
    "events": "/api/v1/events",
}
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
FLOWCONTROL = "/apis/flowcontrol.apiserver.k8s.io/v1"
AGGREGATION = "/apis/apiregistration.k8s.io/v1"
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
SYSTEM = "/api/v1/namespaces/kube-system"
WEBHOOK_KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
CONFIG_MAPS = ("coredns", "kube-proxy")


class ClusterReader:
    """Reads one cluster; `problems` collects what could not be read."""

    def __init__(self, read: ReadPath, counted: Mapping[str, int] | None = None) -> None:
        """`read` sends a GET. `counted` are numbers of objects that are known, by plural."""
        self._read = read
        self._counted = counted or {}
        self.problems: list[str] = []
        self.nodes: int | None = None

    async def read(self) -> SeenObjects:
        """Return the objects; what the server refuses is None, and its reason a problem."""
        version = ((await self._try(self._page("/version", {}))) or {}).get("gitVersion", "")
        nodes = await self._nodes()
        counts = dict(self._counted)
        for name, path in COUNTED.items():
            if name not in counts:
                count = await self._try(self._count(path))
                if count is not None:
                    counts[name] = count
        if self.nodes is not None:
            counts["nodes"] = self.nodes
        control_plane_nodes = await self._all("/api/v1/nodes", SeenNode, CONTROL_PLANE, NODE_SAMPLE)
        webhooks: tuple[SeenWebhookConfiguration, ...] | None = ()
        for kind in WEBHOOK_KINDS:
            hooks = await self._all(f"{ADMISSION}/{kind}", SeenWebhookConfiguration)
            webhooks = None if webhooks is None or hooks is None else (*webhooks, *hooks)
        return SeenObjects(
            version=str(version), counts=counts, nodes=nodes,
            control_plane_nodes=control_plane_nodes, webhooks=webhooks,
            dns_pods=await self._all(f"{SYSTEM}/pods", SeenPod, "k8s-app=kube-dns"),
            control_plane_pods=await self._all(f"{SYSTEM}/pods", SeenPod, "tier=control-plane"),
            deployments=await self._all("/apis/apps/v1/deployments", SeenWorkload),
            daemonsets=await self._all("/apis/apps/v1/daemonsets", SeenWorkload),
            flow_schemas=await self._all(f"{FLOWCONTROL}/flowschemas", SeenFlowSchema),
            api_services=await self._all(f"{AGGREGATION}/apiservices", SeenApiService),
            config_maps=await self._config_maps(),
        )  # fmt: skip

    async def _try(self, reading: Awaitable[T]) -> T | None:
        try:
            return await reading
        except (ApiError, ValueError) as error:
            self.problems.append(str(error)[:300])
            return None

    async def _nodes(self) -> tuple[SeenNode, ...] | None:
        page = await self._try(self._page("/api/v1/nodes", {"limit": str(NODE_SAMPLE)}))
        if page is None:
            return None
        items: list[Any] = page.get("items") or []
        self.nodes = len(items) + _remaining(page)
        try:
            return tuple(msgspec.convert(item, SeenNode) for item in items)
        except ValueError as error:
            self.problems.append(str(error)[:300])
            return None

    async def _config_maps(self) -> dict[str, SeenConfigMap]:
        found: dict[str, SeenConfigMap] = {}
        for name in CONFIG_MAPS:
            value = await self._try(self._config_map(f"{SYSTEM}/configmaps/{name}"))
            if value is not None:
                found[name] = value
        return found

    async def kubelet_configs(
        self, nodes: tuple[SeenNode, ...] | None
    ) -> dict[str, dict[str, object]]:
        """Return the configuration of up to three sampled kubelets, through the API server."""
        found: dict[str, dict[str, object]] = {}
        for node in (nodes or ())[:3]:
            path = f"/api/v1/nodes/{node.metadata.name}/proxy/configz"
            page = await self._try(self._page(path, {}))
            if page is None:
                break  # the others will refuse for the same reason
            config = page.get("kubeletconfig")
            if isinstance(config, dict):
                found[node.metadata.name] = config
        return found

    def absent(self) -> dict[Source, str]:
        """Return why parts of the API were not seen."""
        if not self.problems:
            return {}
        return {Source.API: f"{Source.API.value}: {self.problems[0]}"}

    async def _page(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        value: object = msgspec.json.decode(await self._read(path, dict(query)))
        if not isinstance(value, dict):
            raise ValueError(f"{path}: the answer is not an object")  # noqa: TRY004 # from the world
        return value  # pyright: ignore[reportUnknownVariableType] # JSON objects have text keys

    async def _count(self, path: str) -> int:
        page = await self._page(path, {"limit": "1"})
        return len(page.get("items") or []) + _remaining(page)

    async def _all(
        self, path: str, type_: type[T], selector: str = "", page: int = PAGE
    ) -> tuple[T, ...] | None:
        return await self._try(self._list(path, type_, selector, page))

    async def _list(self, path: str, type_: type[T], selector: str, page: int) -> tuple[T, ...]:
        """Return all objects; ValueError when there are more pages than the bound."""
        query = {"limit": str(page)}
        if selector:
            query["labelSelector"] = selector
        found: list[T] = []
        for _ in range(PAGES_MAX):
            answer = await self._page(path, query)
            found += [msgspec.convert(item, type_) for item in answer.get("items") or []]
            query["continue"] = str((answer.get("metadata") or {}).get("continue") or "")
            if not query["continue"]:
                return tuple(found)
        raise ValueError(f"{path}: more than {page * PAGES_MAX:,} objects")

    async def _config_map(self, path: str) -> SeenConfigMap:
        return msgspec.convert(await self._page(path, {}), SeenConfigMap)


def _remaining(page: Mapping[str, Any]) -> int:
    value = (page.get("metadata") or {}).get("remainingItemCount") or 0
    return value if isinstance(value, int) else 0
