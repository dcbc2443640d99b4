"""The search for secrets in logs, on logs that have one and on those that have none."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.planted import PLANTED, leaks

TOKEN = "f3a9c1d2e4b5f6a7"
KEY = "\n".join(["-----BEGIN PRIVATE KEY-----", "the head of it", "the middle of it", "the end"])


@pytest.fixture
def own() -> Iterator[Path]:
    """A directory that the search at the end of all tests does not see."""
    with TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("Started host=127.0.0.1", False),
        (f"Authorization: Bearer {TOKEN}", True),
        (f"env WANDB_API_KEY={PLANTED}", True),
        ("could not read: the middle of it", True),
    ],
    ids=["nothing", "token", "variable", "key"],
)
def test_a_log_with_a_secret_is_found(own: Path, line: str, *, found: bool) -> None:
    data = own / "case" / "data"
    (data / "log").mkdir(parents=True)
    (data / "token").write_text(TOKEN + "\n")
    key = base64.b64encode(KEY.encode()).decode()
    (data / "tls.json").write_text(json.dumps({"tls.key": key, "tls.crt": "public"}))
    (data / "log" / "fairlead.log").write_text(f"before\n{line}\n")
    assert bool(leaks(own)) is found
