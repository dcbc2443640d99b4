"""Copies of the tree in which bugs are planted, and what runs in them.

The working tree is never changed. Everything that is started is one process group, which ends
when its time is up: tests start processes of their own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[2]
PASSED, FAILED = 0, 1  # exit codes of pytest
HUNG = -1
#: What runs now, of this process.
_running: set[subprocess.Popen[str]] = set()
_is_ending = threading.Event()
_seconds = count(int(time.time()))


def _tracked_files() -> list[str]:
    """Return what git knows or would add, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return [name for name in set(listed.stdout.split("\0")) if (ROOT / name).is_file()]


@contextmanager
def copied_tree(tree: Path | None = None) -> Iterator[Path]:
    """Yield a copy of another copy, or of the working tree as it is now."""
    with tempfile.TemporaryDirectory(prefix="fairlead-mutants-") as folder:
        if tree is not None:
            shutil.copytree(tree, folder, dirs_exist_ok=True)
        for name in _tracked_files() if tree is None else ():
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, Path(folder) / name)
        yield Path(folder)


@contextmanager
def planted(path: Path, text: str) -> Iterator[None]:
    """Give a file of a copy another text for a while."""
    sound = path.read_text()
    try:
        _write(path, text)
        yield
    finally:
        _write(path, sound)


def _write(path: Path, text: str) -> None:
    """Write a file, each time with another second: compiled code of another text must not count."""
    path.write_text(text)
    second = next(_seconds)
    os.utime(path, (second, second))


def run_tests(
    tree: Path,
    tests: Sequence[str],
    *,
    seconds_max: float,
    options: Sequence[str] = (),
    more: Mapping[str, str] = MappingProxyType({}),
) -> tuple[int, str]:
    """Run tests of the tree up to the first failure; return pytest's exit code and output.

    The code is HUNG for tests that take longer than `seconds_max`. `more` is for the environment.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += ["--hypothesis-profile", "unshrunk", *options]
    with tempfile.NamedTemporaryFile("w", prefix="tests-", suffix=".txt") as listed:
        listed.write("\n".join(tests))  # a file: there may be thousands
        listed.flush()
        with started([*command, f"@{listed.name}"], tree, more) as process:
            try:
                output, _ = process.communicate(timeout=seconds_max)
            except subprocess.TimeoutExpired:
                return HUNG, f"the tests take longer than {seconds_max:g} s"
    return process.returncode, output


@contextmanager
def started(
    command: Sequence[str], tree: Path, more: Mapping[str, str] = MappingProxyType({})
) -> Iterator[subprocess.Popen[str]]:
    """Yield a process in a copy of the tree; at the end it ends, with all that it has started.

    `more` is for its environment.
    """
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}", **more}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile all of it
    if _is_ending.is_set():
        raise KeyboardInterrupt
    process = subprocess.Popen(
        command, cwd=tree, env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    _running.add(process)
    try:
        yield process
    finally:
        end_group(process)


def end_all() -> None:
    """End what still runs, and start no more: it is in sessions that no Ctrl-C reaches."""
    _is_ending.set()
    for process in list(_running):
        end_group(process)


def end_group(process: subprocess.Popen[str]) -> None:
    """End a process of ours with all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    _running.discard(process)
