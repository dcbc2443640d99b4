"""Runs a provider's command: JSON in, JSON out, bounded in time and size, never through a shell."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from fairlead.cloud.provider import CloudError, OutOfCapacity, RefusedByProvider

COMMAND_SECONDS_MAX = 60.0
OUTPUT_BYTES_MAX = 16 * 1024 * 1024
_ERROR_SHOWN_MAX = 200
#: Exit codes of sysexits.h with a meaning of their own: EX_TEMPFAIL, EX_UNAVAILABLE, EX_NOPERM.
EXIT_RETRY, EXIT_OUT_OF_CAPACITY, EXIT_REFUSED = 75, 69, 77


async def run_command(path: str, *arguments: str, request: Any = None) -> Any:
    """Return what a command answers to a request; CloudError by its exit code.

    Exit 0: the answer is the JSON on its output, None where there is none. 69: out of capacity.
    77: refused for good. Anything else: try again later.
    """
    body = b"" if request is None else msgspec.json.encode(request)
    try:
        process = await asyncio.create_subprocess_exec(
            path, *arguments,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        raise RefusedByProvider(f"{path} cannot be run: {error.strerror or error}") from error
    try:
        async with asyncio.timeout(COMMAND_SECONDS_MAX):
            output, errors = await process.communicate(body)
    except TimeoutError as error:
        raise CloudError(f"{path} gave no answer within {COMMAND_SECONDS_MAX:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = errors.decode(errors="replace").strip()[-_ERROR_SHOWN_MAX:]
        message = f"{path} {' '.join(arguments)}: {last or f'exit code {process.returncode}'}"
        kinds = {EXIT_OUT_OF_CAPACITY: OutOfCapacity, EXIT_REFUSED: RefusedByProvider}
        raise kinds.get(process.returncode, CloudError)(message)
    return _decoded(path, output)


def _decoded(path: str, output: bytes) -> Any:
    if not output.strip():
        return None
    if len(output) > OUTPUT_BYTES_MAX:
        raise CloudError(f"{path} answers more than {OUTPUT_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(output)
    except msgspec.DecodeError as error:
        raise CloudError(f"{path} answers no JSON: {error}") from error
