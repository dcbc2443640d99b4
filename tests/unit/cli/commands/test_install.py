"""The manifests of `fairlead install`: one source, safe defaults, and nothing too much."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import yaml

from fairlead.api.names import NODE_LEASES_NAMESPACE
from fairlead.app.queries.messages import ACCOUNT, PROXIED_NAME
from fairlead.cli.commands.install import render
from fairlead.cli.connection.common import Format
from fairlead.input.sections import plain
from fairlead.install.chart import values_text
from fairlead.install.manifests import Install, manifests, path_of
from fairlead.install.values import Values, with_image

ROOT = Path(__file__).resolve().parents[4]


def test_the_file_for_kubectl_is_what_the_command_applies() -> None:
    tool = ["-m", "tools.generate_manifests", "--check"]
    done = subprocess.run([sys.executable, *tool], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_values_reach_every_object_that_they_concern() -> None:
    values = Values(image=with_image(Values().image, "example/fairlead:2"), replicas=3)
    chosen = Install("ml", values)
    made = {m["kind"]: m for m in manifests(chosen)}
    spaces = {(m["kind"], m["metadata"].get("namespace", "ml")) for m in manifests(chosen)}
    elsewhere = {("Role", NODE_LEASES_NAMESPACE), ("RoleBinding", NODE_LEASES_NAMESPACE)}
    assert {each for each in spaces if each[1] != "ml"} == elsewhere
    bindings = [m for m in manifests(chosen) if m["kind"] == "RoleBinding"]
    assert {m["subjects"][0].get("namespace", "ml") for m in bindings} == {"ml"}
    assert made["Namespace"]["metadata"]["name"] == "ml"
    assert made["ClusterRoleBinding"]["subjects"][0]["namespace"] == "ml"
    spec = made["Deployment"]["spec"]
    assert spec["replicas"] == 3
    assert spec["template"]["spec"]["containers"][0]["image"] == "example/fairlead:2"
    assert path_of(made["Deployment"]) == (
        "/apis/apps/v1/namespaces/ml/deployments/fairlead-controller"
    )


def _given(values: Any) -> Any:
    """Return values without those that are not given."""
    if not isinstance(values, dict):
        return values
    return {key: _given(each) for key, each in values.items() if each is not None}


def test_the_values_of_the_chart_are_read_as_they_are_meant() -> None:
    assert yaml.safe_load(values_text()) == _given(plain(Values()))


def test_an_image_is_named_by_tag_digest_or_neither_behind_a_registry_with_a_port() -> None:
    digest = "sha256:" + "0" * 64

    def read(reference: str) -> tuple[str, str, str]:
        image = with_image(Values().image, reference)
        return image.repository, image.tag, image.digest

    assert read("host:5000/team/fairlead") == ("host:5000/team/fairlead", "latest", "")
    assert read("host:5000/fairlead:1") == ("host:5000/fairlead", "1", "")
    assert read(f"fairlead@{digest}") == ("fairlead", "", digest)
    image = with_image(Values().image, f"fairlead:1@{digest}")
    deployment = manifests(Install(values=Values(image=image)))[-1]
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == f"fairlead@{digest}"


def test_the_arguments_of_the_pods_are_known_to_the_command() -> None:
    from fairlead.cli.app import cli
    from fairlead.cli.commands.controller import controller
    from fairlead.install.values import HistoryKind, HistoryValues, LogLevelValue

    history = HistoryValues(kind=HistoryKind.SQLITE)
    values = Values(
        replicas=1, history=history, log_level=LogLevelValue.DEBUG, checkpoint_root="/ckpt"
    )
    for chosen in (Values(), values):
        deployment = manifests(Install(values=chosen))[-1]
        arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        context = controller.make_context(arguments[0], list(arguments[1:]), **cli.context_settings)
        assert context.params["listen"] == "0.0.0.0:8080"
        assert context.params["binding"] == "native"
        assert context.params["webhook_listen"] == "0.0.0.0:9443"
        assert context.params["lease_seconds"] == chosen.leader_election.lease_seconds
    assert context.params["history"] == "/var/lib/fairlead/history.db"
    assert context.params["checkpoint_root"] == "/ckpt"
    assert context.params["verbose"] == 2


def test_a_history_on_a_volume_has_one_writer() -> None:
    from fairlead.install.values import HistoryKind, HistoryValues, conflicts

    values = Values(history=HistoryValues(kind=HistoryKind.SQLITE))
    assert [path for path, _ in conflicts(values)] == ["replicas"]
    deployment = manifests(Install(values=msgspec.structs.replace(values, replicas=1)))[-1]
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


def test_the_url_of_a_database_comes_from_a_secret_into_the_variable_that_is_read() -> None:
    from fairlead.cli.commands.controller import controller
    from fairlead.install.values import HistoryKind, HistoryValues

    values = Values(history=HistoryValues(kind=HistoryKind.POSTGRES))
    container = manifests(Install(values=values))[-1]["spec"]["template"]["spec"]["containers"][0]
    (variable,) = [each for each in container["env"] if "secretKeyRef" in each["valueFrom"]]
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "fairlead-history", "key": "url"}
    (option,) = [each for each in controller.params if each.name == "history"]
    assert variable["name"] in str(option.to_info_dict()["help"])


def test_namespaces_and_kinds_come_before_what_needs_them() -> None:
    kinds = [m["kind"] for m in manifests(Install())]
    assert kinds[:2] == ["Namespace", "CustomResourceDefinition"]
    assert kinds[-1] == "Deployment"


def test_no_rule_has_a_wildcard_or_reads_secrets_but_that_of_notices() -> None:
    rules = [rule for role in _of_kind("ClusterRole", Values()) for rule in role["rules"]]
    assert len(rules) > 20
    for rule in rules:
        words = {word for words in rule.values() for word in words}
        proxies = {"nodes/proxy", "pods/proxy"}
        assert not words & {"*", "escalate", "bind", "impersonate", *proxies}
        if rule.get("resourceNames") == ["fairlead-notify"]:  # read under that one name
            assert (rule["resources"], rule["verbs"]) == (["secrets"], ["get"])
        else:
            assert "secrets" not in words or set(rule["verbs"]) == {"create", "delete"}


def test_without_the_doctor_the_controllers_have_no_rights_for_it() -> None:
    from fairlead.app.configuration.controller_settings import ControllerSettings, DoctorSettings

    def rights(*, enabled: bool) -> set[str]:
        settings = ControllerSettings(doctor=DoctorSettings(enabled=enabled))
        roles = _of_kind("ClusterRole", Values(settings=settings))
        (role,) = [each for each in roles if each["metadata"]["name"] == "fairlead-controller"]
        parts = ("resources", "nonResourceURLs")
        return {
            f"{verb} {what}"
            for rule in role["rules"]
            for part in parts
            for what in rule.get(part, ())
            for verb in rule["verbs"]
        }

    assert rights(enabled=True) - rights(enabled=False) == {
        "list clusterreports", "watch clusterreports", "create clusterreports",
        "patch clusterreports/status", "get /metrics", "list events", "list namespaces",
        "list daemonsets", "list deployments", "list flowschemas", "list apiservices",
        "list mutatingwebhookconfigurations", "list validatingwebhookconfigurations",
    }  # fmt: skip


def _of_kind(kind: str, values: Values) -> list[dict[str, Any]]:
    return [m for m in manifests(Install(values=values)) if m["kind"] == kind]


def test_logs_are_kept_with_every_kind_of_history() -> None:
    from fairlead.install.values import HistoryKind, HistoryValues

    for kind in HistoryKind:
        values = Values(replicas=1, history=HistoryValues(kind=kind))
        (role,) = [
            each
            for each in _of_kind("ClusterRole", values)
            if each["metadata"]["name"] == "fairlead-controller"
        ]
        read = [rule for rule in role["rules"] if "pods/log" in rule.get("resources", ())]
        assert [rule["verbs"] for rule in read] == [["get"]]


def test_a_network_policy_names_who_may_come_to_which_port() -> None:
    from fairlead.install.values import NetworkPolicy

    given = NetworkPolicy(enabled=True, api_servers_from=({"ipBlock": {"cidr": "192.0.2.0/28"}},))
    (policy,) = _of_kind("NetworkPolicy", Values(network_policy=given))
    found = {rule["ports"][0]["port"]: rule.get("from") for rule in policy["spec"]["ingress"]}
    monitoring = {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
    assert found == {
        "http": [{"namespaceSelector": monitoring}],
        "webhook": [{"ipBlock": {"cidr": "192.0.2.0/28"}}],
    }


def test_all_users_may_have_one_name_proxied_and_nothing_else() -> None:
    values = Values()
    made = {each["metadata"]["name"]: each for each in _of_kind("Role", values)}
    (rule,) = made[ACCOUNT]["rules"]
    assert rule["resourceNames"] == [PROXIED_NAME] == ["https:fairlead-webhook:https"]
    assert (rule["resources"], rule["verbs"]) == (["services/proxy"], ["get", "create"])
    ports = {
        (each["metadata"]["name"], port["name"])
        for each in _of_kind("Service", values)
        for port in each["spec"]["ports"]
    }
    assert ("fairlead-webhook", "https") in ports


def test_the_pods_meet_the_restricted_pod_security_standard() -> None:
    """kubernetes.io/docs, "Pod Security Standards": the namespace enforces it."""
    deployment = manifests(Install())[-1]
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_selector_of_service_and_budget_finds_the_pods() -> None:
    made = {m["kind"]: m for m in manifests(Install())}
    labels = made["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for selector in (
        made["Deployment"]["spec"]["selector"]["matchLabels"],
        made["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        made["Service"]["spec"]["selector"],
    ):
        assert selector.items() <= labels.items()


def test_yaml_documents_read_back_as_they_were() -> None:
    import yaml

    objects = manifests(Install())
    assert list(yaml.load_all(render(objects, Format.YAML), yaml.CSafeLoader)) == objects


# The image


def locked(name: str) -> dict[str, frozenset[str]]:
    """Return the hashes of each pinned release of a lock file."""
    entries: dict[str, set[str]] = {}
    current = ""
    for line in (ROOT / "requirements" / name).read_text().splitlines():
        if line and not line.startswith((" ", "#")):
            current = line.split(" ")[0]
            entries[current] = set()
        elif "--hash=" in line:
            entries[current].add(line.strip(" \\"))
    return {release: frozenset(hashes) for release, hashes in entries.items()}


def test_what_builds_the_wheel_of_the_image_is_locked_as_it_is_for_developers() -> None:
    build, dev = locked("build.lock"), locked("dev.lock")
    assert all(hashes and dev[release] == hashes for release, hashes in build.items())
    names = {release.split("==")[0] for release in build}
    for name in names:
        for needed in importlib.metadata.requires(name) or ():
            if ";" not in needed:
                assert re.split(r"[ <>=~!]", needed)[0] in names, f"{name} needs {needed}"
    assert "hatchling" in names


def test_the_image_takes_locked_releases_only_and_is_nobodys() -> None:
    text = (ROOT / "Dockerfile").read_text()
    installs = [line for line in text.splitlines() if "pip install" in line]
    assert len(installs) == 3
    for line in installs:
        assert "--no-deps" in line
        assert "--require-hashes" in line or "--no-index" in line
    stages = [line for line in text.splitlines() if line.startswith("FROM")]
    assert {line.split()[1] for line in stages} == {"${PYTHON_IMAGE}"}
    pod = manifests(Install())[-1]["spec"]["template"]["spec"]
    assert f"USER {pod['securityContext']['runAsUser']}:" in text
    assert 'ENTRYPOINT ["fairlead"]' in text
    assert pod["containers"][0]["args"][0] == "controller"


def test_what_the_dockerfile_copies_exists_and_goes_to_the_builder() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if not line.startswith("COPY ") or "--from" in line:
            continue
        for source in line.split()[1:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source.split('/')[0]}" in ignore, source
