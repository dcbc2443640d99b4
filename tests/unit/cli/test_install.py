"""The manifests of `fairlead install`: one source, safe defaults, and nothing too much."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fairlead.cli.cluster.manifests import (
    PLACES,
    InstallValues,
    cluster_rules,
    manifests,
    path_of,
)
from fairlead.cli.commands.install import render
from fairlead.cli.common import Format

ROOT = Path(__file__).resolve().parents[3]


def test_the_file_for_kubectl_is_what_the_command_applies() -> None:
    tool = ROOT / "tools" / "generate_manifests.py"
    done = subprocess.run([sys.executable, tool, "--check"], check=False)
    assert done.returncode == 0, f"not up to date: python {tool.relative_to(ROOT)}"


def test_values_reach_every_object_that_they_concern() -> None:
    values = InstallValues(namespace="ml", image="example/fairlead:2", replicas=3)
    made = {m["kind"]: m for m in manifests(values)}
    assert {m["metadata"].get("namespace", "ml") for m in manifests(values)} == {"ml"}
    assert made["Namespace"]["metadata"]["name"] == "ml"
    assert made["ClusterRoleBinding"]["subjects"][0]["namespace"] == "ml"
    spec = made["Deployment"]["spec"]
    assert spec["replicas"] == 3
    assert spec["template"]["spec"]["containers"][0]["image"] == "example/fairlead:2"
    assert path_of(made["Deployment"]) == (
        "/apis/apps/v1/namespaces/ml/deployments/fairlead-controller"
    )


def test_namespaces_and_kinds_come_before_what_needs_them() -> None:
    kinds = [m["kind"] for m in manifests(InstallValues())]
    assert kinds[:2] == ["Namespace", "CustomResourceDefinition"]
    assert kinds[-1] == "Deployment"
    assert set(kinds) <= set(PLACES)


def test_no_rule_has_a_wildcard_or_reads_secrets() -> None:
    for rule in cluster_rules():
        words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
        assert not words & {"*", "secrets", "escalate", "bind", "impersonate"}


def test_the_pods_meet_the_restricted_pod_security_standard() -> None:
    """kubernetes.io/docs, "Pod Security Standards": the namespace enforces it."""
    deployment = manifests(InstallValues())[-1]
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
    made = {m["kind"]: m for m in manifests(InstallValues())}
    labels = made["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for selector in (
        made["Deployment"]["spec"]["selector"]["matchLabels"],
        made["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        made["Service"]["spec"]["selector"],
    ):
        assert selector.items() <= labels.items()


def test_yaml_documents_read_back_as_they_were() -> None:
    import yaml

    objects = manifests(InstallValues())
    assert list(yaml.safe_load_all(render(objects, Format.YAML))) == objects
