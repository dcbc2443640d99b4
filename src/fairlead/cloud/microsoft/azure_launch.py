"""The launches of one scale set, one after another.

Azure chooses the instance ids of new machines and takes no token with a request. So the scale set
itself keeps a ledger of its launches, in its tags, and one write adds a launch to the ledger and
raises the capacity. Azure refuses the write if the scale set has changed since it was read. Any
process that reads the scale set later knows whether a launch was sent, and which machines were
there before: the others are those of the launch. The next launch begins when these are known.

    launched   <digest of the token> : <instance ids of its machines>
    under way  <digest of the token> + <machines> : <instance ids that were there before>

Azure does not try again to make a machine that failed: it stays in the scale set, and is deleted
by its instance id, unless the launch may have been answered: what is removed later, the fleet
decides. The capacity is never lowered, since Azure would choose what to delete.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from fairlead.cloud.errors import NotThere
from fairlead.cloud.microsoft.azure_api import WORDS, Busy, Changed
from fairlead.cloud.microsoft.azure_scale_set import (
    OPERATION_SECONDS_MAX,
    ScaleSet,
    ScaleSetMachine,
    ScaleSetModel,
)
from fairlead.cloud.provider import CloudError, LaunchPending, OutOfCapacity, RefusedByProvider
from fairlead.model.health.machines import InstanceState

#: What is not listed so long after its operation has ended has failed; lists are not later.
SETTLE_SECONDS = 120.0
#: Between two looks at a launch: at first, and at most. A look takes a list that is not older.
LOOK_SECONDS, LOOK_SECONDS_MAX = 5.0, 15.0
_LOOKS_FACTOR = 1.5

TAG = "fairlead-launches-"
#: A tag has at most 256 characters, a scale set at most 50 tags.
TAG_MAX, TAGS_MAX, _TAGS_OF_AZURE_MAX = 256, 6, 50
#: Launches that are kept, and ranges of instance ids that were there before a launch.
LAUNCHES_KEPT_MAX, RANGES_MAX = 48, 250
_ERRORS_KEPT_MAX = 64
_DIGEST = 10
_ENTRY = re.compile(rf"([0-9a-f]{{{_DIGEST}}})(?:\+(\d{{1,6}}))?:([\w-]*)", re.ASCII)
_DIGITS, _BASE = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_", 32
#: A larger instance id is taken for a mistake.
_NUMBER_MAX = 10_000_000

T = TypeVar("T")
Ranges = tuple[tuple[int, int], ...]


def digest_of(token: str) -> str:
    """Return what a ledger calls a launch."""
    return hashlib.sha256(token.encode()).hexdigest()[:_DIGEST]


@dataclass(frozen=True, slots=True)
class OpenLaunch:
    """A launch that was sent. Machines whose instance ids are not in `before` are its own."""

    digest: str
    count: int
    before: Ranges

    def has(self, id_: str) -> bool:
        """True for a machine of this launch."""
        number = int(id_)
        return not any(first <= number <= last for first, last in self.before)


@dataclass(frozen=True, slots=True)
class ScaleSetLaunches:
    """The launches of a scale set, as its tags keep them; `launched` from the oldest on."""

    open: OpenLaunch | None = None
    launched: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def tags(self) -> dict[str, str]:
        """Return the tags; without the oldest launches where all would not fit."""
        entries = [f"{digest}:{_text(_ranges(ids))}" for digest, ids in self.launched.items()]
        entries = entries[-LAUNCHES_KEPT_MAX:]
        if self.open is not None:
            entries.append(f"{self.open.digest}+{self.open.count}:{_text(self.open.before)}")
        while len(text := ";".join(entries)) > TAG_MAX * TAGS_MAX:
            del entries[0]
        parts = (text[at : at + TAG_MAX] for at in range(0, len(text), TAG_MAX))
        return {f"{TAG}{i}": part for i, part in enumerate(parts)}


def ledger_of(tags: Mapping[str, str]) -> ScaleSetLaunches:
    """Return the ledger that tags keep; RefusedByProvider when it cannot be read."""
    known = {key.lower(): value for key, value in tags.items()}
    text = "".join(known.get(f"{TAG}{i}", "") for i in range(TAGS_MAX))
    launched: dict[str, tuple[str, ...]] = {}
    open_: OpenLaunch | None = None
    for entry in text.split(";") if text else ():
        found = _ENTRY.fullmatch(entry)
        ranges = _parsed(found[3]) if found is not None else None
        if found is None or ranges is None or open_ is not None:
            why = f"the tags {TAG}0 to {TAG}{TAGS_MAX - 1} cannot be read at {entry[:40]!r}"
            help_ = "once no machine is being made, delete these tags"
            raise RefusedByProvider(f"Azure: {why}; {help_}")
        if found[2] is not None:
            open_ = OpenLaunch(found[1], int(found[2]), ranges)
        else:
            launched[found[1]] = tuple(str(n) for a, b in ranges for n in range(a, b + 1))
    return ScaleSetLaunches(open_, launched)


def _ranges(ids: Iterable[str], ranges_max: int = 1_000) -> Ranges:
    """Return instance ids as ranges; where these are too many, with the smallest gaps closed."""
    out: list[tuple[int, int]] = []
    for number in sorted(int(id_) for id_ in ids):
        if out and number <= out[-1][1] + 1:
            out[-1] = (out[-1][0], number)
        else:
            out.append((number, number))
    while len(out) > ranges_max:
        at = min(range(len(out) - 1), key=lambda i: out[i + 1][0] - out[i][1])
        out[at : at + 2] = [(out[at][0], out[at + 1][1])]
    return tuple(out)


def _text(ranges: Ranges) -> str:
    """Return ranges in few characters: the gap before each and its length, 5 bits a digit."""
    out: list[str] = []
    end = 0
    for first, last in ranges:
        for number in (first - end, last - first):
            while number >= _BASE:
                out.append(_DIGITS[_BASE + number % _BASE])
                number //= _BASE
            out.append(_DIGITS[number])
        end = last
    return "".join(out)


def _parsed(text: str) -> Ranges | None:
    numbers: list[int] = []
    number = shift = 0
    for digit in text:
        value = _DIGITS.index(digit)
        number += (value % _BASE) << shift
        shift += 5
        if value < _BASE:
            numbers.append(number)
            number = shift = 0
    if shift or len(numbers) % 2 or sum(numbers) > _NUMBER_MAX:
        return None
    out: list[tuple[int, int]] = []
    end = 0
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        out.append((end + gap, end + gap + length))
        end += gap + length
    return tuple(out)


@dataclass(slots=True)
class _Followed:
    """The open launch as this process knows it. `operation`: "" when that is not known."""

    digest: str
    since: float
    operation: str = ""
    error: CloudError | None = None
    #: When its operation was first seen to have ended.
    done_at: float | None = None
    is_over: bool = False
    made: tuple[str, ...] = ()


class Launches:
    """The launches of one scale set."""

    def __init__(self, scale_set: ScaleSet) -> None:
        self._set = scale_set
        self._lock = asyncio.Lock()
        self._ledger = ScaleSetLaunches()
        self._is_read = False
        #: Launches that this process was asked for and has not answered, by digest.
        self._asked: set[str] = set()
        self._followed: _Followed | None = None
        self._errors: dict[str, CloudError] = {}
        self._busy_since: float | None = None
        self._look_at = float("-inf")
        self._look_seconds = 0.0
        self._said = ""

    def has(self, id_: str) -> bool:
        """True for a machine of a launch that has no answer yet."""
        open_ = self._ledger.open
        if open_ is not None and open_.digest in self._asked and open_.has(id_):
            return True
        launched = self._ledger.launched
        return any(id_ in launched.get(digest, ()) for digest in self._asked)

    async def step(self, token: str, count: int) -> tuple[str, ...]:
        """Return the instance ids of the machines of a launch, once all are made or have failed.

        LaunchPending: ask again. CloudError: a call failed, ask again. OutOfCapacity,
        RefusedByProvider: there are none, and there will be none.
        """
        digest = digest_of(token)
        self._asked.add(digest)
        async with self._lock:
            try:
                made = await self._step(digest, count)
            except Busy as error:
                self._said = str(error)
                raise LaunchPending(self._said) from error
            except (OutOfCapacity, RefusedByProvider):
                self._asked.discard(digest)
                raise
        self._asked.discard(digest)
        return made

    async def _step(self, digest: str, count: int) -> tuple[str, ...]:
        if (known := self._known(digest)) is not None:
            return known
        now = _now()
        if now < self._look_at:
            raise LaunchPending(self._said)
        self._pace(now)
        if not self._is_read:
            self._read(await self._model())
        open_ = self._ledger.open
        if open_ is not None and self._known(digest) is None:
            await self._follow(open_)
        if (known := self._known(digest)) is not None:
            return known
        await self._open(digest, count)
        self._look_seconds = 0.0
        self._pace(now)
        raise self._pending(f"{count} machines were asked for")

    def _known(self, digest: str) -> tuple[str, ...] | None:
        """Return the machines of a launch that is over, or raise why there are none."""
        if digest in self._errors:
            raise self._errors[digest]
        followed = self._followed
        if followed is not None and followed.is_over and followed.digest == digest:
            return followed.made
        return self._ledger.launched.get(digest)

    def _pace(self, now: float) -> None:
        longer = max(self._look_seconds * _LOOKS_FACTOR, LOOK_SECONDS)
        self._look_seconds = min(longer, LOOK_SECONDS_MAX)
        self._look_at = now + self._look_seconds

    def _pending(self, what: str) -> LaunchPending:
        self._said = f"Azure: {self._set.name}: {what}"
        return LaunchPending(self._said)

    # A launch that was sent

    async def _follow(self, open_: OpenLaunch) -> None:
        """Return once the launch is over, and note how; LaunchPending before."""
        if self._followed is None or self._followed.digest != open_.digest:
            self._followed = _Followed(open_.digest, _now())
        followed = self._followed
        if followed.is_over:
            return
        if followed.done_at is None:
            await self._look_at_operation(followed)
        machines = await self._machines(followed.done_at or followed.since)
        own = [machine for id_, machine in machines.items() if open_.has(id_)]
        failed = [machine for machine in own if _is_lost(machine)]
        made = [machine for machine in own if machine.exists and not _is_lost(machine)]
        coming = [each for each in own if each not in failed and each not in made]
        if len(made) + len(failed) < open_.count:
            self._await(followed, coming, missing=open_.count - len(made) - len(failed))
        if open_.digest in self._asked:
            await self._delete(failed)
        # One that is still coming now is there and has not failed: its node may yet join.
        ids = sorted((machine.id for machine in (*made, *coming)), key=int)
        followed.made, followed.is_over = tuple(ids[: open_.count]), True
        self._look_at, self._look_seconds = float("-inf"), 0.0
        if not ids:
            self._note_error(open_.digest, self._why(followed, failed))

    def _await(
        self, followed: _Followed, coming: Collection[ScaleSetMachine], *, missing: int
    ) -> None:
        """Raise LaunchPending while machines that are not there may still come."""
        if followed.done_at is None:
            raise self._pending(f"{missing} machines are being made")
        is_final = isinstance(followed.error, OutOfCapacity | RefusedByProvider)
        if is_final and not coming:
            return
        if _now() < followed.done_at + SETTLE_SECONDS:
            raise self._pending(f"{missing} machines are not listed yet")

    async def _look_at_operation(self, followed: _Followed) -> None:
        """Note whether the operation has ended. Without one, the scale set's own state says so."""
        if _now() >= followed.since + OPERATION_SECONDS_MAX:
            followed.done_at = _now()
            return
        if followed.operation:
            operation = await _looked(self._set.operation(followed.operation))
            if operation is not None and not operation.is_done:
                return
            if operation is None or any("PREEMPTED" in e.code.upper() for e in operation.errors):
                followed.operation = ""  # a later one goes on with what this one had begun
            else:
                followed.done_at = _now()
                followed.error = WORDS.error_of(operation.errors) if operation.errors else None
        if not followed.operation and not (await self._model()).is_busy:
            followed.done_at = _now()

    async def _machines(self, since: float) -> Mapping[str, ScaleSetMachine]:
        """Return all machines, in a list that is newer than an instant and than the last look."""
        newer_than = max(since, _now() - LOOK_SECONDS_MAX)
        found, is_complete = await _looked(self._set.machines(newer_than))
        if not is_complete:
            raise CloudError(f"Azure: {self._set.name}: the list of machines was cut")
        return found

    async def _delete(self, failed: Collection[ScaleSetMachine]) -> None:
        """Delete machines that were not made."""
        left = [each.id for each in failed if each.state is not InstanceState.STOPPING]
        await _looked(self._set.delete(sorted(left, key=int)))

    def _why(self, followed: _Followed, failed: Collection[ScaleSetMachine]) -> CloudError:
        """Return why there are no machines; want of capacity first: another zone may have it."""
        found = [WORDS.error_of(machine.errors) for machine in failed if machine.errors]
        found += [followed.error] if followed.error is not None else []
        for kind in (OutOfCapacity, RefusedByProvider):
            for error in found:
                if isinstance(error, kind):
                    return error
        text = f"Azure: {self._set.name}: no machine within {SETTLE_SECONDS:.0f} s"
        return OutOfCapacity(str(found[0]) if found else text)

    def _note_error(self, digest: str, error: CloudError) -> None:
        self._errors[digest] = error
        while len(self._errors) > _ERRORS_KEPT_MAX:
            del self._errors[next(iter(self._errors))]

    # A launch that is to be sent

    async def _open(self, digest: str, count: int) -> None:
        """Send a launch: write it and raise the capacity, if nothing has changed meanwhile."""
        model = await self._model()
        if model.problems:
            text = "; ".join(model.problems)
            raise RefusedByProvider(f"Azure: scale set {self._set.name!r}: {text}")
        before, launched = self._ledger.open, dict(self._ledger.launched)
        self._read(model)
        if (self._ledger.open, dict(self._ledger.launched)) != (before, launched):
            raise self._pending("another process has launched machines")
        self._await_quiet(model)
        machines = await self._machines(float("inf"))
        if before is not None and self._followed is not None and self._followed.made:
            launched[before.digest] = self._followed.made
        open_ = OpenLaunch(digest, count, _ranges(machines, RANGES_MAX))
        ledger = ScaleSetLaunches(open_, launched)
        # Azure first makes what it could not make for an earlier launch; that is not ordered again.
        capacity = max(model.capacity, min(model.capacity, len(machines)) + count)
        # Until there is an answer, whether it was written is not known.
        self._ledger, self._is_read = ledger, False
        try:
            operation = await self._set.write(model, self._tags(model, ledger), capacity)
        except Changed as error:
            raise self._pending("it has changed, and is read again") from error
        self._is_read, self._followed = True, _Followed(digest, _now(), operation)

    def _await_quiet(self, model: ScaleSetModel) -> None:
        """Raise LaunchPending while another operation of the scale set is under way."""
        if not model.is_busy:
            self._busy_since = None
            return
        if self._busy_since is None:
            self._busy_since = _now()
        if _now() < self._busy_since + OPERATION_SECONDS_MAX:
            raise self._pending("another operation is under way")

    def _tags(self, model: ScaleSetModel, ledger: ScaleSetLaunches) -> dict[str, str]:
        kept = {key: value for key, value in model.tags.items() if not key.lower().startswith(TAG)}
        if len(kept) + TAGS_MAX > _TAGS_OF_AZURE_MAX:
            text = f"has {len(kept)} tags; Azure allows {_TAGS_OF_AZURE_MAX} and Fairlead needs"
            raise RefusedByProvider(
                f"Azure: scale set {self._set.name!r} {text} {TAGS_MAX}: remove some"
            )
        return {**kept, **ledger.tags()}

    def _read(self, model: ScaleSetModel) -> None:
        self._ledger, self._is_read = ledger_of(model.tags), True

    async def _model(self) -> ScaleSetModel:
        return await _looked(self._set.model())


def _is_lost(machine: ScaleSetMachine) -> bool:
    return machine.has_failed or machine.state is InstanceState.STOPPING


async def _looked(question: Awaitable[T]) -> T:
    """Ask; an error is not the answer to a launch, which may have been sent. CloudError."""
    try:
        return await question
    except (Busy, NotThere):
        raise
    except CloudError as error:
        raise CloudError(str(error)) from error


def _now() -> float:
    return asyncio.get_running_loop().time()
