"""The rules of pods, judged once per shape: the members of a gang differ in values, not in form.

A shape is a pod's spec without its node and without the values of its environment variables, which
no rule looks at but for whether there is one. Thousands of pods have one shape; to find out that it
is a known one takes a small part of the time that the rules take. A pod whose shape breaks a rule
is judged itself, so that the words are about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from fairlead.api import core
from fairlead.embedded.verbs import validation
from fairlead.embedded.verbs.errors import Finding

SHAPES_CACHED_MAX = 1024
SHAPE_BYTES_MAX = 16_384
_SOME_VALUE = "x"


def pod_problems(obj: Mapping[str, Any], pod: core.Pod) -> list[Finding]:
    """Return what is wrong with a pod's spec; `pod` is the read model of the plain `obj`."""
    spec: dict[str, Any] = dict(obj["spec"])
    node = spec.pop("nodeName", None)
    if node and (pod.spec.scheduling_gates or validation.node_name_problem(pod.spec.node_name)):
        return [*validation.pod_problems(pod)]
    for field in ("containers", "initContainers"):
        containers = spec.get(field)
        if containers:
            spec[field] = [_shape_of(container) for container in containers]
    shape = msgspec.json.encode(spec)
    if len(shape) <= SHAPE_BYTES_MAX and _is_fine(shape):
        return []
    return [*validation.pod_problems(pod)]


def _shape_of(container: dict[str, Any]) -> dict[str, Any]:
    variables = container.get("env")
    if not variables:
        return container
    shapes = [
        {**variable, "value": _SOME_VALUE} if variable.get("value") else variable
        for variable in variables
    ]
    return {**container, "env": shapes}


@lru_cache(maxsize=SHAPES_CACHED_MAX)
def _is_fine(shape: bytes) -> bool:
    spec = msgspec.json.decode(shape, type=core.PodSpec)
    return not validation.pod_problems(core.Pod(spec=spec))
