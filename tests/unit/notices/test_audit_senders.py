"""Audit records leave as lines of a file, posts and syslog messages, byte for byte."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from tests.patience import PATIENCE_SECONDS
from tests.unit.history.test_audit import chain, faults

from fairlead.notices import audit_target
from fairlead.runtime.kept.audit import AuditRecord, audit_line, record_of_line
from fairlead.runtime.kept.audit_export import TargetFailed, parse_target


def test_a_file_is_private_and_a_line_that_a_kill_cut_off_is_written_again(tmp_path: Path) -> None:
    file, records = tmp_path / "audit.jsonl", chain(3)
    sender = audit_target(parse_target(f"file://{file}"), tmp_path, asyncio.to_thread).sender
    asyncio.run(sender.send(records[:1]))
    assert file.stat().st_mode & 0o777 == 0o600
    with file.open("ab") as torn:
        torn.write(audit_line(records[1])[:40])
    asyncio.run(sender.send(records[1:]))
    lines = file.read_bytes().splitlines()
    assert len(lines) == 4
    whole = [record_of_line(line) for line in (lines[0], *lines[2:])]
    assert whole == records
    assert faults(whole) == []


def test_a_link_that_another_user_laid_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    sender = audit_target(
        parse_target(f"file://{tmp_path}/link"), tmp_path, asyncio.to_thread
    ).sender
    with pytest.raises(TargetFailed, match="symbolic links"):
        asyncio.run(sender.send(chain(1)))
    assert (tmp_path / "target").read_text() == "mine"


def _posted(
    handler: Callable[[web.Request], Awaitable[web.Response]], credentials: Path,
    records: list[AuditRecord],
) -> None:  # fmt: skip
    async def main() -> None:
        app = web.Application()
        app.router.add_post("/hook", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        try:
            address = parse_target(f"http://127.0.0.1:{port}/hook")
            await audit_target(address, credentials, asyncio.to_thread).sender.send(records)
        finally:
            await runner.cleanup()

    asyncio.run(main())


def test_posts_have_the_lines_and_the_token_and_only_a_good_answer_counts(tmp_path: Path) -> None:
    got: list[tuple[bytes, str]] = []

    async def take(request: web.Request) -> web.Response:
        got.append((await request.read(), request.headers["Authorization"]))
        return web.Response(status=204)

    async def redirect(_: web.Request) -> web.Response:
        raise web.HTTPFound("/elsewhere")

    (tmp_path / "audit-token").write_text("s3cret\n")
    _posted(take, tmp_path, chain(2))
    [(body, token)] = got
    assert [record_of_line(line) for line in body.splitlines()] == chain(2)
    assert token == "Bearer s3cret"
    with pytest.raises(TargetFailed, match="it answered 302"):
        _posted(redirect, tmp_path, chain(1))
    nowhere = audit_target(
        parse_target("http://127.0.0.1:9/hook"), tmp_path, asyncio.to_thread
    ).sender
    with pytest.raises(TargetFailed):
        asyncio.run(nowhere.send(chain(1)))


def test_syslog_over_tcp_counts_octets_and_over_udp_is_a_datagram_each(tmp_path: Path) -> None:
    async def over_tcp() -> bytes:
        got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            got.set_result(await reader.read())
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        await audit_target(
            parse_target(f"tcp://127.0.0.1:{port}"), tmp_path, asyncio.to_thread
        ).sender.send(chain(2))
        text = await got
        server.close()
        return text

    rest, messages = asyncio.run(over_tcp()), list[bytes]()
    while rest:
        length, _, rest = rest.partition(b" ")
        messages.append(rest[: int(length)])
        rest = rest[int(length) :]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(PATIENCE_SECONDS)
        address = parse_target(f"udp://127.0.0.1:{receiver.getsockname()[1]}")
        asyncio.run(audit_target(address, tmp_path, asyncio.to_thread).sender.send(chain(2)))
        assert [receiver.recv(65_536) for _ in range(2)] == messages
    for message, record in zip(messages, chain(2), strict=True):
        head, _, text = message.partition(b"{")
        assert head.startswith(b"<109>1 2026-01-01T00:00:0")
        assert head.endswith(b" fairlead - audit - ")
        assert json.loads(b"{" + text)["digest"] == record.digest
