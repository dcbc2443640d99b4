"""The drop-in of containerd: settings that count from its next start.

It is one file in a directory that `imports` of /etc/containerd/config.toml names; the agent writes
neither that line nor any other into a file of others. What a drop-in does to the rest depends on
the version: before 2.0 a section of a plugin that an imported file has replaces that section of the
others as a whole (containerd #5837, #9982). So the program is asked first, with a copy of all files
below a directory of the agent's: what `containerd config dump` then says may differ from what it
says without the drop-in in the settings that it gives, and in nothing else.

It is written when no work runs on the node, and containerd is started again: containers go on, what
is attached to them and pulls of images end. One that does not come up has the file taken away.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path, PurePosixPath

from fairlead.node.running.host import Absent, Host
from fairlead.node.running.program_run import run
from fairlead.node.sources.containerd import (
    CONFIG,
    ContainerdFacts,
    ImportedFiles,
    Table,
    as_table,
    dump_of_host,
    parsed,
    program_stat,
    setting,
    settings_files,
)
from fairlead.node.tuning.boot_settings import NOT_SET, is_unit_down, unit_began
from fairlead.node.tuning.drop_ins.choice import ChosenLines, DropIn, choose
from fairlead.node.tuning.drop_ins.own_file import OwnFile
from fairlead.node.tuning.profile import LineKind, ReadyProfile

NAME = "99-fairlead-tuning.toml"
_UNIT = "containerd"
_RESTART_SECONDS_MAX = 120.0
#: What begins so long after the agent has started it has begun again by itself.
_AGAIN_SECONDS = 60.0
_NUMBER, _BOOLEAN, _DURATION = "[0-9]{1,10}", "true|false", "(?:[0-9]{1,5}(?:h|m|s|ms))+"
#: Plugins of which a drop-in gives settings, as the versions call them, and these settings: how
#: images are pulled. Nothing that names what runs, from where it comes, or where it is kept.
PLUGINS = (
    "io.containerd.grpc.v1.cri",
    "io.containerd.cri.v1.images",
    "io.containerd.transfer.v1.local",
)
FIELDS: Mapping[str, str] = {
    "concurrent_layer_fetch_buffer": _NUMBER,
    "image_pull_progress_timeout": _DURATION,
    "image_pull_with_sync_fs": _BOOLEAN,
    "max_concurrent_downloads": _NUMBER,
    "max_concurrent_unpacks": _NUMBER,
    "stats_collect_period": _NUMBER,
    "use_local_image_pull": _BOOLEAN,
}


def containerd_file(host: Host, directory: str) -> OwnFile:
    """Return the file in a directory that containerd imports."""
    return OwnFile(host, directory, NAME)


def containerd_drop_in(
    host: Host, directory: str, profile: ReadyProfile, facts: Mapping[str, int]
) -> tuple[DropIn, ChosenLines]:  # fmt: skip
    """Return how the drop-in is; Absent where containerd does not import it, OSError."""
    file = containerd_file(host, directory)
    text, refused = file.read(), file.refused()
    if not text.is_there and all(w.line.kind is not LineKind.CONTAINERD for w in profile.wants):
        return DropIn("", "", True, False, ()), ChosenLines()
    others, base = _without(host, directory)
    tables = {path: parsed(body, path) for each in others for path, body in each.texts.items()}
    version = base.get("version")
    # containerd moves the settings of an older file itself, so their names there are other ones.
    is_older = any(table.get("version", version) != version for table in tables.values())
    default = _dumped(host, [_empty(version)]) if is_older else base

    def there(name: str) -> str:
        try:
            found = setting(ContainerdFacts({}, base), name)
        except OSError as error:
            raise Absent(str(error)) from error
        return NOT_SET if found is None else found

    def set_by(name: str) -> str:
        path = next((path for path, table in tables.items() if _has(table, name)), "")
        if path:
            return f"{path} sets it"
        is_default = not is_older or _at(base, name) == _at(default, name)
        return "" if is_default else f"a file of containerd of a version before {version} sets it"

    chosen = choose(
        profile, facts, LineKind.CONTAINERD, there=there, refusal=_refusal, set_by=set_by
    )
    wanted = _body(chosen.values, version)
    is_refused = bool(wanted) and refused.body == wanted
    why = (refused.note or "containerd did not run with it") if is_refused else ""
    is_loaded = not text.is_there or text.boot != host.boot_id() or _is_younger(host, text.note)
    return DropIn(wanted, text.body, is_loaded, is_refused, tuple(chosen.values), why), chosen


def set_containerd(
    host: Host, directory: str, found: DropIn, restart_command: Sequence[str]
) -> None:  # fmt: skip
    """Make the file what it should be and start containerd again, where that is to be done.

    OSError, Absent: it is as it was before, and what was wanted is refused.
    """
    wanted = found.wanted
    if not found.needs_restart:
        return
    file = containerd_file(host, directory)
    raw = file.raw()
    try:
        if wanted:
            _check(host, directory, wanted)
        began = host.now().uptime_seconds
        if wanted:
            file.write(wanted, note=f"{began:.2f}")
        else:
            file.put_back(None)
        try:
            _restart(host, restart_command, began)
        except OSError:
            file.put_back(raw)
            _restart(host, restart_command, began)
            raise
    except OSError as error:
        if wanted:
            file.refuse(wanted, str(error))
        raise


def is_containerd_down(host: Host, directory: str) -> bool:
    """True when no containerd runs with its drop-in, or one that begins again and again; OSError.

    The one that the agent itself has just started is not down.
    """
    text = containerd_file(host, directory).read()
    if not text.is_there or not is_unit_down(host, (_UNIT,), _UNIT):
        return False
    began = unit_began(host, (_UNIT,), _UNIT)
    is_ours = text.boot == host.boot_id() and not _is_younger(host, text.note, _AGAIN_SECONDS)
    return began is None or not is_ours


def _is_younger(host: Host, uptime: str, more: float = 0.0) -> bool:
    """True when containerd has begun at an uptime, so many seconds more, or later."""
    began = unit_began(host, (_UNIT,), _UNIT)
    try:
        return began is not None and began >= float(uptime) + more
    except ValueError:
        return False


def _restart(host: Host, command: Sequence[str], since: float) -> None:
    """Start containerd again; OSError where it has not come up."""
    first, *rest = command
    program = Path(first) if "/" in first else host.program(first)
    outcome = run(program, _RESTART_SECONDS_MAX, *rest)
    if outcome.code != 0:
        said = outcome.why or outcome.line or f"exit code {outcome.code}"
        raise OSError(f"{' '.join(command)}: {said}")
    began = unit_began(host, (_UNIT,), _UNIT)
    if began is None or began < since - 1:  # of clock ticks
        raise OSError("containerd has not come up")


def _check(host: Host, directory: str, wanted: str) -> None:
    """OSError where the drop-in would change anything but what it gives."""
    others, base = _without(host, directory)
    path = f"{directory.rstrip('/')}/{NAME}"
    files = [
        ImportedFiles(each.pattern, {**each.texts, path: wanted})
        if each.pattern and fnmatchcase(path, each.pattern) else each
        for each in others
    ]  # fmt: skip
    after = _dumped(host, files)
    given = {f"plugins/{plugin}/{name}" for plugin, table
             in as_table(parsed(wanted, path)["plugins"]).items() for name in table}  # fmt: skip
    changed = set(_changed(base, after, "")) - {"imports"}
    if other := sorted(changed - given):
        raise OSError(
            f"it would change {', '.join(other[:3])} as well: this containerd replaces sections of "
            "other files; set it in its own file"
        )
    if kept := sorted(given - changed):
        raise OSError(f"containerd would not take {', '.join(kept)} from it")


def _changed(before: Table, after: Table, path: str) -> Iterator[str]:
    """Yield the paths of values that two tables do not have alike."""
    for name in sorted({*before, *after}):
        was, now, here = before.get(name), after.get(name), f"{path}{name}"
        if isinstance(was, dict) and isinstance(now, dict):
            yield from _changed(as_table(was), as_table(now), f"{here}/")
        elif was != now:
            yield here


def _without(host: Host, directory: str) -> tuple[list[ImportedFiles], Table]:
    """Return all files but the drop-in, and what is in effect with them.

    Absent where they do not name the directory, OSError.
    """
    path = f"{directory.rstrip('/')}/{NAME}"
    files = list(settings_files(host))
    if not any(each.pattern and fnmatchcase(path, each.pattern) for each in files):
        raise Absent(
            f"/{CONFIG} does not import {path}: add {directory.rstrip('/')}/*.toml to its imports"
        )
    if odd := [each.pattern for each in files if not _is_plain(each.pattern)]:
        raise Absent(f"/{CONFIG} imports {odd[0]}, which is no path from the root with a pattern "
                     "in its last part alone")  # fmt: skip
    others = [ImportedFiles(each.pattern, {name: text for name, text in each.texts.items()
                                           if name != path}) for each in files]  # fmt: skip
    return others, _dumped(host, others)


def _is_plain(pattern: str) -> bool:
    folder = str(PurePosixPath(pattern).parent)
    return not pattern or (pattern.startswith("/") and not set(folder) & set("*?["))


def _dumped(host: Host, files: Sequence[ImportedFiles]) -> Table:
    """Return what would be in effect with these files; Absent, OSError."""
    program = host.program(_UNIT)
    key = tuple((each.pattern, tuple(sorted(each.texts.items()))) for each in files)
    return _asked(str(program), program_stat(program), key)


@lru_cache(maxsize=8)
def _asked(
    program: str, stat: tuple[int, ...], files: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
) -> Table:
    """Return what containerd says of copies of the files; OSError, which is not kept."""
    del stat
    (_, ((_, main),)), *imported = files
    with tempfile.TemporaryDirectory(prefix="fairlead-containerd-") as folder:
        text, patterns = main, list[str]()
        for number, (pattern, texts) in enumerate(imported):
            copies = Path(folder, str(number))
            copies.mkdir(mode=0o700)
            for path, body in texts:
                copy = copies / PurePosixPath(path).name
                copy.touch(mode=0o600)
                copy.write_text(body)
            patterns.append(f"{copies}/{PurePosixPath(pattern).name}")
            text = text.replace(pattern, patterns[-1])
        _same_but_imports(main, text, patterns)
        config = Path(folder, "config.toml")
        config.touch(mode=0o600)
        config.write_text(text)
        said = dump_of_host((program, "--config", str(config), "config", "dump"))
    return parsed(said, "containerd config dump")


def _same_but_imports(text: str, copy: str, patterns: Sequence[str]) -> None:
    """OSError where a copy differs in more than that it imports other patterns."""
    first = parsed(text, f"/{CONFIG}")
    if {**first, "imports": list(patterns)} != parsed(copy, f"/{CONFIG}"):
        raise OSError(f"/{CONFIG} names the paths of its imports elsewhere as well")


def _empty(version: object) -> ImportedFiles:
    """Return a main file that sets nothing."""
    return ImportedFiles("", {f"/{CONFIG}": f"version = {version}\nimports = []\n"})


def _has(table: Table, name: str) -> bool:
    return _at(table, name) is not None


def _at(table: Table, name: str) -> object:
    here: object = table
    for step in name.split("/"):
        here = as_table(here).get(step)
    return here


def _refusal(name: str, value: str) -> str:
    parts = name.split("/")
    if len(parts) != 3 or parts[:2] not in [["plugins", each] for each in PLUGINS]:
        return "no agent gives this setting"
    pattern = FIELDS.get(parts[2])
    if pattern is None:
        return "no agent gives this setting"
    return "" if re.fullmatch(pattern, value) else f"no agent gives it the value {value}"


def _body(values: Mapping[str, str], version: object) -> str:
    if not values:
        return ""
    rows = [f"version = {version}"]
    plugin = ""
    for name, value in sorted(values.items()):
        _, of, field = name.split("/")
        if of != plugin:
            plugin = of
            rows += ["", f"[plugins.{json.dumps(of)}]"]
        is_bare = re.fullmatch(f"{_NUMBER}|{_BOOLEAN}", value) is not None
        rows.append(f"{field} = {value if is_bare else json.dumps(value)}")
    return "\n".join(rows)
