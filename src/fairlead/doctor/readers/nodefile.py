"""Facts of one node from a file: the output of `sysctl -a`, with further `key = value` lines."""

from __future__ import annotations

TEXT_BYTES_MAX = 4 << 20


def parse_node_facts(text: str) -> dict[str, str]:
    """Return the facts; `net/ipv4/x` and `net.ipv4.x` are the same key, other lines are left."""
    facts: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and key.strip() and not key.lstrip().startswith("#"):
            facts[key.strip().replace("/", ".")] = value.strip()
    return facts
