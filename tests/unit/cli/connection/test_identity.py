"""Whose jobs `ps --me` shows."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from fairlead.api.status import ApiError, Forbidden, NotFound
from fairlead.cli.connection import identity
from fairlead.cli.connection.identity import submitter_name
from fairlead.cli.connection.transport import Api
from fairlead.kube.http1 import HttpResponse


class _Api:
    """Answers with who asks, or refuses."""

    def __init__(self, name: str = "", groups: list[str] | None = None) -> None:
        self.status = {"userInfo": {"username": name, "groups": groups}}
        self.refusal: ApiError | None = None

    def request(self, method: str, path: str, *, body: Any) -> HttpResponse:
        assert (method, path.rpartition("/")[2]) == ("POST", "selfsubjectreviews")
        assert body["kind"] == "SelfSubjectReview"
        if self.refusal is not None:
            raise self.refusal
        return HttpResponse(201, "Created", {}, msgspec.json.encode({"status": self.status}))


def name_of(api: _Api) -> str:
    return submitter_name(cast("Api", api))


@pytest.fixture(autouse=True)
def local_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity.getpass, "getuser", lambda: "local")


def test_a_person_is_who_the_api_server_says() -> None:
    assert name_of(_Api("ann@example.com", ["researchers"])) == "ann@example.com"
    assert name_of(_Api("system:serviceaccount:team:ci")) == "system:serviceaccount:team:ci"


def test_an_administrator_is_the_user_of_this_machine() -> None:
    assert name_of(_Api("kubernetes-admin", ["system:masters"])) == "local"


@pytest.mark.parametrize("refusal", [Forbidden("no"), NotFound("no")])
def test_where_the_server_does_not_say_it_the_user_of_this_machine_counts(
    refusal: ApiError,
) -> None:
    api = _Api("ann")
    api.refusal = refusal
    assert name_of(api) == "local"
