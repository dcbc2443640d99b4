"""Commands of providers, as the controller's event loop runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from fairlead.cloud.command import run_command
from fairlead.cloud.exec import ExecProvider
from fairlead.cloud.provider import CloudError
from fairlead.cloud.static import StaticProvider

_START = asyncio.create_subprocess_exec


async def _ended(*arguments: str, **options: Any) -> asyncio.subprocess.Process:
    """Start a process and return once it has ended, as a busy event loop does."""
    process = await _START(*arguments, **options)
    async with asyncio.timeout(10):
        while process.stdin is None or not process.stdin.is_closing():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return process


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_a_command_may_end_before_it_is_given_its_request(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio, "create_subprocess_exec", _ended)
    asked: Coroutine[Any, Any, Any] = run_command("/bin/echo", '["one"]', request={"verb": "list"})
    assert run(asked) == ["one"]


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


PRINTS_ENVIRONMENT = """
printf '{"instances": [{"id": "id-%s-%s-%s"}]}' \\
  "${PATH:+path}" "${FAIRLEAD_HISTORY_URL:-none}" "${RACK_TOKEN:-none}"
"""


@pytest.mark.parametrize(
    ("options", "named"), [({}, "none"), ({"environment": "X RACK_TOKEN"}, "t")]
)
def test_a_command_inherits_what_programs_need_and_what_its_pool_names(
    options: dict[str, str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLEAD_HISTORY_URL", "postgresql://fairlead:hunter2@db/fairlead")
    monkeypatch.setenv("RACK_TOKEN", "t")
    provider = ExecProvider(script(tmp_path / "command", PRINTS_ENVIRONMENT), "pool", options)
    [machine] = asyncio.run(provider.instances()).instances
    assert machine.id == f"id-path-none-{named}"


@pytest.mark.parametrize(("names", "awake"), [((), "none"), (("RACK_TOKEN",), "t")])
def test_so_does_the_command_of_an_inventory(
    names: tuple[str, ...], awake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RACK_TOKEN", "t")
    power = script(tmp_path / "power", 'printf \'["%s"]\' "${RACK_TOKEN:-none}"')
    machines = [{"id": "none"}, {"id": "t"}]
    inventory = {"machines": machines, "power": power, "environment": names}
    (tmp_path / "inventory").write_bytes(msgspec.json.encode(inventory))
    provider = StaticProvider(str(tmp_path / "inventory"), "pool")
    assert [each.id for each in asyncio.run(provider.instances()).instances] == [awake]


def test_what_a_command_says_of_its_failure_is_short_and_without_control_codes(
    tmp_path: Path,
) -> None:
    says = "printf 'first\\n\\033]0;title\\007 \\tlast %01000d' 7 >&2; exit 1"
    command = script(tmp_path / "command", says)
    with pytest.raises(CloudError) as caught:
        asyncio.run(run_command(command, "list"))
    text = str(caught.value)
    assert text.isprintable()
    assert text.endswith("0007")
    assert len(text) <= len(f"{command} list: ") + 200
    short = script(tmp_path / "short", "printf 'a\\n\\033]0;b\\007\\tc' >&2; exit 1")
    with pytest.raises(CloudError, match=r"list: a \\x1b\]0;b\\x07 c$"):
        asyncio.run(run_command(short, "list"))


@pytest.mark.parametrize("says", [r'{"a": "\377"}', "[" * 50_000], ids=["no text", "too deep"])
def test_an_answer_that_is_no_json_is_an_error_of_the_provider(tmp_path: Path, says: str) -> None:
    command = script(tmp_path / "command", f"printf '{says}'")
    with pytest.raises(CloudError, match="command answers no JSON"):
        asyncio.run(run_command(command, "list"))
