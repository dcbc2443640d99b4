"""Alerts: those on Fairlead itself, as data, and one for each level of a check (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.api.names import OWN_NAMESPACE
from fairlead.doctor.check import Check, Harm, Limit, Side
from fairlead.doctor.facts import Source
from fairlead.doctor.query import JOBS, PromQuery
from fairlead.doctor.registry import CHECKS

#: Time for which a finding must last: a scrape that failed, or one burst, is none.
_MINUTES = {Harm.CRITICAL: 5, Harm.WARNING: 15, Harm.INFO: 60}
_NODES = (
    'max(apiserver_resource_objects{resource="nodes"} or apiserver_storage_objects'
    '{resource="nodes"})'
)


CHECKS_PAGE, ALERTS_PAGE = "doctor-checks.md", "alerts.md"


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule: it fires when `expression` has had samples for `minutes`."""

    name: str
    expression: str
    minutes: int
    severity: Harm
    summary: str
    why: str
    fix: str
    #: The check that it comes from; "" for alerts on Fairlead itself.
    check: str = ""

    @property
    def runbook(self) -> str:
        """The page that explains the alert, below docs/reference, with the heading's anchor."""
        page, heading = (CHECKS_PAGE, self.check) if self.check else (ALERTS_PAGE, self.name)
        return f"{page}#{heading.lower()}"


_DECIDE = "fairlead_decide_duration_seconds_bucket"
_WEBHOOK = "fairlead_webhook_request_duration_seconds_bucket"
OWN: tuple[Alert, ...] = (
    Alert(
        "FairleadMissing", "absent(fairlead_build_info)", 10, Harm.CRITICAL,
        "No Fairlead controller is scraped",
        "Either no controller runs, and then no job is placed, or Prometheus does not reach it.",
        f"kubectl get pods -n {OWN_NAMESPACE}\n"
        "then the Service and metrics.serviceMonitor of the installation",
    ),
    Alert(
        "FairleadNoLeader", "sum(fairlead_leader) < 1", 5, Harm.CRITICAL,
        "No replica of Fairlead leads",
        "Without a leader no job is placed, started or restarted.",
        f"kubectl get lease -n {OWN_NAMESPACE}; kubectl logs -n {OWN_NAMESPACE} deploy/"
        "fairlead-controller",
    ),
    Alert(
        "FairleadSeveralLeaders", "sum(fairlead_leader) > 1", 2, Harm.WARNING,
        "Several replicas of Fairlead say that they lead",
        "Writes of an old leader are fenced, so no harm follows; it does not see its lease.",
        f"kubectl get lease -n {OWN_NAMESPACE} -o yaml, and the clocks of both nodes",
    ),
    Alert(
        "FairleadCrashes", "sum by (service) (increase(fairlead_service_crashes_total[15m])) > 0",
        0, Harm.WARNING, "A part of the Fairlead controller was restarted after a fault",
        "The part starts again with fresh state; while it crashes, its work waits.",
        f"kubectl logs -n {OWN_NAMESPACE} deploy/fairlead-controller | grep -A30 crashed",
    ),
    Alert(
        "FairleadMirrorLags", "max by (kind) (fairlead_mirror_lag_seconds) > 180", 5,
        Harm.WARNING, "Fairlead has not heard of a kind of objects for minutes",
        "Decisions rest on what the controllers last saw. The API server sends a bookmark at least "
        "once a minute, so silence means a watch that is cut or refused.",
        f"kubectl logs -n {OWN_NAMESPACE} deploy/fairlead-controller\n"
        "fairlead doctor --only 'API-*'",
    ),
    Alert(
        "FairleadKindUndefined", "max by (kind) (fairlead_kind_undefined) > 0", 15,
        Harm.WARNING, "The cluster does not define a kind of Fairlead",
        "The controllers do without it: no teams, or no node pools.",
        "fairlead install   # or kubectl apply -f deploy/crds",
    ),
    Alert(
        "FairleadTeamLacksNodes", 'sum by (team) (fairlead_team_nodes{kind="missing"}) > 0', 60,
        Harm.WARNING, "A team has fewer healthy nodes than it was promised",
        "Nodes of its share are sick or gone, and no others match its selectors.",
        "fairlead quota TEAM; fairlead nodes",
    ),
    Alert(
        "FairleadTeamIntruders", "sum by (team) (fairlead_team_intruders) > 0", 15,
        Harm.WARNING, "Pods are on a team's nodes that may not be there",
        "Admission was away, or the Teams or the nodes' owners changed.",
        "fairlead quota TEAM; kubectl describe team TEAM",
    ),
    Alert(
        "FairleadNodesFailTogether",
        'max by (rail) (fairlead_fleet_rail_holds{rail=~"NodesUnready|UnreadyRises"}) > 0', 0,
        Harm.CRITICAL, "Many nodes of the pools are not ready at once",
        "Usually the control plane cannot see them, so no node is bought or removed meanwhile. "
        "Both go on by themselves afterwards.",
        "fairlead fleet; kubectl get nodes; fairlead doctor",
    ),
    Alert(
        "FairleadNodesLookSick",
        'max by (rail) (fairlead_health_rail_holds{rail="NodesSick"}) > 0', 0,
        Harm.CRITICAL, "More than a fifth of the nodes report faults at once",
        "Usually an agent, its table or a rule is wrong, so no node is taken out for a fault "
        "meanwhile. It goes on by itself afterwards.",
        "fairlead nodes -R; kubectl get nodereports; health.actOn in the settings",
    ),
    Alert(
        "FairleadNodesNeedAPerson",
        'max(fairlead_health_nodes{state="asking"}) > 0', 30,
        Harm.WARNING, "Nodes are out of service until a person mends them",
        "No agent does what they need, or it did not help.",
        "fairlead nodes -R; fairlead node NAME",
    ),
    Alert(
        "FairleadTicketsNotDelivered",
        'max(fairlead_health_tickets{state=~"Refused|GivenUp"}) > 0', 0,
        Harm.WARNING, "Tickets of nodes that need a person were not delivered",
        "The target refuses them, or was not reached for an hour: who repairs machines was not "
        "asked. A provider refuses where a right is missing. Once that is mended, the annotation "
        "that is taken off has the ticket sent again.",
        "fairlead node NAME; kubectl get events -A --field-selector reason=TicketFailed\n"
        "kubectl annotate node NAME fairlead.dev/tickets-",
    ),
    Alert(
        "FairleadNodesSilent",
        'sum(fairlead_silent_nodes{presence=~"answers|refuses|unknown"}) > 0', 5,
        Harm.WARNING, "Kubelets do not renew their leases, and their machines are not lost",
        "answers, refuses: the kubelet hangs, is stopped or cannot reach the API server; what runs "
        "there goes on. unknown: no connection to other machines succeeds either, as where a "
        "firewall is before silence.kubeletPort, so a lost node is found as late as Kubernetes "
        "finds it.",
        "kubectl get events -A --field-selector reason=NodeSilent; kubectl get nodes",
    ),
    Alert(
        "FairleadSilenceHeld",
        "max by (rail) (fairlead_silence_rail_holds) > 0", 5,
        Harm.WARNING, "Nodes that are silent are not taken for lost",
        "Too many are at once or within an hour, or no lease of any node is seen. Usually the API "
        "server or a network is in trouble. It goes on by itself afterwards.",
        "kubectl get nodes; fairlead nodes -R; fairlead doctor --only 'API-*'",
    ),
    Alert(
        "FairleadNodesUntested",
        'max(fairlead_health_nodes_untested{state="late"}) > 0', 30,
        Harm.WARNING, "Idle nodes have not been tested for a day",
        "Their tests end without a result, or health.idleTestShare is too small for the suite.",
        "fairlead fleet history --action Untested; kubectl get nodetests",
    ),
    Alert(
        "FairleadBadLinks",
        "max(fairlead_health_bad_links) > 0", 30,
        Harm.WARNING, "Links between good nodes are slow, late or change data",
        "Tests in pairs lead to the links above a leaf of the network, to a path between two "
        "nodes, or to so many nodes at once that no node is taken out for it.",
        "fairlead fleet history --action BadLink; kubectl get nodetests",
    ),
    Alert(
        "FairleadTrafficNotCounted",
        'sum(fairlead_traffic_nodes{state=~"partly|blind"}) > 0', 30,
        Harm.WARNING, "Traffic of pods passes nodes without being counted",
        "partly: the network plugin passes the host's netfilter by, or bridges without it. blind: "
        "the agent has no right to netfilter, no nft or no list of pods. Figures of traffic are "
        "too low meanwhile, and limits may not hold.",
        "fairlead network traffic; fairlead node NAME; kubectl get nodereports",
    ),
    Alert(
        "FairleadAuditBroken", "sum(increase(fairlead_audit_breaks_total[1h])) > 0", 0,
        Harm.CRITICAL, "Audit records are gone that Fairlead had written",
        "Somebody, or a restored backup, changed the store below the running process. The gap is "
        "kept in the chain.",
        "fairlead audit verify; compare with an export",
    ),
    Alert(
        "FairleadAuditNotExported", "max(fairlead_audit_targets_failing) > 0", 30,
        Harm.WARNING, "A target of audit.exportTo has taken no audit records for half an hour",
        "They are kept, and sent once it takes them; of a full store the oldest are dropped.",
        "the log of the leader, from 'Audit records not exported' on; fairlead audit",
    ),
    Alert(
        "FairleadFleetBlind",
        'max by (rail) (fairlead_fleet_rail_holds{rail!~"Frozen|SightReturning"}) > 0', 15,
        Harm.WARNING, "Fairlead removes no node, because it cannot trust what it sees",
        "The provider's list, the nodes and the records are stale, incomplete or differ; or the "
        "doctor reports that etcd is nearly full, or the API server degraded.",
        "fairlead fleet plan",
    ),
    Alert(
        "FairleadFleetFrozen", "max(fairlead_fleet_frozen) == 1", 12 * 60, Harm.INFO,
        "The fleet has been frozen for half a day",
        "No node is bought or removed until a person ends the freeze.",
        "fairlead fleet; fairlead fleet resume",
    ),
    Alert(
        "FairleadPoolLacksNodes",
        'max by (pool) (fairlead_pool_wanted_nodes{mode="Active"}) > sum by (pool) '
        '(fairlead_pool_nodes{phase=~"joining|ready|unusable"})', 60,
        Harm.WARNING, "A node pool has had fewer nodes than it wants for an hour",
        "Launches are refused or fail, or the controller holds them back.",
        "fairlead fleet why POOL; fairlead fleet history",
    ),
    Alert(
        "FairleadPoolInvalid", "max by (pool) (fairlead_pool_invalid) == 1", 15, Harm.WARNING,
        "A node pool breaks a rule and is left alone",
        "Nothing is bought for it, and nothing of it is removed.",
        "kubectl describe nodepool POOL",
    ),
    Alert(
        "FairleadLaunchesRefused",
        'sum by (pool) (increase(fairlead_pool_launches_refused_total{reason="refused"}[1h])) > 0',
        0, Harm.WARNING, "A provider will never do what a node pool asks",
        "Usually credentials, a right that is missing, or a wrong reference. Launches that lack "
        "capacity do not count.",
        "fairlead fleet why POOL",
    ),
    Alert(
        "FairleadCloudCallsFail",
        'sum by (provider) (rate(fairlead_fleet_cloud_call_duration_seconds_count{outcome=~'
        '"failed|refused|fault"}[15m])) > 0.2 * sum by (provider) '
        "(rate(fairlead_fleet_cloud_call_duration_seconds_count[15m]))", 15,
        Harm.WARNING, "A fifth of the calls to a provider of machines fail",
        "Nodes are bought late, and none is removed while lists are stale.",
        f"fairlead fleet; kubectl logs -n {OWN_NAMESPACE} deploy/fairlead-controller",
    ),
    Alert(
        "FairleadRemovalsAtCeiling",
        'sum by (pool) (fairlead_pool_removals_held{rule="Ceiling"}) > 0', 6 * 60, Harm.INFO,
        "A day's ceiling holds back removals of nodes",
        "Half of the pool or of the fleet was removed within 24 hours. Idle nodes cost meanwhile.",
        "fairlead fleet plan; an override in `kubectl edit fleet fleet` if they must go",
    ),
    Alert(
        "FairleadSetAside", "sum by (reader, kind) (fairlead_objects_set_aside) > 0", 15,
        Harm.WARNING, "Fairlead leaves objects alone that it failed to read or to act on",
        "The others go on; these wait until they change.",
        "kubectl get events -A --field-selector reason=SetAside",
    ),
    Alert(
        "FairleadActionsFail",
        'sum by (controller, action) (rate(fairlead_actions_total{result=~"failed|fault"}[15m])) '
        "> 0.2 * sum by (controller, action) (rate(fairlead_actions_total[15m]))",
        15, Harm.WARNING, "A fifth of a controller's writes fail for good",
        "Usually a right that is missing, a quota, or a policy that refuses the objects.",
        f"kubectl logs -n {OWN_NAMESPACE} deploy/fairlead-controller; fairlead install --dry-run",
    ),
    Alert(
        "FairleadDecidesSlowly",
        f"histogram_quantile(0.99, sum by (controller, le) (rate({_DECIDE}[10m]))) > 3", 15,
        Harm.WARNING, "A controller of Fairlead takes seconds for a decision",
        "Jobs wait for it. The usual causes are too little CPU, or a queue of very many jobs.",
        "raise resources.cpu of the installation; the board Fairlead controllers shows the queue",
    ),
    Alert(
        "FairleadQueueGrows", "min_over_time(fairlead_workqueue_depth[15m]) > 1000", 15,
        Harm.WARNING, "A controller of Fairlead does not keep up with its queue",
        "Changes of jobs take effect late.",
        "look for 429 answers (API-01) and slow decisions (FairleadDecidesSlowly)",
    ),
    Alert(
        "FairleadEventsDropped", "sum(rate(fairlead_events_dropped_total[15m])) > 0.1", 30,
        Harm.INFO, "Fairlead cannot write its Events",
        "Users miss explanations in `kubectl describe`; `fairlead why` still has them.",
        f"kubectl auth can-i create events --as system:serviceaccount:{OWN_NAMESPACE}:fairlead-"
        "controller; etcd of events (ETCD-16)",
    ),
    Alert(
        "FairleadWebhookSlow",
        f"histogram_quantile(0.99, sum by (le) (rate({_WEBHOOK}[10m]))) > 1", 15,
        Harm.WARNING, "Fairlead's admission webhook is slow",
        "Every job, and every pod of a gang, waits for it.",
        "raise resources.cpu of the installation, or add replicas",
    ),
    Alert(
        "FairleadWebhookCertificateEnds",
        "min(fairlead_webhook_certificate_expiry_timestamp_seconds > 0) - time() < 7 * 86400", 60,
        Harm.CRITICAL, "The certificate of Fairlead's webhook ends within a week",
        "It is renewed long before, so the renewal fails. Then the webhook is not reached.",
        f"kubectl logs -n {OWN_NAMESPACE} deploy/fairlead-controller | grep -i certificate",
    ),
    Alert(
        "FairleadDoctorCritical",
        'max by (check) (fairlead_doctor_check_findings{severity="critical"}) > 0', 5,
        Harm.CRITICAL, "The doctor has a critical finding",
        "The control plane, or a configuration of it, will take the cluster down. While etcd is "
        "nearly full or the API server is degraded, no node is removed.",
        "kubectl describe clusterreport cluster; fairlead doctor --explain CHECK",
    ),
    Alert(
        "FairleadDoctorSilent",
        "max(time() - fairlead_doctor_examination_timestamp_seconds) > 3600", 15,
        Harm.WARNING, "The doctor has not examined the control plane for an hour",
        "Its examinations fail or hang, so its report is stale and no other part acts on it.",
        f"kubectl logs -n {OWN_NAMESPACE} deploy/fairlead-controller | grep -i doctor",
    ),
    Alert(
        "FairleadStoreNotCompacted", "max(fairlead_store_compaction_failing) == 1", 15,
        Harm.WARNING, "The embedded store cannot compact its log",
        "The log grows until the disk is full.", "free space on the disk of the data directory",
    ),
)  # fmt: skip


def of_checks(
    checks: Iterable[Check] = CHECKS, jobs: Mapping[Source, str] = JOBS
) -> tuple[Alert, ...]:
    """Return an alert for each level of each check that Prometheus can evaluate."""
    return tuple(
        Alert(
            f"Doctor{check.id.replace('-', '')}", _violation(query, check, level),
            _MINUTES[level.severity], level.severity, check.title, check.why, check.fix, check.id,
        )
        for check in checks if (query := check.query(jobs)) is not None
        for level in check.levels
    )  # fmt: skip


def _violation(query: PromQuery, check: Check, level: Limit) -> str:
    """Return the expression that has samples while the value violates the level."""
    sign = ">" if check.side is Side.ABOVE else "<"
    parts = [f"{query.value} {sign} {level.limit:g}", *([query.guard] if query.guard else ())]
    text = " and ".join(f"({each})" for each in parts) if len(parts) > 1 else parts[0]
    if level.nodes_from:
        text = f"({text}) and on () ({_NODES} >= {level.nodes_from})"
    return text


def groups(jobs: Mapping[Source, str] = JOBS, runbooks: str = "") -> dict[str, Any]:
    """Return all rules as a rule file of Prometheus has them, which is a PrometheusRule's spec.

    `runbooks` is the URL where docs/reference is served, which the rules link to; "": no links.
    """
    named = {"fairlead": OWN, "fairlead-control-plane": of_checks(jobs=jobs)}
    return {"groups": [{"name": name, "rules": _rules(each, runbooks)}
                       for name, each in named.items()]}  # fmt: skip


def _rules(alerts: Sequence[Alert], runbooks: str) -> list[dict[str, Any]]:
    return [
        {
            "alert": each.name,
            "expr": each.expression,
            **({"for": f"{each.minutes}m"} if each.minutes else {}),
            "labels": {"severity": each.severity.word},
            "annotations": {
                "summary": each.summary,
                "description": each.why,
                "action": each.fix,
                **({"runbook_url": f"{runbooks.rstrip('/')}/{each.runbook}"} if runbooks else {}),
                **({"check": f"fairlead doctor --explain {each.check}"} if each.check else {}),
            },
        }
        for each in alerts
    ]
