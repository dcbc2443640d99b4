"""Record a program's metrics out of files that it writes for TensorBoard or W&B anyhow.

    python -m fairlead.member.metrics --tensorboard logs -- python train.py
    python -m fairlead.member.metrics --wandb wandb -- python train.py

The program is run as it is: with these streams, the signals that come here, and its exit code as
this one's. Beside it new files below the directories are read, at most a 50th of the time, and what
they say is recorded as by `fairlead.run`. That is done here, in the member: no node and no
controller can read files of a container, and none should. What the files hold is the program's, so
it is bounded and proves nothing. Files that were there before are of earlier runs, and not read.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import BinaryIO, NamedTuple

from fairlead import run
from fairlead.member.metric_files import (
    Fact,
    MetricPoint,
    NotMetricFileError,
    TensorBoardEvents,
    WandbRun,
)
from fairlead.member.passed_signals import passed_signals

ENTRIES_MAX, DEPTH_MAX, FILES_MAX = 20_000, 8, 256
READ_BYTES_MAX = 256 << 10
#: Of one look; the rest waits for the next one.
LOOK_BYTES_MAX = 16 << 20
#: Between two looks, and how much longer than a look it is at least.
LOOK_SECONDS, REST_FACTOR = 5.0, 50
LOOK_SECONDS_MAX = 60.0
#: What the end may take: the job waits for it.
END_SECONDS_MAX = 20.0
EXIT_USAGE, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND = 2, 126, 127
_NO_NAME = re.compile(r"[^A-Za-z0-9_.,:/@%+()=-]")
_NAME_LENGTH_MAX = 64


class _Format(NamedTuple):
    """A kind of file, by its name, and what reads one."""

    name: re.Pattern[str]
    reader: type[TensorBoardEvents | WandbRun]
    #: A file's metrics begin with its directory, as TensorBoard names runs.
    has_runs: bool


FORMATS = {
    "tensorboard": _Format(re.compile(r".*tfevents.*"), TensorBoardEvents, has_runs=True),
    "wandb": _Format(re.compile(r"run-.*\.wandb"), WandbRun, has_runs=False),
}


class _File:
    """One file, as far as it is read."""

    def __init__(self, path: str, prefix: str, reader: TensorBoardEvents | WandbRun) -> None:
        self.path, self.prefix, self.reader = path, prefix, reader
        self.at = 0
        self.is_over = False

    def read(self, bytes_max: int) -> tuple[int, list[Fact]]:
        """Return how many bytes were read, and what they say; OSError, NotMetricFileError."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise NotMetricFileError("it is no regular file")
            return self._pieces(file, bytes_max)

    def _pieces(self, file: BinaryIO, bytes_max: int) -> tuple[int, list[Fact]]:
        done, found = 0, list[Fact]()
        file.seek(self.at)
        while done < bytes_max and (data := file.read(READ_BYTES_MAX)):
            self.at += len(data)
            done += len(data)
            found += self.reader.feed(data)
        return done, found


class MetricReader:
    """Reads what is new in the files below some directories, and records it."""

    def __init__(
        self, places: list[tuple[str, str]], record: Callable[[Fact], None],
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        """`places` are formats and directories. Files that are there now are not read."""
        self._places, self._record, self._say = places, record, say
        self._files: dict[str, _File] = {}
        #: Something was not read.
        self.is_partial = False
        self._old = {path for path, _, _ in self._found()}

    def look(self) -> bool:
        """Record what is new; True where more waits."""
        for path, prefix, form in self._found():
            if path not in self._files and path not in self._old:
                if len(self._files) >= FILES_MAX:
                    self.is_partial = True
                    continue
                self._files[path] = _File(path, prefix, FORMATS[form].reader())
        left = LOOK_BYTES_MAX
        for path in sorted(self._files):
            left -= self._read(self._files[path], left)
            if left <= 0:
                return True
        return False

    def _read(self, file: _File, bytes_max: int) -> int:
        if file.is_over:
            return 0
        try:
            done, facts = file.read(bytes_max)
        except FileNotFoundError:
            return 0
        except (OSError, NotMetricFileError) as error:
            file.is_over = self.is_partial = True
            why = error.strerror if isinstance(error, OSError) else error
            self._say(f"{file.path} is not read further: {why}")
            return 0
        for fact in facts:
            self._record(fact._replace(name=file.prefix + fact.name))
        return done

    def _found(self) -> Iterator[tuple[str, str, str]]:
        """Yield path, prefix and format of the files that are there."""
        left = ENTRIES_MAX
        for form, place in self._places:
            wanted = FORMATS[form]
            directories = [(place, "", 0)]
            for directory, prefix, depth in directories:
                entries = _entries(directory, left + 1)
                left -= len(entries)
                if left < 0:
                    self.is_partial = True
                    return
                for each in entries:
                    if each.is_dir(follow_symlinks=False):
                        if depth < DEPTH_MAX:
                            directories.append((each.path, f"{prefix}{each.name}/", depth + 1))
                    elif wanted.name.fullmatch(each.name):
                        yield each.path, prefix if wanted.has_runs else "", form


def _entries(directory: str, count_max: int) -> list[os.DirEntry[str]]:
    """Return what is in a directory by name, up to a number; [] where it is not there (yet)."""
    try:
        with os.scandir(directory) as entries:
            return sorted(islice(entries, count_max), key=lambda each: each.name)
    except OSError:
        return []


def record(fact: Fact) -> None:
    """Record a fact of this run, under a name that one may have; what cannot be is left out."""
    name = _NO_NAME.sub("_", fact.name)[:_NAME_LENGTH_MAX]
    name = name if name[:1].isalnum() or name[:1] == "_" else f"_{name}"[:_NAME_LENGTH_MAX]
    with suppress(ValueError):
        if isinstance(fact, MetricPoint):
            run.metric(name, fact.value, fact.step)
        else:
            run.param(name, fact.value)


def _say(text: str) -> None:
    with suppress(OSError, ValueError):
        sys.stderr.write(f"fairlead metrics: {text}\n")
        sys.stderr.flush()


def follow(command: list[str], reader: MetricReader) -> int:
    """Run a command to its end, and read meanwhile; return its exit code. OSError."""
    with passed_signals() as pass_to:
        program = subprocess.Popen(command, process_group=0)
        pass_to(program)
        # It is reaped last: until then its number is its own, and a signal that comes late is none.
        ended = os.pidfd_open(program.pid)
        rest = LOOK_SECONDS
        while not select.select([ended], [], [], rest)[0]:
            began = time.monotonic()
            reader.look()
            took = time.monotonic() - began
            rest = min(max(LOOK_SECONDS, REST_FACTOR * took), LOOK_SECONDS_MAX)
        _read_rest(reader)
        os.close(ended)
        code = program.wait()
    return 128 - code if code < 0 else code


def _read_rest(reader: MetricReader) -> None:
    end = time.monotonic() + END_SECONDS_MAX
    while reader.look():
        if time.monotonic() > end:
            reader.is_partial = True
            break
    if reader.is_partial:
        run.mark_partial()


def main(argv: list[str]) -> int:
    """Entry of `python -m fairlead.member.metrics [--tensorboard|--wandb DIR]... -- COMMAND`."""
    parser = argparse.ArgumentParser(prog="python -m fairlead.member.metrics", allow_abbrev=False)
    for form in FORMATS:
        parser.add_argument(f"--{form}", metavar="DIR", action="append", default=[])
    parser.add_argument("command", metavar="-- COMMAND", nargs=argparse.REMAINDER)
    asked = parser.parse_args(argv)
    command = asked.command[1:] if asked.command[:1] == ["--"] else asked.command
    places = [(form, place) for form in FORMATS for place in getattr(asked, form)]
    if not command or not places:
        parser.print_usage(sys.stderr)
        _say("a directory, by --tensorboard or --wandb, and a command are needed")
        return EXIT_USAGE
    try:
        return follow(command, MetricReader(places, record, _say))
    except OSError as error:
        _say(f"cannot start '{command[0]}': {error.strerror}")
        is_absent = isinstance(error, FileNotFoundError)
        return EXIT_NOT_FOUND if is_absent else EXIT_NOT_EXECUTABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
