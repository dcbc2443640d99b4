"""What the API answers to GET of a path, for readers in the same process.

Objects and pages of lists, as over HTTP. What only the HTTP server has (metrics, logs, proxies,
discovery) is NotFound here.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.api.status import BadRequest, NotFound
from fairlead.embedded.http.render import PlainRendering, whole
from fairlead.embedded.http.request import resource_path, split_path
from fairlead.embedded.verbs.options import ListOptions
from fairlead.embedded.verbs.service import Service


def read_path(service: Service, path: str, query: Mapping[str, str]) -> bytes:
    """Return the body; ApiError. Of the query: labelSelector, fieldSelector, limit, continue."""
    named = resource_path(split_path(path))
    info = (
        None if named is None else service.registry.find(named.group, named.version, named.plural)
    )
    if named is None or info is None or named.subresource:
        raise NotFound(f"{path}: the server could not find the requested resource")
    if named.name:
        return whole(info, service.get(info, named.namespace, named.name))
    limit = query.get("limit", "0")
    if not limit.isdecimal():
        raise BadRequest(f"query parameter limit: '{limit[:40]}' is not an integer")
    page = service.list(
        info, named.namespace,
        ListOptions(
            label_selector=query.get("labelSelector", ""),
            field_selector=query.get("fieldSelector", ""),
            limit=int(limit), continue_=query.get("continue", ""),
        ),
    )  # fmt: skip
    rendering = PlainRendering(info)
    return rendering.head(page) + b",".join(map(rendering.item, page.records)) + b"]}"
