"""What v1beta1 does about each field follows the API conventions, and no row of it is stale."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tools.generate_api_review import INSTANTS, PURE, Field, faults, fields

from fairlead.api.schema.beta_names import NAMES, PATHS


def test_every_field_of_every_kind_has_a_name_that_follows_the_conventions() -> None:
    found = list(fields())
    kinds = Counter(each.path.partition(".")[0] for each in found)
    assert len(kinds) == 9
    assert min(kinds.values()) > 5
    assert [(each.path, said) for each in found for said in faults(each)] == []


@pytest.mark.parametrize(
    ("path", "schema", "said"),
    [
        ("Job.status.ownerUid", {"type": "string"}, "an acronym has two cases"),
        ("Job.status.wokenAt", {"type": "string", "format": "date-time"}, "a point in time"),
        ("Job.spec.fleet", {"type": "string"}, "the name of an object"),
        ("Job.status.isLate", {"type": "boolean"}, "a boolean begins with a verb"),
        ("Job.spec.delay", {"type": "integer"}, "a number has no unit"),
        ("Job.spec.delaySeconds", {"type": "number"}, "a spec has a floating point number"),
    ],
    ids=["acronym", "instant", "reference", "boolean", "unit", "fraction"],
)
def test_a_new_field_that_breaks_a_convention_is_found(
    path: str, schema: dict[str, Any], said: str
) -> None:
    [found] = faults(Field(path, schema, is_list=False, default=None))
    assert found.startswith(said)


def test_new_names_are_different_within_each_object_so_that_they_can_be_turned_back() -> None:
    siblings = Counter((each.path.rpartition(".")[0], each.beta_name) for each in fields())
    assert [each for each, count in siblings.items() if count > 1] == []


def test_every_decision_is_about_a_field_that_there_is() -> None:
    found = list(fields())
    paths, names = {each.path for each in found}, {each.name for each in found}
    assert set(PATHS) <= paths
    assert set(NAMES) <= names
    after = {each.beta_name for each in found}
    assert after >= INSTANTS | PURE
