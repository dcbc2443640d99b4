"""Faults that others state as conditions of a Node: what a condition means, and since when.

A cluster that has node-problem-detector, the agent of EKS or NVSentinel keeps it. Its conditions
are read as faults beside those of the report, with the condition's own clock, and each rule is in
shadow until `health.actOn` names its check. Conditions of kubelets themselves (pressure, Ready) are
not read: a disk that is full, or a kubelet that is silent, is no reason to repair a machine.

Names and meanings: node-problem-detector (config/, docs of AKS), eks-node-monitoring-agent and the
repair policies of karpenter-provider-aws, NVSentinel's platform connector.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from fairlead.api.cluster.node_report import (
    CODE_MAX,
    COMPONENT_MAX,
    EVIDENCE_MAX,
    Action,
    ReportedFault,
    Severity,
)
from fairlead.api.kubernetes.core import Node, NodeCondition
from fairlead.api.names import READY
from fairlead.api.values.times import parse_time

#: Checks of conditions begin so, and `health.actOn` names each of them: * is of our own checks.
CONDITION_CHECKS = "condition-"
#: A writer that renews its conditions every 5 minutes is gone when one is so much older than the
#: kubelet's own (node-problem-detector#423: the condition of a removed monitor stays).
RENEWED_SECONDS = 1800.0
#: Faults of conditions of one node; a node may state any number.
CONDITIONS_MAX = 32
#: What NVSentinel says should be done, at the end of each message.
_SAID_ACTION = re.compile(r"Recommended Action=([A-Z_]{1,32})")
_SAID_ACTIONS = {
    "NONE": Action.WATCH,
    "COMPONENT_RESET": Action.REBOOT,  # of which GPU is in words alone
    "RESTART_VM": Action.REBOOT,
    "RESTART_BM": Action.REBOOT,
    "NODE_REBOOT": Action.REBOOT,
    "REPLACE_VM": Action.REPLACE,
}


@dataclass(frozen=True, slots=True)
class ConditionRule:
    """What a condition of this type, status and reason means; the reason may have * and ?.

    `type`: * for any. `is_renewed`: its writer confirms it every few minutes. `says_action`: its
    message names the action, in NVSentinel's words, and one that is not known asks a person.
    """

    type: str
    check: str
    severity: Severity
    action: Action
    status: str = "True"
    reason: str = "*"
    is_renewed: bool = False
    says_action: bool = False

    @property
    def is_fault(self) -> bool:
        """False for a condition that means nothing."""
        return self.severity.is_sick or self.action is not Action.NONE


def _npd(kind: str, check: str, severity: Severity, action: Action) -> ConditionRule:
    return ConditionRule(kind, CONDITION_CHECKS + check, severity, action, is_renewed=True)


def _eks(kind: str, check: str, severity: Severity, action: Action) -> ConditionRule:
    return ConditionRule(kind, CONDITION_CHECKS + check, severity, action, status="False")


_WARNING, _CRITICAL = Severity.WARNING, Severity.CRITICAL
#: The rules that are shipped. A condition that none names means nothing.
CONDITION_RULES = (
    _npd("KernelDeadlock", "kernel", _CRITICAL, Action.REBOOT),
    _npd("ReadonlyFilesystem", "disk", _CRITICAL, Action.REBOOT),
    _npd("XfsShutdown", "disk", _CRITICAL, Action.REBOOT),
    _npd("FilesystemCorruptionProblem", "disk", _CRITICAL, Action.ASK_PERSON),
    _npd("CperHardwareErrorFatal", "hardware", _CRITICAL, Action.REPLACE),
    _npd("KubeletProblem", "services", _WARNING, Action.REBOOT),
    _npd("KubeletUnhealthy", "services", _WARNING, Action.REBOOT),
    _npd("ContainerRuntimeProblem", "services", _WARNING, Action.REBOOT),
    _npd("ContainerRuntimeUnhealthy", "services", _WARNING, Action.REBOOT),
    _npd("FrequentKubeletRestart", "services", _WARNING, Action.WATCH),
    _npd("FrequentContainerdRestart", "services", _WARNING, Action.WATCH),
    _npd("FrequentDockerRestart", "services", _WARNING, Action.WATCH),
    _npd("FrequentUnregisterNetDevice", "network", _WARNING, Action.REBOOT),
    _npd("NTPProblem", "clock", _WARNING, Action.WATCH),
    _npd("GPUMissing", "gpu", _CRITICAL, Action.REBOOT),
    _npd("NVLinkStatusInactive", "gpu", _CRITICAL, Action.REBOOT),
    _npd("XIDErrors", "gpu", _WARNING, Action.REBOOT),
    _npd("IBLinkFlapping", "network", _WARNING, Action.ASK_PERSON),
    _eks("AcceleratedHardwareReady", "gpu", _CRITICAL, Action.REBOOT),
    _eks("KernelReady", "kernel", _WARNING, Action.REBOOT),
    _eks("NetworkingReady", "network", _WARNING, Action.REBOOT),
    _eks("StorageReady", "disk", _WARNING, Action.ASK_PERSON),
    _eks("ContainerRuntimeReady", "services", _WARNING, Action.REBOOT),
    ConditionRule(
        "*", CONDITION_CHECKS + "gpu", _CRITICAL, Action.ASK_PERSON, reason="*IsNotHealthy",
        says_action=True,
    ),
)  # fmt: skip


class ConditionRules:
    """The rules of a cluster, its own before those that are shipped; the first that matches counts.

    Nodes state their conditions with each heartbeat, so a type that no rule names costs one lookup.
    """

    def __init__(self, own: Iterable[ConditionRule] = ()) -> None:
        self._of_type: dict[str, list[ConditionRule]] = {}
        for rule in (*own, *CONDITION_RULES):
            self._of_type.setdefault(rule.type, []).append(rule)
        self._of_any = self._of_type.pop("*", [])

    def rule_of(self, condition: NodeCondition) -> ConditionRule | None:
        """Return the rule of what a condition states; None: it means nothing."""
        for rules in (self._of_type.get(condition.type, ()), self._of_any):
            for rule in rules:
                if rule.status == condition.status and fnmatchcase(condition.reason, rule.reason):
                    return rule if rule.is_fault else None
        return None

    def faults_of(self, node: Node) -> tuple[ReportedFault, ...]:
        """Return the faults that others state of a node, in the order of its conditions.

        First and last sight are the transition: a heartbeat confirms what is there, and a person
        who says that it is mended is believed until the condition comes again.
        """
        found = tuple(self._faults_of(node))
        return found[:CONDITIONS_MAX]

    def _faults_of(self, node: Node) -> Iterator[ReportedFault]:
        conditions, kubelet = node.status.conditions, None
        for condition in conditions:
            rule = self.rule_of(condition)
            if rule is None:
                continue
            if rule.is_renewed:
                kubelet = kubelet or _renewed_at(c for c in conditions if c.type == READY)
                own = _renewed_at((condition,))
                if kubelet is not None and own is not None and kubelet - own > RENEWED_SECONDS:
                    continue
            yield _fault(condition, rule)


def _fault(condition: NodeCondition, rule: ConditionRule) -> ReportedFault:
    action, at = rule.action, condition.last_transition_time or ""
    if rule.says_action and (said := _SAID_ACTION.search(condition.message)) is not None:
        action = _SAID_ACTIONS.get(said[1], action)
    is_mild = rule.says_action and action is Action.WATCH
    severity = Severity.WARNING if is_mild else rule.severity
    return ReportedFault(
        rule.check, condition.type[:COMPONENT_MAX], severity, action, action.recovery, at, at,
        (condition.reason[:CODE_MAX],) if condition.reason else (),
        evidence=condition.message[:EVIDENCE_MAX],
    )  # fmt: skip


def _renewed_at(conditions: Iterable[NodeCondition]) -> float | None:
    """Return when a condition was last confirmed; None: it does not say."""
    for condition in conditions:
        try:
            return parse_time(condition.last_heartbeat_time or "")
        except ValueError:
            return None
    return None
