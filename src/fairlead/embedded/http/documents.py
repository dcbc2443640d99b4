"""Everything outside the resources: version, discovery, OpenAPI, and the list of paths."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from fairlead.embedded.http.answering.negotiate import DISCOVERY_FORMS, PLAIN, negotiate
from fairlead.embedded.http.answering.respond import json_answer, value_answer
from fairlead.embedded.http.discovery import Discovery, DiscoveryDocument, version_info
from fairlead.embedded.http.request import PathNotFound
from fairlead.embedded.openapi import openapi_v2, openapi_v3_group, openapi_v3_index
from fairlead.embedded.registry import Registry
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.verbs.errors import unknown_resource

#: kubectl asks for the v2 document in protobuf alone, of kinds that v3 does not have.
_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
#: `openapi_v2.Document` with `swagger` and `info`, and no kind: there is none that v3 lacks.
_NO_DEFINITIONS = b"\x0a\x032.0\x12\x0f\x0a\x08Fairlead\x12\x030.0"


class Documents:
    """Answers GET on paths that are no resources."""

    def __init__(
        self, registry: Registry, server_address: str, also: tuple[ResourceInfo, ...] = ()
    ) -> None:
        """`also` are resources that are served and in no registry."""
        self._registry = registry
        self._discovery = Discovery(registry, server_address, also)

    def answer(self, request: web.BaseRequest, segments: list[str]) -> web.Response:
        """Return the document at that path; PathNotFound when there is none."""
        match segments:
            case [""]:
                return value_answer({"paths": self._paths()})
            case ["version"]:
                return value_answer(version_info())
            case ["api" | "apis"]:
                return self._root(request, core=segments[0] == "api")
            case ["api", version]:
                if version != "v1":
                    raise unknown_resource()
                return _send(request, self._discovery.resources("", version))
            case ["apis", group]:
                return _send(request, self._discovery.group(group))
            case ["apis", group, version] if group:
                return _send(request, self._discovery.resources(group, version))
            case ["openapi", "v2"] if _takes_only_protobuf(request):
                return web.Response(body=_NO_DEFINITIONS, content_type=_PROTOBUF)
            case ["openapi", *rest]:
                return self._answer_openapi(request, rest)
            case _:
                raise PathNotFound("404 page not found")

    def _root(self, request: web.BaseRequest, *, core: bool) -> web.Response:
        accepted = negotiate(request.headers.get("Accept", ""), DISCOVERY_FORMS)
        if accepted is PLAIN:
            plain = self._discovery.core_versions() if core else self._discovery.groups()
            return _send(request, plain)
        kind = f"g=apidiscovery.k8s.io;v={accepted.version};as=APIGroupDiscoveryList"
        document = self._discovery.aggregated(accepted.version, core=core)
        return _send(request, document, content_type=f"application/json;{kind}")

    def _paths(self) -> list[str]:
        paths = ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3"]
        for info in self._registry.all():
            if info.group:
                paths += [f"/apis/{info.group}", f"/apis/{info.group}/{info.version}"]
        return sorted({*paths, "/readyz", "/version"})

    def _answer_openapi(self, request: web.BaseRequest, rest: list[str]) -> web.Response:
        document = self._discovery.cached(("openapi", *rest), lambda: self._make_openapi(rest))
        if document is None:
            raise PathNotFound("404 page not found")
        given = request.query.get("hash", "")
        if rest[0] != "v3" or not given:
            return _send(request, document)
        # The index names each document with its hash, so that clients may keep it for ever.
        wanted = document.etag.strip('"')
        if given != wanted:
            location = f"/{'/'.join(('openapi', *rest))}?hash={wanted}"
            return web.Response(status=301, headers={"Location": location, "ETag": document.etag})
        response = _send(request, document)
        response.headers["Cache-Control"] = "public, immutable"
        return response

    def _make_openapi(self, rest: list[str]) -> Any:
        match rest:
            case ["v2"]:
                return openapi_v2(self._registry.all())
            case ["v3"]:
                return openapi_v3_index(self._registry.all())
            case ["v3", "api", version]:
                return openapi_v3_group(self._registry.all(), "", version)
            case ["v3", "apis", group, version]:
                return openapi_v3_group(self._registry.all(), group, version)
            case _:
                return None


def _takes_only_protobuf(request: web.BaseRequest) -> bool:
    accept = request.headers.get("Accept", "")
    return "protobuf" in accept and "json" not in accept and "*/*" not in accept


def _send(
    request: web.BaseRequest,
    document: DiscoveryDocument | None,
    *,
    content_type: str = "application/json",
) -> web.Response:
    """Send a document, or 304 when the client has it already."""
    if document is None:
        raise PathNotFound("404 page not found")
    if request.headers.get("If-None-Match") == document.etag:
        return web.Response(status=304, headers={"ETag": document.etag})
    response = json_answer(document.body, content_type=content_type)
    response.headers["ETag"] = document.etag
    response.headers["Vary"] = "Accept"
    return response
