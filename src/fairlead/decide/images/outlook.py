"""What is left to pull before a gang can start, and how long that takes as measured (pure).

A gang starts with the member whose node pulls longest. A node pulls its images one after another,
as kubelets do by default, each at the rate that was measured: by itself from that registry, else by
others. Sizes are of whole images, as nodes report no layers; that some of an image is there already
is in the rates, which are sizes by the time that pulls took.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import Nomination, Placement
from fairlead.api.kubernetes.core import PodSpec
from fairlead.api.kubernetes.image_names import images_of
from fairlead.decide.images.plan import registry_of
from fairlead.decide.images.pulled import ImagePull
from fairlead.decide.images.view import ImageNode
from fairlead.decide.words import duration

_UNIT, _UNITS = 1000.0, ("B", "kB", "MB", "GB", "TB", "PB")


def size_text(size: float) -> str:
    """Return bytes as registries show them: 17.2 GB; "-" where they are not known."""
    value, unit = float(size), 0
    while value >= _UNIT and unit < len(_UNITS) - 1:
        value, unit = value / _UNIT, unit + 1
    return f"{value:.3g} {_UNITS[unit]}" if size else "-"


@dataclass(frozen=True, slots=True)
class PullRates:
    """Bytes per second of pulls, by registry and by node and registry; medians of what is known."""

    of_registry: Mapping[str, float]
    of_node: Mapping[tuple[str, str], float]

    @classmethod
    def measured(cls, pulls: Iterable[ImagePull]) -> PullRates:
        """Return the rates of pulls, of those that say one."""
        by_registry: dict[str, list[float]] = defaultdict(list)
        by_node: dict[tuple[str, str], list[float]] = defaultdict(list)
        for pull in pulls:
            if (rate := pull.bytes_per_second) is not None:
                by_registry[pull.registry].append(rate)
                by_node[pull.node, pull.registry].append(rate)
        return cls(
            {key: median(rates) for key, rates in by_registry.items()},
            {key: median(rates) for key, rates in by_node.items()},
        )

    def of(self, node: str, image: str) -> float | None:
        """Return the rate at which a node pulls an image, by full name; None where no pull from its
        registry was measured.
        """
        registry = registry_of(image)
        return self.of_node.get((node, registry)) or self.of_registry.get(registry)


NOT_MEASURED = PullRates({}, {})


@dataclass(frozen=True, slots=True)
class ImageOutlook:
    """An image that some of a gang's nodes lack. `bytes_per_second` is that of the slowest of them;
    rate and size are None where nothing says them.
    """

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


@dataclass(frozen=True, slots=True)
class GangOutlook:
    """What is left to pull for a gang, the largest image first, and the node that pulls longest;
    "" where it is not known which one, as a size or a rate is not.
    """

    images: tuple[ImageOutlook, ...] = ()
    slowest_node: str = ""
    seconds: float = 0.0

    def __bool__(self) -> bool:
        """True while something is left to pull."""
        return bool(self.images)

    @property
    def lines(self) -> tuple[str, ...]:
        """Return it in sentences; () where nothing is left to pull."""
        images = tuple(each.words for each in self.images)
        if not self.slowest_node:
            return images
        wait = f"{self.slowest_node} has its images last, in about {duration(self.seconds)}"
        return (*images, f"the gang starts with its slowest node: {wait}")

    @property
    def facts(self) -> dict[str, object]:
        """Return it as fields of an answer."""
        if not self.images:
            return {}
        slowest = {"node": self.slowest_node, "seconds": round(self.seconds, 3)}
        found: dict[str, object] = {"images": [each.facts for each in self.images]}
        return {**found, "slowestPull": slowest} if self.slowest_node else found


def outlook(
    job: Job, place: Placement | Nomination, nodes: Mapping[str, ImageNode], rates: PullRates
) -> GangOutlook:
    """Return what is left to pull for a gang on the nodes of its place.

    Nodes that report no images are left out: what they have is not known.
    """
    specs = {role.name: role.template.spec for role in job.spec.roles}
    wanted: dict[str, dict[str, None]] = {}
    for role in place.roles:
        for image in images_of(specs.get(role.role, PodSpec())):
            names = (name for name in role.nodes if name in nodes and nodes[name].images)
            wanted.setdefault(image, {}).update(dict.fromkeys(names))
    found: list[ImageOutlook] = []
    seconds: dict[str, float] = defaultdict(float)
    is_known = True
    for image, where in wanted.items():
        lacking = [name for name in where if image not in nodes[name].images]
        if not lacking:
            continue
        size = max((node.size_of(image) for node in nodes.values()), default=0)
        measured = [rates.of(name, image) for name in lacking]
        known = [rate for rate in measured if rate]
        slowest = min(known) if len(known) == len(lacking) else None
        present = len(where) - len(lacking)
        found.append(ImageOutlook(image, len(where), present, size or None, slowest))
        is_known = is_known and bool(size) and slowest is not None
        for name, rate in zip(lacking, measured, strict=True):
            seconds[name] += size / rate if rate else 0.0
    images = tuple(sorted(found, key=lambda each: (-(each.size_bytes or 0), each.image)))
    if not images or not is_known:
        return GangOutlook(images)
    last = min(seconds, key=lambda name: (-seconds[name], name))
    return GangOutlook(images, last, seconds[last])
