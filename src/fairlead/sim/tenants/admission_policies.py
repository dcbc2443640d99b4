"""The admission policies that an installation creates, as the API server holds them.

They need no process of ours, so they hold while the webhook is away. Their parameter is the Fleet.
Source: kubernetes.io/docs, "Validating Admission Policy".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from fairlead.api.kubernetes.selectors import Selector, selector_of
from fairlead.api.meta import LabelSelector
from fairlead.api.status import Forbidden
from fairlead.runtime.leading.leader import LeaderOptions
from fairlead.sim.tenants.cel import EvaluationError, Scope, compiled
from fairlead.webhook.policies import POLICY, policies

_Term = Callable[[Scope], Any]


class _Variables(Mapping[str, Any]):
    """The variables of a policy, each evaluated when it is asked for."""

    def __init__(self, terms: Mapping[str, _Term], scope: Scope) -> None:
        self._terms = terms
        self._scope = {**scope, "variables": self}

    def __getitem__(self, name: str) -> Any:
        return self._terms[name](self._scope)

    def __iter__(self) -> Iterator[str]:
        return iter(self._terms)

    def __len__(self) -> int:
        return len(self._terms)


class _Policy:
    """One policy, compiled."""

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        spec = manifest["spec"]
        self.name = str(manifest["metadata"]["name"])
        self._is_failing_open = spec["failurePolicy"] == "Ignore"
        self._rules = spec["matchConstraints"]["resourceRules"]
        chosen = spec["matchConstraints"].get("namespaceSelector")
        self._namespaces: Selector = selector_of(
            None if chosen is None else msgspec.convert(chosen, LabelSelector)
        )
        self._conditions = [compiled(each["expression"]) for each in spec["matchConditions"]]
        self._variables = {each["name"]: compiled(each["expression"]) for each in spec["variables"]}
        self._validations = [compiled(each["expression"]) for each in spec["validations"]]

    def selects(self, group: str, plural: str, operation: str) -> bool:
        """True where the rules ask about such a request."""
        return any(
            group in rule["apiGroups"] and plural in rule["resources"]
            and operation in rule["operations"]
            for rule in self._rules
        )  # fmt: skip

    def check(self, scope: Scope, labels: Mapping[str, str]) -> None:
        """Forbidden where a validation does not hold."""
        if not self._namespaces.matches(labels):
            return
        try:
            if not all(holds(scope) for holds in self._conditions):
                return
            within = {**scope, "variables": _Variables(self._variables, scope)}
            is_fine = all(holds(within) for holds in self._validations)
        except EvaluationError as error:
            if self._is_failing_open:
                return
            raise Forbidden(f"{self.name}: {error}") from error
        if not is_fine:
            raise Forbidden(f"ValidatingAdmissionPolicy {self.name}")


class InstalledPolicies:
    """All policies of an installation."""

    def __init__(self) -> None:
        found = policies(LeaderOptions().namespace)
        self._policies = [_Policy(each) for each in found if each["kind"] == POLICY]

    def check(self, group: str, plural: str, scope: Scope, labels: Mapping[str, str]) -> None:
        """Forbidden where a policy refuses a request of a kind."""
        for policy in self._policies:
            if policy.selects(group, plural, scope["request"]["operation"]):
                policy.check(scope, labels)
