"""The kinds that say which admission webhooks are called (admissionregistration.k8s.io/v1).

Every field has a default here, so that an object with one missing decodes; what must be there is
the business of the rules (`embedded/webhooks/config.py`), which name all that is wrong at once.
Field names follow Kubernetes (`staging/src/k8s.io/api/admissionregistration/v1/types.go`).
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.api.meta import ObjectMeta, Wire

GROUP = "admissionregistration.k8s.io"


class ServiceReference(Wire, frozen=True):
    """Names a service of the cluster that answers."""

    namespace: str = ""
    name: str = ""
    path: str | None = None
    port: int = 0


class WebhookClientConfig(Wire, frozen=True):
    """Where to call: a URL or a service, and who signed its certificate."""

    url: str | None = None
    service: ServiceReference | None = None
    ca_bundle: str = ""


class RuleWithOperations(Wire, frozen=True):
    """Which requests are sent to the webhook; "*" stands for all."""

    operations: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    api_versions: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    scope: str = ""


class LabelSelectorRequirement(Wire, frozen=True):
    """One term of a selector."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class LabelSelector(Wire, frozen=True):
    """Selects by labels; an empty one selects everything."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class MatchCondition(Wire, frozen=True):
    """A CEL expression that must hold. The embedded cluster refuses them."""

    name: str = ""
    expression: str = ""


class ValidatingWebhook(Wire, frozen=True):
    """One webhook that may refuse requests."""

    name: str = ""
    client_config: WebhookClientConfig = WebhookClientConfig()
    rules: tuple[RuleWithOperations, ...] = ()
    failure_policy: str = ""
    match_policy: str = ""
    namespace_selector: LabelSelector | None = None
    object_selector: LabelSelector | None = None
    side_effects: str = ""
    timeout_seconds: int | None = None
    admission_review_versions: tuple[str, ...] = ()
    match_conditions: tuple[MatchCondition, ...] = ()


class MutatingWebhook(ValidatingWebhook, frozen=True):
    """One webhook that may change objects, and refuse requests."""

    reinvocation_policy: str = ""


class ValidatingWebhookConfiguration(Wire, frozen=True):
    """Webhooks that may refuse requests."""

    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[ValidatingWebhook, ...] = ()


class MutatingWebhookConfiguration(Wire, frozen=True):
    """Webhooks that may change objects before they are stored."""

    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[MutatingWebhook, ...] = ()


_WEBHOOK: Mapping[str, str] = {
    "name": "Name of the webhook, a domain with three segments at least.",
    "clientConfig": "Where to call it.",
    "rules": "Which requests are sent to it.",
    "failurePolicy": "What a failed call means: Fail refuses the request, Ignore lets it pass.",
    "matchPolicy": "Equivalent: rules select other versions of the same kind too. Exact: not.",
    "namespaceSelector": "Selects by the labels of the object's namespace.",
    "objectSelector": "Selects by the labels of the object, old or new.",
    "sideEffects": "None or NoneOnDryRun.",
    "timeoutSeconds": "How long to wait for an answer, 1 to 30.",
    "admissionReviewVersions": "Versions of AdmissionReview that it understands; v1 must be there.",
    "matchConditions": "Refused by the embedded cluster, which evaluates no CEL.",
}
#: What `kubectl explain` says of these fields.
DOCS: Mapping[str, Mapping[str, str]] = {
    "MutatingWebhookConfiguration": {"webhooks": "The webhooks, called in this order."},
    "ValidatingWebhookConfiguration": {"webhooks": "The webhooks, called all at once."},
    "ValidatingWebhook": _WEBHOOK,
    "MutatingWebhook": {
        **_WEBHOOK,
        "reinvocationPolicy": "IfNeeded: called again when a later webhook changed the object.",
    },
    "RuleWithOperations": {
        "operations": "CREATE, UPDATE, DELETE, CONNECT, or * for all.",
        "apiGroups": "API groups, or * for all.",
        "apiVersions": "API versions, or * for all.",
        "resources": "Plurals, with /sub-resource; * for all on either side.",
        "scope": "Cluster, Namespaced, or * for both.",
    },
    "WebhookClientConfig": {
        "url": "Address, https only.",
        "service": "A service of the cluster. The embedded cluster cannot call any.",
        "caBundle": "Authorities that sign the webhook's certificate: PEM, in base64.",
    },
    "LabelSelector": {
        "matchLabels": "Labels with these values.",
        "matchExpressions": "Terms that must all hold.",
    },
    "LabelSelectorRequirement": {
        "key": "The label.",
        "operator": "In, NotIn, Exists or DoesNotExist.",
        "values": "Values, for In and NotIn.",
    },
}
