"""What the server says of itself: version, groups, resources; plain and aggregated.

kubectl asks for the aggregated form first (KEP-3352): everything at `/api` and `/apis`, with an
ETag. The plain form is the fallback of older tools. The documents are made from the registry, once
per revision of it, and kept as bytes.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead.api.names import EMBEDDED_BUILD
from fairlead.embedded.http.only_created import REVIEWS, UNSERVED, Unserved
from fairlead.embedded.registry import Registry
from fairlead.embedded.resource_info import ResourceInfo, version_rank

#: The Kubernetes release whose API the embedded cluster follows.
KUBERNETES_MAJOR, KUBERNETES_MINOR = "1", "34"
GIT_VERSION = f"v{KUBERNETES_MAJOR}.{KUBERNETES_MINOR}.0{EMBEDDED_BUILD}"

#: Sub-resources: (verbs, group, version, kind); an empty kind is the parent's own.
_SUBRESOURCES: dict[str, tuple[tuple[str, ...], str, str, str]] = {
    "status": (("get", "patch", "update"), "", "", ""),
    "finalize": (("update",), "", "", ""),
    "resize": (("get", "patch", "update"), "", "", ""),
    "log": (("get",), "", "", ""),
    "exec": (("create", "get"), "", "v1", "PodExecOptions"),
    "attach": (("create", "get"), "", "v1", "PodAttachOptions"),
    "portforward": (("create", "get"), "", "v1", "PodPortForwardOptions"),
    "scale": (("get", "patch", "update"), "autoscaling", "v1", "Scale"),
    "binding": (("create",), "", "v1", "Binding"),
    "eviction": (("create",), "policy", "v1", "Eviction"),
}


@dataclass(frozen=True, slots=True)
class DiscoveryDocument:
    """A document ready to send, and the hash of its bytes."""

    body: bytes
    etag: str

    @classmethod
    def of(cls, value: Any) -> DiscoveryDocument:
        """Return the document of a JSON value."""
        body = msgspec.json.encode(value)
        return cls(body, f'"{hashlib.sha256(body).hexdigest()[:32].upper()}"')


def version_info() -> dict[str, str]:
    """Return the answer of /version."""
    return {
        "major": KUBERNETES_MAJOR,
        "minor": KUBERNETES_MINOR,
        "gitVersion": GIT_VERSION,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": f"python{platform.python_version()}",
        "platform": "linux/amd64",
    }


#: What is found by discovery and is in no registry.
_ONLY_CREATED = tuple(
    ResourceInfo(
        kind.group, kind.version, kind.plural, kind.kind,
        namespaced=isinstance(kind, Unserved), verbs=("create",),
    )
    for kind in (*REVIEWS, *UNSERVED)
)  # fmt: skip


def _subresource(info: ResourceInfo, sub: str) -> dict[str, Any]:
    verbs, group, version, kind = _SUBRESOURCES[sub]
    entry: dict[str, Any] = {
        "name": f"{info.plural}/{sub}",
        "singularName": "",
        "namespaced": info.namespaced,
        "kind": kind or info.kind,
        "verbs": list(verbs),
    }
    if group:
        entry.update(group=group, version=version)
    return entry


def _api_resources(info: ResourceInfo) -> list[dict[str, Any]]:
    entry: dict[str, Any] = {
        "name": info.plural,
        "singularName": info.singular,
        "namespaced": info.namespaced,
        "kind": info.kind,
        "verbs": list(info.verbs),
    }
    if info.short_names:
        entry["shortNames"] = list(info.short_names)
    if info.categories:
        entry["categories"] = list(info.categories)
    subs = sorted(sub for sub in info.subresources if sub in _SUBRESOURCES)
    return [entry, *(_subresource(info, sub) for sub in subs)]


def _kind(group: str, version: str, kind: str) -> dict[str, str]:
    return {"group": group, "version": version, "kind": kind}


def _aggregated(info: ResourceInfo) -> dict[str, Any]:
    subs: list[dict[str, Any]] = []
    for sub in sorted(sub for sub in info.subresources if sub in _SUBRESOURCES):
        verbs, group, version, kind = _SUBRESOURCES[sub]
        own = _kind(group, version, kind) if kind else _kind(info.group, info.version, info.kind)
        subs.append({"subresource": sub, "responseKind": own, "verbs": list(verbs)})
    entry: dict[str, Any] = {
        "resource": info.plural,
        "responseKind": _kind(info.group, info.version, info.kind),
        "scope": "Namespaced" if info.namespaced else "Cluster",
        "singularResource": info.singular,
        "verbs": list(info.verbs),
    }
    if info.short_names:
        entry["shortNames"] = list(info.short_names)
    if info.categories:
        entry["categories"] = list(info.categories)
    if subs:
        entry["subresources"] = subs
    return entry


class Discovery:
    """Answers all discovery paths; documents are cached until the registry changes."""

    def __init__(
        self, registry: Registry, server_address: str, also: tuple[ResourceInfo, ...] = ()
    ) -> None:
        """`also` are resources that are served and in no registry."""
        self._registry = registry
        self._address = server_address
        self._also = also
        self._revision = -1
        self._documents: dict[tuple[str, ...], DiscoveryDocument] = {}
        self._versions: dict[str, list[str]] = {}

    def cached(self, key: tuple[str, ...], make: Callable[[], Any]) -> DiscoveryDocument | None:
        """Return what `make` makes, kept until the registry changes; None where it makes None."""
        if self._registry.revision != self._revision:
            self._revision = self._registry.revision
            self._documents = {}
            self._versions = self._group_versions()
        # Keys that clients choose are only kept when they name something, so this stays small.
        if key in self._documents:
            return self._documents[key]
        value = make()
        if value is None:
            return None
        document = self._documents[key] = DiscoveryDocument.of(value)
        return document

    def _group_versions(self) -> dict[str, list[str]]:
        versions: dict[str, list[str]] = {}
        for item in self._all():
            known = versions.setdefault(item.group, [])
            if item.version not in known:
                known.append(item.version)
        return {group: sorted(versions[group], key=version_rank) for group in sorted(versions)}

    def _all(self) -> tuple[ResourceInfo, ...]:
        return (*self._registry.all(), *_ONLY_CREATED, *self._also)

    def _infos(self, group: str, version: str) -> list[ResourceInfo]:
        return [i for i in self._all() if (i.group, i.version) == (group, version)]

    def _group(self, group: str) -> dict[str, Any]:
        versions = [
            {"groupVersion": f"{group}/{version}", "version": version}
            for version in self._versions[group]
        ]
        return {"name": group, "versions": versions, "preferredVersion": versions[0]}

    def core_versions(self) -> DiscoveryDocument | None:
        """/api."""
        return self.cached(
            ("api",),
            lambda: {
                "kind": "APIVersions",
                "versions": ["v1"],
                "serverAddressByClientCIDRs": [
                    {"clientCIDR": "0.0.0.0/0", "serverAddress": self._address}
                ],
            },
        )

    def groups(self) -> DiscoveryDocument | None:
        """/apis."""
        return self.cached(
            ("apis",),
            lambda: {
                "kind": "APIGroupList",
                "apiVersion": "v1",
                "groups": [self._group(group) for group in self._versions if group],
            },
        )

    def group(self, group: str) -> DiscoveryDocument | None:
        """/apis/<group>; None when there is no such group."""

        def make() -> dict[str, Any] | None:
            if not group or group not in self._versions:
                return None
            return {"kind": "APIGroup", "apiVersion": "v1", **self._group(group)}

        return self.cached(("apis", group), make)

    def resources(self, group: str, version: str) -> DiscoveryDocument | None:
        """/api/v1 and /apis/<group>/<version>; None when nothing is served there."""

        def make() -> dict[str, Any] | None:
            entries = [e for i in self._infos(group, version) for e in _api_resources(i)]
            if not entries:
                return None
            return {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": f"{group}/{version}" if group else version,
                "resources": entries,
            }

        return self.cached(("resources", group, version), make)

    def aggregated(self, version: str, *, core: bool) -> DiscoveryDocument | None:
        """/api and /apis as APIGroupDiscoveryList of that version of its API."""

        def make() -> dict[str, Any]:
            groups = [group for group in self._versions if (group == "") == core]
            return {
                "kind": "APIGroupDiscoveryList",
                "apiVersion": f"apidiscovery.k8s.io/{version}",
                "metadata": {},
                "items": [self._aggregated_group(group) for group in groups],
            }

        return self.cached(("aggregated", version, str(core)), make)

    def _aggregated_group(self, group: str) -> dict[str, Any]:
        versions: list[dict[str, Any]] = []
        for version in self._versions[group]:
            resources = [_aggregated(info) for info in self._infos(group, version)]
            versions.append({"version": version, "resources": resources, "freshness": "Current"})
        metadata = {"name": group, "creationTimestamp": None} if group else {}
        return {"metadata": metadata, "versions": versions}
