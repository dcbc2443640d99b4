"""The images of a node, which the planner reads the names of, stay as they were written."""

from __future__ import annotations

from tests.unit.embedded.test_service import make

from fairlead.api.kubernetes.core import ContainerImage
from fairlead.api.resources import NODES
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.storage.store import Store
from fairlead.sim.loop import run

IMAGES = [
    {"names": ["docker.io/library/train@sha256:1", "docker.io/library/train:1"], "sizeBytes": 9},
    {"names": ["proxy:1"], "sizeBytes": 5, "later": {"x": 1}},
    {"sizeBytes": 3},
]


def test_images_are_served_in_full_and_outlive_reports_of_other_fields() -> None:
    async def main() -> None:
        client = InProcessClient(make(Store.open(None)))
        await client.create(NODES, {"metadata": {"name": "n"}, "status": {"images": IMAGES}})
        ready = {"type": "Ready", "status": "True"}
        patch = {"status": {"conditions": [ready]}}
        node = await client.patch(NODES, "n", patch, subresource="status")
        assert node.status.images == (
            ContainerImage(
                ("docker.io/library/train@sha256:1", "docker.io/library/train:1"), size_bytes=9
            ),
            ContainerImage(("proxy:1",), size_bytes=5), ContainerImage(size_bytes=3),
        )  # fmt: skip
        raw = await client.get(NODES.raw, "n")
        assert raw["status"]["images"] == IMAGES
        assert raw["status"]["conditions"] == [ready]
        named = {"status": {"images": [{"names": None, "sizeBytes": 1}]}}
        node = await client.patch(NODES, "n", named, subresource="status")
        assert node.status.images == (ContainerImage(size_bytes=1),)

    run(main())
