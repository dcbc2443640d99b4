"""What the API server lets a person list decides what the page shows."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from fairlead.api.resources import JOBS, NODES, PODS, TEAMS
from fairlead.api.status import Forbidden, NotFound
from fairlead.testing.fake_client import FakeClient
from fairlead.web.sources.rights import Rights, rights_of


class Guarded(FakeClient):
    """An API that refuses some paths, and lacks some kinds."""

    def __init__(self, *, refused: tuple[str, ...] = (), missing: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.refused, self.missing = refused, missing

    async def read(self, path: str, query: Mapping[str, str]) -> bytes:
        assert query == {"limit": "1"}
        if path in self.refused:
            raise Forbidden(f"you may not list {path}")
        if path in self.missing:
            raise NotFound("404 page not found")
        return b"{}"


async def test_who_may_list_all_sees_all_and_a_kind_that_is_not_there_is_empty() -> None:
    client = Guarded(missing=(TEAMS.path(),))
    assert await rights_of(client, "") == Rights()


async def test_who_may_list_one_namespace_sees_its_jobs_and_no_nodes() -> None:
    client = Guarded(refused=(JOBS.path(), PODS.path(), NODES.path()))
    with pytest.raises(Forbidden):
        await rights_of(client, "")
    lab = frozenset({"lab"})
    assert await rights_of(client, "lab") == Rights(lab, lab, lab, nodes=False)
