"""What `fairlead up` was asked for, and what it remembers."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.app.settings import Asked, AskedLogs, LogSettings, remember, settle
from fairlead.input.errors import CliError


def test_limits_of_logs_are_remembered_and_each_flag_changes_one(tmp_path: Path) -> None:
    assert settle(tmp_path, Asked()).logs == LogSettings(50, 5, 30, 20)
    asked = settle(tmp_path, Asked(logs=AskedLogs(file_mib=10, days=7)))
    assert asked.logs == LogSettings(10, 5, 7, 20)
    remember(asked, 7443)
    assert settle(tmp_path, Asked()).logs == LogSettings(10, 5, 7, 20)
    assert settle(tmp_path, Asked(logs=AskedLogs(files=2))).logs == LogSettings(10, 2, 7, 20)


def test_a_directory_of_an_earlier_version_has_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"nodes": 3, "port": 7001}')
    settings = settle(tmp_path, Asked())
    assert (settings.nodes, settings.port, settings.logs) == (3, 7001, LogSettings())


def test_a_remembered_settings_file_that_is_gone_is_named_with_the_way_out(tmp_path: Path) -> None:
    file = tmp_path / "fairlead.yaml"
    file.write_text("placement: {starvationSeconds: 60}\n")
    remember(settle(tmp_path, Asked(settings_file=str(file))), 7443)
    file.unlink()
    with pytest.raises(CliError) as caught:
        settle(tmp_path, Asked())
    (problem,) = caught.value.problems
    assert "cannot be read" in problem.message
    assert "--settings ''" in problem.help[0]
    assert settle(tmp_path, Asked(settings_file="")).settings_file == ""
    with pytest.raises(CliError) as caught:
        settle(tmp_path, Asked(settings_file=str(file)))
    assert caught.value.problems[0].help == ()
