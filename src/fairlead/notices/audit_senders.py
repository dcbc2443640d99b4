"""Senders of audit records: to a file of JSON lines, by posts of such lines, and to syslog.

Syslog is RFC 5424, over TCP and TLS with counted octets (RFC 6587, RFC 5425). It has no answers:
what a receiver loses after it has accepted the bytes is not sent again. The others have: a file is
synced to the disk, and a post is answered.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import assert_never

import aiohttp

from fairlead.api.values.times import format_time
from fairlead.runtime.kept.audit import AuditRecord, audit_line
from fairlead.runtime.kept.audit_export import (
    AuditAddress,
    AuditSender,
    AuditTarget,
    TargetFailed,
    TargetScheme,
)

SEND_SECONDS_MAX = 20.0
#: Runs what blocks in a thread.
Runner = Callable[[Callable[[], object]], Awaitable[object]]
#: Facility "log audit" (13), severity "notice" (5): RFC 5424, 6.2.1.
_PRIORITY = 13 * 8 + 5
_TOKEN_FILE = "audit-token"  # noqa: S105 - the name of a file


def audit_target(address: AuditAddress, credentials: Path, runner: Runner) -> AuditTarget:
    """Return a target; of the directory `audit-token` is sent with posts, `ca.crt` is trusted.

    `runner` runs what blocks in a thread.
    """
    sender: AuditSender
    match address.scheme:
        case TargetScheme.FILE:
            sender = FileSender(Path(address.path), runner)
        case TargetScheme.HTTP | TargetScheme.HTTPS:
            sender = PostSender(address, credentials)
        case TargetScheme.TCP | TargetScheme.TLS | TargetScheme.UDP:
            sender = SyslogSender(address, credentials)
        case _:
            assert_never(address.scheme)
    return AuditTarget(address, sender)


class FileSender:
    """Appends JSON lines to a file that its owner alone can read."""

    def __init__(self, path: Path, runner: Runner) -> None:
        self._path = path
        self._runner = runner

    async def send(self, records: Sequence[AuditRecord]) -> None:
        """See `AuditSender`. A line that a kill cut off stays, and is written again behind it."""
        try:
            await self._runner(partial(self._append, records))
        except OSError as error:
            raise TargetFailed(f"{error.strerror or error}") from error

    def _append(self, records: Sequence[AuditRecord]) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(self._path, flags, 0o600)
        try:
            size = os.fstat(file).st_size
            is_cut = size > 0 and os.pread(file, 1, size - 1) != b"\n"
            text = b"".join(audit_line(each) + b"\n" for each in records)
            left = memoryview(b"\n" + text if is_cut else text)
            while left:
                left = left[os.write(file, left) :]
            os.fsync(file)
        finally:
            os.close(file)


class PostSender:
    """Posts JSON lines; any answer but 2xx is a failure. It follows no redirect."""

    def __init__(self, address: AuditAddress, credentials: Path) -> None:
        self._address = address
        self._credentials = credentials

    async def send(self, records: Sequence[AuditRecord]) -> None:
        """See `AuditSender`."""
        headers = {"Content-Type": "application/x-ndjson"}
        with suppress(OSError):
            token = (self._credentials / _TOKEN_FILE).read_text().strip()
            headers["Authorization"] = f"Bearer {token}"
        body = b"".join(audit_line(each) + b"\n" for each in records)
        timeout = aiohttp.ClientTimeout(total=SEND_SECONDS_MAX)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.post(
                    self._address.url, data=body, headers=headers, allow_redirects=False,
                    ssl=_trust(self._credentials),
                ) as answer,
            ):  # fmt: skip
                if not 200 <= answer.status < 300:
                    raise TargetFailed(f"it answered {answer.status}")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise TargetFailed(_words(error)) from error


class SyslogSender:
    """Sends one message for each record, over one connection for all of a call."""

    def __init__(self, address: AuditAddress, credentials: Path) -> None:
        self._address = address
        self._credentials = credentials

    async def send(self, records: Sequence[AuditRecord]) -> None:
        """See `AuditSender`; that the bytes were sent is all that is known."""
        messages = [syslog_message(each) for each in records]
        try:
            async with asyncio.timeout(SEND_SECONDS_MAX):
                if self._address.scheme is TargetScheme.UDP:
                    await self._send_datagrams(messages)
                else:
                    await self._send_stream(messages)
        except (OSError, TimeoutError) as error:
            raise TargetFailed(_words(error)) from error

    async def _send_stream(self, messages: Sequence[bytes]) -> None:
        is_tls = self._address.scheme is TargetScheme.TLS
        _, writer = await asyncio.open_connection(
            self._address.host, self._address.port,
            ssl=_trust(self._credentials) if is_tls else None,
        )  # fmt: skip
        try:
            for each in messages:
                writer.write(b"%d %s" % (len(each), each))
            await writer.drain()
        finally:
            writer.close()
            await writer.wait_closed()

    async def _send_datagrams(self, messages: Sequence[bytes]) -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=(self._address.host, self._address.port)
        )
        try:
            for each in messages:
                transport.sendto(each)
        finally:
            transport.close()


def syslog_message(record: AuditRecord) -> bytes:
    """Return a record as a message of RFC 5424; its text is the JSON line."""
    at = format_time(record.at_ms / 1000)
    head = f"<{_PRIORITY}>1 {at} {socket.gethostname() or '-'} fairlead - audit - "
    return head.encode() + audit_line(record)


def _trust(credentials: Path) -> ssl.SSLContext:
    context = ssl.create_default_context()
    with suppress(FileNotFoundError):
        context.load_verify_locations(credentials / "ca.crt")
    return context


def _words(error: Exception) -> str:
    """Return what went wrong, without the path of a URL."""
    if isinstance(error, TimeoutError):
        return f"no answer within {SEND_SECONDS_MAX:g} s"
    text = getattr(error, "strerror", None) or type(error).__name__
    return str(text)
