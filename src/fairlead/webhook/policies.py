"""Admission policies: what the API server itself can hold, without asking us, as data (pure).

They repeat of `decide.admission` what CEL can say, so that it also holds while the webhook is down
or disabled: which pods may not claim nodes of teams, and who writes jobs that stand for other pods
or are elements of arrays.
Which team has a node CEL cannot know: there the policies are stricter than the webhook.
Whose report of a node is whose they hold alone: the webhook is not asked about reports.

The policies about pods have one parameter, the Fleet, in whose status the teams controller writes
the teams of each namespace; without teams nothing is held. The Teams themselves as parameters would
have each pod evaluated once for each of them. A cluster without the kind would refuse all pods over
its missing parameter, so failures of these two are ignored; a bound on the number of tolerations
keeps anybody from causing one by the cost of an expression.

Sources: kubernetes.io/docs, "Validating Admission Policy"; KEP-3488; for the node in the token of a
pod KEP-4193.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairlead.api import names
from fairlead.api.cluster.fleet import FLEET_NAME
from fairlead.api.cluster.node_report import COMPONENT_MAX
from fairlead.api.kubernetes.webhooks import GROUP
from fairlead.api.resources import FLEETS, JOBS, NODE_REPORTS
from fairlead.decide.admission.jobs import FREE_WHERE_ADOPTED
from fairlead.decide.admission.pod_gates import SYSTEM_NAMESPACES
from fairlead.decide.admission.pod_teams import DAEMON_CONTROLLER, KUBELETS
from fairlead.webhook.configuration import (
    CLAIMS,
    MAY_ADMINISTER,
    NAMESPACE_NAME,
    NEW_SPEC,
    TOLERATIONS_MAX,
    arrays_of,
    conditions,
    rule,
)

Manifest = dict[str, Any]

POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
#: Who binds pods may name their nodes: a scheduler.
_MAY_BIND = (
    "authorizer.group('').resource('pods').subresource('binding').namespace(request.namespace)"
    ".check('create').allowed()"
)
#: Who makes daemons in every namespace, such as the operator of a network or of drivers.
_MAY_MAKE_DAEMONS = "authorizer.group('apps').resource('daemonsets').check('create').allowed()"
_IS_OF_ONE = "(!has(t.operator) || t.operator in ['', 'Equal'])"
_IS_OF_TEAMS = f"(has(t.key) && t.key == '{names.TEAM}')"
_IS_OF_ALL = "((!has(t.key) || t.key == '') && (!has(t.effect) || t.effect in ['', 'NoSchedule']))"
#: What the server says of who asks with the token of a pod: its node. On by default since 1.30.
NODE_NAME_CLAIM = "authentication.kubernetes.io/node-name"
NODE_UID_CLAIM = "authentication.kubernetes.io/node-uid"
#: Who writes the specs of reports is Fairlead or an administrator.
_MAY_WRITE_REPORTS = (
    f"authorizer.group('{names.GROUP}').resource('{NODE_REPORTS.plural}').check('patch').allowed()"
)
#: Writers of which a report keeps note; each may add one, and the object is bounded.
REPORT_WRITERS_MAX = 16
_NAMES_NO_NODE = "!has({0}.nodeName) || {0}.nodeName == ''"


def policies(namespace: str, *, system_namespaces: Sequence[str] = ()) -> Iterator[Manifest]:
    """Yield the policies, each followed by its binding.

    `namespace` is that of Fairlead's own pods: like those in `system_namespaces`, and in
    kube-system, they may be on nodes of every team.
    """
    outside = [*sorted(SYSTEM_NAMESPACES), namespace, *system_namespaces]
    selector = {"matchExpressions": [
        {"key": NAMESPACE_NAME, "operator": "NotIn", "values": outside}]}  # fmt: skip
    yield from _of_teams(
        f"{names.GROUP}-pods",
        rule("", "v1", "pods", "CREATE", "UPDATE"), selector,
        {
            **CLAIMS,
            "waits-for-a-node": "request.operation == 'CREATE' || "
            f"{_NAMES_NO_NODE.format('oldObject.spec')}",
            "not-of-a-daemon": f"request.userInfo.username != '{DAEMON_CONTROLLER}'",
            "not-of-a-kubelet": "!has(request.userInfo.groups) || "
            f"!('{KUBELETS}' in request.userInfo.groups)",
        },
        spec="spec", exempt=MAY_ADMINISTER, all_teams="variables.mayBorrow",
        names_node=f"request.operation != 'CREATE' || {_NAMES_NO_NODE.format('object.spec')} || "
        f"{_MAY_BIND}",
    )  # fmt: skip
    yield from _of_teams(
        f"{names.GROUP}-daemonsets",
        rule("apps", "v1", "daemonsets", "CREATE", "UPDATE"), selector, NEW_SPEC,
        spec="spec.template.spec", exempt=f"{MAY_ADMINISTER} || {_MAY_MAKE_DAEMONS}",
        all_teams="false",
        names_node=_NAMES_NO_NODE.format("object.spec.template.spec"),
    )  # fmt: skip
    yield from _of_jobs()
    yield from _of_elements()
    yield from _of_reports()


_JOBS_WRITTEN = rule(JOBS.group, JOBS.version, JOBS.plural, "CREATE", "UPDATE")


def _of_teams(
    name: str,
    asked: Manifest,
    namespaces: Manifest,
    when: Mapping[str, str],
    *,
    spec: str,
    exempt: str,
    all_teams: str,
    names_node: str,
) -> Iterator[Manifest]:
    """Yield a policy on the tolerations and the node in pods' specs.

    `exempt` and `all_teams` are expressions: who is not judged, and what may tolerate all teams.
    """
    few = (
        f"variables.own.size() <= {TOLERATIONS_MAX} || variables.isExempt",
        f"'at most {TOLERATIONS_MAX} tolerations'",
    )
    of_team = (
        f"!variables.added.exists(t, {_IS_OF_TEAMS} && {_IS_OF_ONE} && "
        "!variables.teams.exists(e, e.startsWith((has(t.value) ? t.value : '') + '='))) || "
        "variables.isExempt",
        f"'a toleration {names.TEAM} is of a team that namespace ' + request.namespace + "
        "' does not belong to'",
    )
    of_all = (
        f"!variables.added.exists(t, ({_IS_OF_TEAMS} || {_IS_OF_ALL}) && !{_IS_OF_ONE}) || "
        f"{all_teams} || variables.isExempt",
        "'a toleration of every taint, or of every team, admits pods to nodes of all teams: only "
        "pods whose priority may borrow have it'",
    )
    node = (
        f"{names_node} || variables.isExempt",
        "'spec.nodeName passes by the taints of teams: choose a node by the label "
        "kubernetes.io/hostname in spec.nodeSelector'",
    )
    yield from _policy(
        name, few, of_team, of_all, node,
        rules=[asked], namespaces=namespaces, when=when, variables=_variables(spec, exempt),
    )  # fmt: skip


def _variables(spec: str, exempt: str) -> Mapping[str, str]:
    """Return what the expressions about pods' specs have in common; each is evaluated on use."""
    own, before = f"object.{spec}", f"oldObject.{spec}"
    label = (
        f"(has(object.metadata.labels) && '{names.TEAM}' in object.metadata.labels ? "
        f"object.metadata.labels['{names.TEAM}'] : '')"
    )
    known = "params.status.teams"
    return {
        "isHeld": "has(params.status) && has(params.status.teamsCount) && "
        "params.status.teamsCount > 0",
        "own": f"has({own}.tolerations) ? {own}.tolerations : []",
        "before": f"request.operation == 'UPDATE' && has({before}.tolerations) ? "
        f"{before}.tolerations : []",
        "added": "variables.own == variables.before ? [] : "
        "variables.own.filter(t, !(t in variables.before))",
        # each as in Fleet.status.teams: its name, and up to which priority it borrows
        "teams": f"has({known}) && request.namespace in {known} ? "
        f"{known}[request.namespace].split(',') : []",
        "ownTeams": f"variables.teams.filter(e, {label} == '' || e.startsWith({label} + '='))",
        "mayBorrow": "variables.ownTeams.size() == 1 && !variables.ownTeams[0].endsWith('=') && "
        "(has(object.spec.priority) ? object.spec.priority : 0) <= "
        "int(variables.ownTeams[0].split('=')[1])",
        "isExempt": f"!variables.isHeld || {exempt}",
    }  # fmt: skip


def _of_jobs() -> Iterator[Manifest]:
    """Yield the policy on jobs that stand for other pods: Fairlead writes them."""
    free = ", ".join(f"'{field}'" for field in sorted(FREE_WHERE_ADOPTED))
    name = f"{names.GROUP}-adopting-jobs"
    adopts = "has(object.spec.adopts)"
    before = "(request.operation == 'UPDATE' && has(oldObject.spec.adopts))"
    written = (
        f"!{adopts} || {before} || variables.isExempt",
        "'spec.adopts is written by Fairlead for pods that opted in; leave it out'",
    )
    kept = (
        f"!{before} || variables.isExempt || ("
        f"object.spec.all(f, f in [{free}] || "
        "(f in oldObject.spec && object.spec[f] == oldObject.spec[f])) && "
        f"oldObject.spec.all(f, f in [{free}] || f in object.spec))",
        "'the job stands for other pods, from which its spec follows; change those'",
    )
    yield from _policy(
        name, written, kept,
        rules=[_JOBS_WRITTEN], when=NEW_SPEC, variables={"isExempt": MAY_ADMINISTER},
    )  # fmt: skip


def _of_elements() -> Iterator[Manifest]:
    """Yield the policy on which jobs are elements of arrays: Fairlead writes it."""
    name = f"{names.GROUP}-elements"
    own, before = arrays_of("object"), arrays_of("oldObject")
    written = (
        MAY_ADMINISTER,
        "'which job is an element of an array is written by Fairlead; leave the reference out'",
    )
    is_new = f"request.operation == 'CREATE' ? {own}.size() > 0 : {own} != {before}"
    yield from _policy(name, written, rules=[_JOBS_WRITTEN], when={"another-array": is_new})


def _of_reports() -> Iterator[Manifest]:
    """Yield the policy on reports of nodes: who writes one has a token of a pod on that node.

    A token says which node its pod is on, and the server vouches for it. One that says nothing (of
    no pod, or of a server that is older than the claim) writes no report. What collectors read is a
    patch that changes nothing, so that they see their own report only.
    """
    name = f"{names.GROUP}-node-reports"
    whole, status = NODE_REPORTS.plural, f"{NODE_REPORTS.plural}/status"
    rules = [
        rule(NODE_REPORTS.group, NODE_REPORTS.version, whole, "CREATE", scope="Cluster"),
        rule(NODE_REPORTS.group, NODE_REPORTS.version, status, "UPDATE", scope="Cluster"),
    ]
    said = {
        "node": _claim(NODE_NAME_CLAIM), "uid": _claim(NODE_UID_CLAIM),
        "isExempt": _MAY_WRITE_REPORTS,
    }  # fmt: skip
    yield from _policy(name, *_of_a_report(), rules=rules, variables=said)


def _of_a_report() -> Sequence[tuple[str, str]]:
    """Return what must hold of a report that is written, and what is said where it does not."""
    own = (
        "object.metadata.name == variables.node || variables.isExempt",
        "'the report of a node is written with the token of a pod on it; this token is of ' + "
        "(variables.node != '' ? 'a pod on node ' + variables.node : 'no pod on a node: run the "
        "collector as a pod, and API servers of Kubernetes 1.30 or newer')",
    )
    bare = (
        "request.operation != 'CREATE' || variables.isExempt || "
        "((!has(object.spec) || object.spec.size() == 0) && "
        + " && ".join(f"!has(object.metadata.{each})" for each in _METADATA_OF_OTHERS)
        + ")",
        "'a new report has its name and nothing else: its spec is written by Fairlead'",
    )
    machine = (
        "request.operation == 'CREATE' || !has(object.status) || "
        "(has(oldObject.status) && object.status == oldObject.status) || "
        "(variables.uid != '' && has(object.status.nodeUid) && "
        "object.status.nodeUid == variables.uid) || variables.isExempt",
        "'status.nodeUid is not the node of the pod that this token is of: ' + variables.uid",
    )
    bounded = (
        "!has(object.metadata.managedFields) || "
        f"object.metadata.managedFields.size() <= {REPORT_WRITERS_MAX} || variables.isExempt",
        f"'at most {REPORT_WRITERS_MAX} field managers write a report'",
    )
    # A schema bounds the values of a map and not its keys.
    maps = (
        "!has(object.status) || !has(object.status.tuning) || "
        "("
        + " && ".join(
            f"(!has(object.status.tuning.{each}) || "
            f"object.status.tuning.{each}.all(k, k.size() <= {COMPONENT_MAX}))"
            for each in ("facts", "values")
        )
        + ") || variables.isExempt",
        f"'names in status.tuning have at most {COMPONENT_MAX} characters'",
    )
    return own, bare, machine, bounded, maps


_METADATA_OF_OTHERS = ("labels", "annotations", "ownerReferences", "finalizers")


def _claim(key: str) -> str:
    """Return the expression of what the server says of who asks; '' where it says nothing."""
    extra = "request.userInfo.extra"
    return f"has({extra}) && '{key}' in {extra} ? {extra}['{key}'][0] : ''"


def _policy(
    name: str,
    *judged: tuple[str, str],
    rules: Sequence[Manifest],
    namespaces: Manifest | None = None,
    when: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Manifest]:
    """Yield a policy and its binding; `judged` are expressions and what is said where they fail.

    With `namespaces` it is on teams, of which it reads the Fleet; where there is none, it refuses
    nothing.
    """
    constraints: dict[str, Any] = {"resourceRules": [*rules]}
    fleet: dict[str, Any] = {}
    bound: dict[str, Any] = {"policyName": name, "validationActions": ["Deny"]}
    if namespaces is not None:
        constraints["namespaceSelector"] = namespaces
        fleet = {"paramKind": {"apiVersion": FLEETS.api_version, "kind": FLEETS.kind}}
        bound["paramRef"] = {"name": FLEET_NAME, "parameterNotFoundAction": "Allow"}
    spec = {
        "failurePolicy": "Ignore" if fleet else "Fail", **fleet,
        "matchConstraints": constraints,
        "matchConditions": conditions(when or {}),
        "variables": conditions(variables or {}),
        "validations": [_validation(*each) for each in judged],
    }  # fmt: skip
    for kind, each in ((POLICY, spec), (BINDING, bound)):
        head = {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": name}}
        yield {**head, "spec": each}


def _validation(expression: str, message: str) -> Manifest:
    return {"expression": expression, "messageExpression": message, "reason": "Forbidden"}
