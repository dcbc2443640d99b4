"""Images by where they are and who uses them, as a table, as CSV and as plain data (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.api.cluster.image_set import ImageSet
from fairlead.api.kubernetes.core import Node
from fairlead.api.kubernetes.image_names import full_image_name
from fairlead.cli.formats.csv_table import as_csv
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.decide.images.outlook import size_text
from fairlead.decide.images.view import REPORTED_MAX

_ALWAYS, _LATEST = "Always", "latest"
_ENDED = ("Succeeded", "Failed")

COLUMNS = (
    Column("IMAGE"),
    Column("SIZE", Align.RIGHT),
    Column("NODES", Align.RIGHT),
    Column("JOBS", Align.RIGHT),
    Column("MEMBERS", Align.RIGHT),
    Column("SETS"),
    Column("NOTES", may_cut=True),
)
FIELDS = (
    "image", "sizeBytes", "nodes", "jobs", "members", "sets", "alwaysMembers", "versions",
    "isMovingTag",
)  # fmt: skip


@dataclass(slots=True)
class ImageLine:
    """An image by its full name. `versions` are the digests that nodes report under a tag."""

    image: str
    size_bytes: int = 0
    nodes: int = 0
    jobs: int = 0
    members: int = 0
    #: Members whose start asks the registry, though the node has the image.
    always_members: int = 0
    sets: list[str] = field(default_factory=list[str])
    versions: dict[str, None] = field(default_factory=dict[str, None])

    @property
    def is_moving_tag(self) -> bool:
        """True for a tag that is meant to move, or has moved: nodes have more than one version."""
        return self.image.endswith(f":{_LATEST}") or len(self.versions) > 1

    @property
    def is_used(self) -> bool:
        """True for an image of a job or a set."""
        return bool(self.jobs or self.sets)


def lines_of(
    nodes: Iterable[Node], jobs: Iterable[Mapping[str, Any]], sets: Iterable[ImageSet]
) -> list[ImageLine]:
    """Return a line for each image that a node reports or that is wanted: those of most members
    first, then the largest. `jobs` are as they are stored; those that have ended use nothing.
    """
    lines: dict[str, ImageLine] = {}

    def line(name: str) -> ImageLine:
        full = full_image_name(name)
        return lines.setdefault(full, ImageLine(full))

    for job in jobs:
        if job.get("status", {}).get("state") not in _ENDED:
            for image, (members, always) in _of_job(job).items():
                found = line(image)
                found.jobs += 1
                found.members += members
                found.always_members += always
    for image_set in sets:
        for image in dict.fromkeys(map(full_image_name, image_set.spec.images)):
            line(image).sets.append(image_set.metadata.name)
    for node in nodes:
        _count(node, lines, line)
    return sorted(lines.values(), key=lambda each: (-each.members, -each.size_bytes, each.image))


def _count(node: Node, lines: Mapping[str, ImageLine], line: Any) -> None:
    """Count the images of a node under each name that something wants, else under one."""
    for image in node.status.images:
        names = dict.fromkeys(map(full_image_name, image.names or ()))
        digest = next((name.partition("@")[2] for name in names if "@" in name), "")
        wanted = [name for name in names if name in lines and lines[name].is_used]
        tags = [name for name in names if "@" not in name]
        for name in wanted or tags[:1] or list(names)[:1]:
            found = line(name)
            found.nodes += 1
            found.size_bytes = max(found.size_bytes, image.size_bytes)
            if digest and "@" not in name:
                found.versions[digest] = None


def _of_job(job: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return members by image, and of these the ones that ask the registry each time."""
    found: dict[str, tuple[int, int]] = {}
    for role in job.get("spec", {}).get("roles", ()):
        count = role.get("count", 1)
        spec = role.get("template", {}).get("spec", {})
        always: dict[str, bool] = {}
        for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
            if image := container.get("image"):
                name = full_image_name(image)
                always[name] = always.get(name, False) or _asks_always(name, container)
        for name, asks in always.items():
            members, asking = found.get(name, (0, 0))
            found[name] = (members + count, asking + (count if asks else 0))
    return found


def _asks_always(name: str, container: Mapping[str, Any]) -> bool:
    default = _ALWAYS if name.endswith(f":{_LATEST}") else ""
    return (container.get("imagePullPolicy") or default) == _ALWAYS


def truncated(nodes: Iterable[Node]) -> int:
    """Return how many nodes report as many images as they may, and so may have more."""
    return sum(len(node.status.images) >= REPORTED_MAX for node in nodes)


def _notes(line: ImageLine) -> str:
    notes: list[str] = []
    if line.always_members:
        members = "start" if line.always_members == 1 else "starts"
        notes.append(f"Always: {line.always_members:,} {members} ask the registry")
    if len(line.versions) > 1:
        notes.append(f"the tag has moved: nodes have {len(line.versions)} versions")
    elif line.is_moving_tag and line.is_used:
        notes.append("the tag moves")
    if line.is_used and not line.nodes:
        notes.append("on no node")
    if not line.is_used:
        notes.append("not used by a job or a set")
    return "; ".join(notes)


def rows(lines: Iterable[ImageLine]) -> list[Row]:
    """Return the cells of COLUMNS."""
    return [
        (
            line.image, size_text(line.size_bytes), f"{line.nodes:,}", f"{line.jobs:,}",
            f"{line.members:,}", ", ".join(line.sets) or "-", _notes(line),
        )
        for line in lines
    ]  # fmt: skip


def facts(line: ImageLine) -> dict[str, Any]:
    """Return a line for programs."""
    return {
        "image": line.image, "sizeBytes": line.size_bytes, "nodes": line.nodes, "jobs": line.jobs,
        "members": line.members, "sets": list(line.sets), "alwaysMembers": line.always_members,
        "versions": sorted(line.versions), "isMovingTag": line.is_moving_tag,
    }  # fmt: skip


def csv_text(lines: Iterable[ImageLine]) -> str:
    """Return the lines as CSV with a header."""
    found = (facts(line) for line in lines)
    return as_csv(FIELDS, ([_cell(each[name]) for name in FIELDS] for each in found))


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
