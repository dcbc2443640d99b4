"""Pulls of images as kubelets have reported them, by events, which last for an hour (pure).

A kubelet also says "pulled", with the size of the whole image, when a start with the policy Always
asked the registry for an image that the node had. Nothing says which it was, so it is inferred: a
start asked when the node had pulled the same bytes before and now took a tenth of the time at most,
or when it was faster than any line is. What is counted as pulled is therefore an upper bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from fairlead.api.kubernetes.core import Event
from fairlead.api.kubernetes.image_names import full_image_name
from fairlead.decide.images.plan import registry_of

#: A kubelet's words (`pkg/kubelet/images/image_manager.go`, since 1.30 with the size).
_PULLED = re.compile(
    r'^Successfully pulled image "(?P<image>[^"]{1,512})" in (?P<time>[\dhmsµn.]+) '
    r".*Image size: (?P<size>\d{1,15}) bytes"
)
_PARTS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(h|ms|m|s|µs|ns)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
#: 400 Gbit/s: what is faster came over no line.
_LINE_BYTES_PER_SECOND = 50e9
_ASKED_SHARE_MAX = 0.1
#: Smaller images say nothing of a rate: their pulls are mostly waiting.
_MEASURED_BYTES_MIN = 50 * 10**6


class PullCost(Enum):
    """What a pull cost: a transfer, one of what the node had pulled within the hour (the tag has
    moved, or the image was removed meanwhile), or a question to the registry alone.
    """

    FIRST = "First"
    AGAIN = "Again"
    ASKED = "Asked"


@dataclass(frozen=True, slots=True)
class ImagePull:
    """A pull by a node for a pod; `image` is a full name."""

    node: str
    namespace: str
    pod: str
    image: str
    size_bytes: int
    seconds: float
    cost: PullCost = PullCost.FIRST

    @property
    def registry(self) -> str:
        """Return the host that it came from."""
        return registry_of(self.image)

    @property
    def bytes_per_second(self) -> float | None:
        """Return its rate; None where it says nothing of one."""
        if self.cost is PullCost.ASKED or self.size_bytes < _MEASURED_BYTES_MIN:
            return None
        return self.size_bytes / self.seconds


def pulls_of(events: Iterable[Event]) -> list[ImagePull]:
    """Return the pulls that events with the reason Pulled tell of, the earliest first.

    Events that say no size, or no time, are left out.
    """
    ordered = sorted(events, key=lambda each: (_instant(each), each.metadata.key))
    found: list[ImagePull] = []
    first: dict[tuple[str, str], ImagePull] = {}
    for event in ordered:
        words = _PULLED.match(event.message)
        if words is None:
            continue
        parts = _PARTS.findall(words["time"])
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
        if seconds <= 0:
            continue
        image, size = full_image_name(words["image"]), int(words["size"])
        node, pod = event.source.host or event.reporting_instance, event.involved_object
        before = first.get((node, image))
        cost = _cost(before, size, seconds)
        pull = ImagePull(node, pod.namespace, pod.name, image, size, seconds, cost)
        if cost is not PullCost.ASKED:
            first[node, image] = pull
        found.append(pull)
    return found


def _cost(before: ImagePull | None, size: int, seconds: float) -> PullCost:
    """Return what a pull cost; `before` is the node's last transfer of the image."""
    if size > seconds * _LINE_BYTES_PER_SECOND:
        return PullCost.ASKED
    if before is None:
        return PullCost.FIRST
    is_fast = seconds <= before.seconds * _ASKED_SHARE_MAX
    return PullCost.ASKED if size == before.size_bytes and is_fast else PullCost.AGAIN


def _instant(event: Event) -> str:
    return event.last_timestamp or event.event_time or event.first_timestamp or ""
