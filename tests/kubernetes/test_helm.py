"""The Helm chart, by the real helm: what `fairlead install` makes; installed, upgraded, removed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.kubernetes.controlplane import ControlPlane, NoControlPlane, find_binaries
from tests.kubernetes.operating import http_client
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.test_install import run_cli

from fairlead.api.names import OWN_NAMESPACE
from fairlead.api.resources import JOBS
from fairlead.api.status import NotFound
from fairlead.install.manifests import NAME, Install, Manifest, label_of, manifests, path_of
from fairlead.install.values import Values, load_values
from fairlead.kube.client import HttpClient
from fairlead.runtime.client import PatchType
from fairlead.webhook.configuration import MUTATING

pytestmark = pytest.mark.kubernetes
CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "fairlead"
DEFINITIONS = CHART.with_name("fairlead-crds")
#: Labels by which Helm marks what it has made.
OF_HELM = ("helm.sh/chart", "app.kubernetes.io/managed-by")
CHOICES = {
    "defaults": {},
    "placement": {
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "control", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "priorityClassName": "system-cluster-critical",
        "resources": {"limits": None, "requests": {"cpu": 2}},
        "podLabels": {"team": "infra", "number": "12"},
        "podAnnotations": {"note": "yes"},
    },
    "image": {
        "image": {
            "repository": "host:5000/fairlead",
            "digest": "sha256:" + "ab" * 32,
            "pullPolicy": "Always",
        },
        "imagePullSecrets": [{"name": "registry"}],
    },
    "history": {
        "replicas": 1,
        "history": {"kind": "sqlite", "sqlite": {"size": "5Gi", "storageClassName": "fast"}},
        "crds": {"keep": False},
    },
    "database": {"history": {"kind": "postgres", "postgres": {"secretName": "db"}}},
    "running": {
        "replicas": 3,
        "leaderElection": {"leaseSeconds": 60},
        "logLevel": "debug",
        "binding": "direct",
        "checkpointRoot": "/mnt/{{ .x }}",
        "extraArgs": ["--peer-naming", "address"],
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    },
    "around": {
        "metrics": {
            "service": {"annotations": {"prometheus.io/scrape": None, "own": "1"}},
            "serviceMonitor": {"enabled": True, "interval": "1m", "labels": {"release": "p"}},
        },
        "podDisruptionBudget": {"maxUnavailable": 2},
        "networkPolicy": {"enabled": True},
        "serviceAccount": {"annotations": {"cloud/role": "r"}},
    },
    "certificates": {
        "crds": {"v1beta1": True},
        "webhook": {
            "certManager": {
                "enabled": True,
                "issuerRef": {"name": "ca", "kind": "ClusterIssuer"},
            }
        },
    },
    "agents": {
        "settings": {"health": {"enabled": True}},
        "image": {"digest": "sha256:" + "ab" * 32},
        "imagePullSecrets": [{"name": "registry"}],
        "nodeAgent": {
            "enabled": True,
            "maxUnavailable": "3",
            "settings": {
                "infiniband": {"ports": 8},
                "gpu": {"xid": {"63": {"severity": "Critical", "action": "Replace"}}},
            },
            "nodeSelector": {"gpu": "yes"},
            "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "priorityClassName": "",
            "resources": {"limits": None},
            "volumes": [{"name": "scratch", "hostPath": {"path": "/scratch/.fill"}}],
            "volumeMounts": [{"name": "scratch", "mountPath": "/host/scratch", "readOnly": True}],
        },
    },
    "all agents": {"settings": {"health": {"enabled": True}}, "nodeAgent": {"enabled": True}},
    "settings": {
        "settings": {
            "placement": {"starvationSeconds": 31536000},
            "jobs": {"infrastructureLimitMax": 1000000},
        },
        "podAnnotations": {"note": "yes"},
    },
    "doctor": {
        "settings": {
            "doctor": {
                "etcd": ["https://192.0.2.1:2379"],
                "prometheus": "https://p.example",
                "prometheusJobs": ["etcd=my-etcd"],
            }
        },
        "doctor": {"etcdSecretName": "etcd-client", "prometheusSecretName": "reader"},
        "metrics": {"alerts": {"enabled": True, "runbookUrl": "https://wiki.example/x"}},
    },
    "alerts": {"metrics": {"alerts": {"enabled": True}}},
    "page": {
        "web": {
            "enabled": True,
            "secretName": "web",
            "tlsSecretName": "tls",
            "browsersFrom": [{"podSelector": {}}],
            "impersonation": {"enabled": True, "users": ["oidc:ada"], "groups": ["oidc:lab"]},
            "settings": {"oidc": {"issuer": "https://id.example", "clientId": "page"}},
        },
        "priorityClassName": "high",
    },
    "page with a certificate": {
        "web": {
            "enabled": True,
            "certManager": {"enabled": True, "issuerRef": {"name": "ca"}},
            "impersonation": {"enabled": True},
        }
    },
    "little": {
        "webhook": {"enabled": False},
        "metrics": {"service": {"enabled": False}},
        "podDisruptionBudget": {"enabled": False},
        "crds": {"install": False},
    },
}


@pytest.fixture(scope="module")
def helm() -> str:
    try:
        binary = find_binaries() / "helm"
    except NoControlPlane as reason:
        pytest.skip(f"no helm: {reason}")
    if not binary.exists():
        pytest.skip("helm not built: make kubernetes")
    return str(binary)


def run(helm: str, *arguments: str, home: Path, is_refused: bool = False) -> str:
    """Run helm with a home of its own; return what it printed (on stderr, when it is to refuse)."""
    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    done = subprocess.run(
        [helm, *arguments], capture_output=True, text=True, timeout=90, check=False,
        env=environment,
    )  # fmt: skip
    assert (done.returncode != 0) is is_refused, done.stdout + done.stderr
    return done.stderr if is_refused else done.stdout


def without_labels_of_the_release(manifest: Manifest) -> Manifest:
    """Return a copy in which it cannot be seen who put the object there."""
    copy: Manifest = json.loads(json.dumps(manifest))
    places = [copy["metadata"]]
    if copy["kind"] == "Deployment":
        places.append(copy["spec"]["template"]["metadata"])
    for metadata in places:
        for label in OF_HELM:
            metadata["labels"].pop(label, None)
    return copy


@pytest.mark.parametrize("name", CHOICES)
def test_the_chart_renders_what_the_command_applies(helm: str, tmp_path: Path, name: str) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(CHOICES[name]))
    text = run(helm, "template", "fairlead", str(CHART), "-n", OWN_NAMESPACE, "-f", str(values),
               home=tmp_path)  # fmt: skip
    rendered = {
        label_of(each): without_labels_of_the_release(each)
        for each in yaml.load_all(text, yaml.CSafeLoader)
        if each is not None
    }
    chosen = Install(values=load_values(values))
    wanted = {label_of(each): without_labels_of_the_release(each) for each in manifests(chosen)}
    del wanted[f"Namespace {OWN_NAMESPACE}"]  # helm install --create-namespace
    assert rendered.keys() == wanted.keys()
    for label, manifest in wanted.items():
        assert rendered[label] == manifest, label


@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"crds": {"keep": False, "v1beta1": True}},
        {"crds": {"v1beta1": True}, "webhook": {"certManager": {"enabled": True}}},
    ],
    ids=["defaults", "v1beta1", "certificates"],
)
def test_the_chart_of_the_definitions_renders_those_of_the_other_chart(
    helm: str, tmp_path: Path, choice: dict[str, Any]
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(choice))
    more = ("--set", "webhook.certManager.issuerRef.name=ca")
    made = [
        {
            label_of(each): without_labels_of_the_release(each)
            for each in yaml.load_all(text, yaml.CSafeLoader)
            if each is not None and each["kind"] == "CustomResourceDefinition"
        }
        for chart, options in ((DEFINITIONS, ()), (CHART, more))
        for text in [run(helm, "template", "fairlead", str(chart), "-n", OWN_NAMESPACE, "-f",
                         str(values), *options, home=tmp_path)]
    ]  # fmt: skip
    assert made[0] == made[1]
    assert len(made[0]) == len(list(DEFINITIONS.glob("templates/custom*.yaml")))
    run(helm, "lint", "--strict", str(DEFINITIONS), "-f", str(values), home=tmp_path)


def test_an_overlay_of_kustomize_changes_the_image_and_nothing_else(tmp_path: Path) -> None:
    base = CHART.parents[1] / "kubernetes"
    digest = "sha256:" + "ab" * 32
    image = {"name": "fairlead", "newName": "registry.example/fairlead", "digest": digest}
    shutil.copytree(base, tmp_path / "base")
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    content = {"resources": ["../base"], "images": [image]}
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(content))
    command = [find_binaries() / "kubectl", "kustomize", overlay]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    made = {label_of(each): each for each in yaml.load_all(text, yaml.CSafeLoader)}
    wanted = {label_of(each): each for each in manifests(Install())}
    changed = [label for label, each in wanted.items() if made[label] != each]
    assert made.keys() == wanted.keys()
    assert changed == [f"Deployment {OWN_NAMESPACE}/fairlead-controller"]
    (container,) = made[changed[0]]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example/fairlead@{digest}"


def test_the_linter_has_nothing_to_say(helm: str, tmp_path: Path) -> None:
    said = run(helm, "lint", "--strict", str(CHART), home=tmp_path)
    assert "0 chart(s) failed" in said
    assert "[WARNING]" not in said
    for choice in CHOICES.values():
        values = tmp_path / "values.yaml"
        values.write_text(yaml.safe_dump(choice))
        run(helm, "lint", "--strict", str(CHART), "-f", str(values), home=tmp_path)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("history.kind=memory", "without any, PostgreSQL and history.kind=postgres"),
        ("history.kind=sqlite,replicas=1", "the controllers stay Pending"),
        ("history.kind=sqlite,replicas=1,history.sqlite.storageClassName=fast", ""),
        ("history.kind=postgres", ""),
    ],
)
def test_the_notes_say_what_becomes_of_the_history(
    helm: str, tmp_path: Path, settings: str, said: str
) -> None:
    rendered = run(
        helm, "install", "notes", str(CHART), "--dry-run=client", "--set", settings, home=tmp_path
    )
    notes = rendered.partition("NOTES:")[2]
    assert notes
    assert ("istory" in notes) is bool(said)
    assert said in notes


def test_the_default_values_are_those_of_the_types() -> None:
    assert load_values(CHART / "values.yaml") == Values()


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("replica=3", "replica"),
        ("replicas=0", "replicas"),
        ("replicas=null", "replicas"),
        ("image.digest=sha256:1", "digest"),
        ("settings.placement.starvationSecond=1", "starvationSecond"),
        ("settings.jobs.nodeLostGraceSeconds=0", "nodeLostGraceSeconds"),
        ("history.kind=sqlite", "takes replicas: 1"),
        ("metrics.serviceMonitor.enabled=true,metrics.service.enabled=false", "metrics.service"),
        ("settings.health.enabled=true,admissionPolicies.enabled=false", "admissionPolicies"),
        ("nodeAgent.enabled=true", "settings.health.enabled"),
        ("nodeAgent.settings.shaping.enabled=true", "as a service"),
        ("nodeAgent.maxUnavailable=0", "maxUnavailable"),
        ("webhook.certManager.enabled=true", "issuerRef.name"),
        ("webhook.certManager.enabled=true,webhook.enabled=false", "webhook.enabled"),
        ("crds.v1beta1=true,webhook.enabled=false", "crds.v1beta1"),
    ],
)
def test_helm_refuses_what_the_command_refuses(
    helm: str, tmp_path: Path, setting: str, named: str
) -> None:
    said = run(helm, "template", "fairlead", str(CHART), "--set", setting, home=tmp_path,
               is_refused=True)  # fmt: skip
    assert named in said


# On a real server


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory)


async def find(client: HttpClient, manifest: Manifest) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(await client.request("GET", path_of(manifest)))
    except NotFound:
        return None


async def test_it_is_installed_upgraded_and_removed_and_jobs_outlive_it(
    cluster: ControlPlane, helm: str, tmp_path: Path
) -> None:
    client = http_client(cluster)
    access = ("--kubeconfig", str(cluster.kubeconfig()), "-n", OWN_NAMESPACE)
    made = {label_of(each): each for each in manifests(Install())}
    kinds = [made.pop(label) for label in list(made) if label.startswith("CustomResourceD")]
    try:
        notes = run(helm, "install", "fairlead", str(CHART), "--create-namespace", *access,
                    home=tmp_path)  # fmt: skip
        assert "helm uninstall fairlead" in notes
        for label, manifest in made.items():
            assert await find(client, manifest) is not None, label

        for arguments in ((), ("--dry-run",)):
            refused = run_cli(cluster, "install", *arguments)
            assert refused.returncode == 5, "fields of Helm were taken over"
            assert "helm upgrade fairlead" in refused.stderr
        checked = run_cli(cluster, "install", "--check")
        assert f"{NAME}: ok (0 of 2 replicas are available)" in checked.stdout
        assert "differs" not in checked.stdout + checked.stderr
        assert "helm upgrade fairlead brings its own" in checked.stderr
        changed = run_cli(cluster, "install", "--check", "--replicas", "3")
        differing = [line for line in changed.stdout.splitlines() if line.endswith(": differs")]
        assert differing == [f"Deployment {OWN_NAMESPACE}/{NAME}: differs"]

        asks = made["MutatingWebhookConfiguration fairlead"]
        hooks = [{"name": each["name"], "clientConfig": {"caBundle": "QQ=="}}
                 for each in asks["webhooks"]]  # fmt: skip
        await client.patch(
            MUTATING, "fairlead", {"webhooks": hooks}, patch_type=PatchType.STRATEGIC
        )
        run(helm, "upgrade", "fairlead", str(CHART), "--set", "logLevel=debug", *access,
            home=tmp_path)  # fmt: skip
        found = await find(client, asks)
        assert found is not None
        bundles = [each["clientConfig"].get("caBundle") for each in found["webhooks"]]
        assert bundles == ["QQ=="] * len(hooks), "an upgrade takes the authorities away"

        run(helm, "upgrade", "fairlead", str(CHART), "--set", "replicas=3", *access,
            "--set", "podDisruptionBudget.enabled=false", "--set", "webhook.enabled=false",
            home=tmp_path)  # fmt: skip
        deployment = await find(client, made[f"Deployment {OWN_NAMESPACE}/{NAME}"])
        assert deployment is not None
        assert deployment["spec"]["replicas"] == 3
        assert await find(client, made[f"PodDisruptionBudget {OWN_NAMESPACE}/{NAME}"]) is None
        # nobody runs our pods here: were the server still to ask them, it would refuse the job
        assert await find(client, made["ValidatingWebhookConfiguration fairlead"]) is None

        roles = [{"name": "worker", "count": 1, "template": {"spec": {"containers": [
            {"name": "c", "image": "i"}]}}}]  # fmt: skip
        body = {
            "metadata": {"name": "kept", "finalizers": ["fairlead.dev/job"]},
            "spec": {"roles": roles},
        }
        await client.create(JOBS, body, namespace="default")
        refused = run_cli(cluster, "uninstall", "--yes", "--delete-jobs")
        assert refused.returncode == 5
        assert "helm uninstall fairlead" in refused.stderr

        run(helm, "upgrade", "fairlead", str(CHART), "--reuse-values", *access,
            "--set", "crds.install=false", home=tmp_path)  # fmt: skip
        for arguments in (("install", "--take-ownership"), ("upgrade",)):
            run(helm, *arguments, "fairlead-crds", str(DEFINITIONS), *access, home=tmp_path)
        for kind in kinds:
            moved = await find(client, kind)
            assert moved is not None
            owner = moved["metadata"]["annotations"]["meta.helm.sh/release-name"]
            assert owner == "fairlead-crds"
        assert (await client.get(JOBS, "kept", namespace="default")).metadata.finalizers

        run(helm, "uninstall", "fairlead", *access, home=tmp_path)
        run(helm, "uninstall", "fairlead-crds", *access, home=tmp_path)
        del made[f"Namespace {OWN_NAMESPACE}"]  # Helm leaves namespaces alone
        assert [label for label, each in made.items() if await find(client, each)] == []
        for kind in kinds:
            kept = await find(client, kind)
            assert kept is not None, "its objects would have gone with their definition"
        assert (await client.get(JOBS, "kept", namespace="default")).metadata.finalizers

        done = run_cli(cluster, "uninstall", "--keep-crds", "--yes")
        assert done.returncode == 0, done.stderr
        assert (await client.get(JOBS, "kept", namespace="default")).metadata.finalizers == ()
        done = run_cli(cluster, "uninstall", "--delete-jobs", "--yes")
        assert done.returncode == 0, done.stderr
        assert await find(client, kind) is None
    finally:
        await client.close()
