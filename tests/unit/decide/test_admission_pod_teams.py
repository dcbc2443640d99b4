"""Tolerations of the teams' taints at admission: what a pod gets, and what it may not claim."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fairlead.api import crd
from fairlead.api.core import Toleration
from fairlead.api.meta import to_wire
from fairlead.api.names import GANG_GATE, TEAM
from fairlead.api.resources import CRDS, NAMESPACES, PODS, TEAMS
from fairlead.api.status import Forbidden
from fairlead.decide.admission.pod_teams import judge_team
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import Service
from fairlead.model.teams import TeamTable
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


def refusal(*own: Toleration, space: str = "vision", priority: int = 0) -> str:
    answer = judge_team(own, {}, TEAMS_OF_ALL, priority=priority, namespace=space)
    assert answer.added == ()
    return answer.refusal


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
    assert given(ALL, space="monitoring") == ()


def test_the_embedded_api_gives_and_refuses_the_same() -> None:
    rng = random.Random(1)
    service = Service(
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

    run(main())
