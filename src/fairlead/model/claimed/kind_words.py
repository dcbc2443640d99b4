"""Names of kinds of devices, as verdicts say them."""

from __future__ import annotations

from hashlib import sha256

from fairlead.api.values.quantity import SERVING
from fairlead.model.claimed.device_asks import ALL, DeviceAsk, DeviceKind

_TEXT_MAX = 120


def text_of(kind: DeviceKind) -> str:
    """Return what a row of a kind is called; two kinds have different names."""
    if kind.resource:
        return f"{SERVING}{kind.resource}"
    if kind.options:
        text = ", else ".join(map(_option_text, kind.options))
        return short(f"{text} shared by {kind.sharers} members" if kind.sharers > 1 else text)
    if kind.together:
        devices = " with ".join(map(_option_text, kind.together))
        which = "of different" if kind.differ else "of one"
        return short(f"{devices}, {which} {' and '.join(kind.alike)}")
    parts = [short(" && ".join(kind.selectors))] if kind.selectors else []
    parts += [f"of one {name}" for name in kind.alike]
    parts += [f"tolerating {each.words}" for each in kind.tolerations]
    return f"{kind.device_class} [{short(', '.join(parts))}]" if parts else kind.device_class


def _option_text(option: DeviceAsk) -> str:
    text = text_of(option.kind)
    if option.count == ALL:
        return f"{text} (all of a node)"
    return text if option.count == 1 else f"{option.count} of {text}"


def short(text: str) -> str:
    """Return a text that is no longer than can be read, and still one of a kind."""
    if len(text) <= _TEXT_MAX:
        return text
    return f"{text[:_TEXT_MAX]}... {sha256(text.encode()).hexdigest()[:8]}"
