"""Names of images are compared as a container runtime understands them."""

from __future__ import annotations

import pytest

from fairlead.api.kubernetes.core import Container, PodSpec
from fairlead.api.kubernetes.image_names import full_image_name, images_of

SUM = "sha256:0f"


@pytest.mark.parametrize(
    ("written", "full"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("busybox:1.36", "docker.io/library/busybox:1.36"),
        ("docker.io/busybox", "docker.io/library/busybox:latest"),
        ("pytorch/pytorch:2.4", "docker.io/pytorch/pytorch:2.4"),
        ("docker.io/pytorch/pytorch:2.4", "docker.io/pytorch/pytorch:2.4"),
        ("nvcr.io/nvidia/nccl/tests", "nvcr.io/nvidia/nccl/tests:latest"),
        ("registry:5000/train", "registry:5000/train:latest"),
        ("registry:5000/train:7", "registry:5000/train:7"),
        ("localhost/train", "localhost/train:latest"),
        (f"train@{SUM}", f"docker.io/library/train@{SUM}"),
        (f"registry:5000/a/train:7@{SUM}", f"registry:5000/a/train@{SUM}"),
    ],
)
def test_an_image_has_one_full_name(written: str, full: str) -> None:
    assert full_image_name(written) == full
    assert full_image_name(full) == full


def test_a_pod_needs_the_images_of_all_its_containers_each_once() -> None:
    main, proxy = Container("main", image="train"), Container("proxy", image="b/proxy:1")
    again, none = Container("again", image="train:latest"), Container("none")
    spec = PodSpec(
        containers=(proxy, main, again, none), init_containers=(Container("c", "a/x:1"),)
    )
    assert images_of(spec) == (
        "docker.io/a/x:1", "docker.io/b/proxy:1", "docker.io/library/train:latest",
    )  # fmt: skip
