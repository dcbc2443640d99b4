"""What updates may make, and what they count as a change."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.embedded.test_later_deletions import define
from tests.unit.embedded.test_service import create, make, names, pod_spec

from fairlead.api.status import NotFound
from fairlead.embedded.builtins import LEASES, PODS
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.options import WriteOptions
from fairlead.runtime.client import PatchType
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
