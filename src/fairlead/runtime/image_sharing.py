"""One copy of the images that many nodes report: of a set of images, and of each image in a set.

A kubelet reports 50 images with several names each, some 15 kB. The nodes of a pool have most of
them in common. After decoding, a set that is equal to one seen before is replaced by that one; of a
new set each image is. So a node costs no more than a reference for each image, and for images that
did not change since its last report nothing. Images are immutable and equal, so no reader can tell.
The tables forget everything when they are full.
"""

from __future__ import annotations

from msgspec.structs import force_setattr

from fairlead.api.core import ContainerImage, Node

SETS_MAX, IMAGES_MAX = 16_384, 65_536


class ImageSharing:
    """Shares images among the nodes that it is shown."""

    def __init__(self, sets_max: int = SETS_MAX, images_max: int = IMAGES_MAX) -> None:
        self._sets_max, self._images_max = sets_max, images_max
        self._sets: dict[tuple[ContainerImage, ...], tuple[ContainerImage, ...]] = {}
        self._images: dict[ContainerImage, ContainerImage] = {}

    def share(self, node: Node) -> None:
        """Replace the images of a freshly decoded node by equal ones."""
        images = node.status.images
        if images:
            force_setattr(node.status, "images", self._sets.get(images) or self._added(images))

    def _added(self, images: tuple[ContainerImage, ...]) -> tuple[ContainerImage, ...]:
        if len(self._sets) >= self._sets_max:
            self._sets.clear()
        if len(self._images) >= self._images_max:
            self._images.clear()
        shared = tuple([self._images.setdefault(image, image) for image in images])
        self._sets[shared] = shared
        return shared
