"""Definitions of kinds: what the server says of them in their status."""

from __future__ import annotations

from typing import Any

from fairlead.embedded.crds import admit


def _definition(*versions: str, **more: Any) -> dict[str, Any]:
    """Return a definition that stores the last of its versions."""
    return {
        "metadata": {"name": "widgets.example.dev"},
        "spec": {
            "group": "example.dev", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [
                {"name": name, "served": True, "storage": name == versions[-1]} for name in versions
            ],
        },
        **more,
    }  # fmt: skip


def test_every_version_that_was_ever_stored_stays_in_the_status_once() -> None:
    status: dict[str, Any] = {}
    for versions, stored in (
        (("v1",), ["v1"]),
        (("v1", "v2"), ["v1", "v2"]),
        (("v1", "v2"), ["v1", "v2"]),
        (("v2", "v1"), ["v1", "v2"]),
        (("v1", "v2", "v3"), ["v1", "v2", "v3"]),
    ):
        crd = _definition(*versions, status=status)
        admit(crd, "2026-11-20T08:15:30Z")
        status = crd["status"]
        assert status["storedVersions"] == stored
