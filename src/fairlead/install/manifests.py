"""What Fairlead is made of on a cluster: the one source of its manifests.

They are blueprints (`blueprint.py`): `manifests` fills them in for `fairlead install`, `chart.py`
writes them as the Helm chart. `deploy/` holds both, and a test says when it is not up to date.
The rights are exactly those that the controllers use; another test runs them under these rights on
a real API server and compares what they asked for with what they were given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.api import crd, names
from fairlead.api.podgroups import GROUP as GANGS
from fairlead.api.webhooks import GROUP as ADMISSION
from fairlead.input.sections import plain
from fairlead.install import archive_manifests, webhook_manifests
from fairlead.install.blueprint import (
    ABSENT,
    Blueprint,
    Context,
    Given,
    Json,
    JsonChecksum,
    Ref,
    Release,
    Spread,
    Text,
    When,
    holds,
    resolve,
)
from fairlead.install.pieces import (
    NAME,
    NAMESPACE,
    Manifest,
    Part,
    labels,
    local,
    optional,
    rule,
    selector,
    whole,
)
from fairlead.install.values import Values

METRICS = "fairlead-metrics"
HISTORY = "fairlead-history"
SETTINGS = "fairlead-settings"
SETTINGS_DIR = "/etc/fairlead"
SETTINGS_FILE = "settings.yaml"
#: Its change replaces the pods: settings are read once, at the start.
SETTINGS_CHECKSUM = "fairlead.dev/settings-checksum"
PORT = 8080
#: What a controller may run as: nobody's account, with nothing of its own.
USER_ID = 65532
#: What is not deleted because a value says that it is not wanted any more.
KEPT_KINDS = frozenset({"CustomResourceDefinition", "PersistentVolumeClaim"})
HISTORY_DIR = "/var/lib/fairlead"
_RBAC = "rbac.authorization.k8s.io"
_KEEPING_LOGS = (Given("history.kind", "sqlite"), Given("history.kind", "postgres"))
_KEEP = {"helm.sh/resource-policy": "keep"}


@dataclass(frozen=True, slots=True)
class Install:
    """An installation: where, and what was chosen."""

    namespace: str = NAMESPACE
    values: Values = field(default_factory=Values)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a kind lives in the API."""

    prefix: str
    plural: str
    is_namespaced: bool = True


PLACES: Mapping[str, Place] = {
    "Namespace": Place("/api/v1", "namespaces", is_namespaced=False),
    "CustomResourceDefinition": Place(
        "/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", is_namespaced=False
    ),
    "ServiceAccount": Place("/api/v1", "serviceaccounts"),
    "ClusterRole": Place(f"/apis/{_RBAC}/v1", "clusterroles", is_namespaced=False),
    "ClusterRoleBinding": Place(f"/apis/{_RBAC}/v1", "clusterrolebindings", is_namespaced=False),
    "Role": Place(f"/apis/{_RBAC}/v1", "roles"),
    "RoleBinding": Place(f"/apis/{_RBAC}/v1", "rolebindings"),
    "Service": Place("/api/v1", "services"),
    "PersistentVolumeClaim": Place("/api/v1", "persistentvolumeclaims"),
    "NetworkPolicy": Place("/apis/networking.k8s.io/v1", "networkpolicies"),
    "MutatingWebhookConfiguration": Place(
        f"/apis/{ADMISSION}/v1", "mutatingwebhookconfigurations", is_namespaced=False
    ),
    "ValidatingWebhookConfiguration": Place(
        f"/apis/{ADMISSION}/v1", "validatingwebhookconfigurations", is_namespaced=False
    ),
    "Certificate": Place(webhook_manifests.CERTIFICATES, "certificates"),
    "ConfigMap": Place("/api/v1", "configmaps"),
    "ServiceMonitor": Place("/apis/monitoring.coreos.com/v1", "servicemonitors"),
    "Deployment": Place("/apis/apps/v1", "deployments"),
    "PodDisruptionBudget": Place("/apis/policy/v1", "poddisruptionbudgets"),
}


def path_of(manifest: Manifest) -> str:
    """Return the URL path of a manifest's object."""
    place, metadata = PLACES[manifest["kind"]], manifest["metadata"]
    middle = f"/namespaces/{metadata['namespace']}" if place.is_namespaced else ""
    return f"{place.prefix}{middle}/{place.plural}/{metadata['name']}"


def label_of(manifest: Manifest) -> str:
    """Return `kind namespace/name`, for people."""
    metadata = manifest["metadata"]
    space = f"{metadata['namespace']}/" if "namespace" in metadata else ""
    return f"{manifest['kind']} {space}{metadata['name']}"


def manifests(install: Install) -> list[Manifest]:
    """Return everything that was chosen, in the order in which it can be created."""
    context = Context(plain(install.values), install.namespace)
    return [
        resolve(part.body, context)
        for part in blueprint()
        if part.test is None or holds(part.test, context)
    ]


def unwanted(install: Install) -> list[Manifest]:
    """Return what an earlier choice may have left; not what holds jobs or their history."""
    context = Context(plain(install.values), install.namespace)
    return [
        resolve(part.body, context)
        for part in blueprint()
        if part.test is not None
        and not holds(part.test, context)
        and part.body["kind"] not in KEPT_KINDS
    ]


def blueprint() -> list[Part]:
    """Return all that there may be, in the order in which it can be created."""
    return [
        Part("", _namespace()),
        *_kinds(),
        *(Part(role["metadata"]["name"], role) for role in users_roles()),
        Part("serviceaccount", _service_account()),
        Part("clusterrole", whole("ClusterRole", f"{_RBAC}/v1", NAME, rules=_cluster_rules())),
        Part("clusterrolebinding", _binding("ClusterRoleBinding", "ClusterRole")),
        Part("role", local("Role", f"{_RBAC}/v1", NAME, rules=_namespace_rules())),
        Part("rolebinding", _binding("RoleBinding", "Role")),
        Part("service", _service(), Given("metrics.service.enabled")),
        Part("servicemonitor", _monitor(), Given("metrics.serviceMonitor.enabled")),
        Part("networkpolicy", _network_policy(), Given("networkPolicy.enabled")),
        Part("poddisruptionbudget", _budget(), Given("podDisruptionBudget.enabled")),
        Part("persistentvolumeclaim", _volume_claim(), Given("history.kind", "sqlite")),
        *webhook_manifests.parts(),
        *archive_manifests.parts(),
        Part(
            "configmap", local("ConfigMap", "v1", SETTINGS, data={SETTINGS_FILE: Json("settings")})
        ),
        Part("deployment", _deployment()),
    ]


def _kinds() -> Iterator[Part]:
    for manifest in crd.manifests():
        metadata = dict(manifest["metadata"])
        notes: Manifest = metadata.pop("annotations", {})
        metadata["labels"] = {**metadata.get("labels", {}), **labels()}
        # As templates, not in crds/: Helm never upgrades what is in there.
        metadata["annotations"] = When(Given("crds.keep"), {**notes, **_KEEP}, notes or ABSENT)
        body = {
            "apiVersion": manifest["apiVersion"], "kind": manifest["kind"], "metadata": metadata,
            "spec": manifest["spec"],
        }  # fmt: skip
        plural = manifest["spec"]["names"]["plural"]
        yield Part(f"customresourcedefinition-{plural}", body, Given("crds.install"))


def cluster_rules(install: Install | None = None) -> list[Manifest]:
    """Return what the controllers may do in the whole cluster, and nothing more."""
    return _resolved(_cluster_rules(), install)


def namespace_rules(install: Install | None = None) -> list[Manifest]:
    """Return what the controllers may do in their own namespace."""
    return _resolved(_namespace_rules(), install)


def _resolved(rules: list[Blueprint], install: Install | None) -> list[Manifest]:
    chosen = install or Install()
    found: list[Manifest] = resolve(rules, Context(plain(chosen.values), chosen.namespace))
    return found


def _cluster_rules() -> list[Blueprint]:
    return [
        # created: those that stand for a group of pods of others
        rule(names.GROUP, ["jobs"], ["get", "list", "watch", "create", "patch", "delete"]),
        rule(names.GROUP, ["jobs/status"], ["patch"]),
        # Pods name their job as an owner whose deletion waits for them; where the plug-in
        # OwnerReferencesPermissionEnforcement is on, that takes this right.
        rule(names.GROUP, ["jobs/finalizers"], ["update"]),
        # patched: pods of others, to pin them and take our gate off
        rule("", ["pods"], ["get", "list", "watch", "create", "patch", "delete"]),
        rule("", ["configmaps", "services"], ["get", "list", "watch", "create", "delete"]),
        # Logs are kept before a member is deleted, where there is room for them.
        *(When(each, rule("", ["pods/log"], ["get"])) for each in _KEEPING_LOGS),
        rule("", ["nodes"], ["list", "watch"]),
        rule("scheduling.k8s.io", ["priorityclasses"], ["list", "watch"]),
        rule("", ["resourcequotas"], ["list", "watch"]),
        rule("", ["events"], ["get", "create", "patch"]),
        # Gangs that kube-scheduler places, where the server has its kinds.
        rule(GANGS, ["podgroups"], ["get", "list", "watch", "create", "delete"]),
        rule(GANGS, ["workloads"], ["get", "create"]),
        *(rule(group, kinds, ["get"]) for group, kinds in _SOURCES.items()),
        *(When(webhook_manifests.ENABLED, each) for each in webhook_manifests.cluster_rules()),
        *(When(webhook_manifests.ENABLED, each) for each in archive_manifests.cluster_rules()),
    ]


#: What is read, once per group, to learn how many pods of another tool belong together.
_SOURCES = {
    "apps": ["statefulsets"],
    "batch": ["jobs"],
    "jobset.x-k8s.io": ["jobsets"],
    "kubeflow.org": ["jaxjobs", "mpijobs", "paddlejobs", "pytorchjobs", "tfjobs", "xgboostjobs"],
    "leaderworkerset.x-k8s.io": ["leaderworkersets"],
    "ray.io": ["rayclusters"],
    "scheduling.volcano.sh": ["podgroups"],
    "scheduling.x-k8s.io": ["podgroups"],
}


def _namespace_rules() -> list[Blueprint]:
    group = "coordination.k8s.io"
    return [
        rule(group, ["leases"], ["create"]),  # the API knows no name yet when it asks
        rule(group, ["leases"], ["get", "patch"], resourceNames=[NAME]),
        *(When(webhook_manifests.ENABLED, each) for each in webhook_manifests.namespace_rules()),
    ]


def users_roles() -> list[Manifest]:
    """Return what the cluster's own roles view, edit and admin may do with jobs."""
    read = ["get", "list", "watch"]
    write = [*read, "create", "update", "patch", "delete", "deletecollection"]
    return [
        _aggregated("fairlead-view", ["view", "edit", "admin"], read),
        _aggregated("fairlead-edit", ["edit", "admin"], write),
    ]


def _aggregated(name: str, roles: Sequence[str], verbs: Sequence[str]) -> Manifest:
    role = whole("ClusterRole", f"{_RBAC}/v1", name, rules=[rule(names.GROUP, ["jobs"], verbs)])
    role["metadata"]["labels"] |= {f"{_RBAC}/aggregate-to-{each}": "true" for each in roles}
    return role


def _namespace() -> Manifest:
    manifest = whole("Namespace", "v1", Release.NAMESPACE)
    manifest["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = "restricted"
    return manifest


def _service_account() -> Manifest:
    manifest = local("ServiceAccount", "v1", NAME)
    manifest["metadata"]["annotations"] = optional("serviceAccount.annotations")
    return manifest


def _binding(kind: str, role: str) -> Manifest:
    make = local if kind == "RoleBinding" else whole
    return make(
        kind,
        f"{_RBAC}/v1",
        NAME,
        roleRef={"apiGroup": _RBAC, "kind": role, "name": NAME},
        subjects=[{"kind": "ServiceAccount", "name": NAME, "namespace": Release.NAMESPACE}],
    )


def _service() -> Manifest:
    manifest = local(
        "Service",
        "v1",
        METRICS,
        spec={
            "selector": selector(),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    )
    manifest["metadata"]["annotations"] = optional("metrics.service.annotations")
    return manifest


def _monitor() -> Manifest:
    manifest = local(
        "ServiceMonitor",
        "monitoring.coreos.com/v1",
        NAME,
        spec={
            "selector": {"matchLabels": selector()},
            "endpoints": [{"port": "http", "interval": Ref("metrics.serviceMonitor.interval")}],
        },
    )
    manifest["metadata"]["labels"]["more"] = Spread(Ref("metrics.serviceMonitor.labels"))
    return manifest


def _network_policy() -> Manifest:
    return local(
        "NetworkPolicy",
        "networking.k8s.io/v1",
        NAME,
        spec={
            "podSelector": {"matchLabels": selector()},
            "policyTypes": ["Ingress"],
            "ingress": [
                _let_in("networkPolicy.scrapersFrom", "http"),
                When(
                    webhook_manifests.ENABLED,
                    _let_in("networkPolicy.apiServersFrom", "webhook"),
                ),
            ],
        },
    )


def _let_in(path: str, port: str) -> Manifest:
    """Return a rule that lets the peers of a value reach a port; without any, all."""
    return {"ports": [{"protocol": "TCP", "port": port}], "from": optional(path)}


def _budget() -> Manifest:
    return local(
        "PodDisruptionBudget",
        "policy/v1",
        NAME,
        spec={
            "maxUnavailable": Ref("podDisruptionBudget.maxUnavailable"),
            "selector": {"matchLabels": selector()},
        },
    )


def _volume_claim() -> Manifest:
    manifest = local(
        "PersistentVolumeClaim",
        "v1",
        HISTORY,
        spec={
            "accessModes": [Ref("history.sqlite.accessMode")],
            "storageClassName": optional("history.sqlite.storageClassName"),
            "resources": {"requests": {"storage": Ref("history.sqlite.size")}},
        },
    )
    manifest["metadata"]["annotations"] = dict(_KEEP)  # what has ended is not made anew
    return manifest


def _deployment() -> Manifest:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
    metadata = {
        "labels": {**labels(), "more": Spread(Ref("podLabels"))},
        "annotations": {
            SETTINGS_CHECKSUM: JsonChecksum("settings"),
            "more": Spread(Ref("podAnnotations")),
        },
    }
    return local(
        "Deployment",
        "apps/v1",
        NAME,
        spec={
            "replicas": Ref("replicas"),
            "selector": {"matchLabels": selector()},
            # two pods cannot write one file of SQLite, nor two nodes mount its volume
            "strategy": When(Given("history.kind", "sqlite"), {"type": "Recreate"}, rolling),
            "template": {"metadata": metadata, "spec": _pod()},
        },
    )


def _pod() -> Manifest:
    spread = {
        "maxSkew": 1,
        "topologyKey": names.HOSTNAME,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector()},
    }
    claim = {"name": "history", "persistentVolumeClaim": {"claimName": HISTORY}}
    return {
        "serviceAccountName": NAME,
        "imagePullSecrets": optional("imagePullSecrets"),
        "priorityClassName": optional("priorityClassName"),
        "terminationGracePeriodSeconds": 30,
        "nodeSelector": optional("nodeSelector"),
        "tolerations": optional("tolerations"),
        "affinity": optional("affinity"),
        "topologySpreadConstraints": [spread],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container()],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "settings", "configMap": {"name": SETTINGS}},
            When(Given("history.kind", "sqlite"), claim),
        ],
    }


def _image() -> When:
    repository = Ref("image.repository")
    return When(
        Given("image.digest"),
        Text((repository, "@", Ref("image.digest"))),
        Text((repository, ":", Ref("image.tag"))),
    )


def _arguments() -> list[Blueprint]:
    has_root, has_file = Given("checkpointRoot"), Given("history.kind", "sqlite")
    return [
        "controller",
        "--listen", f"0.0.0.0:{PORT}",
        "--lease", NAME,
        "--lease-seconds", Text((Ref("leaderElection.leaseSeconds"),)),
        "--binding", Ref("binding"),
        "--settings", f"{SETTINGS_DIR}/{SETTINGS_FILE}",
        When(has_root, "--checkpoint-root"), When(has_root, Ref("checkpointRoot")),
        When(has_file, "--history"), When(has_file, f"{HISTORY_DIR}/history.db"),
        When(Given("logLevel", "debug"), "-vv"),
        *webhook_manifests.arguments(),
        Spread(Ref("extraArgs")),
    ]  # fmt: skip


def _container() -> Manifest:
    return {
        "name": "controller",
        "image": _image(),
        "imagePullPolicy": Ref("image.pullPolicy"),
        "args": _arguments(),
        "env": [
            _from_field("POD_NAME", "metadata.name"),
            _from_field("POD_NAMESPACE", "metadata.namespace"),
            When(Given("history.kind", "postgres"), _history_url()),
            Spread(Ref("extraEnv")),
        ],
        "ports": [
            {"name": "http", "containerPort": PORT, "protocol": "TCP"},
            webhook_manifests.container_port(),
        ],
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "http"},
            "initialDelaySeconds": 10,
            "periodSeconds": 10,
            "timeoutSeconds": 5,
        },
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": "http"},
            "periodSeconds": 5,
            "timeoutSeconds": 5,
        },
        "resources": Ref("resources"),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
            {"name": "settings", "mountPath": SETTINGS_DIR, "readOnly": True},
            When(Given("history.kind", "sqlite"), {"name": "history", "mountPath": HISTORY_DIR}),
        ],
    }


def _history_url() -> Manifest:
    """Return the variable that no list of processes shows, as an argument would be."""
    key = {"name": Ref("history.postgres.secretName"), "key": Ref("history.postgres.secretKey")}
    return {"name": "FAIRLEAD_HISTORY_URL", "valueFrom": {"secretKeyRef": key}}


def _from_field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
