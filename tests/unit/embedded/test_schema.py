"""Structural schemas: what they accept, fill in and drop, and how they word what they refuse."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from fairlead.api.resources import LEASES, NODES, PODS, SERVICES
from fairlead.api.schema import crd
from fairlead.api.status import BadRequest
from fairlead.embedded.schema.schema import (
    Schema,
    SchemaError,
    builtin_schema,
    compile_schema,
    pod_template_unknown_fields,
    strict_errors,
)

PRESERVE = "x-kubernetes-preserve-unknown-fields"


def _schema(**properties: Any) -> Schema:
    """Compile an object whose spec has these properties."""
    spec = {"type": "object", "properties": properties}
    return compile_schema({"type": "object", "properties": {"spec": spec}})


def _obj(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "x"}, "spec": spec}


def _texts(schema: Schema, **spec: Any) -> list[str]:
    return [f"{c.field}: {c.message}" for c in schema.validate(_obj(**spec))]


INT = {"type": "integer", "format": "int64"}

# (schema of spec.v, a good value, a bad value, the whole message)
RULES: list[tuple[dict[str, Any], Any, Any, str]] = [
    (INT, 3, "3", 'spec.v: Invalid value: "string": spec.v in body must be of type integer: '
     '"string"'),
    (INT, 3.0, 3.5, 'spec.v: Invalid value: "number": spec.v in body must be of type integer: '
     '"number"'),
    (INT, 1, True, 'spec.v: Invalid value: "boolean": spec.v in body must be of type integer: '
     '"boolean"'),
    ({"type": "number"}, 1, "1", 'spec.v: Invalid value: "string": spec.v in body must be of type '
     'number: "string"'),
    ({"type": "string"}, "a", None, 'spec.v: Invalid value: "null": spec.v in body must be of '
     'type string: "null"'),
    ({**INT, "minimum": 1}, 1, 0, "spec.v: Invalid value: 0: spec.v in body should be greater "
     "than or equal to 1"),
    ({**INT, "maximum": 9}, 9, 10, "spec.v: Invalid value: 10: spec.v in body should be less than "
     "or equal to 9"),
    ({**INT, "minimum": 1, "exclusiveMinimum": True}, 2, 1, "spec.v: Invalid value: 1: spec.v in "
     "body should be greater than 1"),
    ({**INT, "maximum": 9, "exclusiveMaximum": True}, 8, 9, "spec.v: Invalid value: 9: spec.v in "
     "body should be less than 9"),
    ({"type": "number", "multipleOf": 0.1}, 0.3, 0.35, "spec.v: Invalid value: 0.35: spec.v in "
     "body should be a multiple of 0.1"),
    ({"type": "string", "minLength": 2}, "é€", "a", 'spec.v: Invalid value: "a": spec.v in body '
     "should be at least 2 chars long"),
    ({"type": "string", "maxLength": 2}, "é€", "abc", "spec.v: Too long: may not be more than 2 "
     "bytes"),
    ({"type": "string", "pattern": "^a+$"}, "aa", "aa\n", 'spec.v: Invalid value: "aa\\n": spec.v '
     "in body should match '^a+$'"),
    ({"type": "string", "enum": ["A", "B"]}, "A", "C", 'spec.v: Unsupported value: "C": supported '
     'values: "A", "B"'),
    ({**INT, "enum": [1]}, 1, 2, 'spec.v: Unsupported value: 2: supported values: "1"'),
    ({"type": "string", "format": "date-time"}, "2026-11-20T08:00:00Z", "yesterday",
     'spec.v: Invalid value: "yesterday": spec.v in body must be of type date-time: "yesterday"'),
    ({"type": "string", "format": "ipv4"}, "10.0.0.1", "10.0.0.256",
     'spec.v: Invalid value: "10.0.0.256": spec.v in body must be of type ipv4: "10.0.0.256"'),
    ({"type": "integer", "format": "int32"}, 2**31 - 1, 2**31,
     'spec.v: Invalid value: 2147483648: spec.v in body must be of type int32: "2147483648"'),
    ({"type": "array", "items": INT, "minItems": 1}, [1], [], "spec.v: Invalid value: 0: spec.v "
     "in body should have at least 1 items"),
    ({"type": "array", "items": INT, "maxItems": 1}, [1], [1, 2], "spec.v: Too many: 2: must have "
     "at most 1 items"),
    ({"type": "array", "items": INT}, [1], [1, "2"], 'spec.v[1]: Invalid value: "string": '
     'spec.v[1] in body must be of type integer: "string"'),
    ({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}, ["a", "b"],
     ["a", "b", "a", "a"], 'spec.v[2]: Duplicate value: "a"'),
    ({"type": "object", "additionalProperties": INT}, {"a": 1}, {"a": "1"}, 'spec.v.a: Invalid '
     'value: "string": spec.v.a in body must be of type integer: "string"'),
    ({"type": "object", "properties": {"a": INT}, "required": ["a"]}, {"a": 1}, {},
     "spec.v.a: Required value"),
    ({"type": "object", "additionalProperties": INT, "minProperties": 1}, {"a": 1}, {},
     'spec.v: Invalid value: "": spec.v in body should have at least 1 properties'),
    ({"x-kubernetes-int-or-string": True}, "50%", 1.5, 'spec.v: Invalid value: "number": spec.v '
     'in body must be of type integer,string: "number"'),
    ({**INT, "anyOf": [{"minimum": 5}, {"enum": [1]}]}, 1, 2, 'spec.v: Invalid value: "": '
     '"spec.v" must validate at least one schema (anyOf)'),
    ({**INT, "oneOf": [{"minimum": 5}, {"maximum": 9}]}, 1, 7, 'spec.v: Invalid value: "": '
     '"spec.v" must validate one and only one schema (oneOf). Found 2 valid alternatives'),
    ({**INT, "allOf": [{"minimum": 5}]}, 5, 4, "spec.v: Invalid value: 4: spec.v in body should "
     "be greater than or equal to 5"),
    ({**INT, "not": {"enum": [3]}}, 2, 3, 'spec.v: Invalid value: "": "spec.v" must not validate '
     "the schema (not)"),
    ({"type": "integer", "format": "int32", "minimum": 0, "maximum": 2**40}, 2**31 - 1, 2**31,
     "spec.v: Invalid value: 2147483648: spec.v in body must be of type int32: \"2147483648\""),
    ({"type": "string", "pattern": "^[a]$"}, "a", "a\n", 'spec.v: Invalid value: "a\\n": spec.v in '
     "body should match '^[a]$'"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "good", "bad", "message"), RULES)
def test_each_rule_accepts_refuses_and_words_it_as_the_real_server(
    rule: dict[str, Any], good: Any, bad: Any, message: str
) -> None:
    schema = _schema(v=rule)
    assert _texts(schema, v=good) == []
    assert _texts(schema, v=bad) == [message]


def test_list_maps_must_have_unique_keys() -> None:
    items = {"type": "object", "required": ["n"], "properties": {"n": INT, "m": INT}}
    rule = {
        "type": "array",
        "items": items,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["n"],
    }
    schema = _schema(v=rule)
    assert _texts(schema, v=[{"n": 1}, {"n": 2, "m": 1}]) == []
    assert _texts(schema, v=[{"n": 1}, {"n": 1, "m": 1}]) == ['spec.v[1]: Duplicate value: {"n":1}']


def test_what_must_not_be_anything_is_always_refused() -> None:
    assert len(_texts(_schema(v={**INT, "not": {}}), v=3)) == 1


def test_all_mistakes_are_reported_at_once() -> None:
    schema = _schema(a={**INT, "minimum": 1}, b={"type": "string"}, c={"type": "boolean"})
    fields = [cause.field for cause in schema.validate(_obj(a=0, b=1, c="x"))]
    assert fields == ["spec.a", "spec.b", "spec.c"]


def test_nullable_accepts_null_and_other_nulls_are_dropped_or_defaulted() -> None:
    schema = _schema(
        a={"type": "string", "nullable": True},
        b={"type": "string"},
        c={"type": "string", "default": "d"},
        e={"type": "array", "items": {"type": "object", "properties": {"f": INT}}},
    )
    value = _obj(a=None, b=None, c=None, e=[{"f": None}])
    before = copy.deepcopy(value)
    filled = schema.default(value)
    assert filled["spec"] == {"a": None, "c": "d", "e": [{}]}
    assert schema.validate(filled) == []
    assert value == before


def test_defaults_fill_nested_objects_and_are_not_shared_between_values() -> None:
    inner = {
        "type": "object",
        "default": {},
        "properties": {
            "limit": {**INT, "default": 3},
            "tags": {"type": "array", "items": {"type": "string"}, "default": ["x"]},
        },
    }
    schema = _schema(restart=inner)
    first, second = schema.default(_obj()), schema.default(_obj(restart={"limit": 1}))
    assert first["spec"]["restart"] == {"limit": 3, "tags": ["x"]}
    assert second["spec"]["restart"] == {"limit": 1, "tags": ["x"]}
    first["spec"]["restart"]["tags"].append("y")
    assert schema.default(_obj())["spec"]["restart"]["tags"] == ["x"]


def test_a_value_without_anything_to_change_is_handed_back_itself() -> None:
    schema = _schema(a={**INT, "default": 1})
    value = _obj(a=2)
    assert schema.default(value) is value
    assert schema.prune(value) == (value, [])
    assert schema.prune(value)[0] is value


def test_an_integer_written_as_3_0_is_stored_as_3() -> None:
    filled = _schema(a=INT).default(_obj(a=3.0))
    assert type(filled["spec"]["a"]) is int


def test_unknown_fields_are_pruned_and_named() -> None:
    schema = _schema(
        list={"type": "array", "items": {"type": "object", "properties": {"a": INT}}},
        open={"type": "object", PRESERVE: True, "properties": {"shut": {"type": "object"}}},
        map={"type": "object", "additionalProperties": {"type": "object"}},
    )
    value = _obj(
        list=[{"a": 1, "b": 2}], open={"c": {"d": 1}, "shut": {"e": 1}}, map={"k": {"f": 1}}, g=1
    )
    value |= {"kind": "K", "apiVersion": "g/v1", "h": 1}
    value["metadata"]["nickname"] = "i"
    before = copy.deepcopy(value)
    pruned, dropped = schema.prune(value)
    assert value == before
    assert sorted(dropped) == [
        "h", "metadata.nickname", "spec.g", "spec.list[0].b", "spec.map.k.f", "spec.open.shut.e",
    ]  # fmt: skip
    assert pruned == {
        "kind": "K", "apiVersion": "g/v1", "metadata": {"name": "x"},
        "spec": {"list": [{"a": 1}], "open": {"c": {"d": 1}, "shut": {}}, "map": {"k": {}}},
    }  # fmt: skip
    assert strict_errors(["spec.g", "h"]) == (
        'strict decoding error: unknown field "spec.g", unknown field "h"'
    )


def test_embedded_resources_keep_their_kind_and_metadata() -> None:
    rule = {
        "type": "object",
        "x-kubernetes-embedded-resource": True,
        "properties": {"data": {"type": "string"}},
    }
    embedded = {"kind": "K", "apiVersion": "v1", "metadata": {"name": "n"}, "data": "d", "x": 1}
    pruned, dropped = _schema(v=rule).prune(_obj(v=embedded))
    assert dropped == ["spec.v.x"]
    assert pruned["spec"]["v"]["metadata"] == {"name": "n"}


# (schema of spec.v, the field below spec.v that the refusal names, words)
NOT_STRUCTURAL: list[tuple[dict[str, Any], str, str]] = [
    ({}, ".type", "must not be empty for specified object fields"),
    ({"type": "text"}, ".type", 'Unsupported value: "text"'),
    ({"type": 3}, ".type", "must be a string"),
    ({"type": "array"}, ".items", "must be specified"),
    ({"type": "array", "items": {}}, ".items.type", "must not be empty for specified array items"),
    ({"type": "object", "properties": []}, ".properties", "must be an object"),
    ({"type": "string", "pattern": "("}, ".pattern", "must be a valid regular expression"),
    ({"type": "string", "pattern": "(?=a)"}, ".pattern", "not part of the RE2 syntax"),
    ({"type": "integer", "minimum": "1"}, ".minimum", "must be a number"),
    ({"type": "integer", "multipleOf": 0}, ".multipleOf", "must be greater than 0"),
    ({"type": "string", "minLength": -1}, ".minLength", "not negative"),
    ({"type": "object", "$ref": "#/x"}, ".$ref", "$ref is not supported"),
    ({"type": "string", "minimun": 1}, ".minimun", "unknown keyword"),
    (
        {"type": "object", "properties": {"a": INT}, "additionalProperties": INT},
        ".additionalProperties",
        "mutual exclusive",
    ),
    ({"type": "integer", "anyOf": [{"type": "string"}]}, ".anyOf[0].type", "to be structural"),
    (
        {"type": "object", "allOf": [{"properties": {"a": {"minimum": 1}}}]},
        ".properties[a]",
        "because it is defined in",
    ),
    ({"type": "integer", "default": "x"}, ".default", "must be of type integer"),
    ({"type": "object", "default": {"a": 1}}, ".default", "must not have unknown fields"),
    (
        {"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map"},
        ".x-kubernetes-list-map-keys",
        "must not be empty if x-kubernetes-list-type is map",
    ),
    (
        {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 1"}]},
        ".x-kubernetes-validations",
        "CEL rules are not supported by this server",
    ),
]


@pytest.mark.parametrize(("rule", "field", "words"), NOT_STRUCTURAL)
def test_a_schema_that_is_not_structural_is_refused_with_its_path(
    rule: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(SchemaError) as caught:
        _schema(v=rule)
    at = f"openAPIV3Schema.properties[spec].properties[v]{field}"
    assert any(c.field == at and words in c.message for c in caught.value.causes), caught.value


@pytest.mark.parametrize("root", [None, [], {"type": "array", "items": INT}, {"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}])  # fmt: skip  # noqa: E501
def test_the_root_must_be_an_object_that_leaves_metadata_alone(root: Any) -> None:
    with pytest.raises(SchemaError):
        compile_schema(root)


# --- built-in kinds ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resource", "value"),
    [
        (PODS, {"metadata": {"creationTimestamp": None}, "spec": {"containers": [{
            "name": "c", "resources": {"limits": {"cpu": 0.5, "memory": "1Gi", "x.y/z": 1}},
            "livenessProbe": {"httpGet": {"port": "http"}}, "ports": [{"containerPort": 1}]}],
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}], "somethingNew": [1]}}),
        (SERVICES, {"spec": {"ports": [{"port": 80, "targetPort": "web"},
                                       {"port": 81, "targetPort": 8080}]}}),
        (LEASES, {"spec": {"renewTime": "2026-11-20T08:00:00.000001Z"}}),
        (NODES, {"status": {"capacity": {"cpu": "8", "pods": 110}, "conditions": [
            {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-11-20T08:00:00Z"}]}}),
    ],
)  # fmt: skip
def test_built_in_kinds_accept_quantities_times_nulls_and_unknown_fields(
    resource: Any, value: dict[str, Any]
) -> None:
    schema = builtin_schema(resource.kind)
    schema.require_decodable(value, kind=resource.kind, version="v1")
    filled = schema.default(value)
    assert schema.validate(filled) == []
    assert schema.prune(filled) == (filled, [])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"spec": {"containers": "x"}},
            "json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type "
            "[]v1.Container",
        ),
        (
            {"spec": {"containers": [{"name": 5}]}},
            "json: cannot unmarshal number into Go struct field Container.spec.containers.name of "
            "type string",
        ),
        (
            {"metadata": {"labels": {"a": True}}},
            "json: cannot unmarshal bool into Go struct field ObjectMeta.metadata.labels.a of type "
            "string",
        ),
        (
            {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "lots"}}}]}},
            "quantities must match the regular expression",
        ),
        ({"status": {"startTime": "noon"}}, 'parsing time "noon"'),
    ],
)
def test_a_wrong_type_in_a_built_in_kind_is_the_bad_request_of_the_decoder(
    value: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        builtin_schema("Pod").require_decodable(value, kind="Pod", version="v1")
    assert caught.value.message.startswith('Pod in version "v1" cannot be handled as a Pod: ')
    assert message in caught.value.message


def test_misspelt_fields_of_pods_are_found_for_strict_field_validation() -> None:
    pod = {"kind": "Pod", "apiVersion": "v1", "spec": {"containers": [{"name": "c", "comand": []}]}}
    assert builtin_schema("Pod").unknown_fields(pod) == ["spec.containers[0].comand"]
    template = {"spec": {"containers": [{"name": "c", "resource": {}}], "dnsPolicy": "Default"}}
    assert pod_template_unknown_fields(template) == ["spec.containers[0].resource"]


def test_metadata_of_a_custom_resource_is_decoded_whatever_its_schema_says() -> None:
    schema = _schema(a=INT)
    with pytest.raises(BadRequest, match=r"ObjectMeta.metadata.labels of type map\[string\]string"):
        schema.require_decodable({"metadata": {"labels": 5}}, kind="K", version="g/v1")
    schema.require_decodable({"metadata": {}, "spec": {"a": "x"}}, kind="K", version="g/v1")


def test_endless_nesting_in_a_value_ends_in_an_answer() -> None:
    deep: Any = {}
    for _ in range(20_000):
        deep = {"a": deep, "b": None}
    inner: dict[str, Any] = {"type": "object", PRESERVE: True}
    for _ in range(50):
        inner = {"type": "object", "properties": {"a": inner}}
    schema = _schema(v=inner, w={PRESERVE: True, "enum": [1]})
    assert schema.validate(schema.prune(schema.default(_obj(v=deep)))[0]) == []
    with pytest.raises(BadRequest, match="nested too deeply"):
        schema.validate(_obj(w=deep))


def test_the_job_schema_keeps_pod_fields_and_drops_its_own_unknown_ones() -> None:
    [manifest] = [m for m in crd.manifests() if m["spec"]["names"]["kind"] == "Job"]
    schema = compile_schema(manifest["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    template = {"spec": {"containers": [{"name": "c", "securityContext": {"runAsUser": 1}}]}}
    role = {"name": "w", "template": template, "size": 4}
    job = {"metadata": {"name": "j"}, "spec": {"roles": [role], "tema": "x"}}
    pruned, dropped = schema.prune(schema.default(job))
    assert sorted(dropped) == ["spec.roles[0].size", "spec.tema"]
    assert pruned["spec"]["roles"][0] == {"name": "w", "template": template, "count": 1}
    assert pruned["spec"]["restart"]["policy"] == "Gang"
    assert schema.validate(pruned) == []


def test_equal_schemas_are_compiled_once_whatever_the_order_of_their_keys() -> None:
    spec = {"type": "object", "properties": {"count": INT, "name": {"type": "string"}}}
    given = {"type": "object", "description": "as sent", "properties": {"spec": spec}}
    stored = {key: given[key] for key in sorted(given)}
    assert list(stored) != list(given)
    assert compile_schema(stored) is compile_schema(given)
