"""A simulated world as a file that can be run again: `python -m fairlead.sim --world FILE`.

    {"version": 1, "seed": 7, "options": {"nodes": 2}, "arrivals": [...], "broken": "1: ...", ...}

The options are stated as in a command (`replay_command.py`): what is not the default. Without
arrivals the jobs are those of the options and the seed; with them nothing is drawn, so the file
names the same jobs whatever a later version draws.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fairlead.sim.setup.replay_command import options_as_json, options_from_json
from fairlead.sim.setup.workload import Arrival
from fairlead.sim.setup.world_options import WorldOptions

WORLD_VERSION = 1
#: Longer ones are no worlds.
_FILE_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class StatedWorld:
    """A world and what it is kept for: the promise that it broke, when, and which bug it was."""

    options: WorldOptions
    seed: int
    arrivals: tuple[Arrival, ...] | None = None
    broken: str = ""
    found: str = ""
    bug: str = ""


class _Stated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    seed: int
    options: dict[str, Any]
    arrivals: tuple[Arrival, ...] | None = None
    broken: str = ""
    found: str = ""
    bug: str = ""
    version: int = WORLD_VERSION


def world_text(world: StatedWorld) -> str:
    """Return the file of a world."""
    stated: dict[str, Any] = {
        "version": WORLD_VERSION, "found": world.found, "broken": world.broken, "bug": world.bug,
        "seed": world.seed, "options": options_as_json(world.options),
        "arrivals": msgspec.to_builtins(world.arrivals),
    }  # fmt: skip
    return json.dumps({k: v for k, v in stated.items() if v not in ("", None)}, indent=1) + "\n"


def read_world(path: Path) -> StatedWorld:
    """Return the world of a file; ValueError says what is wrong with it, and where."""
    try:
        if path.stat().st_size > _FILE_BYTES_MAX:
            raise ValueError(f"{path} is larger than {_FILE_BYTES_MAX >> 20} MiB: no world")
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    try:
        whole: Any = msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no world: {error}") from error
    version = whole.get("version") if isinstance(whole, Mapping) else None
    if version != WORLD_VERSION:
        raise ValueError(
            f"{path} is no world of version {WORLD_VERSION}, which this version of Fairlead "
            f"reads; it states version {version}"
        )
    try:
        stated = msgspec.convert(whole, _Stated)
    except ValueError as error:
        raise ValueError(f"{path} is no world: {error}") from error
    try:
        options = options_from_json(stated.options)
    except ValueError as error:
        raise ValueError(f"{path}: options {error}") from error
    return StatedWorld(
        options, stated.seed, stated.arrivals, stated.broken, stated.found, stated.bug
    )
