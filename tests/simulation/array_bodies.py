"""Templates of arrays, and arrays that admission refuses in every world."""

from __future__ import annotations

from typing import Any

from tests.simulation.embedded_world import SIMULATE_SECONDS

from fairlead.api.status import Invalid


def template(*, gpus: int = 1, seconds: float = 20, **pod: Any) -> dict[str, Any]:
    container = {
        "name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": gpus}},
        "env": [{"name": "MINE", "value": "kept"}],
    }  # fmt: skip
    metadata = {"annotations": {SIMULATE_SECONDS: str(seconds)}}
    role = {
        "name": "main",
        "template": {"metadata": metadata, "spec": {"containers": [container], **pod}},
    }
    return {"roles": [role]}


#: What differs from a sound array, and the paths that the refusal names.
WRONG_ARRAYS: list[tuple[dict[str, Any], list[str]]] = [
    ({"indices": "0-9,5"}, ["spec.indices"]),
    ({"indices": ""}, ["spec.indices"]),
    ({"indices": "4000001"}, ["spec.indices"]),
    ({"indices": "0-4000000"}, ["spec.indices"]),
    ({"parallelism": 0}, ["spec.parallelism"]),
    ({"maxFailed": -1}, ["spec.maxFailed"]),
    ({"cancelIndices": "9-"}, ["spec.cancelIndices"]),
    ({"template": {"roles": []}}, ["spec.template.roles"]),
    ({"template": {**template(), "suspend": True}}, ["spec.template.suspend"]),
    ({"template": {**template(), "cancel": True}}, ["spec.template.cancel"]),
    ({"template": {**template(), "requeueAttempt": 1}}, ["spec.template.requeueAttempt"]),
    ({"template": {**template(), "priorityClassName": "none-such"}},
     ["spec.template.priorityClassName"]),
    ({"template": template(subdomain="x" * 140_000)}, ["spec.template"]),
]  # fmt: skip

#: Faults of the schema and of the rules. A real API server asks the webhook about the rules only
#: where the schema is kept; an embedded one names all of them at once.
MIXED: dict[str, Any] = {"indices": "0-9,9", "template": {"roles": []}, "parallelism": 0}
OF_SCHEMA = ["spec.parallelism", "spec.template.roles"]


def has_paths(refused: Invalid, paths: list[str]) -> None:
    """Assert that a refusal names these paths, and none elsewhere."""
    details = refused.status.details
    assert details is not None
    fields = {cause.field for cause in details.causes}
    assert set(paths) <= fields, refused.message
    assert all(field.startswith(tuple(paths)) for field in fields), refused.message
