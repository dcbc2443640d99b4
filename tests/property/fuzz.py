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
from collections.abc import Iterator

from tests.property.fuzz_targets import TARGETS, Target
from tests.property.test_parsers import TOKENS

#: Texts of one target between two looks at the clock; edits of one text; a text's own length.
BATCH, EDITS_MAX, LENGTH_MAX = 200, 5, 20_000
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


def _edit(text: list[str] | bytearray, rng: random.Random, tokens: list[str] | list[bytes]) -> None:
    at, size = rng.randint(0, len(text)), rng.choice((0, 0, 1, 2, 8))
    if rng.random() < 0.2:
        text[at:at] = text[at : at + rng.randint(1, 40)]  # type: ignore[assignment]
    else:
        text[at : at + size] = rng.choice(tokens)  # type: ignore[assignment,call-overload]


def failures(target: Target, rng: random.Random, count: int) -> Iterator[tuple[str, str | bytes]]:
    """Yield what went wrong, and the text, for each of so many texts that failed."""
    for _ in range(count):
        text = damaged(target, rng)
        began = time.process_time()
        try:
            target.call(text)
        except target.errors:
            pass
        except Exception as error:  # noqa: BLE001 - whatever a parser does not document
            last = traceback.extract_tb(error.__traceback__)[-1]
            yield f"{type(error).__name__} at {last.filename}:{last.lineno}: {error}"[:300], text
        if time.process_time() - began > SECONDS_MAX:
            yield f"takes longer than {SECONDS_MAX:.0f} s", text


def main() -> int:
    """Feed the parsers in turns until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    chosen = [each for each in TARGETS if given.only in each.name]
    rngs = [random.Random(f"{seed} {number}") for number in range(len(chosen))]
    seen: dict[str, str] = {}
    read, spent = Counter[str](), Counter[str]()
    warnings.simplefilter("error")
    ends = time.monotonic() + given.seconds
    while time.monotonic() < ends:
        for target, rng in zip(chosen, rngs, strict=True):
            began = time.process_time()
            count = BATCH if spent[target.name] < 2 * min(spent.values(), default=0) + 1 else 5
            for what, text in failures(target, rng, count):
                key = f"{target.name}: {what}".partition(": ")[0] + what.partition(": ")[0]
                if key not in seen:
                    seen[key] = what
                    print(f"FAILED {target.name}: {what}\n  {text[:2000]!r}", flush=True)
            read[target.name] += count
            spent[target.name] += time.process_time() - began
    for name in sorted(read):
        print(f"{read[name]:>10}  {name}")
    print(f"{read.total()} texts, {len(seen)} failures, seed {seed}")
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main())
