"""What updates may make, and what they count as a change."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.embedded.test_later_deletions import define
from tests.unit.embedded.test_service import create, make, names, pod_spec

from fairlead.api.status import NotFound
from fairlead.embedded.builtins import LEASES, NAMESPACES, PODS
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.options import DeleteOptions, WatchOptions, WriteOptions
from fairlead.runtime.client import EventType, PatchType
from fairlead.sim.loop import run


@pytest.mark.parametrize("uid", ["", "uid-of-another"])
def test_a_lease_is_made_by_an_update_unless_that_names_one_that_is_gone(uid: str) -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        body = {"metadata": {"name": "l", **({"uid": uid} if uid else {})}}
        key = ("default", "l")
        if uid:
            with pytest.raises(NotFound):
                await service.replace(LEASES, key, body, WriteOptions())
        else:
            await service.replace(LEASES, key, body, WriteOptions())
        assert names(service, LEASES, "default") == ([] if uid else ["l"])

    run(main())


@pytest.mark.parametrize(
    ("patch", "generation"),
    [
        ({"extra": {"a": 2}}, 2), ({"extra": None}, 2), ({"more": 1}, 2), ({"extra": {"a": 1}}, 1),
        ({"metadata": {"labels": {"x": "y"}}}, 1),
    ],
)  # fmt: skip
def test_a_generation_counts_what_changes_beside_the_metadata(
    patch: dict[str, Any], generation: int
) -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        widgets, key = await define(service), ("default", "w")
        await service.patch(widgets, key, patch, WriteOptions(), patch_type=PatchType.MERGE)
        assert service.get(widgets, *key).plain()["metadata"]["generation"] == generation

    run(main())


def test_an_update_of_the_status_may_add_and_remove_labels_and_nothing_of_the_spec() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        labels = {"kept": "1", "gone": "2"}
        await create(service, PODS, "p", metadata={"labels": labels}, spec=pod_spec())
        key = ("default", "p")
        for wanted in ({"kept": "1", "new": "3"}, {}):
            body = service.get(PODS, *key).plain()
            body["metadata"]["labels"] = wanted
            body["spec"]["nodeName"] = "n1"
            await service.replace(PODS, key, body, WriteOptions(), subresource="status")
            found = service.get(PODS, *key).plain()
            assert found["metadata"].get("labels", {}) == wanted
            assert "nodeName" not in found["spec"]

    run(main())


@pytest.mark.parametrize("info", [PODS, NAMESPACES], ids=["pod", "namespace"])
def test_what_watchers_read_is_what_was_stored_whatever_a_write_leaves_as_it_was(
    info: ResourceInfo,
) -> None:
    """Parts that a write does not touch are taken over from the version before, undecoded."""

    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        body: dict[str, Any] = {"metadata": {"finalizers": ["a/b"]}}
        if info is PODS:
            body["spec"] = pod_spec()
        await create(service, info, "x", "default", **body)
        key = ("default" if info is PODS else "", "x")
        watch = service.watch(
            info, key[0], WatchOptions(resource_version=str(service.store.version))
        )

        async def patched(body: dict[str, Any], subresource: str = "") -> None:
            await service.patch(
                info, key, body, WriteOptions(), patch_type=PatchType.MERGE, subresource=subresource
            )

        await patched({"metadata": {"labels": {"c": "d"}}})
        await patched({"status": {"phase": "Terminating"}}, "status")
        await service.delete(info, key, DeleteOptions(grace_period_seconds=0))
        await patched({"metadata": {"finalizers": None}})
        if info is NAMESPACES:
            freed = {"metadata": {"name": "x"}, "spec": {"finalizers": []}}
            await service.replace(info, key, freed, WriteOptions(), subresource="finalize")
        seen = 0
        async for item in watch:
            record, seen = item.record, seen + 1
            assert record is not None
            assert record.typed(info.type) == msgspec.json.decode(record.data, type=info.type)
            if item.type is EventType.DELETED:
                break
        assert seen >= 4

    run(main())
