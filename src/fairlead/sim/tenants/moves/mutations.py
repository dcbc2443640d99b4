"""Values of every field and every key that the code reads, put on the tenant's objects.

The fields are those of the structs that objects are decoded into; the keys are those that
`docs/operations/boundaries.md` lists (a test compares).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from fairlead.api import names
from fairlead.api.jobs.job import JobSpec
from fairlead.api.kubernetes.core import PodSpec
from fairlead.api.kubernetes.devices import ResourceClaimSpec, ResourceClaimTemplateSpec
from fairlead.api.names import SIMULATE_EXIT_CODE, SIMULATE_SECONDS
from fairlead.sim.tenants.bodies import meta, patch
from fairlead.sim.tenants.calls import Call

#: Labels, annotations and prefixes of other tools that decide on the group of a pod.
FOREIGN_KEYS = (
    "apps.kubernetes.io/pod-index",
    "armadaproject.io/gangCardinality",
    "armadaproject.io/gangId",
    "batch.kubernetes.io/job-completion-index",
    "gang.scheduling.koordinator.sh/min-available",
    "gang.scheduling.koordinator.sh/name",
    "jobset.sigs.k8s.io/jobset-name",
    "jobset.sigs.k8s.io/jobset-uid",
    "jobset.sigs.k8s.io/replicatedjob-name",
    "kueue.x-k8s.io/pod-group-name",
    "kueue.x-k8s.io/pod-group-total-count",
    "leaderworkerset.sigs.k8s.io/group-index",
    "leaderworkerset.sigs.k8s.io/name",
    "leaderworkerset.sigs.k8s.io/size",
    "leaderworkerset.sigs.k8s.io/worker-index",
    "pod-group.scheduling.sigs.k8s.io/min-available",
    "pod-group.scheduling.sigs.k8s.io/name",
    "pod-template-hash",
    "ray.io/cluster",
    "ray.io/group",
    "ray.io/node-type",
    "scheduling.k8s.io/group-name",
    "scheduling.volcano.sh/group-min-member",
    "scheduling.volcano.sh/group-name",
    "scheduling.x-k8s.io/pod-group",
    "training.kubeflow.org/job-name",
    "training.kubeflow.org/job-role",
    "training.kubeflow.org/operator-name",
    "training.kubeflow.org/replica-index",
    "training.kubeflow.org/replica-type",
    "volcano.sh/task-index",
    "volcano.sh/task-spec",
)
#: Of ours, on objects of a namespace.
OWN_KEYS = (
    names.ARRAY,
    names.ARRAY_INDEX,
    names.ARRAY_NUMBER,
    names.ATTEMPT,
    names.BALLOON,
    names.DEFAULTS,
    names.DEFRAGMENT,
    names.FENCE,
    names.GANG_NAME,
    names.GANG_SCHEDULING,
    names.GROUP_SIZE,
    names.HELD_BY_ARRAY,
    names.HOSTFILE,
    names.IMAGE_PULL,
    names.JOB_NUMBER,
    names.INDEX,
    names.EGRESS_BANDWIDTH,
    names.INGRESS_BANDWIDTH,
    names.INTERNET_EGRESS,
    names.INTERNET_INGRESS,
    names.JOB_NAME,
    names.JOB_UID,
    names.MIRROR_POD,
    names.MPI,
    names.SLURM_TASKS,
    names.PROGRESS,
    names.RANK,
    names.RECORD_CUT,
    names.ROLE,
    names.RUN,
    names.RUN_NOTE,
    names.RUN_SOURCE,
    names.RUN_TAGS,
    names.STOPPED_EARLY,
    names.SUBMITTED_BY,
    names.TEAM,
    names.USE,
    names.WORK,
    SIMULATE_EXIT_CODE,
    SIMULATE_SECONDS,
)
_TEXTS = (
    "", "x", "0", "1", "2", "-1", "true", "enabled", "disabled", "worker", "head", "rich",
    "lender", "high", "9" * 19, "9" * 60, "1e308", "nan", "\u001b[2J", "\u0000", "x" * 63,
    "x" * 9_000, '{"step":1}', "[" * 3_000, "${uid:rich:jobs/rich-long}", "rich-long",
    "${node:rich}", "../../x", "a?b=c&d", "fairlead.dev/v1alpha1",
)  # fmt: skip
_NUMBERS = (0, -1, 1, 2, 7, 60, 1_000, 100_000, 2**31 - 1, -(2**31), 2**31, 2**63, 10**30)
#: The objects whose fields are changed, and the structs of their specs.
SPECS: dict[str, type[msgspec.Struct]] = {
    "jobs": JobSpec, "pods": PodSpec, "resourceclaims": ResourceClaimSpec,
    "resourceclaimtemplates": ResourceClaimTemplateSpec,
}  # fmt: skip


@cache
def fields_of(struct: type) -> tuple[tuple[tuple[str, ...], str], ...]:
    """Return the path of each field in wire form, and its type's name; lists are entered at 0."""
    return tuple(_fields(inspect.type_info(struct), (), ()))


def _fields(
    info: inspect.Type, path: tuple[str, ...], inside: tuple[type, ...]
) -> Iterator[tuple[tuple[str, ...], str]]:
    if path:
        yield path, type(info).__name__
    match info:
        case inspect.StructType() if info.cls not in inside:
            for each in info.fields:
                yield from _fields(each.type, (*path, each.encode_name), (*inside, info.cls))
        case inspect.UnionType():
            for each in info.types:
                if not isinstance(each, inspect.NoneType):
                    yield from list(_fields(each, path, inside))[1:]
        case inspect.VarTupleType() | inspect.ListType():
            yield from list(_fields(info.item_type, (*path, "0"), inside))[1:]
        case inspect.Metadata():
            yield from list(_fields(info.type, path, inside))[1:]
        case _:
            return


def draw_value(rng: random.Random, kind: str) -> Any:
    """Return a value for a field of this type, or of another one now and then."""
    kinds = {"IntType": 0, "FloatType": 0, "StrType": 1, "EnumType": 1, "BoolType": 2}
    number = kinds.get(kind, 3) if rng.random() < 0.85 else rng.randrange(4)
    if number == 0:
        return rng.choice(_NUMBERS)
    if number == 1:
        return rng.choice(_TEXTS)
    if number == 2:
        return rng.choice((True, False))
    return rng.choice((None, [], {}, [None], [{}], {"x": "y"}, ["x"], [[[[]]]]))


def change_field(rng: random.Random, kind: str, name: str) -> Call:
    """Return a call that sets a field of the spec of an object of `SPECS`."""
    path, type_name = rng.choice(fields_of(SPECS[kind]))
    pointer = "/".join(("/spec", *path))
    operation = rng.choice(("add", "replace", "replace", "remove"))
    step = {"op": operation, "path": pointer, "value": draw_value(rng, type_name)}
    return patch(kind, name, [step])


def change_key(rng: random.Random, kind: str, name: str) -> Call:
    """Return a call that sets a label or an annotation that the code reads."""
    field = rng.choice(("labels", "annotations"))
    key = rng.choice(OWN_KEYS + FOREIGN_KEYS)
    return patch(kind, name, meta(field, key, rng.choice((*_TEXTS, None))))


def change_metadata(rng: random.Random, kind: str, name: str) -> Call:
    """Return a call that changes whose an object is and what keeps it."""
    owners: Sequence[dict[str, Any]] = [
        {"apiVersion": version, "kind": owner, "name": owner_name, "uid": uid, "controller": True}
        for version, owner, owner_name, uid in (
            (names.API_VERSION, "Job", "rich-long", "${uid:rich:jobs/rich-long}"),
            (names.API_VERSION, "Job", name, f"${{uid:jobs/{name}}}"),
            ("apps/v1", "DaemonSet", "x", "u"),
            ("v1", "Node", "${node:rich}", "u"),
            ("apps/v1", "StatefulSet", name, "u"),
        )
    ]
    finalizers: Any = rng.choice(
        (["example.com/mine"], [names.JOB_FINALIZER], None, ["foregroundDeletion"], ["orphan"])
    )
    chosen = rng.choice(owners)
    change = rng.choice(({"ownerReferences": [chosen]}, {"finalizers": finalizers}))
    return patch(kind, name, {"metadata": change})
