"""Which nodes report which images, and how much of a member's images each node has to pull.

Each distinct image has a number, each node a column of the numbers of its images. So which nodes
have one is a comparison of integers for all nodes, made when a member first asks for it, and kept:
afterwards only the nodes whose images changed are looked at again. A status report that changes no
image costs one comparison of references, as decoded nodes share their images
(`kube/decoding.py`).

Of how long a pull takes, a node says the size alone: rates are those of a registry and of a pool,
so among nodes that are as good otherwise fewer bytes are an earlier start. Images of one size count
alike, and a small one beside a large one little. What no node has is pulled wherever a member goes.

A kubelet reports its 50 largest images by default (`nodeStatusMaxImages`), each with 5 names at
most. So an image that is not reported may still be there: this is a preference and never a
condition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fairlead.api.kubernetes.core import ContainerImage
from fairlead.api.kubernetes.image_names import full_image_name
from fairlead.model.inventory.labels import resized

Ints: TypeAlias = npt.NDArray[np.int64]

#: Of each node so many images count, the first, which are the largest.
IMAGES_PER_NODE_MAX = 64
#: A node lacks so many parts of a member's images at most, by their bytes; one at least where it
#: lacks anything.
LACKING_MAX = 3
#: Sets of images for which is kept what the nodes lack.
_KEPT_MAX = 256
#: Numbers of images that no node has any more.
_NUMBERS_SPARE_MAX = 4096
#: The number of no image.
_NONE = 0
#: What a node says beyond it is a mistake; sums of a member's images stay whole numbers of 64 bits.
_BYTES_MAX = 1 << 44


@dataclass(slots=True)
class _Lacking:
    """What `lacking` answers, by which sizes, and how many of the changes it has seen."""

    parts: Ints
    sizes: tuple[int, ...]
    seen: int


class ImageTable:
    """Images of all nodes, by slot."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._images: dict[int, tuple[ContainerImage, ...]] = {}
        #: int32[M, N]: the numbers of each node's images, filled up with _NONE.
        self._cells: npt.NDArray[np.int32] = np.zeros((0, capacity), dtype=np.int32)
        self._numbers: dict[ContainerImage, int] = {}
        self._numbers_max = _NUMBERS_SPARE_MAX
        #: By number: the size of an image in bytes, and how many nodes have it.
        self._sizes: list[int] = [0]
        self._holders: npt.NDArray[np.int32] = np.zeros(1, dtype=np.int32)
        #: The images that have a name; a tag may be one image here and another one there.
        self._named: dict[str, list[int]] = {}
        self._kept: dict[tuple[str, ...], _Lacking] = {}
        #: Slots whose images changed, in order.
        self._changed: list[int] = []

    def __bool__(self) -> bool:
        """True while some node reports images."""
        return bool(self._images)

    def resize(self, capacity: int) -> None:
        """Have so many slots from now on."""
        self._cells = resized(self._cells, capacity)
        self._capacity = capacity
        self._forget()

    def set(self, slot: int, images: tuple[ContainerImage, ...]) -> None:
        """Set the images that a node reports, the largest first."""
        images = images[:IMAGES_PER_NODE_MAX]
        before = self._images.get(slot, ())
        if images is before or images == before:
            return
        if images:
            self._images[slot] = images
        else:
            del self._images[slot]
        if len(images) > len(self._cells):
            more = np.zeros((len(images) - len(self._cells), self._capacity), dtype=np.int32)
            self._cells = np.concatenate([self._cells, more])
        if len(self._numbers) > self._numbers_max:
            self._renumber()
        else:
            self._write(slot)
        self._changed.append(slot)
        if len(self._changed) > self._capacity:
            self._forget()

    def lacking(self, images: tuple[str, ...]) -> Ints:
        """Return int64[N]: how much of these images, by full names, each node lacks, in parts of
        LACKING_MAX of their bytes, rounded up. Do not change it.
        """
        sizes = tuple(map(self._size_of, images))
        kept = self._kept.get(images)
        if kept is None or kept.sizes != sizes:
            if len(self._kept) >= _KEPT_MAX:
                self._forget()
            parts = self._parts(images, sizes, np.arange(self._capacity))
            kept = self._kept[images] = _Lacking(parts, sizes, len(self._changed))
        elif kept.seen < len(self._changed):
            slots = np.unique(np.array(self._changed[kept.seen :], dtype=np.int64))
            kept.parts[slots] = self._parts(images, sizes, slots)
            kept.seen = len(self._changed)
        return kept.parts

    def uneven(self, images: tuple[str, ...], exists: npt.NDArray[np.bool_]) -> Ints | None:
        """Return the same; None where the nodes that exist, bool[N], are alike."""
        if not images or not self._images:
            return None
        lacking = self.lacking(images)
        known = lacking[exists]
        return None if known.min() == known.max() else lacking

    def _size_of(self, name: str) -> int:
        """Return the bytes of the largest image of a name that some node has, at least 1; 0 where
        none has it.
        """
        numbers = self._named.get(name, ())
        return max((max(self._sizes[n], 1) for n in numbers if self._holders[n] > 0), default=0)

    def _parts(self, images: tuple[str, ...], sizes: tuple[int, ...], slots: Ints) -> Ints:
        cells = self._cells if len(slots) == self._capacity else self._cells[:, slots]
        total = sum(sizes)
        left = np.full(len(slots), total, dtype=np.int64)
        for name, size in zip(images, sizes, strict=True):
            if not size:
                continue
            found = np.zeros(len(slots), dtype=np.bool_)
            for number in self._named[name]:
                found |= (cells == number).any(axis=0)
            left -= size * found
        return -(-LACKING_MAX * left // max(total, 1))

    def _forget(self) -> None:
        """Forget what is kept; it is counted from the start when it is asked for."""
        self._kept.clear()
        self._changed.clear()

    def _write(self, slot: int) -> None:
        numbers = [self._number(image) for image in self._images.get(slot, ())]
        if len(self._sizes) > len(self._holders):
            self._holders = resized(self._holders, 2 * len(self._sizes))
        self._holders[self._cells[:, slot]] -= 1
        self._cells[:, slot] = _NONE
        self._cells[: len(numbers), slot] = numbers
        self._holders[self._cells[:, slot]] += 1

    def _number(self, image: ContainerImage) -> int:
        number = self._numbers.get(image)
        if number is None:
            number = self._numbers[image] = len(self._sizes)
            self._sizes.append(min(image.size_bytes, _BYTES_MAX))
            for name in {full_image_name(name) for name in image.names or ()}:
                self._named.setdefault(name, []).append(number)
        return number

    def _renumber(self) -> None:
        """Drop the numbers of images that no node has any more."""
        self._numbers.clear()
        self._named.clear()
        self._cells.fill(_NONE)
        self._sizes, self._holders = [0], np.zeros(1, dtype=np.int32)
        for slot in self._images:
            self._write(slot)
        self._numbers_max = 2 * len(self._numbers) + _NUMBERS_SPARE_MAX
