"""Whose a job is, and which taints its members tolerate."""

from __future__ import annotations

from fairlead.api.kubernetes.core import Taint, Toleration
from fairlead.api.names import TEAM
from fairlead.model.asks.teams import AmbiguousTeam, ForeignTeam, TeamTable, owner_of
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest
from fairlead.testing.builders import make_job, make_node, make_team


def test_the_namespace_decides_and_a_claim_chooses_among_its_teams() -> None:
    teams = TeamTable(
        [
            make_team("speech", namespaces=["shared"]),
            make_team("vision", namespaces=["shared", "v"]),
        ]
    )
    assert teams.resolve("", "v") == "vision"
    assert teams.resolve("vision", "v") == "vision"
    assert teams.resolve("speech", "v") == ForeignTeam("speech", ("vision",))
    assert teams.resolve("", "shared") == AmbiguousTeam(("speech", "vision"))
    assert teams.resolve("speech", "shared") == "speech"
    assert teams.resolve("", "elsewhere") == ""
    assert teams.resolve("vision", "elsewhere") == ForeignTeam("vision", ())


def test_without_teams_the_name_in_a_job_has_no_meaning() -> None:
    assert TeamTable().resolve("anything", "default") == "anything"


def test_a_team_that_is_not_valid_counts_as_gone() -> None:
    teams = TeamTable([make_team("vision")])
    assert teams.put(make_team("vision", weight=0))
    assert teams.get("vision") is None
    assert not teams.put(make_team("vision", weight=0))


def test_a_change_of_the_status_alone_is_no_change() -> None:
    teams = TeamTable([make_team("vision")])
    version = teams.version
    assert not teams.put(make_team("vision", resource_version=2))
    assert teams.version == version


def test_the_owner_of_a_node_is_read_from_its_taint_alone() -> None:
    other = Taint("nvidia.com/gpu", "NoSchedule", "present")
    assert owner_of([other, Taint(TEAM, "NoSchedule", "vision")]) == "vision"
    assert owner_of([other, Taint(TEAM, "NoExecute", "vision")]) == ""
    assert owner_of([]) == ""


def _room(state: ClusterState, namespace: str, name: str = "job") -> int:
    gang = state.jobs[(namespace, name)].gang
    assert isinstance(gang, GangRequest)
    return state.fits.total(gang.roles[0].member)


def _cluster() -> ClusterState:
    taint = Taint(TEAM, "NoSchedule", "vision")
    nodes = [make_node("own", taints=[taint]), make_node("open")]
    return ClusterState.of(nodes)


def test_members_run_on_their_teams_nodes_and_on_those_of_nobody() -> None:
    state = _cluster()
    state.team_changed("vision", make_team("vision"))
    state.team_changed("speech", make_team("speech", borrow_limit_nodes=0))
    state.job_changed(make_job("job", namespace="vision"))
    state.job_changed(make_job("job", namespace="speech"))
    state.job_changed(make_job("job", namespace="elsewhere"))
    assert [_room(state, space) for space in ("vision", "speech", "elsewhere")] == [2, 1, 1]


def test_a_job_of_low_priority_may_borrow_from_every_team() -> None:
    state = _cluster()
    state.team_changed("vision", make_team("vision"))
    state.team_changed("speech", make_team("speech", borrow_priority_max=5))
    state.job_changed(make_job("low", namespace="speech", priority=5))
    state.job_changed(make_job("high", namespace="speech", priority=6))
    assert _room(state, "speech", "low") == 2
    assert _room(state, "speech", "high") == 1


def test_a_templates_own_tolerations_open_no_teams_nodes() -> None:
    state = _cluster()
    state.team_changed("vision", make_team("vision"))
    everything = Toleration(operator="Exists")
    claimed = Toleration(TEAM, "Exists")
    state.job_changed(make_job("job", namespace="elsewhere", tolerations=[everything, claimed]))
    assert _room(state, "elsewhere") == 1


def test_a_changed_team_changes_what_its_jobs_may_use() -> None:
    state = _cluster()
    state.job_changed(make_job("job", namespace="vision"))
    assert _room(state, "vision") == 1
    state.team_changed("vision", make_team("vision"))
    assert _room(state, "vision") == 2
    state.team_changed("vision", None)
    assert _room(state, "vision") == 1
