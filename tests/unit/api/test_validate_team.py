"""Rules of a Team beyond its schema: all mistakes at once, each with its path."""

from __future__ import annotations

import pytest

from fairlead.api.cluster.team import Share, Subjects
from fairlead.api.validation.validate_team import validate_team
from fairlead.testing.builders import make_team


def test_a_valid_team_has_no_mistakes() -> None:
    team = make_team(
        "vision",
        shares=(Share(pool="a100", nodes=4), Share(node_selector={"zone": "b"}, gpus=64)),
        members=Subjects(users=("ann",), groups=("vision",)),
        weight=3,
        borrow_limit_nodes=0,
    )
    assert validate_team(team) == []


def test_all_mistakes_are_reported_with_their_paths() -> None:
    spec = {
        "members": {"users": ["ann", "ann", " "]},
        "namespaces": ["vision", "Vision", "vision"],
        "shares": [
            {"pool": "a100"},
            {"pool": "a100", "nodes": 1, "gpus": 8},
            {"nodeSelector": {"bad key": "x", "zone": "bad value"}, "nodes": -1},
            {"pool": "a", "nodeSelector": {"fairlead.dev/pool": "b"}, "nodes": 1},
        ],
        "weight": 0,
        "borrowLimitNodes": -1,
        "lendLimitNodes": -1,
        "limits": {"running": -1},
        "userLimits": {"gpus": -1},
        "budget": {"gpuHours": -1, "halfLifeDays": 0},
    }
    causes = validate_team({"metadata": {"name": "Big.Team"}, "spec": spec})
    assert [cause.field for cause in causes] == [
        "metadata.name",
        "spec.members.users[2]",
        "spec.members.users[1]",
        "spec.namespaces[1]",
        "spec.namespaces[2]",
        "spec.shares[0]",
        "spec.shares[1]",
        "spec.shares[1]",
        "spec.shares[2].nodeSelector",
        "spec.shares[2].nodeSelector[zone]",
        "spec.shares[2].nodes",
        "spec.shares[3].nodeSelector[fairlead.dev/pool]",
        "spec.weight",
        "spec.borrowLimitNodes",
        "spec.lendLimitNodes",
        "spec.limits.running",
        "spec.userLimits.gpus",
        "spec.budget.gpuHours",
        "spec.budget.halfLifeDays",
    ]


def test_what_is_no_team_gives_one_cause() -> None:
    [cause] = validate_team({"spec": {"shares": [{"nodes": "four"}]}})
    assert cause.field == "spec.shares[0].nodes"


@pytest.mark.parametrize("text", ["0", "1M", "1e99", "fast", "-1G", "20T"])
@pytest.mark.parametrize("field", ["internetEgress", "internetIngress"])
def test_a_budget_of_traffic_that_is_no_rate_is_refused_with_its_path(
    text: str, field: str
) -> None:
    [cause] = validate_team({"spec": {"network": {field: text}}})
    assert cause.field == f"spec.network.{field}"


def test_a_budget_of_traffic_is_a_rate_in_bits_per_second() -> None:
    assert (
        validate_team({"spec": {"network": {"internetEgress": "10G", "internetIngress": "1G"}}})
        == []
    )


def test_a_reservation_has_a_time_and_selects_nodes() -> None:
    day = {"startTime": "2026-12-01T08:00:00Z", "endTime": "2026-12-01T12:00:00Z"}
    booked = [
        {"name": "talk", **day, "nodeNames": ["a", "a", ""]},
        {"name": "talk", **day, "pool": "big"},
        {
            "name": "No",
            "startTime": "soon",
            "endTime": day["endTime"],
            "nodeSelector": {"rack": "r"},
        },
        {"name": "back", "startTime": day["endTime"], "endTime": day["startTime"]},
    ]
    causes = validate_team({"metadata": {"name": "vision"}, "spec": {"reservations": booked}})
    assert [cause.field for cause in causes] == [
        "spec.reservations[0].nodeNames[2]",
        "spec.reservations[0].nodeNames[1]",
        "spec.reservations[2].name",
        "spec.reservations[2].startTime",
        "spec.reservations[3].endTime",
        "spec.reservations[3]",
        "spec.reservations[1].name",
    ]
    assert "must be later than startTime" in causes[4].message
    assert validate_team({"spec": {"reservations": booked[1:2]}}) == []
