"""What `fairlead why` says of jobs that wait for their volumes: which, where, what helps."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace
from tests.golden.cli_golden import check
from tests.golden.cli_world import NOW, WorldApi

from fairlead.api.jobs.job import ClaimTemplate, Job, VerdictStatus
from fairlead.api.meta import ObjectMeta
from fairlead.api.resources import (
    CLAIMS,
    CSI_NODES,
    JOBS,
    NODES,
    PODS,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
    VOLUMES,
)
from fairlead.cli.connection.common import Common
from fairlead.cli.main import guarded
from fairlead.testing.builders import make_job, make_node, make_placement, make_pod
from fairlead.testing.volume_builders import (
    ZONE,
    make_attachment,
    make_claim,
    make_csi_node,
    make_storage_class,
    make_volume,
)

DRIVER = "disk.test"


def with_own_claims(job: Job) -> Job:
    """The job, whose members have a claim of their own each."""
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "disks"}
    (role,) = job.spec.roles
    role = replace(role, volume_claim_templates=(ClaimTemplate(ObjectMeta(name="cache"), spec),))
    return replace(job, spec=replace(job.spec, roles=(role,)))


class VolumesApi(WorldApi):
    """Two nodes of zone a, two of zone b; each attaches one volume, and those of zone a have it."""

    def __init__(self) -> None:
        super().__init__()
        nodes = {f"{zone}{i}": zone for zone in "ab" for i in (1, 2)}
        here = make_placement(["b1"])
        self.objects |= {
            NODES.name: [make_node(name, labels={ZONE: nodes[name]}) for name in nodes],
            JOBS.name: [
                make_job("holder", gpus=8, created=NOW - 900, placement=here),
                make_job("three", count=3, gpus=8, claims=["data"], created=NOW - 300),
                make_job("two", count=2, gpus=8, claims=["data"], created=NOW - 200),
                make_job("pinned", claims=["data"], node_selector={ZONE: "a"}, created=NOW - 150),
                make_job("lost", claims=["gone"], created=NOW - 120, verdict=VerdictStatus(
                    "Blocked", "ClaimLost", {"claim": "gone", "volume": "v-gone"}
                )),
                with_own_claims(make_job(
                    "cached", count=2, gpus=0, cpu=1, node_selector={ZONE: "a"}, created=NOW - 100
                )),
            ],
            PODS.name: [make_pod("reader", node="a1", claims=["old"])],
            CLAIMS.name: [make_claim("data", volume="v-data"), make_claim("old", volume="v-old"),
                          make_claim("gone", volume="v-gone")],
            VOLUMES.name: [
                make_volume("v-data", zones=["b"], claim="data"),
                make_volume("v-old", zones=["a"], claim="old", driver=DRIVER),
                make_volume("v-left", zones=["a"], driver=DRIVER),
            ],
            STORAGE_CLASSES.name: [make_storage_class("disks", zones=["a", "b"])],
            CSI_NODES.name: [make_csi_node(name, disk_test=1) for name in nodes],
            VOLUME_ATTACHMENTS.name: [make_attachment("v-left", "a2", DRIVER)],
        }  # fmt: skip


def test_why_names_the_volume_its_place_and_what_would_change_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(Common, "connect", lambda _self, **_: VolumesApi())
    monkeypatch.setattr("fairlead.cli.commands.why.read_status", lambda _api: None)
    monkeypatch.setattr("fairlead.cli.commands.why.now", lambda: NOW)
    waiting = ("three", "two", "pinned", "lost", "cached")
    assert guarded(["why", *waiting]) == 0
    check("tables/why-volumes.txt", capsys.readouterr().out)
    assert guarded(["why", "two", "-o", "json"]) == 0
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    (place,) = facts["explanation"]["volumes"]
    assert (place["claim"], place["volume"]) == ("data", "v-data")
