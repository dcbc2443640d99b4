"""The tables of options of Slurm's commands: what a table calls read is read."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

from fairlead.cli import slurm_tools
from fairlead.cli.script.slurm_names import COMMANDS as NAMES
from fairlead.cli.script.slurm_options import LONG, SHORT
from fairlead.cli.slurm_tools import __main__ as main_module
from fairlead.member import srun_options

PAGE = Path(__file__).parents[4] / "docs/howto/coming-from-slurm.md"
ROOM = Path(slurm_tools.__file__).parent
#: Modules that read options for several commands.
SHARED = ("columns", "matching", "records", "job_signals")
COMMANDS = [path.stem for path in sorted(ROOM.glob("*.py")) if "OPTIONS = " in path.read_text()]


def tools_of_page() -> list[tuple[str, str]]:
    """Return the commands of each row of the table, and what it says of them."""
    text = PAGE.read_text().partition("\n## Slurm's own commands\n")[2].partition("\n## ")[0]
    lines = [line.strip("| ") for line in text.splitlines() if line.startswith("|")][2:]
    return [(first, rest) for first, _, rest in (line.partition(" | ") for line in lines)]


def constants(name: str) -> set[str]:
    """Return the strings in a module that are not part of its table."""
    found = set[str]()
    for node in ast.parse((ROOM / f"{name}.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "OPTIONS":
            continue
        strings = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
        found |= {each for each in strings if isinstance(each, str)}
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_that_is_taken_is_read_or_said_to_have_no_effect(command: str) -> None:
    table = import_module(f"fairlead.cli.slurm_tools.{command}").OPTIONS
    read = set[str]().union(*map(constants, (command, *SHARED)))
    taken = {option.name for _, option, why in table.described() if not (option.is_ignored or why)}
    assert taken - read == set()


def read_by(command: str) -> set[str]:
    """Return the options that a command reads, by letter and by name."""
    if command in ("sbatch", "salloc"):
        return {f"--{name}" for name in LONG} | {f"-{letter}" for letter in SHORT}
    if command == "srun":
        found = {f"--{name}" for name in srun_options.READ}
        return found | {f"-{letter}" for letter in srun_options.READ.values()} | {"--jobid"}
    table = import_module(f"fairlead.cli.slurm_tools.{command}").OPTIONS
    described = (shown for shown, o, why in table.described() if not (o.is_ignored or why))
    return {each for shown in described for each in shown.split(", ")}


@pytest.mark.parametrize("row", tools_of_page(), ids=lambda row: row[0])
def test_the_page_for_people_who_know_slurm_names_options_that_are_read(
    row: tuple[str, str],
) -> None:
    commands, words = row
    named = set(re.findall(r"`(--?[\w-]+)", words))
    for command in re.findall(r"`(\w+)`", commands):
        if command != "sbcast":
            assert named - read_by(command) == set(), command


def test_the_page_has_a_row_for_each_command() -> None:
    named = [each for commands, _ in tools_of_page() for each in re.findall(r"`(\w+)`", commands)]
    assert sorted(named) == sorted(NAMES)


@pytest.mark.parametrize("command", NAMES)
def test_help_has_the_options_of_a_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """sbatch waited for a script on standard input."""
    assert main_module.run(command, ["--help"]) == 0
    first, *options = capsys.readouterr().out.splitlines()
    assert first == f"Usage: {command} [OPTIONS] ..."
    assert all(line.startswith("  -") for line in options)
    shown = {word.rstrip(",") for line in options for word in line.split()[:2]}
    assert bool(options) == (command != "sbcast")
    assert {"squeue": "--json", "sbatch": "--nodes", "srun": "--label"}.get(command, "") in (
        *shown, ""
    )  # fmt: skip


def test_the_commands_that_have_a_table_are_found() -> None:
    assert {"sacct", "scancel", "sinfo", "squeue"} <= set(COMMANDS)
