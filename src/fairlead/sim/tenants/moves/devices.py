"""Moves with devices: claims, templates, expressions, and what holds and changes them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeAlias

from fairlead.api import names
from fairlead.sim.tenants.bodies import create, gated, job, owned, patch, pod
from fairlead.sim.tenants.calls import Call, Verb
from fairlead.sim.tenants.devices import BIG, DRIVER, claim, request, template, with_claim
from fairlead.sim.tenants.moves.move import Move

Body: TypeAlias = dict[str, Any]
#: The kinds of what devices are asked for with.
CLAIMS, TEMPLATES = "resourceclaims", "resourceclaimtemplates"
_AT = f'device.attributes["{DRIVER}"]'
_TOLERATES = {"tolerations": [{"key": "example.com/worn", "operator": "Exists"}]}
#: Expressions that choose some, all or none, that fail for a device, that do not compile, that are
#: not understood.
_EXPRESSIONS = (
    f'device.driver == "{DRIVER}"', f"{_AT}.memory >= 80", f"{_AT}.memory < 80",
    f"{_AT}.index in [0, 2]", f"{_AT}.index == 1 || {_AT}.memory == 40", "false", "true",
    f'{_AT}.serial == "x"', f'has({_AT}.serial) && {_AT}.serial.startsWith("x")',
    f"{_AT}.none == 1", 'device.attributes["other"].x == 1', f"{_AT}.index / 0 == 1",
    f'{_AT}.serial.matches("(a+)+$")', f"{_AT}.index", "device.", "device", "",
    "!" * 1_500 + "true", "cel.bind(x, 1, x == 1)", f"{_AT}.map(x, x).size() > 0",
    "1 == 1 && " * 200 + "true",
    "(" * 300 + "true" + ")" * 300, "'\\u0000' == device.driver", "x" * 9_000,
    f"quantity('1Gi').isLessThan(quantity('{'9' * 30}'))", "dyn(1) == 1",
)  # fmt: skip
_LIST = f"[{', '.join(map(str, range(40)))}]"
#: They take many steps, of which there is a limit.
_SLOW = (
    f"{_LIST}.all(x, {_LIST}.all(y, {_LIST}.exists(z, x + y + z == {_AT}.index + 117)))",
    " && ".join([f"{_LIST}.exists(x, x == 39)"] * 8),
)
_MODES: tuple[Body, ...] = (
    {"count": 1}, {"count": 2}, {"count": 3}, {"count": 4}, {"count": 33}, {"count": -1},
    {"allocationMode": "All"}, {"adminAccess": True}, _TOLERATES, {**_TOLERATES, "count": 4},
    {"tolerations": [{"operator": "Exists", "tolerationSeconds": 1, "effect": "NoExecute"}]},
    {"capacity": {"requests": {"memory": "1Gi"}}}, {"x": "y"}, {"count": "x"},
)  # fmt: skip


def _request(rng: random.Random) -> Body:
    """Return a request, in half of all cases an ordinary one."""
    kind = rng.random()
    if kind < 0.5:
        return request(rng.choice((DRIVER, BIG)), count=rng.choice((1, 1, 2)))
    chosen = rng.choice(_SLOW) if kind > 0.99 else rng.choice(_EXPRESSIONS)
    found = request(rng.choice((DRIVER, DRIVER, BIG, "none.example.com")), chosen,
                    **(rng.choice(_MODES) if kind > 0.75 else {}))  # fmt: skip
    if kind > 0.97:
        return {"name": "r", "firstAvailable": [{"name": "a", **found["exactly"]}]}
    return found


def _job(stem: str, *sources: str, rng: random.Random, **spec: Any) -> Body:
    body = job(stem, count=rng.choice((1, 1, 2, 4)), gpus=rng.choice((0, 0, 1)),
               seconds=rng.choice((None, 0.5, 3)), **spec)  # fmt: skip
    with_claim(body["spec"]["roles"][0]["template"]["spec"], *sources, use=rng.random() < 0.8)
    return body


def asks_by_template(stem: str, rng: random.Random) -> Sequence[Call]:
    """A job, whose template comes before or after it, changes, goes or comes back."""
    made = create(TEMPLATES, template(stem, *(_request(rng) for _ in range(rng.choice((1, 1, 2))))))
    asks = create("jobs", _job(stem, f"t/{stem}", rng=rng))
    again = create(TEMPLATES, template(stem, _request(rng)))
    held = patch(TEMPLATES, stem, {"metadata": {"finalizers": ["example.com/mine"]}})
    gone = Call(Verb.DELETE, TEMPLATES, stem, wait=rng.choice((0.0, 0.5, 2.0)))
    changed = patch(TEMPLATES, stem, {"spec": {"spec": claim("x", _request(rng))["spec"]}})
    return rng.choice(
        (
            (made, asks), (made, asks), (asks, made), (made, asks, gone, again), (asks, gone, made),
            (made, asks, held, gone, again), (made, asks, changed),
        )
    )  # fmt: skip


def shares_claim(stem: str, rng: random.Random) -> Sequence[Call]:
    """Jobs and pods share a claim, which is held, changed or deleted while it has devices."""
    plain = pod(f"{stem}-p", seconds=rng.choice((None, 2)))
    with_claim(plain["spec"], f"c/{stem}")
    calls = [create(CLAIMS, claim(stem, _request(rng))), create("pods", plain)]
    calls.append(create("jobs", _job(stem, f"c/{stem}", rng=rng), rng.choice((0.0, 1.0))))
    return (*calls, *_change(stem, f"{stem}-p", rng))


def changes_members_claim(stem: str, rng: random.Random) -> Sequence[Call]:
    """The claim that was made for a member is changed, held or deleted while it has devices."""
    made = create(TEMPLATES, template(stem, _request(rng)))
    asks = create("jobs", _job(stem, f"t/{stem}", rng=rng))
    member = f"{stem}-1-worker-0"
    return (made, asks, *_change(f"{member}-d0", rng.choice((f"{stem}-1-worker-1", stem)), rng))


def _change(name: str, other: str, rng: random.Random) -> Sequence[Call]:
    """Return the calls that change a claim; `other` is a pod that has nothing to do with it."""
    allocation = {"devices": {"results": [{"request": "r", "driver": DRIVER, "pool": "${node:rich}",
                                           "device": "gpu-0"}]}}  # fmt: skip
    owner = rng.choice(
        (
            ("v1", "Pod", other, f"${{uid:pods/{other}}}"), ("v1", "Pod", other, "u"),
            ("v1", "Pod", "rich-devices-1-worker-0", "${uid:rich:pods/rich-devices-1-worker-0}"),
            (names.API_VERSION, "Job", other, "u"), ("v1", "Node", "${node:rich}", "u"),
        )
    )  # fmt: skip
    reference = {"apiVersion": owner[0], "kind": owner[1], "name": owner[2], "uid": owner[3],
                 "controller": rng.random() < 0.7}  # fmt: skip
    change: Body = rng.choice(
        (
            {"metadata": {"ownerReferences": [reference]}}, {"metadata": {"ownerReferences": None}},
            {"metadata": {"ownerReferences": [reference]}},
            {"metadata": {"finalizers": ["example.com/mine"]}}, {"metadata": {"finalizers": None}},
            {"status": {"allocation": allocation}}, {"status": None},
            {"status": {"reservedFor": []}}, {"spec": claim("x", _request(rng))["spec"]},
            {"metadata": {"annotations": {"resource.kubernetes.io/pod-claim-name": "x"}}},
        )
    )  # fmt: skip
    calls = [patch(CLAIMS, name, change, wait=rng.choice((0.05, 1.0)))]
    if rng.random() < 0.5:
        calls.append(Call(Verb.DELETE, CLAIMS, name))
    if rng.random() < 0.3:
        calls.append(create(CLAIMS, claim(name, _request(rng))))
    if rng.random() < 0.3:
        gone = Call(Verb.DELETE, "pods", other, {"gracePeriodSeconds": 0}, wait=0.5)
        calls.append(gone)
    return calls


def claims_before(stem: str, rng: random.Random) -> Sequence[Call]:
    """A claim has the name that a member's will have, and says that it is of that member."""
    body = claim(f"{stem}-1-worker-0-d0", _request(rng))
    if rng.random() < 0.5:
        body = owned(body, "v1", "Pod", name=f"{stem}-1-worker-0", uid="u")
    body["status"] = {"allocation": {"devices": {"results": []}}}
    made = create(TEMPLATES, template(stem, _request(rng)))
    return (create(CLAIMS, body), made, create("jobs", _job(stem, f"t/{stem}", rng=rng)))


def many_kinds(stem: str, rng: random.Random) -> Sequence[Call]:
    """Jobs ask for many kinds of devices that overlap each other and those of others."""
    calls: list[Call] = []
    for i in range(rng.choice((2, 2, 3, 7))):
        name, bound = f"{stem}-{i}", rng.randrange(100)
        chosen = rng.choice((f"{_AT}.index != {bound}", f"{_AT}.memory > {bound}"))
        requests = [request(DRIVER, chosen, f"{_AT}.index < {bound}") for _ in range(1)]
        requests.append({**request(BIG, chosen), "name": "s"})
        calls.append(create(TEMPLATES, template(name, *requests)))
        calls.append(create("jobs", _job(name, f"t/{name}", rng=rng)))
    return calls


def pods_have_claims(stem: str, rng: random.Random) -> Sequence[Call]:
    """Pods without a job, gated or not, have claims: their own, one of each other, of others."""
    count = rng.choice((1, 2, 3))
    calls = [create(TEMPLATES, template(stem, _request(rng)))]
    calls.append(create(CLAIMS, claim(stem, _request(rng))))
    for i in range(count):
        seconds = rng.choice((None, 1))
        name = f"{stem}-{i}"
        body = pod(name, seconds=seconds) if rng.random() < 0.5 else gated(
            name, seconds=seconds, gang=stem, size=str(count)
        )  # fmt: skip
        source = rng.choice((f"t/{stem}", f"t/{stem}", f"c/{stem}", "c/rich-devices", "t/one"))
        with_claim(body["spec"], source, *((f"t/{stem}",) if rng.random() < 0.2 else ()))
        calls.append(create("pods", body))
    return calls


def makes_devices(stem: str, rng: random.Random) -> Sequence[Call]:
    """He makes devices, a class, or lets go what others have."""
    body: Body = {"metadata": {"name": stem}, "spec": {}}
    kind = rng.choice(("deviceclasses", "resourceslices"))
    gone = Call(Verb.DELETE, "resourceslices", "v00000-gpu")
    return (create(kind, body), gone, Call(Verb.DELETE, "deviceclasses", DRIVER))


MOVES: tuple[Move, ...] = (
    asks_by_template, asks_by_template, shares_claim, changes_members_claim, claims_before,
    many_kinds, pods_have_claims, makes_devices,
)  # fmt: skip
