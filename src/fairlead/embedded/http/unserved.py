"""Kinds of a Kubernetes cluster that nothing acts on here: refused, with what to do instead.

Clients find them in discovery, with the verb create alone: a `kubectl apply` of a manifest then
shows our words, where an unknown kind would make kubectl guess at a missing definition.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.api.status import ApiError, Forbidden, MethodNotAllowed, NotFound, StatusDetails


@dataclass(frozen=True, slots=True)
class Unserved:
    """One kind that is refused."""

    group: str
    version: str
    plural: str
    kind: str
    instead: str
    namespaced: bool = True

    def refuse(self, method: str, name: str) -> ApiError:
        """Return the error that answers a request for it; one error serves every body."""
        full, details = f"{self.plural}.{self.group}", StatusDetails(name=name, kind=self.plural)
        why = f"nothing on this embedded cluster runs a {self.kind}; {self.instead}"
        if method == "POST":
            return Forbidden(f"{full} is forbidden: {why}", details=details)
        if name:
            return NotFound(f'{full} "{name}" not found: {why}', details=details)
        return MethodNotAllowed(f"{method} is not supported on {full}: {why}", details=details)


_RUN = "queue the work as a Job of fairlead.dev (fairlead submit), or use a Kubernetes cluster"
_SERVE = "it runs jobs to their end, and a service needs a Kubernetes cluster"
UNSERVED = (
    Unserved("apps", "v1", "daemonsets", "DaemonSet", _SERVE),
    Unserved("apps", "v1", "deployments", "Deployment", _SERVE),
    Unserved("apps", "v1", "replicasets", "ReplicaSet", _SERVE),
    Unserved("apps", "v1", "statefulsets", "StatefulSet", _SERVE),
    Unserved("batch", "v1", "cronjobs", "CronJob", _RUN),
    Unserved("batch", "v1", "jobs", "Job", _RUN),
)
UNSERVED_BY_PATH = {(u.group, u.version, u.plural): u for u in UNSERVED}
