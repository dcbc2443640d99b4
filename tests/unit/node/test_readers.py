"""Reads side by side: one that hangs, fails or finds nothing holds up no other."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from tests.unit.node.host_tree import HostTree

from fairlead.model.health.faults import Moment
from fairlead.node.readers import Reader, look_once
from fairlead.node.reports.watch import Kept, MachineWatch
from fairlead.node.running.host import Absent, Host, NotAHost
from fairlead.node.source import AnySource, Judged, Nothing, SignalSource, SourceHealth, SourceState


def source_of(name: str, read: object, period: int = 1) -> AnySource:
    def judged(_facts: object, memory: Nothing, _at: Moment) -> Judged[Nothing]:
        return Judged(memory)

    return SignalSource(name, (name,), Nothing, read, judged, period)  # type: ignore[arg-type]


def watch_of(tree: HostTree, *sources: AnySource) -> MachineWatch:
    host = tree.host()
    return MachineWatch(sources, Kept(), boot_id=host.boot_id(), now=host.now())


def health_of(watch: MachineWatch, tree: HostTree) -> dict[str, SourceHealth]:
    return {each.source: each for each in watch.health(tree.host().now())}


async def test_a_read_that_hangs_is_named_while_others_keep_their_rate(tmp_path: Path) -> None:
    tree, release = HostTree(tmp_path), threading.Event()
    read = 0

    def quick() -> None:
        nonlocal read
        read += 1

    sources = (source_of("driver", release.wait), source_of("disk", quick))
    watch, host = watch_of(tree, *sources), tree.host()
    driver, disk = (Reader(source) for source in sources)
    try:
        for _ in range(3):
            await asyncio.gather(driver.look(watch, host, 0.02), disk.look(watch, host, 0.02))
        assert read == 3
        found = health_of(watch, tree)
        assert found["driver"].state is SourceState.HUNG
        assert found["disk"].state is SourceState.OK
        assert sum(each.name == "read-driver" for each in threading.enumerate()) == 1
    finally:
        release.set()
    await driver.look(watch, host, 5)
    assert health_of(watch, tree)["driver"].state is SourceState.OK, "it came back by itself"


async def test_a_look_that_is_answered_as_it_is_cancelled_is_cancelled(tmp_path: Path) -> None:
    tree, release = HostTree(tmp_path), threading.Event()
    source = source_of("disk", release.wait)
    reader = Reader(source)
    look = asyncio.create_task(reader.look(watch_of(tree, source), tree.host(), 60))
    try:
        await asyncio.sleep(0)
        pending = reader._pending  # pyright: ignore[reportPrivateUsage]
        assert pending is not None
        pending.set_result((None, None))
        look.cancel()
        with pytest.raises(asyncio.CancelledError):
            await look
    finally:
        release.set()


async def test_what_fails_and_what_is_absent_say_so_and_others_are_read(tmp_path: Path) -> None:
    def absent() -> None:
        raise Absent("no such bus")

    def broken() -> None:
        raise PermissionError(13, "Permission denied", "/sys/x")

    tree = HostTree(tmp_path)
    sources = [source_of("a", absent), source_of("b", broken), source_of("c", lambda: None)]
    watch = watch_of(tree, *sources)
    await look_once(sources, watch, tree.host(), 5)
    found = health_of(watch, tree)
    assert [found[name].state for name in "abc"] == [
        SourceState.SKIPPED, SourceState.BLIND, SourceState.OK,
    ]  # fmt: skip
    assert found["b"].why == "/sys/x: Permission denied"
    assert watch.is_healthy, "how a source does says nothing of the machine"


async def test_a_fault_of_our_own_is_not_taken_for_one_of_the_machine(tmp_path: Path) -> None:
    def wrong() -> None:
        raise ZeroDivisionError

    tree = HostTree(tmp_path)
    source = source_of("a", wrong)
    with pytest.raises(ZeroDivisionError):
        await look_once([source], watch_of(tree, source), tree.host(), 5)


async def test_a_source_that_is_not_read_becomes_stale(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    source = source_of("a", lambda: None, period=10)
    watch = watch_of(tree, source)
    await look_once([source], watch, tree.host(), 5)
    tree.passes(50)
    assert health_of(watch, tree)["a"].state is SourceState.OK
    tree.passes(1)
    assert health_of(watch, tree)["a"].state is SourceState.STALE


def test_a_directory_that_is_no_machine_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(NotAHost, match="boot_id cannot be read"):
        Host(tmp_path).boot_id()
