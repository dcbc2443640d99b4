"""The definitions of our kinds, as far as they say who converts their objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairlead.api.kubernetes.webhooks import WebhookClientConfig
from fairlead.api.meta import ObjectMeta, Wire
from fairlead.api.resources import CRDS, Resource
from fairlead.api.schema.conversion import with_beta
from fairlead.webhook.configuration import Manifest, Path


class WebhookConversion(Wire, frozen=True):
    """Who converts the objects of a definition."""

    client_config: WebhookClientConfig = WebhookClientConfig()


class CustomResourceConversion(Wire, frozen=True):
    """How the objects of a definition are converted: strategy None, or Webhook."""

    strategy: str = ""
    webhook: WebhookConversion | None = None


class ConvertedDefinitionSpec(Wire, frozen=True):
    """What is read of a definition's spec."""

    conversion: CustomResourceConversion = CustomResourceConversion()


class ConvertedDefinition(Wire, frozen=True):
    """A CustomResourceDefinition (apiextensions.k8s.io/v1), as far as it says who converts."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ConvertedDefinitionSpec = ConvertedDefinitionSpec()


DEFINITIONS = Resource(
    CRDS.group, CRDS.version, CRDS.plural, CRDS.kind, ConvertedDefinition, namespaced=False
)


def conversion(namespace: str, service: str) -> Manifest:
    """Return how a definition has API servers convert its objects; without a caBundle."""
    target = {"namespace": namespace, "name": service, "path": Path.CONVERT.value, "port": 443}
    webhook = {"conversionReviewVersions": ["v1"], "clientConfig": {"service": target}}
    return {"strategy": "Webhook", "webhook": webhook}


def converted_definition(manifest: Mapping[str, Any], namespace: str, service: str) -> Manifest:
    """Return the definition of an own kind that serves v1beta1, too, converted by a Service."""
    both = with_beta(manifest)
    return {**both, "spec": {**both["spec"], "conversion": conversion(namespace, service)}}
