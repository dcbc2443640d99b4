"""What the commands that people type all day import: half of their time is loading modules.

And that a process that ends does not look through all of these.
"""

from __future__ import annotations

import json
import subprocess
import sys

#: For servers, for files in YAML, for decisions of a whole cycle, and for numbers.
HEAVY = (
    "aiohttp", "asyncio", "boto3", "cryptography", "google.cloud", "logging", "numba", "numpy",
    "prometheus_client", "shutil", "structlog", "tempfile", "uvloop", "yaml",
    "fairlead.cli.cluster.own_answers", "fairlead.controllers", "fairlead.embedded",
    "fairlead.decide.fleet", "fairlead.decide.placement.cycle",
    "fairlead.decide.placement.evict.preempt",
    "fairlead.decide.placement.places.whatif", "fairlead.decide.answers.forecast",
    "fairlead.model.cluster",
    "fairlead.sim",
)  # fmt: skip
#: Module by module in one process; so each line allows what the lines before it allow.
ALLOWED: dict[str, set[str]] = {
    "jobs": set(),
    "logs": set(),
    "wait": set(),
    "change": set(),
    "history": set(),
    "nodes": set(),
    "slurm": set(),
    "interactive": set(),
    # they ask the process that decides, and load the planner where none answers
    "submit": set(),
    "why": set(),
}  # fmt: skip
PROGRAM = """
import importlib, json, sys
heavy, modules = json.loads(sys.argv[1])
found = {}
for module in modules:
    importlib.import_module(f"fairlead.cli.commands.{module}")
    found[module] = [name for name in heavy if name in sys.modules]
print(json.dumps(found))
"""


def test_a_command_ends_without_a_collection() -> None:
    program = (
        "import atexit, gc, sys\n"
        "from fairlead.cli.main import main\n"
        "sys.argv = ['fairlead', '--version']\n"
        "atexit.register(lambda: print(sum(map(len, map(gc.get_objects, range(3))))))\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )
    assert int(done.stdout.split()[-1]) < 100, "objects that the last collection looks at"


def test_a_shell_loads_no_settings_of_the_planner_on_its_way_to_the_prompt() -> None:
    """It reads one section; the types of all come with numpy."""
    modules = ("cluster.cluster_settings", "sessions.foreground", "sessions.held_terminal")
    program = (
        f"import importlib, sys\nfor each in {modules!r}:\n"
        "    importlib.import_module(f'fairlead.cli.{each}')\n"
        f"print(*[each for each in {HEAVY!r} if each in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )
    assert done.stdout.split() == ["asyncio", "logging"], "for the terminal's connection"


def test_commands_import_only_what_they_need() -> None:
    given = json.dumps([HEAVY, list(ALLOWED)])
    done = subprocess.run(
        [sys.executable, "-c", f"import fairlead.cli.app\n{PROGRAM}", given],
        capture_output=True, check=True, text=True,
    )  # fmt: skip
    expected: dict[str, list[str]] = {}
    allowed: set[str] = set()
    for module, more in ALLOWED.items():
        allowed |= more
        expected[module] = [name for name in HEAVY if name in allowed]
    assert json.loads(done.stdout) == expected
