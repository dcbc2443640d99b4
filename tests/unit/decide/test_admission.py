"""What admission does to a pod, and what it refuses in a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fairlead.api import names
from fairlead.decide.admission.jobs import AdmissionContext, judge_job, priority_to_set, refusal_of
from fairlead.decide.admission.pod_gates import (
    GateDecision,
    GateRules,
    OptIn,
    PodAnswer,
    PodGateShape,
    judge_pod,
    opt_in_of,
    reason_of,
)
from fairlead.decide.admission.teams import RequestSender
from fairlead.embedded.patch import apply_json_patch
from fairlead.model.asks.priorities import PriorityTable
from fairlead.testing.builders import make_priority_class

RULES = GateRules(own_namespace="ours")
ENABLED = {names.GANG_SCHEDULING: "enabled"}
GATE = {"name": names.GANG_GATE}


def judge(
    pod: Mapping[str, Any], namespace: str = "default", labels: Mapping[str, str] = ENABLED
) -> PodAnswer:
    shape = msgspec.convert(pod, PodGateShape)
    return judge_pod(shape, namespace, opt_in_of(shape, labels), RULES)


def after(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod as it is stored."""
    return apply_json_patch(pod, list(judge(pod).patch))


@pytest.mark.parametrize(
    "pod",
    [
        {"metadata": {}, "spec": {}},
        {"metadata": {"labels": None}, "spec": {"schedulingGates": None}},
        {"metadata": {"labels": {}}, "spec": {"schedulingGates": []}},
        {"metadata": {"labels": {"a/b": "c"}}, "spec": {"schedulingGates": [{"name": "x/y"}]}},
        {"metadata": {"labels": ENABLED}, "spec": {"schedulingGates": [{"name": "x/y"}, GATE]}},
        {"metadata": {"labels": {names.GANG_SCHEDULING: "yes"}}, "spec": {}},
    ],
)
def test_whatever_is_there_the_pod_ends_with_one_gate_and_the_label_and_keeps_the_rest(
    pod: dict[str, Any],
) -> None:
    made = after(pod)
    gates = made["spec"]["schedulingGates"]
    assert gates.count(GATE) == 1
    others = [gate for gate in pod["spec"].get("schedulingGates") or () if gate != GATE]
    assert [gate for gate in gates if gate != GATE] == others
    assert made["metadata"]["labels"] == {**(pod["metadata"].get("labels") or {}), **ENABLED}
    assert judge(made).patch == (), "asked again, it would change the pod again"
    assert judge(made).ruling is GateDecision.GATED_ALREADY


OWNER = {"name": "o", "uid": "u"}


@pytest.mark.parametrize(
    ("pod", "namespace", "ruling", "shown"),
    [
        ({"spec": {"nodeName": "n7"}}, "default", GateDecision.HAS_NODE, "n7"),
        (
            {"spec": {"schedulerName": "volcano"}},
            "default", GateDecision.OTHER_SCHEDULER, "volcano",
        ),
        ({}, "kube-system", GateDecision.SYSTEM, "kube-system"),
        ({}, "ours", GateDecision.SYSTEM, "ours"),
        (
            {"metadata": {"labels": {names.GANG_SCHEDULING: "disabled"}}},
            "default", GateDecision.DISABLED, "disabled",
        ),
        (
            {"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}},
            "default", GateDecision.MIRROR, "kubelet",
        ),
        (
            {"metadata": {"ownerReferences": [
                {"apiVersion": names.API_VERSION, "kind": "Job", **OWNER}]}},
            "default", GateDecision.MEMBER, "job o",
        ),
        (
            {"metadata": {"ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "DaemonSet", **OWNER}]}},
            "default", GateDecision.DAEMON, "DaemonSet o",
        ),
    ],
)  # fmt: skip
def test_what_must_not_wait_for_a_gang_is_left_alone_and_told_why(
    pod: dict[str, Any], namespace: str, ruling: GateDecision, shown: str
) -> None:
    answer = judge(pod, namespace)
    assert (answer.ruling, answer.patch) == (ruling, ())
    assert shown in reason_of(answer)


def test_a_job_of_another_group_is_no_job_of_ours() -> None:
    owners = [{"apiVersion": "batch/v1", "kind": "Job", **OWNER}]
    assert judge({"metadata": {"ownerReferences": owners}}).ruling is GateDecision.GATED


def test_a_pod_asks_by_itself_or_by_its_namespace_or_not_at_all() -> None:
    own = judge({"metadata": {"labels": ENABLED}}, labels={})
    assert (own.ruling, own.opt_in) == (GateDecision.GATED, OptIn.POD)
    assert [each["path"] for each in own.patch] == ["/spec/schedulingGates"]
    assert judge({}).opt_in is OptIn.NAMESPACE
    for labels in ({}, {names.GANG_SCHEDULING: "disabled"}, {names.GANG_SCHEDULING: "true"}):
        assert judge({}, labels=labels).ruling is GateDecision.NOT_ASKED


def test_a_label_that_means_nothing_is_replaced_with_a_warning() -> None:
    answer = judge({"metadata": {"labels": {names.GANG_SCHEDULING: "yes"}}})
    (warning,) = answer.warnings
    assert '"yes" was replaced by "enabled"' in warning
    assert judge({"metadata": {"labels": ENABLED}}).warnings == ()


# Jobs


def job(**spec: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    roles = [{"name": "worker", "count": 2, "template": template}]
    return {"metadata": {"name": "j"}, "spec": {"roles": roles, **spec}}


def fields(new: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    return [cause.field for cause in judge_job(new, old)]


def test_a_new_job_is_held_to_every_rule() -> None:
    assert fields(job()) == []
    bad = job(after=[{"job": "j"}])
    bad["spec"]["roles"][0]["template"]["spec"]["nodeName"] = "n"
    assert fields(bad) == ["spec.roles[0].template.spec.nodeName", "spec.after[0].job"]


def test_an_update_is_refused_for_what_it_brings_in_and_for_nothing_older() -> None:
    old = job(after=[{"job": "j"}])  # stored before the rule was there
    assert fields({**old, "metadata": {"name": "j", "finalizers": []}}, old) == []
    assert fields(job(after=[{"job": "j"}], cancel=True), old) == []
    assert fields(job(after=[{"job": "j"}, {"job": ""}]), old) == ["spec.after[1].job"]


def test_roles_cannot_be_changed() -> None:
    new = job()
    new["spec"]["roles"][0]["count"] = 3
    assert fields(new, job()) == ["spec.roles"]


CLASSES = PriorityTable(
    [make_priority_class("high", 1000), make_priority_class("system-node-critical", 2 * 10**9)]
)


def with_pod(body: dict[str, Any], **pod: Any) -> dict[str, Any]:
    body["spec"]["roles"][0]["template"]["spec"] |= pod
    return body


POD = "spec.roles[0].template.spec"


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        (job(priority=5), "spec.priority", "is 0; leave it out and name a class"),
        (job(priority=5, priorityClassName="high"), "spec.priority", "is 1000"),
        (job(priorityClassName="none"), "spec.priorityClassName", "no such PriorityClass"),
        (job(priorityClassName="system-node-critical"), "spec.priorityClassName", "reserved"),
        (with_pod(job(), priorityClassName="none"), f"{POD}.priorityClassName", "no such"),
        (
            with_pod(job(priorityClassName="high"), priorityClassName="low"),
            f"{POD}.priorityClassName",
            "must be the job's own class, high",
        ),
        (with_pod(job(), priority=7), f"{POD}.priority", "is 0; leave it out"),
    ],
)
def test_a_priority_is_what_its_class_says(body: dict[str, Any], field: str, words: str) -> None:
    (cause,) = judge_job(body, context=AdmissionContext(classes=CLASSES))
    assert cause.field == field
    assert words in cause.message
    assert judge_job(body) == []  # without classes, nothing is known of them
    assert (
        judge_job(
            job(priority=1000, priorityClassName="high"), context=AdmissionContext(classes=CLASSES)
        )
        == []
    )


def test_classes_of_the_cluster_are_usable_in_its_own_namespace() -> None:
    body = job(priorityClassName="system-node-critical")
    assert judge_job(body, context=AdmissionContext(classes=CLASSES, namespace="kube-system")) == []
    body["metadata"]["namespace"] = "team"
    assert judge_job(body, context=AdmissionContext(classes=CLASSES, namespace="kube-system")) != []


def test_the_priority_of_a_new_job_is_written_and_follows_its_class() -> None:
    high = job(priorityClassName="high")
    assert priority_to_set(high, None, CLASSES) == 1000
    assert priority_to_set(with_pod(job(), priorityClassName="high"), None, CLASSES) == 1000
    assert priority_to_set(job(), None, CLASSES) is None
    assert priority_to_set(job(priorityClassName="none"), None, CLASSES) is None
    stored = job(priorityClassName="high", priority=1000)
    assert priority_to_set(stored, stored, CLASSES) is None
    assert priority_to_set(job(priority=1000), stored, CLASSES) == 0
    assert priority_to_set(job(priority=5), stored, CLASSES) is None  # and is refused
    by_default = PriorityTable([make_priority_class("normal", 50, is_default=True)])
    assert priority_to_set(job(), None, by_default) == 50


def test_a_job_whose_roles_differ_in_class_has_the_lowest_priority_of_them() -> None:
    both = with_pod(job(), priorityClassName="high")
    both["spec"]["roles"].append({**job()["spec"]["roles"][0], "name": "other"})
    assert priority_to_set(both, None, CLASSES) == 0
    both["spec"]["priority"] = 1000
    (cause,) = judge_job(both, context=AdmissionContext(classes=CLASSES))
    assert cause.field == "spec.priority"


def test_a_job_outlives_its_class() -> None:
    old = job(priorityClassName="gone", priority=3)
    new = job(priorityClassName="gone", priority=3, cancel=True)
    assert judge_job(new, old, AdmissionContext(classes=CLASSES)) == []


def test_a_refusal_has_the_form_of_the_servers_own() -> None:
    bad = job(after=[{"job": "j"}])
    bad["spec"]["roles"][0]["name"] = "W"
    message, details = refusal_of("j", judge_job(bad))
    assert message.startswith('Job.fairlead.dev "j" is invalid: [spec.roles[0].name: Invalid')
    assert [cause.field for cause in details.causes] == fields(bad)
    one, _ = refusal_of("j", judge_job(job(after=[{"job": ""}])))
    assert "[spec.after" not in one


def test_a_refusal_of_the_largest_spec_is_short_and_soon_there() -> None:
    # 30,000 gates took many seconds, in which the webhook gave no other answer.
    bad = job()
    gates = [{"name": f"a.b/{i}"} for i in range(30_000)]
    bad["spec"]["roles"][0]["template"]["spec"]["schedulingGates"] = gates
    assert [cause.field.rpartition(".")[2] for cause in judge_job(bad)] == ["schedulingGates"]
    bad["spec"]["roles"][0]["template"]["spec"]["schedulingGates"] = [*gates, *gates[-2:]]
    assert len(judge_job(bad)) == 3
    container = bad["spec"]["roles"][0]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": ""}] * 10_000
    message, details = refusal_of("j", causes := judge_job(bad))
    assert len(causes) > 10_000
    assert details.causes[:200] == tuple(causes[:200])
    assert message.endswith(f", and {len(causes) - 200} more]")
    assert len(message) < 100_000


def test_only_fairlead_and_administrators_write_jobs_that_stand_for_other_pods() -> None:
    user, own = RequestSender("mallory"), RequestSender("system:serviceaccount:ours:fairlead")
    adopting = job(adopts={"kind": "StatefulSet", "name": "s", "apiVersion": "apps/v1"})

    def refused(
        new: dict[str, Any], old: dict[str, Any] | None, who: RequestSender | None
    ) -> list[str]:
        return [
            c.field for c in judge_job(new, old, AdmissionContext(user=who, own_namespace="ours"))
        ]

    assert refused(adopting, None, user) == ["spec.adopts"]
    for who in (None, own, replace(user, is_administrator=True)):
        assert refused(adopting, None, who) == []
    spec = adopting["spec"]
    raised = {**adopting, "spec": {**spec, "priorityClassName": "high", "timeLimitSeconds": 9}}
    assert refused(raised, adopting, user) == ["spec.priorityClassName", "spec.timeLimitSeconds"]
    assert refused(raised, adopting, own) == []
    held = {**adopting, "spec": {**spec, "suspend": True, "cancel": True}}
    assert refused(held, adopting, user) == []


def test_only_fairlead_and_administrators_say_which_job_is_an_element_of_an_array() -> None:
    user, own = RequestSender("mallory"), RequestSender("system:serviceaccount:ours:fairlead")
    collector = RequestSender("system:serviceaccount:kube-system:generic-garbage-collector")
    reference = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "JobArray", "name": "a", "uid": "u"}
    plain = job()
    aside = {**plain, "metadata": {**plain["metadata"], "ownerReferences": [reference]}}
    owner = {**reference, "controller": True}
    element = {**plain, "metadata": {**plain["metadata"], "ownerReferences": [owner]}}
    other = {**plain, "metadata": {**plain["metadata"], "ownerReferences": [{**owner, "uid": "v"}]}}

    def refused(
        new: dict[str, Any], old: dict[str, Any] | None, who: RequestSender | None
    ) -> list[str]:
        return [
            c.field for c in judge_job(new, old, AdmissionContext(user=who, own_namespace="ours"))
        ]

    for new, old in ((element, None), (element, plain), (plain, element), (other, element)):
        assert refused(new, old, user) == ["metadata.ownerReferences"]
        for who in (None, own, collector, replace(user, is_administrator=True)):
            assert refused(new, old, who) == []
    assert refused(aside, None, user) == refused(element, element, user) == []
