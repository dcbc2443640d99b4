"""The command that runs a simulated world again: its seed, and all in which it is not the default.

    python -m fairlead.sim --seed 7 --options '{"nodes": 3, "workload": {"jobs": 5}}'

The options are stated as JSON, part by part as `WorldOptions` has them, and a part only where it
differs. So whatever is added to a world is in its command, without a flag of its own.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from fairlead.input.suggest import nearest
from fairlead.sim.setup.world_options import WorldOptions

_DEFAULT = WorldOptions()


def replay_command(options: WorldOptions, seed: int) -> str:
    """Return the command that runs the same world again."""
    differs = json.dumps(options_as_json(options))
    return f"python -m fairlead.sim --seed {seed} --options {shlex.quote(differs)}"


def options_as_json(options: WorldOptions) -> Any:
    """Return what is not the default, as values of JSON."""
    return _differs(options, _DEFAULT)


def options_from_json(stated: object) -> WorldOptions:
    """Return the options that values of JSON state; ValueError says where they are none."""
    try:
        whole = _whole(_DEFAULT, stated, "$")
        return msgspec.convert(whole, WorldOptions, dec_hook=_read)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def read_options(text: str) -> WorldOptions:
    """Return the options that a command states; ValueError says where they are none."""
    try:
        stated = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error}") from error
    return options_from_json(stated)


def _parts(value: object) -> dict[str, str]:
    """Return the attributes of a record by their names in JSON; none of what is no record."""
    if dataclasses.is_dataclass(value):
        return {field.name: field.name for field in dataclasses.fields(value)}
    if isinstance(value, msgspec.Struct):
        return {field.encode_name: field.name for field in msgspec.structs.fields(value)}
    return {}


def _differs(value: object, default: object) -> Any:
    """Return what is not as in the default: of a record of its type, part by part."""
    parts = _parts(value)
    if not parts or type(value) is not type(default):
        return msgspec.to_builtins(value, enc_hook=_written)
    return {
        name: _differs(getattr(value, part), getattr(default, part))
        for name, part in parts.items()
        if getattr(value, part) != getattr(default, part)
    }


def _whole(default: object, stated: object, where: str) -> Any:
    """Return what was stated with what was not as in the default; ValueError for unknown parts."""
    parts = _parts(default)
    if not parts or not isinstance(stated, Mapping):
        return stated
    given: Mapping[Any, Any] = stated
    for name in given.keys() - parts.keys():
        near = nearest(str(name), parts)
        raise ValueError(f"{where}.{name} is unknown" + (f"; did you mean {near}?" if near else ""))
    kept = {name: getattr(default, part) for name, part in parts.items()}
    return {
        name: _whole(value, given[name], f"{where}.{name}")
        if name in given
        else msgspec.to_builtins(value, enc_hook=_written)
        for name, value in kept.items()
    }


def _written(value: Any) -> Any:
    if isinstance(value, range):
        return [value.start, value.stop]
    raise NotImplementedError(f"a world has a part of type {type(value).__name__}")


def _read(type_: type[Any], value: Any) -> Any:
    if type_ is range:
        return range(*value)
    raise NotImplementedError(f"a world has a part of type {type_.__name__}")
