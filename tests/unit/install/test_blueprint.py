"""Blanks in manifests: filled in by us, and written for Helm to fill in."""

from __future__ import annotations

import pytest

from fairlead.install.blueprint import (
    ABSENT,
    ChartOnly,
    Context,
    Given,
    Ref,
    Release,
    Spread,
    Text,
    When,
    resolve,
    template,
)

VALUES = {"on": True, "off": False, "name": "x", "map": {"a": "1"}, "none": {}, "list": [1, 2]}
CONTEXT = Context(VALUES, "space")


def test_what_is_absent_leaves_no_trace() -> None:
    tree = {
        "kept": When(Given("on"), {"inner": Ref("map")}),
        "gone": When(Given("off"), 1),
        "other": When(Given("name", "y"), 1, 2),
        "list": [When(Given("none"), 0), Spread(Ref("list")), ChartOnly("x")],
        "labels": {"own": "o", "more": Spread(Ref("map"))},
    }
    assert resolve(tree, CONTEXT) == {
        "kept": {"inner": {"a": "1"}}, "other": 2, "list": [1, 2],
        "labels": {"own": "o", "a": "1"},
    }  # fmt: skip
    assert resolve(ABSENT, CONTEXT) is ABSENT


def test_a_text_is_made_of_values_and_the_release() -> None:
    text = Text(("100%/", Ref("name"), "@", Release.NAMESPACE))
    assert resolve(text, CONTEXT) == "100%/x@space"
    expected = '{{ printf "100%%/%v@%v" .Values.name .Release.Namespace | toJson }}'
    assert template({"t": text}, VALUES) == f"t: {expected}\n"


def test_a_value_that_does_not_exist_is_our_mistake() -> None:
    with pytest.raises(KeyError):
        resolve(Ref("image.tagg"), CONTEXT)


def test_texts_that_yaml_or_helm_would_read_as_something_else_are_quoted() -> None:
    written = template({"a": "yes", "b": "12", "c": "{{ x }}", "d": "plain/text", "on": None}, {})
    assert written == ('a: "yes"\nb: "12"\nc: "{{ "{{" }} x }}"\nd: plain/text\n"on": null\n')
