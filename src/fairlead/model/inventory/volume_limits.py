"""How many more volumes of each driver nodes can attach: a row of the node table for each driver.

    CSINodes, VolumeAttachments, pods with claims -> VolumeLimits -> what nodes offer of the rows
                                                                  -> what pods have of them

The rules are those of kube-scheduler 1.36 (plugin NodeVolumeLimits, `csi.go`): a volume is what
driver and handle name, and counts once on a node; volumes that are attached for no pod count, too.
A node that states no limit for a driver offers `UNLIMITED` of it.

Members and pods take one for each of their volumes, as a request cannot say that two of them share
one. For pods that are on a node it offers as much more as they take of a volume twice (`surplus`),
so the sum is exact there. A gang whose members share a volume may thus find less room than there
is, never more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias, TypeVar

from fairlead.api.kubernetes.volumes import CSINode, StorageClass, VolumeAttachment
from fairlead.api.values.quantity import ATTACHED
from fairlead.model.asks.requests import Request, request_of
from fairlead.model.inventory.device_offers import NO_VOLUMES, NodeVolumes, VolumeOffers

#: Drivers that count at a time, the first ones by name; others are left to kube-scheduler.
DRIVERS_MAX = 16

#: A volume: the driver that attaches it, and its name there.
Handle: TypeAlias = tuple[str, str]
#: Namespace and name of a pod or a claim.
_Key: TypeAlias = tuple[str, str]
_K = TypeVar("_K")
_V = TypeVar("_V")
_W = TypeVar("_W")


def row_of(driver: str) -> str:
    """Return the row that counts the volumes of a driver."""
    return ATTACHED + driver


@dataclass(frozen=True, slots=True)
class StatedLimits:
    """What drivers say of nodes, and what they have attached there."""

    nodes: tuple[CSINode, ...] = ()
    attachments: tuple[VolumeAttachment, ...] = ()


NO_LIMITS = StatedLimits()


def most_of(members: Iterable[AbstractSet[Handle | None]], counted: Iterable[str]) -> Request:
    """Return how many volumes of each of these drivers a member has at most."""
    most = Counter[str]()
    for volumes in members:
        most |= Counter(volume[0] for volume in volumes if volume is not None)
    return request_of((row_of(driver), most[driver]) for driver in counted)


def volume_of_class(found: StorageClass | None, claim: tuple[str, str]) -> Handle | None:
    """Return the volume that a claim without one gets of a class, which no other claim has."""
    driver = found.driver if found is not None else ""
    return (driver, f"claim {claim[0]}/{claim[1]}") if driver else None


def default_class(classes: Iterable[StorageClass]) -> StorageClass | None:
    """Return the class of claims that name none: the newest, then the first by name, as the
    admission plug-in DefaultStorageClass has it.
    """
    found = sorted((c for c in classes if c.is_default), key=lambda c: c.metadata.name)
    return max(found, key=lambda c: c.metadata.creation_timestamp or "", default=None)


@dataclass(frozen=True, slots=True)
class VolumeChanges:
    """What has changed: of nodes, of the pods there, and of what is attached for no pod.

    `offers` None: nodes offer what they did.
    """

    offers: VolumeOffers | None = None
    pods: dict[_Key, Request] = field(default_factory=dict[_Key, Request])
    #: By node.
    attached: dict[str, Request] = field(default_factory=dict[str, Request])


_NO_CHANGES = VolumeChanges()


class VolumeLimits:
    """What nodes can attach, and what is attached there.

    `volume_of` returns the volume of a claim, `handle_of` the handle of a volume by its name; None
    for one that no CSI driver attaches.
    """

    def __init__(
        self,
        volume_of: Callable[[_Key], Handle | None],
        handle_of: Callable[[str], str | None],
    ) -> None:
        self._volume_of, self._handle_of = volume_of, handle_of
        #: By node and driver; on how many nodes each driver has a limit; and how many classes and
        #: volumes name it.
        self._limits: dict[str, dict[str, int]] = {}
        self._limited = Counter[str]()
        self._named = Counter[str]()
        #: By name of the attachment: its node, driver and volume.
        self._attachments: dict[str, tuple[str, str, str]] = {}
        self._attached_on: dict[str, dict[str, None]] = {}
        self._nodes_of_volume: dict[str, dict[str, str]] = {}
        #: By pod with claims: its node and claims; and the other way round.
        self._pods: dict[_Key, tuple[str, tuple[_Key, ...]]] = {}
        self._pods_on: dict[str, dict[_Key, None]] = {}
        self._pods_of_claim: dict[_Key, dict[_Key, None]] = {}
        #: The drivers that have a row. Read it only.
        self.counted: tuple[str, ...] = ()
        #: Nodes for which something has changed, and pods that are gone.
        self._stale: dict[str, None] = {}
        self._gone: dict[_Key, None] = {}
        #: What `follow` has returned of pods, nodes and what is attached there.
        self._requests: dict[_Key, Request] = {}
        self._offered: dict[str, NodeVolumes] = {}
        self._attached: dict[str, Request] = {}

    def put_node(self, name: str, node: CSINode | None) -> bool:
        """Take in what a node can attach, or that it is gone; False where nothing has changed."""
        limits = node.limits if node is not None else {}
        before = self._limits.get(name, {})
        if before == limits:
            return False
        self._limited.subtract(before.keys())
        self._limited.update(limits.keys())
        self._limited = +self._limited
        self._limits[name] = limits
        if not limits:
            del self._limits[name]
        self._stale[name] = None
        return True

    def put_attachment(self, name: str, found: VolumeAttachment | None) -> bool:
        """Take in an attachment, or that it is gone; False where no node offers more or less."""
        before = self._attachments.pop(name, None)
        if before is not None:
            drop(self._attached_on, before[0], name)
            drop(self._nodes_of_volume, before[2], name)
        after: tuple[str, str, str] | None = None
        if found is not None:
            spec = found.spec
            after = (spec.node_name, spec.attacher, spec.source.persistent_volume_name or "")
        if after is not None and all(after):
            self._attachments[name] = after
            self._attached_on.setdefault(after[0], {})[name] = None
            self._nodes_of_volume.setdefault(after[2], {})[name] = after[0]
        nodes = [each[0] for each in (before, after) if each is not None]
        self._stale.update(dict.fromkeys(nodes))
        return before != after and any(node in self._offered for node in nodes)

    def put_pod(self, key: _Key, node: str, claims: tuple[_Key, ...]) -> None:
        """Take in the claims of a pod that is on a node; without any, that it has none there."""
        after = (node, claims) if node and claims else None
        before = self._pods.pop(key, None)
        if after is not None:
            self._pods[key] = after
        if before == after:
            return
        if before is not None:
            drop(self._pods_on, before[0], key)
            for claim in before[1]:
                drop(self._pods_of_claim, claim, key)
            self._stale[before[0]] = self._gone[key] = None
        if after is not None:
            self._pods_on.setdefault(node, {})[key] = None
            for claim in claims:
                self._pods_of_claim.setdefault(claim, {})[key] = None
            self._stale[node] = None

    def has_pod(self, key: _Key) -> bool:
        """True for a pod that is on a node and has claims."""
        return key in self._pods

    def claims_changed(self, claims: Iterable[_Key]) -> None:
        """Note that claims may have other volumes than before."""
        for claim in claims:
            for pod in self._pods_of_claim.get(claim, ()):
                self._stale[self._pods[pod][0]] = None

    def volume_changed(self, name: str) -> None:
        """Note that a volume may have another handle than before."""
        self._stale.update(dict.fromkeys(self._nodes_of_volume.get(name, {}).values()))

    def name_driver(self, before: str, after: str) -> None:
        """Note that a class or a volume names another driver; "" for none.

        Only what is named so has a row: what a node says of itself makes none.
        """
        if before != after:
            self._named.update([after] if after else ())
            self._named.subtract([before] if before else ())
            self._named = +self._named

    def follow(self, *, is_used: bool) -> VolumeChanges:
        """Take in what has changed, once after many changes; what is returned is to be booked.

        `is_used`: some job asks for a claim; else no driver has a row.
        """
        known = sorted(self._limited.keys() & self._named.keys()) if is_used else []
        counted = tuple(known[:DRIVERS_MAX])
        is_other = counted != self.counted
        if is_other:
            self.counted = counted
            self._stale.update(dict.fromkeys(chain(self._offered, self._limits)))
        elif not counted or not (self._stale or self._gone):
            self._stale.clear()
            self._gone.clear()
            return _NO_CHANGES
        pods: dict[_Key, Request] = {}
        for pod in self._gone:
            if pod not in self._pods and self._requests.pop(pod, ()):
                pods[pod] = ()
        nodes: dict[str, NodeVolumes] = {}
        attached: dict[str, Request] = {}
        for node in sorted(self._stale):
            offered, lost = self._count(node, pods)
            if is_other or self._offered.get(node, NO_VOLUMES) != offered:
                nodes[node] = offered
            _set(self._offered, node, offered, is_there=bool(offered.limits))
            if self._attached.get(node, ()) != lost:
                attached[node] = lost
                _set(self._attached, node, lost, is_there=bool(lost))
        self._stale.clear()
        self._gone.clear()
        offers = VolumeOffers(tuple(map(row_of, counted)), nodes) if nodes or is_other else None
        return VolumeChanges(offers, pods, attached)

    def _count(self, node: str, pods: dict[_Key, Request]) -> tuple[NodeVolumes, Request]:
        """Return what a node offers, and what is attached there for no pod; note what its pods
        have.
        """
        stated = self._limits.get(node, {})
        limits = {driver: stated[driver] for driver in self.counted if driver in stated}
        taken = Counter[str]()
        there: set[Handle] = set()
        for pod in self._pods_on.get(node, ()):
            found = self._volumes(self._pods[pod][1], limits)
            amounts = Counter(driver for driver, _ in found)
            taken.update(amounts)
            there |= found
            request = request_of((row_of(driver), n) for driver, n in amounts.items())
            if self._requests.get(pod, ()) != request:
                pods[pod] = request
                _set(self._requests, pod, request, is_there=bool(request))
        taken.subtract(driver for driver, _ in there)
        others: set[Handle] = set()
        for name in self._attached_on.get(node, ()):
            _, driver, volume = self._attachments[name]
            handle = self._handle_of(volume) if driver in limits else None
            if handle is not None and (driver, handle) not in there:
                others.add((driver, handle))
        lost = Counter(row_of(driver) for driver, _ in others)
        offered = NodeVolumes(
            {row_of(driver): n for driver, n in limits.items()},
            {row_of(driver): n for driver, n in taken.items() if n},
        )
        return offered, request_of(lost.items())

    def _volumes(self, claims: Iterable[_Key], limits: dict[str, int]) -> set[Handle]:
        if not limits:
            return set()
        found = map(self._volume_of, claims)
        return {each for each in found if each is not None and each[0] in limits}


def _set(table: dict[_K, _V], key: _K, value: _V, *, is_there: bool) -> None:
    table.pop(key, None)
    if is_there:
        table[key] = value


def drop(index: dict[_K, dict[_V, _W]], key: _K, value: _V) -> None:
    """Take a value out of an index, and its key with the last one."""
    values = index[key]
    values.pop(value, None)
    if not values:
        del index[key]
