"""Who binds a member to its node, and how a pod asks for one node and no other.

*Direct*: the pod is created with `spec.nodeName`; nothing checks it again, so it is for nodes that
only Fairlead fills. *Pinned*: the pod asks for its node by name and the stock scheduler binds it,
which refuses where somebody else was faster; for nodes that are shared with others. *Native*: the
stock scheduler places the gang as a whole (`fairlead.decide.jobs.rendering.native`), where it can.

A pinned pod matches its node by the field `metadata.name`, as DaemonSets do: the stock scheduler
then looks at that node only, whatever the size of the cluster (its NodeAffinity plugin, PreFilter).
The host name label would be a guess: it may differ from the node's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.kubernetes.core import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
    PodCondition,
    PodSpec,
)


class Binding(Enum):
    """Who binds the members on a node; the values of the label `names.BINDING`."""

    DIRECT = "direct"
    PINNED = "pinned"
    NATIVE = "native"


def own_binding(labels: Mapping[str, str]) -> Binding | None:
    """Return how a node with these labels wants its members bound; None when it does not say."""
    try:
        return Binding(labels[names.BINDING])
    except (KeyError, ValueError):
        return None


def pinned_affinity(affinity: Affinity | None, node: str) -> Affinity:
    """Return an affinity that matches `node` only, where it matched that node before.

    Terms are alternatives, so each is narrowed. A gated pod's affinity may be changed in just this
    way: requirements may be added to terms that are there, terms where there were none (KEP-3838).
    """
    pin = NodeSelectorRequirement(key="metadata.name", operator="In", values=(node,))
    return _narrowed(affinity, NodeSelectorTerm(match_fields=(pin,)))


def native_affinity(affinity: Affinity | None, default: Binding) -> Affinity:
    """Keep a pod that may go anywhere off the nodes that are bound directly.

    No scheduler checks what is bound there. `default` is how nodes without the label are bound.
    """
    if default is Binding.DIRECT:
        values, operator = (Binding.NATIVE.value, Binding.PINNED.value), "In"
    else:
        values, operator = (Binding.DIRECT.value,), "NotIn"
    rule = NodeSelectorRequirement(key=names.BINDING, operator=operator, values=values)
    return _narrowed(affinity, NodeSelectorTerm(match_expressions=(rule,)))


def _narrowed(affinity: Affinity | None, more: NodeSelectorTerm) -> Affinity:
    old = affinity or Affinity()
    nodes = old.node_affinity or NodeAffinity()
    terms = nodes.required.node_selector_terms if nodes.required else (NodeSelectorTerm(),)
    narrowed = tuple(
        replace(
            term,
            match_fields=(*term.match_fields, *more.match_fields),
            match_expressions=(*term.match_expressions, *more.match_expressions),
        )
        for term in terms
    )
    return replace(old, node_affinity=replace(nodes, required=NodeSelector(narrowed)))


def repinned_affinity(affinity: Affinity, old: str, new: str) -> Affinity:
    """Return a `pinned_affinity` for another node than the one that it is for."""
    nodes = affinity.node_affinity
    assert nodes is not None
    assert nodes.required is not None
    pin = NodeSelectorRequirement(key="metadata.name", operator="In", values=(old,))
    other = replace(pin, values=(new,))
    terms = tuple(
        replace(t, match_fields=tuple([other if f == pin else f for f in t.match_fields]))
        for t in nodes.required.node_selector_terms
    )
    return replace(affinity, node_affinity=replace(nodes, required=NodeSelector(terms)))


def node_of(spec: PodSpec) -> str:
    """Return the node that a pod is on, or pinned to; "" for neither."""
    return spec.node_name or pinned_node(spec)


def pinned_node(spec: PodSpec) -> str:
    """Return the node that a pod is pinned to; "" when it is pinned to none.

    Pinned means that every alternative names the same one node.
    """
    affinity = spec.affinity.node_affinity if spec.affinity else None
    terms = affinity.required.node_selector_terms if affinity and affinity.required else ()
    found = [_named(term) for term in terms]
    return found[0] if found and len(dict.fromkeys(found)) == 1 else ""


def _named(term: NodeSelectorTerm) -> str:
    for field in term.match_fields:
        is_name = field.key == "metadata.name" and field.operator == "In"
        if is_name and len(field.values) == 1:
            return field.values[0]
    return ""


def refusal_of(pod: Pod) -> PodCondition | None:
    """Return the condition by which the pod's scheduler refuses to bind it; None when it does not.

    Its message is the scheduler's; its instant may be that of a scheduling gate that is gone.
    """
    for condition in pod.status.conditions if not pod.spec.node_name else ():
        if condition.type == "PodScheduled" and condition.reason == "Unschedulable":
            return condition
    return None
