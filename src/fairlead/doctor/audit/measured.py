"""What an API server measured itself: objects, and the mean size of its answers (pure).

An audit log has no sizes. `apiserver_response_sizes` has them for reads, by verb, resource and
scope, so the bytes that a log's callers are modelled with can be scaled to what was sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.doctor.audit.request import resource_name
from fairlead.runtime.exported.metrics_page import Labels, parse_page

_SIZES = "apiserver_response_sizes"
_SUM, _COUNT = f"{_SIZES}_sum", f"{_SIZES}_count"
#: The second since Kubernetes 1.34.
_OBJECTS = ("apiserver_storage_objects", "apiserver_resource_objects")
PAGES_MAX = 2
#: Verb, resource and scope, as in the key of a caller.
Kind = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class MeasuredApi:
    """Objects by resource, and mean bytes of an answer by kind of request."""

    objects: Mapping[str, int] = field(default_factory=dict[str, int])
    answer_bytes: Mapping[Kind, float] = field(default_factory=dict[Kind, float])


def measured(pages: Sequence[bytes]) -> MeasuredApi:
    """Return what one page says since the server's start, or two between them; BadPage."""
    samples = [parse_page(page, (_SUM, _COUNT, *_OBJECTS)) for page in pages]
    last, first = samples[-1], samples[0] if len(samples) > 1 else {}
    counts = _by_kind(last.get(_COUNT, {}), first.get(_COUNT, {}))
    sums = _by_kind(last.get(_SUM, {}), first.get(_SUM, {}))
    means = {kind: sums.get(kind, 0.0) / count for kind, count in counts.items() if count > 0}
    objects: dict[str, int] = {}
    for name in _OBJECTS:
        for labels, value in last.get(name, {}).items():
            given = dict(labels)
            resource, dot, group = given.get("resource", "").partition(".")
            plain = resource_name(given.get("group", group if dot else ""), resource)
            if value > 0:  # -1 when it could not be counted
                objects[plain] = int(value)
    return MeasuredApi(objects, means)


def _by_kind(last: Mapping[Labels, float], first: Mapping[Labels, float]) -> dict[Kind, float]:
    found: dict[Kind, float] = {}
    for labels, value in last.items():
        given = dict(labels)
        resource = resource_name(given.get("group", ""), given.get("resource", ""))
        if subresource := given.get("subresource", ""):
            resource = f"{resource}/{subresource}"
        kind = (given.get("verb", "").lower(), resource, given.get("scope", ""))
        earlier = first.get(labels, 0.0)
        rise = value - earlier if value >= earlier else value  # the server was restarted
        found[kind] = found.get(kind, 0.0) + rise
    return found
