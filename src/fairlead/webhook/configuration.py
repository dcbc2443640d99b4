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

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from fairlead.api import names
from fairlead.api.kubernetes.webhooks import (
    GROUP,
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
)
from fairlead.api.resources import FLEETS, JOB_ARRAYS, JOBS, NODE_POOLS, TEAMS, Resource
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


class Path(Enum):
    """The paths that are answered."""

    PODS = "/mutate-pods"
    PODS_OF_NAMESPACES = "/mutate-pods/of-namespaces"
    POD_TEAMS = "/mutate-pods/teams"
    JOBS = "/validate-jobs"
    JOBS_OF_ADMINISTRATORS = "/validate-jobs/of-administrators"
    TEAMS = "/validate-teams"
    NODE_POOLS = "/validate-nodepools"
    FLEETS = "/validate-fleets"
    JOB_DEFAULTS = "/mutate-jobs"
    ARRAYS = "/validate-jobarrays"
    ARRAYS_OF_ADMINISTRATORS = "/validate-jobarrays/of-administrators"
    ARRAY_DEFAULTS = "/mutate-jobarrays"
    CONVERT = "/convert"
    OTHER = ""


#: Paths of kinds of the whole cluster.
CLUSTER_KINDS: Mapping[Path, Resource[Any]] = {
    Path.TEAMS: TEAMS, Path.NODE_POOLS: NODE_POOLS, Path.FLEETS: FLEETS,
}  # fmt: skip
#: Kinds that users submit: the paths that fill them in, and that judge them as written by users and
#: by administrators.
WORK_KINDS: Mapping[Resource[Any], tuple[Path, Path, Path]] = {
    JOBS: (Path.JOB_DEFAULTS, Path.JOBS, Path.JOBS_OF_ADMINISTRATORS),
    JOB_ARRAYS: (Path.ARRAY_DEFAULTS, Path.ARRAYS, Path.ARRAYS_OF_ADMINISTRATORS),
}

#: What the server waits for us at most; afterwards the failure policy speaks.
TIMEOUT_SECONDS = 5
#: Shorter where we are ignored anyway.
IGNORED_TIMEOUT_SECONDS = 2
NAMESPACE_NAME = "kubernetes.io/metadata.name"
#: cert-manager fills the caBundle of configurations that have it; we then write nothing.
INJECT = "cert-manager.io/inject-ca-from"

Manifest = dict[str, Any]


def configurations(
    namespace: str, service: str, ca_bundle: str, *, system_namespaces: Sequence[str] = ()
) -> tuple[Manifest, Manifest]:
    """Return both configurations, which call `service` in `namespace`.

    About the teams of pods in `system_namespaces`, beside kube-system, nothing is asked.
    `ca_bundle` is PEM in base64; without one the field is left out, for a CA injector to fill in.
    """

    def client(path: Path) -> Manifest:
        target = {"namespace": namespace, "name": service, "path": path.value, "port": 443}
        return {"service": target, **({"caBundle": ca_bundle} if ca_bundle else {})}

    never = {"key": NAMESPACE_NAME, "operator": "NotIn",
             "values": [*sorted(SYSTEM_NAMESPACES), namespace]}  # fmt: skip
    pods = rule("", "v1", "pods", "CREATE")
    of_namespaces = _gating(client(Path.PODS_OF_NAMESPACES), pods, never)
    of_pods = {
        **of_namespaces,
        "name": f"pods.{names.GROUP}",
        "clientConfig": client(Path.PODS),
        "failurePolicy": "Ignore",
        "timeoutSeconds": IGNORED_TIMEOUT_SECONDS,
        "namespaceSelector": {"matchExpressions": [_term("NotIn", ENABLED), never]},
        "objectSelector": {"matchExpressions": [_term("In", ENABLED)]},
    }
    of_others = {**never, "values": [*never["values"], *system_namespaces]}
    of_teams, of_claims = _pod_teams(client(Path.POD_TEAMS), pods, of_others)
    work = [_work(resource, *map(client, paths)) for resource, paths in WORK_KINDS.items()]
    mutating = (of_namespaces, of_pods, of_teams, of_claims, *(fills for fills, _, _ in work))
    return (
        _configuration("MutatingWebhookConfiguration", *mutating),
        _configuration(
            "ValidatingWebhookConfiguration",
            *(entry for _, *judge in work for entry in judge),
            *(_judging(kind, client(path)) for path, kind in CLUSTER_KINDS.items()),
        ),
    )


def _work(
    resource: Resource[Any], fills: Manifest, judges: Manifest, judges_administrators: Manifest
) -> tuple[Manifest, Manifest, Manifest]:
    """Return the entries for a kind that users submit: what fills it in, and what judges it as
    written by users and by administrators.
    """
    entry = _judging(resource, judges, policy="Fail", timeout_seconds=TIMEOUT_SECONDS)
    of_users = {**entry, "matchConditions": conditions({**JOB_CONDITIONS, **OF_OTHERS})}
    of_administrators = {
        **entry,
        "name": f"administrators.{resource.name}",
        "clientConfig": judges_administrators,
        "matchConditions": conditions({**JOB_CONDITIONS, **OF_ADMINISTRATORS}),
    }
    # The controllers resolve priorities and teams themselves: those are only shown. Defaults of the
    # team are missed where this call fails and the judgement, a moment later, does not.
    defaults = {
        **entry,
        "matchConditions": conditions(JOB_CONDITIONS),
        "name": f"defaults.{resource.name}",
        "clientConfig": fills,
        "failurePolicy": "Ignore",
        "timeoutSeconds": IGNORED_TIMEOUT_SECONDS,
        "reinvocationPolicy": "Never",
    }
    return defaults, of_users, of_administrators


def _gating(client: Manifest, pods: Manifest, never: Manifest) -> Manifest:
    """Return the entry for pods of namespaces that opted in."""
    return {
        "name": f"namespaces.pods.{names.GROUP}",
        "clientConfig": client,
        "rules": [pods],
        "failurePolicy": "Fail",
        "timeoutSeconds": TIMEOUT_SECONDS,
        "reinvocationPolicy": "IfNeeded",
        "namespaceSelector": {"matchExpressions": [_term("In", ENABLED), never]},
        "objectSelector": {"matchExpressions": [_term("NotIn", DISABLED)]},
        "matchConditions": conditions(POD_CONDITIONS),
        **_COMMON,
    }


def _pod_teams(client: Manifest, pods: Manifest, never: Manifest) -> tuple[Manifest, Manifest]:
    """Return the entries for pods in labelled namespaces of teams, and for those elsewhere that
    tolerate taints of teams or name their node. Of pods that exist those are asked about that wait
    for a node and get other tolerations.
    """
    pods = {**pods, "operations": ["CREATE", "UPDATE"]}
    of_teams = {
        "name": f"teams.pods.{names.GROUP}",
        "clientConfig": client,
        "rules": [pods],
        "failurePolicy": "Ignore",  # the teams controller puts it right
        "timeoutSeconds": IGNORED_TIMEOUT_SECONDS,
        "reinvocationPolicy": "IfNeeded",
        "namespaceSelector": {"matchExpressions": [_exists(is_there=True), never]},
        "matchConditions": conditions({**_NEW_TOLERATIONS, **OF_OTHERS}),
        **_COMMON,
    }
    of_claims = {
        **of_teams,
        "clientConfig": {**client},
        "name": f"claims.pods.{names.GROUP}",
        "namespaceSelector": {"matchExpressions": [_exists(is_there=False), never]},
        "matchConditions": conditions({**_NEW_TOLERATIONS, **CLAIMS, **OF_OTHERS}),
    }
    return of_teams, of_claims


def _exists(*, is_there: bool) -> Manifest:
    return {"key": names.TEAM, "operator": "Exists" if is_there else "DoesNotExist"}


def _judging(
    resource: Resource[Any],
    client: Manifest,
    *,
    policy: str = "Ignore",  # the controllers judge it again
    timeout_seconds: int = IGNORED_TIMEOUT_SECONDS,
) -> Manifest:
    """Return the validation of one of our kinds."""
    scope = "Namespaced" if resource.namespaced else "Cluster"
    asked = rule(names.GROUP, names.VERSION, resource.plural, "CREATE", "UPDATE", scope=scope)
    return {
        "name": resource.name,
        "clientConfig": client,
        "rules": [asked],
        "failurePolicy": policy,
        "timeoutSeconds": timeout_seconds,
        "matchConditions": conditions(NEW_SPEC),
        **_COMMON,
    }


_COMMON: Mapping[str, Any] = {"sideEffects": "None", "admissionReviewVersions": ["v1"]}
_OWNERS = "object.metadata.ownerReferences"

_NOT_BOUND: Mapping[str, str] = {
    "not-bound": "!has(object.spec.nodeName) || object.spec.nodeName == ''",
}
_TOLERATIONS = "(has({0}.spec.tolerations) ? {0}.spec.tolerations : [])"
#: New pods, and those that wait for a node and get other tolerations.
_NEW_TOLERATIONS: Mapping[str, str] = {
    "new-tolerations": (
        "request.operation == 'CREATE' || "
        "((!has(oldObject.spec.nodeName) || oldObject.spec.nodeName == '') && "
        f"{_TOLERATIONS.format('object')} != {_TOLERATIONS.format('oldObject')})"
    ),
}
#: More tolerations are not searched: a condition that costs too much is taken as not met.
TOLERATIONS_MAX = 64
#: Pods that tolerate the taint of a team, or every taint; and new ones that name their node.
CLAIMS: Mapping[str, str] = {
    "claims-a-team": (
        "request.operation == 'CREATE' && "
        "has(object.spec.nodeName) && object.spec.nodeName != '' || "
        "has(object.spec.tolerations) && ("
        f"object.spec.tolerations.size() > {TOLERATIONS_MAX} || "
        f"object.spec.tolerations.exists(t, has(t.key) && t.key == '{names.TEAM}' || "
        "(!has(t.key) || t.key == '') && has(t.operator) && t.operator == 'Exists'))"
    ),
}
#: Who may write the status of jobs places pods: Fairlead's controllers, and administrators.
MAY_ADMINISTER = (
    f"authorizer.group('{names.GROUP}').resource('{JOBS.plural}').subresource('status')"
    ".namespace(request.namespace).check('patch').allowed()"
)
OF_OTHERS: Mapping[str, str] = {"not-of-fairlead": f"!{MAY_ADMINISTER}"}
OF_ADMINISTRATORS: Mapping[str, str] = {"of-fairlead": MAY_ADMINISTER}
#: The same exceptions as in `decide.admission`, in the server's language.
POD_CONDITIONS: Mapping[str, str] = {
    **_NOT_BOUND,
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
#: Finalizers, labels and other annotations are not our business here: our own controllers write
#: them, also while no webhook answers. Annotations that decide on others are, of jobs.
NEW_SPEC: Mapping[str, str] = {
    "new-spec": "request.operation == 'CREATE' || object.spec != oldObject.spec",
}


def arrays_of(job: str) -> str:
    """Return the expression of the references to arrays that control a job: whose element it is."""
    owners = f"{job}.metadata.ownerReferences"
    return (
        f"(has({owners}) ? {owners}.filter(o, o.kind == '{JOB_ARRAYS.kind}' && "
        f"o.apiVersion == '{names.API_VERSION}' && has(o.controller) && o.controller) : [])"
    )


def _annotation(of: str, key: str) -> str:
    """Return the expression of an annotation's value, '' where there is none."""
    there = f"{of}.metadata.annotations"
    return f"(has({there}) && '{key}' in {there} ? {there}['{key}'] : '')"


JOB_CONDITIONS: Mapping[str, str] = {
    "new-spec-user-or-array": " || ".join(
        (
            NEW_SPEC["new-spec"],
            f"{arrays_of('object')} != {arrays_of('oldObject')}",
            *(
                f"{_annotation('object', key)} != {_annotation('oldObject', key)}"
                for key in (names.SUBMITTED_BY, names.DEFRAGMENT)
            ),
        )
    ),
}


def _configuration(kind: str, *webhooks: Manifest) -> Manifest:
    return {
        "apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": NAME},
        "webhooks": list(webhooks),
    }  # fmt: skip


def rule(
    group: str, version: str, plural: str, *operations: str, scope: str = "Namespaced"
) -> Manifest:
    """Return the rule that selects operations on a resource."""
    return {
        "apiGroups": [group], "apiVersions": [version], "resources": [plural],
        "operations": list(operations), "scope": scope,
    }  # fmt: skip


def _term(operator: str, value: str) -> Manifest:
    return {"key": names.GANG_SCHEDULING, "operator": operator, "values": [value]}


def conditions(expressions: Mapping[str, str]) -> list[Manifest]:
    """Return expressions in the form of match conditions, and of variables."""
    return [{"name": name, "expression": text} for name, text in expressions.items()]
