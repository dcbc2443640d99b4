"""Feeds all parsers of `fuzz_targets.py` with as many damaged texts as a time allows.

    python -m tests.property.fuzz --seconds 60 [--seed N] [--only WORD]

Hypothesis draws better texts and shrinks those that fail; this draws some twenty times as many. It
prints how many each parser read, and each failure once, with the text that repeats it: that text
becomes one of the target's in `fuzz_targets.py`. Exit code 1 when there was one.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import heapreplace
from typing import Any

from tests.property.fuzz_targets import TARGETS, Target
from tests.property.test_parsers import TOKENS

#: Texts of one target between two looks at the clock; edits of one text; a text's own length.
BATCH, EDITS_MAX, LENGTH_MAX = 100, 5, 20_000
#: Of the processor: a text that takes longer is a failure, too.
SECONDS_MAX = 2.0
_LONG = 100
_LETTERS = ("\u00e9", "\u00b2", "\u0661", "\u2028", "\U0001f600", "\0", "\x7f", "\x85")


def damaged(target: Target, rng: random.Random) -> str | bytes:
    """Return one of the target's texts with parts cut out, put in, doubled and changed."""
    seed = rng.choice(target.seeds)
    if isinstance(seed, bytes):
        data = bytearray(seed)
        for _ in range(rng.randint(1, EDITS_MAX)):
            _edit(data, rng, [token.encode() for token in _tokens(rng)])
            if data and rng.random() < 0.3:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(data[:LENGTH_MAX])
    letters = list(seed)
    for _ in range(rng.randint(1, EDITS_MAX)):
        _edit(letters, rng, _tokens(rng))
        if rng.random() < 0.3:
            letters.insert(rng.randint(0, len(letters)), rng.choice(_LETTERS))
        if not target.is_file and rng.random() < 0.05:
            letters.insert(rng.randint(0, len(letters)), chr(rng.randrange(0xD800, 0xE000)))
    return "".join(letters)[:LENGTH_MAX]


def _tokens(rng: random.Random) -> list[str]:
    token = rng.choice(TOKENS)
    return [token if len(token) < _LONG or rng.random() < 0.05 else token[:3]]


def _edit(text: Any, rng: random.Random, tokens: Sequence[str | bytes]) -> None:
    """Change a list of letters, or bytes, in one place; tokens are of the same type."""
    at, size = rng.randint(0, len(text)), rng.choice((0, 0, 1, 2, 8))
    if rng.random() < 0.2:
        text[at:at] = text[at : at + rng.randint(1, 40)]
    else:
        text[at : at + size] = rng.choice(tokens)


def failures(target: Target, rng: random.Random, count: int) -> Iterator[tuple[str, str | bytes]]:
    """Yield what went wrong, and the text, for each of so many texts that failed."""
    for _ in range(count):
        text = damaged(target, rng)
        began = time.perf_counter()
        what = failure(target, text)
        if not what and time.perf_counter() - began > SECONDS_MAX:
            used = time.process_time()  # a call costs as much as most texts
            failure(target, text)
            if time.process_time() - used > SECONDS_MAX:
                what = f"takes longer than {SECONDS_MAX:.0f} s"
        if what:
            yield what, text


def failure(target: Target, text: str | bytes) -> str:
    """Return what goes wrong with a text, "" for nothing."""
    try:
        target.call(text)
    except target.errors:
        return ""
    except Exception as error:  # noqa: BLE001 - whatever a parser does not document
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {last.filename}:{last.lineno}: {error}"[:300]
    return ""


def main() -> int:
    """Feed the parsers until the time is over; each gets as much of the processor."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    chosen = [each for each in TARGETS if given.only in each.name]
    rngs = [random.Random(f"{seed} {number}") for number in range(len(chosen))]
    #: The processor's seconds that each has had, and its number: whose turn is next comes first.
    turns = [(0.0, number) for number in range(len(chosen))]
    seen: dict[str, str] = {}
    read = Counter[str]()
    warnings.simplefilter("error")
    ends = time.monotonic() + given.seconds
    while time.monotonic() < ends:
        spent, number = turns[0]
        target, began = chosen[number], time.process_time()
        for what, text in failures(target, rngs[number], BATCH):
            place = f"{target.name}: {what.partition(': ')[0]}"
            if place not in seen:
                seen[place] = what
                print(f"FAILED {target.name}: {what}\n  {text[:2000]!r}", flush=True)
        read[target.name] += BATCH
        heapreplace(turns, (spent + time.process_time() - began, number))
    for name in sorted(read):
        print(f"{read[name]:>10}  {name}")
    print(f"{read.total()} texts, {len(seen)} failures, seed {seed}")
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main())
