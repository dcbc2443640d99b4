"""Runs a provider's command: JSON in, JSON out, bounded in time and size, never through a shell."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from fairlead.cloud.provider import CloudError, OutOfCapacity, RefusedByProvider
from fairlead.terminal import printable

COMMAND_SECONDS_MAX = 60.0
OUTPUT_BYTES_MAX = 16 * 1024 * 1024
_ERROR_SHOWN_MAX = 200
_CHUNK_BYTES = 64 * 1024
#: How long to wait for a command that was killed; what it started may have left its group.
_KILLED_SECONDS_MAX = 2.0
#: Exit codes of sysexits.h with a meaning of their own: EX_TEMPFAIL, EX_UNAVAILABLE, EX_NOPERM.
EXIT_RETRY, EXIT_OUT_OF_CAPACITY, EXIT_REFUSED = 75, 69, 77


#: What commands inherit from this program's environment, besides what their pool names. Nothing
#: else: it may hold secrets, such as the password of the database.
INHERITED = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
    "http_proxy", "https_proxy", "no_proxy", "all_proxy",
)  # fmt: skip


async def run_command(
    path: str, *arguments: str, request: Any = None, variables: Sequence[str] = ()
) -> Any:
    """Return what a command answers to a request; CloudError by its exit code.

    Exit 0: the answer is the JSON on its output, None where there is none. 69: out of capacity.
    77: refused for good. Anything else: try again later. A command that takes too long or writes
    too much is killed, with the processes that it started. It inherits `INHERITED` of this
    program's environment, and the further variables whose names are given.
    """
    environ = os.environ
    body = b"" if request is None else msgspec.json.encode(request)
    try:
        process = await asyncio.create_subprocess_exec(
            path, *arguments,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, start_new_session=True,
            env={name: environ[name] for name in (*INHERITED, *variables) if name in environ},
        )  # fmt: skip
    except OSError as error:
        raise RefusedByProvider(f"{path} cannot be run: {error.strerror or error}") from error
    except ValueError as error:  # a NUL in it
        raise RefusedByProvider(f"{path!r} cannot be run: {error}") from error
    try:
        async with asyncio.timeout(COMMAND_SECONDS_MAX):
            output, errors = await _talk(process, body)
    except TimeoutError as error:
        await _end(process)
        raise CloudError(f"{path} gave no answer within {COMMAND_SECONDS_MAX:g} s") from error
    except asyncio.CancelledError:
        await _end(process)
        raise
    if len(output) > OUTPUT_BYTES_MAX:
        raise CloudError(f"{path} answers more than {OUTPUT_BYTES_MAX} bytes")
    if process.returncode:
        last = printable(" ".join(errors.decode(errors="replace").split()), _ERROR_SHOWN_MAX)
        message = f"{path} {' '.join(arguments)}: {last or f'exit code {process.returncode}'}"
        kinds = {EXIT_OUT_OF_CAPACITY: OutOfCapacity, EXIT_REFUSED: RefusedByProvider}
        raise kinds.get(process.returncode, CloudError)(message)
    return _decoded(path, output)


async def _talk(process: asyncio.subprocess.Process, body: bytes) -> tuple[bytes, bytes]:
    """Return the output, at least what is too much of it, and the end of the error output."""
    assert process.stdin is not None
    assert process.stderr is not None
    if not process.stdin.is_closing():  # else it has ended without having read anything
        process.stdin.write(body)
        process.stdin.close()
    async with asyncio.TaskGroup() as group:
        output = group.create_task(_output(process))
        errors = group.create_task(_tail(process.stderr))
    await process.wait()
    return output.result(), errors.result()


async def _output(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    output = bytearray()
    while chunk := await process.stdout.read(_CHUNK_BYTES):
        if len(output) <= OUTPUT_BYTES_MAX:
            output += chunk
        else:
            _kill(process)
    return bytes(output)


async def _tail(stream: asyncio.StreamReader) -> bytes:
    last = b""
    while chunk := await stream.read(_CHUNK_BYTES):
        last = (last + chunk)[-_ERROR_SHOWN_MAX:]
    return last


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the command and its group, whose leader it is."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the command and wait for its end, which is seen once its output is read."""
    _kill(process)
    with suppress(TimeoutError):
        async with asyncio.timeout(_KILLED_SECONDS_MAX):
            for stream in (process.stdout, process.stderr):
                while stream is not None and await stream.read(_CHUNK_BYTES):
                    pass
            await process.wait()


def _decoded(path: str, output: bytes) -> Any:
    if not output.strip():
        return None
    try:
        return msgspec.json.decode(output)
    except (ValueError, RecursionError) as error:
        raise CloudError(f"{path} answers no JSON: {error}") from error
