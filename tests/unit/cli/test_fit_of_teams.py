"""The check before a submission knows the nodes that a job's team may use."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.api.core import Taint
from fairlead.api.names import TEAM
from fairlead.api.resources import NODES, TEAMS
from fairlead.cli.fit import check_fit
from fairlead.input.errors import CliError
from fairlead.testing.builders import make_job, make_node, make_team


class Api:
    def list(self, resource: Any, **_: Any) -> list[Any]:
        if resource == NODES:
            return [make_node("n0", taints=[Taint(TEAM, "NoSchedule", "vision")])]
        return [make_team("vision")] if resource == TEAMS else []


def test_a_job_fits_on_the_nodes_of_its_team_and_not_on_those_of_another() -> None:
    api: Any = Api()
    assert "fits now" in check_fit(api, make_job("job", namespace="vision"))
    with pytest.raises(CliError):
        check_fit(api, make_job("job", namespace="elsewhere"))
