"""Builds audit logs as kube-apiserver writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

BASE_SECONDS = 36_000.0


def moment(seconds: float) -> str:
    """A time of day on one day, as in events."""
    micros = round(seconds * 1e6)
    whole, fraction = divmod(micros, 1_000_000)
    return f"2026-11-21T{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}.{fraction:06d}Z"


@dataclass
class Log:
    """Lines of a log; each event gets an id of its own."""

    lines: list[str] = field(default_factory=list[str])

    def add(
        self, uri: str = "/api/v1/pods", *, at: float = 0.0, verb: str = "list",
        user: str = "system:serviceaccount:monitoring:agent", agent: str = "agent/1.0 (linux)",
        address: str = "10.0.0.1", seconds: float = 0.01, code: int = 200, node: str = "",
        pod: str = "", stage: str = "ResponseComplete", annotations: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        extra: dict[str, Sequence[str]] = {}
        if node:
            extra["authentication.kubernetes.io/node-name"] = [node]
        if pod:
            extra["authentication.kubernetes.io/pod-name"] = [pod]
        event: dict[str, Any] = {
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata",
            "auditID": f"{len(self.lines):08x}-0000-4000-8000-000000000000", "stage": stage,
            "requestURI": uri, "verb": verb,
            "user": {"username": user, "groups": ["g"], **({"extra": extra} if extra else {})},
            "sourceIPs": [address], "userAgent": agent,
            "responseStatus": {"metadata": {}, "code": code},
            "requestReceivedTimestamp": moment(BASE_SECONDS + at),
            "stageTimestamp": moment(BASE_SECONDS + at + seconds),
            "annotations": {"authorization.k8s.io/decision": "allow", **(annotations or {})},
        }  # fmt: skip
        self.lines.append(json.dumps(event, separators=(",", ":")).replace("&", "\\u0026"))

    def text(self) -> bytes:
        return "".join(f"{line}\n" for line in self.lines).encode()


def cluster_log(nodes: int = 20, seconds: int = 60) -> Log:
    """A minute of a healthy cluster: heartbeats, watches, a scheduler."""
    log = Log()
    for second in range(seconds):
        for number in range(nodes):
            if (second + number) % 10 == 0:
                name = f"node-{number}"
                log.add(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}",
                        at=second, verb="update", user=f"system:node:{name}",
                        agent="kubelet/v1.36.3 (linux/amd64)", address=f"10.0.0.{number}",
                        seconds=0.004)  # fmt: skip
        log.add(f"/api/v1/namespaces/research/pods/p-{second}/binding", at=second + 0.5,
                verb="create", user="system:kube-scheduler", agent="kube-scheduler/v1.36.3",
                address="10.0.1.1", seconds=0.006)  # fmt: skip
    for number in range(nodes):
        name = f"node-{number}"
        log.add(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{name}&watch=true", verb="watch",
                user=f"system:node:{name}", agent="kubelet/v1.36.3", address=f"10.0.0.{number}",
                seconds=30)  # fmt: skip
    return log


def with_agent(log: Log, uri: str, *, nodes: int = 20, every: int = 10, seconds: int = 60,
               pod: str = "agent", **more: Any) -> Log:  # fmt: skip
    """Add an agent on every node that asks for the same again and again."""
    for second in range(0, seconds, every):
        for number in range(nodes):
            log.add(uri, at=second + number / 100, node=f"node-{number}",
                    pod=f"{pod}-ab{number:03d}", address=f"10.0.0.{number}", **more)  # fmt: skip
    return log
