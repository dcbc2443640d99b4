"""Selectors: which texts parse, and what they match."""

from __future__ import annotations

import pytest

from fairlead.api.kubernetes.selectors import (
    SelectorError,
    is_label_value,
    is_qualified_name,
    parse_fields,
    parse_labels,
    selector_of,
)
from fairlead.api.meta import LabelSelector, LabelSelectorRequirement

LABELS = {"app": "web", "tier": "front", "empty": ""}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True), ("  ", True), ("app=web", True), ("app==web", True), ("app = web", True),
        ("app=api", False), ("app!=api", True), ("app!=web", False), ("gone!=x", True),
        ("app", True), ("!gone", True), ("! app", False), ("gone", False), ("empty=", True),
        ("app in (web, api)", True), ("app in (api)", False), ("app notin (api)", True),
        ("gone notin (api)", True), ("app notin (web)", False), ("empty in ()", True),
        ("app=web,tier in (front,back),!gone", True), ("app=web,tier=back", False),
    ],
)  # fmt: skip
def test_label_selectors_match_as_kubernetes_does(text: str, *, matches: bool) -> None:
    assert parse_labels(text).matches(LABELS) is matches


@pytest.mark.parametrize(
    ("key", "operator", "values", "matches"),
    [
        ("app", "In", ("api", "web"), True), ("app", "In", ("api",), False),
        ("gone", "In", ("web",), False), ("app", "NotIn", ("web",), False),
        ("app", "NotIn", ("api",), True), ("gone", "NotIn", ("web",), True),
        ("empty", "Exists", (), True), ("gone", "Exists", (), False),
        ("empty", "DoesNotExist", (), False), ("gone", "DoesNotExist", (), True),
    ],
)  # fmt: skip
def test_the_operators_of_selectors_in_objects_match_as_kubernetes_does(
    key: str, operator: str, values: tuple[str, ...], *, matches: bool
) -> None:
    term = LabelSelectorRequirement(key=key, operator=operator, values=values)
    for labels, expected in (({}, matches), ({"tier": "front"}, matches), ({"tier": "x"}, False)):
        found = selector_of(LabelSelector(match_labels=labels, match_expressions=(term,)))
        assert found.matches(LABELS) is expected


@pytest.mark.parametrize(
    "text",
    ["a=b=c", "a in b", "a in (b", "a,,b", ",", "a,", "=b", "a>1", "a b", "a/b/c=d", "/a",
     "a=b\n/c", "-a", "a=-b", "a=" + "b" * 64, "a in (b c)"],
)  # fmt: skip
def test_a_bad_label_selector_is_refused(text: str) -> None:
    with pytest.raises(SelectorError):
        parse_labels(text)


def test_field_selectors_know_equality_only() -> None:
    selector = parse_fields("spec.nodeName=n1,status.phase!=Failed")
    assert selector.matches({"spec.nodeName": "n1", "status.phase": "Running"})
    assert not selector.matches({"spec.nodeName": "n1", "status.phase": "Failed"})
    assert parse_fields("spec.nodeName=").matches({"spec.nodeName": ""})
    with pytest.raises(SelectorError, match="want field=value or field!=value"):
        parse_fields("spec.nodeName in (a)")


def test_names_and_values_end_where_they_end() -> None:
    assert is_qualified_name("fairlead.dev/job-name")
    assert not is_qualified_name("fairlead.dev/job-name\n")
    assert not is_qualified_name("Fairlead.dev/x")
    assert is_label_value("")
    assert not is_label_value("a\n")
