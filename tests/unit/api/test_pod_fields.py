"""Every field of a pod's spec is looked at, and what no member can have is refused with the job."""

from __future__ import annotations

from importlib import resources
from typing import Any

import msgspec
import pytest
from kubernetes.client import V1PodSpec

from fairlead.api.jobs.job import Job
from fairlead.api.pods.pod_fields import POD_FIELDS, REFUSED
from fairlead.api.schema.builtin_schemas import schema_of
from fairlead.api.validation.validate import validate_job

AT = "spec.roles[0].template.spec"
#: Of each field something that the API server takes.
SAMPLES: dict[str, Any] = {
    "activeDeadlineSeconds": 60, "affinity": {"podAffinity": {}},
    "automountServiceAccountToken": False, "containers": [{"name": "main"}],
    "dnsConfig": {"searches": ["x"]}, "dnsPolicy": "None", "enableServiceLinks": False,
    "ephemeralContainers": [{"name": "debug", "image": "x"}],
    "evictionResponders": [{"name": "a.b/c"}], "hostAliases": [{"ip": "10.0.0.1"}],
    "hostIPC": True, "hostNetwork": True, "hostPID": True, "hostUsers": False, "hostname": "a",
    "hostnameOverride": "a", "imagePullSecrets": [{"name": "a"}],
    "initContainers": [{"name": "first"}], "nodeName": "n1", "nodeSelector": {"a": "b"},
    "os": {"name": "linux"}, "overhead": {"cpu": "1"}, "preemptionPolicy": "Never", "priority": 0,
    "priorityClassName": "high", "readinessGates": [{"conditionType": "a.b/c"}],
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
    "resources": {"requests": {"cpu": "1"}}, "restartPolicy": "Never", "runtimeClassName": "kata",
    "schedulerName": "mine", "schedulingGates": [{"name": "a.b/c"}],
    "schedulingGroup": {"podGroupName": "g"}, "securityContext": {"runAsUser": 1},
    "serviceAccount": "a", "serviceAccountName": "a", "setHostnameAsFQDN": True,
    "shareProcessNamespace": True, "subdomain": "a", "terminationGracePeriodSeconds": 5,
    "tolerations": [{"operator": "Exists"}],
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "a"}}],
    "workloadRef": {"name": "w"},
}  # fmt: skip


def job_with(**spec: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "main"}], **spec}}
    return {"roles": [{"name": "worker", "template": template}]}


def test_a_field_that_a_new_version_of_kubernetes_has_is_in_the_table() -> None:
    """Look at what it changes: who may run where is for the planner, or it is refused."""
    types = resources.files("fairlead.embedded.apply").joinpath("builtin_types.json").read_bytes()
    known = {
        *schema_of("PodSpec")["properties"], *msgspec.json.decode(types)["PodSpec"],
        *V1PodSpec.attribute_map.values(),
    }  # fmt: skip
    assert len(known) > 40
    assert known - POD_FIELDS.keys() == set(), "add them to fairlead.api.pods.pod_fields"
    assert POD_FIELDS.keys() - known == set(), "no version has them any more"
    assert SAMPLES.keys() == POD_FIELDS.keys()


@pytest.mark.parametrize("field", list(POD_FIELDS))
def test_a_field_is_refused_at_its_path_with_a_remedy_or_taken(field: str) -> None:
    sample = SAMPLES[field]
    found = validate_job(job_with(**{field: sample}))
    if field in REFUSED:
        refused = [each for each in found if each.field == f"{AT}.{field}"]
        assert [each.reason for each in refused] == ["FieldValueForbidden"]
        assert refused[0].message == f"Forbidden: {POD_FIELDS[field].words}"
        assert validate_job(job_with(**{field: type(sample)()})) == []
    else:
        assert found == []


def test_each_role_is_looked_at() -> None:
    gated = job_with(schedulingGates=SAMPLES["schedulingGates"])["roles"][0]
    spec = {"roles": [*job_with()["roles"], {**gated, "name": "second"}]}
    [found] = validate_job(spec)
    assert found.field == "spec.roles[1].template.spec.schedulingGates"


def test_what_a_read_job_has_of_them_is_refused_as_well() -> None:
    gated = job_with(schedulingGates=SAMPLES["schedulingGates"])
    job = msgspec.convert({"metadata": {"name": "j"}, "spec": gated}, Job)
    assert [c.field for c in validate_job(job)] == [f"{AT}.schedulingGates"]


@pytest.mark.parametrize(
    ("claims", "uses", "field", "message"),
    [
        ([], ["gpu"], "containers[0].resources.claims[0].name", "one of the names of"),
        ([("gpu", "a", "")], ["gpu", "gpu"], "containers[0].resources.claims[1]", "Duplicate"),
        ([("gpu", "a", ""), ("gpu", "b", "")], [], "resourceClaims[1].name", "Duplicate"),
        ([("gpu", "a", "b")], [], "resourceClaims[0]", "exactly one of"),
        ([("gpu", "", "")], [], "resourceClaims[0]", "exactly one of"),
        ([("A_B", "a", "")], [], "resourceClaims[0].name", "RFC 1123 label"),
        ([("gpu", "../x", "")], [], "resourceClaims[0].resourceClaimName", "RFC 1123 subdomain"),
    ],
)
def test_what_a_pod_says_wrongly_of_its_claims_for_devices_is_refused(
    claims: list[tuple[str, str, str]], uses: list[str], field: str, message: str
) -> None:
    resources = {"claims": [{"name": name} for name in uses]}
    given = [
        {"name": name, "resourceClaimName": claim, "resourceClaimTemplateName": template}
        for name, claim, template in claims
    ]
    container = {"name": "main", "resources": resources}
    [found] = validate_job(job_with(containers=[container], resourceClaims=given))
    assert found.field == f"{AT}.{field}"
    assert message in found.message
