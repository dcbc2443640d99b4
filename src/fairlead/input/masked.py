"""Text for a report that people pass on, without the secrets that it may quote."""

from __future__ import annotations

import re

_NAME = r"[\w-]*(?:token|passw(?:or)?d|secret|credential|api[-_]?key|access[-_]?key)[\w-]*"
#: Each with what comes before the secret, which stays.
_SECRETS = (
    re.compile(r"(://)[^\s'\"]*(?=@)"),  # of a URL; a password may hold a "/" or an "@"
    re.compile(rf"({_NAME}=)[^\s&'\"]+", re.IGNORECASE),
    re.compile(rf"((?<!\S)--?{_NAME}\s+)(?!-)\S+", re.IGNORECASE),
    re.compile(r"(\bbearer\s+)\S+", re.IGNORECASE),
)


def masked(text: str) -> str:
    """Return a text with *** for what looks like a secret.

    That is the user and password of a URL, a bearer token, and the value of a flag or variable
    whose name says what it holds.
    """
    for pattern in _SECRETS:
        text = pattern.sub(r"\1***", text)
    return text
