"""Init containers of pods on the local node: real processes, one after another."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.local_world import local_world, pod_body

from fairlead.api.resources import PODS

pytestmark = pytest.mark.e2e


async def test_init_containers_run_one_after_another_before_the_others(tmp_path: Path) -> None:
    log = tmp_path / "log"
    body = pod_body("p", "sh", "-c", f"echo main >> {log}")
    body["spec"]["initContainers"] = [
        {"name": name, "image": "", "command": ["sh", "-c", f"sleep 0.2; echo {name} >> {log}"]}
        for name in ("one", "two")
    ]
    async with local_world(tmp_path / "data") as world:
        await world.api.create(PODS, body, namespace="default")
        pod = await world.until_phase("p", "Succeeded")
    assert log.read_text().split() == ["one", "two", "main"]
    ended = {each.name: each.state.terminated for each in pod.status.init_container_statuses}
    assert [each is not None and each.exit_code for each in ended.values()] == [0, 0]


async def test_an_init_container_that_fails_ends_the_pod_before_its_program(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    body = pod_body("p", "sh", "-c", f"echo main >> {log}")
    body["spec"]["initContainers"] = [
        {"name": "one", "image": "", "command": ["sh", "-c", "exit 7"]},
    ]
    async with local_world(tmp_path / "data") as world:
        await world.api.create(PODS, body, namespace="default")
        pod = await world.until_phase("p", "Failed")
    assert not log.exists()
    [one] = pod.status.init_container_statuses
    assert one.state.terminated is not None
    assert one.state.terminated.exit_code == 7


async def test_a_sidecar_is_refused_by_name(tmp_path: Path) -> None:
    body = pod_body("p", "true")
    body["spec"]["initContainers"] = [
        {"name": "proxy", "image": "", "command": ["sleep", "9"], "restartPolicy": "Always"},
    ]
    async with local_world(tmp_path / "data") as world:
        await world.api.create(PODS, body, namespace="default")
        pod = await world.until_phase("p", "Failed")
    assert pod.status.message == (
        "container proxy has a restartPolicy: the local node runs no sidecars"
    )
