"""Which version of PodGroups a server has for us."""

from __future__ import annotations

from itertools import product

import pytest

from fairlead.api.podgroups import GroupApi
from fairlead.api.status import ApiError, Forbidden, NotFound, Unavailable
from fairlead.runtime.watching.discovery import discover_groups
from fairlead.sim.loop import run
from fairlead.testing.fake_client import FakeClient

_REFUSALS = (NotFound("no such path"), Forbidden("no such right"))


@pytest.mark.parametrize(
    "answers",
    [(), *product(_REFUSALS, repeat=len(GroupApi) - 1), *product(_REFUSALS, repeat=len(GroupApi))],
)
def test_the_first_version_that_is_served_to_us_is_used_if_any_is(
    answers: tuple[ApiError, ...],
) -> None:
    client = FakeClient()
    client.fail_next("list", *answers)
    expected = next(iter(list(GroupApi)[len(answers) :]), None)
    assert run(discover_groups(client)) is expected


def test_an_outage_says_nothing_of_what_is_served() -> None:
    client = FakeClient()
    client.fail_next("list", Unavailable("down"))
    with pytest.raises(Unavailable):
        run(discover_groups(client))
