"""Settings of containerd that it ignores: what its files say, and what is in effect.

A key under the wrong section, or a section of another version, costs one warning at the start and
no error, and pulls stay slow, or go past the mirror. The text of the file looks right, so it is
compared with what `containerd config dump` says is in effect. Files of an older version than
the running one are left alone: containerd moves their keys itself.
"""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

from fairlead.model.health.faults import (
    Action,
    Moment,
    Observation,
    Severity,
    identity,
    observed,
    steady,
)
from fairlead.node.running.host import Absent, Host
from fairlead.node.running.program_run import PROGRAM_PATH
from fairlead.node.settings import READ_SECONDS_MAX, AgentSettings
from fairlead.node.source import Judged, Nothing, SignalSource

SOURCE, IGNORED = "containerd", "containerd-ignored-setting"
CONFIG = "etc/containerd/config.toml"
#: Settings that are named, of all that are counted.
_NAMED_MAX = 3
_FILES_MAX = 64
_DUMP = ("containerd", "config", "dump")
NOT_REACHABLE = "the agent runs in a container, where it cannot ask the host's containerd"

Table = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ContainerdFacts:
    """The files of settings by path, and what is in effect."""

    files: Mapping[str, Table]
    effective: Table


def dump_of_host(command: Sequence[str] = _DUMP) -> str:
    """Return what is in effect, as TOML; OSError."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=READ_SECONDS_MAX, check=False,
            stdin=subprocess.DEVNULL, env={"PATH": PROGRAM_PATH, "LC_ALL": "C"},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{' '.join(_DUMP)} did not end within {READ_SECONDS_MAX} s") from error
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise OSError(f"{' '.join(_DUMP)}: exit code {done.returncode}: {last[:200]}")
    return done.stdout


def is_reachable(host: Host) -> bool:
    """True where containerd is on the machine that this process runs on."""
    return host.root == Path("/") or host.containerd_dump is not None


def read(host: Host) -> ContainerdFacts:
    """Return the facts; Absent where there is no file of settings, or another machine is looked at
    than the one that this process runs on; OSError.

    containerd is asked again only when a file of settings, or its program, is another one.
    """
    if not host.path(CONFIG).is_file():
        raise Absent(f"no /{CONFIG}")
    if not is_reachable(host):
        raise Absent(NOT_REACHABLE)
    texts = {path: text for each in settings_files(host) for path, text in each.texts.items()}
    files = {path: parsed(text, path) for path, text in texts.items()}
    dump = host.containerd_dump or dump_of_host
    return ContainerdFacts(files, _effective(dump, tuple(sorted(texts.items())), _program()))


@dataclass(frozen=True, slots=True)
class ImportedFiles:
    """The texts by path of the files that a pattern names; of the main file for no pattern."""

    pattern: str
    texts: Mapping[str, str]


def settings_files(host: Host) -> Iterator[ImportedFiles]:
    """Yield the main file, then what each of its imports names; Absent, OSError."""
    text = host.present(CONFIG)
    yield ImportedFiles("", {f"/{CONFIG}": text})
    patterns = parsed(text, f"/{CONFIG}").get("imports", ())
    for pattern in patterns if isinstance(patterns, list) else ():
        texts = {path: host.text(path) for path in _matching(host, str(pattern))}
        yield ImportedFiles(str(pattern), texts)


def _program() -> tuple[int, ...]:
    """Return what another program has other values of; () where there is none."""
    found = shutil.which(_DUMP[0], path=PROGRAM_PATH)
    return () if found is None else program_stat(Path(found))


def program_stat(path: Path) -> tuple[int, ...]:
    """Return what another program at this path has other values of; OSError."""
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


@lru_cache(maxsize=2)
def _effective(
    dump: Callable[[], str], texts: tuple[tuple[str, str], ...], program: tuple[int, ...]
) -> Table:
    """Return what is in effect with these files and this program; OSError, which is not kept."""
    del texts, program
    return parsed(dump(), " ".join(_DUMP))


@lru_cache(maxsize=2 * _FILES_MAX)
def parsed(text: str, name: str) -> Table:
    """Return the TOML of a text that errors call `name`; OSError."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise OSError(f"{name}: {error}") from error


def _matching(host: Host, pattern: str) -> Iterator[str]:
    found = sorted(host.root.glob(pattern.lstrip("/")))
    for path in found[:_FILES_MAX]:
        if path.is_file():
            yield f"/{path.relative_to(host.root)}"


def setting(facts: ContainerdFacts, name: str) -> str | None:
    """Return a setting that is in effect, with / between levels; None where nothing sets it.

    Absent where this version of containerd has no such plugin: sections are called otherwise in
    each. OSError where it is no single value.
    """
    first, *rest = name.split("/")
    here: object = facts.effective.get(first)
    if first == "plugins" and rest and rest[0] not in as_table(here):
        raise Absent(f"this containerd has no plugin {rest[0]}")
    for step in rest:
        here = as_table(here).get(step)
    if isinstance(here, bool):
        return str(here).lower()
    if here is None or isinstance(here, (int, float, str)):
        return None if here is None else str(here)
    raise OSError(f"{name} is no single value")


def ignored(facts: ContainerdFacts) -> Iterator[tuple[str, str]]:
    """Yield (file, setting) of what a file sets under `plugins` and nothing in effect has."""
    version = facts.effective.get("version")
    plugins = as_table(facts.effective.get("plugins"))
    for path, table in sorted(facts.files.items()):
        if table.get("version", version) == version:
            for steps in _missing(as_table(table.get("plugins")), plugins):
                yield path, ".".join(steps)


def _missing(wanted: Table, found: Table) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the topmost parts of a table that another one lacks."""
    for name, value in sorted(wanted.items()):
        if name not in found:
            yield (name,)
        elif isinstance(value, dict) and isinstance(found[name], dict):
            for steps in _missing(as_table(cast("object", value)), as_table(found[name])):
                yield (name, *steps)


def as_table(value: object) -> Table:
    """Return a value of TOML as a table, an empty one for another."""
    return cast("Table", value) if isinstance(value, dict) else {}


def judge(
    facts: ContainerdFacts, memory: Nothing, at: Moment, *, settings: AgentSettings
) -> Judged[Nothing]:
    """Give one fault for each file with settings that are ignored."""
    by_file: dict[str, list[str]] = {}
    for path, setting in ignored(facts):
        by_file.setdefault(path, []).append(setting)
    observations: list[Observation] = []
    for path, found in by_file.items():
        count = "1 setting" if len(found) == 1 else f"{len(found):,} settings"
        text = f"containerd ignores {count} of it: {', '.join(found[:_NAMED_MAX])}"
        verdict = steady(Severity.WARNING, Action.ASK_PERSON, settings.stable_seconds)
        observations.append(observed(identity(IGNORED, path), verdict, text, at))
    return Judged(memory, tuple(observations))


def source(host: Host, settings: AgentSettings) -> SignalSource[ContainerdFacts, Nothing]:
    """Return the source of containerd's settings."""
    return SignalSource(
        SOURCE, (IGNORED,), Nothing, partial(read, host),
        partial(judge, settings=settings), period_seconds=600,
    )  # fmt: skip
