"""An audit policy that records what the analysis needs, and what it saves on a given log (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fairlead.doctor.audit.summary import AuditSummary, CallerCost
from fairlead.input.yamlwrite import to_yaml

#: From this number of nodes on, heartbeats are most of a log, and the metric of the API server
#: (`apiserver_request_total` of leases) says the same.
LEASES_FROM_NODES = 500
_HEALTH = ("/healthz", "/livez", "/readyz")


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """A rule of the policy. `matches` says which callers of a log it leaves out."""

    reason: str
    rule: dict[str, Any]
    matches: Callable[[CallerCost], bool]
    nodes_from: int = 0


RULES: tuple[PolicyRule, ...] = (
    PolicyRule(
        "Probes say nothing about load.",
        {"level": "None", "nonResourceURLs": [f"{path}*" for path in _HEALTH]},
        lambda c: c.scope == "nonresource" and c.resource.startswith(_HEALTH),
    ),
    PolicyRule(
        f"Heartbeats of kubelets, left out from {LEASES_FROM_NODES} nodes on: their number is "
        "known, nodes / 10 s.",
        {"level": "None", "userGroups": ["system:nodes"], "verbs": ["get", "update", "patch"],
         "namespaces": ["kube-node-lease"],
         "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}]},
        lambda c: (c.principal.startswith("system:node:") and c.resource == "leases"
                   and c.verb in ("get", "update", "patch")),
        nodes_from=LEASES_FROM_NODES,
    ),
    PolicyRule(
        "Writes of events; who lists or watches them is still recorded.",
        {"level": "None", "verbs": ["create", "patch", "update"],
         "resources": [{"group": "", "resources": ["events"]},
                       {"group": "events.k8s.io", "resources": ["events"]}]},
        lambda c: c.resource == "events" and c.verb in ("create", "patch", "update"),
    ),
)  # fmt: skip


def policy_text(summary: AuditSummary | None, nodes: int) -> str:
    """Return the policy for a cluster of so many nodes as YAML, with what each rule saves."""
    return "".join(_lines(summary, nodes))


def _lines(summary: AuditSummary | None, nodes: int) -> Iterator[str]:
    rules = [each for each in RULES if each.nodes_from <= nodes]
    yield "# Never a level above Metadata for lists and watches: their bodies cost the API server\n"
    yield "# ten times the memory of the answers. Flags that go with it: --audit-log-mode=batch\n"
    yield "# --audit-log-maxsize=500 --audit-log-maxbackup=20 --audit-log-truncate-enabled\n"
    if summary is not None:
        left_out = sum(map(_counter(summary), rules))
        yield f"# On the given log it leaves out {_share(left_out, summary)}.\n"
    yield to_yaml({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "omitManagedFields": True,
    })  # fmt: skip
    yield "rules:\n"
    for each in rules:
        yield f"# {each.reason}\n"
        if summary is not None:
            yield f"# Leaves out {_share(_counter(summary)(each), summary)}.\n"
        yield to_yaml([each.rule])
    yield to_yaml([{"level": "Metadata"}])


def _counter(summary: AuditSummary) -> Callable[[PolicyRule], int]:
    return lambda rule: sum(c.requests for c in summary.callers if rule.matches(c))


def _share(requests: int, summary: AuditSummary) -> str:
    share = requests / max(summary.events, 1) * 100
    return f"{requests:,} of {summary.events:,} requests ({share:.1f} %)"
