"""The differences from a real API server that are accepted, each with its reason.

`differences.yaml` holds them: `answers` by scenario/step and path into the recorded answer (shell
patterns; a pattern that matches nothing is an error too, so the file cannot outlive its reasons),
`upstream` by a part of the name of a test of Kubernetes that the embedded API does not pass, and
`tests` by the name of the conformance test, with its parameters if it has any beside the target,
that a real server does not pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import yaml
from tests.conformance.recorder import Difference

FILE = Path(__file__).with_name("differences.yaml")


@dataclass(frozen=True, slots=True)
class Accepted:
    """Differences that one reason covers."""

    at: tuple[str, ...]
    path: tuple[str, ...]
    reason: str

    def covers(self, difference: Difference) -> bool:
        """True when this accepts the difference."""
        path = difference.path.replace("[", "<").replace("]", ">")
        return any(fnmatchcase(difference.where, at) for at in self.at) and any(
            fnmatchcase(path, each.replace("[", "<").replace("]", ">")) for each in self.path
        )


def _texts(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def accepted_answers() -> tuple[Accepted, ...]:
    """Return the accepted differences of answers."""
    entries = yaml.safe_load(FILE.read_text())["answers"] or []
    return tuple(Accepted(_texts(e["at"]), _texts(e["path"]), e["reason"]) for e in entries)


def accepted_upstream() -> dict[str, str]:
    """Return the tests of Kubernetes that the embedded API does not pass: part of the name."""
    return yaml.safe_load(FILE.read_text())["upstream"] or {}


def accepted_tests() -> dict[str, str]:
    """Return the tests that a real server does not pass: name, with parameters, to reason."""
    return yaml.safe_load(FILE.read_text())["tests"] or {}
