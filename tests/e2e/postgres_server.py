"""A real PostgreSQL for tests, from the binaries that the system has."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.patience import PATIENCE_SECONDS
from tests.planted import PLANTED

USER = "nobody"
START_TRIES_MAX = 10


def _binaries() -> Path:
    for found in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (found / "initdb").exists():
            return found
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    pytest.skip("no PostgreSQL here: initdb is not in /usr/lib/postgresql/*/bin nor on PATH")


@dataclass
class Server:
    """A PostgreSQL that listens on a socket in its directory; initdb and postgres refuse root."""

    binaries: Path
    directory: Path

    @property
    def url(self) -> str:
        return f"postgresql:///postgres?host={self.directory}&user=fairlead&password={PLANTED}"

    @property
    def pid(self) -> int:
        return int((self.directory / "data" / "postmaster.pid").read_text().split()[0])

    def call(self, name: str, *arguments: str) -> None:
        command = [str(self.binaries / name), *arguments]
        if name == "pg_ctl":
            command += ["-t", f"{PATIENCE_SECONDS:.0f}"]
        if os.geteuid() == 0:
            command = ["setpriv", f"--reuid={USER}", "--regid=nogroup", "--clear-groups", *command]
        subprocess.run(command, check=True, cwd=self.directory, stdout=subprocess.DEVNULL,
                       timeout=2 * PATIENCE_SECONDS)  # fmt: skip

    def sql(self, text: str) -> None:
        """Execute statements as the owner, beside what is tested."""
        psycopg = pytest.importorskip("psycopg")
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(text)

    def start(self) -> None:
        data, output = str(self.directory / "data"), str(self.directory / "log")
        options = f"-k {self.directory} -c listen_addresses='' -c max_connections=20"
        for tries_left in range(START_TRIES_MAX - 1, -1, -1):
            try:
                self.call("pg_ctl", "-D", data, "-l", output, "-o", options, "-w", "start")
            except subprocess.CalledProcessError:
                # After a kill: what served a connection holds the shared memory until it is gone.
                if not tries_left:
                    raise AssertionError((self.directory / "log").read_text()[-3000:]) from None
                time.sleep(0.3)
            else:
                return

    def stop(self) -> None:
        self.call("pg_ctl", "-D", str(self.directory / "data"), "-m", "immediate", "-w", "stop")

    def kill(self) -> None:
        """End the server and what serves its connections, as a crash of the machine would."""
        pid = self.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in (pid, *map(int, children)):
            with suppress(ProcessLookupError):  # a worker that had done its work
                os.kill(each, signal.SIGKILL)


@contextmanager
def postgres_server() -> Iterator[Server]:
    """Run a PostgreSQL of its own for the length of the block; skips the test without one."""
    binaries = _binaries()
    pytest.importorskip("psycopg")
    directory = Path(tempfile.mkdtemp(prefix="fairlead-pg-"))
    directory.chmod(0o777)
    running = Server(binaries, directory)
    try:
        running.call("initdb", "-D", str(directory / "data"), "-A", "trust", "-U", "fairlead", "-N")
        running.start()
        yield running
        running.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
