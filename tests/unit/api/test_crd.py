"""The generated CRD: structural, complete in its descriptions, and readable in kubectl."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from fairlead.api.cluster.node_report import COMPONENT_MAX, METRIC_PATTERN
from fairlead.api.jobs.job import JobSpec
from fairlead.api.kubernetes import core, volumes, webhooks
from fairlead.api.meta import ObjectMeta, OwnerReference, Wire
from fairlead.api.schema import crd
from fairlead.api.schema.builtin_schemas import KEPT, schema_of, sentences
from fairlead.api.schema.crd_schema import Generator
from fairlead.api.values.bounds import BACKOFF_SECONDS_MAX
from fairlead.api.values.sketch import TEXT_PATTERN
from fairlead.embedded.schema.schema import compile_schema

KINDS = tuple(manifest["spec"]["names"]["kind"] for manifest in crd.manifests())


def _version(kind: str = "Job") -> dict[str, Any]:
    [manifest] = [m for m in crd.manifests() if m["spec"]["names"]["kind"] == kind]
    (version,) = manifest["spec"]["versions"]
    return version


def _fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, below in schema.get("properties", {}).items():
        yield f"{path}.{name}", below
        yield from _fields(below, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _fields(schema[key], path)


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_is_structural_and_every_field_is_described(kind: str) -> None:
    schema = _version(kind)["schema"]["openAPIV3Schema"]
    compile_schema(schema)
    for path, field in _fields(schema):
        if path != ".metadata":
            text = field.get("description", "")
            assert text.endswith((".", ")")), f"{path}: {text!r}"
            assert text != KEPT, path


@pytest.mark.parametrize("kind", KINDS)
def test_conditions_merge_by_their_type(kind: str) -> None:
    schema = _version(kind)["schema"]["openAPIV3Schema"]
    for path, field in _fields(schema):
        if path.endswith(".conditions"):
            assert field["x-kubernetes-list-map-keys"] == ["type"], path


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_field_of_ours_is_a_mistake(kind: str) -> None:
    schema = _version(kind)["schema"]["openAPIV3Schema"]
    ours = {part for part in ("spec", "status") if part in schema["properties"]}
    given = {part: {"colour": "red"} for part in ours}
    assert compile_schema(schema).unknown_fields(given) == [f"{part}.colour" for part in given]


def test_what_a_pod_has_beyond_what_is_read_passes_through() -> None:
    template = {"spec": {"colour": "red", "containers": [{"name": "a", "colour": "red"}]}}
    spec: dict[str, Any] = {"roles": [{"name": "worker", "template": template}]}
    for kind, holding in (("Job", spec), ("JobArray", {"template": spec})):
        schema = compile_schema(_version(kind)["schema"]["openAPIV3Schema"])
        assert schema.unknown_fields({"spec": holding}) == []


def test_bounds_enums_defaults_and_list_keys_come_from_the_types() -> None:
    spec = _version()["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    roles = spec["roles"]
    count = roles["items"]["properties"]["count"]
    assert (count["minimum"], count["maximum"], count["default"]) == (1, 100_000, 1)
    assert roles["minItems"] == 1
    assert roles["x-kubernetes-list-map-keys"] == ["name"]
    assert roles["items"]["required"] == ["name", "template"]
    assert spec["restart"]["default"] == {}
    policy = spec["restart"]["properties"]["policy"]
    assert (policy["enum"], policy["default"]) == (["Gang", "Member", "Never"], "Gang")
    assert "default" not in spec["suspend"]
    pod = roles["items"]["properties"]["template"]["properties"]["spec"]
    assert pod["x-kubernetes-preserve-unknown-fields"] is True
    assert "default" not in pod["properties"]["restartPolicy"]


#: Patterns of characters that JSON leaves as they are.
_PLAIN = ("^[-A-Za-z0-9_.]*$", METRIC_PATTERN, TEXT_PATTERN)


def _largest(schema: dict[str, Any]) -> int:
    """Return the bytes of the largest value; JSON has up to six for a character, one for a plain
    one.
    """
    match schema["type"]:
        case "string" if schema.get("pattern") in _PLAIN:
            return int(schema["maxLength"])
        case "string":
            longest = max(map(len, schema["enum"])) if "enum" in schema else 0
            return 6 * (schema.get("maxLength") or longest or {"date-time": 40}[schema["format"]])
        case "array":
            return schema["maxItems"] * (_largest(schema["items"]) + 1)
        case "object" if "additionalProperties" in schema:  # the policy on reports bounds its keys
            entry = 6 * COMPONENT_MAX + 4 + _largest(schema["additionalProperties"])
            return schema["maxProperties"] * entry
        case "object":
            assert "x-kubernetes-preserve-unknown-fields" not in schema
            fields = schema["properties"].items()
            return sum(len(name) + 4 + _largest(below) for name, below in fields)
        case _:
            return 20


def test_a_report_of_a_node_is_bounded_whatever_the_node_writes() -> None:
    status = _version("NodeReport")["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert _largest(status) < 1.5 * 1024 * 1024, "what etcd takes"


def test_a_spec_beyond_the_bounds_is_refused_with_every_path_and_can_still_be_read() -> None:
    """A job that was stored before a bound was there must not become unreadable."""
    schema = compile_schema(_version()["schema"]["openAPIV3Schema"])
    seconds = 2**31
    spec: dict[str, Any] = {
        "roles": [{"name": "r" * 64, "template": {}}],
        "team": "t" * 64,
        "priorityClassName": "c" * 254,
        "priority": 2**31 - 1,
        "timeLimitSeconds": seconds,
        "ttlSecondsAfterFinished": seconds,
        "topology": {"key": "k" * 318},
        "restart": {
            "limit": seconds,
            "infrastructureLimit": seconds,
            "backoffSeconds": BACKOFF_SECONDS_MAX + 1,
            "backoffSecondsMax": BACKOFF_SECONDS_MAX + 1,
        },
        "checkpoint": {"claimName": "c" * 254, "path": "/" * 4097},
        "after": [{"job": f"j{i}"} for i in range(1_001)],
        "adopts": {"kind": "k" * 254, "name": "n" * 254, "apiVersion": "v" * 318, "uid": "u" * 254},
    }
    assert sorted(cause.field for cause in schema.validate({"spec": spec})) == [
        "spec.adopts.apiVersion",
        "spec.adopts.kind",
        "spec.adopts.name",
        "spec.adopts.uid",
        "spec.after",
        "spec.checkpoint.claimName",
        "spec.checkpoint.path",
        "spec.priorityClassName",
        "spec.restart.backoffSeconds",
        "spec.restart.backoffSecondsMax",
        "spec.restart.infrastructureLimit",
        "spec.restart.limit",
        "spec.roles[0].name",
        "spec.team",
        "spec.timeLimitSeconds",
        "spec.topology.key",
        "spec.ttlSecondsAfterFinished",
    ]
    roles = [{"name": f"r{i}", "template": {}} for i in range(257)]
    assert [c.field for c in schema.validate({"spec": {"roles": roles}})] == ["spec.roles"]
    assert schema.validate({"spec": {"roles": roles[:256]}}) == []
    assert msgspec.convert(spec, JobSpec).restart.limit == seconds
    assert len(msgspec.convert({"roles": roles}, JobSpec).roles) == 257


def test_every_number_list_and_text_of_the_spec_has_a_bound() -> None:
    """But those of the pod template, which the API server judges as a pod's."""
    spec = _version()["schema"]["openAPIV3Schema"]["properties"]["spec"]
    keywords = {"integer": "maximum", "array": "maxItems", "string": "maxLength"}
    bounds: dict[str, bool] = {}
    for path, field in _fields(spec):
        keyword = keywords.get(field.get("type", ""))
        if keyword and ".template" not in path and "enum" not in field:
            bounds[path] = keyword in field
    assert len(bounds) > 15
    assert [path for path, is_bounded in bounds.items() if not is_bounded] == []


def test_the_defaults_of_the_schema_are_those_of_the_types() -> None:
    schema = compile_schema(_version()["schema"]["openAPIV3Schema"])
    bare = {
        "roles": [{"name": "w", "template": {}}],
        "after": [{"job": "a"}],
        "topology": {"key": "k"},
    }
    filled = schema.default({"spec": bare})["spec"]
    assert msgspec.convert(filled, JobSpec) == msgspec.convert(bare, JobSpec)


def test_columns_show_state_members_attempt_reason_and_age() -> None:
    columns = {c["name"]: c for c in _version()["additionalPrinterColumns"]}
    assert [n for n, c in columns.items() if not c.get("priority")] == [
        "State", "Running", "Members", "Attempt", "Reason", "Failure", "Age",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_columns_show_fields_of_the_schema(kind: str) -> None:
    version = _version(kind)
    columns = {c["name"]: c for c in version["additionalPrinterColumns"]}
    properties = version["schema"]["openAPIV3Schema"]
    for column in columns.values():
        if column["jsonPath"].startswith(".metadata"):
            continue
        node = properties
        path = re.sub(r"\[(\?\(.*?\)|\d+)\]", "[]", column["jsonPath"])
        for part in path.strip(".").split("."):
            node = node["properties"][part.removesuffix("[]")]
            node = node["items"] if part.endswith("[]") else node
    assert version["subresources"] == {"status": {}}


def _shape(schema: dict[str, Any]) -> dict[str, Any]:
    """The types in a schema, without texts and without what only one of both styles says."""
    shape: dict[str, Any] = {k: schema[k] for k in ("type", "format") if k in schema}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            shape[key] = _shape(schema[key])
    return shape


def test_the_schemas_of_built_in_kinds_agree_with_the_structs_that_are_decoded() -> None:
    modules = (core, volumes, webhooks)
    structs = {c for m in modules for c in vars(m).values() if isinstance(c, type)}
    structs = {c for c in structs | {OwnerReference} if issubclass(c, Wire)} - {Wire, ObjectMeta}
    assert len(structs) > 50
    for struct in structs:
        ours = Generator().struct(struct)
        theirs = schema_of(struct.__name__)
        assert theirs["description"] == ours["description"]
        assert theirs.get("required") == ours.get("required"), struct.__name__
        for name, field in ours["properties"].items():
            known = theirs["properties"][name]
            where = f"{struct.__name__}.{name}"
            assert name == "metadata" or name in sentences(struct.__name__), where
            if "pattern" in field or known.get("format") == "quantity":
                assert ("pattern" in field, known["format"]) == (True, "quantity"), where
            elif "quantity" not in str(known):
                assert _shape(field) == _shape(known), where
