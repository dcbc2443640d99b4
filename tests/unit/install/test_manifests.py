"""Names that stand in the chart's templates and in the code are the same."""

from __future__ import annotations

import re

from fairlead.app.messages import ACCOUNT, PROXIED_NAME
from fairlead.install.manifests import HISTORY, NAME, Install, all_objects, label_of, manifests
from fairlead.install.values import DoctorSecrets, Values
from fairlead.webhook.configuration import PORT, SERVICE

SPACE = "fairlead-system"


def test_the_code_finds_the_objects_of_the_templates_by_their_names() -> None:
    made = {label_of(manifest) for manifest, _ in all_objects(Install())}
    assert {
        f"ServiceAccount {SPACE}/{NAME}", f"ServiceAccount {SPACE}/{ACCOUNT}",
        f"PersistentVolumeClaim {SPACE}/{HISTORY}", f"Service {SPACE}/{SERVICE}",
    } <= made  # fmt: skip


def test_the_webhook_is_served_where_its_service_sends_requests() -> None:
    pod = manifests(Install())[-1]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports["webhook"] == PORT
    assert container["args"][-1] == f"0.0.0.0:{PORT}"


def test_every_object_has_its_template_once() -> None:
    labels = [label_of(manifest) for manifest, _ in all_objects(Install())]
    assert len(labels) == len(set(labels)) > 20
    assert not [label for label in labels if re.search("[{}]", label)]


def test_secrets_of_the_doctor_are_mounted_where_its_settings_look_and_may_be_missing() -> None:
    secrets = DoctorSecrets(etcd_secret_name="e", prometheus_secret_name="p")
    values = Values(doctor=secrets)
    (deployment,) = (
        each for each in manifests(Install(values=values)) if each["kind"] == "Deployment"
    )
    pod = deployment["spec"]["template"]["spec"]
    paths = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    found = {
        paths[each["name"]]: (each["secret"]["secretName"], each["secret"]["optional"])
        for each in pod["volumes"] if "secret" in each
    }  # fmt: skip
    root = values.settings.doctor.credentials_directory
    assert found == {f"{root}/etcd": ("e", True), f"{root}/prometheus": ("p", True)}
    assert "secret" not in _volumes(Values())


def _volumes(values: Values) -> list[str]:
    return [
        key for each in manifests(Install(values=values)) if each["kind"] == "Deployment"
        for volume in each["spec"]["template"]["spec"]["volumes"] for key in volume
    ]  # fmt: skip


def test_every_user_may_read_one_binding_and_the_settings_ask_the_archive_and_no_more() -> None:
    made = manifests(Install())
    rules = {
        (each["kind"].removesuffix("Binding"), each["metadata"]["name"]): each["rules"]
        for each in made if each["kind"] in ("Role", "ClusterRole")
    }  # fmt: skip
    granted = {
        (resource, name, verb)
        for each in made if each["kind"] in ("RoleBinding", "ClusterRoleBinding")
        if any(subject["kind"] == "Group" for subject in each["subjects"])
        for rule in rules[each["roleRef"]["kind"], each["roleRef"]["name"]]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", ["any"]) for verb in rule["verbs"]
    }  # fmt: skip
    assert granted == {
        ("clusterrolebindings", NAME, "get"), ("configmaps", "fairlead-settings", "get"),
        ("services/proxy", PROXIED_NAME, "get"), ("services/proxy", PROXIED_NAME, "create"),
    }  # fmt: skip
