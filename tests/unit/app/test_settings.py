"""What `fairlead up` was asked for, and what it remembers."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.app.configuration.settings import AskedLogs, LogSettings, UpFlags, remember, settle
from fairlead.app.local.nodes import log_limits
from fairlead.embedded.local.logfiles import LogLimits
from fairlead.input.errors import CliError


def test_limits_of_logs_are_remembered_and_each_flag_changes_one(tmp_path: Path) -> None:
    assert settle(tmp_path, UpFlags()).logs == LogSettings(50, 5, 30, 20)
    asked = settle(tmp_path, UpFlags(logs=AskedLogs(file_mib=10, days=7)))
    assert asked.logs == LogSettings(10, 5, 7, 20)
    remember(asked, 7443)
    assert settle(tmp_path, UpFlags()).logs == LogSettings(10, 5, 7, 20)
    assert settle(tmp_path, UpFlags(logs=AskedLogs(files=2))).logs == LogSettings(10, 2, 7, 20)


def test_limits_of_logs_reach_the_local_node_in_its_units() -> None:
    assert log_limits(LogSettings()) == LogLimits(), "the defaults are those of the node"
    assert log_limits(LogSettings(file_mib=1, files=2, days=3, total_gib=4)) == LogLimits(
        file_bytes_max=1 << 20, files_max=2, age_seconds_max=3 * 86_400.0, total_bytes_max=4 << 30
    )


def test_a_directory_of_an_earlier_version_has_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"nodes": 3, "port": 7001}')
    settings = settle(tmp_path, UpFlags())
    assert (settings.nodes, settings.port, settings.logs) == (3, 7001, LogSettings())


def test_a_remembered_settings_file_that_is_gone_is_named_with_the_way_out(tmp_path: Path) -> None:
    file = tmp_path / "fairlead.yaml"
    file.write_text("placement: {starvationSeconds: 60}\n")
    remember(settle(tmp_path, UpFlags(settings_file=str(file))), 7443)
    file.unlink()
    with pytest.raises(CliError) as caught:
        settle(tmp_path, UpFlags())
    (problem,) = caught.value.problems
    assert "cannot be read" in problem.message
    assert "--settings ''" in problem.help[0]
    assert settle(tmp_path, UpFlags(settings_file="")).settings_file == ""
    with pytest.raises(CliError) as caught:
        settle(tmp_path, UpFlags(settings_file=str(file)))
    assert caught.value.problems[0].help == ()
