"""The webhook configurations, as data: which requests the API server asks us about (pure).

The server is to ask about as few pods as possible, since each question is a round trip in the way
of a pod. Selectors leave out what did not opt in, and conditions in CEL what opted in but cannot
wait (bound pods, daemons, members of our jobs). Who asked follows from the path, because a
review does not show the labels of the namespace.

In namespaces that opted in a failed call refuses the pod (`Fail`): let in without its gate it would
start without its gang, which is what they opted out of. A pod that asks by its own label elsewhere
is let in (`Ignore`): a namespace that did not opt in must not depend on us. Namespaces that a
cluster cannot start without, and our own, are never asked about.

Sources: kubernetes.io/docs, "Dynamic Admission Control"; KEP-3716 (match conditions).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairlead.api import names
from fairlead.api.resources import Resource
from fairlead.api.webhooks import (
    GROUP,
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
)
from fairlead.decide.admission.pod_gates import (
    DISABLED,
    ENABLED,
    MIRROR,
    SCHEDULER,
    SYSTEM_NAMESPACES,
)

#: Name of both configurations.
NAME = "fairlead"
#: Name of the Service that API servers call, and of the Secret with its certificate.
SERVICE = "fairlead-webhook"
#: Where the controllers listen behind the Service.
PORT = 9443
MUTATING = Resource(
    GROUP, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration",
    MutatingWebhookConfiguration, namespaced=False,
)  # fmt: skip
VALIDATING = Resource(
    GROUP, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration",
    ValidatingWebhookConfiguration, namespaced=False,
)  # fmt: skip

PODS_OF_NAMESPACES_PATH = "/mutate-pods/of-namespaces"
PODS_PATH = "/mutate-pods"
JOBS_PATH = "/validate-jobs"
JOB_DEFAULTS_PATH = "/mutate-jobs"
TEAMS_PATH = "/validate-teams"

#: What the server waits for us at most; afterwards the failure policy speaks.
TIMEOUT_SECONDS = 5
#: Shorter where we are ignored anyway.
IGNORED_TIMEOUT_SECONDS = 2
NAMESPACE_NAME = "kubernetes.io/metadata.name"
#: cert-manager fills the caBundle of configurations that have it; we then write nothing.
INJECT = "cert-manager.io/inject-ca-from"

Manifest = dict[str, Any]


def configurations(namespace: Any, service: str, ca_bundle: str) -> tuple[Manifest, Manifest]:
    """Return both configurations, which call `service` in `namespace` (a text, or a blank for one).

    `ca_bundle` is PEM in base64; without one the field is left out, for a CA injector to fill in.
    """

    def client(path: str) -> Manifest:
        target = {"namespace": namespace, "name": service, "path": path, "port": 443}
        return {"service": target, **({"caBundle": ca_bundle} if ca_bundle else {})}

    never = {"key": NAMESPACE_NAME, "operator": "NotIn",
             "values": [*sorted(SYSTEM_NAMESPACES), namespace]}  # fmt: skip
    pods = _rule("", "v1", "pods", "CREATE")
    of_namespaces = {
        "name": f"namespaces.pods.{names.GROUP}",
        "clientConfig": client(PODS_OF_NAMESPACES_PATH),
        "rules": [pods],
        "failurePolicy": "Fail",
        "timeoutSeconds": TIMEOUT_SECONDS,
        "reinvocationPolicy": "IfNeeded",
        "namespaceSelector": {"matchExpressions": [_term("In", ENABLED), never]},
        "objectSelector": {"matchExpressions": [_term("NotIn", DISABLED)]},
        "matchConditions": _conditions(POD_CONDITIONS),
        **_COMMON,
    }
    of_pods = {
        "name": f"pods.{names.GROUP}",
        "clientConfig": client(PODS_PATH),
        "rules": [pods],
        "failurePolicy": "Ignore",
        "timeoutSeconds": IGNORED_TIMEOUT_SECONDS,
        "reinvocationPolicy": "IfNeeded",
        "namespaceSelector": {"matchExpressions": [_term("NotIn", ENABLED), never]},
        "objectSelector": {"matchExpressions": [_term("In", ENABLED)]},
        "matchConditions": _conditions(POD_CONDITIONS),
        **_COMMON,
    }
    jobs = {
        "name": f"jobs.{names.GROUP}",
        "clientConfig": client(JOBS_PATH),
        "rules": [_rule(names.GROUP, names.VERSION, "jobs", "CREATE", "UPDATE")],
        "failurePolicy": "Fail",
        "timeoutSeconds": TIMEOUT_SECONDS,
        "matchConditions": _conditions(JOB_CONDITIONS),
        **_COMMON,
    }
    # The controllers resolve priorities themselves: a default that is missing is only not shown.
    job_defaults = {
        **jobs,
        "name": f"defaults.jobs.{names.GROUP}",
        "clientConfig": client(JOB_DEFAULTS_PATH),
        "failurePolicy": "Ignore",
        "timeoutSeconds": IGNORED_TIMEOUT_SECONDS,
        "reinvocationPolicy": "Never",
    }
    return (
        _configuration("MutatingWebhookConfiguration", of_namespaces, of_pods, job_defaults),
        _configuration("ValidatingWebhookConfiguration", jobs, _teams(client(TEAMS_PATH))),
    )


def _teams(client: Manifest) -> Manifest:
    """Return the validation of teams, which the controllers repeat: ignored when it fails."""
    rule = _rule(names.GROUP, names.VERSION, "teams", "CREATE", "UPDATE", scope="Cluster")
    return {
        "name": f"teams.{names.GROUP}",
        "clientConfig": client,
        "rules": [rule],
        "failurePolicy": "Ignore",
        "timeoutSeconds": IGNORED_TIMEOUT_SECONDS,
        "matchConditions": _conditions(JOB_CONDITIONS),
        **_COMMON,
    }


_COMMON: Mapping[str, Any] = {"sideEffects": "None", "admissionReviewVersions": ["v1"]}
_OWNERS = "object.metadata.ownerReferences"

#: The same exceptions as in `decide.admission`, in the server's language.
POD_CONDITIONS: Mapping[str, str] = {
    "not-bound": "!has(object.spec.nodeName) || object.spec.nodeName == ''",
    "kube-scheduler": (
        f"!has(object.spec.schedulerName) || object.spec.schedulerName in ['', '{SCHEDULER}']"
    ),
    "not-a-mirror": (
        "!has(object.metadata.annotations) || "
        f"!object.metadata.annotations.exists(key, key == '{MIRROR}')"
    ),
    "not-of-a-job-or-daemon": (
        f"!has({_OWNERS}) || !{_OWNERS}.exists(owner, "
        "owner.kind == 'DaemonSet' || "
        f"(owner.kind == 'Job' && owner.apiVersion.startsWith('{names.GROUP}/')))"
    ),
}
#: Finalizers, labels and annotations are not our business here: our own controllers write them,
#: also while no webhook answers.
JOB_CONDITIONS: Mapping[str, str] = {
    "new-spec": "request.operation == 'CREATE' || object.spec != oldObject.spec",
}


def _configuration(kind: str, *webhooks: Manifest) -> Manifest:
    return {
        "apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": NAME},
        "webhooks": list(webhooks),
    }  # fmt: skip


def _rule(
    group: str, version: str, plural: str, *operations: str, scope: str = "Namespaced"
) -> Manifest:
    return {
        "apiGroups": [group], "apiVersions": [version], "resources": [plural],
        "operations": list(operations), "scope": scope,
    }  # fmt: skip


def _term(operator: str, value: str) -> Manifest:
    return {"key": names.GANG_SCHEDULING, "operator": operator, "values": [value]}


def _conditions(expressions: Mapping[str, str]) -> list[Manifest]:
    return [{"name": name, "expression": text} for name, text in expressions.items()]
