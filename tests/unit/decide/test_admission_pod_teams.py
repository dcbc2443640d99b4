"""Tolerations of the teams' taints at admission: what a pod gets, and what it may not claim."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from fairlead.api.kubernetes.core import Pod, Toleration
from fairlead.api.meta import to_wire
from fairlead.api.names import GANG_GATE, TEAM
from fairlead.api.resources import CRDS, NAMESPACES, NODES, PODS, PRIORITY_CLASSES, TEAMS
from fairlead.api.schema import crd
from fairlead.api.status import Forbidden
from fairlead.decide.admission.pod_gates import GateRules
from fairlead.decide.admission.pod_teams import is_left_alone, judge_team
from fairlead.decide.admission.teams import RequestSender
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.model.asks.teams import TeamTable
from fairlead.model.inventory.node_teams import NodeOutline
from fairlead.runtime.clock import LoopClock
from fairlead.sim.loop import run
from fairlead.testing.builders import EPOCH, make_team

OWN = Toleration(TEAM, "Equal", "vision", "NoSchedule")
ANY = Toleration(TEAM, "Exists", "", "NoSchedule")
DISK = Toleration("disk", "Exists")
ALL = Toleration("", "Exists")
TEAM_LIST = [
    make_team("vision", namespaces=["vision", "both"], borrow_priority_max=0),
    make_team("speech", namespaces=["speech", "both"], borrow_limit_nodes=0),
]
TEAMS_OF_ALL = TeamTable(TEAM_LIST)


def given(
    *own: Toleration, space: str = "vision", priority: int = 0, label: str = "", gated: bool = False
) -> tuple[Toleration, ...]:
    labels = {TEAM: label} if label else {}
    answer = judge_team(
        own, labels, TEAMS_OF_ALL, priority=priority, namespace=space, is_gated=gated
    )
    assert not answer.refusal
    return answer.added


def refusal(
    *own: Toleration, space: str = "vision", priority: int = 0,
    before: Sequence[Toleration] | None = None, node_team: str = "",
) -> str:  # fmt: skip
    answer = judge_team(
        own, {}, TEAMS_OF_ALL, priority=priority, namespace=space, before=before,
        node_team=node_team,
    )  # fmt: skip
    if before is not None or answer.refusal:
        assert answer.added == ()
    return answer.refusal


def left_alone(name: str, *groups: str, space: str = "vision", **more: bool) -> bool:
    return is_left_alone(RequestSender(name, groups, **more), space, TEAMS_OF_ALL, GateRules())


def test_a_pod_gets_its_teams_toleration_and_that_of_all_teams_if_it_may_borrow() -> None:
    assert given() == (OWN, ANY)
    assert given(priority=1) == (OWN,)
    assert given(DISK, OWN) == (ANY,)
    assert given(OWN, ANY) == ()
    assert [t.value for t in given(space="speech")] == ["speech"]


def test_a_pod_of_no_team_gets_nothing_and_of_several_the_one_that_its_label_names() -> None:
    assert given(space="elsewhere") == given(space="both") == ()
    assert given(space="both", label="vision") == (OWN, ANY)
    assert given(space="vision", label="speech") == ()
    assert judge_team([ANY], {}, TeamTable(), priority=9, namespace="vision").refusal == ""


def test_a_pod_that_is_gated_for_its_gang_gets_them_with_its_place() -> None:
    assert given(gated=True) == ()


@pytest.mark.parametrize("effect", ["", "NoSchedule", "NoExecute"])
def test_a_foreign_claim_is_refused_with_the_teams_that_are_open(effect: str) -> None:
    claim = Toleration(TEAM, "Equal", "speech", effect)
    assert refusal(DISK, claim).endswith("open to namespace vision: vision")
    assert refusal(claim, space="elsewhere").endswith("open to namespace elsewhere: none")
    assert given(claim, space="both", label="speech")[:1] != (claim,)


def test_who_may_not_borrow_cannot_tolerate_all_teams_nor_everything() -> None:
    assert "may borrow" in refusal(ANY, priority=1)
    assert "may borrow" in refusal(ANY, space="elsewhere")
    assert "every taint" in refusal(ALL, space="speech")
    assert given(ALL) == (OWN, ANY)
    assert "of one" not in refusal(Toleration(TEAM, "Gt", "0"), priority=1)
    assert "may borrow" in refusal(Toleration(TEAM, "Gt", "0"), priority=1)


def test_a_toleration_of_every_taint_is_refused_in_namespaces_of_no_team_as_well() -> None:
    for effect in ("", "NoSchedule"):
        assert "every taint" in refusal(Toleration("", "Exists", "", effect), space="monitoring")
    for effect in ("NoExecute", "PreferNoSchedule"):  # a team's taint has another one
        assert given(Toleration("", "Exists", "", effect), space="monitoring") == ()


def test_of_a_pod_that_waits_for_a_node_what_is_added_is_judged_alone() -> None:
    foreign = Toleration(TEAM, "Equal", "speech", "NoSchedule")
    assert "not open" in refusal(DISK, foreign, before=[DISK])
    assert "every taint" in refusal(ALL, space="monitoring", before=[])
    assert "may borrow" in refusal(ANY, space="speech", before=[])
    assert refusal(foreign, DISK, before=[foreign]) == ""
    shorter = msgspec.structs.replace(foreign, toleration_seconds=5)
    assert refusal(shorter, before=[foreign]) == ""
    assert refusal(OWN, ANY, before=[]) == ""


def test_a_pod_names_nodes_of_its_own_team_of_none_and_those_that_it_may_borrow() -> None:
    assert refusal(node_team="vision", priority=9) == refusal(node_team="", space="elsewhere") == ""
    assert refusal(node_team="speech", priority=0) == ""
    why = "spec.nodeName is a node of team speech, which is not open"
    assert refusal(node_team="speech", priority=9).startswith(why)
    assert refusal(node_team="speech", space="elsewhere").startswith(why)


def test_pods_of_the_cluster_itself_are_left_alone_by_their_author() -> None:
    daemons = "system:serviceaccount:kube-system:daemon-set-controller"
    assert left_alone(daemons, space="monitoring")
    assert not left_alone(daemons, space="vision")
    assert not left_alone("system:serviceaccount:kube-system:replicaset-controller", space="other")
    assert left_alone("system:serviceaccount:fairlead-system:fairlead-controller")
    assert left_alone("root", "system:masters")
    assert left_alone("ana", is_administrator=True)
    assert left_alone("system:node:n1", "system:nodes")
    assert not left_alone("ana", "users")
    assert left_alone("ana", space="kube-system")
    rules = GateRules(system_namespaces=frozenset({"calico-system"}))
    assert is_left_alone(RequestSender("ana"), "calico-system", TEAMS_OF_ALL, rules)


def test_the_embedded_api_gives_and_refuses_the_same() -> None:
    rng = random.Random(1)
    service = ApiService(
        Store.open(None), Registry.with_builtins(), LoopClock(EPOCH),
        ids=lambda: f"{rng.getrandbits(128):032x}", rng=rng,
    )  # fmt: skip
    client = InProcessClient(service)

    async def main() -> None:
        await service.bootstrap()
        for manifest in crd.manifests():
            await client.create(CRDS, manifest)
        for team in TEAM_LIST:
            body = {"metadata": {"name": team.metadata.name}, "spec": to_wire(team.spec)}
            await client.create(TEAMS, body)
        await client.create(NAMESPACES, {"metadata": {"name": "vision"}})

        async def create(name: str, *own: Toleration, **spec: Any) -> Any:
            containers = [{"name": "main", "image": "x"}]
            body = {
                "metadata": {"name": name},
                "spec": {"containers": containers, "tolerations": to_wire(own), **spec},
            }
            made = await client.create(PODS, body, namespace="vision")
            return tuple(t for t in made.spec.tolerations if t.key == TEAM)

        assert await create("one") == (OWN, ANY)
        assert await create("two", OWN) == (OWN, ANY)
        assert await create("gated", schedulingGates=[{"name": GANG_GATE}]) == ()
        with pytest.raises(Forbidden, match="open to namespace vision: vision"):
            await create("three", Toleration(TEAM, "Equal", "speech"))
        await client.create(NODES, {"metadata": {"name": "n"}})
        taint = {"key": TEAM, "value": "speech", "effect": "NoSchedule"}
        await client.patch(NODES, "n", {"spec": {"taints": [taint]}})
        await client.create(PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 10})
        with pytest.raises(Forbidden, match="node of team speech, which is not open"):
            await create("four", nodeName="n", priorityClassName="high")
        assert await create("five", nodeName="none", priorityClassName="high") == ()
        with pytest.raises(Forbidden, match="every taint"):
            await create("six", ALL, priorityClassName="high")

    run(main())


async def _patched(client: InProcessClient, name: str, *new: Toleration, **spec: Any) -> Pod:
    pod = await client.get(PODS, name, namespace="vision")
    tolerations = to_wire((*pod.spec.tolerations, *new))
    patch = {"spec": {"tolerations": tolerations, **spec}}
    return await client.patch(PODS, name, patch, namespace="vision")


def test_the_embedded_api_judges_what_is_added_to_a_pod_that_waits() -> None:
    rng = random.Random(1)
    service = ApiService(
        Store.open(None), Registry.with_builtins(), LoopClock(EPOCH),
        ids=lambda: f"{rng.getrandbits(128):032x}", rng=rng,
    )  # fmt: skip
    client = InProcessClient(service)
    foreign = Toleration(TEAM, "Equal", "speech", "NoSchedule")

    async def main() -> None:
        await service.bootstrap()
        for manifest in crd.manifests():
            await client.create(CRDS, manifest)
        for team in TEAM_LIST:
            body = {"metadata": {"name": team.metadata.name}, "spec": to_wire(team.spec)}
            await client.create(TEAMS, body)
        await client.create(NAMESPACES, {"metadata": {"name": "vision"}})
        await client.create(PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 10})
        for name, gate in (("own", "example.com/mine"), ("gang", GANG_GATE)):
            spec = {"containers": [{"name": "main", "image": "x"}], "priorityClassName": "high",
                    "schedulingGates": [{"name": gate}]}  # fmt: skip
            body = {"metadata": {"name": name}, "spec": spec}
            await client.create(PODS, body, namespace="vision")
        for claim in (foreign, ANY, ALL):
            with pytest.raises(Forbidden):
                await _patched(client, "own", claim)
        with pytest.raises(Forbidden):
            await _patched(client, "own", foreign, schedulingGates=None)
        assert DISK in (await _patched(client, "own", DISK)).spec.tolerations
        released = await _patched(client, "gang", foreign, ANY, schedulingGates=None)
        assert {foreign, ANY} <= set(released.spec.tolerations)

    run(main())


def test_a_node_is_read_without_its_labels_and_annotations() -> None:
    taints = [{"key": TEAM, "value": "speech", "effect": "NoSchedule"}]
    metadata = {"name": "n", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"},
                "annotations": {"c": "d"}}  # fmt: skip
    body = {"metadata": metadata, "spec": {"taints": taints, "unschedulable": True}}
    node = msgspec.json.decode(msgspec.json.encode(body), type=NodeOutline)
    assert (node.metadata.key, node.metadata.version, node.team) == (("", "n"), 7, "speech")
    assert (node.metadata.labels, node.metadata.annotations) == ({}, {})
