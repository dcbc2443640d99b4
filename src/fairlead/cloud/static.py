"""Machines that exist already: a file names them; a command or Redfish wakes them, lets them sleep.

The inventory is JSON: {"machines": [{"id": ID, "domain": D}, ...], "power": "/path/of/command"}.
`power on ID`, `power off ID` wake a machine and let it sleep, `power restart ID` is its reset
button; `power list` prints the JSON list of
those that are awake. "environment" lists variables of the controllers that the command inherits.
With "redfish": {"user": U, "passwordFile": F} in the place of "power", each machine names its
"system" (`redfish.py`).

Which token woke a machine is kept beside the inventory, in FILE.launches, and is written before the
first machine is woken: a launch that was interrupted is finished when it is repeated.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from fairlead.cloud.command import OUTPUT_BYTES_MAX, run_command
from fairlead.cloud.provider import CloudError, LaunchRequest, OutOfCapacity, RefusedByProvider
from fairlead.cloud.redfish import Redfish, RedfishAccount, check_systems
from fairlead.model.health.machines import Instance, InstanceState, Inventory

#: Machines that are woken or sent to sleep side by side.
_POWER_PARALLEL_MAX = 16


class _Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    domain: str = ""
    system: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    machines: tuple[_Machine, ...]
    power: str = ""
    environment: tuple[str, ...] = ()
    redfish: RedfishAccount | None = None


def _read_file(path: Path) -> bytes:
    """Return what a regular file of bounded size holds; OSError, ValueError for anything else.

    A pipe or a device might have no end, and the read would hold up the whole process.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("is no regular file")
        text = file.read(OUTPUT_BYTES_MAX + 1)
    if len(text) > OUTPUT_BYTES_MAX:
        raise ValueError(f"is larger than {OUTPUT_BYTES_MAX} bytes")
    return text


class StaticProvider:
    """The machines of one pool, which are those of one inventory file."""

    def __init__(self, path: str, pool: str) -> None:
        self._path = Path(path)
        self._launches = Path(f"{path}.launches")
        self._pool = pool
        self._lock = asyncio.Lock()
        self._redfish: Redfish | None = None

    async def instances(self) -> Inventory:
        """Return the machines of the inventory that are awake."""
        file = self._read()
        awake, silent = await self._awake(file)
        tokens = {id_: token for token, ids in self._tokens().items() for id_ in ids}
        found = (
            Instance(
                each.id, self._pool, self._state(each.id), each.domain, tokens.get(each.id, "")
            )
            for each in file.machines
            if each.id in awake
        )  # fmt: skip
        warning = f"{len(silent)} BMCs do not answer, the first of {silent[0]}" if silent else ""
        is_complete = len(silent) * 2 <= len(file.machines)
        return Inventory(tuple(found), is_complete, warning)

    async def launch(self, request: LaunchRequest) -> tuple[str, ...]:
        """Wake machines that sleep, all or none; OutOfCapacity when too few do."""
        async with self._lock:
            file = self._read()
            (awake, _), tokens = await self._awake(file), self._tokens()
            chosen = tokens.get(request.token)
            if chosen is None:
                promised = {id_ for ids in tokens.values() for id_ in ids}
                chosen = tuple(
                    each.id for each in file.machines
                    if each.id not in awake and each.id not in promised
                    and request.domain in ("", each.domain)
                )[: request.count]  # fmt: skip
                if len(chosen) < request.count:
                    text = f"{len(chosen)} of {request.count} machines of {self._path} sleep"
                    raise OutOfCapacity(text)
                self._write({**tokens, request.token: chosen})
            await self._power(file, "on", tuple(i for i in chosen if i not in awake))
            return chosen

    async def terminate(self, ids: tuple[str, ...]) -> None:
        """Let machines of the inventory sleep."""
        async with self._lock:
            file = self._read()
            known = {each.id for each in file.machines}
            await self._power(file, "off", tuple(id_ for id_ in ids if id_ in known))
            left = {
                token: tuple(id_ for id_ in woken if id_ not in ids)
                for token, woken in self._tokens().items()
            }
            self._write({token: woken for token, woken in left.items() if woken})

    async def restart(self, id_: str) -> None:
        """Restart a machine of the inventory."""
        async with self._lock:
            file = self._read()
            if id_ not in {each.id for each in file.machines}:
                raise RefusedByProvider(f"{self._path} has no machine {id_!r}")
            await self._power(file, "restart", (id_,))

    async def _power(self, file: _File, verb: str, ids: tuple[str, ...]) -> None:
        redfish = self._redfish_of(file)

        async def switch(id_: str) -> None:
            if redfish is None:
                await run_command(file.power, verb, id_, variables=file.environment)
            elif verb == "on":
                await redfish.switch_on(id_)
            elif verb == "restart":
                await redfish.restart(id_)
            else:
                await redfish.switch_off(id_)

        await _each(ids, switch)

    async def _awake(self, file: _File) -> tuple[frozenset[str], tuple[str, ...]]:
        """Return the machines that are awake, and those of which it is not known."""
        redfish = self._redfish_of(file)
        if redfish is not None:
            return await _awake_by(redfish)
        answer = await run_command(file.power, "list", variables=file.environment)
        try:
            return frozenset(msgspec.convert(answer or [], tuple[str, ...])), ()
        except msgspec.ValidationError as error:
            raise CloudError(f"{file.power} list prints no JSON list of ids: {error}") from error

    def _state(self, id_: str) -> InstanceState:
        if self._redfish is not None and self._redfish.is_shutting_down(id_):
            return InstanceState.STOPPING
        return InstanceState.RUNNING

    def _redfish_of(self, file: _File) -> Redfish | None:
        """Return who switches the machines, the same while the inventory is; None: the command."""
        if file.redfish is None:
            self._redfish = None
            return None
        systems = {each.id: each.system for each in file.machines}
        found = self._redfish
        if found is None or (found.account, found.systems) != (file.redfish, systems):
            check_systems(systems)
            found = self._redfish = Redfish(file.redfish, systems)
        return found

    def _read(self) -> _File:
        try:
            file = msgspec.json.decode(_read_file(self._path), type=_File)
            if bool(file.power) == (file.redfish is not None):
                raise ValueError("it needs one of power and redfish")  # noqa: TRY301 # as below
            return file  # noqa: TRY300
        except OSError as error:
            raise RefusedByProvider(f"{self._path}: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:  # not JSON, or a NUL in the path
            raise RefusedByProvider(f"{str(self._path)!r}: {error}") from error

    def _tokens(self) -> dict[str, tuple[str, ...]]:
        try:
            text = _read_file(self._launches)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise CloudError(f"{self._launches}: {error.strerror or error}") from error
        try:
            return msgspec.json.decode(text, type=dict[str, tuple[str, ...]])
        except (ValueError, RecursionError) as error:
            raise RefusedByProvider(f"{self._launches}: {error}") from error

    def _write(self, tokens: dict[str, tuple[str, ...]]) -> None:
        new = self._launches.with_suffix(".new")
        try:
            with new.open("wb") as file:
                file.write(msgspec.json.encode(tokens))
                file.flush()
                os.fsync(file.fileno())  # or an empty file may take its place in a power failure
            new.replace(self._launches)
        except OSError as error:
            raise CloudError(f"{self._launches}: {error.strerror or error}") from error


async def _awake_by(redfish: Redfish) -> tuple[frozenset[str], tuple[str, ...]]:
    awake: dict[str, bool] = {}
    silent: list[str] = []

    async def look(id_: str) -> None:
        found = await redfish.awake(id_)
        if found is None:
            silent.append(id_)
        awake[id_] = redfish.last_known(id_) if found is None else found

    await _each(tuple(redfish.systems), look)
    return frozenset(id_ for id_, is_on in awake.items() if is_on), tuple(sorted(silent))


async def _each(ids: tuple[str, ...], call: Callable[[str], Awaitable[None]]) -> None:
    """Call for each of these machines, a few at a time; CloudError of the first that fails."""
    waiting = iter(ids)

    async def work() -> None:
        for id_ in waiting:
            await call(id_)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(_POWER_PARALLEL_MAX, len(ids))):
                group.create_task(work())
    except ExceptionGroup as errors:
        first = errors.exceptions[0]
        if isinstance(first, CloudError):
            raise first from errors
        raise
