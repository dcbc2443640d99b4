"""Patches: what each operation does to a value, and how a bad one is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from fairlead.api.resources import NODES, PODS, SERVICES
from fairlead.api.status import ApiError, BadRequest, Invalid, TooLarge
from fairlead.embedded import patch as patches
from fairlead.embedded.patch import apply_json_patch, apply_merge_patch, apply_strategic_patch
from fairlead.embedded.schema.schema import builtin_schema

POD = builtin_schema("Pod")

# RFC 7386, appendix A, as far as the patch is an object.
MERGE_CASES: list[tuple[Any, Any, Any]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("target", "patch", "wanted"), MERGE_CASES)
def test_merge_patch_does_what_the_rfc_lists(target: Any, patch: Any, wanted: Any) -> None:
    before = copy.deepcopy((target, patch))
    assert apply_merge_patch(target, patch) == wanted
    assert (target, patch) == before


def test_merge_patch_that_is_no_object_is_a_bad_request() -> None:
    with pytest.raises(BadRequest, match="must be a JSON object, got a list"):
        apply_merge_patch({}, [1])


# RFC 6902, appendix A, and the corners between.
JSON_CASES: list[tuple[Any, list[dict[str, Any]], Any]] = [
    ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": 1}], {"foo": "bar", "baz": 1}),
    ({"a": ["x", "y"]}, [{"op": "add", "path": "/a/1", "value": "z"}], {"a": ["x", "z", "y"]}),
    ({"a": ["x"]}, [{"op": "add", "path": "/a/1", "value": "y"}], {"a": ["x", "y"]}),
    ({"a": ["x"]}, [{"op": "add", "path": "/a/-", "value": ["y"]}], {"a": ["x", ["y"]]}),
    ({"a": ["x", "y"]}, [{"op": "remove", "path": "/a/0"}], {"a": ["y"]}),
    ({"a": 1}, [{"op": "replace", "path": "/a", "value": None}], {"a": None}),
    (
        {"a": {"b": 1, "c": 2}, "d": {}},
        [{"op": "move", "from": "/a/b", "path": "/d/e"}],
        {"a": {"c": 2}, "d": {"e": 1}},
    ),
    (
        {"a": ["1", "2", "3"]},
        [{"op": "move", "from": "/a/0", "path": "/a/2"}],
        {"a": ["2", "3", "1"]},
    ),
    ({"a": {"b": 1}}, [{"op": "copy", "from": "/a", "path": "/c"}], {"a": {"b": 1}, "c": {"b": 1}}),
    ({"a/b": 1, "m~n": 2}, [{"op": "remove", "path": "/a~1b"}], {"m~n": 2}),
    ({"~1": 5}, [{"op": "test", "path": "/~01", "value": 5}], {"~1": 5}),
    ({"": 1}, [{"op": "replace", "path": "/", "value": 2}], {"": 2}),
    ({"a": 1}, [{"op": "add", "path": "", "value": {"b": 2}}], {"b": 2}),
    ({"a": 1}, [{"op": "test", "path": "/a", "value": 1.0}], {"a": 1}),
    ({}, [{"op": "test", "path": "/gone", "value": None}], {}),
]


@pytest.mark.parametrize(("target", "ops", "wanted"), JSON_CASES)
def test_json_patch_does_what_the_rfc_says(
    target: Any, ops: list[dict[str, Any]], wanted: Any
) -> None:
    before = copy.deepcopy((target, ops))
    assert apply_json_patch(target, ops) == wanted
    assert (target, ops) == before


@pytest.mark.parametrize(
    "op",
    [
        {"op": "test", "path": "/a", "value": 2},
        {"op": "test", "path": "/yes", "value": 1},
        {"op": "remove", "path": "/gone"},
        {"op": "remove", "path": ""},
        {"op": "replace", "path": "/gone", "value": 1},
        {"op": "add", "path": "/gone/b", "value": 1},
        {"op": "add", "path": "/list/3", "value": 1},
        {"op": "add", "path": "/list/01", "value": 1},
        {"op": "add", "path": "/list/-1", "value": 1},
        {"op": "replace", "path": "/list/-", "value": 1},
        {"op": "add", "path": "no-slash", "value": 1},
        {"op": "add", "path": "/bad~2escape", "value": 1},
        {"op": "add", "path": "/a"},
        {"op": "add", "path": ["a"], "value": 1},
        {"op": "move", "path": "/list/0/x", "from": "/list"},
        {"op": "copy", "path": "/b"},
        {"op": "frobnicate", "path": "/a"},
        {"op": ["add"], "path": "/a"},
    ],
)
def test_json_patch_that_does_not_apply_is_invalid(op: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as caught:
        apply_json_patch({"a": 1, "yes": True, "list": [1, 2]}, [op])
    details = caught.value.status.details
    assert details is not None
    assert details.causes == ()  # as upstream: what is wrong stands in the message alone


def test_json_patch_applies_all_operations_or_none() -> None:
    target = {"a": [1]}
    ops = [{"op": "add", "path": "/a/-", "value": 2}, {"op": "test", "path": "/a", "value": []}]
    with pytest.raises(Invalid, match="testing value /a failed"):
        apply_json_patch(target, ops)
    assert target == {"a": [1]}


def test_json_patch_is_limited_in_operations_and_in_copied_bytes() -> None:
    with pytest.raises(TooLarge, match="maximum operations in a JSON patch is 10000, got 10001"):
        apply_json_patch({}, [{"op": "test", "path": "/a"}] * (patches.OPERATIONS_MAX + 1))
    doubling = [{"op": "copy", "from": "/a", "path": "/a/-"} for _ in range(60)]
    with pytest.raises(TooLarge, match="copy more than"):
        apply_json_patch({"a": ["x" * 1000]}, doubling)


def _pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": spec}


def _patched(target: dict[str, Any], patch: dict[str, Any]) -> Any:
    before = copy.deepcopy((target, patch))
    result = apply_strategic_patch(target, patch, POD)
    assert (target, patch) == before, "inputs must stay as they were"
    return result


def test_strategic_patch_merges_containers_by_name_and_deeper_lists_by_their_keys() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    target = _pod(
        containers=[{"name": "x", "image": "i", "args": ["1"], "env": env}, {"name": "y"}]
    )
    change = {"name": "x", "args": ["2"], "env": [{"name": "B", "value": "3"}]}
    result = _patched(target, {"spec": {"containers": [change]}})
    assert result["spec"]["containers"] == [
        {
            "name": "x",
            "image": "i",
            "args": ["2"],
            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}],
        },
        {"name": "y"},
    ]


@pytest.mark.parametrize(
    ("schema", "field", "key", "old", "new"),
    [
        (PODS, ("spec", "volumes"), "name", "v", "w"),
        (PODS, ("spec", "initContainers"), "name", "v", "w"),
        (PODS, ("spec", "imagePullSecrets"), "name", "v", "w"),
        (PODS, ("spec", "hostAliases"), "ip", "1.1.1.1", "2.2.2.2"),
        (PODS, ("status", "conditions"), "type", "Ready", "Initialized"),
        (PODS, ("metadata", "ownerReferences"), "uid", "1", "2"),
        (NODES, ("status", "conditions"), "type", "Ready", "DiskPressure"),
        (SERVICES, ("spec", "ports"), "port", 80, 443),
    ],
)
def test_strategic_patch_knows_the_merge_keys_of_the_built_in_kinds(
    schema: Any, field: tuple[str, str], key: str, old: Any, new: Any
) -> None:
    target = {field[0]: {field[1]: [{key: old, "x": 1}]}}
    patch = {field[0]: {field[1]: [{key: old, "y": 2}, {key: new}]}}
    result = apply_strategic_patch(target, patch, builtin_schema(schema.kind))
    assert result[field[0]][field[1]] == [{key: old, "x": 1, "y": 2}, {key: new}]


def test_strategic_patch_merges_ports_and_mounts_by_their_keys() -> None:
    container = {
        "name": "c",
        "ports": [{"containerPort": 80, "name": "http"}],
        "volumeMounts": [{"mountPath": "/a", "name": "v"}],
    }
    change = {
        "name": "c",
        "ports": [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 81}],
        "volumeMounts": [{"mountPath": "/a", "readOnly": True}],
    }
    result = _patched(_pod(containers=[container]), {"spec": {"containers": [change]}})
    (merged,) = result["spec"]["containers"]
    assert merged["ports"] == [
        {"containerPort": 80, "name": "http", "protocol": "TCP"},
        {"containerPort": 81},
    ]
    assert merged["volumeMounts"] == [{"mountPath": "/a", "name": "v", "readOnly": True}]


def test_strategic_patch_replaces_lists_without_a_merge_key() -> None:
    target = _pod(tolerations=[{"key": "a"}, {"key": "b"}])
    result = _patched(target, {"spec": {"tolerations": [{"key": "c"}]}})
    assert result["spec"]["tolerations"] == [{"key": "c"}]


def test_strategic_patch_treats_finalizers_as_a_set() -> None:
    target = {"metadata": {"finalizers": ["a", "b"]}}
    added = _patched(target, {"metadata": {"finalizers": ["b", "c"]}})
    assert sorted(added["metadata"]["finalizers"]) == ["a", "b", "c"]
    removed = _patched(target, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}})
    assert removed["metadata"] == {"finalizers": ["b"]}


def test_delete_and_replace_directives_work_on_lists_and_on_maps() -> None:
    target = _pod(containers=[{"name": "x"}, {"name": "y"}], nodeSelector={"a": "1", "b": "2"})
    gone = _patched(target, {"spec": {"containers": [{"name": "x", "$patch": "delete"}]}})
    assert gone["spec"]["containers"] == [{"name": "y"}]
    new = _patched(target, {"spec": {"containers": [{"$patch": "replace"}, {"name": "z"}]}})
    assert new["spec"]["containers"] == [{"name": "z"}]
    selector = _patched(target, {"spec": {"nodeSelector": {"$patch": "replace", "c": "3"}}})
    assert selector["spec"]["nodeSelector"] == {"c": "3"}
    empty = _patched(target, {"spec": {"nodeSelector": {"$patch": "delete"}}})
    assert empty["spec"]["nodeSelector"] == {}


def test_directives_never_end_up_in_the_result() -> None:
    patch = {
        "spec": {
            "volumes": [{"name": "v", "$retainKeys": ["name", "emptyDir"], "emptyDir": {}}],
            "containers": [{"name": "gone", "$patch": "delete"}, {"name": "c"}],
            "$setElementOrder/containers": [{"name": "c"}],
        }
    }
    result = _patched({"metadata": {}}, patch)
    assert "$" not in str(result)
    assert result["spec"]["containers"] == [{"name": "c"}]


def test_retain_keys_drops_the_old_source_of_a_volume() -> None:
    target = _pod(volumes=[{"name": "v", "hostPath": {"path": "/x"}}, {"name": "w"}])
    change = {"name": "v", "$retainKeys": ["name", "emptyDir"], "emptyDir": {}}
    result = _patched(target, {"spec": {"volumes": [change]}})
    assert result["spec"]["volumes"] == [{"name": "v", "emptyDir": {}}, {"name": "w"}]


def test_set_element_order_sorts_and_leaves_the_servers_own_elements_where_they_stood() -> None:
    target = _pod(containers=[{"name": n} for n in ("a", "own", "b", "c")])
    patch = {
        "$setElementOrder/containers": [{"name": n} for n in ("c", "b", "a", "new")],
        "containers": [{"name": "new", "image": "i"}],
    }
    result = _patched(target, {"spec": patch})
    names = [c["name"] for c in result["spec"]["containers"]]
    assert [n for n in names if n != "own"] == ["c", "b", "a", "new"]
    assert sorted(names) == ["a", "b", "c", "new", "own"]
    primitives = _patched(
        {"metadata": {"finalizers": ["a", "b"]}},
        {"metadata": {"$setElementOrder/finalizers": ["c", "b", "a"], "finalizers": ["c"]}},
    )
    assert primitives["metadata"]["finalizers"] == ["c", "b", "a"]


def test_null_deletes_and_an_unmatched_null_is_ignored() -> None:
    target = _pod(nodeName="n", containers=[{"name": "x", "image": "i"}])
    patch = {"spec": {"nodeName": None, "hostname": None, "containers": [{"name": "x", "a": None}]}}
    result = _patched(target, patch)
    assert result["spec"] == {"containers": [{"name": "x", "image": "i"}]}


@pytest.mark.parametrize(
    ("patch", "error", "words"),
    [
        ({"spec": {"containers": [{"image": "i"}]}}, Invalid, "declared merge key: name"),
        ({"spec": {"containers": ["x"]}}, Invalid, "must be objects with the merge key 'name'"),
        ({"spec": {"containers": [{"name": {}}]}}, Invalid, "must be a scalar"),
        ({"spec": {"$patch": "explode"}}, BadRequest, "unknown patch type explode"),
        ({"spec": {"$retainKeys": 1}}, BadRequest, "retainKeys"),
        ({"spec": {"$retainKeys": ["a"], "b": 1}}, BadRequest, "retainKeys"),
        ({"spec": {"$setElementOrder/containers": 1}}, BadRequest, "setElementOrder"),
        ({"spec": {"$setElementOrder": []}}, BadRequest, "setElementOrder"),
        ({"metadata": {"$deleteFromPrimitiveList/finalizers": 1}}, BadRequest, "primitive list"),
        (
            {
                "spec": {
                    "$setElementOrder/containers": [{"name": "x"}],
                    "containers": [{"name": "other"}],
                }
            },
            Invalid,
            "order in patch list",
        ),
    ],
)
def test_a_malformed_strategic_patch_says_what_is_wrong(
    patch: dict[str, Any], error: type[ApiError], words: str
) -> None:
    with pytest.raises(error, match=words):
        apply_strategic_patch(_pod(containers=[{"name": "x"}]), patch, POD)


def test_endless_nesting_is_a_bad_request_in_every_kind_of_patch() -> None:
    deep: Any = {}
    for _ in range(20_000):
        deep = {"a": deep}
    with pytest.raises(BadRequest, match="nested too deeply"):
        apply_merge_patch(deep, deep)
    with pytest.raises(BadRequest, match="nested too deeply"):
        apply_strategic_patch(deep, deep, builtin_schema("ConfigMap"))
    with pytest.raises(BadRequest, match="nested too deeply"):
        apply_json_patch(deep, [{"op": "add", "path": "/a" * 15_000, "value": 1}])
