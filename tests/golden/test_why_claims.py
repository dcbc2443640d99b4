"""What `fairlead why` says of jobs that wait for volumes or devices: which, where, what helps."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from msgspec.structs import replace
from tests.golden.cli_golden import check
from tests.golden.cli_world import NOW, WorldApi

from fairlead.api.jobs.job import ClaimTemplate, Job, VerdictStatus
from fairlead.api.meta import ObjectMeta
from fairlead.api.names import HOSTNAME
from fairlead.api.resources import (
    CLAIMS,
    CSI_NODES,
    DEVICE_CLASSES,
    JOBS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
    VOLUMES,
)
from fairlead.cli.cluster.own_answers import EXPECTED_SECONDS_MAX
from fairlead.cli.connection.common import Common
from fairlead.cli.main import guarded
from fairlead.testing.builders import make_job, make_node, make_placement, make_pod
from fairlead.testing.device_builders import DRIVER as GPU
from fairlead.testing.device_builders import (
    device_request,
    make_device_claim,
    make_device_class,
    make_device_template,
    make_slice,
    with_device_claims,
)
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
                make_job("wide", gpus=0, cpu=1, claims=["w1", "w2"], created=NOW - 50),
            ],
            PODS.name: [make_pod("reader", node="a1", claims=["old"])],
            CLAIMS.name: [make_claim("data", volume="v-data"), make_claim("old", volume="v-old"),
                          make_claim("gone", volume="v-gone"),
                          *(make_claim(name, storage_class="disks") for name in ("w1", "w2"))],
            VOLUMES.name: [
                make_volume("v-data", zones=["b"], claim="data"),
                make_volume("v-old", zones=["a"], claim="old", driver=DRIVER),
                make_volume("v-left", zones=["a"], driver=DRIVER),
            ],
            STORAGE_CLASSES.name: [make_storage_class("disks", zones=["a", "b"])],
            CSI_NODES.name: [make_csi_node(name, disk_test=1) for name in nodes],
            VOLUME_ATTACHMENTS.name: [make_attachment("v-left", "a2", DRIVER)],
        }  # fmt: skip


class DevicesApi(WorldApi):
    """Three nodes with two devices each and one without; a job has those of the first, and one of
    the second is of a claim of somebody else.
    """

    def __init__(self) -> None:
        super().__init__()
        names = [f"n{i}" for i in range(1, 5)]

        def asking(name: str, template: str, **given: Any) -> Job:
            job = make_job(name, gpus=0, cpu=1, created=NOW - 900 + self.age, **given)
            self.age += 1
            return with_device_claims(job, template)

        self.age = 0
        self.objects |= {
            NODES.name: [make_node(name, labels={HOSTNAME: name}) for name in names],
            JOBS.name: [
                asking("holder", "pair", placement=make_placement(["n1"])),
                asking("pairs", "pair", count=2),
                asking("gang", "one", count=7),
                asking("triple", "three"),
                asking("elsewhere", "one", node_selector={HOSTNAME: "n4"}),
                *(
                    asking(name, "one", verdict=VerdictStatus("Blocked", reason, facts))
                    for name, reason, facts in BLOCKED
                ),
            ],
            PODS.name: [],
            RESOURCE_CLAIMS.name: [make_device_claim(
                "other", has=[("n2", "gpu-0")], users=["viewer-0", "viewer-1"]
            )],
            RESOURCE_CLAIM_TEMPLATES.name: [
                make_device_template(name, device_request(count=count))
                for name, count in (("one", 1), ("pair", 2), ("three", 3))
            ],
            DEVICE_CLASSES.name: [make_device_class(GPU)],
            RESOURCE_SLICES.name: [make_slice(name, 2) for name in names[:3]],
        }  # fmt: skip


BLOCKED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("missing", "DeviceClaimMissing", {"claim": "ResourceClaimTemplate none"}),
    ("classless", "DeviceClassMissing", {"claim": "ResourceClaimTemplate one",
                                         "device_class": "tpu"}),
    ("sharing", "DeviceClaimShared", {"claim": "ResourceClaim card"}),
    ("odd", "DeviceClaimUnsupported", {
        "claim": "ResourceClaimTemplate odd", "path": "spec.spec.devices.requests[0]",
        "why": "it cannot be read",
    }),
)  # fmt: skip


def why(monkeypatch: pytest.MonkeyPatch, api: type[WorldApi], *args: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(Common, "connect", lambda _self, **_: api())
    monkeypatch.setattr("fairlead.cli.commands.why.read_status", lambda _api: None)
    monkeypatch.setattr("fairlead.cli.commands.why.now", lambda: NOW)
    assert guarded(["why", *args]) == 0


def test_why_names_the_devices_their_nodes_and_what_would_change_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = [name for name, _, _ in BLOCKED]
    why(monkeypatch, DevicesApi, "pairs", "gang", "triple", "elsewhere", *blocked)
    check("tables/why-devices.txt", capsys.readouterr().out)


def test_a_machine_that_is_busy_with_other_work_takes_no_answer_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = itertools.count(step=EXPECTED_SECONDS_MAX)
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    why(monkeypatch, DevicesApi, "pairs")
    assert "--nodes 1    1 instead of 2 members" in capsys.readouterr().out


def test_why_names_the_volume_its_place_and_what_would_change_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    why(monkeypatch, VolumesApi, "three", "two", "pinned", "lost", "cached", "wide")
    check("tables/why-volumes.txt", capsys.readouterr().out)
    why(monkeypatch, VolumesApi, "two", "-o", "json")
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    (place,) = facts["explanation"]["volumes"]
    assert (place["claim"], place["volume"]) == ("data", "v-data")
