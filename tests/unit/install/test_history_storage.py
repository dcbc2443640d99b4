"""What `fairlead install` says of the history, by the StorageClasses of the cluster."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.api.status import Forbidden
from fairlead.install.history_storage import (
    IS_DEFAULT,
    PATH,
    StorageClasses,
    advice,
    missing_class,
    read_storage_classes,
)
from fairlead.install.values import HistoryKind, HistoryValues, Sqlite

MEMORY, SQLITE, POSTGRES = (
    HistoryValues(kind=kind)
    for kind in (HistoryKind.MEMORY, HistoryKind.SQLITE, HistoryKind.POSTGRES)
)
NAMED = HistoryValues(kind=HistoryKind.SQLITE, sqlite=Sqlite(storage_class_name="fast"))
NONE, NO_DEFAULT = StorageClasses(), StorageClasses(("fast", "slow"))
DEFAULT = StorageClasses(("fast", "slow"), "slow")
LOST = "are lost when the controllers restart"
ONE_VALUE = "history.kind sqlite with replicas 1, or history.kind postgres"
NAME_ONE = "history.sqlite.storageClassName (one of fast, slow; none is the default), or"
ONLY_POSTGRES = "history.kind postgres, since this cluster has no StorageClass"
PENDING = "stays Pending and the controllers do not start"


@pytest.mark.parametrize(
    ("history", "classes", "parts"),
    [
        (MEMORY, DEFAULT, (LOST, ONE_VALUE)),
        (MEMORY, NO_DEFAULT, (LOST, NAME_ONE)),
        (MEMORY, NONE, (LOST, ONLY_POSTGRES)),
        (MEMORY, None, (LOST, ONE_VALUE)),
        (SQLITE, DEFAULT, ()),
        (SQLITE, NO_DEFAULT, ("There is no default StorageClass", PENDING, NAME_ONE)),
        (SQLITE, NONE, ("There is no default StorageClass", PENDING, ONLY_POSTGRES)),
        (SQLITE, None, ()),
        (NAMED, NO_DEFAULT, ()),
        (NAMED, NONE, ("There is no StorageClass fast", PENDING, ONLY_POSTGRES)),
        (POSTGRES, NONE, ()),
    ],
)
def test_the_advice_follows_from_the_kind_and_the_classes(
    history: HistoryValues, classes: StorageClasses | None, parts: tuple[str, ...]
) -> None:
    said = advice(history, classes)
    assert bool(said) is bool(parts)
    for part in parts:
        assert part in said


def test_a_check_names_the_class_that_the_volume_lacks() -> None:
    found = missing_class(SQLITE, NONE)
    assert found is not None
    assert (found.label, found.is_well) == ("StorageClass (the default)", False)
    assert missing_class(NAMED, NO_DEFAULT) is None
    assert missing_class(NAMED, StorageClasses(("slow",), "slow")) is not None


def _api(answer: object) -> Any:
    def request(method: str, path: str) -> Any:
        assert (method, path) == ("GET", PATH)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(body=json.dumps(answer).encode())

    return SimpleNamespace(request=request)


def test_the_default_class_is_the_one_that_says_so() -> None:
    items = [
        {"metadata": {"name": "slow", "annotations": {IS_DEFAULT: "true"}}},
        {"metadata": {"name": "fast", "annotations": {IS_DEFAULT: "false"}}},
        {"metadata": {"name": "other"}},
    ]
    found = read_storage_classes(_api({"items": items}))
    assert found == StorageClasses(("fast", "other", "slow"), "slow")
    assert read_storage_classes(_api({"items": None})) == NONE
    assert read_storage_classes(_api(Forbidden("no"))) is None
