"""Lists of hosts as Slurm writes them: n[01-03,7],login (pure).

Source: slurm.schedmd.com, `scontrol show hostnames`; `src/common/hostlist.c`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

HOSTS_MAX = 65_536
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")


def expand_hosts(text: str) -> tuple[str, ...]:
    """Return the hosts in the order of the list; ValueError says what is wrong with it."""
    hosts: list[str] = []
    for part in _split(text):
        for host in _expand(part):
            if not _HOST.fullmatch(host):
                raise ValueError(f"'{host}' is not the name of a host")
            hosts.append(host)
            if len(hosts) > HOSTS_MAX:
                raise ValueError(f"there are more than {HOSTS_MAX:,} hosts")
    return tuple(hosts)


def _split(text: str) -> Iterator[str]:
    """Yield the parts between the commas outside of brackets."""
    depth = start = 0
    for at, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            raise ValueError(f"the brackets of '{text}' do not match")
        if char == "," and not depth:
            yield text[start:at].strip()
            start = at + 1
    if depth:
        raise ValueError(f"the brackets of '{text}' do not match")
    yield text[start:].strip()


def _expand(part: str) -> Iterator[str]:
    """Yield the hosts of a part, the last brackets counting fastest."""
    prefix, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    listed, _, suffix = rest.partition("]")
    for number in _numbers(listed):
        for tail in _expand(suffix):
            yield f"{prefix}{number}{tail}"


def _numbers(listed: str) -> Iterator[str]:
    for piece in listed.split(","):
        match = _RANGE.fullmatch(piece.strip())
        if match is None:
            raise ValueError(f"'[{listed}]' is not a list of numbers such as [0-3,7]")
        first, last = match[1], match[2] or match[1]
        if not 0 <= int(last) - int(first) < HOSTS_MAX:
            raise ValueError(f"'{piece}' is not a range of at most {HOSTS_MAX:,} numbers")
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{len(first)}d}"
