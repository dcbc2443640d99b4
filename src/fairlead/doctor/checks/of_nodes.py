"""What several checks ask of the facts and the configuration of nodes."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.doctor.facts import ClusterFacts, Source


def configs(facts: ClusterFacts) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield (node, configuration of its kubelet); NotSeen."""
    if not facts.kubelet_configs:
        raise facts.missing(Source.KUBELET_CONFIG)
    for node, config in facts.kubelet_configs.items():
        yield node, dict(config)


def node_texts(facts: ClusterFacts, key: str) -> Iterator[tuple[str, str]]:
    """Yield (node, value) of a key; NotSeen when no node has it."""
    if not facts.node_facts:
        raise facts.missing(Source.NODE)
    found = {node: values[key] for node, values in facts.node_facts.items() if values.get(key)}
    if not found:
        raise facts.missing(Source.NODE, f"no node gives {key}")
    yield from found.items()


def node_number(facts: ClusterFacts, key: str) -> Iterator[tuple[str, int]]:
    """Yield (node, value) of a key that is a whole number; NotSeen when no node has one."""
    for node, _, value in sysctl(facts, key):
        yield node, value


def sysctl(facts: ClusterFacts, *keys: str) -> Iterator[tuple[str, str, int]]:
    """Yield (node, key, value) of the keys that are whole numbers; NotSeen when no node has one."""
    if not facts.node_facts:
        raise facts.missing(Source.NODE)
    found = False
    for node, values in facts.node_facts.items():
        for key in keys:
            text = values.get(key, "")
            if text.isdecimal():
                found = True
                yield node, key, int(text)
    if not found:
        raise facts.missing(Source.NODE, f"no node gives {keys[0]}")
