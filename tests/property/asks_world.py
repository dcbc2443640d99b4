"""Gangs that ask in all ways at once on small clusters, and a judge that knows the objects alone.

Pods ask for CPU, memory and hugepages at both levels, with init containers, sidecars and overhead;
neighbours are resized or wait at a gate; claims of volumes are of every binding mode, shared or of
each member, on nodes that attach a few; claims of devices have counts, selectors, tolerations and
alternatives, or are shared.

The judge shares nothing with the planner beyond the types of the wire. It adds up amounts by
itself, reads from volumes and classes which nodes reach them, matches devices by augmenting paths,
and finds places by trying all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace
from tests.property.test_devices import ALL, KINDS, Gpu, Options, device, request
from tests.property.test_devices import Case as Devices

from fairlead.api.jobs.job import ClaimTemplate, Job, Role
from fairlead.api.jobs.placement import Placement
from fairlead.api.kubernetes.core import NodeSelector, Pod, PodTemplate
from fairlead.api.kubernetes.volumes import (
    SELECTED_NODE,
    PersistentVolume,
    PersistentVolumeClaim,
)
from fairlead.api.meta import ObjectMeta, to_wire
from fairlead.api.pods.pod_rules import pod_spec_causes
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.objects import Objects
from fairlead.testing.builders import EPOCH, make_job, make_node
from fairlead.testing.device_builders import (
    DRIVER,
    make_device_claim,
    make_device_class,
    make_device_template,
)
from fairlead.testing.device_builders import make_slice as slice_of
from fairlead.testing.volume_builders import (
    ZONE,
    make_claim,
    make_csi_node,
    make_storage_class,
    make_volume,
)

Spec = dict[str, Any]
CASE, DISKS = "case", "disk.test"
#: What pods ask for of nodes, and the unit of each amount, after a number.
PAGES = "hugepages-2Mi"
UNITS = {"cpu": "", "memory": "Gi", PAGES: "Mi"}
#: What the runtime class of pods with overhead adds; the API server demands that it is in them.
OVERHEAD_CLASS, OVERHEAD = "heavy", {"cpu": "1"}
#: Binding modes of a claim that members share, and states in which none can have it.
SHARED = (
    "zonal", "zonal", "zonal", "local", "local", "static", "static", "static", "made", "made",
    "made", "made anywhere", "made anywhere", "immediate", "missing", "for one pod", "for one pod",
)  # fmt: skip


@dataclass
class AskingRole:
    """Members that are alike: what their pods ask for."""

    name: str
    count: int
    spec: Spec
    claims: list[str] = field(default_factory=list[str])
    #: The class of a claim that each has of its own; "" for none.
    disks: str = ""
    devices: list[Options] = field(default_factory=list[Options])
    template: str = ""
    #: A claim for devices that all members share; "" for none.
    card: str = ""

    @property
    def is_certain(self) -> bool:
        """False where it depends on the node what a member gets: we wait where kube-scheduler may
        find a place by another alternative (docs/design/devices.md).
        """
        return all(len(each) == 1 and each[0][1] != ALL for each in self.devices)

    def made(self) -> Role:
        spec = dict(self.spec)
        spec["volumes"] = [
            {"name": f"v{i}", "persistentVolumeClaim": {"claimName": name}}
            for i, name in enumerate(self.claims)
        ]
        if self.devices:
            spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": self.template}]
        if self.card:
            spec["resourceClaims"] = [{"name": "card", "resourceClaimName": self.card}]
        template = msgspec.convert({"spec": spec}, PodTemplate)
        wanted = {"accessModes": ["ReadWriteOnce"], "storageClassName": self.disks,
                  "resources": {"requests": {"storage": "1Gi"}}}  # fmt: skip
        own = (ClaimTemplate(ObjectMeta(name="data"), wanted),) if self.disks else ()
        return Role(name=self.name, count=self.count, template=template, volume_claim_templates=own)


@dataclass
class Gang:
    """A job whose members start together."""

    name: str
    roles: list[AskingRole]

    @property
    def is_certain(self) -> bool:
        """True where a gang finds places if and only if there are any: see `AskingRole`; several
        roles are packed by a heuristic.
        """
        return len(self.roles) == 1 and self.roles[0].is_certain

    def job(self, age: int) -> Job:
        return make_job(self.name, roles=[role.made() for role in self.roles], created=EPOCH + age)


@dataclass
class Case:
    """Objects as they are written, and the gangs that come one after the other."""

    name: str
    gpus: dict[str, list[Gpu]]
    objects: Objects
    gangs: list[Gang]
    #: What claims ask for that members share.
    cards: dict[str, list[Options]] = field(default_factory=dict[str, list[Options]])


# ---------------------------------------------------------------------- generated clusters


def draw_case(rng: Random, name: str, *, roles_max: int = 1) -> Case:
    """Draw a cluster and what is asked of it; all names begin with that of the case."""
    nodes = [f"{name}-n{i}" for i in range(rng.randint(2, 4))]
    zones = {node: f"{name}-{rng.choice('ab')}" for node in nodes}
    gpus = {
        node: [
            Gpu(f"d{j}", rng.choice("abc"), rng.choice((16, 40, 80)), rng.random() < 0.2)
            for j in range(rng.randint(1, 4))
        ]
        for node in nodes
    }
    limits = {node: rng.choice((1, 2, 3)) for node in nodes if rng.random() < 0.6}
    classes = [
        make_storage_class(f"{name}-disk", zones=sorted(set(zones.values()))),
        make_storage_class(f"{name}-here", zones=[zones[nodes[0]]]),
    ]
    pods = [_neighbour(rng, f"{name}-p{i}", rng.choice(nodes)) for i in range(rng.randrange(3))]
    case = Case(name, gpus, Objects(
        nodes=tuple(
            make_node(
                node, gpus=0, cpu=rng.randint(5, 16), memory=f"{rng.randint(4, 12)}Gi",
                extra={PAGES: f"{rng.choice((0, 8, 16, 16))}Mi"}, labels={ZONE: zone, CASE: name},
            )
            for node, zone in zones.items()
        ),
        pods=(*pods, _gated(f"{name}-gated", nodes[0])),
        storage_classes=tuple(classes),
        csi_nodes=tuple(make_csi_node(node, disk_test=limits.get(node)) for node in nodes),
        device_classes=(make_device_class("gpu", f'device.driver == "{DRIVER}"'),),
        slices=tuple(slice_of(node, [*map(device, found)]) for node, found in gpus.items()),
    ), [])  # fmt: skip
    for number in range(rng.randint(1, 4)):
        gang = f"{name}-g{number}"
        roles = [_role(rng, case, gang, i) for i in range(rng.randint(1, roles_max))]
        for each in roles[1:]:  # of other kinds, whose members come at once, one may be refused
            each.devices, each.template = roles[0].devices, roles[0].template
            each.card = roles[0].card
        case.gangs.append(Gang(gang, roles))
    return case


def _role(rng: Random, case: Case, gang: str, number: int) -> AskingRole:
    role = AskingRole(f"r{number}", rng.choice((1, 1, 2, 3)), _spec(rng, case.name))
    for i in range(rng.choice((0, 0, 0, 1, 1, 2))):
        name = _add_claim(rng, case, f"{gang}-{number}-{i}")
        role.claims += [name] * (name not in role.claims)
    if rng.random() < 0.35:
        role.disks = f"{case.name}-{rng.choice(('disk', 'disk', 'here'))}"
    if rng.random() < 0.5:
        role.devices = _requests(rng)
        role.template = f"{gang}-{number}"
        asked = (request(options, f"r{i}") for i, options in enumerate(role.devices))
        found = make_device_template(role.template, *asked)
        case.objects = _with(case.objects, device_templates=[found])
    elif rng.random() < 0.4:
        role.card = _add_card(rng, case)
    return role


def _add_card(rng: Random, case: Case) -> str:
    """Add a claim for devices that gangs share, the same for all of them; return its name."""
    name = f"{case.name}-card"
    if name not in case.cards:
        case.cards[name] = [[(rng.choice(sorted(set(KINDS) - {"none"})), 1)]]
        asked = (request(options, f"r{i}") for i, options in enumerate(case.cards[name]))
        case.objects = _with(case.objects, device_claims=[make_device_claim(name, *asked)])
    return name


def _requests(rng: Random) -> list[Options]:
    """Return the requests of a claim, whose kinds are the same or apart: of kinds that overlap,
    members that come at once may get each other's (docs/design/devices.md).
    """
    kinds = sorted(set(KINDS) - {"none"})
    if rng.random() < 0.25:
        kind = rng.choice(kinds)
        return [[(each, 1)] for each in rng.choice((("a", "b"), ("b", "a"), (kind, kind)))]
    if rng.random() < 0.3:
        return [[(rng.choice(kinds), rng.choice((1, 1, 2, ALL))) for _ in range(2)]]
    return [[(rng.choice(kinds), rng.choice((1, 1, 2)))]]


def _spec(rng: Random, case: str) -> Spec:
    while True:
        running = [_container(rng, f"c{i}") for i in range(rng.randint(1, 2))]
        initial = [_container(rng, f"i{i}") for i in range(rng.choice((0, 0, 1, 2)))]
        for each in initial:
            if rng.random() < 0.5:
                each["restartPolicy"] = "Always"
        spec: Spec = {"containers": running, "initContainers": initial,
                      "nodeSelector": {CASE: case}}  # fmt: skip
        if rng.random() < 0.4:
            spec["resources"] = _whole(rng, total(spec))
        if rng.random() < 0.25:
            spec |= {"overhead": OVERHEAD, "runtimeClassName": OVERHEAD_CLASS}
        if not pod_spec_causes(msgspec.convert({"spec": spec}, Pod).spec):
            return spec


def _container(rng: Random, name: str) -> Spec:
    kind = rng.choice(("requests", "limits"))
    asked = {"cpu": str(rng.randrange(3))}
    if rng.random() < 0.4:
        asked["memory"] = f"{rng.randrange(4)}Gi"
    resources = {kind: asked}
    if rng.random() < 0.1:
        resources.setdefault("limits", {})[PAGES] = f"{rng.choice((2, 4))}Mi"
    return {"name": name, "image": "none", "resources": resources}


def _whole(rng: Random, asked: dict[str, int]) -> Spec:
    """What a pod asks for as a whole, whose containers ask for this; some amounts are limits alone,
    as those of hugepages have to be.
    """
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    for name, odds in (("cpu", 0.8), ("memory", 0.5), (PAGES, 0.3)):
        if rng.random() > odds:
            continue
        least = asked.get(name, 0)
        most = least + rng.randrange(3) * (1 if name == "cpu" else 2)
        is_limit = name == PAGES or rng.random() < 0.3
        (limits if is_limit else requests)[name] = f"{most}{UNITS[name]}"
    return {"requests": requests, "limits": limits}


def _neighbour(rng: Random, name: str, node: str) -> Pod:
    """A pod that may be resized: its node may have allocated, and the container have, others."""
    container = {"name": "c", "image": "none",
                 "resources": {"requests": {"cpu": str(rng.randint(1, 3))}}}  # fmt: skip
    status: dict[str, Any] = {"phase": "Running"}
    if rng.random() < 0.6:
        has, allocated = str(rng.randint(1, 3)), str(rng.randint(1, 3))
        status["containerStatuses"] = [{
            "name": "c", "ready": True, "restartCount": 0, "image": "none", "imageID": "",
            "resources": {"requests": {"cpu": has}}, "allocatedResources": {"cpu": allocated},
        }]  # fmt: skip
        if rng.random() < 0.5:
            pending = {"type": "PodResizePending", "status": "True",
                       "reason": rng.choice(("Infeasible", "Deferred"))}  # fmt: skip
            status["conditions"] = [pending]
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    spec = {"containers": [container], "nodeName": node}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, Pod)


def _gated(name: str, node: str) -> Pod:
    """A pod that would take all of a node, and is not to be scheduled yet."""
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": "3"}}}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    spec = {"containers": [container], "nodeSelector": {"kubernetes.io/hostname": node},
            "schedulingGates": [{"name": "example.com/wait"}]}  # fmt: skip
    return msgspec.convert({"metadata": metadata, "spec": spec}, Pod)


def _add_claim(rng: Random, case: Case, name: str) -> str:
    """Add a claim that members share, with its volume or class; return its name.

    That for one pod is the same for all gangs.
    """
    kind = rng.choice(SHARED)
    if kind == "for one pod":
        name = f"{case.name}-alone"
    if kind == "missing" or any(each.metadata.name == name for each in case.objects.claims):
        return name
    nodes = {each.metadata.name: each.metadata.labels[ZONE] for each in case.objects.nodes}
    node = rng.choice(sorted(nodes))
    place: dict[str, Any] = {"zones": [nodes[node]]} if rng.random() < 0.6 else {"nodes": [node]}
    if kind in ("zonal", "local"):
        place = {"zones": [nodes[node]]} if kind == "zonal" else {"nodes": [node]}
    modes = ["ReadWriteOncePod"] if kind == "for one pod" else ["ReadWriteMany"]
    if kind in ("zonal", "local", "for one pod"):
        claim = make_claim(name, volume=name, modes=modes)
        volume = make_volume(name, claim=name, modes=modes, **place)
        case.objects = _with(case.objects, claims=[claim], volumes=[volume])
        return name
    zones = {"made": [nodes[node]], "made anywhere": sorted(set(nodes.values()))}
    found = make_storage_class(name, waits=kind != "immediate", makes=kind != "static",
                               zones=zones.get(kind, ()))  # fmt: skip
    if kind in zones:  # no node limits its volumes: shared ones are counted for each member
        found = replace(found, provisioner="shared.test")
    volumes = [make_volume(name, storage_class=name, **place)] if kind == "static" else []
    claim = make_claim(name, storage_class=name)
    case.objects = _with(case.objects, claims=[claim], volumes=volumes, storage_classes=[found])
    return name


def _with(objects: Objects, **more: Iterable[Any]) -> Objects:
    """Return them with more."""
    return dataclasses.replace(
        objects, **{name: (*getattr(objects, name), *added) for name, added in more.items()}
    )


def planned(objects: Objects, job: Job) -> Placement | None:
    """Return where our planner places a job that waits alone; None where it does not."""
    state = dataclasses.replace(objects, jobs=(*objects.jobs, job)).state(())
    decision = decide(PlacementState(state), PlacementPolicy(), EPOCH + 600)
    found = [action for action in decision.actions if isinstance(action, PlaceJob)]
    assert len(found) <= 1
    return found[0].placement if found else None


# ---------------------------------------------------------------------- the judge


def read(amounts: dict[str, str]) -> dict[str, int]:
    """Amounts by resource, each in its unit."""
    return {name: int(amounts[name].removesuffix(unit)) for name, unit in UNITS.items()
            if name in amounts}  # fmt: skip


def asked_of(resources: dict[str, Any]) -> dict[str, int]:
    """What is requested, and what is limited alone."""
    return read(resources.get("limits") or {}) | read(resources.get("requests") or {})


def total(spec: Spec) -> dict[str, int]:
    """What a pod asks for that is not resized, by resource."""
    starting = [
        ("restartPolicy" in each, asked_of(each.get("resources") or {}))
        for each in spec.get("initContainers") or ()
    ]
    running = [asked_of(each.get("resources") or {}) for each in spec["containers"]]
    need: dict[str, int] = {}
    for name in UNITS:
        sidecars = peak = 0
        for is_sidecar, own in starting:
            peak = max(peak, sidecars + own.get(name, 0))
            sidecars += own.get(name, 0) * is_sidecar
        need[name] = max(peak, sidecars + sum(own.get(name, 0) for own in running))
    containers = {name for own in [*running, *(own for _, own in starting)] for name in own}
    whole = spec.get("resources") or {}
    limits = read(whole.get("limits") or {})
    # Limited alone, it asks for what its containers do, if they ask for any.
    need |= {n: a for n, a in limits.items() if n == PAGES or n not in containers}
    need |= read(whole.get("requests") or {})
    need["cpu"] += bool(spec.get("overhead"))
    return need


def taken(pod: Spec) -> dict[str, int]:
    """What a pod that has a node asks for; CPUs may be resized."""
    asked, status = total(pod["spec"]), pod.get("status") or {}
    for state in status.get("containerStatuses") or ():
        if not state.get("resources"):
            continue  # as the spec says
        reasons = [each.get("reason") for each in status.get("conditions") or ()]
        parts = [
            int(state["resources"]["requests"]["cpu"]),
            int(state["allocatedResources"]["cpu"]),
        ]
        most = max(parts if "Infeasible" in reasons else [asked["cpu"], *parts])
        return {**asked, "cpu": most}
    return asked


class Judge:
    """What is free on the nodes of a case, and who may go where."""

    def __init__(self, case: Case, objects: Objects) -> None:
        nodes = [each for each in objects.nodes if each.metadata.labels.get(CASE) == case.name]
        self.nodes = {each.metadata.name: each.metadata.labels for each in nodes}
        self.claims = {each.metadata.name: each for each in objects.claims}
        self.volumes = {each.metadata.name: each for each in objects.volumes}
        self.classes = {each.metadata.name: each for each in objects.storage_classes}
        self.room = {
            each.metadata.name: read({n: str(a) for n, a in each.status.allocatable.items()})
            for each in nodes
        }
        self.attached: dict[str, set[str]] = {node: set() for node in self.nodes}
        #: The claims that pods with a node use.
        self.used: set[str] = set()
        for pod in objects.pods:
            if pod.spec.node_name not in self.nodes or pod.is_terminal:
                continue
            room = self.room[pod.spec.node_name]
            room.update((name, room.get(name, 0) - n) for name, n in taken(to_wire(pod)).items())
            names = [
                volume.persistent_volume_claim.claim_name
                for volume in pod.spec.volumes if volume.persistent_volume_claim is not None
            ]  # fmt: skip
            self.used.update(names)
            self.attached[pod.spec.node_name].update(n for n in names if self._is_disk(n))
        self.limits = {
            each.metadata.name: driver.allocatable.count
            for each in objects.csi_nodes for driver in each.spec.drivers or ()
            if driver.name == DISKS and driver.allocatable is not None
        }  # fmt: skip
        self.devices = Devices(case.gpus, {})
        self.cards = case.cards
        #: By claim the node of its devices.
        self.allocated: dict[str, str] = {}
        for claim in objects.device_claims:
            if claim.status.allocation is not None:
                for had in claim.status.allocation.devices.results:
                    self.devices.taken.setdefault(had.pool, set()).add(had.device)
                    self.allocated[claim.metadata.name] = had.pool

    def fits(self, node: str, members: Sequence[AskingRole]) -> bool:
        """Whether a node has all that these members ask for, together."""
        needs = [total(each.spec) for each in members]
        for name in UNITS:
            need = sum(each[name] for each in needs)
            if need and need > self.room[node].get(name, 0):
                return False
        if any(node not in self._reached(each) for each in members):
            return False
        disks, limit = sum(bool(each.disks) for each in members), self.limits.get(node)
        if disks and limit is not None and disks + len(self.attached[node]) > limit:
            return False
        if any(self.allocated.get(each.card, node) != node for each in members):
            return False
        cards = {each.card for each in members if each.card not in self.allocated} - {""}
        asked = [*(each.devices for each in members), *map(self.cards.__getitem__, sorted(cards))]
        chosen = [self.devices.chosen(node, each) for each in asked]
        if None in chosen:
            return False
        asks = [ask for each in chosen for ask in each or ()]
        return self.devices.match(node, asks) is not None

    def finds_places(self, gang: Gang) -> bool:
        """Whether there is a way to give all members a node; all ways are tried."""
        members = [role for role in gang.roles for _ in range(role.count)]
        if not self._may_have_claims(gang):
            return False

        def place(rest: Sequence[AskingRole], on: dict[str, list[AskingRole]]) -> bool:
            if not rest:
                return self._are_together(on)
            return any(
                self.fits(node, [*there, rest[0]])
                and place(rest[1:], {**on, node: [*there, rest[0]]})
                for node, there in on.items()
            )

        return place(members, {node: [] for node in self.nodes})

    def accepts(self, gang: Gang, places: Sequence[Sequence[str]]) -> bool:
        """Whether the members of each role may be on these nodes."""
        on: dict[str, list[AskingRole]] = {}
        for role, nodes in zip(gang.roles, places, strict=True):
            for node in nodes:
                on.setdefault(node, []).append(role)
        return (
            self._may_have_claims(gang)
            and self._are_together(on)
            and all(node in self.nodes and self.fits(node, there) for node, there in on.items())
        )

    def _are_together(self, on: dict[str, list[AskingRole]]) -> bool:
        """Whether members that share a volume that is yet to be made are in one zone, and those
        that share devices that are yet to be had on one node.
        """
        cards = [card for each in on.values() for card in {member.card for member in each}]
        if any(cards.count(card) > 1 for card in {*cards} - {"", *self.allocated}):
            return False
        zones: dict[str, set[str]] = {}
        for node, members in on.items():
            for name in {name for each in members for name in each.claims}:
                claim = self.claims.get(name)
                if claim is not None and not claim.is_bound:
                    found = self.classes[claim.storage_class]
                    if found.makes_volumes and found.allowed_topologies:
                        zones.setdefault(name, set()).add(self.nodes[node][ZONE])
        return all(len(each) == 1 for each in zones.values())

    def _may_have_claims(self, gang: Gang) -> bool:
        """Whether no claim that is for one pod is used by several, or by another one."""
        users = [name for role in gang.roles for name in role.claims for _ in range(role.count)]
        return not any(
            users.count(name) > 1 or name in self.used
            for name in users
            if name in self.claims and "ReadWriteOncePod" in self.claims[name].spec.access_modes
        )

    def _reached(self, role: AskingRole) -> set[str]:
        found = set(self.nodes)
        for name in role.claims:
            claim = self.claims.get(name)
            found &= set() if claim is None else self._reach_of(claim)
        return found & self._reach_of_class(role.disks) if role.disks else found

    def _reach_of(self, claim: PersistentVolumeClaim) -> set[str]:
        if claim.is_bound:
            return self._reach_of_volume(self.volumes[claim.spec.volume_name])
        if selected := claim.metadata.annotations.get(SELECTED_NODE):
            return {selected}
        return self._reach_of_class(claim.storage_class)

    def _reach_of_class(self, name: str) -> set[str]:
        """From where a claim of a class can get a volume that waits for its pod."""
        found = self.classes[name]
        if not found.waits_for_consumer:
            return set()
        if not found.makes_volumes:
            free = [v for v in self.volumes.values() if v.storage_class == name]
            return set[str]().union(*map(self._reach_of_volume, free))
        rules = [rule for term in found.allowed_topologies for rule in term.match_label_expressions]
        return {
            node for node, labels in self.nodes.items()
            if not rules or any(labels.get(rule.key) in rule.values for rule in rules)
        }  # fmt: skip

    def _reach_of_volume(self, volume: PersistentVolume) -> set[str]:
        affinity = volume.spec.node_affinity
        if affinity is None or affinity.required is None:
            return set(self.nodes)
        return {node for node, labels in self.nodes.items() if _is_for(affinity.required, labels)}

    def _is_disk(self, claim: str) -> bool:
        found = self.claims.get(claim)
        if found is None or found.storage_class not in self.classes:
            return False
        return self.classes[found.storage_class].provisioner == DISKS


def _is_for(selector: NodeSelector, labels: dict[str, str]) -> bool:
    return any(
        all(labels.get(rule.key) in rule.values for rule in term.match_expressions)
        for term in selector.node_selector_terms
    )
