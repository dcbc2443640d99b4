"""`fairlead web-server`: what it takes from its environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli.cluster import cluster_settings
from fairlead.cli.cluster.archive import URL_VARIABLE
from fairlead.cli.main import guarded
from fairlead.kube.kubeconfig import write_kubeconfig
from fairlead.web import users


def test_no_store_of_its_environment_is_read_past_the_rights_of_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[str | None] = []

    async def serve(*_: Any, **__: Any) -> None:
        met.append(os.environ.get(URL_VARIABLE))

    kubeconfig = tmp_path / "kubeconfig"
    write_kubeconfig(kubeconfig, "http://127.0.0.1:9", "t", "c")
    monkeypatch.setenv(URL_VARIABLE, "sqlite:///all.db")
    monkeypatch.setattr(users, "serve_users", serve)
    monkeypatch.setattr(cluster_settings, "read_settings", lambda *_: None)
    assert guarded(["web-server", "--kubeconfig", str(kubeconfig)]) == 0
    assert met == [None]
