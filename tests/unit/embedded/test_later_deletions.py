"""Deletions that come after another one: of the same object, and of the next with its name."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest
from tests.unit.embedded.test_service import (
    create,
    make,
    names,
    owned_by,
    pod_spec,
    settled,
    sweeping,
)

from fairlead.embedded.builtins import CONFIG_MAPS, CRDS, NAMESPACES, PODS
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.options import DeleteOptions, WriteOptions
from fairlead.embedded.verbs.service import ApiService
from fairlead.runtime.client import PatchType, Propagation
from fairlead.sim.loop import run

STAYS = "example.com/stays"
KEPT_BY = {
    Propagation.BACKGROUND: [],
    Propagation.FOREGROUND: ["foregroundDeletion"],
    Propagation.ORPHAN: ["orphan"],
}


@pytest.mark.parametrize("later", [None, 60, 61])
def test_a_later_deletion_that_is_not_sooner_changes_nothing(later: int | None) -> None:
    """No grace period is none at all here, not that of the pod's spec, which is shorter."""

    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        await create(service, PODS, "p", spec=pod_spec(nodeName="n"))
        key = ("default", "p")
        await service.delete(PODS, key, DeleteOptions(grace_period_seconds=60))
        before = service.get(PODS, *key).plain()
        assert before["metadata"]["deletionGracePeriodSeconds"] == 60
        await service.delete(PODS, key, DeleteOptions(grace_period_seconds=later))
        assert service.get(PODS, *key).plain() == before

    run(main())


@pytest.mark.parametrize(("first", "second"), list(product(Propagation, Propagation)))
def test_the_last_deletion_decides_what_becomes_of_dependents(
    first: Propagation, second: Propagation
) -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        await create(service, CONFIG_MAPS, "m", metadata={"finalizers": [STAYS]})
        key = ("default", "m")
        for propagation in (first, second):
            await service.delete(CONFIG_MAPS, key, DeleteOptions(propagation=propagation))
            found = service.get(CONFIG_MAPS, *key).plain()["metadata"]["finalizers"]
            assert found == [STAYS, *KEPT_BY[propagation]]

    run(main())


def test_dependents_stay_until_an_owner_that_is_deleted_in_the_background_is_gone() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        async with sweeping(service):
            owner = await create(service, CONFIG_MAPS, "owner", metadata={"finalizers": [STAYS]})
            await service.delete(CONFIG_MAPS, owner.key, DeleteOptions())
            await create(service, CONFIG_MAPS, "child", metadata=owned_by(owner))
            await settled(service)
            assert names(service, CONFIG_MAPS, "default")[:1] == ["child"]
            patch = {"metadata": {"finalizers": None}}
            await service.patch(
                CONFIG_MAPS, owner.key, patch, WriteOptions(), patch_type=PatchType.MERGE
            )
        assert {"child", "owner"}.isdisjoint(names(service, CONFIG_MAPS, "default"))

    run(main())


async def define(service: ApiService) -> ResourceInfo:
    """Define widgets, make one, `w`, and return its kind."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema},
    }  # fmt: skip
    spec = {
        "group": "example.dev", "scope": "Namespaced", "versions": [version],
        "names": {"plural": "widgets", "kind": "Widget"},
    }  # fmt: skip
    await create(service, CRDS, "widgets.example.dev", spec=spec)
    widgets = service.registry.find("example.dev", "v1", "widgets")
    assert widgets is not None
    await create(service, widgets, "w", extra={"a": 1})
    return widgets


async def _fill(service: ApiService) -> None:
    await create(service, NAMESPACES, "team")
    await create(service, CONFIG_MAPS, "m", "team")


@pytest.mark.parametrize("info", [CRDS, NAMESPACES])
def test_what_is_made_again_under_its_name_goes_with_its_content_again(info: ResourceInfo) -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        async with sweeping(service):
            for _ in range(3):
                await (define if info is CRDS else _fill)(service)
                name = "widgets.example.dev" if info is CRDS else "team"
                await service.delete(info, ("", name), DeleteOptions())
                assert name in names(service, info)
                await asyncio.sleep(1)
                assert name not in names(service, info)

    run(main())
