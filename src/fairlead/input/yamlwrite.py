"""YAML that reads back as what it was, by our reader and by those of YAML 1.1 alike (pure).

A text is quoted wherever either of them would take it for a number, a boolean or null; texts of
several lines, such as scripts, stand as blocks.
"""

from __future__ import annotations

from typing import Any

import yaml

from fairlead.input.yamlmarks import plain_scalar
from fairlead.terminal import escaped


class _Dumper(yaml.SafeDumper):
    """Writes texts so that no parser reads them as another type, and never uses aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal values out each time."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None
    if not isinstance(plain_scalar(text), str) or not text.isprintable():
        style = '"'
    if "\n" in text.rstrip("\n") and all(line.isprintable() for line in text.split("\n")):
        style = "|"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(value: Any) -> str:
    """Return plain values as YAML, keys in their order."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True,
                          default_flow_style=False, width=100)  # fmt: skip
    # What is not printable stands in double quotes, where YAML has the same escapes.
    return escaped(text)
