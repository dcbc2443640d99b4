"""Rules that what a pod says about other pods must meet; see `pod_rules`.

As the API server has them (`validatePodAffinityTerm`, `validateTopologySpreadConstraints`,
`ValidateLabelSelector`), and one of Fairlead's own: namespaces go by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from fairlead.api.affinity import PodAffinityTerm, TopologySpreadConstraint
from fairlead.api.meta import LabelSelector
from fairlead.api.selectors import OPERATORS, is_label_value, is_qualified_name
from fairlead.api.status import StatusCause

_ACTIONS = ("DoNotSchedule", "ScheduleAnyway")
_POLICIES = ("", "Honor", "Ignore")


def term_causes(term: PodAffinityTerm, path: str) -> Iterator[StatusCause]:
    """Yield every rule that an anti-affinity term breaks."""
    yield from _key(term.topology_key, f"{path}.topologyKey")
    yield from _selector(term.label_selector, f"{path}.labelSelector")
    yield from _selector(term.namespace_selector, f"{path}.namespaceSelector")


def spread_causes(spread: TopologySpreadConstraint, path: str) -> Iterator[StatusCause]:
    """Yield every rule that a spread constraint breaks."""
    yield from _key(spread.topology_key, f"{path}.topologyKey")
    if spread.max_skew < 1:
        yield _cause("Invalid", f"{path}.maxSkew", spread.max_skew, "must be greater than zero")
    if spread.when_unsatisfiable not in _ACTIONS:
        why = 'supported values: "DoNotSchedule", "ScheduleAnyway"'
        yield _cause("NotSupported", f"{path}.whenUnsatisfiable", spread.when_unsatisfiable, why)
    if spread.min_domains is not None and spread.min_domains < 1:
        yield _cause("Invalid", f"{path}.minDomains", spread.min_domains, "must be greater than 0")
    for field, value in (
        ("nodeAffinityPolicy", spread.node_affinity_policy),
        ("nodeTaintsPolicy", spread.node_taints_policy),
    ):
        if value not in _POLICIES:
            why = 'supported values: "Honor", "Ignore"'
            yield _cause("NotSupported", f"{path}.{field}", value, why)
    yield from _selector(spread.label_selector, f"{path}.labelSelector")


def _key(key: str, path: str) -> Iterator[StatusCause]:
    if not key:
        yield StatusCause("FieldValueRequired", "Required value: can not be empty", path)
    elif not is_qualified_name(key):
        yield _cause("Invalid", path, key, "must be the key of a label")


def _selector(selector: LabelSelector | None, path: str) -> Iterator[StatusCause]:
    if selector is None:
        return
    for key, value in selector.match_labels.items():
        if not is_qualified_name(key) or not is_label_value(value):
            yield _cause("Invalid", f"{path}.matchLabels", f"{key}={value}", "must be a label")
    for i, term in enumerate(selector.match_expressions):
        at = f"{path}.matchExpressions[{i}]"
        if not is_qualified_name(term.key):
            yield _cause("Invalid", f"{at}.key", term.key, "must be the key of a label")
        if term.operator not in OPERATORS:
            why = "not a valid selector operator"
            yield _cause("Invalid", f"{at}.operator", term.operator, why)
        elif term.operator in ("In", "NotIn") and not term.values:
            why = "must be specified when `operator` is 'In' or 'NotIn'"
            yield StatusCause("FieldValueRequired", f"Required value: {why}", f"{at}.values")
        elif term.operator not in ("In", "NotIn") and term.values:
            why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield StatusCause("FieldValueForbidden", f"Forbidden: {why}", f"{at}.values")


def _cause(reason: str, path: str, value: str | int, why: str) -> StatusCause:
    what = "Unsupported value" if reason == "NotSupported" else "Invalid value"
    shown = json.dumps(value)[:120]
    return StatusCause(f"FieldValue{reason}", f"{what}: {shown}: {why}", path)
