"""What members use, measured of real processes on this machine."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from tests.e2e.local_world import OPTIONS, ROOT, Api, LocalWorld, local_world, pod_body, program
from tests.patience import PATIENCE_SECONDS

from fairlead.api import names
from fairlead.api.jobs.use import MemberUse, decode_use
from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import PODS

pytestmark = pytest.mark.e2e

MIB = 1 << 20
QUICK = dataclasses.replace(OPTIONS, use_seconds=0.05)
#: Uses the processor for so many seconds of its own, then holds some memory for a while.
WORKER = """
import sys, time
until = float(sys.argv[1])
while time.process_time() < until: pass
held = bytearray(int(sys.argv[2]) << 20)
for at in range(0, len(held), 4096): held[at] = 1
time.sleep(float(sys.argv[3]))
"""


def worker(cpu_seconds: float, mebibytes: int, hold_seconds: float) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", WORKER, str(cpu_seconds), str(mebibytes), str(hold_seconds))


def use_of(pod: Pod) -> MemberUse:
    use = decode_use(pod.metadata.annotations.get(names.USE))
    assert use is not None, pod.metadata.annotations
    return use


async def ended_use(world: LocalWorld, name: str) -> MemberUse:
    return use_of(await world.until(name, lambda pod: pod.is_terminal))


async def test_a_pod_that_has_ended_says_what_it_used(tmp_path: Path) -> None:
    async with local_world(tmp_path, options=QUICK) as world:
        began = time.monotonic()
        await world.pod("p", *worker(0.4, 100, 5))
        await world.until_phase("p", "Running")
        assert names.USE not in (await world.get("p")).metadata.annotations
        use = await ended_use(world, "p")
        passed_milliseconds = (time.monotonic() - began) * 1_000
    assert use.cpu_milliseconds is not None
    assert 400 <= use.cpu_milliseconds <= 1_500
    assert use.memory_peak_bytes is not None
    assert 100 * MIB <= use.memory_peak_bytes <= 160 * MIB
    assert use.memory_mean_bytes is not None
    assert 20 * MIB <= use.memory_mean_bytes <= use.memory_peak_bytes
    assert 5_000 <= use.milliseconds <= passed_milliseconds
    assert use.memory
    assert not use.is_partial


async def test_children_that_ended_count_and_so_do_those_that_nobody_waited_for(
    tmp_path: Path,
) -> None:
    waited = " ".join(f"'{word}'" for word in worker(0.3, 1, 0))
    done, orphan = tmp_path / "done", tmp_path / "orphan.sh"
    orphan.write_text(f"{waited}; touch {done}")
    script = f"{waited}; (setsid sh {orphan} & ); until test -e {done}; do sleep 0.05; done"
    async with local_world(tmp_path, options=QUICK) as world:
        await world.pod("p", "sh", "-c", script)
        use = await ended_use(world, "p")
    assert use.cpu_milliseconds is not None
    assert use.cpu_milliseconds >= 600


async def test_memory_of_all_processes_together_is_the_peak(tmp_path: Path) -> None:
    one = " ".join(f"'{word}'" for word in worker(0, 60, 5))
    async with local_world(tmp_path, options=QUICK) as world:
        await world.pod("p", "sh", "-c", f"{one} & {one} & wait")
        use = await ended_use(world, "p")
    assert use.memory_peak_bytes is not None
    assert use.memory_peak_bytes >= 120 * MIB


async def test_a_program_that_ends_before_the_first_look_has_no_memory_of_zero(
    tmp_path: Path,
) -> None:
    rare = dataclasses.replace(OPTIONS, use_seconds=600.0)
    async with local_world(tmp_path, options=rare) as world:
        await world.pod("p", "true")
        await world.pod("large", *worker(0, 100, 0))
        use, large = await ended_use(world, "p"), await ended_use(world, "large")
    assert use.cpu_milliseconds is not None
    assert (use.memory_peak_bytes, use.memory_mean_bytes) == (None, None)
    assert large.memory_peak_bytes is not None, "the kernel knows the largest process"
    assert large.memory_peak_bytes >= 100 * MIB
    assert large.memory_mean_bytes is None


async def test_restarts_in_place_add_up(tmp_path: Path) -> None:
    marker = tmp_path / "once"
    once = " ".join(f"'{word}'" for word in worker(0.3, 1, 0))
    script = f"{once}; test -e {marker} && exit 0; touch {marker}; exit 1"
    async with local_world(tmp_path, options=QUICK) as world:
        await world.pod("p", "sh", "-c", script, restartPolicy="OnFailure")
        use = await ended_use(world, "p")
    assert use.cpu_milliseconds is not None
    assert use.cpu_milliseconds >= 600


async def test_a_pod_that_is_deleted_says_what_it_used_before_it_is_gone(tmp_path: Path) -> None:
    async with local_world(tmp_path, options=QUICK) as world:
        await world.pod("p", *worker(0.2, 50, 100), metadata={"finalizers": ["test/keep"]})
        await world.until_phase("p", "Running")
        await world.until("p", lambda _: largest(world, "p") >= 50 * MIB)
        await world.api.delete(PODS, "p", namespace="default")
        use = await ended_use(world, "p")
    assert use.memory_peak_bytes is not None
    assert use.memory_peak_bytes >= 50 * MIB


def largest(world: LocalWorld, name: str) -> int:
    """The memory that the node has seen of a pod."""
    uses = [pod.use for pod in world.node.pods if pod.pod.metadata.name == name]
    looks = [look for use in uses for found in use.looks.values() for look in found]
    return max((look.resident_bytes for look in looks), default=0)


@pytest.mark.parametrize("ends_meanwhile", [False, True])
def test_what_was_used_survives_a_kill_of_the_node(tmp_path: Path, *, ends_meanwhile: bool) -> None:
    gate = tmp_path / "gate"
    work = " ".join(f"'{word}'" for word in worker(0.4, 1, 0))
    body = pod_body("p", "sh", "-c", f"{work}; until test -e {gate}; do sleep 0.02; done; {work}")
    api = tmp_path / "api.json"

    async def create() -> None:
        await Api(api).create(PODS, body, namespace="default")

    asyncio.run(create())

    def until(test: str) -> dict[str, object]:
        limit = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < limit:
            raw = api.read_text()
            if test in raw:
                return msgspec.json.decode(raw)
            time.sleep(0.02)
        raise AssertionError(f"no {test} in {api.read_text()}")

    node = subprocess.Popen(program(tmp_path), cwd=ROOT)
    try:
        until('"phase": "Running"')
        node.send_signal(signal.SIGKILL)
        node.wait()
        if ends_meanwhile:
            gate.touch()
            exits = tmp_path.glob("local/pods/*/containers/main/0/exit.json")
            limit = time.monotonic() + PATIENCE_SECONDS
            while not list(exits):
                assert time.monotonic() < limit
                time.sleep(0.02)
                exits = tmp_path.glob("local/pods/*/containers/main/0/exit.json")
        node = subprocess.Popen(program(tmp_path), cwd=ROOT)
        gate.touch()
        until('"phase": "Succeeded"')
    finally:
        node.kill()
        node.wait()
    state = msgspec.json.decode(api.read_text())
    [(_, pod)] = next(found for found in state["objects"].values() if found)
    use = use_of(msgspec.convert(pod, Pod))
    assert use.cpu_milliseconds is not None
    assert use.cpu_milliseconds >= 800
