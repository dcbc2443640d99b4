"""Names that stand in the chart's templates and in the code are the same."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

from fairlead.api.schema import crd
from fairlead.api.schema.conversion import with_beta
from fairlead.app.configuration.controller_settings import ControllerSettings
from fairlead.app.queries.messages import ACCOUNT, PROXIED_NAME
from fairlead.decide.health.settings import HealthSettings
from fairlead.install.manifests import HISTORY, NAME, Install, all_objects, label_of, manifests
from fairlead.install.values import (
    CertManager,
    Crds,
    DoctorSecrets,
    NodeAgentValues,
    Values,
    WebhookValues,
    WebImpersonation,
    WebValues,
    conflicts,
)
from fairlead.node.registry import SOURCES
from fairlead.node.running.host import Host
from fairlead.node.settings import (
    AgentSettings,
    ProgramSettings,
    ShapingSettings,
    TrafficSettings,
    TuningSettings,
)
from fairlead.webhook.configuration import INJECT, PORT, SERVICE

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


BETA = Values(crds=Crds(v1beta1=True))


def definitions(values: Values) -> list[dict[str, Any]]:
    found = manifests(Install("elsewhere", values))
    return [each for each in found if each["kind"] == "CustomResourceDefinition"]


def rights_on_definitions(values: Values) -> list[dict[str, Any]]:
    return [
        rule
        for each in manifests(Install(values=values)) if each["kind"] == "ClusterRole"
        for rule in each["rules"] if "customresourcedefinitions" in rule.get("resources", ())
    ]  # fmt: skip


def test_v1beta1_is_served_and_converted_by_the_webhook_only_where_it_is_asked_for() -> None:
    for plain, wanted in zip(definitions(Values()), crd.manifests(), strict=True):
        assert plain["spec"] == wanted["spec"]
    client = {"namespace": "elsewhere", "name": SERVICE, "path": "/convert", "port": 443}
    webhook = {"conversionReviewVersions": ["v1"], "clientConfig": {"service": client}}
    for both, wanted in zip(definitions(BETA), crd.manifests(), strict=True):
        assert both["spec"] == {
            **with_beta(wanted)["spec"],
            "conversion": {"strategy": "Webhook", "webhook": webhook},
        }
    for values, count in ((Values(), 0), (BETA, 1)):
        (controllers,) = (
            each for each in manifests(Install(values=values)) if each["kind"] == "Deployment"
        )
        (container,) = controllers["spec"]["template"]["spec"]["containers"]
        assert container["args"].count("--webhook-convert") == count


def test_the_controllers_may_change_their_own_definitions_only_where_they_convert() -> None:
    assert rights_on_definitions(Values()) == []
    (rule,) = rights_on_definitions(BETA)
    assert rule["verbs"] == ["get", "patch"]
    assert tuple(rule["resourceNames"]) == crd.definition_names()


def test_cert_manager_fills_in_the_authorities_of_definitions_that_are_converted() -> None:
    issued = WebhookValues(cert_manager=CertManager(enabled=True, issuer_ref={"name": "i"}))
    note = (INJECT, f"elsewhere/{SERVICE}")
    for v1beta1, keep in product((False, True), (False, True)):
        values = Values(crds=Crds(v1beta1=v1beta1, keep=keep), webhook=issued)
        for each in definitions(values):
            found = each["metadata"].get("annotations") or {}
            assert (note in found.items()) is v1beta1
            assert ("helm.sh/resource-policy" in found) is keep


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


AGENTS = Values(
    settings=ControllerSettings(health=HealthSettings(enabled=True)),
    node_agent=NodeAgentValues(enabled=True),
)


def agents() -> dict[str, Any]:
    """Return the pod of a node's agent and collector."""
    (found,) = (e for e in manifests(Install(values=AGENTS)) if e["kind"] == "DaemonSet")
    pod: dict[str, Any] = found["spec"]["template"]["spec"]
    return pod


def test_nodes_have_no_agent_unless_it_is_asked_for() -> None:
    assert [each for each in manifests(Install()) if each["kind"] == "DaemonSet"] == []


def test_the_agent_has_the_mounts_that_the_page_says_and_no_other() -> None:
    pod = agents()
    agent, _ = pod["containers"]
    sources = {each["name"]: each.get("hostPath", {}).get("path") for each in pod["volumes"]}
    page = Path(__file__).parents[3] / "docs/design/node-agent.md"
    table = page.read_text().partition("| On the machine | In the pod |")[2].partition("\n\n")[0]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    said = {(host, own, mode == "read") for host, own, mode, _ in rows}
    mounted = {
        (sources[each["name"]], each["mountPath"], each.get("readOnly", False))
        for each in agent["volumeMounts"]
        if sources[each["name"]]
    }
    assert mounted == said
    checked = {name.strip(" `") for *_, names in rows for name in names.split(",")}
    for name, make in SOURCES.items():
        made = make(Host(), AgentSettings())
        is_served = name in checked
        of_no_mount = made is None or name in OF_NO_MOUNT
        assert is_served is not of_no_mount, name


#: The clock is asked for by a call; containerd's settings and disks take programs of the machine;
#: and the others are refused in the values: they change the machine, or run programs of it.
OF_NO_MOUNT = ("clock", "containerd", "programs", "tuning", "traffic", "shaping", "smart")


def test_no_mount_of_the_machine_can_be_written_but_the_agents_own_state() -> None:
    pod = agents()
    paths = {e["name"]: e["hostPath"]["path"] for e in pod["volumes"] if "hostPath" in e}
    written = {
        paths[each["name"]]
        for container in pod["containers"] for each in container["volumeMounts"]
        if each["name"] in paths and not each.get("readOnly")
    }  # fmt: skip
    assert written == {"/var/lib/fairlead"}
    agent, _ = pod["containers"]
    with_mounts_below = [e for e in agent["volumeMounts"] if e["mountPath"].startswith("/host/")]
    plain = {each["mountPath"] for each in with_mounts_below if "recursiveReadOnly" not in each}
    assert plain == {"/host/dev/kmsg"}, "a device has nothing mounted below it"


def test_the_agent_has_no_token_and_the_collector_sees_nothing_of_the_machine() -> None:
    pod = agents()
    agent, collector = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert "token" not in {each["name"] for each in agent["volumeMounts"]}
    assert {e["name"]: e.get("readOnly", False) for e in collector["volumeMounts"]} == {
        "report": True, "token": True}  # fmt: skip
    for container in (agent, collector):
        context = container["securityContext"]
        assert not context.get("privileged")
        assert not context["allowPrivilegeEscalation"]
        assert context["readOnlyRootFilesystem"]
        assert context["capabilities"]["drop"] == ["ALL"]
    assert agent["securityContext"]["capabilities"]["add"] == ["SYSLOG"]
    assert "add" not in collector["securityContext"]["capabilities"]
    assert collector["securityContext"]["runAsNonRoot"]
    assert not any(pod.get(key) for key in ("hostPID", "hostIPC"))


def test_the_agent_stays_on_a_node_with_any_taint_and_is_no_controller() -> None:
    (found,) = (e for e in manifests(Install(values=AGENTS)) if e["kind"] == "DaemonSet")
    pod = found["spec"]["template"]
    assert pod["spec"]["tolerations"] == [{"operator": "Exists"}]
    labels = pod["metadata"]["labels"].items()
    assert found["spec"]["selector"]["matchLabels"].items() <= labels
    for kind, path in (
        ("Deployment", "selector"), ("PodDisruptionBudget", "selector"), ("Service", "selector"),
    ):  # fmt: skip
        for each in manifests(Install(values=AGENTS)):
            if each["kind"] == kind:
                chosen = each["spec"][path]
                chosen = chosen.get("matchLabels", chosen)
                assert not chosen.items() <= labels, each["metadata"]["name"]


def test_what_the_agent_cannot_do_in_the_pod_is_refused() -> None:
    agent = AgentSettings(
        programs=ProgramSettings(directory="/checks"), tuning=TuningSettings(profile="ml-node"),
        traffic=TrafficSettings(pods="pods.json"), shaping=ShapingSettings(enabled=True),
        disabled=("nothing",),
    )  # fmt: skip
    values = Values(node_agent=NodeAgentValues(enabled=True, settings=agent))
    assert [path.removeprefix("nodeAgent.") for path, _ in conflicts(values)] == [
        "enabled", "settings.disabled[0]", "settings.programs.directory",
        "settings.tuning.profile", "settings.traffic.pods", "settings.shaping.enabled",
    ]  # fmt: skip


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


def test_the_page_for_users_reads_what_it_shows_asks_who_may_see_it_and_changes_nothing() -> None:
    values = Values(web=WebValues(enabled=True, secret_name="web", tls_secret_name="tls"))
    made = {label_of(each): each for each in manifests(Install(values=values))}
    role = made["ClusterRole fairlead-web"]
    verbs = {(each, verb) for rule in role["rules"] for each in rule["resources"]
             for verb in rule["verbs"]}  # fmt: skip
    assert {verb for _, verb in verbs} == {"list", "watch", "create"}
    created = {each for each, verb in verbs if verb == "create"}
    assert created == {"tokenreviews", "subjectaccessreviews"}
    assert "secrets" not in {each for each, _ in verbs}
    assert "ClusterRole fairlead-web-impersonation" not in made
    pod = made[f"Deployment {SPACE}/fairlead-web"]["spec"]["template"]["spec"]
    paths = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    arguments = pod["containers"][0]["args"]
    assert (paths["tls"], paths["secrets"]) == (
        arguments[arguments.index("--cert-dir") + 1], arguments[arguments.index("--secrets") + 1],
    )  # fmt: skip
    assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"]
    assert f"NetworkPolicy {SPACE}/fairlead-web" in made
    assert not [
        each for each in manifests(Install()) if "web" in each["metadata"]["name"].split("-")
    ]


def test_the_page_for_users_acts_as_the_users_and_in_the_groups_that_were_named() -> None:
    named = WebImpersonation(enabled=True, users=("oidc:ada",), groups=("oidc:lab",))
    values = Values(web=WebValues(enabled=True, impersonation=named))
    made = {label_of(each): each for each in manifests(Install(values=values))}
    rules = made["ClusterRole fairlead-web-impersonation"]["rules"]
    assert [(rule["resources"], rule["verbs"], rule["resourceNames"]) for rule in rules] == [
        (["users"], ["impersonate"], ["oidc:ada"]), (["groups"], ["impersonate"], ["oidc:lab"]),
    ]  # fmt: skip
