"""Every command in the pages for users works as written, on the cluster that the page starts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell
from tests.e2e.command_server import command_server
from tests.e2e.disaster_world import kill, processes_of
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.e2e

DOCS = Path(__file__).resolve().parents[2] / "docs"
#: Pages that start a cluster of their own; others speak of the reader's.
PAGES = sorted(
    page
    for kind in ("tutorial", "howto")
    for page in (DOCS / kind).glob("*.md")
    if "$ fairlead up " in page.read_text()
)
#: Language, "cluster" for commands on a cluster of the reader's, file, and content.
BLOCK = re.compile(r"^```(\S+)( cluster)?(?: file=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXIT_CODE, SAYS = re.compile(r"# exit code (\d+)$"), re.compile(r'# "(.+)"$')


def run_page(text: str, shell: Shell, *, kubeconfig: Path | None = None) -> list[str]:
    """Write the page's files, run its commands in order, and return those that were run.

    With a kubeconfig, those for a cluster of the reader's; else the others.
    """
    commands: list[str] = []
    environment = {k: v for k, v in shell.environment.items() if k != "FAIRLEAD_KUBECONFIG"}
    if kubeconfig is None:
        own = str(shell.data / "kubeconfig")
        environment |= {"FAIRLEAD_DATA": str(shell.data), "KUBECONFIG": own}
    else:
        environment |= {"KUBECONFIG": str(kubeconfig)}
    bins = (command_server().programs, Path(sys.executable).parent, environment["PATH"])
    environment["PATH"] = os.pathsep.join(map(str, bins))
    for language, place, file, body in BLOCK.findall(text):
        if file:
            (shell.root / file).write_text(body)
        is_run = language == "console" and bool(place) is (kubeconfig is not None)
        lines = body.splitlines() if is_run else []
        for command in (line[2:] for line in lines if line.startswith("$ ")):
            real = command.replace("fairlead up ", "fairlead up --listen 127.0.0.1:0 ")
            done = subprocess.run(
                real, shell=True, cwd=shell.root, env=environment, text=True, check=False,
                capture_output=True, timeout=PATIENCE_SECONDS, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            wanted = EXIT_CODE.search(command)
            code = int(wanted[1]) if wanted else 0
            output = done.stdout + done.stderr
            assert done.returncode == code, f"{command}\n{output}"
            if said := SAYS.search(command):
                assert said[1] in output, f"{command}\n{output}"
            commands.append(command)
    return commands


def kubectl_lines(text: str) -> list[str]:
    """Return the commands for kubectl on the cluster that the page starts."""
    blocks = [
        body for kind, place, _, body in BLOCK.findall(text) if kind == "console" and not place
    ]
    return re.findall(r"^\$ kubectl .*$", "\n".join(blocks), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_every_command_of_the_page_works_as_written(page: Path, tmp_path: Path) -> None:
    shell, text = Shell(tmp_path), page.read_text()
    if kubectl_lines(text) and not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed")
    try:
        commands = run_page(text, shell)
    finally:
        if shell.data.exists():
            shell.run("down", "--data", str(shell.data), code=None)
        kill(processes_of(shell.data))
    assert any(command.startswith("fairlead ") for command in commands)
