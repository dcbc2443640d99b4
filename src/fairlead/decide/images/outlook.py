"""What is left to pull before a gang can start, and how long that takes as measured (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import Nomination, Placement
from fairlead.api.kubernetes.core import PodSpec
from fairlead.api.kubernetes.image_names import images_of
from fairlead.decide.images.view import ImageNode
from fairlead.decide.words import duration

#: Smaller images say nothing of a rate: their pulls are mostly waiting.
_MEASURED_BYTES_MIN = 50 * 10**6
#: A kubelet's words (`pkg/kubelet/images/image_manager.go`, since 1.30 with the size).
_PULLED = re.compile(
    r'^Successfully pulled image "[^"]*" in (?P<time>[\dhmsµn.]+) '
    r".*Image size: (?P<size>\d{1,15}) bytes"
)
_PARTS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(h|ms|m|s|µs|ns)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
_UNIT, _UNITS = 1000.0, ("B", "kB", "MB", "GB", "TB", "PB")


def size_text(size: float) -> str:
    """Return bytes as registries show them: 17.2 GB; "-" where they are not known."""
    value, unit = float(size), 0
    while value >= _UNIT and unit < len(_UNITS) - 1:
        value, unit = value / _UNIT, unit + 1
    return f"{value:.3g} {_UNITS[unit]}" if size else "-"


@dataclass(frozen=True, slots=True)
class ImageOutlook:
    """An image that some of a gang's nodes lack. Rate and size are None where nothing says them."""

    image: str
    nodes: int
    present: int
    size_bytes: int | None
    bytes_per_second: float | None

    @property
    def seconds(self) -> float | None:
        """How long the nodes that lack it pull, all at a time; None where it is not known."""
        if self.size_bytes is None or not self.bytes_per_second:
            return None
        return self.size_bytes / self.bytes_per_second

    @property
    def facts(self) -> dict[str, object]:
        """Return it as data; what is not known is left out."""
        found = {
            "image": self.image, "nodes": self.nodes, "present": self.present,
            "sizeBytes": self.size_bytes, "bytesPerSecond": self.bytes_per_second,
        }  # fmt: skip
        return {name: value for name, value in found.items() if value is not None}

    @property
    def words(self) -> str:
        """Return it as a sentence."""
        size = "" if self.size_bytes is None else f", {size_text(self.size_bytes)}"
        text = f"{self.image}{size}: on {self.present:,} of {self.nodes:,} nodes"
        if self.seconds is None or self.bytes_per_second is None:
            return f"{text}; how long the rest takes is not known"
        rate = size_text(self.bytes_per_second)
        return f"{text}, the rest in about {duration(self.seconds)} at {rate}/s, as measured"


def pull_rate(messages: Iterable[str]) -> float | None:
    """Return the bytes per second of pulls, by the events of kubelets: the median; None of none."""
    rates: list[float] = []
    for message in messages:
        found = _PULLED.match(message)
        if found is None or int(found["size"]) < _MEASURED_BYTES_MIN:
            continue
        parts = _PARTS.findall(found["time"])
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
        if seconds > 0:
            rates.append(int(found["size"]) / seconds)
    return median(rates) if rates else None


def outlook(
    job: Job, place: Placement | Nomination, nodes: Mapping[str, ImageNode], rate: float | None
) -> tuple[ImageOutlook, ...]:
    """Return the images of a gang that some node of its place lacks, the largest first.

    Nodes that report no images are left out: what they have is not known.
    """
    specs = {role.name: role.template.spec for role in job.spec.roles}
    wanted: dict[str, dict[str, None]] = {}
    for role in place.roles:
        for image in images_of(specs.get(role.role, PodSpec())):
            names = (name for name in role.nodes if name in nodes and nodes[name].images)
            wanted.setdefault(image, {}).update(dict.fromkeys(names))
    found: list[ImageOutlook] = []
    for image, where in wanted.items():
        present = sum(image in nodes[name].images for name in where)
        size = max((node.size_of(image) for node in nodes.values()), default=0)
        if present < len(where):
            found.append(ImageOutlook(image, len(where), present, size or None, rate))
    return tuple(sorted(found, key=lambda each: (-(each.size_bytes or 0), each.image)))
