"""The ImageSet kind (fairlead.dev/v1alpha1, cluster scope): images that are to be on nodes.

An administrator writes it. The images controller pulls what is missing, within its rates, and
writes the status. Nothing is ever removed from a node: that is the kubelet's garbage collection.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from fairlead.api.jobs.job_defaults import IMAGE_MAX
from fairlead.api.meta import Condition, Instant, ObjectMeta, Wire
from fairlead.api.values.bounds import INSTANT_MAX, INT32_MAX, LabelKey, Name, ObjectName, doc

IMAGES_MAX = 32
POOLS_MAX = 64
SELECTOR_MAX = 16
SECRETS_MAX = 8
MESSAGE_MAX = 512


class ImageSetPhase(Enum):
    """What is done about an image set now."""

    PENDING = "Pending"  # some node lacks an image
    READY = "Ready"
    EXPIRED = "Expired"


class ImageSetSpec(Wire, frozen=True):
    """Which images, and where."""

    images: Annotated[
        tuple[Annotated[str, doc(minLength=1, maxLength=IMAGE_MAX)], ...],
        doc("Names of the images, best with their digests.", minItems=1, maxItems=IMAGES_MAX),
    ]
    pools: Annotated[
        tuple[Name, ...], doc("Node pools of the nodes. Default: all.", maxItems=POOLS_MAX)
    ] = ()
    node_selector: Annotated[
        dict[LabelKey, Name],
        doc("Labels of the nodes. Default: any.", maxProperties=SELECTOR_MAX),
    ] = {}
    keep_until: Annotated[
        Instant | None,
        doc("No image is pulled after this. Default: until the set is deleted.",
            maxLength=INSTANT_MAX),
    ] = None  # fmt: skip
    image_pull_secrets: Annotated[
        tuple[ObjectName, ...],
        doc("Secrets in the namespace of the controllers by which the images are pulled.",
            maxItems=SECRETS_MAX),
    ] = ()  # fmt: skip


class ImageOnNodes(Wire, frozen=True):
    """How far one image is."""

    image: Annotated[str, doc("Name of the image, as in the spec.", maxLength=IMAGE_MAX)]
    present: Annotated[int, doc("Nodes that have it.", ge=0, maximum=INT32_MAX)] = 0
    pulling: Annotated[int, doc("Nodes that pull it.", ge=0, maximum=INT32_MAX)] = 0
    size_bytes: Annotated[int, doc("Its size as nodes report it; 0: not known.", ge=0)] = 0
    message: Annotated[
        str, doc("Why nodes lack it that do not pull it.", maxLength=MESSAGE_MAX)
    ] = ""


class ImageSetStatus(Wire, frozen=True):
    """How far the set is, written by the images controller."""

    observed_generation: Annotated[int, doc("The generation that this is about.")] = 0
    conditions: Annotated[
        tuple[Condition, ...], doc("Ready: all nodes of the set have all of its images.")
    ] = ()
    phase: Annotated[ImageSetPhase | None, doc("What is done about it now.")] = None
    nodes: Annotated[int, doc("Nodes that the set is for.", ge=0, maximum=INT32_MAX)] = 0
    lacking: Annotated[
        int, doc("Nodes of these that lack the rarest of the images.", ge=0, maximum=INT32_MAX)
    ] = 0
    images: Annotated[
        tuple[ImageOnNodes, ...], doc("Each image of the set.", maxItems=IMAGES_MAX)
    ] = ()


class ImageSet(Wire, frozen=True):
    """Images that are to be on nodes before work comes."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ImageSetSpec = ImageSetSpec(images=())
    status: ImageSetStatus = ImageSetStatus()
