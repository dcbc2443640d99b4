"""`fairlead notebook` with JupyterLab itself, used by a browser; `make test-slurm` installs it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.chromium import CHROMIUM, Tab, chromium
from tests.e2e.cli_world import Shell

INSTALLED = Path(__file__).parents[2] / ".cache/programs"
JUPYTER = INSTALLED / "bin/jupyter-lab"
pytestmark = [
    pytest.mark.e2e, pytest.mark.programs, pytest.mark.timeout(900),
    pytest.mark.skipif(not JUPYTER.exists(), reason="`make test-slurm` installs JupyterLab"),
    pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium"),
]  # fmt: skip
#: A person's first notebook: from the launcher's card to a cell.
CARD = "document.querySelector('.jp-LauncherCard[data-category=\"Notebook\"]')"
CELL = "document.querySelector('.jp-Notebook .jp-CodeCell.jp-mod-selected .cm-content')"
IDLE = "document.querySelector('.jp-NotebookPanel-toolbar [data-status=\"idle\"]')"
#: Where the page has not saved which kernel its notebook has, it asks at the first cell that runs.
KERNEL = """(() => {
    const list = document.querySelector('.jp-Dialog select');
    const running = [...(list?.options ?? [])].find(each => each.text.startsWith('Untitled.ipynb'));
    if (running) {
        list.value = running.value;
        list.dispatchEvent(new Event('change', {bubbles: true}));
        document.querySelector('.jp-Dialog .jp-mod-accept').click();
    }
    return true;
})()"""
OUTPUTS = "[...document.querySelectorAll('.jp-OutputArea-output')].map(e => e.innerText.trim())"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    world = Shell(tmp_path)
    world.environment["PATH"] = f"{JUPYTER.parent}:{os.environ['PATH']}"
    world.up("--nodes", "0", "--listen", "127.0.0.1:0")
    yield world
    world.down()


def opened(shell: Shell, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    process = shell.start("notebook", *arguments)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


async def run_cell(tab: Tab, code: str, output: str) -> None:
    """Type into the selected cell and run it; return once its output is there."""
    await tab.until(f"{IDLE} && {CELL} && !{CELL}.innerText.trim()")
    await tab.evaluate(f"{CELL}.focus()")
    await tab.call("Input.insertText", text=code)
    shift = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "modifiers": 8}
    await tab.call("Input.dispatchKeyEvent", type="keyDown", **shift)
    await tab.call("Input.dispatchKeyEvent", type="keyUp", **shift)
    await tab.until(f"{KERNEL} && {OUTPUTS}.includes({output!r})")


async def test_a_kernel_in_a_browser_outlives_the_way_to_it(shell: Shell) -> None:
    process, address = opened(shell, "--name", "lab", "--cpus", "100m")
    assert address.startswith("http://127.0.0.1:")
    async with chromium() as tab:
        await tab.open(address)
        await tab.until(f"{CARD}")
        await tab.evaluate(f"{CARD}.click()")
        await run_cell(
            tab, "import os; held = 41; print('in', os.environ['FAIRLEAD_JOB'])", "in lab"
        )
    process.kill()
    process.wait()
    process, again = opened(shell, "--join", "lab")
    assert again == address
    async with chromium() as other:  # the unsaved page is left, as where a machine is
        await other.open(again.replace("/lab?", "/lab/tree/Untitled.ipynb?"))
        await run_cell(other, "print(held + 1)", "42")
    process.terminate()
    process.wait()
    assert shutil.which("jupyter-lab", path=shell.environment["PATH"]) == str(JUPYTER)
    shell.run("cancel", "lab")
