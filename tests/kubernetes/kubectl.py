"""Running the real kubectl against either server, and making its outputs comparable."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from tests.kubernetes.controlplane import PATIENCE_SECONDS

_PATTERNS = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "<uid>"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "<time>"),
    (re.compile(r'("?resourceVersion"?|Resource Version): *"?\d+"?'), "resourceVersion: <n>"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ \+0000"), "<time>"),
    (re.compile(r"(Creation Timestamp|Start Time|CreationTimestamp):( +).*"), r"\1: <date>"),
    (re.compile(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}"), "<date>"),
    (re.compile(r"\b(\d+[dhms])+( ago)?\b|<(unknown|invalid)>"), "<age>"),
    (re.compile(r"https?://\S+:\d+"), "<server>"),
    (re.compile(r"/tmp/\S+"), "<file>"),
    (re.compile(r"generation: \d+"), "generation: <n>"),
)


@dataclass(frozen=True, slots=True)
class Said:
    """What one call printed."""

    code: int
    out: str
    err: str

    def normal(self) -> tuple[int, list[str], list[str]]:
        """Code and lines, with ages, ids, addresses and column widths taken out."""
        return self.code, _lines(self.out), _lines(self.err)


def _lines(text: str) -> list[str]:
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


@dataclass(frozen=True, slots=True)
class Kubectl:
    """The binary, with a kubeconfig and a home directory of the test's own."""

    binary: Path
    home: Path
    kubeconfig: Path

    async def __call__(self, *args: str, stdin: Any = None, editor: str = "false") -> Said:
        """Run it to its end; a body goes to its standard input as JSON."""
        text = b"" if stdin is None else msgspec.json.encode(stdin)
        environment = {
            "PATH": "/usr/bin:/bin", "HOME": str(self.home), "KUBECONFIG": str(self.kubeconfig),
            "KUBE_EDITOR": editor,
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            str(self.binary), *args, env=environment, stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                out, err = await process.communicate(text)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise
        return Said(process.returncode or 0, out.decode(), err.decode())
