"""Objects that own each other in a circle."""

from __future__ import annotations

from typing import Any

from tests.unit.embedded.test_service import create, make, settled, sweeping

from fairlead.embedded.builtins import CONFIG_MAPS
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.options import DeleteOptions, WriteOptions
from fairlead.runtime.client import PatchType, Propagation
from fairlead.sim.loop import run


def test_a_foreground_deletion_is_not_blocked_by_a_circle_of_owners() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        uids = {n: (await create(service, CONFIG_MAPS, n)).uid for n in ("a", "b", "c")}
        for name, owner in (("a", "c"), ("b", "a"), ("c", "b")):
            reference: dict[str, Any] = {
                "apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uids[owner],
                "controller": True, "blockOwnerDeletion": True,
            }  # fmt: skip
            patch = {"metadata": {"ownerReferences": [reference]}}
            await service.patch(
                CONFIG_MAPS, ("default", name), patch, WriteOptions(), patch_type=PatchType.MERGE
            )
        async with sweeping(service):
            await settled(service)
            options = DeleteOptions(propagation=Propagation.FOREGROUND)
            await service.delete(CONFIG_MAPS, ("default", "a"), options)
            await settled(service)
            left = [n for n in uids if service.store.get(CONFIG_MAPS.name, ("default", n))]
            assert left == []

    run(main())
