"""The connection of a process that runs in a pod: the service account that Kubernetes mounts there.

Source: kubernetes.io/docs, "Accessing the Kubernetes API from a Pod".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fairlead.kube.kubeconfig import Connection, KubeconfigError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def in_cluster(
    *, environment: Mapping[str, str] | None = None, directory: Path = SERVICE_ACCOUNT
) -> Connection:
    """Return the pod's own connection; KubeconfigError outside a pod. The token file rotates."""
    variables = os.environ if environment is None else environment
    host = variables.get("KUBERNETES_SERVICE_HOST", "")
    port = variables.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise KubeconfigError(
            "KUBERNETES_SERVICE_HOST is not set: this is no pod; use a kubeconfig instead"
        )
    try:
        authority = (directory / "ca.crt").read_bytes()
        namespace = (directory / "namespace").read_text().strip()
        (directory / "token").read_bytes()
    except OSError as error:
        raise KubeconfigError(
            f"{error.filename}: cannot be read: {error.strerror}; the pod needs a service account "
            "whose token is mounted (automountServiceAccountToken)"
        ) from error
    return Connection(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        source=f"service account in {directory}",
        namespace=namespace or "default",
        token_file=directory / "token",
        certificate_authority=authority,
    )
