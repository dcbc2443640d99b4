"""Request sequences about what is refused when an object is written: types, kinds, pod specs."""

from __future__ import annotations

from typing import Any

from tests.conformance.http_server import config, pod, widget, widget_crd
from tests.conformance.recorder import Recorder
from tests.conformance.vocabulary import CRDS, MAPS, PODS, WIDGETS

_EMPTY: tuple[Any, ...] = ([], {}, 0, False, "")
_MAP_FIELDS = ("labels", "annotations")
_LIST_FIELDS = ("finalizers", "ownerReferences", "managedFields")
_TEXT_FIELDS = ("namespace", "uid", "selfLink", "generateName")
_OTHER_FIELDS = ("creationTimestamp", "deletionTimestamp", "generation")


async def p04_metadata_of_wrong_types(r: Recorder) -> None:
    await r.quietly("POST", CRDS, widget_crd())
    for path, what in ((MAPS, config), (WIDGETS, widget)):
        for field in (*_MAP_FIELDS, *_LIST_FIELDS, *_TEXT_FIELDS, *_OTHER_FIELDS):
            for number, value in enumerate(_EMPTY):
                body = what("a")
                body["metadata"] |= {field: value}
                # A dry run: what is accepted must not be in the way of the next.
                await r(
                    f"{what.__name__}-{field}-{number}", "POST", path, body, query={"dryRun": "All"}
                )
    for number, value in enumerate((*_EMPTY, None)):
        await r(f"metadata-{number}", "POST", MAPS, {"metadata": value})
        await r(f"pod-spec-{number}", "POST", PODS, {"metadata": {"name": "p"}, "spec": value})


async def p04_bodies_without_a_kind(r: Recorder) -> None:
    await r.quietly("POST", CRDS, widget_crd())
    bare: dict[str, Any] = {"metadata": {"name": "a"}, "spec": {"size": 1}}
    kind, version = {"kind": "Widget"}, {"apiVersion": "example.dev/v1"}
    await r("custom-none", "POST", WIDGETS, bare)
    await r("custom-kind", "POST", WIDGETS, bare | kind)
    await r("custom-version", "POST", WIDGETS, bare | version)
    await r("custom-both", "POST", WIDGETS, bare | kind | version)
    await r("custom-put", "PUT", f"{WIDGETS}/a", bare)
    builtin: dict[str, Any] = {"metadata": {"name": "a"}}
    for number, given in enumerate((None, "", 0, "Pod")):
        body = builtin | {"kind": given}
        await r(f"kind-{number}", "POST", MAPS, body, query={"dryRun": "All"})
        body = builtin | {"apiVersion": given}
        await r(f"version-{number}", "POST", MAPS, body, query={"dryRun": "All"})


def _source(**source: Any) -> dict[str, Any]:
    return {"env": [{"name": "A", "valueFrom": source}]}


_CONTAINERS: dict[str, dict[str, Any]] = {
    **{
        f"env-name-{number}": {"env": [{"name": name, "value": "x"}]}
        for number, name in enumerate(("A\0B", "A=B", "", "1 a.b", "\xe4", "\t"))
    },
    "env-both": {"env": [{"name": "A", "value": "x",
                          "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]},
    "env-no-source": _source(),
    "env-field": _source(fieldRef={"fieldPath": "metadata.nam"}),
    "env-no-key": _source(secretKeyRef={"name": "a"}),
    "env-no-name": _source(configMapKeyRef={"key": "a"}),
    "env-resource": _source(resourceFieldRef={"resource": "limits.cpu"}),
    "env-two": _source(fieldRef={"fieldPath": "metadata.name"},
                       secretKeyRef={"name": "a", "key": "b"}),
    "env-from-none": {"envFrom": [{}]},
    "env-from-two": {"envFrom": [{"configMapRef": {"name": "a"}, "secretRef": {"name": "a"}}]},
    "env-from-no-name": {"envFrom": [{"secretRef": {}}]},
    "env-from-prefix": {"envFrom": [{"prefix": "a=b", "secretRef": {"name": "a"}}]},
    "env-from-good": {"envFrom": [{"prefix": "A_", "secretRef": {"name": "a"}}]},
    **{
        f"port-{number}": {"ports": [port]}
        for number, port in enumerate((
            {"containerPort": 0}, {"containerPort": 65536}, {"containerPort": -1},
            {"containerPort": "x"}, {"containerPort": 80, "hostPort": 65536},
            {"containerPort": 80, "protocol": "X"}, {"containerPort": 80, "name": "a" * 16},
            {"containerPort": 80, "name": "1"}, {"containerPort": 80, "name": "web"},
        ))
    },
    "port-names": {"ports": [{"containerPort": port, "name": "a"} for port in (80, 81)]},
    "devices-part": {"resources": {"limits": {"a.b/c": "1.5"}}},
    "devices-other": {"resources": {"limits": {"a.b/c": "2"}, "requests": {"a.b/c": "1"}}},
}  # fmt: skip
_SPECS: dict[str, dict[str, Any]] = {
    "grace": {"terminationGracePeriodSeconds": -1},
    "deadline": {"activeDeadlineSeconds": 0},
    "selector-key": {"nodeSelector": {"a b": "c"}},
    "selector-value": {"nodeSelector": {"a": "b c"}},
    "host": {"hostname": "A_b"},
    "gates": {"schedulingGates": [{"name": "a.b/c"}, {"name": "a.b/c"}]},
    **{
        f"toleration-{number}": {"tolerations": [toleration]}
        for number, toleration in enumerate((
            {"key": "a", "operator": "Maybe"}, {"key": "a", "operator": "Lt", "value": "1"},
            {"key": "a", "effect": "Never"}, {"key": "a", "operator": "Exists", "value": "b"},
            {"operator": "Equal"}, {}, {"operator": "Exists"}, {"key": "a b", "operator": "Exists"},
            {"key": "a", "value": "b c"}, {"key": "a", "tolerationSeconds": 5},
            {"key": "a", "effect": "NoExecute", "tolerationSeconds": 5},
        ))
    },
    **{
        f"affinity-{number}": {"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}
        for number, terms in enumerate((
            [], [{"matchExpressions": [{"key": "a", "operator": "Maybe"}]}],
            [{"matchExpressions": [{"key": "a", "operator": "In"}]}],
            [{"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}],
            [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}],
        ))
    },
}  # fmt: skip


async def p08_pod_specs_that_are_wrong(r: Recorder) -> None:
    for label, parts in _CONTAINERS.items():
        body = pod("p", containers=[{"name": "main", "image": "x", **parts}])
        await r(label, "POST", PODS, body, query={"dryRun": "All"})
    for label, parts in _SPECS.items():
        await r(label, "POST", PODS, pod("p", **parts), query={"dryRun": "All"})
    volume = {"name": "v", "emptyDir": {}}
    for number, mounts in enumerate((
        [{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/a"}],
        [{"name": "v", "mountPath": "/a", "subPath": "../b"}],
    )):  # fmt: skip
        container = {"name": "main", "image": "x", "volumeMounts": mounts}
        body = pod("p", containers=[container], volumes=[volume])
        await r(f"mount-{number}", "POST", PODS, body, query={"dryRun": "All"})
