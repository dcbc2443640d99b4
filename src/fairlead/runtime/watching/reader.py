"""One reader of mirrors that are shared: its handlers come off together, its faults are its own.

A handler keeps a controller's state in step with the objects. When it raises over an object, that
object is set aside (`set_aside.py`) and the handler is given the object's absence, and after it the
version that it had taken before, so that no half-applied state stays: a placement that was seen
does not lose its room because its job became unreadable. A handler that cannot take an absence or
what it took before is broken, whatever the object.

A shared mirror must outlive any of its readers. Such a fault takes off all handlers
of this reader, the mirror goes on, and `wait_fault` raises the fault where the reader's supervisor
sees it. A new reader then starts from what the mirrors hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from fairlead.api.resources import Resource
from fairlead.decide.verdict import ObjectKey
from fairlead.runtime.watching.mirror import Change, HasMetadata, Mirror
from fairlead.runtime.watching.set_aside import STRICT, AsideStage, SetAside

T = TypeVar("T", bound=HasMetadata)


class _Contained(Generic[T]):
    """A handler that takes any object: the good ones, and the absence of the others.

    What it raises is a fault of its reader.
    """

    def __init__(
        self, reader: MirrorReader, resource: Resource[T], handler: Callable[[Change[T]], None]
    ) -> None:
        self._reader = reader
        self._resource = resource
        self._handler = handler
        self._set_aside = reader.set_aside
        self._entries = reader.set_aside.entries  # asked at each change: as a dict, not by a call
        #: What the handler holds of the objects that are set aside; None: nothing.
        self._held: dict[ObjectKey, T | None] = {}

    def __call__(self, change: Change[T]) -> None:
        if self._reader.fault is not None:
            return
        try:
            if change.new is None or self._held or self._entries:
                self._take(change)
                return
            try:  # as `_take` does at its end: most changes come by here
                self._handler(change)
            except Exception as error:  # noqa: BLE001 - over one object, so it is that object's
                self._leave_alone(change, change.new, error)
        except Exception as error:  # noqa: BLE001 - wait_fault raises it; other readers go on
            self._reader.fail(error)

    def _take(self, change: Change[T]) -> None:
        """Take in a change where objects are set aside, or one that removes an object."""
        key, old, new = change.key, change.old, change.new
        if key in self._held:
            old = self._held.pop(key)
        if new is None:
            self._set_aside.clear(self._resource, key)
            if old is not None:
                self._handler(Change(old, None))
            return
        change = change if old is change.old else Change(old, new)
        try:
            self._handler(change)
        except Exception as error:  # noqa: BLE001 - over one object, so it is that object's
            self._leave_alone(change, new, error)
        else:
            self._set_aside.clear(self._resource, key, AsideStage.OBSERVE, AsideStage.ACT)

    def _leave_alone(self, change: Change[T], new: T, error: Exception) -> None:
        """Set the object aside, and give the handler what it had of it."""
        old = change.old
        self._set_aside.note(self._resource, new.metadata, AsideStage.OBSERVE, error)
        bare: T = cast("Any", self._resource.type)(metadata=new.metadata)
        self._handler(Change(bare if old is None else old, None))
        if old is not None:
            self._handler(Change(None, old))
        self._held[change.key] = old


class MirrorReader:
    """The handlers of one reader. Make a new one with each new reader."""

    def __init__(self, set_aside: SetAside = STRICT) -> None:
        """`set_aside` takes the objects that handlers raise over; STRICT: each is a fault."""
        self.set_aside = set_aside
        self._removers: list[Callable[[], None]] = []
        #: What a handler raised; from then on none is called.
        self.fault: Exception | None = None
        self._failed = asyncio.Event()

    def follow(self, mirror: Mirror[T], handler: Callable[[Change[T]], None]) -> Callable[[], None]:
        """Like `mirror.on_change`, but a fault of `handler` ends this reader, not the mirror.

        Raises the fault when `handler` cannot take what the mirror holds already.
        """
        remove = mirror.on_change(_Contained(self, mirror.resource, handler))
        self._removers.append(remove)
        if self.fault is not None:
            self.close()
            raise self.fault
        return remove

    def fail(self, fault: Exception) -> None:
        """Take all handlers off; `wait_fault` raises the fault."""
        self.fault = fault
        self.close()
        self._failed.set()

    def close(self) -> None:
        """Take all handlers off their mirrors."""
        for remove in self._removers:
            remove()
        self._removers.clear()

    async def wait_fault(self) -> None:
        """Wait for the first fault of a handler and raise it."""
        await self._failed.wait()
        if self.fault is not None:
            raise self.fault


def follow(
    mirror: Mirror[T], handler: Callable[[Change[T]], None], reader: MirrorReader | None
) -> Callable[[], None]:
    """Register `handler` through the reader, or, without one, on a private mirror."""
    return mirror.on_change(handler) if reader is None else reader.follow(mirror, handler)


def set_aside_of(reader: MirrorReader | None) -> SetAside:
    """Return where a reader notes objects; STRICT without one."""
    return STRICT if reader is None else reader.set_aside
