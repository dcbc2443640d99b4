"""What is known of a pod by its shape: the members of a gang differ in values, not in form.

A shape is a pod's spec as it was given, without its node, the values of its environment variables
and the paths of mounts that have a `subPath` (a job's own checkpoints). Thousands of pods have one
shape; to find out that it is a known one takes a small part of the time that it takes to default a
spec, to judge it and to decode it. So all that is done once, and a pod is made by putting its own
values into the shape's. What breaks a rule, or cannot be read at all, has no shape: such a pod is
judged itself, so that the words are about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from fairlead.api.kubernetes import core
from fairlead.embedded.storage.records import Known
from fairlead.embedded.verbs.errors import Finding
from fairlead.embedded.verbs.strategies import validation
from fairlead.embedded.verbs.strategies.pod_defaults import (
    add_tolerations,
    default_pod_spec,
    qos_class,
)

SHAPES_CACHED_MAX = 1024
SHAPE_BYTES_MAX = 16_384
VARIABLES_CACHED_MAX = 65_536
_SOME_VALUE = "x"
_SOME_PATH = {"subPath": "x"}
_NEW = core.PodStatus(phase="Pending")
_CONTAINERS = ("containers", "initContainers")

Obj = dict[str, Any]

#: The environment of a container: the name of each variable that has a mere value, and the whole
#: JSON of any other.
_Names: TypeAlias = tuple[str | bytes, ...]


class _Own(NamedTuple):
    """What a container has of its own: its environment, and which of its mounts have own paths."""

    names: _Names = ()
    mounts: tuple[int, ...] = ()


#: What makes a shape: the spec without what is the pods' own, and that of its containers, in order.
_Key: TypeAlias = tuple[bytes, tuple[_Own, ...]]


class _Env:
    """The environment of one container of a shape."""

    __slots__ = ("_names", "_others", "_places")

    def __init__(self, names: _Names, known: tuple[core.EnvVar, ...]) -> None:
        self._places = [i for i, name in enumerate(names) if type(name) is str]
        self._names = [known[i].name for i in self._places]
        self._others = [(i, known[i]) for i, name in enumerate(names) if type(name) is bytes]

    def with_values(self, given: Sequence[Obj]) -> tuple[core.EnvVar, ...]:
        """Return the variables with a pod's own values."""
        out = list(map(_variable, self._names, [given[i]["value"] for i in self._places]))
        for i, variable in self._others:
            out.insert(i, variable)
        return tuple(out)


@lru_cache(maxsize=VARIABLES_CACHED_MAX)
def _variable(name: str, value: str) -> core.EnvVar:
    """Return one struct for all equal variables: most members of a gang agree in most of them."""
    return core.EnvVar(name=name, value=value)


class PodShape:
    """A spec that is defaulted and breaks no rule, plain and as the read model.

    `filled` and `known` put a pod's own values in; what they return shares the rest among all pods
    of the shape, so it must not be changed.
    """

    __slots__ = ("_envs", "_model", "_mounts", "_spec", "qos")

    def __init__(self, spec: Obj, model: core.PodSpec, owns: tuple[_Own, ...]) -> None:
        self.qos = qos_class(spec)
        self._spec = spec
        self._model = model
        containers = (*model.containers, *model.init_containers)
        self._envs = [
            _Env(own.names, container.env) for own, container in zip(owns, containers, strict=True)
        ]
        self._mounts = [own.mounts for own in owns]

    def filled(self, given: Mapping[str, Any]) -> Obj:
        """Return the defaulted spec of a pod of this shape; the caller may change its top level."""
        out = dict(self._spec)
        if "nodeName" in given:
            out["nodeName"] = given["nodeName"]
        mounts = iter(self._mounts)
        for field in _CONTAINERS:
            if field in out:
                out[field] = [
                    _with_own(known, own, next(mounts))
                    for known, own in zip(out[field], given[field], strict=True)
                ]
        return out

    def known(self, pod: Mapping[str, Any]) -> Known:
        """Return the read model of a new pod's `filled` spec, its priority included."""
        spec = pod["spec"]
        status = _NEW if "conditions" not in pod["status"] else None
        return Known(self._read(spec), status)

    def _read(self, spec: Mapping[str, Any]) -> core.PodSpec:
        known, owns = self._model, zip(self._envs, self._mounts, strict=True)
        return replace(
            known,
            node_name=spec.get("nodeName", ""),
            priority=spec.get("priority"),
            priority_class_name=spec.get("priorityClassName", ""),
            containers=_containers(known.containers, spec["containers"], owns),
            init_containers=_containers(
                known.init_containers, spec.get("initContainers", ()), owns
            ),
        )


def _with_own(known: Obj, given: Obj, mounts: tuple[int, ...]) -> Obj:
    """Return a container of a shape with a pod's own values; the two share the rest."""
    if not given.get("env") and not mounts:
        return known
    out = dict(known)
    if given.get("env"):
        out["env"] = given["env"]
    if mounts:
        out["volumeMounts"] = list(known["volumeMounts"])
    for i in mounts:
        own = given["volumeMounts"][i]
        paths = {"mountPath": own["mountPath"], "subPath": own["subPath"]}
        out["volumeMounts"][i] = {**known["volumeMounts"][i], **paths}
    return out


def _containers(
    known: tuple[core.Container, ...],
    given: Sequence[Obj],
    owns: Iterator[tuple[_Env, tuple[int, ...]]],
) -> tuple[core.Container, ...]:
    if not known:
        return ()
    out: list[core.Container] = []
    for container, own in zip(known, given, strict=True):
        env, mounts = next(owns)
        whole = replace(container, env=env.with_values(own.get("env") or ()))
        if mounts:
            whole = replace(whole, volume_mounts=_mounted(container, own["volumeMounts"], mounts))
        out.append(whole)
    return tuple(out)


def _mounted(
    container: core.Container, given: Sequence[Obj], mounts: tuple[int, ...]
) -> tuple[core.VolumeMount, ...]:
    out = list(container.volume_mounts)
    for i in mounts:
        own = given[i]
        out[i] = replace(out[i], mount_path=own["mountPath"], sub_path=own["subPath"])
    return tuple(out)


def shape_of(spec: Mapping[str, Any]) -> PodShape | None:
    """Return the shape of a spec; None when it has none."""
    rest = dict(spec)
    if type(rest.pop("nodeName", "")) is not str:
        return None
    owns: list[_Own] = []
    try:
        for field in _CONTAINERS:
            if rest.get(field):
                rest[field] = [_without_own(container, owns) for container in rest[field]]
        text = msgspec.json.encode(rest)
    except (AttributeError, KeyError, TypeError):
        return None
    return _known((text, tuple(owns))) if len(text) <= SHAPE_BYTES_MAX else None


def pod_problems(pod: core.Pod, shape: PodShape | None) -> list[Finding]:
    """Return what is wrong with the spec of a pod, whose shape is known or None."""
    spec = pod.spec
    node = spec.node_name
    if shape is None or (node and (spec.scheduling_gates or validation.node_name_problem(node))):
        return [*validation.pod_problems(pod)]
    return []


def _without_own(container: Obj, owns: list[_Own]) -> Obj:
    """Return a container without what is its own, which is appended to `owns`."""
    variables, mounts = container.get("env"), container.get("volumeMounts")
    own = _Own(
        tuple(
            [
                variable["name"]
                if type(variable.get("value")) is str and len(variable) == 2
                else msgspec.json.encode(variable)
                for variable in variables or ()
            ]
        ),
        _own_mounts(mounts) if mounts else (),
    )
    owns.append(own)
    if not variables and not own.mounts:
        return container
    rest = dict(container)
    if variables:
        del rest["env"]
    if mounts and own.mounts:
        rest["volumeMounts"] = list(mounts)
    for i in own.mounts:
        rest["volumeMounts"][i] = {**rest["volumeMounts"][i], "mountPath": f"/{i}", **_SOME_PATH}
    return rest


def _own_mounts(mounts: Sequence[Obj]) -> tuple[int, ...]:
    """Return the mounts whose paths are the pod's own: those with a `subPath`, if no rule is
    broken (`api/pods/pod_rules.py`). Where two have one path, no mount has.
    """
    found = [i for i, mount in enumerate(mounts) if "subPath" in mount and _is_own(mount)]
    if found and len({mount["mountPath"] for mount in mounts}) < len(mounts):
        return ()
    return tuple(found)


def _is_own(mount: Obj) -> bool:
    path, below = mount.get("mountPath"), mount.get("subPath")
    if type(path) is not str or not path or type(below) is not str or not below:
        return False
    return not below.startswith("/") and ".." not in below.split("/")


@lru_cache(maxsize=SHAPES_CACHED_MAX)
def _known(key: _Key) -> PodShape | None:
    """Return the shape if it breaks no rule, whatever the values are."""
    text, owns = key
    spec: Obj = msgspec.json.decode(text)
    try:
        containers = [c for field in _CONTAINERS for c in spec.get(field) or ()]
        for container, own in zip(containers, owns, strict=True):
            if own.names:
                container["env"] = [_some_variable(name) for name in own.names]
        spec = default_pod_spec(spec)
        add_tolerations(spec)
        model = msgspec.json.decode(msgspec.json.encode(spec), type=core.PodSpec)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    if validation.pod_problems(core.Pod(spec=model)):
        return None
    return PodShape(spec, model, owns)


def _some_variable(name: str | bytes) -> Obj:
    return {"name": name, "value": _SOME_VALUE} if type(name) is str else msgspec.json.decode(name)
