"""Numbers of jobs and arrays, as Slurm's tools expect them: given once, never used twice.

One ConfigMap says which number comes next. A process reserves blocks of numbers by
compare-and-swap on it and gives them out from memory; the number is then written with a status
that is written anyway. So a number costs no request of its own, two leaders cannot give the same
one, and a crash loses what was left of one block. docs/design/numbers.md has the reasons.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from fairlead.api.kubernetes.core import ConfigMap
from fairlead.api.meta import label_number
from fairlead.api.resources import CONFIG_MAPS
from fairlead.api.status import AlreadyExists, ApiError, Conflict, NotFound, Unavailable
from fairlead.runtime.client import Client
from fairlead.runtime.clock import loop_time

NAME = "fairlead-numbers"
#: The key of the ConfigMap: the lowest number that no process has reserved.
NEXT = "next"
#: So that `fairlead uninstall` knows it as Fairlead's own.
LABELS = {"app.kubernetes.io/part-of": "fairlead"}
#: Lost races for one block: each was won by another process.
_TRIES_MAX = 8
_GIVE_BACK_SECONDS_MAX = 2.0


@dataclass(frozen=True, slots=True)
class NumbersOptions:
    """Where the next number stands: in a namespace that tenants cannot write to."""

    namespace: str = "kube-system"
    name: str = NAME
    #: Numbers in the first block; each later one is twice as large, up to the most.
    block: int = 4
    block_max: int = 256


class Numbers:
    """The numbers that one process gives out. `of` may be called side by side."""

    def __init__(
        self,
        client: Client,
        options: NumbersOptions | None = None,
        *,
        highest: Callable[[], int] = lambda: 0,
    ) -> None:
        """`highest` returns the highest number that an object has: none up to it is given, also
        where the ConfigMap was deleted or is of an older backup.
        """
        self._client = client
        self._options = options or NumbersOptions()
        self._highest = highest
        self._block = self._options.block
        #: The rest of the block: from `_next` up to, and without, `_end`.
        self._next = self._end = 1
        #: The ConfigMap as it was when the block was reserved.
        self._counter: ConfigMap | None = None
        #: Numbers by uid, until it is known that they are written.
        self._given: dict[str, int] = {}
        self._lock = asyncio.Lock()
        self._is_closed = False
        #: The server's latest refusal that named a time, and when that is over.
        self._refusal: ApiError | None = None
        self._refused_until = 0.0

    async def of(self, uid: str) -> int:
        """Return the number of the object with this uid, the same until `forget`; ApiError."""
        async with self._lock:
            number = self._given.get(uid)
            if number is None:
                if self._is_closed:
                    raise Unavailable("no number is given while the controllers stop")
                if self._next == self._end:
                    await self._reserve_in_time()
                number = self._given[uid] = self._next
                self._next += 1
            return number

    def forget(self, uid: str) -> None:
        """Keep nothing of an object whose number is written, or that is gone."""
        self._given.pop(uid, None)

    async def run(self) -> None:
        """Wait until cancelled, and then give back what is left of the block."""
        self._is_closed = False
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await self._give_back()

    async def _reserve_in_time(self) -> None:
        """Reserve, but for as long as the server has asked to wait: who waited for the same block
        is refused with the one who asked, and sends no request of its own.
        """
        if self._refusal is not None and loop_time() < self._refused_until:
            raise self._refusal.with_traceback(None)
        self._refusal = None
        try:
            await self._reserve()
        except ApiError as error:
            if error.retry_after_seconds:
                self._refusal = error
                self._refused_until = loop_time() + error.retry_after_seconds
            raise

    async def _reserve(self) -> None:
        """Reserve the next block; Conflict when others are faster again and again."""
        for _ in range(_TRIES_MAX):
            with suppress(Conflict, AlreadyExists):
                return await self._try_to_reserve()
        raise Conflict(f"ConfigMap {self._options.name}: others write it all the time")

    async def _try_to_reserve(self) -> None:
        options = self._options
        try:
            found = await self._client.get(CONFIG_MAPS, options.name, namespace=options.namespace)
        except NotFound:
            found = None
        stored = label_number(found.data.get(NEXT)) if found is not None else None
        first = max(stored or 1, self._highest() + 1, self._end)
        end = first + self._block
        if found is None:
            metadata = {"name": options.name, "labels": LABELS}
            body = {"metadata": metadata, "data": {NEXT: str(end)}}
            self._counter = await self._client.create(
                CONFIG_MAPS, body, namespace=options.namespace
            )
        else:
            self._counter = await self._write(found, end)
        self._next, self._end = first, end
        self._block = min(2 * self._block, options.block_max)

    async def _give_back(self) -> None:
        """Let the next process go on where this one ends, unless another has reserved since."""
        self._is_closed = True
        counter, rest = self._counter, self._next
        self._counter, self._next = None, self._end
        if counter is not None and rest < self._end:
            with suppress(ApiError, TimeoutError):
                async with asyncio.timeout(_GIVE_BACK_SECONDS_MAX):  # a stop waits for it
                    await self._write(counter, rest)

    async def _write(self, found: ConfigMap, end: int) -> ConfigMap:
        meta = found.metadata
        version = {"resourceVersion": meta.resource_version, "uid": meta.uid}
        return await self._client.patch(
            CONFIG_MAPS, meta.name, {"metadata": version, "data": {NEXT: str(end)}},
            namespace=meta.namespace,
        )  # fmt: skip
