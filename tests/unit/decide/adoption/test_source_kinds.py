"""Which objects are read for a group: kinds of a closed list, and no others."""

from __future__ import annotations

import pytest
from tests.unit.decide.adoption.test_lifecycle import NOW, POLICY

from fairlead.api import names
from fairlead.api.jobs.job import Adopts, Job
from fairlead.api.meta import ObjectMeta
from fairlead.decide.adoption.actions import ReadSource
from fairlead.decide.adoption.group_job import group_of
from fairlead.decide.adoption.lifecycle import decide_group
from fairlead.decide.adoption.source_kinds import SOURCE_KINDS, resource_of, rules
from fairlead.decide.adoption.view import GroupView, readable
from fairlead.install.manifests import Install, manifests
from fairlead.model.pools.grouping import Tool
from fairlead.testing.builders import make_job


@pytest.mark.parametrize(
    ("api_version", "kind", "name"),
    [
        ("fairlead.dev/v1alpha1/namespaces/other/jobs/x?x=1", "StatefulSet", "n"),
        ("fairlead.dev/v1alpha1/jobs?watch=1&x=1", "Job", "n"),
        ("apps/v1/namespaces/other/statefulsets/x?x=1", "StatefulSet", "n"),
        ("apps/v1?watch=1", "StatefulSet", "n"),
        ("apps/../v1", "StatefulSet", "n"),
        ("/apps/v1", "StatefulSet", "n"),
        ("apps/v1\n", "StatefulSet", "n"),
        ("apps/v1", "StatefulSet", ""),
        ("apps/v1", "statefulset", "n"),
        ("v1", "Secret", "n"),
        ("v1", "Pod", "n"),
        ("kubeflow.org/v1", "Secret", "n"),
        ("rbac.authorization.k8s.io/v1", "ClusterRole", "n"),
        (names.API_VERSION, "Job", "n"),
        ("", "", "n"),
    ],
)
def test_a_kind_that_is_not_listed_is_never_read(api_version: str, kind: str, name: str) -> None:
    for attempt in (0, 1):
        job = make_job(
            "x", attempt=attempt, spec={"adopts": Adopts(kind, name, api_version)},
            labels={names.MANAGED_BY: "fairlead-adoption"},
        )  # fmt: skip
        group = group_of(job)
        assert readable(group) is None
        view = GroupView(key=job.metadata.key, group=group, job=job, idle_since=NOW - 1)
        actions = decide_group(view, POLICY, NOW).actions
        assert actions != ()
        assert not any(isinstance(action, ReadSource) for action in actions)


def test_each_listed_kind_is_read_where_it_is_served() -> None:
    assert len(SOURCE_KINDS) == len({(each.group, each.kind) for each in SOURCE_KINDS})
    for each in SOURCE_KINDS:
        job = Job(ObjectMeta("x", namespace="default"))
        spec = make_job("x", spec={"adopts": Adopts(each.kind, "n", f"{each.group}/v1")}).spec
        group = group_of(Job(job.metadata, spec))
        assert group is not None
        assert group.tool is each.tool
        assert readable(group) == group.source
        resource = resource_of(f"{each.group}/v1", each.kind)
        assert resource is not None
        assert resource.path("default", "n") == (
            f"/apis/{each.group}/v1/namespaces/default/{each.plural}/n"
        )


def test_a_group_that_only_a_label_names_and_a_pod_alone_have_no_object_that_is_read() -> None:
    for adopts, tool in (
        (Adopts("Gang", "g", names.API_VERSION), Tool.NAMED),
        (Adopts("Pod", "p", "v1"), Tool.POD),
        (Adopts("Workflow", "w", "argoproj.io/v1alpha1"), Tool.OWNED),
    ):
        group = group_of(make_job("x", spec={"adopts": adopts}))
        assert group is not None
        assert group.tool is tool
        assert readable(group) is None


def test_the_controllers_may_read_what_is_listed_and_nothing_else_of_these_groups() -> None:
    (role,) = (
        m for m in manifests(Install())
        if m["kind"] == "ClusterRole" and m["metadata"]["name"] == "fairlead-controller"
    )  # fmt: skip
    listed = dict(rules())
    granted = {
        group: rule["resources"]
        for rule in role["rules"] if rule["verbs"] == ["get"]
        for group in rule.get("apiGroups", ()) if group in listed
    }  # fmt: skip
    assert granted == listed
