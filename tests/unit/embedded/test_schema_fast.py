"""The fast path of schemas against the slow one, which says what is right."""

from __future__ import annotations

from datetime import date, time
from typing import Any

import msgspec
import pytest
from bench.objects import pod_body
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.schema.builtin_schemas import COMPLETE
from fairlead.api.schema.crd import manifests
from fairlead.embedded.schema.check import compile_check
from fairlead.embedded.schema.fast import names_test, residual_schema, type_test
from fairlead.embedded.schema.fill import EMBEDDED
from fairlead.embedded.schema.schema import builtin_schema, compile_schema

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

#: The same, with defaults and rules, and a part that is open and typed at once.
OPEN: dict[str, Any] = {
    "type": "object",
    "x-kubernetes-preserve-unknown-fields": True,
    "required": ["name"],
    "properties": {
        **SCHEMA["properties"],
        "name": {"type": "string", "minLength": 1, "default": "a", "nullable": True},
        "number": {"type": "integer", "maximum": 3, "default": 2},
    },
}

KEYS = st.sampled_from(["name", "open", "map", "list", "number", "x", "y", "other"])
LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a"])
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES, st.sampled_from([OPEN, SCHEMA]))
def test_what_the_fast_path_passes_the_slow_path_leaves_alone(
    value: Any, spec: dict[str, Any]
) -> None:
    schema = compile_schema({"type": "object", "properties": {"spec": spec}})
    obj = {"spec": value}
    pruned, dropped = schema.prune(schema.default(obj))
    assert schema.admit(obj) == (pruned, dropped, schema.validate(pruned))


def test_values_that_fit_take_the_fast_path() -> None:
    fits = type_test(SCHEMA)
    assert fits is not None
    assert fits({"name": "a", "open": {"x": 1}, "map": {"k": {"x": 1}}, "list": [{"y": ""}]})
    assert not fits({"other": 1})
    assert not fits({"name": None})
    assert not fits({"map": {"k": {"x": "1"}}})


def test_a_pod_takes_the_fast_path_and_a_misspelt_field_does_not() -> None:
    schema = builtin_schema("Pod")
    body = pod_body("a")
    fits = names_test({**schema.openapi, EMBEDDED: True}, closed_by=COMPLETE)
    assert fits is not None
    assert fits({**body, "metadata": {**body["metadata"], "creationTimestamp": None}})
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
        assert type_test(schema) is not None


TIME: dict[str, Any] = {"type": "string", "format": "date-time"}


@pytest.mark.parametrize("year", ["0000", "0999", "1970", "2026", "2028"])
def test_what_fits_as_a_time_is_one(year: str) -> None:
    fits, check = type_test(TIME), compile_check(TIME)
    assert fits is not None
    assert check is not None
    days = [f"{year}-{month:02d}-{day:02d}" for month in range(14) for day in range(33)]
    ends = ["T00:00:00Z", "T23:59:59.5Z", "T24:00:00Z", "T00:60:00Z", "T00:00:60Z", "T00:00:00Z\n"]
    texts = [day + end for day in days for end in ends]
    assert all(check(text) is None for text in texts if fits(text))


@given(st.dates(date(1970, 1, 1), date(2999, 12, 31)), st.times())
def test_all_times_but_leap_days_fit(day: date, instant: time) -> None:
    fits = type_test(TIME)
    assert fits is not None
    is_leap_day = (day.month, day.day) == (2, 29)
    assert fits(f"{day}T{instant}Z") is not is_leap_day


def test_a_time_that_fits_is_not_looked_at_again() -> None:
    assert residual_schema(TIME) == {}
    assert residual_schema({**TIME, "maxLength": 20}) != {}
