"""Checks of webhook configurations: what may hold every write up."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.doctor.check import IS_CRITICAL, IS_WARNING, Check, MeasuredValue, critical, warning
from fairlead.doctor.facts import ClusterFacts, Source
from fairlead.doctor.objects import SeenWebhook

K = (Source.API,)
REQUEST_TIMEOUT_SECONDS = 60
#: Resources that a webhook must not hold up: node heartbeats and leader election.
VITAL = ("leases", "nodes", "*", "*/*")


def _webhooks(facts: ClusterFacts) -> Iterator[tuple[str, SeenWebhook]]:
    """Yield each webhook with its name in findings."""
    found, what = facts.seen_objects().webhooks, "webhook configurations could not be listed"
    for configuration in facts.seen(found, Source.API, what):
        for webhook in configuration.webhooks:
            yield f"{configuration.metadata.name}/{webhook.name}", webhook


def webhook_timeouts(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read each webhook's time limit."""
    for subject, webhook in _webhooks(facts):
        text = f"timeoutSeconds {webhook.timeout_seconds}, failurePolicy {webhook.failure_policy}"
        yield MeasuredValue(subject, webhook.timeout_seconds, text)


def webhook_blocks(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read webhooks that fail closed for what the cluster itself needs."""
    for subject, webhook in _webhooks(facts):
        resources = {resource for rule in webhook.rules for resource in rule.resources}
        is_wide = bool(resources & set(VITAL)) and webhook.failure_policy == "Fail"
        excludes = bool(webhook.namespace_selector or webhook.object_selector)
        text = (f"failurePolicy {webhook.failure_policy} for {', '.join(sorted(resources))}, "
                f"{'with' if excludes else 'without'} a selector")  # fmt: skip
        yield MeasuredValue(subject, float(is_wide and not excludes), text)


def webhook_fail_and_long(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read webhooks that fail closed after a long wait."""
    for subject, webhook in _webhooks(facts):
        is_bad = webhook.failure_policy == "Fail" and webhook.timeout_seconds >= 10
        text = f"failurePolicy Fail with timeoutSeconds {webhook.timeout_seconds}"
        yield MeasuredValue(subject, float(is_bad), text)


def webhook_sum(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the sum of the time limits of all webhooks on the creation of pods."""
    total = 0
    for _, webhook in _webhooks(facts):
        if any({"pods", "*", "*/*"} & set(rule.resources) for rule in webhook.rules):
            total += webhook.timeout_seconds
    yield MeasuredValue("pods", total, f"the webhooks of pods may take {total} s in all")


CHECKS: tuple[Check, ...] = (
    Check(
        "API-22", "A webhook that fails closed covers what the cluster itself needs", K,
        webhook_blocks, IS_CRITICAL,
        "When the webhook is down, node heartbeats and leader election fail with it, and the pods "
        "of the webhook cannot be created again.",
        "narrow rules.resources; add to the webhook:\nnamespaceSelector:\n  matchExpressions:\n"
        "  - {key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system, "
        "kube-node-lease]}",
        "kubernetes #90217", unit="bool",
    ),
    Check(
        "API-22B", "A webhook fails closed and may take long", K, webhook_fail_and_long,
        IS_WARNING,
        "Each write waits for the whole time limit and then fails.",
        "timeoutSeconds: 3", "kubernetes #128162", unit="bool",
    ),
    Check(
        "API-22C", "The webhooks of pods may together take longer than a request may", K,
        webhook_sum, (warning(30), critical(REQUEST_TIMEOUT_SECONDS - 1)),
        "Pods fail to be created although each webhook ignores failures.",
        "timeoutSeconds: 3 for each webhook, narrow rules", "kubernetes #128162", unit="s",
    ),
    Check(
        "API-22D", "A webhook's time limit is long", K, webhook_timeouts, (warning(10),),
        "The creation of every object that it covers may wait for so long.",
        "timeoutSeconds: 3", "EKS best practices", unit="s",
    ),
)  # fmt: skip
