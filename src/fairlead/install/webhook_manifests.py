"""The webhook's part of the manifests: Service, configurations, rights, and cert-manager's order.

The configurations are those of `webhook/configuration.py`, without a caBundle: whoever keeps the
certificate fills it in, and applying the manifests again must not take it away.
"""

from __future__ import annotations

from typing import Any

from fairlead.api.webhooks import GROUP
from fairlead.install.blueprint import Blueprint, Given, Ref, Release, Text, When
from fairlead.install.pieces import Part, labels, local, rule, selector
from fairlead.webhook.configuration import (
    INJECT,
    MUTATING,
    NAME,
    PORT,
    SERVICE,
    VALIDATING,
    configurations,
)

ENABLED = Given("webhook.enabled")
CERT_MANAGER = Given("webhook.certManager.enabled")
CERTIFICATES = "/apis/cert-manager.io/v1"


def parts() -> list[Part]:
    """Return the webhook's objects; the configurations last, since they send requests here."""
    mutating, validating = (
        Part(f"{each['kind'].lower()}", _labelled(each), ENABLED)
        for each in configurations(Release.NAMESPACE, SERVICE, "")
    )
    return [
        Part("service-webhook", _service(), ENABLED),
        Part("certificate", _certificate(), CERT_MANAGER),
        mutating,
        validating,
    ]


def cluster_rules() -> list[dict[str, Any]]:
    """Return the rights in the whole cluster: to tell API servers whom to trust."""
    plurals = [MUTATING.plural, VALIDATING.plural]
    return [rule(GROUP, plurals, ["get", "patch"], resourceNames=[NAME])]


def namespace_rules() -> list[dict[str, Any]]:
    """Return the rights in the controllers' namespace: to keep the certificate."""
    return [
        rule("", ["secrets"], ["create"]),  # the API knows no name yet when it asks
        rule("", ["secrets"], ["get", "patch"], resourceNames=[SERVICE]),
    ]


def container_port() -> Blueprint:
    """Return the port of the container."""
    return When(ENABLED, {"name": "webhook", "containerPort": PORT, "protocol": "TCP"})


def arguments() -> list[Blueprint]:
    """Return the arguments of `fairlead controller`."""
    return [When(ENABLED, "--webhook-listen"), When(ENABLED, f"0.0.0.0:{PORT}")]


def _labelled(manifest: dict[str, Any]) -> dict[str, Blueprint]:
    inject = {INJECT: Text((Release.NAMESPACE, f"/{SERVICE}"))}
    metadata = {
        **manifest["metadata"], "labels": labels(), "annotations": When(CERT_MANAGER, inject),
    }  # fmt: skip
    return {**manifest, "metadata": metadata}


def _service() -> dict[str, Blueprint]:
    port = {"name": "https", "port": 443, "targetPort": "webhook", "protocol": "TCP"}
    return local("Service", "v1", SERVICE, spec={"selector": selector(), "ports": [port]})


def _certificate() -> dict[str, Blueprint]:
    names = [
        Text((f"{SERVICE}.", Release.NAMESPACE, ".svc")),
        Text((f"{SERVICE}.", Release.NAMESPACE)),
    ]
    return local(
        "Certificate",
        "cert-manager.io/v1",
        SERVICE,
        spec={
            "secretName": SERVICE,
            "dnsNames": names,
            "issuerRef": Ref("webhook.certManager.issuerRef"),
            "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
        },
    )
