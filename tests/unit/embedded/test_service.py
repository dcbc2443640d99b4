"""The verbs where a test over the wire cannot look: limits, restarts, order, crashes."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_SECONDS

from fairlead.api.status import ApiError, BadRequest, Conflict, Expired, InternalError, Invalid
from fairlead.api.values.times import format_time
from fairlead.embedded.builtins import CONFIG_MAPS, CRDS, EVENTS, NAMESPACES, NODES, PODS
from fairlead.embedded.registry import Registry
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.storage.records import Record
from fairlead.embedded.storage.store import Store, StoreOptions
from fairlead.embedded.verbs.options import DeleteOptions, ListOptions, WatchOptions, WriteOptions
from fairlead.embedded.verbs.service import WATCH_BUFFER_MAX, ApiService
from fairlead.runtime.client import EventType, PatchType, Propagation
from fairlead.runtime.clock import LoopClock
from fairlead.sim.loop import run

EPOCH = 1_700_000_000.0


def make(store: Store, watch_buffer_max: int = WATCH_BUFFER_MAX) -> ApiService:
    numbers = itertools.count(store.version)
    return ApiService(
        store, Registry.with_builtins(), LoopClock(EPOCH),
        ids=lambda: f"uid-{next(numbers)}", rng=random.Random(3), watch_buffer_max=watch_buffer_max,
    )  # fmt: skip


@asynccontextmanager
async def sweeping(service: ApiService) -> AsyncIterator[ApiService]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(service.run())
        yield service
        await settled(service)
        task.cancel()


async def settled(service: ApiService) -> None:
    """Virtual time moves only when nothing can run; a second of it is thus quiescence."""
    await asyncio.sleep(1)
    assert service.backlog == 0


async def create(
    service: ApiService, info: ResourceInfo, name: str, namespace: str = "default", **body: Any
) -> Record:
    metadata = {"name": name, **body.pop("metadata", {})}
    place = namespace if info.namespaced else ""
    return await service.create(info, place, {"metadata": metadata, **body}, WriteOptions())


def pod_spec(**more: Any) -> dict[str, Any]:
    return {"containers": [{"name": "main"}], **more}


def owned_by(*owners: Record, kind: str = "ConfigMap") -> dict[str, Any]:
    return {
        "ownerReferences": [
            {"apiVersion": "v1", "kind": kind, "name": o.name, "uid": o.uid} for o in owners
        ]
    }


def names(service: ApiService, info: ResourceInfo, namespace: str = "") -> list[str]:
    return [record.name for record in service.list(info, namespace, ListOptions()).records]


def test_p37_a_token_whose_snapshot_is_gone_is_expired_and_offers_to_go_on() -> None:
    async def main() -> None:
        service = make(Store.open(None, StoreOptions(history_max=4)))
        await service.bootstrap()
        for name in "abcd":
            await create(service, CONFIG_MAPS, name)
        first = service.list(CONFIG_MAPS, "default", ListOptions(limit=2))
        for name in "cefghi":
            if name == "c":
                await service.delete(CONFIG_MAPS, ("default", "c"), DeleteOptions())
            else:
                await create(service, CONFIG_MAPS, name)
        with pytest.raises(Expired) as caught:
            service.list(CONFIG_MAPS, "default", ListOptions(limit=2, continue_=first.continue_))
        token = caught.value.status.metadata.continue_
        rest = service.list(CONFIG_MAPS, "default", ListOptions(continue_=token))
        assert [r.name for r in rest.records] == ["d", "e", "f", "g", "h", "i"]
        assert rest.resource_version == str(service.store.version)

    run(main())


def test_p44_a_watch_from_a_forgotten_version_is_expired() -> None:
    async def main() -> None:
        service = make(Store.open(None, StoreOptions(history_max=4)))
        await service.bootstrap()
        start = str(service.store.version)
        for name in "abcdef":
            await create(service, CONFIG_MAPS, name)
        with pytest.raises(Expired, match="too old resource version"):
            service.watch_start(CONFIG_MAPS, "", WatchOptions(resource_version=start))
        start = str(service.store.version - 4)
        seen = service.watch_start(CONFIG_MAPS, "", WatchOptions(resource_version=start))
        assert [record.name for _, record in seen.initial] == ["c", "d", "e", "f"]

    run(main())


def test_p49_a_slow_watcher_is_ended_and_no_other_one_loses_anything() -> None:
    async def main() -> None:
        service = make(Store.open(None), watch_buffer_max=10)
        await service.bootstrap()
        options = WatchOptions(resource_version=str(service.store.version))
        slow = service.watch(CONFIG_MAPS, "", options)
        quick = service.watch(CONFIG_MAPS, "", options)
        quick_seen: list[int] = []
        for i in range(25):
            record = await create(service, CONFIG_MAPS, f"m{i}")
            quick_seen.append((await anext(quick)).version)
            assert quick_seen[-1] == record.version
        slow_seen = [item.version async for item in slow]
        assert slow_seen == quick_seen[:10]
        assert service.watch_count == 1
        again = WatchOptions(resource_version=str(slow_seen[-1]))
        resumed = service.watch_start(CONFIG_MAPS, "", again)
        assert [record.version for _, record in resumed.initial] == quick_seen[10:]

    run(main())


def test_p46_p48_bookmarks_come_every_minute_and_the_end_on_time() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        options = WatchOptions(resource_version="0", timeout_seconds=150, allow_bookmarks=True)
        loop = asyncio.get_running_loop()
        seen = [(item.type, loop.time()) async for item in service.watch(CONFIG_MAPS, "", options)]
        bookmark = EventType.BOOKMARK
        assert seen == [(bookmark, 60.0), (bookmark, 120.0), (bookmark, 150.0)]
        assert service.watch_count == 0

    run(main())


def test_a_closed_watch_gets_no_more_bookmarks() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        watch = service.watch(CONFIG_MAPS, "", WatchOptions(allow_bookmarks=True))
        await asyncio.sleep(90)
        watch.close()
        await asyncio.sleep(300)
        assert [item.type async for item in watch] == [EventType.BOOKMARK]

    run(main())


def test_a_watch_that_nobody_holds_any_more_is_forgotten() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        watch = service.watch(CONFIG_MAPS, "", WatchOptions())
        assert service.watch_count == 1
        del watch
        assert service.watch_count == 0

    run(main())


def test_lists_and_watches_agree_whatever_happens() -> None:
    """A mirror that follows random writes through cuts and forgotten versions equals the store."""

    async def main() -> None:
        rng = random.Random(11)
        service = make(Store.open(None, StoreOptions(history_max=10)))
        await service.bootstrap()
        selector = "team=red"
        mirror: dict[str, int] = {}
        seen = ""
        relists = 0
        for _ in range(300):
            for _ in range(rng.choice((1, 2, 5, 30))):
                await random_write(service, rng)
            options = WatchOptions(label_selector=selector, resource_version=seen)
            try:
                if not seen:
                    raise Expired("first")
                start = service.watch_start(CONFIG_MAPS, "", options)
            except Expired:
                relists += 1
                page = service.list(CONFIG_MAPS, "", ListOptions(label_selector=selector))
                mirror = {record.name: record.version for record in page.records}
                seen = page.resource_version
                continue
            for kind, record in start.initial:
                assert (kind is EventType.ADDED) == (record.name not in mirror)
                if kind is EventType.DELETED:
                    del mirror[record.name]
                else:
                    mirror[record.name] = record.version
            seen = str(start.from_version)
            now = service.list(CONFIG_MAPS, "", ListOptions(label_selector=selector)).records
            assert mirror == {record.name: record.version for record in now}
        assert 10 < relists < 290

    run(main())


async def random_write(service: ApiService, rng: random.Random) -> None:
    name, team = rng.choice("abcdef"), rng.choice(("red", "blue"))
    key = ("default", name)
    try:
        if rng.random() < 0.3:
            await service.delete(CONFIG_MAPS, key, DeleteOptions())
        elif rng.random() < 0.5:
            await create(service, CONFIG_MAPS, name, metadata={"labels": {"team": team}})
        else:
            change = {"metadata": {"labels": {"team": team}}, "data": {"x": str(rng.random())}}
            options = WriteOptions()
            await service.patch(CONFIG_MAPS, key, change, options, patch_type=PatchType.MERGE)
    except ApiError:
        return


def test_a_restart_finds_orphans_half_deleted_namespaces_and_kinds(tmp_path: Path) -> None:
    """The first service never sweeps: what it leaves behind is what a crash leaves."""

    async def before() -> None:
        store = Store.open(tmp_path)
        service = make(store)
        await service.bootstrap()
        await service.create(CRDS, "", _crd(), WriteOptions())
        widgets = service.registry.find("example.dev", "v1", "widgets")
        assert widgets is not None
        await create(service, widgets, "w")
        owner = await create(service, CONFIG_MAPS, "owner")
        child = await create(service, CONFIG_MAPS, "child", metadata=owned_by(owner))
        await create(service, CONFIG_MAPS, "grandchild", metadata=owned_by(child))
        blocked = {"ownerReferences": [{**owned_by(child)["ownerReferences"][0]}]}
        await create(service, PODS, "pod", metadata=blocked, spec=pod_spec())
        await service.delete(CONFIG_MAPS, ("default", "owner"), DeleteOptions())
        await create(service, NAMESPACES, "team")
        for i in range(200):
            await create(service, CONFIG_MAPS, f"m{i}", "team")
        await service.delete(NAMESPACES, ("", "team"), DeleteOptions())
        await service.delete(CRDS, ("", "widgets.example.dev"), DeleteOptions())
        await store.close()

    async def after() -> None:
        store = Store.open(tmp_path)
        service = make(store)
        assert service.registry.find("example.dev", "v1", "widgets") is not None
        async with asyncio.TaskGroup() as group:
            task = group.create_task(service.run())
            gone = (CONFIG_MAPS, "default"), (CONFIG_MAPS, "team"), (PODS, "default")
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (  # noqa: ASYNC110 # until all that is left over is gone
                    any(store.count(info.name, namespace) for info, namespace in gone)
                    or store.get(NAMESPACES.name, ("", "team"))
                    or store.count(CRDS.name)
                ):
                    await asyncio.sleep(0)
            task.cancel()
        assert service.registry.find("example.dev", "v1", "widgets") is None
        await store.close()

    asyncio.run(before())
    asyncio.run(after())


def _crd() -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema},
    }  # fmt: skip
    names = {"plural": "widgets", "kind": "Widget"}
    return {
        "metadata": {"name": "widgets.example.dev"},
        "spec": {
            "group": "example.dev", "scope": "Namespaced", "names": names, "versions": [version],
        },
    }  # fmt: skip


def test_an_owner_in_another_namespace_counts_as_gone_and_an_unknown_kind_does_not() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        async with sweeping(service):
            other = await create(service, CONFIG_MAPS, "other", "kube-system")
            node = await create(service, NODES, "node")
            await create(service, CONFIG_MAPS, "across", metadata=owned_by(other))
            await create(service, CONFIG_MAPS, "of-node", metadata=owned_by(node, kind="Node"))
            await create(service, CONFIG_MAPS, "of-unknown", metadata=owned_by(other, kind="What"))
            await settled(service)
            assert names(service, CONFIG_MAPS, "default") == ["of-node", "of-unknown"]
            await service.delete(NODES, ("", "node"), DeleteOptions())
            await settled(service)
            assert names(service, CONFIG_MAPS, "default") == ["of-unknown"]

    run(main())


def test_a_foreground_deletion_works_through_generations_from_below() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        order: list[str] = []
        service.store.subscribe(
            lambda events: order.extend(
                e.record.name for e in events if e.type is EventType.DELETED
            )
        )
        async with sweeping(service):
            parent = await create(service, CONFIG_MAPS, "c-top")
            for name in ("b-middle", "a-bottom"):
                metadata: Mapping[str, Any] = owned_by(parent)
                metadata["ownerReferences"][0]["blockOwnerDeletion"] = True
                parent = await create(service, CONFIG_MAPS, name, metadata=metadata)
            options = DeleteOptions(propagation=Propagation.FOREGROUND)
            await service.delete(CONFIG_MAPS, ("default", "c-top"), options)
        assert order == ["a-bottom", "b-middle", "c-top"]

    run(main())


def test_a_foreground_deletion_does_not_wait_for_dependents_that_do_not_block_it() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        async with sweeping(service):
            owner = await create(service, CONFIG_MAPS, "owner")
            for name, blocks in (("loose", False), ("firm", True)):
                metadata: Mapping[str, Any] = owned_by(owner)
                metadata["ownerReferences"][0]["blockOwnerDeletion"] = blocks
                await create(
                    service, CONFIG_MAPS, name,
                    metadata={**metadata, "finalizers": ["example.dev/keep"]},
                )  # fmt: skip
            options = DeleteOptions(propagation=Propagation.FOREGROUND)
            await service.delete(CONFIG_MAPS, ("default", "owner"), options)
            await settled(service)
            for name in ("owner", "loose", "firm"):  # both dependents go; one holds the owner
                assert service.get(CONFIG_MAPS, "default", name).is_deleting
            free = {"metadata": {"finalizers": None}}
            await service.patch(
                CONFIG_MAPS, ("default", "firm"), free, WriteOptions(), patch_type=PatchType.MERGE
            )
            await settled(service)
            assert service.store.get(CONFIG_MAPS.name, ("default", "owner")) is None
            assert service.get(CONFIG_MAPS, "default", "loose").is_deleting

    run(main())


@pytest.mark.parametrize("step", [-1, 1, 1000])
def test_a_write_on_any_other_version_than_the_present_one_is_a_conflict(step: int) -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        await create(service, CONFIG_MAPS, "before")
        present = (await create(service, CONFIG_MAPS, "m")).version
        key, metadata = ("default", "m"), {"name": "m", "resourceVersion": str(present + step)}
        body = {"metadata": metadata, "data": {"a": "b"}}
        with pytest.raises(Conflict):
            await service.replace(CONFIG_MAPS, key, dict(body), WriteOptions())
        for patch_type in (PatchType.MERGE, PatchType.STRATEGIC):
            with pytest.raises(Conflict):
                await service.patch(CONFIG_MAPS, key, body, WriteOptions(), patch_type=patch_type)
        metadata["resourceVersion"] = str(present)
        assert (await service.replace(CONFIG_MAPS, key, body, WriteOptions())).version > present

    run(main())


def test_deleting_a_full_namespace_lets_others_run_in_between() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        await create(service, NAMESPACES, "team")
        for i in range(1_000):
            await create(service, CONFIG_MAPS, f"m{i}", "team")
        async with sweeping(service):
            await service.delete(NAMESPACES, ("", "team"), DeleteOptions())
            sizes: list[int] = []
            while service.store.get(NAMESPACES.name, ("", "team")):
                sizes.append(service.store.count(CONFIG_MAPS.name, "team"))
                await asyncio.sleep(0)
        assert max(a - b for a, b in itertools.pairwise(sizes)) <= 64

    run(main())


def test_p66_events_live_for_an_hour_after_their_last_change() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        reference = {"kind": "Pod", "name": "p", "namespace": "default"}
        async with sweeping(service):
            for name in ("renewed", "old"):
                await create(service, EVENTS, name, involvedObject=reference)
            await asyncio.sleep(1800)
            options = WriteOptions()
            await service.patch(
                EVENTS, ("default", "renewed"), {"count": 2}, options, patch_type=PatchType.MERGE
            )
            await asyncio.sleep(1801)
            assert names(service, EVENTS) == ["renewed"]
            await asyncio.sleep(1800)
            assert names(service, EVENTS) == []

    run(main())


def test_a_shorter_grace_counts_from_the_first_deletion() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        await create(service, PODS, "p", spec=pod_spec(nodeName="n"))
        key = ("default", "p")
        for grace in (60, 20):
            await service.delete(PODS, key, DeleteOptions(grace_period_seconds=grace))
            await asyncio.sleep(10)
        metadata = service.get(PODS, *key).plain()["metadata"]
        assert metadata["deletionTimestamp"] == format_time(EPOCH + 20)
        assert metadata["deletionGracePeriodSeconds"] == 20

    run(main())


def test_a_pod_may_be_put_without_what_admission_gave_it() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        body = (await create(service, PODS, "p", spec=pod_spec())).plain()
        for field in ("priority", "preemptionPolicy", "tolerations"):
            del body["spec"][field]
        await service.replace(PODS, ("default", "p"), body, WriteOptions())
        spec = service.get(PODS, "default", "p").plain()["spec"]
        assert (spec["priority"], spec["preemptionPolicy"]) == (0, "PreemptLowerPriority")

    run(main())


def test_a_dry_run_that_takes_the_last_finalizer_off_deletes_nothing() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        await create(service, CONFIG_MAPS, "m", metadata={"finalizers": ["example.com/stays"]})
        key, patch = ("default", "m"), {"metadata": {"finalizers": None}}
        await service.delete(CONFIG_MAPS, key, DeleteOptions())
        for is_dry in (True, False):
            options = WriteOptions(dry_run=is_dry)
            await service.patch(CONFIG_MAPS, key, patch, options, patch_type=PatchType.MERGE)
            assert names(service, CONFIG_MAPS) == (["m"] if is_dry else [])

    run(main())


def test_two_runs_with_the_same_seed_write_the_same_bytes() -> None:
    async def main() -> list[bytes]:
        service = make(Store.open(None))
        log: list[bytes] = []
        service.store.subscribe(lambda events: log.extend(e.record.data for e in events))
        await service.bootstrap()
        rng = random.Random(2)
        async with sweeping(service):
            for _ in range(200):
                await random_write(service, rng)
            body = {"metadata": {"generateName": "x-"}}
            await service.create(CONFIG_MAPS, "default", body, WriteOptions())
        return log

    assert run(main()) == run(main())


def test_nulls_stand_for_missing_fields_and_wrong_types_are_named() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        metadata = {"labels": None, "annotations": None, "creationTimestamp": None}
        spec = pod_spec(nodeSelector=None, restartPolicy=None, volumes=None)
        record = await create(service, PODS, "p", metadata=metadata, spec=spec)
        assert record.plain()["spec"]["restartPolicy"] == "Always"
        assert "labels" not in record.plain()["metadata"]
        for wrong in (
            {"spec": {"containers": {"name": "x"}}}, {"spec": 5}, {"spec": {"containers": ["x"]}},
            {"metadata": {"labels": {"a": 1}}, "spec": pod_spec()},
            {"spec": pod_spec(terminationGracePeriodSeconds="long")},
        ):  # fmt: skip
            with pytest.raises(ApiError) as caught:
                await create(service, PODS, "q", **wrong)
            assert caught.value.status.code == 400, wrong
        assert names(service, PODS) == ["p"]

    run(main())


@pytest.mark.parametrize("field", ["containers", "tolerations", "volumes"])
def test_a_null_in_a_list_is_refused_and_named(field: str) -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        await create(service, PODS, "p", spec=pod_spec())
        change = {"op": "add", "path": "/spec/containers/0/ports", "value": [None]}
        with pytest.raises(BadRequest, match=r"spec.containers\[0\].ports\[0\] is null"):
            await service.patch(
                PODS, ("default", "p"), [change], WriteOptions(), patch_type=PatchType.JSON
            )
        with pytest.raises(BadRequest, match=f"{field}"):
            await create(service, PODS, "q", spec=pod_spec(**{field: [None]}))

    run(main())


def test_nothing_that_a_caller_passes_in_is_changed_below_its_top() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        spec = pod_spec(containers=[{"name": "a", "image": "x", "ports": [{"containerPort": 1}]}])
        before = repr(spec)
        await service.create(
            PODS, "default", {"metadata": {"name": "p"}, "spec": spec}, WriteOptions()
        )
        assert repr(spec) == before

    run(main())


def test_a_bad_update_leaves_the_stored_object_alone() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        record = await create(service, CONFIG_MAPS, "a", data={"k": "v"})
        change = {"metadata": {"labels": {"bad key": "x"}, "finalizers": ["no good"]}}
        with pytest.raises(Invalid) as caught:
            await service.patch(
                CONFIG_MAPS, record.key, change, WriteOptions(), patch_type=PatchType.MERGE
            )
        details = caught.value.status.details
        assert details is not None
        assert [cause.field for cause in details.causes] == [
            "metadata.labels", "metadata.finalizers[0]", "metadata.finalizers",
        ]  # fmt: skip
        assert service.get(CONFIG_MAPS, "default", "a") is record

    run(main())


def test_after_the_disk_has_failed_every_write_is_refused_and_reads_go_on(tmp_path: Path) -> None:
    from tests.unit.embedded.test_wal import FullDisk

    from fairlead.embedded.storage.wal import WalOptions

    async def main() -> None:
        store = Store.open(tmp_path, StoreOptions(log=WalOptions(open_file=FullDisk)))
        service = make(store)
        await service.bootstrap()
        owner = await create(service, CONFIG_MAPS, "owner")
        with pytest.raises(InternalError):  # noqa: PT012 # one of them does not fit any more
            for i in range(100):
                await create(service, CONFIG_MAPS, f"m{i}", metadata=owned_by(owner))
        with pytest.raises(InternalError, match="not stored"):
            await service.delete(CONFIG_MAPS, owner.key, DeleteOptions())
        assert service.get(CONFIG_MAPS, *owner.key) is owner
        await store.close()

    asyncio.run(main())
