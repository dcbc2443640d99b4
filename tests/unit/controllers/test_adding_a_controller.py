"""The worked example of docs/design/adding-a-controller.md, run as the page has it."""

from __future__ import annotations

import asyncio
import importlib
import random
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fairlead.api.jobs.job import Job
from fairlead.api.meta import ObjectMeta, to_wire
from fairlead.api.resources import CRDS, JOBS, Resource
from fairlead.api.schema import crd
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.events import EventKind
from fairlead.sim.loop import run
from fairlead.testing.builders import EPOCH, make_job, make_placement

PAGE = Path(__file__).resolve().parents[3] / "docs" / "design" / "adding-a-controller.md"
BLOCK = re.compile(r"^```python file=longwait/(\w+)\.py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WARNED = "example.com/long-wait"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The page's files as modules, by name."""
    folder = tmp_path / "longwait"
    folder.mkdir()
    (folder / "__init__.py").touch()
    found = dict(BLOCK.findall(PAGE.read_text()))
    for name, code in found.items():
        (folder / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "longwait"]:
        monkeypatch.delitem(sys.modules, name)
    return {name: importlib.import_module(f"longwait.{name}") for name in found}


class Events:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    def record(
        self, resource: Resource[Any], metadata: ObjectMeta, kind: EventKind, *, reason: str,
        message: str,
    ) -> None:  # fmt: skip
        self.seen.append((metadata.name, reason, message))


def test_the_page_shows_all_pieces_and_its_own_tests_pass(modules: dict[str, ModuleType]) -> None:
    assert list(modules) == ["actions", "decide", "test_decide", "controller", "compose"]
    tests = [value for name, value in vars(modules["test_decide"]).items() if name[:5] == "test_"]
    assert tests
    for test in tests:
        test()


def test_a_job_is_warned_about_once_and_the_warning_goes_when_it_is_placed(
    modules: dict[str, ModuleType],
) -> None:
    clock, rng, events = LoopClock(EPOCH), random.Random(1), Events()
    service = ApiService(
        Store.open(None), Registry.with_builtins(), clock,
        ids=lambda: f"{rng.getrandbits(128):032x}", rng=rng,
    )  # fmt: skip
    client = InProcessClient(service)
    policy = modules["decide"].LongWaitPolicy(warn_after_seconds=600)

    async def job() -> Job:
        return await client.get(JOBS, "train", namespace="default")

    async def write_status(status: dict[str, Any]) -> None:
        await client.patch(
            JOBS, "train", {"status": status}, namespace="default", subresource="status"
        )

    async def main() -> None:
        await service.bootstrap()
        for manifest in crd.manifests():
            await client.create(CRDS, manifest)
        body = {"metadata": {"name": "train"}, "spec": to_wire(make_job("train"))["spec"]}
        await client.create(JOBS, body, namespace="default")
        await write_status({"attempt": 1})
        for restart in range(2):
            loop = modules["compose"].make_loop(client, events, policy, clock=clock, rng=rng)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(loop.run())
                await asyncio.sleep(590)
                assert (WARNED in (await job()).metadata.annotations) == bool(restart)
                await asyncio.sleep(20)
                assert (await job()).metadata.annotations[WARNED] == "600"
                if restart:
                    await write_status({"placement": to_wire(make_placement(["n0"], attempt=1))})
                    await asyncio.sleep(5)
                    assert WARNED not in (await job()).metadata.annotations
                task.cancel()
        assert events.seen == [("train", "LongWait", "Has waited for nodes for 600 s")]

    run(main())
