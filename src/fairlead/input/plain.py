"""Files of others in YAML or JSON as plain values, however deep, long or repeated they are.

What is built of a file costs no more than the file: depth, values and aliases are bounded before
anything recurses. YAML is read by `yamlmarks.py`, which also reads what people write for us.
"""

from __future__ import annotations

import json
from typing import Any, cast

from fairlead.input.yamlmarks import DEPTH_MAX, YamlTooLarge, read_documents, to_plain


class UnreadableText(ValueError):
    """The text cannot be read; the message names the line of each mistake."""


def yaml_documents(text: str) -> list[Any]:
    """Return the documents of a text, empty ones left out; Unreadable."""
    try:
        documents, mistakes = read_documents(text)
    except YamlTooLarge as error:
        raise UnreadableText(str(error)) from error
    if mistakes:
        raise UnreadableText("; ".join(
            f"line {each.mark.line}, column {each.mark.column}: {each.message}"
            + (f" ({each.help})" if each.help else "")
            for each in mistakes[:3]
        ))  # fmt: skip
    return [to_plain(each) for each in documents]


def yaml_document(text: str) -> Any:
    """Return the only document of a text, None when it is empty; Unreadable."""
    documents = yaml_documents(text)
    if len(documents) > 1:
        raise UnreadableText("the file is one document, not several")
    return documents[0] if documents else None


def json_document(text: str | bytes) -> Any:
    """Return the value of a JSON text; Unreadable."""
    too_deep = UnreadableText(f"nested more than {DEPTH_MAX} levels deep")
    try:
        value: Any = json.loads(text)
    except RecursionError as error:
        raise too_deep from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise UnreadableText(f"{place}: not JSON: {error.msg}") from error
    except ValueError as error:  # bytes that are no text, numbers of thousands of digits
        raise UnreadableText(f"not JSON: {error}") from error
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        level = [inner for each in level for inner in _inner(each)]
        if not level:
            return value
    raise too_deep


def _inner(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value).values())
    return cast("list[Any]", value) if isinstance(value, list) else []
