"""Layers that images share, by the manifests of their registries (pure).

Nodes report no layers. A registry does: a layer is its digest, so two images with the same digest
have it once on a node, and once on the wire.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.cli.formats.csv_table import as_csv
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.decide.images.outlook import size_text

COLUMNS = (
    Column("IMAGE"),
    Column("LAYERS", Align.RIGHT),
    Column("COMPRESSED", Align.RIGHT),
    Column("SHARED", Align.RIGHT),
    Column("OWN", Align.RIGHT),
)
FIELDS = ("image", "layers", "compressedBytes", "sharedBytes", "ownBytes")


@dataclass(frozen=True, slots=True)
class LayerLine:
    """An image: bytes of its layers, and of those that another image of the list has, too."""

    image: str
    layers: int
    size_bytes: int
    shared_bytes: int

    @property
    def facts(self) -> dict[str, Any]:
        """Return it for programs."""
        own = self.size_bytes - self.shared_bytes
        return dict(zip(FIELDS, (self.image, self.layers, self.size_bytes, self.shared_bytes, own),
                        strict=True))  # fmt: skip


def lines_of(layers: Mapping[str, Mapping[str, int]]) -> list[LayerLine]:
    """Return a line for each image, the largest first; `layers` are bytes by digest, by image."""
    users = Counter(digest for each in layers.values() for digest in each)
    found = [
        LayerLine(
            image, len(each), sum(each.values()),
            sum(size for digest, size in each.items() if users[digest] > 1),
        )
        for image, each in layers.items()
    ]  # fmt: skip
    return sorted(found, key=lambda line: (-line.size_bytes, line.image))


def summary(layers: Mapping[str, Mapping[str, int]]) -> str:
    """Return what all images are together, in a sentence."""
    once = {digest: size for each in layers.values() for digest, size in each.items()}
    total = sum(sum(each.values()) for each in layers.values())
    return (
        f"{len(layers):,} images of {size_text(total)}: {size_text(sum(once.values()))} with each "
        "layer counted once, which is what a node with all of them pulls"
    )


def rows(lines: Sequence[LayerLine]) -> list[Row]:
    """Return the cells of COLUMNS."""
    return [
        (
            line.image, f"{line.layers:,}", size_text(line.size_bytes),
            size_text(line.shared_bytes), size_text(line.size_bytes - line.shared_bytes),
        )
        for line in lines
    ]  # fmt: skip


def csv_text(lines: Sequence[LayerLine]) -> str:
    """Return the lines as CSV with a header."""
    return as_csv(FIELDS, (list(line.facts.values()) for line in lines))
