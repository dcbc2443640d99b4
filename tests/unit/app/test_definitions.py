"""Definitions of our kinds in the embedded cluster, when another version of Fairlead wrote them."""

from __future__ import annotations

import copy
import itertools
import random
from typing import Any

import msgspec

from fairlead.api.resources import CRDS, JOBS
from fairlead.api.schema import crd
from fairlead.app.local.embedded import install_crds
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.runtime.clock import LoopClock
from fairlead.sim.loop import run
from fairlead.testing.builders import make_job


def newer() -> dict[str, Any]:
    """The definition of jobs with a field that this version does not know."""
    manifests = (copy.deepcopy(dict(each)) for each in crd.manifests())
    manifest: Any = next(each for each in manifests if each["spec"]["names"]["kind"] == "Job")
    schema = manifest["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["later"] = {"type": "string"}
    return manifest


def test_an_older_version_brings_its_definitions_and_a_later_field_goes_with_the_next_write() -> (
    None
):
    async def main() -> None:
        numbers = itertools.count(1)
        service = ApiService(
            Store.open(None), Registry.with_builtins(), LoopClock(1.8e9),
            ids=lambda: f"uid-{next(numbers)}", rng=random.Random(1),
        )  # fmt: skip
        await service.bootstrap()
        client = InProcessClient(service)
        await client.create(CRDS, newer())
        spec = msgspec.json.decode(msgspec.json.encode(make_job("train").spec))
        body = {"metadata": {"name": "train"}, "spec": {**spec, "later": "x"}}
        stored = await client.create(JOBS.raw, body, namespace="default")
        assert stored["spec"]["later"] == "x"
        await install_crds(client)
        read = await client.get(JOBS.raw, "train", namespace="default")
        assert read["spec"] == stored["spec"]
        held = await client.patch(JOBS.raw, "train", {"spec": {"suspend": True}},
                                  namespace="default")  # fmt: skip
        assert "later" not in held["spec"]
        assert held["spec"]["roles"] == stored["spec"]["roles"]

    run(main())
