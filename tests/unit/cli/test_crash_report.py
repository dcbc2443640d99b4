"""The report of a crash may be passed on: no secret of the command line is in it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from fairlead.cli import app
from fairlead.input.masked import masked

URL = "postgresql://fairlead:hunter/2@x@db.example:5432/fairlead"


def test_a_report_has_the_command_line_without_its_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["controller", "--history", URL, "--token", "hunter2", "--env", "API_KEY=hunter2"]

    def crash(**_: object) -> None:
        raise RuntimeError(f"cannot use {URL}")

    monkeypatch.setattr(sys, "argv", ["fairlead", *arguments])
    monkeypatch.setattr(app.cli, "main", crash)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert app.run(arguments) != 0
    [report] = tmp_path.iterdir()
    said = report.read_text()
    assert "controller --history postgresql://***@db.example:5432/fairlead" in said
    assert "RuntimeError: cannot use postgresql://***@db.example" in said
    assert "hunter" not in said
    assert "hunter" not in capsys.readouterr().err
    assert report.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ps -o wide --namespace a", "ps -o wide --namespace a"),
        ("http://user@host/path", "http://***@host/path"),
        ("https://host/path", "https://host/path"),
        ("host=db password=x user=y", "host=db password=*** user=y"),
        ("postgres://db/f?sslpassword=x&a=b", "postgres://db/f?sslpassword=***&a=b"),
        ("--webhook-token x --dry-run", "--webhook-token *** --dry-run"),
        ("--token --dry-run", "--token --dry-run"),
        ("--WANDB_API_KEY=x", "--WANDB_API_KEY=***"),
        ("AWS_SECRET_ACCESS_KEY=x", "AWS_SECRET_ACCESS_KEY=***"),
        ("Authorization: Bearer x.y.z end", "Authorization: Bearer *** end"),
        ("secrets of train-token", "secrets of train-token"),
    ],
)
def test_what_is_masked(text: str, shown: str) -> None:
    assert masked(text) == shown
