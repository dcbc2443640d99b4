"""The other members of a gang, as the one that starts a rank sees them: it comes together with
them, exchanges what ranks tell each other, and hears how they end.

All of it goes through the first member: the others connect to it once (`gang_link`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

from fairlead.member import pmi
from fairlead.member.gang_link import Gang, Link, LinkLost, Reception, Spawn, encode, join, listen

#: The other members, or the names of the gang, could not be reached in time (EX_UNAVAILABLE).
EXIT_UNAVAILABLE = 69
#: How long the members of a gang may take to come together.
GATHER_SECONDS_MAX = 300.0
#: How long a rank that has aborted, and a member that has ended, may take to be gone.
END_SECONDS_MAX = 5.0


class MpiError(Exception):
    """The communicator cannot be started; the message says what to do."""

    exit_code = EXIT_UNAVAILABLE


class Peers(Protocol):
    """The other members."""

    #: Done once one of them has been lost, or has failed.
    lost: asyncio.Future[None]

    async def fence(self, put: pmi.Values) -> Mapping[str, str]:
        """Give a rank's values to all; return those of all, once all have called it."""
        ...

    async def ended(self, code: int) -> bool:
        """Report how this rank ended; True when all others ended well, or need not be waited for.

        Members that are not the first need not wait.
        """
        ...


class Alone:
    """A gang of one."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def fence(self, put: pmi.Values) -> Mapping[str, str]:
        """Return the values."""
        return put

    async def ended(self, code: int) -> bool:
        """Return True: there are no others."""
        return code == 0


class FirstMember:
    """The peers of the first member, which brings all of them together."""

    def __init__(self, size: int) -> None:
        loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = loop.create_future()
        self._size = size
        self._links: dict[int, Link] = {}
        self._has_all: asyncio.Future[None] = loop.create_future()
        self._fence: asyncio.Future[Mapping[str, str]] = loop.create_future()
        self._fence_of: set[int] = set()
        self._put: pmi.Values = {}
        self._well: set[int] = set()
        self._all_well: asyncio.Future[None] = loop.create_future()

    async def welcome(self, rank: int, link: Link) -> None:
        """Serve a member. One whose link breaks off before all are here makes another."""
        self._links[rank] = link
        if len(self._links) == self._size - 1 and not self._has_all.done():
            self._has_all.set_result(None)
        try:
            while True:
                await self._heard(rank, await link.receive())
        except LinkLost:
            if self._links.get(rank) is not link or rank in self._well:
                return
            if self._has_all.done():
                self._note_lost()
            else:
                del self._links[rank]

    async def gather(self, gang: Gang, spawn: Spawn) -> None:
        """Bring all members together, and send them the start; MpiError."""
        await all_here(Reception(gang, self.welcome, spawn), self._has_all, self._links)
        await self._send_all({"start": True})

    async def fence(self, put: pmi.Values) -> Mapping[str, str]:
        """Give the first rank's values to all; return those of all."""
        fence = self._fence
        await self._arrived(0, put)
        return await fence

    async def ended(self, code: int) -> bool:
        """Report how the first rank ended, and wait for the others."""
        if code:
            self._note_lost()
            return False
        self._note_well(0)
        await any_of(self._all_well, self.lost)
        return self._all_well.done()

    async def _heard(self, rank: int, message: Mapping[str, object]) -> None:
        match message:
            case {"fence": dict(put)}:
                await self._arrived(rank, put)
            case {"ended": 0}:
                self._note_well(rank)
                self._links[rank].close()
            case _:
                self._note_lost()

    async def _arrived(self, rank: int, put: pmi.Values) -> None:
        self._fence_of.add(rank)
        self._put.update(put)
        if len(self._fence_of) == self._size:
            values, fence = self._put, self._fence
            self._fence = asyncio.get_running_loop().create_future()
            self._put, self._fence_of = {}, set()
            await self._send_all({"values": values})
            fence.set_result(values)
        elif self._well:
            self._note_lost()  # the others wait for a rank that has ended

    async def _send_all(self, message: Mapping[str, object]) -> None:
        body = encode(message)
        for link in self._links.values():
            try:
                await link.send_encoded(body)
            except LinkLost:
                self._note_lost()

    def _note_well(self, rank: int) -> None:
        self._well.add(rank)
        if self._fence_of:
            self._note_lost()
        if len(self._well) == self._size and not self._all_well.done():
            self._all_well.set_result(None)

    def _note_lost(self) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
        for link in self._links.values():
            link.close()


class OtherMember:
    """The peers of any other member, which hears of them from the first one."""

    def __init__(self, link: Link) -> None:
        loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = loop.create_future()
        self._link = link
        self._values: asyncio.Future[Mapping[str, str]] = loop.create_future()

    async def listen(self) -> None:
        """Take what the first member sends, until it is gone."""
        try:
            while True:
                match await self._link.receive():
                    case {"values": dict(values)} if not self._values.done():
                        self._values.set_result(values)
                    case _:
                        return
        except LinkLost:
            return
        finally:
            if not self.lost.done():
                self.lost.set_result(None)

    async def fence(self, put: pmi.Values) -> Mapping[str, str]:
        """Give this rank's values to all; return those of all."""
        self._values = asyncio.get_running_loop().create_future()
        with suppress(LinkLost):  # the rank is about to be stopped
            await self._link.send({"fence": put})
        return await self._values

    async def ended(self, code: int) -> bool:
        """Report how this rank ended, and wait until the first member has heard it."""
        with suppress(LinkLost, TimeoutError):
            await self._link.send({"ended": code})
            async with asyncio.timeout(END_SECONDS_MAX):
                await any_of(self.lost)
        return code == 0


async def all_here(
    reception: Reception, has_all: asyncio.Future[None], here: Collection[int]
) -> None:
    """Let members in until all of them are `here`, which are their ranks; MpiError."""
    gang = reception.gang
    try:
        listener = listen(gang)
    except OSError as error:
        raise MpiError(f"no port of {gang.address} is free: {error.strerror}") from None
    accepting = reception.spawn(reception.serve(listener))
    try:
        async with asyncio.timeout(GATHER_SECONDS_MAX):
            await has_all
    except TimeoutError:
        missing = sorted(set(range(1, gang.size)) - set(here))
        raise MpiError(
            f"members {missing[:10]} did not come within {GATHER_SECONDS_MAX:.0f} s"
        ) from None
    finally:
        accepting.cancel()


async def link_to_first(gang: Gang) -> Link:
    """Return the link to the first member, once all members are here; MpiError."""
    try:
        link, _ = await join(gang, GATHER_SECONDS_MAX)
    except TimeoutError:
        raise MpiError(
            f"the first member did not answer at {gang.address}:{gang.port} within "
            f"{GATHER_SECONDS_MAX:.0f} s, or not all members came"
        ) from None
    return link


@asynccontextmanager
async def gathered(gang: Gang, spawn: Spawn) -> AsyncGenerator[Peers]:
    """Bring the gang together, for as long as the context is open; MpiError when it cannot be."""
    if gang.size == 1:
        yield Alone()
    elif gang.rank == 0:
        first = FirstMember(gang.size)
        await first.gather(gang, spawn)
        yield first
    else:
        link = await link_to_first(gang)
        other = OtherMember(link)
        spawn(other.listen())
        try:
            yield other
        finally:
            link.close()


async def any_of(*futures: asyncio.Future[Any]) -> None:
    """Return once one of the futures is done; none is cancelled."""
    is_done = asyncio.Event()
    for future in futures:
        future.add_done_callback(lambda _: is_done.set())
    await is_done.wait()
