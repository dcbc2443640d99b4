"""`pip install fairlead` without an extra: how large it is, and that it is enough to use a cluster.

The commands see Fairlead and the packages that it requires, and no other of this environment.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.e2e.cli_world import Result, Shell, eventually
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
MACOS = Path(__file__).with_name("as_macos.py")
#: Without bytecode, which is a cache: pip writes it at once, uv and `pip --no-compile` do not.
BYTES_MAX = 25_000_000


def required() -> list[Distribution]:
    """Return the packages that come with Fairlead, and those that come with them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: dict[str, Distribution] = {}
    open_ = list(project["dependencies"])
    while open_:
        wanted = Requirement(open_.pop())
        if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
            continue
        if wanted.name not in found:
            found[wanted.name] = distribution(wanted.name)
            open_ += found[wanted.name].requires or ()
    return [found[name] for name in sorted(found)]


class ClientOnly:
    """Commands in a Python that has only what is required, on the cluster of a shell."""

    def __init__(self, shell: Shell, packages: Path) -> None:
        self.shell = shell
        packages.mkdir()
        for each in required():
            for top in {file.parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
                (packages / top).symlink_to(Path(str(each.locate_file(top))))
        (packages / MACOS.name).symlink_to(MACOS)
        self.environment = {**shell.environment, "PYTHONPATH": f"{SOURCE}:{packages}"}

    def run(self, *words: str, program: str = "fairlead", code: int = 0) -> Result:
        done = subprocess.run(
            [sys.executable, "-S", "-m", program, *words], cwd=self.shell.root, text=True,
            env=self.environment, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == code, (words, done)
        return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientOnly]:
    shell = Shell(tmp_path_factory.mktemp("client"))
    shell.up("--nodes", "2", "--listen", "127.0.0.1:0")
    try:
        yield ClientOnly(shell, shell.root / "packages")
    finally:
        shell.down()


def test_a_client_is_small() -> None:
    packages = required()
    size = sum(
        path.stat().st_size
        for each in packages
        for file in each.files or ()
        if (path := Path(str(each.locate_file(file)))).suffix != ".pyc"
    )
    own = [path for path in (SOURCE / "fairlead").rglob("*") if "__pycache__" not in path.parts]
    size += sum(path.stat().st_size for path in own if path.is_file())
    assert BYTES_MAX / 3 < size < BYTES_MAX
    assert "numpy" not in {each.name for each in packages}


def test_a_client_submits_follows_explains_and_ends_jobs(client: ClientOnly) -> None:
    (client.shell.root / "train.sh").write_text(
        "#!/bin/sh\n#FAIRLEAD --name train --cpus 100m\necho begun\nsleep 1000\n"
    )
    client.run("submit", "train.sh")
    eventually(lambda: client.shell.state("train"), "Running")
    simulated = ("--nodes", "2", "--gpus", "8", "--on", "virtual", "--simulate", "1h")
    client.run("submit", "train.sh", "--name", "all", *simulated)
    client.run("submit", "train.sh", "--name", "waits", *simulated)
    assert "fits" in client.run("submit", "--dry-run", "train.sh", "--name", "would").err
    assert "train" in client.run("ps").out
    eventually(lambda: "16 GPUs" in client.run("why", "waits").out, expected=True)
    eventually(lambda: "begun" in client.run("logs", "train").out, expected=True)
    assert client.run("exec", "train", "--", "echo", "inside").out == "inside\n"
    for words in (
        ("top",), ("nodes",), ("node", "vm"), ("teams",), ("images",), ("sessions",), ("runs",),
        ("update", "train", "--time", "3h"), ("hold", "waits"), ("cp", "train.sh", "train:x.sh"),
    ):  # fmt: skip
        client.run(*words)
    client.run("cancel", "train", "waits", "all")
    client.run("wait", "train", "--for", "finished")
    eventually(lambda: "train" in client.run("history").out, expected=True)
    client.run("eff", "train")


def test_a_client_has_slurms_commands(client: ClientOnly) -> None:
    slurm = "fairlead.cli.slurm_tools"
    (client.shell.root / "sleep.sh").write_text("#!/bin/sh\nsleep 1000\n")
    number = client.run("sbatch", "--parsable", "sleep.sh", program=slurm).out.strip()
    assert number in client.run("squeue", "-h", "-o", "%i", program=slurm).out.split()
    assert f"JobId={number} " in client.run("scontrol", "show", "job", number, program=slurm).out
    client.run("scancel", number, program=slurm)
    eventually(lambda: number in client.run("sacct", "-n", program=slurm).out, expected=True)


def on_macos(client: ClientOnly, lines: list[list[str]]) -> tuple[list[int], Result]:
    """Run command lines with nothing that is of Linux, by a kubeconfig from elsewhere; return their
    exit codes and all that they said.
    """
    kubeconfig = client.shell.root / "elsewhere.yaml"
    kubeconfig.write_bytes((client.shell.data / "kubeconfig").read_bytes())
    client.environment["FAIRLEAD_KUBECONFIG"] = str(kubeconfig)
    result = client.run(json.dumps(lines), program=MACOS.stem)
    client.environment["FAIRLEAD_KUBECONFIG"] = client.shell.environment["FAIRLEAD_KUBECONFIG"]
    return json.loads(result.err.splitlines()[-1]), result


def test_a_client_has_its_commands_where_python_has_nothing_of_linux(client: ClientOnly) -> None:
    (client.shell.root / "mac.sh").write_text("#!/bin/sh\n#FAIRLEAD --cpus 100m\necho begun\n")
    (client.shell.root / "sleep.sh").write_text("#!/bin/sh\nsleep 1000\n")
    lines: list[list[str]] = [
        ["submit", "mac.sh", "--name", "mac"], ["wait", "mac", "--for", "finished"], ["ps", "-a"],
        ["why", "mac"], ["logs", "mac"], ["run", "--name", "ran", "--", "echo", "ran"],
        ["submit", "sleep.sh", "--name", "in"], ["wait", "in", "--for", "started"],
        ["exec", "in", "--", "echo", "inside"], ["cp", "mac.sh", "in:x.sh"], ["cancel", "in"],
        ["nodes"], ["top"], ["teams"], ["history"],
    ]  # fmt: skip
    codes, result = on_macos(client, lines)
    assert codes == [0] * len(lines), result
    for said in ("begun", "ran", "inside"):
        assert said in result.out.splitlines(), result


def test_what_needs_linux_says_so_where_python_has_nothing_of_it(client: ClientOnly) -> None:
    codes, result = on_macos(client, [["up"], ["agent"]])
    up, agent = (line for line in result.err.splitlines() if line.startswith("error"))
    assert up == "error[E007]: 'fairlead up' needs Linux, and this is darwin"
    assert agent == "error[E007]: 'fairlead agent' needs Linux, and this is darwin"
    assert codes == [2, 2]


def test_what_needs_the_server_says_what_to_install(client: ClientOnly) -> None:
    for words in (("up",), ("sim", "run", "x.yaml"), ("install",)):
        result = client.run(*words, code=2)
        assert result.err.startswith("error[E006]: this needs the Python package "), result
        assert result.err.endswith("  help: pip install 'fairlead[server]'\n"), result
        assert len(result.err.splitlines()) == 2
    completes = {"COMP_WORDS": "fairlead up --", "COMP_CWORD": "2",
                 "_FAIRLEAD_COMPLETE": "bash_complete"}  # fmt: skip
    client.environment.update(completes)
    try:
        result = client.run()
    finally:
        for name in completes:
            del client.environment[name]
    assert result.err == ""
