"""Conditions and merge patches of typed values."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.api.jobs.job import Job
from fairlead.api.meta import Condition, find_condition, is_true, merge_diff, set_condition

T1, T2 = "2026-11-20T08:00:00Z", "2026-11-20T09:00:00Z"


def _condition(type_: str, status: str, at: str) -> Condition:
    return Condition(type=type_, status=status, last_transition_time=at)


def test_setting_a_condition_moves_its_time_only_when_the_status_changes() -> None:
    old = (_condition("Placed", "True", T1), _condition("Running", "False", T1))
    same = set_condition(old, _condition("Running", "False", T2))
    assert same == old
    changed = set_condition(old, _condition("Running", "True", T2))
    assert find_condition(changed, "Running") == _condition("Running", "True", T2)
    assert [c.type for c in changed] == ["Placed", "Running"]
    assert is_true(changed, "Running")
    assert not is_true(old, "Running")
    assert not is_true(old, "Failed")


def test_setting_a_condition_mends_a_list_that_has_it_twice() -> None:
    twice = (_condition("Running", "False", T1), _condition("Running", "False", T2))
    assert set_condition(twice, _condition("Running", "True", T2)) == (
        _condition("Running", "True", T2),
    )


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({"a": 1}, {"a": 1}, {}),
        ({"a": 1, "b": 2}, {"a": 1}, {"b": None}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, {"a": {"c": None}}),
        ({"a": 1}, {"a": True}, {"a": True}),
        ({"a": {"b": 1}}, {"a": {"b": True}}, {"a": {"b": True}}),
        ({"a": [1]}, {"a": [1.0]}, {"a": [1.0]}),
        ({"a": [{"b": 1}]}, {"a": [{"b": True}]}, {"a": [{"b": True}]}),
        ({"a": 1}, {"a": {}}, {"a": {}}),
        ({"a": {"b": 1}}, {"a": {}}, {"a": {"b": None}}),
    ],
)
def test_merge_diff_names_what_differs_down_to_the_type(
    old: dict[str, Any], new: dict[str, Any], patch: dict[str, Any]
) -> None:
    assert merge_diff(old, new) == patch
    assert repr(merge_diff(old, new)) == repr(patch)


def test_a_job_decodes_with_its_bounds() -> None:
    job = msgspec.json.decode(
        b'{"spec":{"roles":[{"name":"w","template":{}}],"timeLimitSeconds":60,"new":1}}', type=Job
    )
    assert job.spec.time_limit_seconds == 60
    assert job.member_count == 1
    with pytest.raises(msgspec.ValidationError, match="timeLimitSeconds"):
        msgspec.json.decode(b'{"spec":{"timeLimitSeconds":0,"roles":[]}}', type=Job)
