"""The check before a submission knows the nodes that a job's team may use."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.cli.fake_api import Unanswered

from fairlead.api.cluster.team import Budget, Team, TeamStatus, TeamUse
from fairlead.api.jobs.job import Attempt
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Taint
from fairlead.api.names import RACK, TEAM
from fairlead.api.resources import JOBS, NODES, TEAMS
from fairlead.api.status import NotFound
from fairlead.api.values.times import format_time
from fairlead.cli.submitting.fit import check_fit
from fairlead.input.errors import CliError
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement, make_team


class Api(Unanswered):
    def __init__(self, team: Team | None = None) -> None:
        self.team = team or make_team("vision")

    def list(self, resource: Any, **_: Any) -> list[Any]:
        if resource == NODES:
            return [make_node("n0", gpus=8, taints=[Taint(TEAM, "NoSchedule", "vision")])]
        return [self.team] if resource == TEAMS else []

    def get(self, *_: Any, **__: Any) -> Any:
        raise NotFound("no settings")

    request = get


def test_a_job_fits_on_the_nodes_of_its_team_and_not_on_those_of_another() -> None:
    api: Any = Api()
    assert "fits now" in check_fit(api, make_job("job", namespace="vision"), EPOCH).text
    with pytest.raises(CliError) as refused:
        check_fit(api, make_job("job", namespace="elsewhere"), EPOCH)
    help_ = " ".join(refused.value.problems[0].help)
    assert "in the namespace of your team" in help_
    assert "toleration" not in help_, "a share is not to be used by writing a toleration"


@pytest.mark.parametrize(("gpu_hours", "gpus", "says"), [
    (99.0, 8, "fits now"), (100.0, 8, "waits: team vision has used its budget of 100 GPU-hours"),
    (100.0, 0, "fits now"),
])  # fmt: skip
def test_a_job_with_gpus_of_a_team_beyond_its_budget_waits(
    gpu_hours: float, gpus: int, says: str
) -> None:
    team = make_team("vision", budget=Budget(gpu_hours=100))
    use = TeamUse(gpu_hours=gpu_hours, as_of=format_time(EPOCH))
    api: Any = Api(replace(team, status=TeamStatus(use=use)))
    assert says in check_fit(api, make_job("job", namespace="vision", gpus=gpus), EPOCH).text


class LentApi(Api):
    """Two nodes of vision, which a job of another team borrows."""

    def list(self, resource: Any, **_: Any) -> list[Any]:
        if resource == TEAMS:
            return [make_team("vision"), make_team("speech")]
        if resource == JOBS:
            began = Attempt(1, started_at=format_time(EPOCH - 3600))
            placement = replace(make_placement(["n0", "n1"]), team="speech")
            return [make_job("guest", count=2, namespace="speech", placement=placement,
                             status={"attempts": (began,)})]  # fmt: skip
        taints = [Taint(TEAM, "NoSchedule", "vision")]
        return [make_node(f"n{n}", taints=taints) for n in "01"] if resource == NODES else []


def test_a_job_that_takes_nodes_of_its_team_back_says_from_whom() -> None:
    api: Any = LentApi()
    assert check_fit(api, make_job("own", namespace="vision"), EPOCH).text == (
        "Place    starts by taking 2 nodes back from speech/guest, which borrows them, in about 30s"
    )


class RackApi(Api):
    """Two racks, one of them with a node that is out, of a cluster that says nothing of its
    settings.
    """

    def list(self, resource: Any, **_: Any) -> list[Any]:
        if resource != NODES:
            return []
        nodes = [make_node(f"n{n}", labels={RACK: f"r{n}"}) for n in "01"]
        return [*nodes, make_node("out", labels={RACK: "r0"}, unschedulable=True)]


def test_a_job_that_prefers_a_level_waits_for_it_first() -> None:
    api: Any = RackApi()
    topology = Topology(key="rack", preferred_seconds=600)
    text = check_fit(api, make_job("job", count=2, topology=topology), EPOCH).text
    assert f"waits for one rack until {format_time(EPOCH + 600)}, then takes any nodes" in text
    topology = Topology(key="pod", preferred_seconds=600)
    text = check_fit(api, make_job("job", count=2, topology=topology), EPOCH).text
    assert text == "Place    fits now, on 2 nodes; no node is in a pod, so it waits for none"
