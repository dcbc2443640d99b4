"""Moves against gangs: nodes of others, jobs that stand for pods, members, elements, classes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeAlias

from fairlead.api import names
from fairlead.model.pools.grouping import membership_of
from fairlead.sim.tenants.bodies import (
    array,
    create,
    gated,
    job,
    member_labels,
    meta,
    owned,
    patch,
    pod,
)
from fairlead.sim.tenants.calls import Call, Verb, decoded_pod
from fairlead.sim.tenants.moves.move import Move

Spec: TypeAlias = dict[str, Any]

#: Gangs of others whose names and uids he knows.
OTHERS = (("rich", "rich-long"), ("open", "open-long"), ("poor", "poor-borrow"))
_TEAM = {"key": names.TEAM, "operator": "Equal", "effect": "NoSchedule"}
_GATE = {"name": "example.com/mine"}


def _uid_of_other(rng: random.Random) -> tuple[str, str]:
    space, name = rng.choice(OTHERS)
    return name, f"${{uid:{space}:jobs/{name}}}"


# Nodes of others


def tolerates_later(stem: str, rng: random.Random) -> Sequence[Call]:
    """A pod waits behind a gate of its own until it tolerates the taint of a team."""
    gates = [rng.choice((_GATE, {"name": names.GANG_GATE}))]
    body = pod(stem, rng.choice((0, 8)), schedulingGates=gates)
    toleration = {**_TEAM, "value": rng.choice(("rich", "lender"))}
    added = [{"op": "add", "path": "/spec/tolerations/-", "value": toleration}]
    dropped = [{"op": "replace", "path": "/spec/schedulingGates", "value": []}]
    return (create("pods", body), patch("pods", stem, added), patch("pods", stem, dropped))


def tolerates_all(stem: str, rng: random.Random) -> Sequence[Call]:
    """A pod tolerates every taint, or those of all teams."""
    toleration = rng.choice(
        (
            {"operator": "Exists"},
            {"operator": "Exists", "effect": "NoSchedule"},
            {"key": names.TEAM, "operator": "Exists"},
            {"key": "", "operator": "Exists"},
            {**_TEAM, "value": "rich"},
        )
    )
    make = rng.choice((pod, gated))
    chosen: Spec = {"nodeSelector": {names.HOSTNAME: "${node:rich}"}} if rng.random() < 0.5 else {}
    return (create("pods", make(stem, 8, tolerations=[toleration], **chosen)),)


def names_node(stem: str, rng: random.Random) -> Sequence[Call]:
    """A pod names its node, so no scheduler looks at its taint."""
    return (create("pods", pod(stem, rng.choice((0, 8)), nodeName="${node:rich}")),)


def template_names_node(stem: str, rng: random.Random) -> Sequence[Call]:
    """The template of a job says what a member's pod may not."""
    body = job(stem)
    spec = body["spec"]["roles"][0]["template"]["spec"]
    spec |= rng.choice(
        (
            {"nodeName": "${node:rich}"},
            {"tolerations": [{"operator": "Exists"}]},
            {"tolerations": [{**_TEAM, "value": "rich"}]},
            {"nodeSelector": {names.HOSTNAME: "${node:rich}"}},
            {"nodeSelector": {names.TEAM: "rich"}},
            {"schedulingGates": [_GATE]},
            {"schedulerName": "other"},
            {"priority": 1000},
            {"priorityClassName": "high"},
        )
    )
    return (create("jobs", body),)


def claims_team(stem: str, rng: random.Random) -> Sequence[Call]:
    """A job, or a pod, is of a team of others."""
    if rng.random() < 0.5:
        claim: Spec = rng.choice(({"team": "rich"}, {"team": "lender"}, {"reservation": "r"}))
        return (create("jobs", job(stem, **claim)), patch("jobs", stem, {"spec": {"team": "rich"}}))
    body = rng.choice((pod, gated))(stem, 1, labels={names.TEAM: "rich"})
    return (create("pods", body), patch("pods", stem, meta("labels", names.TEAM, "lender")))


# Jobs that stand for pods


def adopting(stem: str, rng: random.Random) -> Sequence[Call]:
    """A job of his own stands for pods, in a class that his quota closes to them."""
    body = gated(stem, 8, gang=stem, size="1")
    key = membership_of(decoded_pod(body)).group.key[1]
    adopts = rng.choice(
        (
            {"kind": "Gang", "name": stem},
            {"kind": "Pod", "name": stem, "apiVersion": "v1"},
            {"kind": "StatefulSet", "name": "n",
             "apiVersion": "fairlead.dev/v1alpha1/namespaces/rich/jobs/rich-long?x=1"},
            {"kind": "x", "name": "n", "apiVersion": "fairlead.dev/v1alpha1/jobs?watch=1&x=1"},
        )
    )  # fmt: skip
    mine = job(key, count=rng.choice((1, 16)), gpus=8, adopts=adopts, priorityClassName="high")
    calls = [create("jobs", mine), create("pods", body)]
    return calls if rng.random() < 0.5 else calls[::-1]


def gathers_with_class(stem: str, rng: random.Random) -> Sequence[Call]:
    """The job that was made for his first pod is changed before the second one comes."""
    first, second = (gated(f"{stem}-{i}", 8, gang=stem, size="2") for i in range(2))
    key = membership_of(decoded_pod(first)).group.key[1]
    change = rng.choice(
        (
            {"priorityClassName": "high"},
            {"priority": 1000},
            {"team": "rich"},
            {"adopts": None},
            {"timeLimitSeconds": 1},
            {"suspend": True},
            {"cancel": True},
            {"roles": job("x", count=16, gpus=8)["spec"]["roles"]},
            {"after": [{"job": key}]},
        )
    )
    return (
        create("pods", first),
        patch("jobs", key, {"spec": change}, wait=2.0),
        create("pods", second),
    )


def forges_seats(stem: str, rng: random.Random) -> Sequence[Call]:
    """Pods that ended well are labelled as members of a group, which then holds their seats."""
    count = rng.choice((1, 3))
    ended = [f"{stem}-e{i}" for i in range(count)]
    calls = [create("pods", pod(name, seconds=0.5)) for name in ended]
    body = gated(stem, 0, gang=stem)
    key = membership_of(decoded_pod(body)).group.key[1]
    roles = [
        {**job("x", gpus=0)["spec"]["roles"][0]},
        {**job("x", count=15, gpus=8)["spec"]["roles"][0], "name": "big"},
    ]
    mine = {"metadata": {"name": key}, "spec": {
        "roles": roles, "adopts": {"kind": "Gang", "name": stem}}}  # fmt: skip
    calls += [create("pods", body, wait=2.0), create("jobs", mine)]
    for i, name in enumerate(ended):
        labels = member_labels(key, f"${{uid:jobs/{key}}}", i) | {
            names.ROLE: rng.choice(("big", "worker")), names.GANG_NAME: stem,
            names.GANG_SCHEDULING: "enabled",
        }  # fmt: skip
        calls.append(patch("pods", name, {"metadata": {"labels": labels}}))
    size = str(rng.choice((1, count + 1)))
    calls.append(patch("pods", stem, meta("annotations", names.GROUP_SIZE, size)))
    return calls


def changes_size(stem: str, rng: random.Random) -> Sequence[Call]:
    """What a placed group says of itself changes."""
    calls = [create("pods", gated(f"{stem}-{i}", 1, gang=stem, size="2")) for i in range(2)]
    values = ("1", "3", "0", "-1", "100000", "9" * 30, "x", "")
    calls.append(
        patch("pods", f"{stem}-0", meta("annotations", names.GROUP_SIZE, rng.choice(values)),
              wait=rng.choice((0.0, 2.0)))
    )  # fmt: skip
    label = rng.choice(
        ((names.GANG_NAME, "other"), (names.GANG_NAME, None), (names.ROLE, "boss"),
         (names.GANG_SCHEDULING, "disabled"), (names.GANG_SCHEDULING, None),
         (names.JOB_UID, None), (names.JOB_UID, "other"), (names.INDEX, "99999"))
    )  # fmt: skip
    calls.append(patch("pods", f"{stem}-1", meta("labels", *label)))
    return calls


def huge_group(stem: str, rng: random.Random) -> Sequence[Call]:
    """A group, or a job, is larger than any cluster."""
    size = str(rng.choice((10**5, 10**6, 10**9, 10**18)))
    count = rng.choice((10**3, 10**5, 10**6))
    return (
        create("pods", gated(stem, 1, gang=stem, size=size)),
        create("jobs", job(f"{stem}-j", count=count, gpus=rng.choice((0, 1)))),
    )


def owned_group(stem: str, rng: random.Random) -> Sequence[Call]:
    """Pods are controlled by objects that are not there, not his, or say nonsense."""
    version, kind = rng.choice(
        (
            ("apps/v1", "StatefulSet"), ("batch/v1", "Job"), ("apps/v1", "ReplicaSet"),
            ("kubeflow.org/v1", "PyTorchJob"), ("ray.io/v1", "RayCluster"),
            ("apps/v1", "DaemonSet"), (names.API_VERSION, "Job"), ("v1", "Node"),
            ("kubeflow.org/v1/namespaces/rich/jobs?x=1", "PyTorchJob"),
            ("example.com/v1?watch=1", "Thing"), ("example.com/../../v1", "../pods"),
        )
    )  # fmt: skip
    space, name = rng.choice(OTHERS)
    uid = rng.choice((f"${{uid:{space}:jobs/{name}}}", f"${{uid:pytorchjobs/{stem}}}", "u"))
    owner = rng.choice((stem, name, f"{stem}-launcher"))
    labels = rng.choice(
        (
            {},
            {"training.kubeflow.org/job-name": owner, "training.kubeflow.org/replica-index": "0"},
            {"ray.io/cluster": owner, "ray.io/node-type": "head"},
            {"jobset.sigs.k8s.io/jobset-name": stem,
             "jobset.sigs.k8s.io/replicatedjob-name": "w"},
            {"pod-template-hash": "x"},
            member_labels(name, uid, 0),
        )
    )  # fmt: skip
    replicas: Any = rng.choice((1, 2, 0, -1, 10**6, "x", None))
    thing = {"metadata": {"name": stem}, "spec": {"pytorchReplicaSpecs": {"Worker": {
        "replicas": replicas, "template": {"spec": {"containers": []}}}}}}  # fmt: skip
    body = gated(f"{stem}-0", 1, size=rng.choice(("", "1", "2")), labels=labels)
    return (
        create("pytorchjobs", thing),
        create("pods", owned(body, version, kind, name=owner, uid=uid)),
    )


# Members and what belongs to a job


def forged_member(stem: str, rng: random.Random) -> Sequence[Call]:
    """A pod, a ConfigMap or a Service in his namespace claims to be of a job of others."""
    name, uid = _uid_of_other(rng)
    labels = member_labels(name, uid, 0, rng.choice((0, 1, 2)))
    what = rng.choice(("pods", "configmaps", "services", "secrets"))
    taken = rng.choice((stem, f"{name}-1-worker-0", f"{name}-1-gang"))
    body: dict[str, Any] = {"metadata": {"name": taken}}
    if what == "pods":
        body = pod(taken, seconds=0.5, exit_code=rng.choice((0, 1, 75)))
    body["metadata"]["labels"] = labels
    return (create(what, owned(body, names.API_VERSION, "Job", name=name, uid=uid)),)


def own_member(stem: str, rng: random.Random) -> Sequence[Call]:
    """Pods and objects are where a job's own will be, or take its members' place."""
    taken = rng.choice((f"{stem}-1-worker-0", f"{stem}-1-gang", f"{stem}-1", stem))
    what = rng.choice(("pods", "configmaps", "services"))
    body = pod(taken, 1) if what == "pods" else {"metadata": {"name": taken}}
    labels = member_labels(stem, f"${{uid:jobs/{stem}}}", rng.choice((0, 1, 7)))
    late = pod(f"{stem}-late", 1, labels=labels, seconds=1, exit_code=rng.choice((0, 1)))
    return (
        create(what, body),
        create("jobs", job(stem, count=2)),
        create(
            "pods",
            owned(late, names.API_VERSION, "Job", name=stem, uid=f"${{uid:jobs/{stem}}}"),
            1.0,
        ),
    )


def members_change(stem: str, rng: random.Random) -> Sequence[Call]:
    """The members of his job are labelled, deleted, evicted and held while it runs."""
    member = f"{stem}-1-worker-{rng.choice((0, 1))}"
    change = rng.choice(
        (
            meta("labels", names.ATTEMPT, "9" * 20), meta("labels", names.JOB_UID, None),
            meta("labels", names.ROLE, "boss"), meta("labels", names.INDEX, "-1"),
            meta("annotations", names.PROGRESS, '{"step":' + "9" * 200 + "}"),
            meta("annotations", names.PROGRESS, '{"x":' + "[" * 5_000),
            meta("annotations", names.PROGRESS, '{"step":1,"checkpointStep":1}'),
            meta("annotations", names.USE, '{"milliseconds":9007199254740992,"cpu":[null]}'),
            meta("annotations", names.RUN, '{"metrics":{"x":{"count":1,"last":9e99}}}'),
            meta("annotations", names.RUN, '{"params":' + "[" * 3_000),
            meta("annotations", names.WORK, '{"seconds":1e300,"steps":-1,"spanSeconds":0}'),
            meta("annotations", names.WORK, '{"seconds":9,"steps":999,"spanSeconds":9999}'),
            {"metadata": {"ownerReferences": None}}, {"metadata": {"finalizers": ["a.b/c"]}},
            meta("labels", names.GANG_SCHEDULING, "enabled"),
        )
    )  # fmt: skip
    policy = rng.choice(("Gang", "Member", "Never"))
    body = job(stem, count=2, restart={"policy": policy, "limit": 3, "backoffSeconds": 0})
    budget = {"metadata": {"name": stem}, "spec": {
        "minAvailable": "100%", "selector": {"matchLabels": {names.JOB_NAME: stem}}}}  # fmt: skip
    calls = [create("jobs", body), patch("pods", member, change, wait=2.0)]
    calls += [create("poddisruptionbudgets", budget)] if rng.random() < 0.5 else []
    end = rng.choice((Verb.DELETE, Verb.EVICT))
    return (*calls, Call(end, "pods", member, {"gracePeriodSeconds": 0}))


# Elements of arrays


def forged_element(stem: str, rng: random.Random) -> Sequence[Call]:
    """A job says that it is an element: of an array of others, of his own, of one that is gone."""
    name = rng.choice(("rich-sweep", stem))
    uid = rng.choice((f"${{uid:rich:jobarrays/{name}}}", f"${{uid:jobarrays/{name}}}", "gone"))
    index = rng.choice(("0", "2", "5", "99", "05", "x"))
    forged = job(f"{name}-{index}", gpus=rng.choice((1, 8)), seconds=0.5)
    forged["metadata"] |= {
        "labels": {names.ARRAY: name, names.ARRAY_INDEX: index},
        "annotations": {names.HELD_BY_ARRAY: "true", **_submitted(rng)},
    }
    mine = array(stem, "0-5", template=job(stem, seconds=1), parallelism=rng.choice((1, 2)))
    reference = owned(forged, names.API_VERSION, "JobArray", name=name, uid=uid)
    later = {"metadata": {"ownerReferences": reference["metadata"]["ownerReferences"]}}
    return (
        create("jobarrays", mine), create("jobs", reference), create("jobs", forged),
        patch("jobs", f"{name}-{index}", later, wait=rng.choice((0.0, 1.0))),
    )  # fmt: skip


def elements_change(stem: str, rng: random.Random) -> Sequence[Call]:
    """The jobs of his array are taken out of it, marked, kept and deleted while it runs."""
    seconds, user = rng.choice((0.5, 2)), {"annotations": _submitted(rng)}
    body = array(stem, "0-5", template=job(stem, seconds=seconds), parallelism=2)
    change: dict[str, Any] = rng.choice(
        (
            {"ownerReferences": None}, {"finalizers": None}, {"finalizers": ["example.com/mine"]},
            {"labels": {names.ARRAY_INDEX: "0", names.ARRAY: "rich-sweep"}},
            {"annotations": {names.HELD_BY_ARRAY: "true"}}, user,
        )
    )  # fmt: skip
    of_array: dict[str, Any] = rng.choice(
        (
            {"spec": {"suspend": True}}, {"spec": {"parallelism": 6}}, {"metadata": user},
            {"spec": {"cancelIndices": "0-99"}}, {"spec": {"indices": "0-99"}},
            {"status": {"finished": "0-5"}}, {"spec": {"template": job("x", gpus=8)["spec"]}},
        )
    )  # fmt: skip
    gone = {"gracePeriodSeconds": 0, "propagationPolicy": rng.choice(("Orphan", "Background"))}
    return (
        create("jobarrays", body), patch("jobs", f"{stem}-1", {"metadata": change}, wait=seconds),
        Call(Verb.DELETE, "jobs", f"{stem}-1"), patch("jobarrays", stem, of_array),
        patch("jobarrays", stem, {"spec": {"suspend": False}}, wait=1.0),
        *([Call(Verb.DELETE, "jobarrays", stem, gone, 1.0)] if rng.random() < 0.3 else []),
    )  # fmt: skip


def _submitted(rng: random.Random) -> dict[str, str]:
    return {names.SUBMITTED_BY: rng.choice(("ana", "system:admin"))} if rng.random() < 0.3 else {}


# The life of a job


def changes_running(stem: str, rng: random.Random) -> Sequence[Call]:
    """A job is made a better one once it runs."""
    change: dict[str, Any] = rng.choice(
        (
            {"priorityClassName": "high"}, {"priority": 10}, {"timeLimitSeconds": 10**6},
            {"timeLimitSeconds": None}, {"restart": {"infrastructureLimit": 10**9}},
            {"team": "rich"}, {"after": [{"job": stem}]}, {"topology": {"key": "rack"}},
            {"suspend": True}, {"cancel": True}, {"ttlSecondsAfterFinished": 0},
            {"roles": job("x", count=50, gpus=8)["spec"]["roles"]},
        )
    )  # fmt: skip
    first: Spec = rng.choice(({}, {"timeLimitSeconds": 20}, {"restart": {"limit": 5}}))
    return (
        create("jobs", job(stem, count=rng.choice((1, 2)), gpus=8, **first)),
        patch("jobs", stem, {"spec": change}, wait=rng.choice((0.0, 2.0))),
        patch("jobs", stem, {"spec": {"suspend": False}}, wait=1.0),
    )


def fails_slowly(stem: str, rng: random.Random) -> Sequence[Call]:
    """A job whose program ends at once keeps its nodes until it may restart, as late as it can."""
    seconds = rng.choice((1, 60, 3_600, 86_400))
    restart = {
        "policy": rng.choice(("Gang", "Member")), "limit": 10**6,
        "backoffSeconds": seconds, "backoffSecondsMax": seconds,
    }  # fmt: skip
    return tuple(
        create("jobs", job(f"{stem}-{i}", gpus=8, seconds=0.5, exit_code=1, restart=restart), 2.0)
        for i in range(3)
    )


def queues_again(stem: str, rng: random.Random) -> Sequence[Call]:
    """A job ends its attempts itself, as often as it likes, each before it is at its limit."""
    wait = rng.choice((0.5, 3.0, 20.0))
    again = (patch("jobs", stem, {"spec": {"requeueAttempt": n}}, wait) for n in range(1, 7))
    return (create("jobs", job(stem, count=2, gpus=8, timeLimitSeconds=20)), *again)


def takes_class(stem: str, rng: random.Random) -> Sequence[Call]:
    """A job asks for more than its class, or for a class that the quota closes."""
    spec: Spec = rng.choice(
        (
            {"priorityClassName": "high"}, {"priority": 2**31 - 1}, {"priority": 1000},
            {"priorityClassName": "system-node-critical"}, {"priorityClassName": "none-such"},
        )
    )  # fmt: skip
    calls = [create("jobs", job(stem, count=rng.choice((1, 2, 5, 10)), gpus=8, **spec))]
    own: Spec = rng.choice(({"priorityClassName": "high"}, {"priority": 1000}))
    return (*calls, create("pods", pod(f"{stem}-p", 8, **own)))


def dependency_loop(stem: str, rng: random.Random) -> Sequence[Call]:
    """Jobs wait for each other, for themselves, for thousands."""
    kind = rng.randrange(4)
    if kind == 0:
        return (create("jobs", job(stem, after=[{"job": stem}])),)
    if kind == 1:
        return tuple(
            create("jobs", job(f"{stem}-{i}", after=[{"job": f"{stem}-{(i + 1) % 3}"}]))
            for i in range(3)
        )
    if kind == 2:
        many = [{"job": f"none{i}"} for i in range(rng.choice((10, 100, 2_000)))]
        return (create("jobs", job(stem, after=many)),)
    unmet = rng.choice(("Hold", "Cancel"))
    waits = job(f"{stem}-b", after=[{"job": stem, "state": "Failed", "onUnmet": unmet}])
    first = create("jobs", job(stem, seconds=1))
    return (first, create("jobs", waits), Call(Verb.DELETE, "jobs", stem, wait=3.0))


def large_object(stem: str, rng: random.Random) -> Sequence[Call]:
    """An object is as large as the server takes; it ends, and goes."""
    body = job(stem, cancel=rng.random() < 0.7)
    env = [{"name": f"V{i}", "value": "x" * 1_000} for i in range(rng.choice((300, 900)))]
    body["spec"]["roles"][0]["template"]["spec"]["containers"][0]["env"] = env
    if rng.random() < 0.2:
        body["metadata"]["annotations"] = {"example.com/a": "x" * 200_000}
    return (create("jobs", body), Call(Verb.DELETE, "jobs", stem, wait=1.0))


def holds_on(stem: str, rng: random.Random) -> Sequence[Call]:
    """Objects stay, by finalizers, after they were deleted, and a namesake is made."""
    body = rng.choice((job(stem), job(stem, seconds=1), job(stem, count=2, gpus=8)))
    body["metadata"]["finalizers"] = ["example.com/mine"]
    held = gated(f"{stem}-p", 1, gang=stem, size="1")
    held["metadata"]["finalizers"] = ["example.com/mine"]
    return (
        create("jobs", body), create("pods", held),
        patch("jobs", stem, rng.choice(({"metadata": {"finalizers": ["example.com/mine"]}},
                                        {"metadata": {"finalizers": None}})), wait=1.0),
        Call(Verb.DELETE, "jobs", stem, wait=1.0), Call(Verb.DELETE, "pods", f"{stem}-p"),
        create("jobs", job(stem)),
    )  # fmt: skip


def asks_to_move(stem: str, rng: random.Random) -> Sequence[Call]:
    """A job wants others moved for it."""
    body = job(stem, count=2, gpus=8)
    body["metadata"]["annotations"] = {names.DEFRAGMENT: rng.choice(("true", "1", ""))}
    later = patch("jobs", stem, meta("annotations", names.DEFRAGMENT, "true"))
    return (create("jobs", body), later)


def poses_as(stem: str, rng: random.Random) -> Sequence[Call]:
    """A job says whose it is, and when it was placed."""
    body = job(stem)
    body["metadata"]["annotations"] = {
        names.SUBMITTED_BY: rng.choice(("ana", "system:admin", "\u001b[2J", "x" * 5_000)),
        names.FENCE: rng.choice(("1", "9" * 30, "x")),
    }
    later = patch("jobs", stem, meta("annotations", names.SUBMITTED_BY, "ana"))
    fenced = patch("jobs", stem, meta("annotations", names.FENCE, "9" * 18), wait=1.0)
    return (create("jobs", body), later, fenced)


def honest(stem: str, rng: random.Random) -> Sequence[Call]:
    """Ordinary work: the rest meets a namespace that is in use."""
    kind = rng.randrange(4)
    if kind == 0:
        return (create("jobs", job(stem, count=rng.choice((1, 2)), gpus=rng.choice((1, 4, 8)),
                                   seconds=rng.choice((None, 1, 30)))),)  # fmt: skip
    if kind == 1:
        return tuple(create("pods", gated(f"{stem}-{i}", 4, gang=stem, size="2")) for i in range(2))
    if kind == 2:
        return (create("pods", pod(stem, rng.choice((0, 1, 8)), seconds=rng.choice((1, 60)))),)
    least = job(stem, count=4, gpus=8)
    least["spec"]["roles"][0]["minCount"] = 1
    return (create("jobs", least),)


MOVES: tuple[Move, ...] = (
    tolerates_later, tolerates_all, names_node, template_names_node, claims_team, adopting,
    gathers_with_class, forges_seats, changes_size, huge_group, owned_group, forged_member,
    own_member, members_change, forged_element, elements_change, fails_slowly, changes_running,
    queues_again, takes_class, dependency_loop, large_object,
    holds_on, asks_to_move, poses_as, honest,
)  # fmt: skip
