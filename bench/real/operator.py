"""`fairlead controller` as a process of its own, and what it used."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from bench.processes import cpu_seconds, resident_bytes
from bench.real.ground import SECONDS_MAX

LOOK_SECONDS = 0.01


@dataclass
class Operator:
    """A running controller process; `start_seconds` is from its start until it was ready."""

    process: subprocess.Popen[bytes]
    log: Path
    port: int
    start_seconds: float

    @property
    def pid(self) -> int:
        return self.process.pid

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)

    def resident_bytes(self) -> int:
        return resident_bytes(self.pid)

    async def metrics(self) -> dict[str, float]:
        """Return its metrics by series, as Prometheus would read them."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.port}/metrics") as answer,
        ):
            lines = (await answer.text()).splitlines()
        rows = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {series: float(value) for series, _, value in rows}


@contextlib.asynccontextmanager
async def operator(
    kubeconfig: Path, *, binding: str = "direct", tag: str = "operator",
    settings: Path | None = None,
) -> AsyncGenerator[Operator]:  # fmt: skip
    """Run one until the end of the block; it leads and is ready when the block begins.

    `settings`: the file of its settings.
    """
    log = kubeconfig.parent / f"{tag}-{time.monotonic_ns()}.log"
    begun = time.perf_counter()
    process = _start(kubeconfig, binding, log, settings)
    try:
        async with asyncio.timeout(SECONDS_MAX):
            port = await _port(process, log)
            await _ready(port)
        yield Operator(process, log, port, time.perf_counter() - begun)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, 20)
        if process.poll() is None:
            process.kill()
            process.wait()


def _start(
    kubeconfig: Path, binding: str, log: Path, settings: Path | None
) -> subprocess.Popen[bytes]:
    more = [] if settings is None else ["--settings", str(settings)]
    with log.open("wb") as stream:
        return subprocess.Popen(
            [
                sys.executable, "-m", "fairlead", "controller", "--kubeconfig", str(kubeconfig),
                "-n", "default", "--listen", "127.0.0.1:0", "--binding", binding, *more,
            ],
            stderr=stream, stdout=subprocess.DEVNULL, env={**os.environ},
        )  # fmt: skip


async def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    while True:
        for line in _lines(log):
            with contextlib.suppress(json.JSONDecodeError):  # a line that is being written
                entry = json.loads(line)
                if entry.get("message") == "Started":
                    return int(entry["port"])
        assert process.poll() is None, _lines(log)
        await asyncio.sleep(LOOK_SECONDS)


def _lines(log: Path) -> list[str]:
    return log.read_text().splitlines()


async def _ready(port: int) -> None:
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                text = await answer.text()
                # Before the lease is taken a replica is ready, too: to take over.
                if answer.status == 200 and "jobs" in text:
                    return
            await asyncio.sleep(LOOK_SECONDS)
