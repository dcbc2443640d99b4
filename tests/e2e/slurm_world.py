"""Slurm's commands in a directory, for a cluster on this machine, as programs find them."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.e2e.cli_world import Result, Shell
from tests.e2e.command_server import SLURM, Command, command_server
from tests.patience import PATIENCE_SECONDS

SLEEP = "#!/bin/sh\nsleep 1000\n"


class Tools:
    """Slurm's commands in a directory of their own, for a cluster.

    They are as installed. `forked` ones ask the server of commands instead of starting an
    interpreter: not where a command ends with the process group of the program that started it.
    """

    def __init__(self, shell: Shell, *, forked: bool = True) -> None:
        self.shell = shell
        self.root = shell.root
        self.bin = shell.root / ("forked" if forked else "bin")
        shell.run("slurm", "install", str(self.bin))
        if forked:
            self._fork()
        self.environment = {
            **shell.environment,
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "TZ": "UTC",
        }

    def _fork(self) -> None:
        started = f"exec {sys.executable} -m fairlead.cli.slurm_tools "
        for program in self.bin.iterdir():
            text = program.read_text()
            assert text.count(started) == 1, text
            program.write_text(text.replace(started, f"exec {command_server().slurm} "))

    def run(self, *words: str, code: int | None = 0, stdin: str = "", **more: str) -> Result:
        """Run a command to its end and check its exit code; None: any."""
        done = subprocess.run(
            words, cwd=self.shell.root, env={**self.environment, **more}, input=stdin, text=True,
            capture_output=True, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
        result = Result(done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in result.err, result
        assert code is None or result.code == code, result
        return result

    def forked(self, *words: str, **environment: str) -> Command:
        """Return a command for the server of commands, with more in its environment."""
        return Command(list(words), str(self.root), {**self.environment, **environment}, SLURM)

    def submit(self, text: str, *options: str) -> int:
        """Submit a script on standard input and return its number."""
        flags = ("--parsable", "-c", "1")
        return int(self.run("sbatch", *flags, *options, stdin=text).out)

    def queue(self, *options: str, form: str = "%i %t") -> list[str]:
        """Return the lines of squeue without a header."""
        return self.run("squeue", "-h", "-o", form, *options).out.splitlines()
