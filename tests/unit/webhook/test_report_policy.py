"""Who writes the report of a node, as the admission policy says it, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.api.cluster.node_report import COMPONENT_MAX
from fairlead.api.resources import NODE_REPORTS
from fairlead.api.status import Forbidden
from fairlead.sim.tenants.admission_policies import InstalledPolicies
from fairlead.webhook.policies import NODE_NAME_CLAIM, NODE_UID_CLAIM, REPORT_WRITERS_MAX

OWN = {NODE_NAME_CLAIM: ["n1"], NODE_UID_CLAIM: ["u1"]}
#: Of a node that is gone: the server knows its name only.
OF_NO_NODE = {NODE_NAME_CLAIM: ["n1"]}
POLICIES = InstalledPolicies()


class Rights:
    """What the server says of the rights of who asks."""

    def __init__(self, *, may_write_specs: bool) -> None:
        self._may = may_write_specs

    def _narrowed(self, _: str) -> Rights:
        return self

    group = resource = check = _narrowed

    def allowed(self) -> bool:
        return self._may


def is_refused(
    operation: str, new: dict[str, Any], old: dict[str, Any] | None = None, *,
    extra: dict[str, list[str]] | None, may_write_specs: bool = False,
) -> bool:  # fmt: skip
    user: dict[str, Any] = {"username": "u"} if extra is None else {"username": "u", "extra": extra}
    scope = {
        "object": new, "oldObject": old, "request": {"operation": operation, "userInfo": user},
        "authorizer": Rights(may_write_specs=may_write_specs),
    }  # fmt: skip
    plural = NODE_REPORTS.plural if operation == "CREATE" else f"{NODE_REPORTS.plural}/status"
    try:
        POLICIES.check(NODE_REPORTS.group, plural, scope, {})
    except Forbidden:
        return True
    return False


def report(name: str, uid: str | None = None, **more: Any) -> dict[str, Any]:
    status = {} if uid is None else {"status": {"nodeUid": uid}}
    return {"metadata": {"name": name, **more.pop("metadata", {})}, **status, **more}


@pytest.mark.parametrize("extra", [None, {}, {NODE_UID_CLAIM: ["u1"]}, {NODE_NAME_CLAIM: ["n2"]}])
def test_who_is_not_on_the_node_writes_no_report_of_it(extra: dict[str, list[str]] | None) -> None:
    assert is_refused("CREATE", report("n1"), extra=extra)
    assert is_refused("UPDATE", report("n1", "u1"), report("n1"), extra=extra)
    assert is_refused("UPDATE", report("n1", "u1"), report("n1", "u1"), extra=extra), "a read"


def test_who_is_on_the_node_writes_its_report_and_reads_it_whatever_it_says() -> None:
    assert not is_refused("CREATE", report("n1"), extra=OWN)
    assert not is_refused("CREATE", report("n1", spec={}), extra=OWN)
    assert not is_refused("UPDATE", report("n1", "u1"), report("n1"), extra=OWN)
    for stored in (report("n1"), report("n1", "u0")):
        assert not is_refused("UPDATE", stored, stored, extra=OWN)


@pytest.mark.parametrize(
    "more",
    [
        {"spec": {"egressAt": "2026-01-01T00:00:00Z"}}, {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"annotations": {"a": "b"}}}, {"metadata": {"finalizers": ["a/b"]}},
        {"metadata": {"ownerReferences": [{"name": "n2"}]}},
    ],
)  # fmt: skip
def test_a_new_report_says_nothing(more: dict[str, Any]) -> None:
    assert is_refused("CREATE", report("n1", **more), extra=OWN)
    assert not is_refused("CREATE", report("n1", **more), extra=OWN, may_write_specs=True)


def test_a_report_names_the_machine_of_the_token() -> None:
    assert is_refused("UPDATE", report("n1", "u2"), report("n1", "u1"), extra=OWN)
    assert is_refused("UPDATE", report("n1", status={"critical": 1}), report("n1"), extra=OWN)
    assert is_refused("UPDATE", report("n1", ""), report("n1"), extra=OF_NO_NODE)


def test_the_notes_of_who_has_written_a_report_are_bounded() -> None:
    for count, refused in ((REPORT_WRITERS_MAX, False), (REPORT_WRITERS_MAX + 1, True)):
        new = report("n1", "u1", metadata={"managedFields": [{}] * count})
        assert is_refused("UPDATE", new, report("n1"), extra=OWN) is refused


@pytest.mark.parametrize("where", ["facts", "values"])
def test_names_of_settings_are_bounded(where: str) -> None:
    for length, refused in ((COMPONENT_MAX, False), (COMPONENT_MAX + 1, True)):
        new = report("n1", status={"nodeUid": "u1", "tuning": {where: {"x" * length: "1"}}})
        assert is_refused("UPDATE", new, report("n1"), extra=OWN) is refused


def test_administrators_write_every_report() -> None:
    for extra in (None, OWN):
        new = report("n2", "u2")
        assert not is_refused("UPDATE", new, report("n2"), extra=extra, may_write_specs=True)
