"""The kinds that say which admission webhooks are called (admissionregistration.k8s.io/v1).

Every field has a default here, so that an object with one missing decodes; what must be there is
the business of the rules (`embedded/webhooks/config.py`), which name all that is wrong at once.
Field names follow Kubernetes (`staging/src/k8s.io/api/admissionregistration/v1/types.go`).
"""

from __future__ import annotations

from fairlead.api.meta import LabelSelector, ObjectMeta, Wire

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
    """Which requests are sent to the webhook; "*" means all."""

    operations: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    api_versions: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    scope: str = ""


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
