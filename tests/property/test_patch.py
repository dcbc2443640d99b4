"""Patches and schemas on arbitrary JSON: they round trip, and nothing but an ApiError comes out."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.api.meta import merge_diff
from fairlead.api.schema import crd
from fairlead.api.status import ApiError
from fairlead.api.validation.validate import validate_job
from fairlead.embedded.patch import apply_json_patch, apply_merge_patch, apply_strategic_patch
from fairlead.embedded.schema.schema import Schema, builtin_schema, compile_schema

quick = settings(deadline=None, max_examples=100)

KEYS = st.sampled_from(
    ["a", "b", "metadata", "spec", "containers", "name", "env", "ports", "containerPort", "roles",
     "template", "count", "finalizers", "volumes", "labels", "restart", "policy", "resources",
     "requests", "cpu", "status", "conditions", "type", "$patch", "$retainKeys",
     "$setElementOrder/containers", "$deleteFromPrimitiveList/finalizers", "x~/y", ""]
)  # fmt: skip
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["delete", "replace", "500m", "Gang", "x", "2026-11-20T08:00:00Z"])
    | st.text(max_size=5)
)
JSON: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=30,
)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=5)


def _without_nulls(value: Any) -> Any:
    """Drop nulls from objects; inside lists a merge patch keeps them."""
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return value


@quick
@given(OBJECTS, OBJECTS)
def test_a_merge_patch_made_by_merge_diff_turns_old_into_new(old: Any, new: Any) -> None:
    new = _without_nulls(new)
    before = copy.deepcopy(old)
    result = apply_merge_patch(old, merge_diff(old, new))
    assert msgspec.json.encode(result, order="sorted") == msgspec.json.encode(new, order="sorted")
    assert old == before


POINTERS = st.lists(KEYS | st.sampled_from(["0", "1", "-", "01", "999"]), max_size=4).map(
    lambda parts: "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)
)
OPERATIONS = st.lists(
    st.fixed_dictionaries(
        {
            "op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]) | JSON,
            "path": POINTERS | JSON,
        },
        optional={"from": POINTERS | JSON, "value": JSON},
    )
    | JSON,
    max_size=5,
)


@quick
@given(JSON, OPERATIONS | JSON)
def test_a_json_patch_applies_or_raises_an_api_error(target: Any, ops: Any) -> None:
    before = copy.deepcopy((target, ops))
    with contextlib.suppress(ApiError):
        apply_json_patch(target, ops)
    assert (target, ops) == before


@quick
@given(OBJECTS | JSON, OBJECTS | JSON)
def test_a_strategic_patch_applies_or_raises_an_api_error(target: Any, patch: Any) -> None:
    before = copy.deepcopy((target, patch))
    with contextlib.suppress(ApiError):
        apply_strategic_patch(target, patch, builtin_schema("Pod"))
    assert (target, patch) == before


def _job_schema() -> Schema:
    [manifest] = [m for m in crd.manifests() if m["spec"]["names"]["kind"] == "Job"]
    return compile_schema(manifest["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


JOB = _job_schema()
SCHEMAS = st.sampled_from([JOB, builtin_schema("Pod")])


@st.composite
def near_jobs(draw: st.DrawFn) -> Any:
    """Jobs that are nearly right: most reach the deep parts of the schema."""
    pod = {"containers": [{"name": "c", "resources": draw(st.just({}) | OBJECTS)}]}
    role: Any = {"name": "w", "template": {"spec": draw(st.just(pod) | JSON)}}
    role |= draw(st.dictionaries(st.sampled_from(["count", "name", "new"]), JSON, max_size=1))
    names = st.sampled_from(["restart", "after", "priority", "team", "checkpoint", "suspend"])
    spec = {"roles": [role], **draw(st.dictionaries(names, JSON, max_size=2))}
    return {"metadata": draw(st.just({"name": "j"}) | JSON), "spec": spec}


@quick
@given(SCHEMAS, OBJECTS | JSON | near_jobs())
def test_defaulting_is_idempotent_and_nothing_crashes(schema: Schema, value: Any) -> None:
    before = copy.deepcopy(value)
    with contextlib.suppress(ApiError):
        schema.require_decodable(value, kind="K", version="v1")
    filled = schema.default(value)
    assert schema.default(filled) == filled
    pruned, _ = schema.prune(filled)
    assert schema.prune(pruned) == (pruned, [])
    schema.validate(pruned)
    schema.unknown_fields(value)
    assert value == before


@quick
@given(SCHEMAS, OBJECTS | JSON | near_jobs())
def test_the_fast_path_of_a_schema_never_differs_from_the_slow_one(
    schema: Schema, value: Any
) -> None:
    pruned, dropped = schema.prune(schema.default(value))
    assert schema.admit(value) == (pruned, dropped, schema.validate(pruned))


@quick
@given(near_jobs() | OBJECTS)
def test_a_valid_job_decodes_and_the_further_rules_never_crash(value: Any) -> None:
    validate_job(value)
    value = {key: item for key, item in value.items() if key != "metadata"}
    filled = JOB.default(value)
    if not JOB.validate(filled):
        spec = filled["spec"]
        undecodable = [c for c in validate_job(spec) if "Expected" in c.message]
        # A null amount passes the schema, which leaves amounts open; the typed decoder names it.
        assert all("got `null`" in cause.message for cause in undecodable)
