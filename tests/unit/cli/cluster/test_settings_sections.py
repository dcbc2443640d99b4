"""Single sections of the controllers' settings, as commands read them."""

from __future__ import annotations

import pytest
from tests.unit.cli.fake_api import FakeApi

from fairlead.api.names import OWN_NAMESPACE
from fairlead.api.resources import CONFIG_MAPS
from fairlead.app.configuration.client_settings import SessionsSettings, SlurmSettings
from fairlead.app.queries.messages import SETTINGS_FILE, SETTINGS_NAME
from fairlead.cli.cluster.cluster_settings import NOT_READ, sessions_settings, slurm_settings
from fairlead.cli.connection.common import Common, Format


def noting(said: list[str]) -> Common:
    return Common(Format.TABLE, "", False, "", "", True, False, False, 0, tell=said.append)


@pytest.mark.parametrize(
    ("text", "idle_seconds", "qos", "notes"),
    [
        ("sessions: {idleSeconds: 60}", 60, {}, 0),
        ("slurm: {qos: {high: urgent}}\nfleet: {nosuch: 1}", 14_400, {"high": "urgent"}, 0),
        ("sessions: {idleSeconds: -1}", 14_400, {}, 1),
        ("sessions: [1]\nslurm: 7", 14_400, {}, 2),
        ("[not, a, mapping]", 14_400, {}, 2),
        ("{", 14_400, {}, 2),
        ("{}", 14_400, {}, 0),
    ],
)
def test_a_section_is_read_whatever_the_others_are_and_else_its_defaults(
    text: str, idle_seconds: int, qos: dict[str, str], notes: int
) -> None:
    api, said = FakeApi(), list[str]()
    body = {"metadata": {"name": SETTINGS_NAME}, "data": {SETTINGS_FILE: text}}
    api.create(CONFIG_MAPS.raw, body, namespace=OWN_NAMESPACE)
    common = noting(said)
    assert sessions_settings(common, api) == SessionsSettings(idle_seconds=idle_seconds)
    assert slurm_settings(common, api) == SlurmSettings(qos=qos)
    assert said == [NOT_READ] * notes


def test_without_settings_the_defaults_are_assumed_and_it_is_said() -> None:
    said = list[str]()
    assert sessions_settings(noting(said), FakeApi()) == SessionsSettings()
    assert said == [NOT_READ]
