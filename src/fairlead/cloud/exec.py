"""Machines by any command that speaks JSON (docs/howto/node-pools.md, "Exec").

    COMMAND list       {"pool": P} -> {"instances": [...], "complete": true}
                       Each: "id", and "state", "domain", "token", "pool", "maintenance" if known.
    COMMAND launch     {"pool": P, "token": T, "count": N, ...} -> {"instances": ["id", ...]}
    COMMAND terminate  {"pool": P, "instances": ["id", ...]}

The request is on the standard input. The command keeps the token of each machine it makes: asked
again with the same token, it returns the same machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from fairlead.api.cluster.node_pool import ENVIRONMENT, NODES_MAX
from fairlead.api.values.bounds import OBJECT_NAME_MAX
from fairlead.cloud.command import run_command
from fairlead.cloud.provider import CloudError, LaunchRequest
from fairlead.model.health.machines import Instance, InstanceState, Inventory
from fairlead.model.health.windows import read_window

T = TypeVar("T")
#: The id of a machine; ids are written to the status of the pool.
_Id: TypeAlias = Annotated[str, Meta(min_length=1, max_length=OBJECT_NAME_MAX)]
_Name: TypeAlias = Annotated[str, Meta(max_length=OBJECT_NAME_MAX)]


class _Instance(msgspec.Struct, frozen=True):
    id: _Id
    state: InstanceState = InstanceState.RUNNING
    domain: _Name = ""
    token: _Name = ""
    pool: _Name = ""
    maintenance: _Name = ""


class _Listed(msgspec.Struct, frozen=True):
    instances: Annotated[tuple[_Instance, ...], Meta(max_length=NODES_MAX)]
    complete: bool = True


class _Launched(msgspec.Struct, frozen=True):
    instances: tuple[_Id, ...]


class ExecProvider:
    """The machines of one pool."""

    def __init__(self, path: str, pool: str, options: Mapping[str, str]) -> None:
        """`options` are passed along with each request."""
        self._path = path
        self._pool = pool
        self._options = dict(options)

    async def instances(self) -> Inventory:
        """Return what the command lists."""
        found = _typed(await self._ask("list"), _Listed, self._path)
        for each in found.instances:
            if each.maintenance and (error := read_window(each.maintenance).error):
                raise CloudError(f"{self._path}: maintenance of {each.id}: {error}")
        return Inventory(
            tuple(
                Instance(
                    each.id, each.pool or self._pool, each.state, each.domain, each.token,
                    each.maintenance,
                )
                for each in found.instances
            ),
            found.complete,
        )  # fmt: skip

    async def launch(self, request: LaunchRequest) -> tuple[str, ...]:
        """Ask the command for machines."""
        answer = await self._ask(
            "launch", token=request.token, count=request.count, domain=request.domain,
            resources=dict(request.resources), labels=dict(request.labels),
        )  # fmt: skip
        ids = tuple(dict.fromkeys(_typed(answer, _Launched, self._path).instances))
        if len(ids) > request.count:
            raise CloudError(
                f"{self._path} launched {len(ids)} machines instead of {request.count}"
            )
        return ids

    async def terminate(self, ids: tuple[str, ...]) -> None:
        """Ask the command to end machines."""
        await self._ask("terminate", instances=ids)

    async def _ask(self, verb: str, **fields: Any) -> Any:
        request = {"pool": self._pool, "options": self._options, **fields}
        variables = self._options.get(ENVIRONMENT, "").split()
        return await run_command(self._path, verb, request=request, variables=variables)


def _typed(answer: Any, type_: type[T], path: str) -> T:
    try:
        return msgspec.convert(answer, type_)
    except (msgspec.ValidationError, RecursionError) as error:
        raise CloudError(f"{path}: the answer has another form: {error}") from error
