"""The store in memory: versions, order, history, snapshots, subscribers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from fairlead.embedded.builtins import CONFIG_MAPS, PODS
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.storage.records import Key, Record, StoreEvent, record_typed
from fairlead.embedded.storage.store import (
    PACKED_BYTES_MAX,
    PACKED_TOGETHER,
    PAST_DECODED_BYTES_MAX,
    PAST_DECODED_MAX,
    Store,
    StoreOptions,
)
from fairlead.runtime.client import EventType
from fairlead.sim.loop import run


def put(store: Store, name: str, info: ResourceInfo = CONFIG_MAPS, **data: str) -> Record:
    namespace, _, name = name.rpartition("/")
    metadata: dict[str, Any] = {"name": name, "namespace": namespace or "default", "uid": name}
    key: Key = (metadata["namespace"], name)
    record = record_typed(info, key, store.next_version, {"metadata": metadata, "data": data})
    store.put(info, record)
    return record


def remove(store: Store, name: str) -> None:
    current = store.latest(CONFIG_MAPS.name, ("default", name))
    assert current is not None
    last = record_typed(CONFIG_MAPS, current.key, store.next_version, current.plain())
    store.remove(CONFIG_MAPS, last)


def names(records: Sequence[Record] | None) -> list[str]:
    assert records is not None
    return ["/".join(record.key) for record in records]


def test_lists_are_in_key_order_and_cut_by_namespace() -> None:
    store = Store.open(None)
    for name in ("b/x", "a/y", "b/a", "a-b/z", "b-c/q", "c/a"):
        put(store, name)
    everything = ["a/y", "a-b/z", "b/a", "b/x", "b-c/q", "c/a"]
    assert names(store.records("configmaps")) == everything
    assert names(store.records("configmaps", "b")) == ["b/a", "b/x"]
    assert names(store.records("configmaps", "nope")) == []
    assert store.count("configmaps") == 6
    assert store.count("configmaps", "b") == 2


def test_versions_count_the_writes_of_all_kinds() -> None:
    store = Store.open(None)
    versions = [put(store, "a").version, put(store, "p", PODS).version, put(store, "a").version]
    remove(store, "a")
    assert versions == [1, 2, 3]
    assert store.version == 4


def test_subscribers_get_every_write_once_in_order_even_when_one_of_them_writes() -> None:
    store = Store.open(None)
    first: list[tuple[int, EventType]] = []
    second: list[tuple[int, EventType]] = []

    def echo(events: Sequence[StoreEvent]) -> None:
        first.extend((event.version, event.type) for event in events)
        if len(first) == 1:
            put(store, "echo")

    store.subscribe(echo)
    stop = store.subscribe(lambda events: second.extend((e.version, e.type) for e in events))
    put(store, "a")
    remove(store, "a")
    stop()
    put(store, "b")
    added, deleted = EventType.ADDED, EventType.DELETED
    assert first == [(1, added), (2, added), (3, deleted), (4, added)]
    assert second == first[:3]


def test_events_carry_the_state_before_and_after() -> None:
    store = Store.open(None)
    seen: list[StoreEvent] = []
    store.subscribe(seen.extend)
    put(store, "a", x="1")
    put(store, "a", x="2")
    remove(store, "a")
    states = [(e.type.value, e.previous and e.previous.version, e.record.version) for e in seen]
    assert states == [("ADDED", None, 1), ("MODIFIED", 1, 2), ("DELETED", 2, 3)]
    assert seen[2].record.plain()["data"] == {"x": "2"}
    left = seen[1].left()
    assert (left.plain()["data"], left.version) == ({"x": "1"}, 2)
    assert left.plain()["metadata"]["resourceVersion"] == "2"


def test_history_is_bounded_and_says_when_it_has_forgotten() -> None:
    store = Store.open(None, StoreOptions(history_max=3))
    for i in range(5):
        put(store, f"m{i}")
    assert store.history("configmaps", 1) is None
    events = store.history("configmaps", 2)
    assert events is not None
    assert [event.version for event in events] == [3, 4, 5]
    assert store.history("configmaps", 5) == []
    assert store.history("pods", 0) == []  # a busy kind does not push out a quiet one


def test_history_of_large_objects_is_bounded_in_bytes_too() -> None:
    store = Store.open(None, StoreOptions(history_bytes_max=10_000))
    for i in range(100):
        put(store, "large", text="x" * 2_000 + str(i))
    events = store.history("configmaps", 96)
    assert events is not None
    assert [event.version for event in events] == [97, 98, 99, 100]
    assert store.history("configmaps", 80) is None


def test_every_past_within_the_window_can_be_rebuilt() -> None:
    rng = random.Random(5)
    store = Store.open(None)
    past: dict[int, list[tuple[Key, int]]] = {}
    for _ in range(300):
        name = rng.choice("abcdefgh")
        if rng.random() < 0.4 and store.get("configmaps", ("default", name)):
            remove(store, name)
        else:
            put(store, name, x=str(rng.random()))
        past[store.version] = [(r.key, r.version) for r in store.records("configmaps")]
    for version, wanted in past.items():
        records = store.snapshot("configmaps", version)
        assert records is not None
        assert [(r.key, r.version) for r in records] == wanted


def test_a_typed_object_is_decoded_once_and_shared() -> None:
    store = Store.open(None)
    record = put(store, "a")
    record.drop_caches()
    assert record.typed(CONFIG_MAPS.type) is record.typed(CONFIG_MAPS.type)


def test_only_the_latest_past_versions_stay_decoded() -> None:
    store, type_ = Store.open(None), CONFIG_MAPS.type
    first, again = put(store, "a"), put(store, "a", x="1")
    for record in (first, again):
        record.typed(type_)
    remove(store, "a")
    history = store.history("configmaps", 0)
    assert history is not None
    deleted = history[-1].record
    deleted.typed(type_)
    lasting = put(store, "b")
    assert all(record.is_decoded(type_) for record in (first, again, deleted))
    for i in range(PAST_DECODED_MAX + 1):
        put(store, "c", x=str(i))
    assert not any(record.is_decoded(type_) for record in (first, again, deleted))
    assert lasting.is_decoded(type_), "it is still that of an object"
    assert again.typed(type_).metadata.name == "a"
    assert not again.is_decoded(type_), "who reads a past version later leaves nothing behind"
    put(store, "b", x="2")
    for i in range(PAST_DECODED_MAX):
        put(store, "c", x=str(i))
    assert not lasting.is_decoded(type_)


def test_past_versions_that_are_large_stay_decoded_for_less_long() -> None:
    store, type_ = Store.open(None), CONFIG_MAPS.type
    first = put(store, "a", x="x" * 400_000)
    first.typed(type_)
    for i in range(PAST_DECODED_BYTES_MAX // 400_000):
        assert first.is_decoded(type_)
        put(store, "a", x=f"{i:04d}" * 100_000)
    put(store, "a", x="last")
    assert not first.is_decoded(type_)


def test_versions_of_one_object_share_what_they_have_in_common() -> None:
    store, key = Store.open(None), ("default", "a")
    for x in "123":
        name, uid = "".join("a"), "".join(["u", "id"])
        labels = {"team": "vision", "run": "x" if x < "3" else "y"}
        metadata = {"name": name, "namespace": "default", "uid": uid, "labels": labels}
        obj: dict[str, Any] = {"metadata": metadata, "data": {"x": x}}
        record = record_typed(CONFIG_MAPS, ("default", name), store.next_version, obj)
        store.put(CONFIG_MAPS, record)
    history = store.history("configmaps", 0)
    assert history is not None
    first, second, third = (event.record for event in history)
    assert first.key == key
    assert second.key is third.key is first.key
    assert second.uid is third.uid is first.uid
    assert second.labels is first.labels
    assert third.labels == {"team": "vision", "run": "y"}
    read = third.typed(CONFIG_MAPS.type).metadata
    assert (read.name, read.uid, read.labels) == ("a", "uid", third.labels)
    assert read.name is first.key[1]
    assert read.uid is first.uid
    assert read.labels is third.labels
    assert [each.plain()["data"] for each in (first, second, third)] == [{"x": x} for x in "123"]


def test_past_versions_are_packed_and_read_as_they_were() -> None:
    texts: dict[int, bytes] = {}

    def change(store: Store, rng: random.Random) -> None:
        name = rng.choice("abcdefgh")
        if rng.random() < 0.2 and store.get("configmaps", ("default", name)):
            remove(store, name)
        else:
            put(store, name, x=str(rng.random()), y="x" * 1_000)

    async def main() -> None:
        store, rng = Store.open(None), random.Random(5)
        store.subscribe(lambda events: texts.update((e.version, e.record.data) for e in events))
        packing = asyncio.create_task(store.pack_past())
        for _ in range(1_000):
            change(store, rng)
            await asyncio.sleep(0.01)
        await asyncio.sleep(5)
        packing.cancel()
        events = store.history("configmaps", 0)
        assert events is not None
        packed = [event.record for event in events if event.record._place is not None]
        assert len(packed) > 1_000 - PAST_DECODED_MAX - PACKED_TOGETHER - len("abcdefgh")
        assert not any(record._place is not None for record in store.records("configmaps"))
        rng.shuffle(events)
        for event in events:
            assert event.record.data == texts[event.version]
            assert event.record.size == len(texts[event.version])
            before = event.previous
            assert before is None or before.data == texts[before.version]
        then = store.snapshot("configmaps", 500)
        assert then is not None
        assert {record.version for record in then} <= set(range(501))
        assert all(record.data == texts[record.version] for record in then)

    run(main())


def test_large_past_versions_are_packed_one_by_one() -> None:
    async def main() -> None:
        store = Store.open(None)
        packing = asyncio.create_task(store.pack_past())
        await asyncio.sleep(0)
        for _ in range(40):
            put(store, "large", x="x" * PACKED_BYTES_MAX)
        await asyncio.sleep(5)
        packing.cancel()
        events = store.history("configmaps", 0)
        assert events is not None
        packed = [event.record for event in events if event.record._place is not None]
        assert packed
        for record in packed:
            assert record.plain()["data"] == {"x": "x" * PACKED_BYTES_MAX}

    run(main())
