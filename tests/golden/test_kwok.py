"""What `sim import` makes of KWOK's Stage files, says of them and refuses, byte for byte."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.golden.cli_golden import DATA, check

from fairlead.cli.main import guarded
from fairlead.embedded.virtual.profile import load_profile


@pytest.mark.parametrize("name", ["fast", "general", "chaos"])
def test_stages_become_a_profile_and_every_assumption_is_printed(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / "kwok" / f"{name}.yaml", tmp_path)
    assert guarded(["sim", "import", f"{name}.yaml", "life.yaml"]) == 0
    assert load_profile("life.yaml").name == "life"
    check(f"kwok/{name}-profile.yaml", (tmp_path / "life.yaml").read_text())
    check(f"kwok/{name}-said.txt", capsys.readouterr().err)


def test_all_mistakes_are_reported_at_once_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / "kwok" / "mistakes.yaml", tmp_path)
    assert guarded(["sim", "import", "mistakes.yaml", "life.yaml"]) == 2
    assert not (tmp_path / "life.yaml").exists()
    check("kwok/mistakes-said.txt", capsys.readouterr().err)


@pytest.mark.parametrize(
    "command", [["sim", "run", "--profile", "fast.yaml"], ["up", "--profile", "fast.yaml"]]
)
def test_a_kwok_file_given_as_a_profile_is_refused_with_the_command_that_converts_it(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAIRLEAD_DATA", str(tmp_path / "data"))
    shutil.copy(DATA / "kwok" / "fast.yaml", tmp_path)
    assert guarded(command) == 2
    said = capsys.readouterr().err.replace(f"{tmp_path}/", "")
    check("kwok/as-profile-said.txt", said)


@pytest.mark.parametrize("source", ["fast.yaml", "jobs.csv"])
def test_a_target_that_cannot_be_written_is_an_error_of_the_command_line(
    source: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / "kwok" / "fast.yaml", tmp_path)
    Path("jobs.csv").write_text("submit_seconds,run_seconds,members,gpus\n0,1,1,1\n")
    assert guarded(["sim", "import", source, "nowhere/target"]) == 5
    check("kwok/unwritable-said.txt", capsys.readouterr().err)
