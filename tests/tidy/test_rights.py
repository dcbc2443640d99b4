"""Rights that no run on a real API server counts are those of calls in the source.

`tests/kubernetes/test_install.py` counts what the controllers ask for with the default values, and
compares it with what they may. What node health adds to that, and all that a collector may do, is
found here: each right has a call that names its resource.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import msgspec
from tests.tidy.sources import modules, name, nodes

from fairlead.api import resources
from fairlead.api.resources import Resource
from fairlead.install.manifests import Install, manifests
from fairlead.install.values import Values

Right = tuple[str, str, str]
#: Methods of clients and of `ObjectWriter` -> the right that they use; a mirror lists and watches.
VERBS: dict[str, tuple[str, ...]] = {
    **{verb: (verb,) for verb in ("get", "list", "watch", "create", "patch", "delete")},
    "patch_status": ("patch/status",),
    "objects.create": ("create", "get"),  # the one that is there may be its own
    "make": ("list", "watch"),
    "_mirror": ("list", "watch"),
}
RESOURCES = {key: each for key, each in vars(resources).items() if isinstance(each, Resource)}


def called(*parts: str) -> set[Right]:
    """Return the rights that calls in these parts of the source use."""
    return {
        right
        for path in modules() if name(path).startswith(parts)
        for node in nodes(path) if isinstance(node, ast.Call)
        for right in _of_call(node)
    }  # fmt: skip


def _of_call(call: ast.Call) -> Iterator[Right]:
    below = [
        str(keyword.value.value)
        for keyword in call.keywords
        if keyword.arg == "subresource" and isinstance(keyword.value, ast.Constant)
    ]
    for argument in call.args[:2]:
        named = argument.value if isinstance(argument, ast.Attribute) else argument
        if isinstance(named, ast.Name) and named.id in RESOURCES:
            resource = RESOURCES[named.id]
            for each in VERBS.get(_method(call.func), ()):
                verb, _, part = each.partition("/")
                plural = "/".join([resource.plural, *below, *([part] if part else [])])
                yield resource.group, plural, verb


def _method(called: ast.expr) -> str:
    """`objects.create` for methods of that name, which differ; else the last name."""
    names = ast.unparse(called).split(".")[-2:]
    joined = ".".join(names).removeprefix("_")
    return joined if joined in VERBS else names[-1]


def granted(role: str, *, with_health: bool) -> set[Right]:
    """Return the rights of a cluster role."""
    values = msgspec.convert({"settings": {"health": {"enabled": with_health}}}, Values)
    found: Sequence[dict[str, list[str]]] = [
        rule
        for each in manifests(Install(values=values))
        if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", role)
        for rule in each["rules"]
    ]
    return {
        (group, resource, verb)
        for rule in found for group in rule.get("apiGroups", ())
        for resource in rule["resources"] for verb in rule["verbs"]
    }  # fmt: skip


def test_what_node_health_adds_to_the_rights_of_the_controllers_is_called() -> None:
    role = "fairlead-controller"
    added = granted(role, with_health=True) - granted(role, with_health=False)
    assert ("fairlead.dev", "nodetests/status", "patch") in added
    assert added - called("app/", "controllers/", "runtime/") == set()


def test_a_collector_may_do_what_its_module_calls_and_nothing_else() -> None:
    rights = granted("fairlead-collector", with_health=True)
    assert rights == called("app/collector.py")
    assert len(rights) > 2
