"""From where volumes can be reached, as people read node selectors."""

from __future__ import annotations

from fairlead.api.kubernetes.core import NodeSelectorRequirement, NodeSelectorTerm
from fairlead.decide.words import some_of
from fairlead.model.asks.requests import Reach

#: Alternatives, and values of a label, that are named.
_ALTERNATIVES_MAX, _VALUES_MAX = 3, 3
_WORDS = {"In": "{} in ({})", "NotIn": "{} not in ({})", "Exists": "{}", "DoesNotExist": "no {}"}


def reach_text(reach: Reach) -> str:
    """Return a text such as `topology.kubernetes.io/zone in (a, b)`."""
    return " and ".join(_alternatives(each.node_selector_terms) for each in reach)


def _alternatives(terms: tuple[NodeSelectorTerm, ...]) -> str:
    shown = [_term(term) for term in terms[:_ALTERNATIVES_MAX]]
    more = len(terms) - len(shown)
    return " or ".join([*shown, f"{more} alternatives more"] if more else shown)


def _term(term: NodeSelectorTerm) -> str:
    return ", ".join(map(_requirement, (*term.match_expressions, *term.match_fields)))


def _requirement(requirement: NodeSelectorRequirement) -> str:
    words = _WORDS.get(requirement.operator, f"{{}} {requirement.operator} {{}}")
    return words.format(requirement.key, some_of(requirement.values, _VALUES_MAX))
