"""A server that keeps what is posted to it, written by hand: nothing of what is tested is in it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class HttpSink:
    """`answers` are given in turn, the last one again and again."""

    answers: list[str] = field(default_factory=lambda: ["204 No Content"])
    delay_seconds: float = 0.0
    tls: ssl.SSLContext | None = None
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    port: int = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.requests.append((head[0], headers, body))
        await asyncio.sleep(self.delay_seconds)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        writer.write(f"HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[HttpSink]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()


@dataclass
class SmtpSink:
    """The least of RFC 5321 that a client needs; `rcpt` answers RCPT TO."""

    rcpt: str = "250 ok"
    mails: list[tuple[str, str, str]] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    port: int = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sender = to = ""

        def say(text: str) -> None:
            writer.write(f"{text}\r\n".encode())

        say("220 sink")
        while line := (await reader.readline()).decode().strip():
            verb = line.upper()
            if verb.startswith("EHLO"):
                say("250-sink\r\n250 AUTH PLAIN")
            elif verb.startswith("AUTH"):
                self.logins.append(line)
                say("235 ok")
            elif verb.startswith("MAIL"):
                sender = line
                say("250 ok")
            elif verb.startswith("RCPT"):
                to = line
                say(self.rcpt)
            elif verb == "DATA":
                say("354 go on")
                await writer.drain()
                text = (await reader.readuntil(b"\r\n.\r\n")).decode()
                self.mails.append((sender, to, text))
                say("250 taken")
            elif verb == "QUIT":
                say("221 bye")
                break
            else:
                say("250 ok")
            await writer.drain()
        writer.close()

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[SmtpSink]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
