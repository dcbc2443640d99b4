"""Reads the Kubernetes API: few requests, none of which grows with nodes or pods.

Numbers of objects come from `remainingItemCount` of a page of one; nodes are a sample of one page;
pods are those of two labels in kube-system. What is listed whole (workloads, webhooks ...) is read
in pages up to a bound; a list that is longer counts as not seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from fairlead.api.status import ApiError
from fairlead.doctor.facts import Source
from fairlead.doctor.objects import (
    ApiService,
    ConfigMap,
    FlowSchema,
    Node,
    Objects,
    Pod,
    WebhookConfiguration,
    Workload,
)
from fairlead.doctor.readers.budget import Get

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
SYSTEM = "/api/v1/namespaces/kube-system"
WEBHOOK_KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
CONFIG_MAPS = ("coredns", "kube-proxy")


class ClusterReader:
    """Reads one cluster; `problems` collects what could not be read."""

    def __init__(self, get: Get) -> None:
        self._get = get
        self.problems: list[str] = []
        self.nodes: int | None = None

    def read(self) -> Objects:
        """Return the objects; what the server refuses is None, and its reason a problem."""
        version = (self._try(lambda: self._page("/version", {})) or {}).get("gitVersion", "")
        nodes = self._nodes()
        counts: dict[str, int] = {}
        for name, path in COUNTED.items():
            count = self._try(lambda path=path: self._count(path))
            if count is not None:
                counts[name] = count
        if self.nodes is not None:
            counts["nodes"] = self.nodes
        hooks = [self._all(f"{ADMISSION}/{kind}", WebhookConfiguration) for kind in WEBHOOK_KINDS]
        webhooks = None
        if hooks[0] is not None and hooks[1] is not None:
            webhooks = (*hooks[0], *hooks[1])
        return Objects(
            version=str(version), counts=counts, nodes=nodes, webhooks=webhooks,
            dns_pods=self._pods("k8s-app=kube-dns"),
            control_plane_pods=self._pods("tier=control-plane"),
            deployments=self._all("/apis/apps/v1/deployments", Workload),
            daemonsets=self._all("/apis/apps/v1/daemonsets", Workload),
            flow_schemas=self._all("/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas", FlowSchema),
            api_services=self._all("/apis/apiregistration.k8s.io/v1/apiservices", ApiService),
            config_maps=self._config_maps(),
        )  # fmt: skip

    def _try(self, action: Callable[[], T]) -> T | None:
        try:
            return action()
        except (ApiError, ValueError) as error:
            self.problems.append(str(error)[:300])
            return None

    def _page(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        value = json.loads(self._get(path, query))
        if not isinstance(value, dict):
            raise ValueError(f"{path}: the answer is not an object")  # noqa: TRY004 # from the world
        return value  # pyright: ignore[reportUnknownVariableType] # JSON objects have text keys

    def _nodes(self) -> tuple[Node, ...] | None:
        page = self._try(lambda: self._page("/api/v1/nodes", {"limit": str(NODE_SAMPLE)}))
        if page is None:
            return None
        items: list[Any] = page.get("items") or []
        self.nodes = len(items) + _remaining(page)
        return self._try(lambda: tuple(msgspec.convert(item, Node) for item in items))

    def _count(self, path: str) -> int:
        page = self._page(path, {"limit": "1"})
        return len(page.get("items") or []) + _remaining(page)

    def _all(self, path: str, type_: type[T]) -> tuple[T, ...] | None:
        return self._try(lambda: self._list(path, type_))

    def _list(self, path: str, type_: type[T], selector: str = "") -> tuple[T, ...]:
        """Return all objects; ValueError when there are more pages than the bound."""
        query = {"limit": str(PAGE)}
        if selector:
            query["labelSelector"] = selector
        found: list[T] = []
        for _ in range(PAGES_MAX):
            page = self._page(path, query)
            found += [msgspec.convert(item, type_) for item in page.get("items") or []]
            query["continue"] = str((page.get("metadata") or {}).get("continue") or "")
            if not query["continue"]:
                return tuple(found)
        raise ValueError(f"{path}: more than {PAGE * PAGES_MAX:,} objects")

    def _pods(self, selector: str) -> tuple[Pod, ...] | None:
        return self._try(lambda: self._list(f"{SYSTEM}/pods", Pod, selector))

    def _config_maps(self) -> dict[str, ConfigMap]:
        found: dict[str, ConfigMap] = {}
        for name in CONFIG_MAPS:
            path = f"{SYSTEM}/configmaps/{name}"
            value = self._try(lambda path=path: msgspec.convert(self._page(path, {}), ConfigMap))
            if value is not None:
                found[name] = value
        return found

    def kubelet_configs(self, nodes: tuple[Node, ...] | None) -> dict[str, dict[str, object]]:
        """Return the configuration of up to three sampled kubelets, through the API server."""
        found: dict[str, dict[str, object]] = {}
        for node in (nodes or ())[:3]:
            path = f"/api/v1/nodes/{node.metadata.name}/proxy/configz"
            page = self._try(lambda path=path: self._page(path, {}))
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


def _remaining(page: Mapping[str, Any]) -> int:
    value = (page.get("metadata") or {}).get("remainingItemCount") or 0
    return value if isinstance(value, int) else 0
