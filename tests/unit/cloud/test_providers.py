"""Providers by real commands: what they list, launch and end, and what a repeated call does."""

from __future__ import annotations

import asyncio
import json
import os
import random
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fairlead.cloud import command
from fairlead.cloud.exec import ExecProvider
from fairlead.cloud.provider import (
    CloudError,
    LaunchRequest,
    OutOfCapacity,
    RefusedByProvider,
)
from fairlead.cloud.simulated import CloudRates, SimulatedCloud, SimulatedProvider
from fairlead.cloud.static import StaticProvider
from fairlead.model.health.machines import InstanceState

#: Keeps which machines are awake in a directory, a file each; fails once when told to.
POWER = """#!/bin/sh
cd "$(dirname "$0")/awake" || exit 1
case "$1" in
list) printf '['; sep=; for f in *; do [ -e "$f" ] && printf '%s"%s"' "$sep" "$f" && sep=,; done
      printf ']';;
on) [ -e ../broken ] && { rm ../broken; echo 'no answer of the BMC' >&2; exit 1; }; : > "$2";;
off) rm -f "$2";;
esac
"""


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def static(tmp_path: Path) -> StaticProvider:
    (tmp_path / "awake").mkdir()
    power = script(tmp_path / "power", POWER)
    machines = [{"id": f"m{i}", "domain": "a" if i < 3 else "b"} for i in range(5)]
    inventory = tmp_path / "machines.json"
    inventory.write_text(json.dumps({"machines": machines, "power": power}))
    return StaticProvider(str(inventory), "metal")


def awake(provider: StaticProvider) -> list[str]:
    found = asyncio.run(provider.instances())
    assert found.is_complete
    assert all(each.pool == "metal" for each in found.instances)
    return [each.id for each in found.instances]


def launch(provider: Any, token: str, count: int, domain: str = "") -> tuple[str, ...]:
    return asyncio.run(provider.launch(LaunchRequest(token, "metal", count, domain)))


def test_static_machines_are_woken_all_or_none_and_sleep_again(static: StaticProvider) -> None:
    assert awake(static) == []
    assert launch(static, "t1", 2, "a") == ("m0", "m1")
    assert awake(static) == ["m0", "m1"]
    with pytest.raises(OutOfCapacity, match="1 of 2 machines"):
        launch(static, "t2", 2, "a")
    assert launch(static, "t3", 2) == ("m2", "m3")
    asyncio.run(static.terminate(("m0", "foreign")))
    assert awake(static) == ["m1", "m2", "m3"]
    assert launch(static, "t4", 1, "a") == ("m0",)


def test_a_repeated_static_launch_wakes_the_same_machines_also_after_a_failure(
    static: StaticProvider, tmp_path: Path
) -> None:
    (tmp_path / "broken").touch()
    with pytest.raises(CloudError, match="no answer of the BMC"):
        launch(static, "t1", 2)
    assert launch(static, "t2", 1) == ("m2",), "m0 and m1 are those of t1"
    again = StaticProvider(str(tmp_path / "machines.json"), "metal")  # another process
    assert launch(again, "t1", 2) == ("m0", "m1")
    assert launch(again, "t1", 2) == ("m0", "m1")
    assert awake(again) == ["m0", "m1", "m2"]


def test_an_inventory_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedByProvider, match="No such file"):
        awake(StaticProvider(str(tmp_path / "none.json"), "metal"))
    (tmp_path / "bad.json").write_text('{"machines": 1}')
    with pytest.raises(RefusedByProvider, match=r"bad\.json"):
        awake(StaticProvider(str(tmp_path / "bad.json"), "metal"))


def test_exec_passes_json_both_ways(tmp_path: Path) -> None:
    path = script(
        tmp_path / "cloud",
        f"""#!/bin/sh
cat > {tmp_path}/asked-$1.json
case "$1" in
list) echo '{{"instances": [{{"id": "x1", "state": "Starting"}}], "complete": false}}';;
launch) echo '{{"instances": ["x1", "x2", "x1"]}}';;
esac
""",
    )
    provider = ExecProvider(path, "metal", {"region": "north"})
    found = asyncio.run(provider.instances())
    assert not found.is_complete
    assert (found.instances[0].id, found.instances[0].state) == ("x1", InstanceState.STARTING)
    assert found.instances[0].pool == "metal"
    assert launch(provider, "t1", 2, "a") == ("x1", "x2")
    asyncio.run(provider.terminate(("x1",)))
    asked = {verb: json.loads((tmp_path / f"asked-{verb}.json").read_text())
             for verb in ("list", "launch", "terminate")}  # fmt: skip
    assert asked["list"] == {"pool": "metal", "options": {"region": "north"}}
    assert (asked["launch"]["token"], asked["launch"]["count"]) == ("t1", 2)
    assert asked["terminate"]["instances"] == ["x1"]


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("echo none left >&2; exit 69", OutOfCapacity, "none left"),
        ("echo who are you >&2; exit 77", RefusedByProvider, "who are you"),
        ("exit 1", CloudError, "exit code 1"),
        ("echo nonsense", CloudError, "no JSON"),
        ("echo '{}'", CloudError, "another form"),
        ("""echo '{"instances": ["a", "b"]}'""", CloudError, "2 machines instead of 1"),
        ("""echo '{"instances": [""]}'""", CloudError, "another form"),
        (
            "printf '%s' '{\"instances\": [\"'; head -c 9000 /dev/zero | tr '\\0' x; echo '\"]}'",
            CloudError,
            "another form",
        ),
        ("head -c 20000 /dev/zero | tr '\\0' '['", CloudError, "no JSON"),
        ("cat /dev/zero", CloudError, "more than"),
        ("cat /dev/zero >&2", CloudError, "no answer within"),
        ("exec <&-; sleep 100", CloudError, "no answer within"),
    ],
)
def test_the_exit_code_of_a_command_says_what_kind_of_failure_it_is(
    tmp_path: Path,
    body: str,
    error: type[Exception],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "within" in message:
        monkeypatch.setattr(command, "COMMAND_SECONDS_MAX", 0.5)
    provider = ExecProvider(script(tmp_path / "cloud", f"#!/bin/sh\n{body}\n"), "metal", {})
    with pytest.raises(error, match=message):
        launch(provider, "t1", 1)


def test_a_command_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedByProvider, match="cannot be run"):
        launch(ExecProvider(str(tmp_path / "none"), "metal", {}), "t1", 1)


def test_a_command_that_takes_too_long_ends_with_the_processes_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "COMMAND_SECONDS_MAX", 1.0)
    body = f"#!/bin/sh\nsleep 100 & echo $! > {tmp_path}/child; exit 0\n"
    provider = ExecProvider(script(tmp_path / "cloud", body), "metal", {})
    with pytest.raises(CloudError, match="no answer within 1 s"):  # its child holds the output
        launch(provider, "t1", 1)
    stat_of_child = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")

    def is_over() -> bool:
        try:
            return stat_of_child.read_text().rpartition(")")[2][1] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    deadline = time.monotonic() + 10
    while not is_over():  # signal 9 has been sent; its end takes a moment
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("path", ["/dev/zero", "FIFO", "/", "/\0", "DEEP"])
def test_an_inventory_that_is_no_regular_file_of_json_is_refused(tmp_path: Path, path: str) -> None:
    if path == "FIFO":
        os.mkfifo(tmp_path / "fifo")
        path = str(tmp_path / "fifo")
    if path == "DEEP":
        (tmp_path / "deep").write_text('{"machines": ' + "[" * 20_000)
        path = str(tmp_path / "deep")
    with pytest.raises(RefusedByProvider):
        awake(StaticProvider(path, "metal"))
    with pytest.raises(RefusedByProvider, match="cannot be run"):
        launch(ExecProvider("/\0", "metal", {}), "t1", 1)


class _Makes:
    async def register(self, body: Mapping[str, Any]) -> None:
        """Nothing: these machines never start."""

    async def unregister(self, name: str) -> None:
        """Nothing."""


def test_the_simulated_cloud_gives_the_same_machines_for_the_same_token() -> None:
    cloud = SimulatedCloud(_Makes(), random.Random(1), CloudRates(capacity=3))
    provider = SimulatedProvider(cloud, "metal")
    first = launch(provider, "t1", 2)
    assert launch(provider, "t1", 2) == first
    assert len(cloud.machines) == 2
    with pytest.raises(OutOfCapacity):
        launch(provider, "t2", 2)
    asyncio.run(provider.terminate(first))
    assert asyncio.run(provider.instances()).instances == ()
