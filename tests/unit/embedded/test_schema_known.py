"""The fast path of pruning against the slow one, which says what is right."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from bench.objects import pod_body
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.crd import manifests
from fairlead.embedded import builtins
from fairlead.embedded.schema.fill import compile_prune
from fairlead.embedded.schema.known import fast_prune, known_test
from fairlead.embedded.schema.schema import builtin_schema

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "map": {
            "type": "object",
            "additionalProperties": {
                "type": "object", "properties": {"x": {"type": "integer"}},
            },
        },
        "list": {
            "type": "array",
            "items": {"type": "object", "properties": {"y": {"type": "string"}}},
        },
        "number": {"x-kubernetes-int-or-string": True},
    },
}  # fmt: skip

KEYS = st.sampled_from(["name", "open", "map", "list", "number", "x", "y", "other"])
LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a"])
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_what_the_fast_path_passes_the_slow_path_leaves_alone(value: Any) -> None:
    slow, fast = compile_prune(SCHEMA), fast_prune(SCHEMA)
    assert slow is not None
    assert fast is not None
    assert fast(value) == slow(value)


def test_a_pod_takes_the_fast_path_and_a_misspelt_field_does_not() -> None:
    schema = builtin_schema(builtins.PODS)
    body = pod_body("a")
    assert schema.unknown_fields(body) == []
    body["spec"]["containers"][0]["imagee"] = "x"
    body["spec"]["containers"][0]["env"][1]["valeu"] = "y"
    assert schema.unknown_fields(body) == [
        "spec.containers[0].env[1].valeu", "spec.containers[0].imagee",
    ]  # fmt: skip


@pytest.mark.parametrize("manifest", manifests(), ids=lambda m: m["metadata"]["name"])
def test_our_own_kinds_have_a_fast_path(manifest: dict[str, Any]) -> None:
    for version in manifest["spec"]["versions"]:
        schema = msgspec.to_builtins(version["schema"]["openAPIV3Schema"])
        assert known_test(schema) is not None
