"""Server-side apply as pure functions: sets of fields, types, merging, and who owns what.

The cases follow those of structured-merge-diff; `tests/conformance` compares with a real server.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from fairlead.embedded.apply import (
    ApplyConflict,
    BadConfig,
    BadFields,
    FieldSet,
    Managers,
    ObjectType,
    Writer,
    applied,
    builtin_type,
    custom_type,
    decode,
    encode,
    updated,
)
from fairlead.embedded.apply import field_set as sets
from fairlead.embedded.apply.managers import Manager, OwnedFields
from fairlead.embedded.apply.types import ABSENT, DEDUCED, LEAF, _table
from fairlead.embedded.apply.walk import compare, fields_of, merge, reconciled, remove
from fairlead.embedded.builtins import BUILTINS

OPEN: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "items": {
            "type": "array", "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name", "zone"],
            "items": {"type": "object", "properties": {
                "name": {"type": "string"}, "zone": {"type": "string", "default": "a"},
                "n": {"type": "integer"},
            }},
        },
        "atomic": {"type": "array", "items": {"type": "string"}},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
        "whole": {"type": "object", "x-kubernetes-map-type": "atomic",
                  "properties": {"a": {"type": "string"}}},
        "free": OPEN,
    },
}  # fmt: skip
TYPE = custom_type(SCHEMA)
A, B = ("f:a",), ("f:a", "f:b")


def writer(name: str, *, version: str = "v1", type_: ObjectType = TYPE, time: str = "t1") -> Writer:
    def type_in(asked: str) -> ObjectType | None:
        return type_ if asked in ("v1", "v2") else None

    def convert(obj: dict[str, Any], given: str, wanted: str) -> dict[str, Any]:
        return obj

    return Writer(name, version, time, type_in, convert, {"f:status": {}})


def entry(**fields: Any) -> dict[str, Any]:
    return {
        "manager": "a", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:name": {}}, **fields,
    }  # fmt: skip


def put(live: dict[str, Any], config: dict[str, Any], managers: Managers, name: str,
        **how: Any) -> tuple[dict[str, Any], Managers]:  # fmt: skip
    """Apply, and prove that nothing given was changed."""
    before = copy.deepcopy((live, config, managers))
    made = applied(live, config, managers, writer(name), force=how.get("force", False))
    assert (live, config, managers) == before
    return made.object, made.managers


def owned(managers: Managers, name: str) -> FieldSet:
    return next((each.fields for m, each in managers.items() if m.name == name), {})


# ---------------------------------------------------------------------- sets

BOTH: FieldSet = {"f:a": {".": {}, "f:b": {}}}
CASES: list[tuple[str, FieldSet, FieldSet, FieldSet]] = [
    ("union", {"f:a": {}}, {"f:a": {"f:b": {}}}, BOTH),
    ("union", {"f:a": {"f:b": {}}}, {"f:a": {"f:c": {}}}, {"f:a": {"f:b": {}, "f:c": {}}}),
    ("intersection", BOTH, {"f:a": {}}, {"f:a": {}}),
    ("intersection", BOTH, {"f:a": {"f:b": {}}}, {"f:a": {"f:b": {}}}),
    ("intersection", {"f:a": {}}, {"f:a": {"f:b": {}}}, {}),
    ("difference", BOTH, {"f:a": {}}, {"f:a": {"f:b": {}}}),
    ("difference", BOTH, {"f:a": {"f:b": {}}}, {"f:a": {}}),
    ("difference", {"f:a": {}}, {"f:a": {"f:b": {}}}, {"f:a": {}}),
    ("difference", BOTH, BOTH, {}),
    ("without", BOTH, {"f:a": {}}, {}),
    ("without", BOTH, {"f:a": {"f:b": {}}}, {"f:a": {}}),
    ("without", {"f:a": {"f:b": {}}}, {"f:a": {"f:b": {}}}, {}),
]


@pytest.mark.parametrize(("operation", "a", "b", "wanted"), CASES)
def test_sets_of_fields_combine(operation: str, a: FieldSet, b: FieldSet, wanted: FieldSet) -> None:
    before = copy.deepcopy((a, b))
    assert getattr(sets, operation)(a, b) == wanted
    assert (a, b) == before


def test_a_parent_is_in_the_set_only_where_it_says_so() -> None:
    assert sets.has(BOTH, A)
    assert sets.has(BOTH, B)
    assert not sets.has({"f:a": {"f:b": {}}}, A)
    assert not sets.has({}, A)


def test_paths_come_in_order_and_are_shown_as_people_read_them() -> None:
    tree: FieldSet = {
        "f:z": {}, "v:2": {}, "f:a": {"k:{\"name\":\"x\",\"port\":9}": {".": {}, "f:b": {}}},
        "v:10": {}, "i:3": {}, "k:{\"name\":\"b\"}": {}, "k:{\"name\":\"a\"}": {}, "v:\"t\"": {},
        "v:true": {}, "v:null": {},
    }  # fmt: skip
    assert [sets.shown(path) for path in sets.paths_of(tree)] == [
        ".z", '[name="a"]', '[name="b"]', "[=2]", "[=10]", '[="t"]', "[=true]", "[=null]", "[3]",
        '.a[name="x",port=9]', '.a[name="x",port=9].b',
    ]  # fmt: skip


def test_fields_from_the_wire_are_brought_into_one_form() -> None:
    given = {'k:{ "b":1, "a":"<"}': {".": {}}, "v: 3": {}, "x:future": {}, "f:a b": {"f:c": {}}}
    assert sets.decode(given) == {
        'k:{"a":"\\u003c","b":1}': {}, "v:3": {}, "f:a b": {"f:c": {}},
    }  # fmt: skip


@pytest.mark.parametrize("step", ["", "f", "no-colon", "v:nope", "k:[1]", "k:{", "i:x", "i:1.5"])
def test_steps_that_are_none_are_refused(step: str) -> None:
    with pytest.raises(BadFields):
        sets.decode({step: {}})


def test_fields_that_nest_without_end_are_refused() -> None:
    tree: FieldSet = {}
    for _ in range(sets.DEPTH_MAX + 2):
        tree = {"f:a": tree}
    with pytest.raises(BadFields):
        sets.decode(tree)


# ---------------------------------------------------------------------- types


def test_every_built_in_kind_has_a_type_and_no_word_of_the_table_is_unknown() -> None:
    for name in _table():
        assert builtin_type(name).fields
    for info in BUILTINS:
        assert builtin_type(info.kind).fields["metadata"] is not LEAF


def test_lists_and_maps_merge_as_the_schema_of_a_custom_kind_says() -> None:
    value = {
        "name": "x", "set": ["a"], "items": [{"name": "i", "n": 1}], "atomic": ["a"],
        "map": {"k": "v"}, "whole": {"a": "b"}, "free": {"deep": {"list": [1]}},
    }  # fmt: skip
    assert fields_of(value, TYPE) == {
        "f:name": {}, "f:set": {'v:"a"': {}},
        "f:items": {'k:{"name":"i","zone":"a"}': {".": {}, "f:name": {}, "f:n": {}}},
        "f:atomic": {}, "f:map": {"f:k": {}}, "f:whole": {},
        "f:free": {"f:deep": {".": {}, "f:list": {}}},
    }  # fmt: skip


def test_what_has_no_schema_is_owned_by_field_and_lists_as_a_whole() -> None:
    assert custom_type(OPEN).of("x") is DEDUCED
    assert fields_of({"x": {"y": [1]}, "z": {}}, custom_type(OPEN)) == {
        "f:x": {".": {}, "f:y": {}}, "f:z": {},
    }  # fmt: skip


def test_a_field_that_has_become_atomic_is_owned_as_a_whole() -> None:
    was: FieldSet = {"f:whole": {"f:a": {}}, "f:map": {"f:k": {}}}
    assert reconciled(was, TYPE) == {"f:whole": {}, "f:map": {"f:k": {}}}
    assert reconciled({"f:map": {"f:k": {}}}, TYPE) == {"f:map": {"f:k": {}}}


# ---------------------------------------------------------------------- values


def test_a_comparison_puts_each_field_into_one_set() -> None:
    old = {"name": "a", "set": ["x", "y"], "map": {"k": "1", "l": "1"}, "atomic": ["1"]}
    new = {"name": "b", "set": ["y", "z"], "map": {"k": "1"}, "atomic": ["2"], "free": {"n": 1}}
    change = compare(old, new, TYPE)
    assert change.modified == {"f:name": {}, "f:atomic": {}}
    assert change.removed == {"f:set": {'v:"x"': {}}, "f:map": {"f:l": {}}}
    assert change.added == {"f:set": {'v:"z"': {}}, "f:free": {".": {}, "f:n": {}}}
    assert not any(compare(new, new, TYPE))


def test_a_value_that_changes_its_kind_is_modified_and_its_fields_come_or_go() -> None:
    change = compare({"free": {"x": 1}}, {"free": {"x": {"y": 2}}}, TYPE)
    assert change.modified == {"f:free": {"f:x": {}}}
    assert change.added == {"f:free": {"f:x": {"f:y": {}}}}
    assert compare({"free": {"x": {"y": 2}}}, {"free": {"x": 1}}, TYPE).removed == change.added


def test_items_with_one_key_are_compared_as_a_whole() -> None:
    one, two = {"name": "a", "n": 1}, {"name": "a", "n": 2}
    step = 'k:{"name":"a","zone":"a"}'
    assert compare({"items": [one, one]}, {"items": [one, two]}, TYPE).modified == {
        "f:items": {step: {}}
    }
    assert compare({"items": [one, two]}, {"items": [one]}, TYPE).removed == {"f:items": {step: {}}}
    assert compare({"items": [one]}, {"items": [one, two]}, TYPE).added == {"f:items": {step: {}}}


LISTS: list[tuple[str, str, str]] = [
    ("abc", "cb", "acb"), ("abc", "bd", "abcd"), ("", "ab", "ab"), ("ab", "", "ab"),
    ("abcd", "da", "bcda"), ("ab", "xby", "axby"), ("abc", "abc", "abc"),
    ("abcde", "edcba", "edcba"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "config", "wanted"), LISTS)
def test_items_come_in_the_order_of_the_configuration(old: str, config: str, wanted: str) -> None:
    merged = merge({"set": list(old)}, {"set": list(config)}, TYPE)
    assert "".join(merged["set"]) == wanted


def test_merging_keeps_what_the_configuration_does_not_say() -> None:
    old = {
        "items": [{"name": "a", "n": 1}],
        "map": {"x": "1"},
        "atomic": ["1"],
        "whole": {"a": "1"},
    }
    config = {"items": [{"name": "a", "zone": "a"}], "map": {"y": "2"}, "atomic": ["2"],
              "whole": {}, "free": None}  # fmt: skip
    assert merge(old, config, TYPE) == {
        "items": [{"name": "a", "zone": "a", "n": 1}], "map": {"x": "1", "y": "2"},
        "atomic": ["2"], "whole": {}, "free": None,
    }  # fmt: skip


def test_removing_goes_by_field_and_item_and_leaves_nothing_empty_behind() -> None:
    value = {"name": "a", "set": ["x", "y"], "map": {"k": "1"}, "items": [{"name": "i", "n": 1}]}
    gone: FieldSet = {
        "f:name": {}, "f:set": {'v:"x"': {}}, "f:map": {"f:k": {}},
        "f:items": {'k:{"name":"i","zone":"a"}': {"f:n": {}}},
    }  # fmt: skip
    left = {"set": ["y"], "items": [{"name": "i"}]}
    assert remove(value, gone, TYPE, emptied=ABSENT) == left
    assert remove(value, gone, TYPE, emptied=None) == {**left, "map": None}


# ---------------------------------------------------------------------- owners


def test_an_update_owns_what_it_changed_and_others_lose_it() -> None:
    first = updated({}, {"name": "a", "map": {"x": "1", "y": "1"}}, {}, writer("one"))
    old, new = {"name": "a", "map": {"x": "1", "y": "1"}}, {"name": "b", "map": {"x": "1"}}
    second = updated(old, new, first, writer("two"))
    assert owned(second, "one") == {"f:map": {".": {}, "f:x": {}}}
    assert owned(second, "two") == {"f:name": {}}


def test_a_conflict_names_every_field_and_its_manager() -> None:
    live, managers = put({}, {"name": "a", "map": {"x": "1"}}, {}, "one")
    with pytest.raises(ApplyConflict) as caught:
        put(live, {"name": "b", "map": {"x": "2"}}, managers, "two")
    assert str(caught.value) == (
        'Apply failed with 2 conflicts: conflicts with "one":\n- .name\n- .map.x'
    )
    forced, managers = put(live, {"name": "b"}, managers, "two", force=True)
    assert forced == {"name": "b", "map": {"x": "1"}}
    assert owned(managers, "one") == {"f:map": {"f:x": {}}}


def test_equal_values_are_shared_and_stay_until_nobody_applies_them() -> None:
    live, managers = put({}, {"name": "a", "set": ["x"]}, {}, "one")
    live, managers = put(live, {"set": ["x", "y"]}, managers, "two")
    live, managers = put(live, {"name": "a"}, managers, "one")
    assert live == {"name": "a", "set": ["x", "y"]}
    live, managers = put(live, {"name": "a", "map": {}}, managers, "two")
    assert live == {"name": "a", "map": {}}


def test_what_others_have_updated_stays_when_it_is_applied_no_more() -> None:
    live, managers = put({}, {"map": {"x": "1", "y": "1"}}, {}, "one")
    new = {"map": {"x": "1", "y": "2"}}
    managers = updated(live, new, managers, writer("editor"))
    live, managers = put(new, {"name": "n"}, managers, "one")
    assert live == {"name": "n", "map": {"y": "2"}}


def test_what_was_there_before_the_first_apply_has_a_manager_of_its_own() -> None:
    _, managers = put({"name": "a", "map": {"x": "1"}}, {"map": {"y": "2"}}, {}, "one")
    assert owned(managers, "before-first-apply") == {"f:name": {}, "f:map": {".": {}, "f:x": {}}}
    with pytest.raises(ApplyConflict, match=r'"before-first-apply" using v1: \.name'):
        put({"name": "a"}, {"name": "b"}, {}, "one")


def test_managers_of_versions_that_are_not_served_go() -> None:
    gone = Manager("old", "Update", "v0")
    managers = updated({}, {"name": "a"}, {gone: OwnedFields({"f:name": {}}, "v0")}, writer("one"))
    assert [manager.name for manager in managers] == ["one"]


def test_what_the_server_sets_and_what_names_the_object_has_no_owner() -> None:
    pod = {
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": "p", "uid": "u", "labels": {"a": "b"}},
        "spec": {"containers": [{"name": "m"}]}, "status": {"phase": "Running"},
    }  # fmt: skip
    managers = updated({}, pod, {}, writer("one", type_=builtin_type("Pod")))
    container = {".": {}, "f:name": {}, "f:resources": {}}
    assert owned(managers, "one") == {
        "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
        "f:spec": {"f:containers": {'k:{"name":"m"}': container}},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"nope": 1}, ".nope: field not declared in schema"),
        ({"set": ["a", "a"]}, '.set: duplicate entries for key [="a"]'),
        ({"set": [{}]}, ".set: element 0: associative list a set holds only scalars"),
        ({"map": ["a"]}, ".map: expected map, got ['a']"),
        ({"items": [None]}, ".items: element 0: associative list may not have a null element"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(config: Any, words: str) -> None:
    with pytest.raises(BadConfig) as caught:
        put({}, config, {}, "one")
    assert str(caught.value) == words


def test_too_many_updates_are_joined_oldest_first() -> None:
    managers: Managers = {}
    live: dict[str, Any] = {"map": {}}
    for number in range(12):
        new = {"map": {**live["map"], f"k{number:02}": "x"}}
        managers = updated(live, new, managers, writer(f"m{number:02}", time=f"t{number:02}"))
        live = new
    names = [entry["manager"] for entry in encode(managers)]
    assert names == ["ancient-changes", *(f"m{number:02}" for number in range(3, 12))]
    assert set(owned(managers, "ancient-changes")["f:map"]) >= {"f:k00", "f:k01", "f:k02"}


def test_managers_read_and_write_the_same() -> None:
    entries = [
        entry(time="t2"),
        entry(manager="b", time="t1", operation="Update", subresource="status"),
    ]
    assert encode(decode(entries)) == entries


@pytest.mark.parametrize(
    "change",
    [
        {"operation": "Melt"}, {"operation": None}, {"apiVersion": ""}, {"apiVersion": 1},
        {"fieldsType": "FieldsV2"}, {"fieldsType": None}, {"fieldsV1": []},
    ],
)  # fmt: skip
def test_entries_that_make_no_sense_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadFields):
        decode([entry(**change)])
