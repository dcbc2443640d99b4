"""Finds the ends of JSON strings and values in memory, compiled by numba.

Strings are scanned eight bytes at a time. What is accepted is a subset of JSON: no white space
between tokens, ASCII only, integers only, `\\u` escapes of Latin-1 only. Everything else gives -1,
and the caller hands the line to a complete decoder. Places are addresses, so that a call costs no
more than a jump. The text must end in a line feed, which no token accepts, and `SLACK_BYTES` of
`files` must be readable behind it.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])
U = np.uint64
ONES, HIGH = U(0x0101010101010101), U(0x8080808080808080)
QUOTES, SLASHES, SPACES = U(0x2222222222222222), U(0x5C5C5C5C5C5C5C5C), U(0x2020202020202020)
DEPTH_MAX = 60
_ONE = U(1)
_NULL, _TRUE, _FALSE = (U(int.from_bytes(each, "little")) for each in (b"null", b"true", b"false"))
_FOUR, _FIVE = U(0xFFFFFFFF), U(0xFFFFFFFFFF)
_numba: Any = importlib.import_module("numba")
_extending: Any = importlib.import_module("numba.extending")
_ir: Any = importlib.import_module("llvmlite.ir")


def _cache() -> bool:
    """Choose where machine code is kept; False when nothing can be written there.

    The name of the directory has a digest of all sources of the scan: numba itself notices changes
    of the file of a function only, not of what the function calls.
    """
    digest = hashlib.sha256()
    for each in sorted(Path(__file__).parent.glob("*_scan.py")):
        digest.update(each.read_bytes())
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = base / "fairlead" / f"audit-scan-{digest.hexdigest()[:16]}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    _numba.config.CACHE_DIR = str(directory)
    return os.access(directory, os.W_OK)


_has_cache = _cache()


def compiled(function: Function) -> Function:
    """Compile a function when it is first called; the machine code is kept on disk."""
    return _numba.njit(cache=_has_cache, nogil=True, _nrt=False, error_model="numpy")(function)


def inner(function: Function) -> Function:
    """Compile a function that only compiled ones call."""
    return _numba.njit(
        cache=_has_cache, nogil=True, _nrt=False, error_model="numpy",
        no_cpython_wrapper=True, no_cfunc_wrapper=True,
    )(function)  # fmt: skip


def _load(bits: int, result: Any) -> Any:
    def typed(_context: Any, _address: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], _ir.IntType(bits).as_pointer())
            value = builder.load(pointer)
            value.align = 1
            return builder.zext(value, _ir.IntType(64)) if bits < 64 else value

        return result(_numba.types.int64), generate

    return _extending.intrinsic(typed)


def _store(_context: Any, _address: Any, _value: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], _ir.IntType(64).as_pointer()))
        return context.get_dummy_value()

    types = _numba.types
    return types.void(types.int64, types.int64), generate


def _same(_context: Any, _word: Any) -> Any:
    def generate(_context: Any, _builder: Any, _signature: Any, arguments: Any) -> Any:
        return arguments[0]

    types = _numba.types
    return types.int64(types.uint64), generate


def _zeros(_context: Any, _word: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], _ir.Constant(_ir.IntType(1), 1))

    types = _numba.types
    return types.int64(types.uint64), generate


def _prefetch(_context: Any, _address: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        byte, number = _ir.IntType(8).as_pointer(), _ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], _ir.FunctionType(_ir.VoidType(), [byte, *[number] * 3])
        )
        settings = [_ir.Constant(number, each) for each in (0, 3, 1)]  # to read, to keep, data
        builder.call(function, [builder.inttoptr(arguments[0], byte), *settings])
        return context.get_dummy_value()

    types = _numba.types
    return types.void(types.int64), generate


#: The byte at an address; the word that begins there; a signed number there, and its assignment.
byte_at: Callable[[int], int] = _load(8, _numba.types.int64)
word_at: Callable[[int], np.uint64] = _load(64, _numba.types.uint64)
number_at: Callable[[int], int] = _load(64, _numba.types.int64)
put: Callable[[int, int], None] = _extending.intrinsic(_store)
#: Have what lies at an address read in advance.
prefetch: Callable[[int], None] = _extending.intrinsic(_prefetch)
#: A word as a signed number of the same bits.
signed: Callable[[np.uint64], int] = _extending.intrinsic(_same)
#: The zero bits below the lowest set bit of a word that is not 0.
zeros_below: Callable[[np.uint64], int] = _extending.intrinsic(_zeros)


def word(text: bytes) -> np.uint64:
    """Return up to eight bytes as the word that a buffer has at their place."""
    return U(int.from_bytes(text, "little"))


@inner
def plain_end(at: int) -> int:
    """Return the index of the first byte from `at` that is a quote, a backslash or no text."""
    while True:
        each = word_at(at)
        quotes, slashes = each ^ QUOTES, each ^ SLASHES
        marks = ((quotes - ONES) & ~quotes) | ((slashes - ONES) & ~slashes)
        marks = (marks | ((each - SPACES) & ~each) | each) & HIGH
        if marks:
            return at + (zeros_below(marks) >> 3)
        at += 8


@inner
def _is_hex(byte: int) -> bool:
    return 48 <= byte <= 57 or 97 <= byte <= 102 or 65 <= byte <= 70


@inner
def string_end(at: int) -> int:
    """Return the index behind the closing quote of the string whose text begins at `at`; -1."""
    while True:
        at = plain_end(at)
        if byte_at(at) == 34:
            return at + 1
        if byte_at(at) != 92:
            return -1
        kind = byte_at(at + 1)
        if kind == 34 or kind == 92 or kind == 47 or kind == 110 or kind == 116 or kind == 114:
            at += 2
        elif (
            kind == 117 and byte_at(at + 2) == 48 and byte_at(at + 3) == 48
            and _is_hex(byte_at(at + 4)) and _is_hex(byte_at(at + 5))
        ):  # fmt: skip
            at += 6
        else:
            return -1


@inner
def _key_end(at: int) -> int:
    """Return the index behind the colon of the key whose quote is at `at`; -1."""
    if byte_at(at) != 34:
        return -1
    at = string_end(at + 1)
    if at < 0 or byte_at(at) != 58:
        return -1
    return at + 1


@inner
def _number_end(at: int) -> int:
    if byte_at(at) == 45:
        at += 1
    first = at
    while 48 <= byte_at(at) <= 57:
        at += 1
    if at == first or (byte_at(first) == 48 and at > first + 1):
        return -1
    return at


@inner
def _scalar_end(at: int) -> int:
    """Return the index behind a value without parts; -1."""
    byte = byte_at(at)
    if byte == 34:
        return string_end(at + 1)
    if byte == 45 or 48 <= byte <= 57:
        return _number_end(at)
    if word_at(at) & _FOUR == _NULL or word_at(at) & _FOUR == _TRUE:
        return at + 4
    if word_at(at) & _FIVE == _FALSE:
        return at + 5
    return -1


@inner
def value_end(at: int) -> int:
    """Return the index behind the value that begins at `at`; -1."""
    depth = 0
    objects = U(0)  # bit k is set when the container at depth k is an object
    while True:
        byte = byte_at(at)
        if byte == 123 and byte_at(at + 1) != 125:
            depth += 1
            objects = objects | (_ONE << U(depth))
            at = _key_end(at + 1)
            if at < 0 or depth >= DEPTH_MAX:
                return -1
            continue
        if byte == 91 and byte_at(at + 1) != 93:
            depth += 1
            objects = objects & ~(_ONE << U(depth))
            at += 1
            if depth >= DEPTH_MAX:
                return -1
            continue
        at = at + 2 if byte == 123 or byte == 91 else _scalar_end(at)
        while at >= 0 and depth > 0:
            is_object = (objects >> U(depth)) & _ONE != U(0)
            if byte_at(at) == (125 if is_object else 93):
                at += 1
                depth -= 1
                continue
            if byte_at(at) != 44:
                return -1
            at = _key_end(at + 1) if is_object else at + 1
            break
        if at < 0 or depth == 0:
            return at
