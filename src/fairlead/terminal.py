"""All text for people passes here: to stdout, to stderr, into log lines and into pages.

Names, messages, annotations and files are written by others, who may have put escape sequences in
them: a terminal that obeys these changes its title, its clipboard or what it shows. So no text
reaches a stream as it is. Characters that are not printable are shown as Python writes them in a
string: `\\x1b`, `\\u202e`. Our own colours are added after that. The output of programs has another
way: `cli/formats/program_output.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress

TYPE_CHECKING = False  # as typing has it, which takes long to import
if TYPE_CHECKING:
    from typing import TextIO


class OutputLost(Exception):
    """Standard output takes no more; the message says why."""


def escaped(text: str) -> str:
    """Return the text with escapes for all that is not printable, but for line feeds.

    Not printable are control characters, those that change the direction of writing, invisible
    ones, separators of lines, and unpaired surrogates: what `str.isprintable` says.
    """
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def json_escaped(text: str) -> str:
    """Return the text, which is JSON, with escapes of JSON for all that is not printable."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _json_escape(c) for c in text)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


def one_line(text: str) -> str:
    """Return the text with escapes for line feeds as well."""
    return escaped(text).replace("\n", r"\n")


def printable(text: str, length_max: int = 120) -> str:
    """Return the start of a text that may be of anybody, on one line."""
    return one_line(text[:length_max])


def joined(lines: Iterable[str]) -> str:
    """Return the lines as a text. None of them can begin another one."""
    return "".join(f"{one_line(line)}\n" for line in lines)


def say(text: str, style: Callable[[str], str] = str) -> None:
    """Write text to stdout at once; `style` adds colours to what is printable. OutputLost."""
    _write(sys.stdout, style(escaped(text)))


def say_as_is(text: str) -> None:
    """Write text to stdout at once, with control characters that the user's own format has. What
    comes from others must be escaped in it. OutputLost.
    """
    _write(sys.stdout, text)


def tell(text: str) -> None:
    """Write a line to stderr at once. A stderr that takes no more is ignored."""
    with suppress(OutputLost):
        _write(sys.stderr, f"{escaped(text)}\n")


def redraw(line: str, *, is_last: bool) -> None:
    """Write a line over the one before it on stderr, which is a terminal."""
    _write(sys.stderr, f"\r{one_line(line)}" + ("\n" if is_last else ""))


def is_terminal() -> bool:
    """Return True when stdout is a terminal."""
    return sys.stdout.isatty()


def can_redraw() -> bool:
    """Return True when stderr is a terminal."""
    return sys.stderr.isatty()


def _write(stream: TextIO, text: str) -> None:
    """Write and flush; what the stream's encoding lacks is escaped. OutputLost, BrokenPipeError."""
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError:
            encoding = stream.encoding
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputLost(error.strerror or str(error)) from error
