"""Which nodes report which images, and how many of a member's images each node lacks.

Each distinct image has a number, each node a column of the numbers of its images. So which nodes
have one is a comparison of integers for all nodes, made when a member first asks for it, and kept:
afterwards only the nodes whose images changed are looked at again. A status report that changes no
image costs one comparison of references, as decoded nodes share their images
(`kube/decoding.py`).

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
#: A node lacks so many images at most; more make no difference.
LACKING_MAX = 3
#: Sets of images for which is kept what the nodes lack.
_KEPT_MAX = 256
#: Numbers of images that no node has any more.
_NUMBERS_SPARE_MAX = 4096
#: The number of no image.
_NONE = 0


@dataclass(slots=True)
class _Lacking:
    """What `lacking` answers, and how many of the changes it has seen."""

    counts: Ints
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
        """Return int64[N]: how many of these images, by full names, each node lacks, LACKING_MAX at
        most. Do not change it.
        """
        kept = self._kept.get(images)
        if kept is None:
            if len(self._kept) >= _KEPT_MAX:
                self._forget()
            every = np.arange(self._capacity)
            kept = self._kept[images] = _Lacking(self._count(images, every), len(self._changed))
        elif kept.seen < len(self._changed):
            slots = np.unique(np.array(self._changed[kept.seen :], dtype=np.int64))
            kept.counts[slots] = self._count(images, slots)
            kept.seen = len(self._changed)
        return kept.counts

    def _count(self, images: tuple[str, ...], slots: Ints) -> Ints:
        cells = self._cells if len(slots) == self._capacity else self._cells[:, slots]
        counts = np.full(len(slots), len(images), dtype=np.int64)
        for name in images:
            found = np.zeros(len(slots), dtype=np.bool_)
            for number in self._named.get(name, ()):
                found |= (cells == number).any(axis=0)
            counts -= found
        return np.minimum(counts, LACKING_MAX, out=counts)

    def _forget(self) -> None:
        """Forget what is kept; it is counted from the start when it is asked for."""
        self._kept.clear()
        self._changed.clear()

    def _write(self, slot: int) -> None:
        numbers = [self._number(image) for image in self._images.get(slot, ())]
        self._cells[:, slot] = _NONE
        self._cells[: len(numbers), slot] = numbers

    def _number(self, image: ContainerImage) -> int:
        number = self._numbers.get(image)
        if number is None:
            number = self._numbers[image] = len(self._numbers) + 1
            for name in {full_image_name(name) for name in image.names or ()}:
                self._named.setdefault(name, []).append(number)
        return number

    def _renumber(self) -> None:
        """Drop the numbers of images that no node has any more."""
        self._numbers.clear()
        self._named.clear()
        for slot in self._images:
            self._write(slot)
        self._numbers_max = 2 * len(self._numbers) + _NUMBERS_SPARE_MAX
