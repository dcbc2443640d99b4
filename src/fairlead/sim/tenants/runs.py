"""Runs worlds of a tenant's sequences, and shrinks what breaks a promise to the fewest calls."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from fairlead.sim.loop import run
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.tenants.calls import Call
from fairlead.sim.tenants.draws import draw
from fairlead.sim.tenants.world import Played, TenantWorld

#: A world is used for so many sequences, and his objects are deleted after each round.
WORLD_SEQUENCES, ROUND_SEQUENCES = 40, 5
#: Worlds that are run to shrink what one has found.
SHRINKS_MAX = 300

Calls = tuple[Call, ...]
Make = Callable[[str], TenantWorld]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Result:
    """What a world came to: `broken` is "" where every promise held.

    `calls` are then the fewest that break the same promise in a world of this seed.
    """

    seed: str
    broken: str = ""
    calls: tuple[Calls, ...] = ()
    played: Played = field(default_factory=Played)
    judged: Counter[str] = field(default_factory=Counter[str])

    @property
    def text(self) -> str:
        """What people read of a broken promise: which, by what, and how to see it again."""
        lines = [f"A PROMISE IS BROKEN: {self.broken}"]
        for number, calls in enumerate(self.calls):
            lines += [f"  {number}: {call}" for call in calls]
        group, _, number = self.seed.rpartition("/")
        lines.append(f"  replay: python -m fairlead.sim.tenants --seed {group} --world {number}")
        return "".join(f"{line}\n" for line in lines)


def sequences_of(seed: str, count: int = WORLD_SEQUENCES) -> list[Calls]:
    """Return the sequences of a world."""
    return [
        draw(random.Random(f"{seed}/sequence/{number}"), number)  # noqa: S311 # a simulation
        for number in range(count)
    ]


def play(seed: str, sequences: Sequence[Calls], make: Make = TenantWorld) -> Result:
    """Run a world with these sequences; equal arguments give equal hashes."""
    world = make(seed)
    rounds = [
        sequences[start : start + ROUND_SEQUENCES]
        for start in range(0, len(sequences), ROUND_SEQUENCES)
    ]

    async def main() -> None:
        async with world.running():
            await world.play(rounds)

    broken = ""
    try:
        run(main())
    except BaseExceptionGroup as group:
        broken = _first(group)
    except Exception as error:  # noqa: BLE001 # whatever it is, it is what was looked for
        broken = _words(error)
    return Result(seed, broken, (), world.played, world.promises.judged)


def explored(seed: str, count: int = WORLD_SEQUENCES, make: Make = TenantWorld) -> Result:
    """Run the world of a seed; where it breaks a promise, find the fewest calls that do."""
    sequences = sequences_of(seed, count)
    found = play(seed, sequences, make)
    if not found.broken:
        return found
    reached = sequences[: len(found.played.outcomes)]
    return replace(found, calls=tuple(_shrunk(seed, reached, found.broken, make)))


def hash_of(results: Sequence[Result]) -> str:
    """Return one hash of every write of some worlds."""
    digest = hashlib.sha256()
    for result in results:
        digest.update(f"{result.seed} {result.played.log_hash} {result.broken}\n".encode())
    return digest.hexdigest()


def _shrunk(seed: str, sequences: list[Calls], broken: str, make: Make) -> list[Calls]:
    """Return fewer calls that break the same promise, as long as any can be left out."""
    promise, left = broken.partition(":")[0], SHRINKS_MAX

    def breaks(candidate: Sequence[Calls]) -> bool:
        nonlocal left
        left -= 1
        return play(seed, candidate, make).broken.startswith(f"{promise}:")

    for start in (len(sequences) - 1, max(0, len(sequences) - ROUND_SEQUENCES)):
        if breaks(sequences[start:]):
            sequences = sequences[start:]
            break
    # What others do follows from the number of the round: a sequence is emptied, not left out.
    calls = [(number, call) for number, each in enumerate(sequences) for call in each]
    count = len(sequences)
    return _by_sequence(
        _without(calls, lambda some: breaks(_by_sequence(some, count)), lambda: left > 0), count
    )


def _by_sequence(calls: Sequence[tuple[int, Call]], count: int) -> list[Calls]:
    return [tuple(call for at, call in calls if at == number) for number in range(count)]


def _without(
    items: list[T], breaks: Callable[[list[T]], bool], goes_on: Callable[[], bool]
) -> list[T]:
    """Leave out halves, quarters and so on down to single items, while it still breaks."""
    size = len(items) // 2
    while size and goes_on():
        at = 0
        while at < len(items) and goes_on():
            candidate = [*items[:at], *items[at + size :]]
            if breaks(candidate):
                items = candidate
            else:
                at += size
        size //= 2
    return items


def _first(group: BaseExceptionGroup[BaseException]) -> str:
    found = group.subgroup(PromiseBroken) or group
    error = found.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else _words(error)


def _words(error: BaseException) -> str:
    if isinstance(error, PromiseBroken):
        return str(error)
    return f"service: {type(error).__name__}: {error}"
